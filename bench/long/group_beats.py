"""The cost of what sidecars of one group tell each other and ask the broker, without members: beats and questions.

`python -m bench.long.group_beats AMQP_URL SIDECARS SECONDS` sends beats between so many sidecars, at a quarter of the
rate of their fleet, and then asks for queues of sidecars. Around each of both it prints a line `begin`, and a line
`end` with how many beats were delivered, or questions answered, and the CPU seconds that this process took for them.
"""

import asyncio
import sys
import time
from typing import Final

import aio_pika
import uvloop
from yarl import URL

from proxy.groups.beats import Beat, LinkBeat, MemberBeat, decode, encode
from proxy.groups.membership import Line, Room
from proxy.groups.model import LinkState
from proxy.groups.peers import Peers
from proxy.groups.timing import between_beats

LINKS: Final = 2
"""How many links each beat tells of, as with 400 shards and 200 sidecars."""
QUESTIONS: Final = 300
_SLOWER: Final = 4.0
"""How many times slower than a fleet the senders beat, so that one process can be all of them."""
_CONNECTED_WITHIN: Final = 120.0


class Sender:
    """One sidecar, which hears all beats and notes what they tell."""

    def __init__(self, amqp_url: str, number: int) -> None:
        """Begin to connect."""
        self.name, self.heard = f"{number:032x}", 0
        url = URL(amqp_url).update_query(heartbeat=0)
        self.line = Line("/", lambda: aio_pika.connect(url))
        self.queue, self.connected = "", asyncio.Event()
        self.room = Room(self.line, "bench.beats", "bench.beats.group", self._heard, self._connected)
        self._peers = Peers(self.name)
        links = {f"bench.fleet400.{each}": LinkBeat(LinkState.OPEN, 1.7e9, 0, True, "") for each in range(LINKS)}
        member = MemberBeat(f"{number:032x}", f"127.0.0.1:50000 member-{number}", 1.7e9, prefetch=20, links=links)
        self._member, self._number = member, 0

    def _connected(self, queue: str) -> None:
        self.queue = queue
        self.connected.set()

    def _heard(self, body: bytes) -> bool:
        self.heard += 1
        if not body:  # a farewell
            return False
        beat = decode(body)
        is_own = beat.sidecar == self.name
        if not is_own:
            self._peers.heard(beat, {}, time.monotonic())
        return is_own

    def beat(self) -> None:
        """Send a full beat."""
        self._number += 1
        ring = "0123456789abcdef"
        beat = Beat(self.name, self._number, "a-host-name", self.queue, ring, None, (self._member,))
        self.room.send(encode(beat))


async def _run(amqp_url: str, count: int, seconds: float) -> None:
    senders = [Sender(amqp_url, number) for number in range(count)]
    async with asyncio.timeout(_CONNECTED_WITHIN):
        await asyncio.gather(*(each.connected.wait() for each in senders))
    every = between_beats(count) * _SLOWER
    await _beats(senders, every, every)  # each knows the others then
    print("begin", flush=True)
    began = time.process_time()
    heard = await _beats(senders, every, seconds)
    print("end", heard, time.process_time() - began, flush=True)
    line = senders[0].line
    asked = senders[0].room.asked
    await line.is_there(asked, senders[-1].queue)
    print("begin", flush=True)
    began = time.process_time()
    for number in range(QUESTIONS):
        await line.is_there(asked, senders[number % count].queue)
    print("end", QUESTIONS, time.process_time() - began, flush=True)
    for each in senders:
        await each.room.aclose(b"")
        await each.line.aclose()


async def _beats(senders: list[Sender], every: float, seconds: float) -> int:
    """Have each send one beat in `every` seconds, evenly over time; return how many all have heard at the end."""
    before, begun = sum(each.heard for each in senders), time.monotonic()
    for number in range(round(seconds / every * len(senders))):
        await asyncio.sleep(max(begun + number * every / len(senders) - time.monotonic(), 0))
        senders[number % len(senders)].beat()
    known = -1
    while (heard := sum(each.heard for each in senders) - before) > known:
        known = heard
        await asyncio.sleep(1.0)
    return heard


def main() -> None:
    """Run the command `python -m bench.long.group_beats`."""
    amqp_url, count, seconds = sys.argv[1:]
    uvloop.run(_run(amqp_url, int(count), float(seconds)))


if __name__ == "__main__":
    main()
