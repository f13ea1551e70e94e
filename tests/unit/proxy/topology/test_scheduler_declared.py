"""The declarations that the broker confirmed to a session, laid over readings that do not show them yet."""

import asyncio
import functools
import math
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from proxy.topology import overlay as overlay_module
from proxy.topology import scheduler as scheduler_module
from proxy.topology.bindings import CONSISTENT_HASH
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.lookups import FIRST_AT_ONCE, Absent, NotReadable
from proxy.topology.overlay import OVERLAY_TIME
from proxy.topology.overlay_store import OVERLAY_KEPT
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, status
from tests.unit.proxy.topology.scheduling import (
    BINDINGS_OF_X,
    LONG,
    OF_X,
    SETTLE,
    A,
    B,
    C,
    Clock,
    X,
    reading_again,
    scheduling,
)

DECLARED = ExchangeDeclared("x", CONSISTENT_HASH)


@pytest.mark.parametrize(
    ("declaration", "behind", "there", "weights"),
    [
        (BindingAdded("x", C, "2"), ["a", "b"], ["a", "b", "c"], {A: 1, B: 1, C: 2}),
        (BindingAdded("x", A, "7"), ["a", "b"], ["a", "a7", "b"], {A: 7, B: 1}),
        (BindingRemoved("x", A, "1"), ["a", "b"], ["b"], {B: 1}),
        (QueueDeleted("a"), ["a", "b"], ["b"], {B: 1}),
    ],
)
@pytest.mark.parametrize("lags", [True, False])
async def test_the_next_publish_after_an_ok_waits_for_a_reading_and_what_that_does_not_show_is_laid_over(
    fake: FakeManagement,
    clock: Clock,
    declaration: Declaration,
    behind: list[str],
    there: list[str],
    weights: dict[Destination, int],
    lags: bool,
) -> None:
    made_of = {"a": binding("a"), "b": binding("b"), "c": binding("c", "2"), "a7": binding("a", "7")}
    fake.exchange("x", *(made_of[name] for name in behind))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert not made.waits()
        made.scheduler.declared("/", declaration)
        assert made.waits()
        if not lags:
            fake.exchange("x", *(made_of[name] for name in there))
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert not made.waits()
        assert made.weights() == weights
        assert made.entry.bindings.weights == weights
        # It catches up.
        fake.exchange("x", *(made_of[name] for name in there))
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.weights() == weights
        assert X not in made.reader.overlays
        # From now on, what is done elsewhere shows.
        fake.exchange("x", *(made_of[name] for name in behind))
        for _ in range(3):
            clock.now += SETTLE / 2
            await made.scheduler.read_again(X, "test")
        assert made.weights() == {A: 1, B: 1}


async def test_a_change_that_does_not_show_in_time_is_not_laid_over_any_more(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", C, "1"))
        made.scheduler.declared("/", BindingRemoved("x", A, "1"))
        laid_over, all_shown, settled = {B: 1, C: 1}, {A: 1, B: 1, C: 1}, {A: 1, B: 1}
        for later, weights in (
            (OVERLAY_TIME - 1, laid_over),
            (2, all_shown),
            (SETTLE / 2, all_shown),
            (SETTLE / 2, settled),
        ):
            clock.now += later
            await made.scheduler.read_again(X, "test")
            assert made.weights() == weights
        assert X not in made.reader.overlays


async def test_a_binding_and_an_exchange_of_their_own_that_do_not_show_yet(fake: FakeManagement) -> None:
    """A program that declares, binds and publishes at once, on a cluster that lags."""
    fake.exchange("other")
    readings = 0

    async def catch_up(request: Any) -> Any:
        nonlocal readings
        readings += 1
        if readings == 2:
            fake.mend()
            fake.exchange("x")
        return await status(404)(request)

    async with scheduling(fake) as made:
        made.scheduler.declared("/", DECLARED)
        made.scheduler.declared("/", BindingAdded("x", A, "1"))
        fake.fail(catch_up, OF_X)
        await made.scheduler.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1}, False)
        assert readings == 2
        assert made.reader.results == {"failed": 2, "ok": 1}


async def test_a_reading_without_the_exchange_that_was_declared_is_a_fault_that_says_so(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("other")
    async with scheduling(fake) as made:
        made.scheduler.declared("/", DECLARED)
        with pytest.raises(NotReadable, match="it was declared, and the management API does not show it yet"):
            await made.scheduler.look_up(X, 0.1)
        # Somebody deleted it elsewhere.
        clock.now += OVERLAY_TIME + 1
        with pytest.raises(Absent):
            await made.scheduler.look_up(X, 10)
        assert (X in made.reader.overlays, made.router.awaits_read_back(X)) == (False, False)


async def test_an_exchange_declared_anew_is_not_the_one_of_another_type(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", type="fanout")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        for declaration in (ExchangeDeleted("x"), DECLARED, BindingAdded("x", A, "1")):
            made.scheduler.declared("/", declaration)
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert made.waits()
        assert "does not show it yet" in made.scheduler.faults[X]
        fake.exchange("x")
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_reading_under_way_when_the_ok_comes_is_not_enough(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        gate, refresh = await reading_again(made, fake)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        looking = asyncio.create_task(made.scheduler.look_up(X, 10))
        fake.mend()
        gate.open()
        await refresh
        # It shows what was confirmed to us, and might lack what was confirmed to others before it.
        assert made.weights() == {A: 1, B: 1}
        assert made.waits()
        await looking
        assert not made.waits()
        assert fake.counted()[BINDINGS_OF_X] == 3


async def test_a_first_reading_under_way_when_the_ok_comes_is_not_enough(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    gate = Gate(fake)
    fake.fail(gate, "/api/queues/%2F/a")
    async with scheduling(fake) as made:
        looking = asyncio.create_task(made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        # Its bindings are read already.
        made.scheduler.declared("/", QueueDeleted("a"))
        fake.exchange("x", binding("b"))
        fake.mend()
        gate.open()
        await looking
        assert made.waits()
        await made.scheduler.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({B: 1}, False)


async def test_what_is_declared_during_a_first_reading_is_certain(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    gate = Gate(fake)
    fake.fail(gate, BINDINGS_OF_X)
    async with scheduling(fake) as made:
        looking = asyncio.create_task(made.scheduler.look_up(X, 10))
        await eventually(lambda: gate.waiting == 1)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        gate.open()
        await looking
        fake.fail(status(500))
        await made.scheduler.read_again(X, "test")
        assert made.waits()


async def test_a_queue_deleted_while_a_reading_that_shows_it_is_under_way(fake: FakeManagement) -> None:
    """It was bound by others, and is not known yet."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"), binding("b"))
        gate = Gate(fake)
        fake.fail(gate, "/api/queues/%2F/b")
        refresh = asyncio.create_task(made.scheduler.read_again(X, "test"))
        await eventually(lambda: gate.waiting == 1)
        made.scheduler.declared("/", QueueDeleted("b"))
        fake.mend()
        gate.open()
        await refresh
        assert (made.weights(), made.waits()) == ({A: 1, B: 1}, True)
        await made.scheduler.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1}, False)


async def test_bindings_that_come_and_go_end_as_they_were_declared(fake: FakeManagement, clock: Clock) -> None:
    """Whatever of it the readings show."""
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        steps: list[tuple[list[Declaration], dict[Destination, int]]] = [
            ([BindingRemoved("x", A, "1"), BindingAdded("x", A, "1")], {A: 1, B: 1}),
            ([BindingRemoved("x", A, "1"), BindingAdded("x", A, "5")], {A: 5, B: 1}),
            ([QueueDeleted("b"), BindingAdded("x", B, "2")], {A: 5, B: 2}),
            ([BindingAdded("x", C, "1"), BindingRemoved("x", C, "1")], {A: 5, B: 2}),
            ([QueueDeleted("a")], {B: 2}),
        ]
        for declarations, weights in steps:
            for declaration in declarations:
                made.scheduler.declared("/", declaration)
            for shown in ([binding("a"), binding("b")], [binding("b")], [binding("c")]):
                fake.exchange("x", *shown)
                clock.now += 0.2
                await made.scheduler.read_again(X, "test")
                assert {d: w for d, w in (made.weights() or {}).items() if d != C} == weights


async def test_of_two_bindings_to_a_queue_the_one_that_is_left_counts(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a", "1"), binding("a", "5"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingRemoved("x", A, "5"))
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_declared_removal_need_not_settle_however_late_it_is_read(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingRemoved("x", A, "1"))
        fake.fail(status(500), "/api/queues/")
        fake.exchange("x", binding("b"))
        for _ in range(3):
            clock.now += OVERLAY_TIME + OVERLAY_KEPT
            made.scheduler._forget_declared(clock.now)
            await made.scheduler.read_again(X, "test")
            assert made.weights() == {A: 1, B: 1}
        fake.mend()
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {B: 1}


async def test_a_deleted_exchange_is_gone_at_once_and_one_that_still_shows_is_believed(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", ExchangeDeleted("x"))
        assert made.waits()
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert (made.weights(), made.waits()) == ({A: 1, B: 1}, False)
        fake.delete("x")
        clock.now += 1
        await made.scheduler.read_again(X, "test")
        assert dict(made.router.entries) == {}
        assert X not in made.reader.overlays


async def test_a_deleted_exchange_goes_from_the_rings_that_led_to_it(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("y", "1", "exchange"))
    fake.exchange("y", binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", ExchangeDeleted("y"))
        assert made.waits()
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}


async def test_a_return_outweighs_a_binding_that_was_declared(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", A, "1"))
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1, B: 1}
        clock.now += 1
        await made.scheduler.read_again(X, "a message was returned", {A})
        assert made.weights() == {B: 1}


async def test_declarations_that_change_nothing_need_no_reading(fake: FakeManagement, clock: Clock) -> None:
    """As of a program that connects again and declares all that it needs."""
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        entry = made.entry
        fake.requests.clear()
        for fault in (None, status(503)):
            fake.fail(fault) if fault else fake.mend()
            for declaration in (
                DECLARED,
                BindingAdded("x", A, "1"),
                BindingAdded("x", B, "abc"),
                BindingRemoved("x", C, "1"),
            ):
                made.scheduler.declared("/", declaration)
                clock.now += 1
                assert (made.waits(), X in made.reader.overlays) == (False, False)
        assert made.entry is entry
        assert fake.requests == []
        made.scheduler.declared("/", DECLARED)
        made.scheduler.declared("/", BindingAdded("x", A, "2"))
        with pytest.raises(NotReadable, match="503"):
            await made.scheduler.look_up(X, 0.2)
        assert made.waits()
        fake.mend()
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 2, B: 1}


def _has_one(gate: Gate) -> bool:
    return gate.waiting == 1


async def test_a_removal_that_a_reading_under_way_may_not_show_is_waited_for_only_where_it_can_be_read(
    fake: FakeManagement, clock: Clock
) -> None:
    """As exclusive queues go by the hundred, and a reading that hangs is under way all the time."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        for fault, waits in ((None, True), (status(503), False)):
            if fault is not None:
                fake.fail(fault)
                clock.now += 1
                await made.scheduler.read_again(X, "test")
                assert made.scheduler.faults[X]
            gate = Gate(fake)
            fake.fail(gate, BINDINGS_OF_X if fault is None else OF_X)
            clock.now += 1
            reading = asyncio.create_task(made.scheduler._again(X))
            await eventually(functools.partial(_has_one, gate))
            made.scheduler.declared("/", QueueDeleted("b"))
            assert made.waits() is waits
            fake.mend()
            gate.open()
            await reading
            clock.now += 1
            await made.scheduler.look_up(X, 10)


async def test_a_shadowed_exchange_is_read_again_soon_where_its_bindings_change(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake, shadow=("x",), named=(X,), running=True) as made:
        await eventually(lambda: made.weights() == {A: 1})
        fake.exchange("x", binding("a"), binding("b"))
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        assert not made.waits()
        await eventually(lambda: made.weights() == {A: 1, B: 1})


async def test_a_reading_that_had_begun_is_no_reason_to_read_a_shadowed_exchange_later(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake, shadow=("x",), named=(X,)) as made:
        gate, reading = await reading_again(made, fake)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        gate.open()
        await reading
        assert made.scheduler._tracked[X].due <= clock.now + scheduler_module.BETWEEN_READINGS
        fake.mend()
        await made.scheduler._again(X)
        assert made.scheduler._tracked[X].wanted_by == math.inf, "one more reading serves"


@pytest.mark.parametrize(("fields", "settings"), [({"type": "topic"}, {}), ({}, {"pass_": ("x",)})])
async def test_bindings_of_what_passes_whatever_is_bound_are_no_reason_to_read(
    fake: FakeManagement, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    fake.exchange("x", binding("a"), **fields)
    async with scheduling(fake, **settings) as made:
        await made.scheduler.look_up(X, 10)
        for declaration in (BindingAdded("x", B, "1"), BindingRemoved("x", A, "1"), QueueDeleted("a")):
            made.scheduler.declared("/", declaration)
            assert (made.waits(), X in made.reader.overlays) == (False, False)
        made.scheduler.declared("/", ExchangeDeleted("x"))
        assert made.waits()
        # A binding of its successor may count.
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        assert made.reader.overlays.of(X).has_added(B)


async def test_the_default_exchange_and_other_virtual_hosts_are_not_touched(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        changed = Mock()
        made.router.on_change.append(changed)
        made.scheduler.declared("/", BindingAdded("", A, "a"))
        made.scheduler.declared("v", QueueDeleted("a"))
        made.scheduler.declared("v", BindingAdded("x", B, "1"))
        # Nor does it matter to any route what is declared of an exchange that nobody publishes to.
        assert changed.call_count == 0
        assert ("v", "x") in made.reader.overlays
        assert not made.waits()


async def test_a_program_that_binds_and_publishes_by_turns_is_not_slowed(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the clock lets the later readings start."""
    monkeypatch.setattr(scheduler_module, "BETWEEN_READINGS", LONG)
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        for weight in "2345":
            clock.now += scheduler_module.BETWEEN_READINGS_DECLARED
            made.scheduler.declared("/", BindingAdded("x", A, weight))
            await made.scheduler.look_up(X, 10)
            assert made.weights() == {A: int(weight)}
        monkeypatch.setattr(scheduler_module, "BETWEEN_READINGS_DECLARED", LONG)
        made.scheduler.declared("/", BindingAdded("x", A, "6"))
        asked = fake.counted()[OF_X]
        waiting = asyncio.create_task(made.scheduler.look_up(X, 10))
        # As long as a whole reading of another takes.
        with suppress(Absent):
            await made.scheduler.look_up(("/", "other"), 10)
        assert fake.counted()[OF_X] == asked
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


async def test_what_was_declared_of_exchanges_that_nobody_publishes_to_is_forgotten(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        made.scheduler.declared("/", BindingAdded("never", B, "1"))
        clock.now += OVERLAY_KEPT - 1
        made.scheduler._forget_declared(clock.now)
        assert ("/", "never") in made.reader.overlays
        clock.now += 2
        made.scheduler._forget_declared(clock.now)
        assert ("/", "never") not in made.reader.overlays
        # The next reading of the other one needs what was said.
        assert made.waits()
        assert X in made.reader.overlays
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        await made.scheduler.look_up(X, 10)
        clock.now += OVERLAY_KEPT + 1
        made.scheduler._forget_declared(clock.now)
        assert X not in made.reader.overlays
        assert made.weights() is not None


async def test_what_was_declared_is_not_kept_without_bound(fake: FakeManagement, clock: Clock) -> None:
    """An exchange that nobody publishes to is bound and unbound all day; then there is any number of exchanges."""
    async with scheduling(fake) as made:
        for n in range(3000):
            clock.now += 0.1
            made.scheduler.declared("/", BindingAdded("events", Destination("queue", f"q{n}"), "k"))
            made.scheduler.declared("/", QueueDeleted(f"q{n}"))
        assert made.reader.overlays.of(("/", "events")).statement_count <= 2 * OVERLAY_KEPT / 0.1 + 2
        assert not made.router._unread


@pytest.mark.parametrize("ends", ["in time", "too late", "before its turn"])
async def test_nor_of_an_exchange_that_a_look_up_does_not_find(fake: FakeManagement, ends: str) -> None:
    """Clients choose the names that are looked up, and what is declared meanwhile."""
    names = [("/", f"y{n}") for n in range(FIRST_AT_ONCE + 1)]
    async with scheduling(fake) as made:
        gates = {name: Gate(fake) for name in names}
        for name, gate in gates.items():
            fake.fail(gate, f"/api/exchanges/%2F/{name[1]}")
        looking = [
            asyncio.create_task(made.scheduler.look_up(name, 0.2 if ends == "too late" else 10)) for name in names
        ]
        await eventually(lambda: sum(gate.waiting for gate in gates.values()) == FIRST_AT_ONCE)
        fake.fail(status(500), "/api/exchanges/%2F")  # no list of exchanges
        made.scheduler.declared("/", BindingAdded("lane", A, "k"))
        assert made.router._unread.keys() == set(names)
        if ends == "before its turn":
            looking[-1].cancel()
        if ends != "in time":
            await asyncio.wait([looking[-1]])
        for gate in gates.values():
            gate.open()
        fake.mend()
        await asyncio.wait(looking)
        await eventually(lambda: not made.scheduler._look_ups.under_way)
        assert not made.router._unread


async def test_a_reading_that_lacks_what_was_declared_and_forgotten_is_not_believed(
    fake: FakeManagement, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay_module, "MOST_STATEMENTS", 2)
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        for n in range(3):
            made.scheduler.declared("/", BindingAdded("x", Destination("queue", f"q{n}"), "1"))
        await made.scheduler._again(X, "test")
        assert "too many declarations" in made.scheduler.faults[X]
        assert made.waits()
        clock.now += OVERLAY_TIME + 1
        fake.exchange("x", binding("a"), binding("q0"), binding("q1"), binding("q2"))
        await made.scheduler._again(X, "test")
        assert not made.waits()
        assert len(made.weights() or {}) == 4


async def test_an_opposite_change_made_elsewhere_counts_once_the_declaration_no_longer_does(
    fake: FakeManagement, clock: Clock
) -> None:
    """Its removal has settled meanwhile: it takes no sync interval and no settle time more."""
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingRemoved("x", B, "1"))
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        said = clock.now
        await made.scheduler.read_again(X, "test")
        # Unbound elsewhere, at once: readings show it, and cannot tell it from what was before the declarations.
        fake.exchange("x", binding("a"))
        while clock.now < said + OVERLAY_TIME - 1:
            clock.now += 0.5
            await made.scheduler.read_again(X, "test")
            assert made.weights() == {A: 1, B: 1}
        due = made.scheduler._tracked[X].due
        assert due <= said + OVERLAY_TIME
        clock.now = said + OVERLAY_TIME + 0.001
        await made.scheduler.read_again(X, "test")
        assert made.weights() == {A: 1}


@pytest.mark.parametrize("readable", [True, False])
async def test_a_binding_to_what_came_back_counts_though_it_was_known_before(
    fake: FakeManagement, clock: Clock, readable: bool
) -> None:
    """A queue is deleted elsewhere, which a return shows, and is bound again before the reading for that is over."""
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        if not readable:
            fake.fail(status(503))
            await made.scheduler.read_again(X, "test")
        fake.exchange("x", binding("a"))
        gate = Gate(fake)
        if readable:
            fake.fail(gate, BINDINGS_OF_X)
        refresh = asyncio.create_task(made.scheduler.read_again(X, "a message was returned", {B}))
        await (eventually(lambda: gate.waiting == 1) if readable else refresh)
        made.scheduler.declared("/", BindingAdded("x", B, "1"))
        assert made.waits() == readable
        fake.mend()
        gate.open()
        await refresh
        clock.now += 1
        await made.scheduler.look_up(X, 10)
        await made.scheduler.read_again(X, "test")
        assert made.weights() == {A: 1, B: 1}
