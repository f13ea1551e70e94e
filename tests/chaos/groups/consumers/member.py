"""The common part of members in every language, and of what they write down.

A member is told a `Task` as JSON in its one argument. It consumes until its standard input ends, or says one of these:

- `hold`: ack nothing more, and read on; `ack`: ack again;
- `cancel`: ack nothing more, cancel, and half a second later close;
- `close`: close the connection as the library does it, whatever is unacked.

It connects again whenever it loses its connection or its channel, until it is told to end. Each line that it writes
begins with a letter, the monotonic time and the number of the connection:

- `j`: the consumers have their consume-ok;
- `d TAG REDELIVERED EXCHANGE KEY PUBLISHER NUMBER`: the library handed over a message;
- `a TAG`, `m TAG`, `n TAG`: the member is about to ack, to ack all up to this tag, or to nack with requeue;
- `c`: the member is about to close the connection; `l`: the member has found the connection or the channel gone.
"""

import heapq
import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

CANCELLED_FOR = 0.5
"""Seconds from the cancel-ok until a member closes that was told to cancel."""

MULTIPLE = 0.05
"""The share of acks that ack all up to their tag."""

PAUSE = 0.1
"""Seconds until the next try to connect, and between looks at what is due at most a tenth of it."""


@dataclass(frozen=True)
class Task:
    """The task of a member; its user and virtual host are the broker's defaults."""

    name: str
    ports: list[int]
    """Ports of this machine, tried in turn."""
    sources: list[str]
    """The names to consume: of the group's exchange, or of the shards."""
    prefetch: int
    ack_within: float
    """Seconds after a delivery in which the member acks it, at most."""
    nacked: float
    """The share of deliveries that the member nacks, with requeue."""
    heartbeat: int
    """Seconds."""
    seed: int


def task() -> Task:
    """Return the task in the arguments."""
    return Task(**json.loads(sys.argv[1]))


class Lines:
    """Writes down what happens to the connections of one member, each line at once and whole."""

    def __init__(self) -> None:
        self.connection = 0

    def write(self, what: str, *rest: object) -> None:
        words = " ".join(map(str, (what, f"{time.monotonic():.6f}", self.connection, *rest)))
        os.write(1, f"{words}\n".encode())

    def delivered(self, tag: int, redelivered: bool, exchange: str, key: str, body: bytes) -> None:
        self.write("d", tag, int(redelivered), exchange or "-", key or "-", body.decode())


class Acks:
    """When a member acks what it got on one channel, and how: by chance."""

    def __init__(self, todo: Task) -> None:
        self._todo, self._chance = todo, random.Random(todo.seed)
        self._due: list[tuple[float, int]] = []
        self._unsettled: set[int] = set()

    def got(self, tag: int) -> None:
        self._unsettled.add(tag)
        heapq.heappush(self._due, (time.monotonic() + self._chance.uniform(0.0, self._todo.ack_within), tag))

    def due(self) -> Iterator[tuple[str, int]]:
        """Yield the letter and the tag of each ack or nack that is due by now."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, tag = heapq.heappop(self._due)
            if tag not in self._unsettled:
                continue
            drawn = self._chance.random()
            if drawn < self._todo.nacked:
                self._unsettled.discard(tag)
                yield "n", tag
            elif drawn < self._todo.nacked + MULTIPLE:
                self._unsettled = {other for other in self._unsettled if other > tag}
                yield "m", tag
            else:
                self._unsettled.discard(tag)
                yield "a", tag


class Commands:
    """The commands to a running member; a thread reads them, and ends the process with its standard input."""

    def __init__(self) -> None:
        self.holding = False
        self.over = False
        """Whether the member has been told to end; it then connects no more."""
        self._told: deque[str] = deque()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._told.append(line.strip())
        os._exit(0)

    def ending(self) -> str:
        """Return `cancel` or `close` where that has been said, and see to the others."""
        while self._told:
            told = self._told.popleft()
            self.holding = told in ("hold", "cancel")
            if told in ("cancel", "close"):
                self.over = True
                return told
        return ""
