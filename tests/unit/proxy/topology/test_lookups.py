"""Look-ups after readings and declarations; test_scheduler_look_ups.py has a management API that lies."""

import asyncio
from collections.abc import Callable

import pytest

from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, Bindings
from proxy.topology.lookups import FIRST_AT_ONCE, Absent, LookUps, NotReadable
from proxy.topology.management import ManagementError
from proxy.topology.reading import VhostNotListedError
from proxy.topology.table import Entry, Name, Router

X: Name = ("/", "x")
FAULT = ManagementError("down")


class FakeReader:
    """Stands for the reader: each reading waits until the test lets it go, or ends at once."""

    def __init__(self, *ends: Exception | None) -> None:
        """How they end in turn, the last one again and again; None is a good one."""
        self.now = 1000.0
        self.router = Router(300, refuse_stale=False, clock=self.clock)
        self.look_ups = LookUps(self.router, self.read, self.router.forget_unknown)
        self.ends = list(ends)
        self.started: list[float] = []
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.during: Callable[[], None] = lambda: None
        """Called in the midst of each."""

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    async def read(self, name: Name) -> None:
        started = self.clock()
        self.started.append(started)
        self.begun.set()
        await self.gate.wait()
        self.during()
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if end is not None:
            self.router.release_uncertain(name, started)
            raise end
        self.put(name, started)

    def put(self, name: Name, read_at: float) -> None:
        self.router.put(name, Entry(Mode.ROUTE, CONSISTENT_HASH, None, None, Bindings(), read_at))

    def expect(self, *, certain: bool = True) -> None:
        self.router.mark_declared(X, self.clock(), certain=certain)


async def test_a_declaration_during_a_reading_takes_another_one() -> None:
    readings = FakeReader(None)
    readings.gate.clear()
    looking = asyncio.create_task(readings.look_ups.look_up(X, 10))
    await readings.begun.wait()
    readings.expect()
    # Shares the first reading, which started before.
    later = asyncio.create_task(readings.look_ups.look_up(X, 10))
    await asyncio.sleep(0)
    readings.gate.set()
    # The look-up from before the declaration is answered; the next publish asks again.
    await looking
    assert len(readings.started) == 1
    assert readings.router.awaits_read_back(X)
    await later
    assert not readings.router.awaits_read_back(X)
    assert len(readings.started) == 2


async def test_a_stream_of_declarations_holds_up_no_look_up() -> None:
    readings = FakeReader(None)
    readings.put(X, 999.0)
    readings.during = readings.expect
    readings.expect()
    await asyncio.gather(*(readings.look_ups.look_up(X, 10) for _ in range(10)))
    assert len(readings.started) == 1
    assert readings.router.awaits_read_back(X)


async def test_where_nothing_new_was_declared_a_failed_reading_is_enough() -> None:
    readings = FakeReader(FAULT)
    readings.put(X, 999.0)
    readings.expect(certain=False)
    await readings.look_ups.look_up(X, 10)
    assert len(readings.started) == 1
    assert not readings.router.awaits_read_back(X)


async def test_and_so_is_one_that_does_not_end() -> None:
    readings = FakeReader(None)
    readings.gate.clear()
    readings.put(X, 999.0)
    readings.expect(certain=False)
    await readings.look_ups.look_up(X, 0.01)
    assert not readings.router.awaits_read_back(X)
    readings.expect(certain=True)
    with pytest.raises(NotReadable, match="in time"):
        await readings.look_ups.look_up(X, 0.01)
    assert readings.router.awaits_read_back(X)


async def test_what_may_change_something_is_read_until_that_succeeds() -> None:
    readings = FakeReader(FAULT, FAULT, None)
    readings.put(X, 999.0)
    readings.expect()
    await readings.look_ups.look_up(X, 10)
    assert len(readings.started) == 3
    assert not readings.router.awaits_read_back(X)


async def test_where_nothing_was_declared_a_failed_reading_is_no_answer() -> None:
    for known in (True, False):
        readings = FakeReader(FAULT)
        if known:
            readings.put(X, 999.0)
        with pytest.raises(NotReadable, match="down"):
            await readings.look_ups.look_up(X, 0.1)
        assert len(readings.started) > 1


async def test_an_exchange_that_went_meanwhile_does_not_serve_on() -> None:
    readings = FakeReader(FAULT)
    readings.put(X, 999.0)
    readings.expect(certain=False)
    readings.during = lambda: readings.router.drop(X)
    with pytest.raises(NotReadable):
        await readings.look_ups.look_up(X, 0.1)


async def test_all_that_wait_for_an_api_that_hangs_are_served_by_the_last_good_entry() -> None:
    """Where what was declared, again and again, changes nothing as far as is known."""
    readings = FakeReader(None)
    readings.put(X, 999.0)
    readings.gate.clear()
    readings.expect(certain=False)
    waiting = []
    for _ in range(3):
        waiting.append(asyncio.create_task(readings.look_ups.look_up(X, 0.5)))
        await asyncio.sleep(0.02)
        readings.expect(certain=False)
    assert await asyncio.gather(*waiting) == [None] * 3
    readings.expect(certain=True)
    with pytest.raises(NotReadable, match="no answer"):
        await readings.look_ups.look_up(X, 0.05)
    readings.look_ups.close()


async def test_absent_is_an_answer() -> None:
    readings = FakeReader(Absent("gone"))
    with pytest.raises(Absent, match="gone"):
        await readings.look_ups.look_up(X, 10)
    readings = FakeReader(VhostNotListedError("/"))
    with pytest.raises(Absent, match="virtual host '/'"):
        await readings.look_ups.look_up(X, 10)
    assert readings.look_ups.under_way == {}


async def test_few_exchanges_are_read_first_at_once_and_known_ones_wait_for_none() -> None:
    readings = FakeReader(None)
    readings.gate.clear()
    names = [("/", f"{n}") for n in range(10)]
    asked = [asyncio.create_task(readings.look_ups.look_up(name, 10)) for name in names]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(readings.started) == FIRST_AT_ONCE
    readings.put(X, 999.0)
    readings.expect()
    asked.append(asyncio.create_task(readings.look_ups.look_up(X, 10)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(readings.started) == FIRST_AT_ONCE + 1
    readings.gate.set()
    await asyncio.gather(*asked)
    assert len(readings.started) == len(names) + 1


async def test_who_has_left_takes_no_turn() -> None:
    readings = FakeReader(None)
    readings.gate.clear()
    asked = [readings.look_ups.look_up(("/", f"{n}"), 0.02) for n in range(10)]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(end) for end in ends} == {NotReadable}
    readings.gate.set()
    await readings.look_ups.look_up(X, 10)
    assert len(readings.started) == FIRST_AT_ONCE + 1


async def test_who_comes_when_a_look_up_has_just_failed_starts_another() -> None:
    """It would be told of a fault from before it asked, while the callbacks of the failed one have not run yet."""
    readings = FakeReader(VhostNotListedError("gone"), None)
    joined = []

    def join() -> None:
        joined.append(readings.look_ups._joined(X))
        joined[0].waiting += 1

    def join_at_its_end() -> None:
        readings.during = lambda: None
        asyncio.get_running_loop().call_soon(join)

    readings.during = join_at_its_end
    with pytest.raises(Absent):
        await readings.look_ups.look_up(X, 10)
    await joined[0].task
    assert len(readings.started) == 2
    assert X in readings.router.entries
    await asyncio.sleep(0)
    assert not readings.look_ups.under_way
