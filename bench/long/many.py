"""As many sessions as one likes, all publishing at once, from one process.

`python -m bench.long.many AMQP_URL SECONDS FILE SESSIONS` prints how many messages were confirmed, and the seconds
until then.
"""

import select
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import BenchError, apart, direct, wire
from bench.amqp import COMPILED, STRAIGHT
from bench.long.scene import Scene, await_ring, raced, rows
from bench.rounds import Contender
from bench.world import EXCHANGE, QUEUES, World, running_compiled

SESSIONS = 1, 10, 100, 1000

_UNCONFIRMED = 2
"""Chunks of a session."""
_CONFIRMED_WITHIN = 30.0


class Session:
    """One connection, its confirms, and what it has sent."""

    def __init__(self, amqp_url: str, chunk: bytes, size: int) -> None:
        """Open it; a chunk has `size` messages."""
        self.sock = direct.connect(amqp_url)
        self._chunk, self._size = chunk, size
        self._confirmed, self.sent = direct.Confirmed(), 0

    @property
    def done(self) -> bool:
        """Whether all of its messages are confirmed."""
        return self._confirmed.upto == self.sent

    def send(self) -> None:
        """As much as may be unconfirmed."""
        while self.sent - self._confirmed.upto <= (_UNCONFIRMED - 1) * self._size:
            self.sock.sendall(self._chunk)
            self.sent += self._size

    def receive(self) -> None:
        """Read what has come."""
        self._confirmed.feed(direct.received(self.sock))


def publish(sessions: Sequence[Session], seconds: float) -> tuple[int, float]:
    """Until the time is over and all is confirmed; how many messages, and the seconds."""
    poll, by_number = select.epoll(), {session.sock.fileno(): session for session in sessions}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    begun = time.perf_counter()
    for session in sessions:
        session.send()
    open_still = len(sessions)
    while open_still:
        ready = poll.poll(_CONFIRMED_WITHIN)
        if not ready:
            raise BenchError(f"no confirm within {_CONFIRMED_WITHIN:g} s")
        for number, _ in ready:
            session = by_number[number]
            session.receive()
            if time.perf_counter() < begun + seconds:
                session.send()
            elif session.done:
                poll.unregister(number)
                open_still -= 1
    return sum(session.sent for session in sessions), time.perf_counter() - begun


def sessions(world: World) -> str:
    """From one session to a thousand."""
    with running_compiled(world.node, {"max-sessions": "2000"}) as sidecar:
        await_ring(sidecar.http_url, EXCHANGE)
        straight, _, _ = Scene("", EXCHANGE, QUEUES).ways(world)
        hashed = world.folder / f"{EXCHANGE}-hashed"
        broker, proxy = world.node.pid, sidecar.process.pid
        found = {
            f"{count:,}": raced(
                [
                    Contender(STRAIGHT, partial(_rate, straight.amqp_url, straight.messages, count), broker, None),
                    Contender(COMPILED, partial(_rate, sidecar.amqp_url, hashed, count), broker, proxy),
                ]
            )
            for count in SESSIONS
        }
    return rows(found, "sessions")


def _rate(amqp_url: str, messages: Path, count: int, seconds: float) -> tuple[float, int]:
    return apart.rate("bench.long.many", amqp_url, seconds, messages, count)


def main() -> None:
    """Run `python -m bench.long.many`."""
    amqp_url, seconds, file, count = sys.argv[1:]
    messages = wire.load(Path(file))
    size = max(5, direct.CHUNK // int(count))
    made = []
    for number in range(int(count)):
        chunk = b"".join(messages[(number * size + n) % len(messages)] for n in range(size))
        made.append(Session(amqp_url, chunk, size))
    print(*publish(made, float(seconds)))


if __name__ == "__main__":
    main()
