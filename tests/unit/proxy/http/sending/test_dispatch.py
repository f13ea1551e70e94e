"""Where a message of HTTP goes, what it waits for before it is published, and how long."""

import asyncio
from dataclasses import replace
from typing import cast
from unittest.mock import Mock

import pytest

from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError
from proxy.http.sending.dispatch import Dispatch, ExchangeHandle, Placement
from proxy.routing.counters import CounterTable
from proxy.routing.route import Route
from proxy.routing.routes import RouteTables
from proxy.settings.patterns import Mode
from proxy.topology.lookups import Absent
from proxy.topology.readings import Readings
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, KnownRing, Name, PassReason, Router
from proxy.wire.properties import Header
from ring.hashed import HashedValue
from ring.hashing import slot_of
from ring.share import rank_of, slots_in
from tests.unit.proxy.session.wire import NOW, QUEUES, VHOST, Wire, exchange, known, queue, ring, selecting, upstream


class Reading:
    """In the place of what reads the management API: each exchange that is looked up is what a test says."""

    def __init__(self, router: Router, entries: dict[str, Entry]) -> None:
        self.router, self.entries = router, entries

    async def look_up(self, name: Name, within: float) -> None:
        self.router.put(name, self.entries[name[1]])


def asking(entries: dict[str, Entry]) -> tuple[Dispatch, Router]:
    router = Router(300, refuse_stale=True, clock=lambda: NOW)
    tables = RouteTables(router, selecting(entries), CounterTable(), lambda _: "", lambda _: None)
    readings = Readings(cast(Scheduler, Reading(router, entries)), Mock(), 10, router.clock)
    return Dispatch(router, readings, tables, Mock()), router


X = (VHOST, "x")


@pytest.mark.parametrize("hashed", [HashedValue(), HashedValue("header", "h")])
async def test_a_question_is_answered_by_the_ring_behind_the_ring_once_both_are_read(hashed: HashedValue) -> None:
    inner = ring(queue("q1"), queue("q2"), queue("q3"), hashed=hashed)
    dispatch, router = asking({"x": known(ring(exchange("y"))), "y": known(inner)})
    for key in (b"", b"k1", b"k2"):
        choice, reason = await dispatch.choose(X, key)
        assert choice is not None
        assert (choice.target.destination, choice.by.known, reason) == (inner.ring.owner_of(key), inner, None)
    # Both are in use, so both stay fresh.
    assert router.used_at == {X: NOW, (VHOST, "y"): NOW}


@pytest.mark.parametrize("reason", [PassReason.TYPE, PassReason.MODE_PASS, PassReason.DEAD_LETTER])
@pytest.mark.parametrize("what", [None, QUEUES])
async def test_a_question_about_what_is_passed_is_answered_with_the_reason(
    reason: PassReason, what: KnownRing | None
) -> None:
    dispatch, _ = asking({"x": known(what, reason)})
    assert await dispatch.choose(X, b"k") == (None, reason)


async def test_a_question_about_a_shadowed_exchange_is_answered_with_what_its_ring_would_do() -> None:
    choice, reason = await asking({"x": known(QUEUES, PassReason.SHADOW)})[0].choose(X, b"k")
    assert choice is not None
    assert (choice.target.destination, reason) == (QUEUES.ring.owner_of(b"k"), PassReason.SHADOW)


async def test_a_question_about_a_key_outside_the_share_is_answered_like_one_in_shadow() -> None:
    dispatch, _ = asking({"x": known(QUEUES), "u": upstream({"#": "x"})})
    dispatch._tables.selection.take_share(50)
    inside, outside = (
        next(key for key in (b"%d" % i for i in range(99)) if (rank_of(slot_of(key)) < slots_in(50)) is within)
        for within in (True, False)
    )
    for name in ("x", "u"):
        for key, why in ((inside, None), (outside, PassReason.SHARE)):
            choice, reason = await dispatch.choose((VHOST, name), key)
            assert reason is why
            if choice is not None:
                assert choice.target.destination == QUEUES.ring.owner_of(key)
            assert (choice is None) is (name == "u" and why is not None)


@pytest.mark.parametrize("percent", [0, 50, 100])
@pytest.mark.parametrize("behind", [None, "y"])
async def test_no_message_waits_for_one_that_the_share_sends_another_way(percent: float, behind: str | None) -> None:
    """Both ways are those of one route, so a batch need not wait where they alternate."""
    entries = {"x": known(ring(exchange(behind)) if behind else QUEUES), "y": known(QUEUES)}
    dispatch, router = asking(entries)
    dispatch._tables.selection.take_share(percent)
    for name, entry in entries.items():
        router.put((VHOST, name), entry)
    route = dispatch._tables.table(VHOST, None).find(b"x")
    assert isinstance(route, Route)
    for key in (b"%d" % i for i in range(50)):
        place = dispatch._place(route, key, Message(key, Header.of({}), b""))
        assert place.route.digest == route.digest


async def test_a_question_in_a_cycle_of_rings_is_answered_with_it() -> None:
    dispatch, _ = asking({"x": known(ring(exchange("x")))})
    assert await dispatch.choose(X, b"k") == (None, PassReason.CYCLE)


async def test_a_question_about_an_upstream_exchange_is_answered_by_the_ring_that_the_key_matches() -> None:
    dispatch, _ = asking({"x": upstream({"a.*": "y"}), "y": known(QUEUES)})
    choice, reason = await dispatch.choose(X, b"a.1")
    assert choice is not None
    assert (choice.target.destination, reason) == (QUEUES.ring.owner_of(b"a.1"), None)
    assert await dispatch.choose(X, b"b.1") == (None, PassReason.NO_RING)


async def test_a_question_about_a_key_of_a_ring_out_of_service_tells_the_reason_of_that_ring() -> None:
    dispatch, _ = asking({"x": upstream({"a.*": "y"}), "y": known(QUEUES, PassReason.DEAD_LETTER)})
    assert await dispatch.choose(X, b"a.1") == (None, PassReason.DEAD_LETTER)


@pytest.mark.parametrize("hashed", [HashedValue(), HashedValue("property", "message_id")])
async def test_messages_to_an_upstream_exchange_are_ordered_by_what_the_ring_behind_hashes(hashed: HashedValue) -> None:
    inner = ring(queue("q1"), queue("q2"), hashed=hashed)
    dispatch, _ = asking({"x": upstream({"a.*": "y"}), "y": known(inner)})
    for name in ("x", "y"):
        await dispatch.choose((VHOST, name), b"a.1")  # reads it
    handle = ExchangeHandle(X, Mock(table=None, vhost=VHOST), b"x")
    with_id = Header.of({1 << 7: b"\x02id"})
    keys = {dispatch.ordering_key_of(handle, Message(key, with_id, b"")) for key in (b"a.1", b"a.2")}
    assert keys == ({b"a.1", b"a.2"} if hashed == HashedValue() else {slot_of(b"id")})
    assert dispatch.ordering_key_of(handle, Message(b"b.1", with_id, b"")) == b"b.1"


async def test_a_question_waits_for_what_was_declared_before_it_only() -> None:
    entries = {"x": known(ring(exchange("y"))), "y": known(QUEUES)}
    dispatch, router = asking(entries)
    await dispatch.choose(X, b"k")
    router.mark_declared((VHOST, "y"), NOW + 1, certain=True)
    entries["y"] = known(ring(queue("new")), read_at=NOW)
    choice, _ = await dispatch.choose(X, b"k")
    assert choice is not None
    assert choice.target.destination == QUEUES.ring.owner_of(b"k")


async def test_a_question_about_what_is_refused_is_refused() -> None:
    dispatch, _ = asking({"x": replace(known(QUEUES, PassReason.DEAD_LETTER), refused="queue 'q1' dead-letters")})
    with pytest.raises(ProblemError, match="dead-letters"):
        await dispatch.choose(X, b"k")


GROUP = (VHOST, "x.group")
FANOUT = replace(known(None, PassReason.TYPE), exchange_type="fanout")
WHY = "exchange: only sidecars publish to 'x.group', to balance the consumer group of 'x'"


def to_group() -> ExchangeHandle:
    return ExchangeHandle(GROUP, Mock(table=None, vhost=VHOST, guest=False), b"x.group")


async def refusal(dispatch: Dispatch) -> tuple[int, str]:
    with pytest.raises(ProblemError) as raised:
        await dispatch.check(to_group())
    return raised.value.status, raised.value.detail


async def test_only_sidecars_publish_to_what_balances_a_group() -> None:
    dispatch, _ = asking({"x.group": replace(FANOUT, balances="x")})
    assert await refusal(dispatch) == (403, WHY)


async def test_only_sidecars_publish_to_what_they_ask_each_other_by() -> None:
    name, type_ = "x.group.asked", "direct"
    dispatch, router = asking({name: replace(FANOUT, exchange_type=type_)})
    handle = ExchangeHandle((VHOST, name), Mock(table=None, vhost=VHOST, guest=False), name.encode())
    await dispatch.check(handle)
    router.put(X, known(QUEUES))
    with pytest.raises(ProblemError, match=f"only sidecars publish to '{name}', to balance"):
        await dispatch.check(handle)


async def test_what_came_to_balance_a_group_after_it_was_read_is_refused() -> None:
    dispatch, router = asking({"x.group": FANOUT})
    await dispatch.check(to_group())
    router.put(X, known(None, PassReason.TYPE))
    await dispatch.check(to_group())
    router.put(X, known(QUEUES))
    assert await refusal(dispatch) == (403, WHY)


async def test_what_was_restored_from_disk_may_balance_a_group() -> None:
    dispatch, router = asking({})
    router.put(GROUP, replace(FANOUT, restored=True))
    status, why = await refusal(dispatch)
    assert (status, why) == (503, "exchange 'x.group' has not been read since the start: it may balance a group")
    router.put(GROUP, FANOUT)
    await dispatch.check(to_group())


async def test_what_a_passed_publish_does_not_read_is_read_if_it_may_balance_a_group() -> None:
    """In mode pass a route needs no reading, and the exchange may have been forgotten since the request began."""
    entry = replace(FANOUT, balances="x", mode=Mode.PASS, passed=PassReason.MODE_PASS)
    dispatch, router = asking({"x.group": entry})
    handle, message = to_group(), Message(b"k", Header.of({}), b"")
    dispatch.ordering_key_of(handle, message)  # makes the route
    assert GROUP not in router.entries
    step = dispatch.attempt(handle, message, Mock(), 0, NOW)
    assert step is not None
    assert not isinstance(step, Placement)
    await step
    with pytest.raises(ProblemError, match="only sidecars publish"):
        dispatch.attempt(handle, message, Mock(), 0, NOW)


class Hanging:
    """In the place of what reads the management API: the exchange behind another is gone, and then it hangs."""

    async def look_up(self, name: Name, within: float) -> None:
        raise Absent("there is no such exchange")

    async def read_again(self, name: Name, why: str, confirmed_removals: object) -> None:
        await asyncio.Event().wait()


async def test_a_message_waits_no_longer_where_what_is_behind_its_exchange_is_gone() -> None:
    router = Router(300, refuse_stale=True)
    dispatch = Dispatch(router, Readings(cast(Scheduler, Hanging()), Mock(), 0.05), Wire().tables, Mock())
    async with asyncio.timeout(10):
        with pytest.raises(ProblemError, match="no such exchange") as raised:
            await dispatch.look_up(("/", "x"), ("/", "gone"), router.clock())
    assert raised.value.status == 503
