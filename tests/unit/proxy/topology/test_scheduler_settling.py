"""Changes that count at once, and changes that must settle."""

from typing import Any

import pytest

from proxy.topology.bindings import CONSISTENT_HASH
from proxy.topology.declarations import BindingAdded
from proxy.topology.lookups import Absent
from proxy.topology.table import PassReason, Unread
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, binding, status
from tests.unit.proxy.topology.scheduling import SETTLE, A, B, C, Clock, X, scheduling


async def test_additions_and_weights_at_once_removals_after_the_settle_time(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        steps: list[tuple[float, list[dict[str, Any]], dict[Destination, int]]] = [
            (1, [binding("a"), binding("b"), binding("c")], {A: 1, B: 1, C: 1}),
            (1, [binding("a", "4"), binding("b"), binding("c")], {A: 4, B: 1, C: 1}),
            (1, [binding("a", "4"), binding("b")], {A: 4, B: 1, C: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b")], {A: 4, B: 1, C: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b")], {A: 4, B: 1}),
            # An unbind and a bind, with a reading between them.
            (1, [binding("a", "4")], {A: 4, B: 1}),
            (SETTLE / 2, [binding("a", "4"), binding("b", "9")], {A: 4, B: 9}),
            (SETTLE, [binding("a", "4")], {A: 4, B: 9}),
        ]
        for i, (later, bindings, weights) in enumerate(steps):
            clock.now += later
            fake.exchange("x", *bindings)
            await made.scheduler.read_again(X, f"step {i}")
            assert made.weights() == weights, i
        assert [change.why for change in made.entry.changes] == ["first use", "step 0", "step 1", "step 4", "step 6"]
        assert made.reader.changes[X] == 5
        assert made.reader.moved[X] == pytest.approx(sum(change.moved for change in made.entry.changes))


async def test_a_vouched_removal_counts_at_once_and_once(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"), binding("c"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"))
        clock.now += 1
        await made.scheduler.read_again(X, "a message was returned", {B})
        assert made.weights() == {A: 1, C: 1}
        assert made.entry.changes[-1].why == "a message was returned"
        fake.exchange("x", binding("a"), binding("b"), binding("c"))
        clock.now += 1
        await made.scheduler._again(X, "test")
        fake.exchange("x", binding("a"), binding("c"))
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert made.weights() == {A: 1, B: 1, C: 1}, "confirmed once, removed twice"


async def test_a_voucher_outlives_a_reading_that_fails(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x", binding("a"))
        fake.fail(status(500))
        clock.now += 1
        await made.scheduler.read_again(X, "test", {B})
        assert made.weights() == {A: 1, B: 1}
        fake.mend()
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert made.weights() == {A: 1}


async def test_a_settled_removal_takes_effect_without_waiting_for_the_interval(fake: FakeManagement) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake, running=True, settle_time=0.05, named=(X,)) as made:
        await eventually(lambda: made.weights() is not None)
        fake.exchange("x", binding("a"))
        await made.scheduler._again(X, "test")
        await eventually(lambda: made.weights() == {A: 1})


async def test_a_deleted_exchange_is_forgotten_after_the_settle_time(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.delete("x")
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert made.weights() == {A: 1, B: 1}
        assert made.routes()
        for _ in range(2):
            assert X in made.router.entries
            clock.now += SETTLE / 2
            await made.scheduler._again(X, "test")
        assert (dict(made.router.entries), made.scheduler._tracked) == ({}, {})
        assert made.reader.results["absent"] == 1
        with pytest.raises(Absent):
            await made.scheduler.look_up(X, 10)


async def test_of_a_deleted_exchange_what_is_vouched_for_goes_at_once(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.delete("x")
        clock.now += 1
        await made.scheduler.read_again(X, "a message was returned", {A})
        assert made.weights() == {B: 1}
        assert made.entry.exchange_type == CONSISTENT_HASH


async def test_a_deleted_exchange_that_comes_back_in_time_moves_nothing(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        ring = made.entry.known
        fake.delete("x")
        clock.now += 1
        await made.scheduler._again(X, "test")
        fake.exchange("x", binding("a"), binding("b"))
        clock.now += 1
        await made.scheduler._again(X, "test")
        clock.now += SETTLE
        await made.scheduler._again(X, "test")
        assert made.entry.known is ring


async def test_no_bindings_left_settle_too(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x")
        clock.now += 1
        await made.scheduler._again(X, "test")
        for _ in range(2):
            assert made.weights() == {A: 1}
            clock.now += SETTLE / 2
            await made.scheduler._again(X, "test")
        assert (made.weights(), made.entry.passed) == (None, PassReason.NO_BINDINGS)


async def test_of_two_short_lies_with_failures_between_none_is_believed(fake: FakeManagement, clock: Clock) -> None:
    """The bindings between the two were seen by nobody."""
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.exchange("x")
        for fails in (False, False, True, False, False):
            clock.now += SETTLE / 2
            if fails:
                fake.fail(status(500), "/api/exchanges/%2F/x/")
            await made.scheduler._again(X, "test")
            fake.mend()
            assert made.weights() == {A: 1}
        assert made.reader.results["failed"] == 1
        fake.exchange("x", binding("a"))
        clock.now += SETTLE / 2
        await made.scheduler._again(X, "test")
        assert (made.weights(), made.scheduler._tracked[X].state.in_force.missing) == ({A: 1}, {})


async def test_an_exchange_that_goes_before_its_first_reading_ends_was_never_there(
    fake: FakeManagement, clock: Clock
) -> None:
    """Its bindings were read and its queues could not be: there is no ring that could serve on."""
    fake.exchange("x", binding("a"))
    fake.fail(status(500), "/api/queues/%2F/a")
    async with scheduling(fake, named=(X,)) as made:
        await made.scheduler._again(X, "test")
        fake.delete("x")
        clock.now += 1
        await made.scheduler._again(X, "test")
        assert dict(made.router.entries) == {}
        assert (made.reader.results, made.scheduler.faults) == ({"failed": 1, "absent": 1}, {})


async def test_a_virtual_host_that_is_deleted_and_comes_back_has_nothing_of_before(
    fake: FakeManagement, clock: Clock
) -> None:
    """The next publish waits for a reading, and what that does not show has not to settle."""
    fake.exchange("x", binding("a"), binding("b"), vhost="v")
    name = ("v", "x")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(name, 10)
        made.scheduler.declared("v", BindingAdded("x", C, "1"))
        fake.delete("x", "v")
        fake.vhosts.remove("v")
        await made.scheduler._again(name)
        assert isinstance(made.router.look(name), Unread)
        assert name not in made.reader.overlays
        fake.exchange("x", binding("b"), vhost="v")
        await made.scheduler.look_up(name, 10)
        assert made.weights(name) == {B: 1}


async def test_a_virtual_host_out_of_the_user_s_sight_keeps_its_last_good_ring(
    fake: FakeManagement, clock: Clock
) -> None:
    fake.exchange("x", binding("a"), vhost="v")
    name = ("v", "x")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(name, 10)
        fake.delete("x", "v")
        fake.vhosts.remove("v")
        for _ in range(3):
            await made.scheduler._again(name)
            await made.scheduler.look_up(name, 10)
            assert made.routes(name)
