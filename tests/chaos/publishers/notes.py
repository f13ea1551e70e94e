"""The common part of every publisher: it writes down what it was told, keeps to its rate, and ends when it should."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

KEYS = 53
"""Few, so that several messages of one are in flight together: their order is judged."""

PAUSE = 0.1
"""Seconds until the next try to connect."""

ANSWER_WITHIN = 20.0
"""Seconds that an AMQP publisher waits for the answer to a publish, before it gives its connection up. RabbitMQ may
never answer, if the queue was deleted and made anew meanwhile.
"""


@dataclass(frozen=True)
class Task:
    """The task of a publisher, as JSON in its one argument; its user and virtual host are the broker's defaults."""

    name: str
    ports: list[int]
    """Ports of this machine, tried in turn."""
    exchange: str
    rate: float
    """Messages a second, at most."""
    notes: str
    stop: str
    """It ends soon after this file is there."""


def task() -> Task:
    """Return the task in the arguments."""
    return Task(**json.loads(sys.argv[1]))


class Notes:
    """A file with a line a message: channel, number, key, when it was sent and answered, outcome."""

    def __init__(self, todo: Task) -> None:
        self._todo = todo
        self._file = Path(todo.notes).open("w")  # noqa: SIM115 - it is what this closes
        self._stop = Path(todo.stop)
        self._number = 0
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def over(self) -> bool:
        """Whether it is time to end."""
        return self._stop.exists()

    def next(self) -> tuple[int, str]:
        """Number and key of one more message."""
        self._number += 1
        return self._number, f"{self._todo.name}-{self._number % KEYS}"

    def body(self, number: int) -> str:
        """Return what it carries: enough to tell it from all others."""
        return f"{self._todo.name} {number}"

    def wait(self) -> float:
        """Return the seconds until the next message may go out."""
        due = self._begun + self._number / self._todo.rate
        now = time.monotonic()
        if now - due > 1.0:  # what an outage cost is not made up for in a burst
            self._begun += now - due
        return max(due - now, 0.0)

    def write(self, channel: str, number: int, key: str, sent: float, outcome: str) -> None:
        """Write down the outcome of one message, known now."""
        self._file.write(f"{channel} {number} {key} {sent:.6f} {time.monotonic():.6f} {outcome}\n")
