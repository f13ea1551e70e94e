"""The readings in turn: when exchanges are read, and for how long they are kept."""

import asyncio
import threading
import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from proxy.settings.patterns import Selection
from proxy.topology import entry_builder
from proxy.topology import scheduler as scheduler_module
from proxy.topology.entry_builder import DEAD_LETTER_READS
from proxy.topology.lookups import NotReadable
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import PassReason, Router
from ring.destination import Destination
from ring.ring import Ring
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, silent, status
from tests.unit.proxy.topology.scheduling import LONG, OF_X, A, B, C, Clock, X, reading_again, scheduling, warnings


def test_the_clock_of_the_tests_is_the_one_that_is_replaced() -> None:
    assert vars(scheduler_module)["time"] is time


async def test_named_exchanges_are_read_from_the_start_and_stay(fake: FakeManagement) -> None:
    other = ("v", "y")
    fake.exchange("x", binding("a"))
    async with scheduling(fake, running=True, interval=0.01, settle_time=0, named=(X, other)) as made:
        await eventually(lambda: made.weights() == {A: 1} and other in made.scheduler.faults)
        assert made.scheduler.pending() == [other]
        fake.vhosts.add("v")
        # Absent is an answer.
        await eventually(lambda: not made.scheduler.pending())
        assert made.scheduler.faults == {}
        fake.exchange("y", binding("b"), vhost="v")
        await eventually(lambda: made.weights(other) == {B: 1})
        fake.delete("y", "v")
        await eventually(lambda: other not in made.router.entries)
        fake.exchange("y", binding("c"), vhost="v")
        await eventually(lambda: made.weights(other) == {C: 1})


async def test_bindings_are_read_again_by_themselves(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    # Named, since nobody publishes to it: it would be idle after 0.4 s.
    async with scheduling(fake, running=True, interval=0.01, settle_time=0.01, named=(X,)) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"), binding("b"))
        await eventually(lambda: made.weights() == {A: 1, B: 1})
        fake.exchange("x", binding("b"))
        await eventually(lambda: made.weights() == {B: 1})
        assert made.entry.changes[-1].why == "a regular reading"


async def test_what_nobody_uses_is_forgotten_and_what_is_used_or_named_is_not(
    fake: FakeManagement, clock: Clock
) -> None:
    used, named = ("/", "used"), ("/", "named")
    for _, exchange in (X, used, named):
        fake.exchange(exchange, binding("a"))
    async with scheduling(fake, interval=1.0, named=(named,)) as made:
        for name in (X, used, named):
            await made.scheduler.look_up(name, 10)
        for _ in range(scheduler_module.IDLE_INTERVALS + 2):
            clock.now += 1
            made.router.look(used)
            for name in (X, used, named):
                # The readings of an idle exchange are no use of it.
                await made.scheduler.read_again(name, "sync")
            made.scheduler._forget_idle(clock.now)
        assert set(made.router.entries) == {used, named}
        assert set(made.scheduler._tracked) == {used, named}


async def test_what_is_being_read_is_not_forgotten(fake: FakeManagement, clock: Clock) -> None:
    """A publish would have it read a second time beside the first, and the older of the two could win."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake, interval=1.0) as made:
        gate, reading = await reading_again(made, fake)
        clock.now += scheduler_module.IDLE_INTERVALS + 2
        made.scheduler._forget_idle(clock.now)
        assert set(made.scheduler._tracked) == {X}
        gate.open()
        await reading
        clock.now += scheduler_module.IDLE_INTERVALS + 2
        made.scheduler._forget_idle(clock.now)
        assert not made.scheduler._tracked


async def test_the_sync_survives_what_nobody_expected(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a reading, in the question whose API it is, and in the round itself: the readings go on after each."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake, running=True, interval=0.01, named=(X,)) as made:
        await eventually(lambda: made.weights() == {A: 1})
        for owner, method in ((Management, "exchange"), (Management, "cluster_name"), (Scheduler, "_forget_idle")):
            defect = Mock(side_effect=ZeroDivisionError("ours"))
            with monkeypatch.context() as patched:
                patched.setattr(owner, method, defect)
                await eventually(partial(lambda defect: defect.call_count > 2, defect))
            good = made.reader.results["ok"]
            await eventually(partial(lambda good: made.reader.results["ok"] > good, good))
        assert made.weights() == {A: 1}
        assert made.scheduler.faults == {}
    assert sum(r.exc_info is not None for r in caplog.records) >= 3


async def test_one_exchange_that_hangs_does_not_stop_publishes_to_others_from_being_looked_up(
    fake: FakeManagement,
) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(silent, "/api/exchanges/%2F/hanging")
    async with scheduling(fake, running=True, named=(("/", "hanging"),)) as made:
        await eventually(lambda: fake.count("/hanging") > 0)
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_stopping_ends_it(fake: FakeManagement) -> None:
    fake.fail(silent)
    async with Management([fake.url], 1) as api:
        router = Router(LONG, refuse_stale=False)
        reader = Reader(api, router, Selection(["*"], [], []), settle_time=0)
        task = asyncio.create_task(Scheduler(reader, router, interval=1, named=[X]).run())
        await eventually(lambda: len(fake.requests) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_thousand_queues_are_built_while_the_loop_goes_on(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0
    at_build: list[int] = []

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    def build(weights: dict[Destination, int]) -> Ring:
        at_build.append(ticks)
        ring = real_build(weights)
        at_build.append(ticks)
        return ring

    real_build = Ring.build
    monkeypatch.setattr(entry_builder, "Ring", SimpleNamespace(build=build))
    fake.exchange("x", *(binding(f"q{i}") for i in range(1000)))
    async with scheduling(fake) as made:
        ticker = asyncio.create_task(tick())
        await made.scheduler.look_up(X, 60)
        ticker.cancel()
        before, after = at_build
        # A build takes seconds; had it held the loop, not one tick would have come.
        assert after - before > 20
        weights = made.weights()
        assert weights is not None
        assert len(weights) == 1000


async def test_the_old_ring_serves_while_the_new_one_is_built(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        building, done = threading.Event(), threading.Event()
        real_change = Ring.changed

        def slowly(ring: Ring, weights: dict[Destination, int]) -> Ring:
            building.set()
            assert done.wait(20)
            return real_change(ring, weights)

        monkeypatch.setattr(Ring, "changed", slowly)
        fake.exchange("x", binding("b"))
        refresh = asyncio.create_task(made.scheduler.read_again(X, "test", {A}))
        await eventually(building.is_set)
        assert made.weights() == {A: 1}
        done.set()
        await refresh
        assert made.weights() == {B: 1}


async def test_an_internal_destination_that_is_only_leaving_still_passes(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("inner", "1", "exchange"))
    fake.exchange("inner", type="fanout", internal=True)
    reasons = []
    async with scheduling(fake, settle_time=5) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"))
        for later in (1, 2.5, 2.5):
            clock.now += later
            reasons.append(made.entry.passed)
            await made.scheduler._again(X, "test")
        reasons.append(made.entry.passed)
        assert reasons == [*[PassReason.INTERNAL_DESTINATION] * 3, None]
        assert made.weights() == {A: 1}


async def test_a_destination_that_cannot_be_read_is_not_taken_for_open(fake: FakeManagement) -> None:
    fake.exchange("x", binding("inner", "1", "exchange"))
    fake.fail(status(503), "/api/exchanges/%2F/inner")
    async with scheduling(fake) as made:
        with pytest.raises(NotReadable, match="inner: 503"):
            await made.scheduler.look_up(X, 0.2)


async def test_the_last_good_ring_of_an_idle_exchange_outlives_the_api(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake, interval=1.0) as made:
        await made.scheduler.look_up(X, 10)
        fake.fail(status(503))
        for _ in range(scheduler_module.IDLE_INTERVALS + 2):
            clock.now += 1
            await made.scheduler._again(X, "sync")
            made.scheduler._forget_idle(clock.now)
        assert made.weights() == {A: 1}
        fake.mend()
        await made.scheduler._again(X, "sync")
        made.scheduler._forget_idle(clock.now)
        assert dict(made.router.entries) == {}


async def test_the_ring_of_an_idle_exchange_goes_with_its_virtual_host(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake, interval=1.0) as made:
        await made.scheduler.look_up(X, 10)
        fake.vhosts.clear()
        fake.exchanges.clear()
        for _ in range(scheduler_module.IDLE_INTERVALS - 2):
            clock.now += 1
            await made.scheduler._again(X, "sync")
            made.scheduler._forget_idle(clock.now)
        assert made.weights() == {A: 1}
        clock.now += 4
        made.scheduler._forget_idle(clock.now)
        assert dict(made.router.entries) == {}


async def test_a_slow_exchange_holds_up_no_other_exchanges_readings(fake: FakeManagement) -> None:
    other = ("/", "other")
    for _, exchange in (X, other):
        fake.exchange(exchange, binding("a"))
    async with scheduling(fake, running=True, interval=0.05, settle_time=0, named=(X, other)) as made:
        await eventually(lambda: len(made.router.entries) == 2)
        gate = Gate(fake)
        fake.fail(gate, OF_X)
        await eventually(lambda: gate.waiting > 0)
        read_at = made.router.entries[other].read_at
        await eventually(lambda: made.router.entries[other].read_at > read_at + 0.2)
        assert gate.waiting > 0
        gate.open()


async def test_a_queue_whose_policies_do_not_show_yet_is_looked_at_with_every_reading(
    fake: FakeManagement, clock: Clock
) -> None:
    """As RabbitMQ 3.10 answers before a queue's first statistics."""
    names = [f"q{i:02}" for i in range(DEAD_LETTER_READS + 3)]
    fake.exchange("x", *(binding(name) for name in names))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", *(binding(name) for name in [*names, "new"]))
        fake.queues["/", "new"] = {"effective_policy_definition": ...}
        for _ in range(3):
            clock.now += 1
            fake.requests.clear()
            await made.scheduler._again(X, "test")
            assert fake.counted()["/api/queues/%2F/new"] == 1
        assert made.entry.passed is None
        fake.queues["/", "new"]["effective_policy_definition"] = {"dead-letter-exchange": "d"}
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert made.entry.passed is PassReason.DEAD_LETTER


async def test_a_failing_look_up_is_told_once_a_virtual_host_until_one_succeeds(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(status(401))
    async with scheduling(fake) as made:
        for exchange in ("x", "y", "x"):
            with pytest.raises(NotReadable, match="401, a wrong user or password"):
                await made.scheduler.look_up(("/", exchange), 0.1)
        assert len(warnings(caplog)) == 1
        assert made.reader.look_up_fault is not None
        fake.mend()
        await made.scheduler.look_up(X, 10)
        assert made.reader.look_up_fault is None
