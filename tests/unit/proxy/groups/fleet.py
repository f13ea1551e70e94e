"""A large fleet of sidecars in modelled time: how many beats it sends, and how long it takes to be balanced.

As a command, for so many sidecars with one member each, and so many shards:

.venv/bin/python -m tests.unit.proxy.groups.fleet 200 400

The groups are the real ones. The broker is the model of `world.py`, which here delivers no more than so many beats a
second, as a real one does, so the figures do not depend on the machine.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from proxy.groups.beats import Beat, encode
from proxy.groups.peers import Question
from tests.unit.proxy.groups.world import Consumer, Sidecar, World

DELIVERED_A_SECOND: Final = 50_000
"""The most beats that the model's broker delivers in a second."""

STEP: Final = 0.05
BALANCED_WITHIN: Final = 60.0


class Counts(NamedTuple):
    """Totals since a fleet began."""

    beats: int
    delivered: int
    """How many beats came to a sidecar, each sidecar counted."""
    bytes: int
    """The bytes of what was delivered."""
    questions: int
    opened: int
    """How many links were opened."""


class Phase(NamedTuple):
    """A time in the life of a fleet, and what was sent in it."""

    seconds: float
    """Until the group was balanced."""
    still: float
    """The longest time that any shard had no consumer."""
    counts: Counts
    cpu: float
    """CPU seconds of all sidecars on this machine, and of the model."""


class Fleet(World):
    """Sidecars of which each has one member of the group."""

    def __init__(self, shards: int, seed: int = 0) -> None:
        super().__init__(seed, shards)
        self.idle |= set(self.queues)
        self.counted = Counts(0, 0, 0, 0, 0)
        self._free = 0.0
        """When the broker has delivered all beats that it has got."""
        self._started = 0

    def publish(self, sender: Sidecar, beat: Beat) -> None:
        receivers = [each for each in self.sidecars.values() if each.is_alive and each.has_queue]
        size, one = len(encode(beat)), self.counted
        self.counted = one._replace(
            beats=one.beats + 1,
            delivered=one.delivered + len(receivers),
            bytes=one.bytes + size * len(receivers),
        )
        for receiver in receivers:
            self._free = max(self._free, self.now + self.random.uniform(0.001, 0.003)) + 1 / DELIVERED_A_SECOND
            self.at(self._free, partial(receiver.heard, beat))

    def ask(self, asker: Sidecar, question: Question) -> None:
        self.counted = self.counted._replace(questions=self.counted.questions + 1)
        super().ask(asker, question)

    def consume(self, consumer: Consumer) -> None:
        self.counted = self.counted._replace(opened=self.counted.opened + 1)
        super().consume(consumer)

    def join(self, count: int, within: float = 0.2) -> list[Sidecar]:
        """Have sidecars start at once, each with a member."""
        made = []
        for _ in range(count):
            # The ids of processes are random, and so is their order.
            name = f"{self.random.getrandbits(64):016x}"
            self._started += 1
            made.append(name)
            self.after(self.random.uniform(0.0, within), partial(self._start, name, f"m{self._started:04}"))
        self.run(within)
        return [self.sidecars[name] for name in made]

    def _start(self, name: str, member: str) -> None:
        self.sidecar(name).join(member)

    def phase(self, change: Callable[[], object]) -> Phase:
        """Make a change; return how long it takes until all is balanced and no link moves."""
        began, before, cpu = self.now, self.counted, time.process_time()
        self.slowest, self.disturbed = 0.0, self.now
        change()
        self.run(2 * STEP)
        while not self.is_settled():
            assert self.now < began + BALANCED_WITHIN, self.counts()
            self.run(STEP)
        return Phase(self.now - began, self.slowest, self._since(before), time.process_time() - cpu)

    def rest(self, seconds: float) -> Phase:
        """Let time go by."""
        before, cpu = self.counted, time.process_time()
        self.run(seconds)
        return Phase(seconds, 0.0, self._since(before), time.process_time() - cpu)

    def _since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self.counted, before, strict=True)))

    def is_settled(self) -> bool:
        """Return whether each shard has one consumer, and each member its share."""
        return self.is_balanced() and all(len(queue.consumers) == 1 for queue in self.queues.values())


def life(sidecars: int, shards: int, rest: float, show: Callable[[str, Phase], None]) -> Fleet:
    """Run a fleet from its start over joins and kills, and show each phase."""
    fleet = Fleet(shards)
    show("all start", fleet.phase(lambda: fleet.join(sidecars)))
    fleet.run(5.0)
    show("at rest", fleet.rest(rest))
    show("one joins", fleet.phase(lambda: fleet.join(1)))
    fleet.run(5.0)
    show("one is killed", fleet.phase(lambda: _kill(_with_shards(fleet)[:1])))
    fleet.run(5.0)
    show("ten join", fleet.phase(lambda: fleet.join(10)))
    fleet.run(5.0)
    show("ten are killed", fleet.phase(lambda: _kill(_with_shards(fleet)[:10])))
    return fleet


def _kill(sidecars: list[Sidecar]) -> None:
    for each in sidecars:
        each.kill()


def _with_shards(fleet: Fleet) -> list[Sidecar]:
    """Return the sidecars whose members have shards."""
    sessions = [each for each in fleet.sessions if each.member.links]
    return [each.sidecar for each in sessions]


def main(sidecars: int, shards: int, rest: float) -> None:
    """Print each phase of a fleet's life."""

    def show(title: str, phase: Phase) -> None:
        took = f"{phase.seconds:.2f} s, a shard was still for {phase.still:.2f} s"
        a_second = ", ".join(f"{name} {value / rest:,.1f}/s" for name, value in phase.counts._asdict().items())
        what = f"{a_second}" if title == "at rest" else f"{took}, {phase.counts}"
        print(f"{sidecars} sidecars, {shards} shards, {title}: {what}, {phase.cpu:.1f} s of CPU", flush=True)

    fleet = life(sidecars, shards, rest, show)
    print(fleet.faults or "nothing wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 30.0)
