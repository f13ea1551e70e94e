"""A client that never logs in and writes whatever may hurt, at the AMQP listeners of the sidecars, all the time."""

import asyncio
import itertools
import json
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pamqp.commands import Channel, Confirm, Connection

from tests.integration.wire_client import PROTOCOL_HEADER, encoded, publishing, raw_frame, short

AT_ONCE = 3
"""Attacks on one listener at the same time."""

HELD = 10
"""Connections that each of them keeps open behind it: the oldest is hung up."""

PAUSE = 0.1
"""Seconds between two attacks of one row."""

TAKEN_WITHIN = 5.0
"""Seconds for the bytes of one attack; what is not taken by then is kept back."""

LOST = (OSError, TimeoutError)


@dataclass(frozen=True)
class Target:
    """The target of the program, as JSON in its one argument."""

    ports: list[int]
    """Ports of this machine: a listener each."""
    exchange: str
    """One with a ring."""
    stop: str
    """It ends soon after this file is there."""
    report: str
    """Where it writes, at its end, how many attacks of each kind it made, as JSON."""


def _opened(vhost: str = "/") -> bytes:
    """Return a handshake that waits for nothing and leaves the login out: any number of channels, no heartbeats."""
    # By hand: the library refuses names as long as these.
    opening = raw_frame(1, 0, Connection.Open.index.to_bytes(4, "big") + short(vhost.encode()) + bytes(2))
    return PROTOCOL_HEADER + encoded(0, Connection.TuneOk(0, 131072, 0)) + opening


_FLOOD = b"".join(encoded(channel, Channel.Open()) for channel in range(1, 65535))
_LOGIN = encoded(0, Connection.StartOk({}, "PLAIN", "\0guest\0not the password", "en_US"))


class Attacks:
    """The bytes of each attack; its methods are the kinds."""

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self._numbers = itertools.count()
        self.kinds: list[Callable[[], bytes]] = [
            self.channels,
            self.publishes,
            self.made_up_vhosts,
            self.half_a_frame,
            self.lying_length,
            self.wrong_end,
            self.wrong_login,
            self.noise,
            self.nothing,
        ]

    def channels(self) -> bytes:
        """Every channel that there can be is opened."""
        return _opened() + _FLOOD

    def publishes(self) -> bytes:
        """Publishes, which would show in the queues if one of them went out."""
        sent = (publishing(1, self._exchange, f"{n}", b"hostile %d" % n) for n in itertools.islice(self._numbers, 500))
        return _opened() + encoded(1, Channel.Open()) + encoded(1, Confirm.Select()) + b"".join(sent)

    def made_up_vhosts(self) -> bytes:
        """Return the bytes of a client that opens a virtual host which does not exist, and publishes."""
        name = f"{next(self._numbers)}-{'v' * 200}"
        return _opened(name) + encoded(1, Channel.Open()) + publishing(1, self._exchange, "key", b"hostile 0")

    def half_a_frame(self) -> bytes:
        """Return half a login, whose rest never comes."""
        return PROTOCOL_HEADER + _LOGIN[: len(_LOGIN) // 2]

    def lying_length(self) -> bytes:
        """Return a frame that says it has 4 GiB."""
        return PROTOCOL_HEADER + b"\x01\0\0\xff\xff\xff\xf0" + bytes(1 << 16)

    def wrong_end(self) -> bytes:
        """As many frames as fit, each without its end octet."""
        return PROTOCOL_HEADER + raw_frame(1, 0, bytes(1000), b"\0") * 100

    def wrong_login(self) -> bytes:
        """Return the bytes of a client with a password that the broker refuses, and with all the rest at once."""
        return PROTOCOL_HEADER + _LOGIN + _opened()[len(PROTOCOL_HEADER) :] + _FLOOD

    def noise(self) -> bytes:
        """Return random bytes."""
        return os.urandom(1 << 16)

    def nothing(self) -> bytes:
        """Return no bytes: the connection stays silent."""
        return b""


def over(target: Target) -> bool:
    """Return whether it is time to end."""
    return Path(target.stop).exists()


async def attack(port: int, data: bytes, held: deque[asyncio.StreamWriter]) -> None:
    """Write the bytes over a new connection, which stays open until there are too many."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    held.append(writer)
    if len(held) > HELD:
        oldest = held.popleft()
        oldest.transport.abort()
    writer.write(data)
    await asyncio.wait_for(writer.drain(), TAKEN_WITHIN)


async def row(target: Target, port: int, done: Counter[str]) -> None:
    """Attacks one listener, one attack after the other, in an order of chance."""
    attacks = Attacks(target.exchange)
    held: deque[asyncio.StreamWriter] = deque()
    while not over(target):
        for kind in random.sample(attacks.kinds, len(attacks.kinds)):
            # A sidecar may be away just now, or has had enough.
            with suppress(*LOST):
                await attack(port, kind(), held)
                done[kind.__name__] += 1
            await asyncio.sleep(PAUSE)
    for writer in held:
        writer.transport.abort()


async def attacks_on(target: Target) -> Counter[str]:
    """Attack every listener until it is time to end; return how many attacks of each kind were made."""
    done: Counter[str] = Counter()
    await asyncio.gather(*(row(target, port, done) for port in target.ports for _ in range(AT_ONCE)))
    return done


if __name__ == "__main__":
    told = Target(**json.loads(sys.argv[1]))
    Path(told.report).write_text(json.dumps(asyncio.run(attacks_on(told))))
