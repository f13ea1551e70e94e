"""Counts of what is gone end a while later; those of what is there go on."""

import time
from types import SimpleNamespace
from typing import Any

from proxy.outcome import Outcome
from proxy.routing.counters import Counts
from proxy.routing.forgetting import COUNTS_KEPT, Forgetting
from proxy.routing.routes import RouteTables
from proxy.settings.patterns import Selection
from proxy.topology import scheduler as scheduler_module
from proxy.topology.table import Name, PassReason
from ring.destination import Destination
from tests.unit.proxy.fake_management import FakeManagement, binding
from tests.unit.proxy.topology.scheduling import A, B, Clock, Made, X, scheduling

Y = ("/", "y")
DEFAULT = ("/", "")


class Counted:
    def __init__(self, made: Made) -> None:
        self.made, self.counts = made, Counts()
        self.tables = RouteTables(
            made.router, Selection(["*"], [], []), self.counts.counter_table["amqp"], lambda _: "", lambda *_: None
        )
        self.forgetting = Forgetting(self.counts, made.router, made.reader, self.tables.vhosts)

    def count(self, name: Name, reason: PassReason | None = None) -> None:
        counters = self.counts.counter_table["amqp"].of(name, reason)
        counters.published += 1
        counters.acked += 1

    def counted(self, name: Name) -> int:
        return sum(count for (_, each, _), count in self.counts.all_publishes().items() if each == name)


async def test_the_counts_of_an_exchange_that_is_gone_end(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    fake.exchange("y", binding("a"))
    async with scheduling(fake, settle_time=0) as made:
        it = Counted(made)
        for name in (X, Y):
            await made.scheduler.look_up(name, 10)
            it.count(name)
            it.count(name, PassReason.NO_BINDINGS)
            it.counts.unsent["http", name, Outcome.REJECTED] += 1
        fake.delete("y")
        await made.scheduler.read_again(Y, "test")
        it.forgetting.sweep()
        clock.now += COUNTS_KEPT - 1
        it.forgetting.sweep()
        assert (it.counted(X), it.counted(Y)) == (3, 3)
        clock.now += 2
        it.forgetting.sweep()
        assert (it.counted(X), it.counted(Y)) == (3, 0)
        assert Y not in made.reader.changes
        assert Y not in made.reader.moved
        assert made.reader.changes[X] == 1
        # There again: it begins anew, and is kept as long as it is there.
        fake.exchange("y", binding("a"))
        await made.scheduler.look_up(Y, 10)
        it.count(Y)
        clock.now += COUNTS_KEPT * 2
        it.forgetting.sweep()
        assert it.counted(Y) == 1


async def test_the_default_exchange_is_there_while_a_virtual_host_is_in_use(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake) as made:
        it = Counted(made)
        table = it.tables.table("/", None)
        it.count(DEFAULT, PassReason.TYPE)
        for _ in range(3):
            clock.now += COUNTS_KEPT
            it.forgetting.sweep()
        assert it.counted(DEFAULT) == 1
        del table
        for _ in range(3):
            clock.now += COUNTS_KEPT
            it.forgetting.sweep()
        assert it.counted(DEFAULT) == 0


async def test_a_shadowed_exchange_forgets_destinations_that_it_has_no_more(fake: FakeManagement, clock: Clock) -> None:
    assert vars(scheduler_module)["time"] is clock
    fake.exchange("x", binding("a"))
    async with scheduling(fake, shadow=("x",)) as made:
        it = Counted(made)
        await made.scheduler.look_up(X, 10)
        for destination in (A, B):
            it.counts.counter_table["amqp"].of(X, PassReason.SHADOW).shadowed[destination] += 5
        it.forgetting.sweep()
        clock.now += COUNTS_KEPT
        it.forgetting.sweep()
        assert dict(it.counts.all_shadowed()) == {(X, A): 5}


async def test_tallies_of_destinations_that_an_exchange_has_no_more_end(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        it = Counted(made)
        await made.scheduler.look_up(X, 10)
        for ingress in ("amqp", "http"):
            for destination in (A, B):
                it.counts.counter_table[ingress].of(X, None).tally(destination).count += 5
        it.forgetting.sweep()
        assert dict(it.counts.placed(X)) == {A: 10, B: 10}
        clock.now += COUNTS_KEPT
        it.forgetting.sweep()
        assert dict(it.counts.placed(X)) == {A: 10}


def test_a_ring_with_many_destinations_does_not_hold_the_others_up() -> None:
    counts = Counts()
    counters = counts.counter_table["amqp"].of(X, None)
    there = tuple(Destination("queue", f"q{n}") for n in range(20_000))
    gone = [Destination("queue", f"gone{n}") for n in range(20_000)]
    for destination in (*there, *gone):
        counters.tally(destination).count += 1
    entry = SimpleNamespace(known=SimpleNamespace(ring=SimpleNamespace(destinations=there)))
    router: Any = SimpleNamespace(entries={X: entry}, clock=time.perf_counter)
    reader: Any = SimpleNamespace(changes={}, moved={})
    forgetting = Forgetting(counts, router, reader, set)
    began = time.process_time()
    forgetting.sweep()
    router.clock = lambda: time.perf_counter() + COUNTS_KEPT
    forgetting.sweep()
    # A search of the ring for each destination takes seconds.
    assert time.process_time() - began < 1
    assert counts.placed(X).keys() == set(there)
