"""Look-ups: who waits for a reading, for how long, and what is said in the end."""

import asyncio

import pytest

from proxy.topology.bindings import CONSISTENT_HASH
from proxy.topology.declarations import ExchangeDeclared
from proxy.topology.lookups import Absent, NotReadable, VhostAbsent
from proxy.topology.reading import LISTING_COUNTS
from proxy.topology.table import PassReason
from ring.ring import Ring
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, body, status
from tests.unit.proxy.topology.scheduling import BINDINGS_OF_X, OF_X, A, B, Clock, Name, X, scheduling


async def test_all_who_look_up_at_once_share_one_reading(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with scheduling(fake) as made:
        callers = [asyncio.create_task(made.scheduler.look_up(X, 10)) for _ in range(100)]
        await eventually(lambda: gate.waiting > 0)
        gate.open()
        await asyncio.gather(*callers)
        assert fake.counted() == {
            "/api/cluster-name": 1,
            "/api/vhosts": 1,
            OF_X: 1,
            BINDINGS_OF_X: 1,
            "/api/queues/%2F/a": 1,
        }
        assert made.reader.results == {"ok": 1}
        assert made.reader.identity.cluster == "rabbit@fake"


async def test_all_who_look_up_share_the_tries_too(fake: FakeManagement) -> None:
    fake.fail(status(500))
    async with scheduling(fake) as made:
        answers = await asyncio.gather(*(made.scheduler.look_up(X, 0.6) for _ in range(100)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {NotReadable}
        assert {str(answer) for answer in answers} == {"/api/cluster-name: 500"}
        # Six would be one caller's.
        assert 1 < len(fake.requests) < 30


async def test_a_look_up_is_tried_again_until_it_succeeds(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    fake.fail(status(500))
    async with scheduling(fake) as made:
        looking = asyncio.create_task(made.scheduler.look_up(X, 20))
        await eventually(lambda: len(fake.requests) >= 3)
        assert not looking.done()
        fake.mend()
        await looking
        assert made.weights() == {A: 1}


async def test_a_look_up_waits_as_long_as_the_api_asks(fake: FakeManagement) -> None:
    fake.fail(status(429, headers={"Retry-After": "30"}))
    async with scheduling(fake) as made:
        for _ in range(3):
            with pytest.raises(NotReadable, match="429"):
                await made.scheduler.look_up(X, 0.3)
        assert len(fake.requests) == 1


async def test_what_does_not_exist_is_absent(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("other")
    async with scheduling(fake) as made:
        with pytest.raises(Absent, match="no exchange 'x' in virtual host '/'"):
            await made.scheduler.look_up(X, 10)
        with pytest.raises(Absent, match="virtual host 'v'"):
            await made.scheduler.look_up(("v", "x"), 10)
        assert made.reader.results["absent"] == 1
        # Names that clients make up leave nothing behind.
        assert (made.scheduler._tracked, made.scheduler._look_ups.under_way, dict(made.router.entries)) == ({}, {}, {})
        fake.exchange("x", binding("a"))
        clock.now += LISTING_COUNTS
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_known_exchange_whose_virtual_host_is_not_listed_is_not_absent(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.vhosts.clear()
        fake.delete("x")
        with pytest.raises(NotReadable, match="virtual host '/'"):
            await made.scheduler.look_up(X, 0.3)
        assert made.weights() == {A: 1}


async def test_a_look_up_that_gets_no_answer_ends_in_time_and_the_reading_goes_on(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with scheduling(fake) as made:
        with pytest.raises(NotReadable, match="in time"):
            await made.scheduler.look_up(X, 0.05)
        fake.mend()
        gate.open()
        await eventually(lambda: made.weights() == {A: 1})
        assert fake.counted()[OF_X] == 1


async def test_nobody_waits_and_nobody_asks(fake: FakeManagement) -> None:
    fake.fail(status(500))
    async with scheduling(fake) as made:
        with pytest.raises(NotReadable):
            await made.scheduler.look_up(X, 0.05)
        await eventually(lambda: not made.scheduler._look_ups.under_way)
        assert len(fake.requests) < 5


async def test_a_caller_who_leaves_takes_nobody_along(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, OF_X)
    async with scheduling(fake) as made:
        leaving, staying = (asyncio.create_task(made.scheduler.look_up(X, 10)) for _ in range(2))
        await eventually(lambda: gate.waiting > 0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.open()
        await staying
        assert made.weights() == {A: 1}


@pytest.mark.parametrize("name", [("/", "\udcff"), ("\udcff", "x"), ("", ""), ("/", ""), ("/", "x" * 5000)])
async def test_a_look_up_raises_nothing_else(fake: FakeManagement, name: Name) -> None:
    async with scheduling(fake) as made:
        with pytest.raises((Absent, NotReadable)):
            await made.scheduler.look_up(name, 0.2)


async def test_a_defect_of_ours_is_not_readable_and_logged_with_its_place(
    fake: FakeManagement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Ring, "build", broken)
    async with scheduling(fake) as made:
        with pytest.raises(NotReadable, match="ZeroDivisionError"):
            await made.scheduler.look_up(X, 0.2)
    assert any(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records)


async def test_names_that_do_not_exist_share_an_answer(fake: FakeManagement, clock: Clock) -> None:
    """Each would cost the API a list of all exchanges; one that is declared since is looked at by itself."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        for n in range(50):
            with pytest.raises(Absent, match=f"no exchange 'absent{n}'"):
                await made.scheduler.look_up(("/", f"absent{n}"), 10)
        assert fake.count("/api/exchanges/%2F") == 1
        assert sum("/absent" in path for path in fake.requests) == 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}
        # Declared through this sidecar.
        fake.exchange("absent1", binding("b"))
        made.scheduler.declared("/", ExchangeDeclared("absent1", CONSISTENT_HASH))
        await made.scheduler.look_up(("/", "absent1"), 10)
        assert made.weights(("/", "absent1")) == {B: 1}
        # Declared elsewhere.
        fake.exchange("absent2", binding("b"))
        with pytest.raises(Absent):
            await made.scheduler.look_up(("/", "absent2"), 10)
        clock.now += LISTING_COUNTS
        await made.scheduler.look_up(("/", "absent2"), 10)
        assert made.weights(("/", "absent2")) == {B: 1}


async def test_a_virtual_host_that_does_not_exist_is_asked_for_once_a_while(fake: FakeManagement, clock: Clock) -> None:
    async with scheduling(fake) as made:
        for n in range(5):
            with pytest.raises(VhostAbsent):
                await made.scheduler.look_up(("gone", f"x{n}"), 10)
        assert fake.count("/api/exchanges/gone") == 1


@pytest.mark.parametrize("name", [".", ".."])
async def test_an_exchange_whose_bindings_cannot_be_asked_for_is_refused_at_once(
    fake: FakeManagement, clock: Clock, name: str
) -> None:
    """Its name is a step through a URL's path. Whether it is a hash exchange at all, the list of exchanges tells."""
    fake.exchange("x", binding("a"))
    fake.exchange(name, binding("a"), type="fanout")
    async with scheduling(fake) as made:
        fake.fail(body([{"name": "x", "type": "fanout"}, {"name": name, "type": "fanout"}]), "/api/exchanges/%2F")
        await made.scheduler.look_up(("/", name), 10)
        assert made.router.entries["/", name].passed is PassReason.TYPE
    fake.mend()
    async with scheduling(fake) as made:
        fake.fail(body([{"name": name, "type": CONSISTENT_HASH}]), "/api/exchanges/%2F")
        with pytest.raises(NotReadable, match="cannot be asked"):
            await made.scheduler.look_up(("/", name), 1000)
        with pytest.raises(NotReadable, match="cannot be asked"):
            await made.scheduler.look_up((name, "x"), 1000)
    assert all("/./" not in path and "/../" not in path for path in fake.requests)
