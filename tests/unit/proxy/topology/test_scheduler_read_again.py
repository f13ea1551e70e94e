"""Refreshes: which share a reading, and how far readings are apart."""

import asyncio
from contextlib import suppress

import pytest

from proxy.topology import scheduler as scheduler_module
from proxy.topology.lookups import Absent
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, status
from tests.unit.proxy.topology.scheduling import BINDINGS_OF_X, LONG, OF_X, A, B, Clock, X, reading_again, scheduling


async def test_readings_again_at_one_time_share_a_reading_that_started_after_them(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        gate, first = await reading_again(made, fake)
        # Too late for the reading under way, which may not show what they know of.
        later = [asyncio.create_task(made.scheduler.read_again(X, "later", {A})) for _ in range(50)]
        await asyncio.sleep(0)
        fake.mend()
        gate.open()
        fake.requests.clear()
        await asyncio.gather(first, *later)
        assert fake.counted()[BINDINGS_OF_X] == 1
        assert made.reader.results == {"ok": 3}


async def test_readings_again_share_a_reading_that_fails(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        gate, first = await reading_again(made, fake)
        later = [asyncio.create_task(made.scheduler.read_again(X, "later", {A})) for _ in range(50)]
        await asyncio.sleep(0)
        fake.fail(status(500))
        gate.open()
        await asyncio.gather(first, *later)
        assert made.reader.results["failed"] <= 2
        assert made.scheduler._tracked[X].failures <= 2


async def test_readings_of_one_exchange_keep_a_distance(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings that fail are shared too. Nothing but the clock lets the second one start."""
    monkeypatch.setattr(scheduler_module, "BETWEEN_READINGS", LONG)
    fake.exchange("x", binding("a"))
    for fault in (None, status(503)):
        async with scheduling(fake, named=(X,)) as made:
            if fault:
                fake.fail(fault, OF_X)
            await made.scheduler._again(X)
            asked = fake.counted()[OF_X]
            waiting = asyncio.create_task(made.scheduler._again(X))
            # As long as a whole reading of another takes.
            with suppress(Absent):
                await made.scheduler.look_up(("/", "other"), 10)
            assert fake.counted()[OF_X] == asked
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            clock.now += LONG
            await made.scheduler._again(X)
            assert fake.counted()[OF_X] == asked + 1


async def test_an_exchange_whose_last_reading_failed_is_not_waited_for(fake: FakeManagement, clock: Clock) -> None:
    """Whichever queue a message came back from: a reading that hangs takes its whole time-out."""
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.fail(status(503))
        clock.now += 1
        await made.scheduler.read_again(X, "test", {A})
        failed = len(fake.requests)
        gate = Gate(fake)
        fake.fail(gate)
        for gone in (A, B):
            clock.now += 1
            async with asyncio.timeout(10):
                await made.scheduler.read_again(X, "test", {gone})
        assert (len(fake.requests), gate.waiting) == (failed, 0)
        # The declarations that they were told count for the reading that succeeds.
        fake.mend()
        fake.exchange("x", binding("b"))
        clock.now += 1
        await made.scheduler._again(X)
        assert made.weights() == {B: 1}


async def test_a_caller_that_gives_up_leaves_the_reading_to_find_its_fault(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        gate, waiting = await reading_again(made, fake)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        fake.fail(status(503))
        gate.open()
        await eventually(lambda: not made.scheduler._again_under_way)
        assert "503" in made.scheduler.faults[X]


async def test_an_exchange_that_nobody_waits_for_is_read_once_at_a_time(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "WANTED_EVERY", 0.05)
    monkeypatch.setattr(scheduler_module, "MOST_WANTED", 2)
    gate = Gate(fake)
    fake.fail(gate)
    async with scheduling(fake) as made:
        for name in ("one", "two", "three", "one"):
            made.scheduler.want(("/", name))
        assert sorted(name for _, name in made.scheduler._wanted) == ["one", "two"]
        fake.mend()
        gate.open()
        await eventually(lambda: not made.scheduler._wanted)
        fake.exchange("x", binding("a"))
        clock.now += 10
        made.scheduler.want(X)
        await eventually(lambda: made.weights() == {A: 1})


async def test_a_ring_is_as_old_as_the_start_of_its_reading(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, BINDINGS_OF_X)
    async with scheduling(fake) as made:
        looking = asyncio.create_task(made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        clock.now += 50
        gate.open()
        await looking
        assert made.router.clock() - made.entry.read_at > 50


async def test_a_reading_again_of_what_is_not_known_asks_nothing(fake: FakeManagement) -> None:
    async with scheduling(fake) as made:
        await made.scheduler.read_again(X, "test")
        assert fake.requests == []


async def test_a_reading_again_that_is_cancelled_leaves_the_exchange_readable(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake, answer_within=2.0) as made:
        _, cancelled = await reading_again(made, fake)
        waiting = asyncio.create_task(made.scheduler.read_again(X, "test"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        fake.mend()
        fake.exchange("x", binding("a"), binding("b"))
        await waiting
        assert made.weights() == {A: 1, B: 1}
