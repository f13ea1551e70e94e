"""The effect of readings, lies, declarations and returns on a ring whose destinations are lanes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web

from pipeline.data.live import read_ring_of
from proxy.topology.bindings import Behind, Leads
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
    changes_lane,
)
from proxy.topology.lanes import LANE_READS, gone_behind, read_behind
from proxy.topology.lookups import NotReadable
from proxy.topology.management import Management
from proxy.topology.overlay import OVERLAY_TIME
from proxy.topology.table import PassReason
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, binding, status
from tests.unit.proxy.topology.scheduling import SETTLE, A, B, C, Clock, Made, X, scheduling, warnings

LANE_A, LANE_B = Destination("exchange", "lane.a"), Destination("exchange", "lane.b")


def lane(fake: FakeManagement, queue: str) -> None:
    fake.exchange(f"lane.{queue}", binding(queue, ""), type="fanout")


@pytest.fixture
async def made(fake: FakeManagement, clock: Clock) -> AsyncIterator[Made]:
    """A ring of two lanes, which was read."""
    lane(fake, "a")
    lane(fake, "b")
    fake.exchange("x", binding("lane.a", "1", "exchange"), binding("lane.b", "2", "exchange"))
    async with scheduling(fake) as one:
        await one.scheduler.look_up(X, 10)
        assert one.weights() == {A: 1, B: 2}
        assert one.entry.lanes == {A: "lane.a", B: "lane.b"}
        yield one


async def reread(made: Made, *gone: Destination) -> None:
    await made.scheduler.read_again(X, "test", gone)


async def test_lanes_are_not_asked_how_their_queues_dead_letter(made: Made, fake: FakeManagement) -> None:
    assert fake.count("/api/queues/%2F/a") == 0
    assert made.entry.queues == {}
    assert made.routes()


async def test_an_unbound_lane_is_kept_for_the_settle_time(made: Made, fake: FakeManagement, clock: Clock) -> None:
    fake.bindings["/", "lane.a"] = []
    await reread(made)
    assert made.weights() == {A: 1, B: 2}
    for _ in range(4):
        clock.now += SETTLE / 2
        await reread(made)
    assert made.weights() == {B: 2}
    assert made.entry.lanes == {B: "lane.b"}
    assert [ignored.destination for ignored in made.entry.bindings.ignored] == [LANE_A]


async def test_a_reading_of_a_ring_settles_nothing_of_a_ring_behind_it(fake: FakeManagement, clock: Clock) -> None:
    """It does not read the other's bindings: what was declared on them outweighs the next reading all the same."""
    inner = ("/", "inner")
    fake.exchange("inner", binding("a"), binding("b"))
    fake.exchange("x", binding("inner", "1", "exchange"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(inner, 10)
        await made.scheduler.look_up(X, 10)
        made.scheduler.declared("/", BindingRemoved("inner", A, "1"))
        clock.now += 1
        await reread(made)
        await made.scheduler.look_up(inner, 10)
        assert made.weights(inner) == {B: 1}


async def test_a_return_vouches_for_its_end(made: Made, fake: FakeManagement) -> None:
    fake.bindings["/", "lane.a"] = []
    await reread(made, LANE_A)
    assert made.weights() == {B: 2}


async def test_also_after_the_lane_has_left_the_ring(made: Made, fake: FakeManagement) -> None:
    fake.bindings["/", "lane.a"] = []
    fake.bindings["/", "x"] = fake.bindings["/", "x"][1:]
    await reread(made, LANE_A)
    assert made.weights() == {B: 2}


async def test_a_return_of_a_lane_that_is_bound_again_changes_nothing(made: Made) -> None:
    await reread(made, LANE_A)
    assert made.weights() == {A: 1, B: 2}


async def test_a_lane_that_does_not_exist_gets_nothing_at_once(made: Made, fake: FakeManagement) -> None:
    """A publish to it would end its channel, so no settle time is waited for."""
    fake.delete("lane.a")
    fake.bindings["/", "x"] = fake.bindings["/", "x"][1:]
    await reread(made)
    assert made.weights() == {B: 2}


async def test_one_answer_without_the_exchange_and_its_lanes_moves_nothing(
    made: Made, fake: FakeManagement, clock: Clock
) -> None:
    for name in ("x", "lane.a", "lane.b"):
        fake.delete(name)
    clock.now += 1
    await reread(made)
    assert made.weights() == {A: 1, B: 2}
    for _ in range(3):
        clock.now += SETTLE
        await reread(made)
    assert X not in made.router.entries


async def test_unless_the_broker_has_refused_a_publish_to_the_lane(
    made: Made, fake: FakeManagement, clock: Clock
) -> None:
    for name in ("x", "lane.a", "lane.b"):
        fake.delete(name)
    made.scheduler.found_missing("/", "lane.a")
    clock.now += 1
    await reread(made)
    assert made.weights() == {B: 2}


async def test_nor_where_its_binding_still_shows(made: Made, fake: FakeManagement) -> None:
    fake.delete("lane.a")
    await reread(made, LANE_A)
    assert made.weights() == {B: 2}
    (ignored,) = made.entry.bindings.ignored
    assert ignored.reason == "the exchange does not exist"


async def test_a_page_that_is_missing_of_an_exchange_that_is_listed_is_not_believed(
    made: Made, fake: FakeManagement
) -> None:
    fake.fail(status(404), "/api/exchanges/%2F/lane.a")
    await reread(made, LANE_A)
    assert "is listed in virtual host '/', and its own page is 404" in made.scheduler.faults[X]
    assert made.weights() == {A: 1, B: 2}


async def test_a_virtual_host_that_is_not_listed_ends_no_lane(made: Made, fake: FakeManagement) -> None:
    fake.fail(status(404), "/api/exchanges/%2F/lane.a")
    fake.fail(status(404), "/api/exchanges/%2F")
    await reread(made, LANE_A)
    assert made.weights() == {A: 1, B: 2}


async def test_a_lane_that_leads_to_another_queue_takes_no_message_of_the_old_one(
    made: Made, fake: FakeManagement
) -> None:
    fake.bindings["/", "lane.a"] = [binding("c", "")]
    await reread(made)
    assert made.weights() == {B: 2, C: 1}
    assert made.entry.lanes == {C: "lane.a", B: "lane.b"}


async def test_a_lane_off_the_ring_is_kept_for_the_settle_time(made: Made, fake: FakeManagement, clock: Clock) -> None:
    fake.bindings["/", "x"] = fake.bindings["/", "x"][1:]
    await reread(made)
    assert made.weights() == {A: 1, B: 2}
    assert made.entry.lanes[A] == "lane.a"
    for _ in range(4):
        clock.now += SETTLE / 2
        await reread(made)
    assert made.weights() == {B: 2}


async def test_what_becomes_no_lane_passes_until_it_is_mended(
    made: Made, fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    fake.bindings["/", "lane.a"].append(binding("c", ""))
    await reread(made)
    assert made.entry.passed is PassReason.NOT_A_LANE
    assert made.entry.not_lanes == {"lane.a": "it has 2 bindings"}
    assert len([line for line in warnings(caplog) if "'lane.a' (it has 2 bindings)" in line]) == 1
    fake.bindings["/", "lane.a"].pop()
    await reread(made)
    assert made.routes()
    assert made.weights() == {A: 1, B: 2}


async def test_policies_are_read_once_and_only_where_one_applies(made: Made, fake: FakeManagement) -> None:
    assert fake.count("/api/policies/%2F") == 0
    fake.policies["ae"] = {"alternate-exchange": "e"}
    fake.exchanges["/", "lane.a"]["policy"] = "ae"
    fake.exchanges["/", "lane.b"]["policy"] = "other"
    await reread(made)
    assert fake.count("/api/policies/%2F") == 1
    assert made.entry.not_lanes == {"lane.a": "policy 'ae' gives it an alternate exchange"}


async def test_a_direct_binding_beside_a_lane_leaves_the_ring_alone(made: Made, fake: FakeManagement) -> None:
    ring = made.entry.known
    fake.bindings["/", "x"].append(binding("a", "1"))
    await reread(made)
    assert made.entry.known is ring
    assert made.entry.lanes[A] == "lane.a"
    del fake.bindings["/", "x"][0]
    await reread(made)
    assert made.entry.known is ring
    assert A not in made.entry.lanes


async def test_of_many_lanes_each_is_read_in_turn(fake: FakeManagement) -> None:
    names = [f"{n:02}" for n in range(3 * LANE_READS)]
    for name in names:
        lane(fake, name)
    fake.exchange("x", *(binding(f"lane.{name}", "1", "exchange") for name in names))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        for _ in range(2):
            fake.requests.clear()
            for _ in range(3):
                await reread(made)
            assert {path: fake.requests.count(path) for path in fake.requests if "lane" in path} == {
                f"/api/exchanges/%2F/lane.{name}{page}": 1 for name in names for page in ("", "/bindings/source")
            }
        # One that is in doubt is not left for its turn.
        fake.requests.clear()
        await reread(made, Destination("exchange", "lane.23"))
        assert fake.count("/api/exchanges/%2F/lane.23") == 1
        # A ring that was restored from disk has no lane that was read yet.
        fake.requests.clear()
        made.router.put(X, replace(made.entry, restored=True))
        await reread(made)
        assert sum(fake.count(f"/api/exchanges/%2F/lane.{name}") for name in names) == len(names)


async def test_a_policy_with_an_alternate_exchange_is_seen_at_once_whichever_lanes_turn_it_is(
    fake: FakeManagement,
) -> None:
    """RabbitMQ would confirm a publish to such a lane whose queue is gone, and the message would not come back."""
    names = [f"{n:02}" for n in range(3 * LANE_READS)]
    for name in names:
        lane(fake, name)
    fake.exchange("x", *(binding(f"lane.{name}", "1", "exchange") for name in names))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.policies = {"other": {"x": 1}}
        fake.exchanges["/", "lane.23"]["policy"] = "other"
        fake.requests.clear()
        await reread(made)
        assert made.routes()
        # The list of all exchanges is longer, and asked for only if some policy has an alternate exchange.
        assert (fake.count("/api/policies/%2F"), fake.count("/api/exchanges/%2F")) == (1, 0)

        fake.policies["other"] = {"alternate-exchange": "unrouted"}
        await reread(made)

        assert made.entry.not_lanes == {"lane.23": "policy 'other' gives it an alternate exchange"}
        assert made.entry.passed is PassReason.NOT_A_LANE
        fake.policies["other"] = {"x": 1}
        await reread(made)
        assert made.routes()


# Declarations.


async def test_a_binding_of_a_lane_is_read_back_before_the_next_publish(made: Made, fake: FakeManagement) -> None:
    made.scheduler.declared("/", BindingAdded("lane.a", C, ""))
    assert made.waits()
    await made.scheduler.look_up(X, 10)
    # It does not show yet, and counts all the same.
    assert made.entry.passed is PassReason.NOT_A_LANE


async def test_the_same_binding_again_costs_nothing(made: Made, fake: FakeManagement) -> None:
    made.scheduler.declared("/", ExchangeDeclared("lane.a", "fanout"))
    made.scheduler.declared("/", BindingAdded("lane.a", A, ""))
    made.scheduler.declared("/", BindingAdded("x", LANE_A, "1"))
    assert not made.waits()
    made.scheduler.declared("/", BindingAdded("x", LANE_A, "3"))
    assert made.waits()


@pytest.mark.parametrize(
    "declaration", [BindingRemoved("lane.a", A, ""), QueueDeleted("a"), ExchangeDeleted("lane.a")], ids=str
)
async def test_an_end_that_does_not_show_yet_counts_at_once(
    made: Made, declaration: BindingRemoved | QueueDeleted | ExchangeDeleted
) -> None:
    made.scheduler.declared("/", declaration)
    assert made.waits()
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {B: 2}


async def test_a_lane_that_is_declared_and_does_not_show_yet_is_waited_for(made: Made, fake: FakeManagement) -> None:
    made.scheduler.declared("/", ExchangeDeclared("lane.c", "fanout"))
    made.scheduler.declared("/", BindingAdded("lane.c", C, ""))
    made.scheduler.declared("/", BindingAdded("x", Destination("exchange", "lane.c"), "1"))
    with pytest.raises(NotReadable, match=r"'lane.c' was declared and does not show yet"):
        await made.scheduler.look_up(X, 0.3)
    fake.exchange("lane.c", type="fanout")
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {A: 1, B: 2, C: 1}


async def test_a_failed_reading_does_not_settle_what_was_declared_on_a_lane(made: Made, fake: FakeManagement) -> None:
    fake.bindings["/", "lane.a"] = []
    made.scheduler.declared("/", BindingRemoved("lane.a", A, ""))
    fake.fail(status(500), "/api/exchanges/%2F/lane.b")
    await reread(made, LANE_B)
    assert X in made.scheduler.faults
    fake.mend()
    await eventually(lambda: not made.scheduler.faults or made.waits())
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {B: 2}


async def test_an_exchange_that_the_broker_did_not_find_is_off_the_ring(made: Made, fake: FakeManagement) -> None:
    """Though the management API shows it still: a lagging node."""
    made.scheduler.found_missing("/", "lane.a")
    assert made.waits()
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {B: 2}


async def test_while_nothing_can_be_read_it_gets_no_more_and_holds_nobody_up(
    made: Made, fake: FakeManagement, clock: Clock
) -> None:
    lane(fake, "c")
    fake.bindings["/", "x"].append(binding("lane.c", "1", "exchange"))
    await reread(made)
    fake.fail(status(500))
    made.scheduler.found_missing("/", "lane.a")
    assert made.waits()
    await reread(made)
    assert not made.waits()
    assert made.weights() == {B: 2, C: 1}
    assert made.entry.lanes == {B: "lane.b", C: "lane.c"}
    assert made.entry.changes[-1].why == "a publish was refused: no such exchange"
    # The next time no publish waits, as long as no reading succeeds.
    made.scheduler.found_missing("/", "lane.c")
    assert not made.waits()
    await eventually(lambda: made.weights() == {B: 2})
    # Something has to be left.
    made.scheduler.found_missing("/", "lane.b")
    await asyncio.gather(*made.scheduler._again_under_way)
    assert made.weights() == {B: 2}
    fake.mend()
    clock.now += OVERLAY_TIME + 1
    await made.scheduler._in_turn(X)
    assert made.weights() == {A: 1, B: 2, C: 1}


async def test_also_an_exchange_that_routes_by_itself(made: Made, fake: FakeManagement) -> None:
    fake.exchange("plain", type="topic")
    fake.bindings["/", "x"].append(binding("plain", "1", "exchange"))
    await reread(made)
    fake.fail(status(500))
    made.scheduler.found_missing("/", "plain")
    await reread(made)
    assert made.weights() == {A: 1, B: 2}


async def test_of_many_publishes_that_it_refuses_the_broker_tells_once(made: Made, fake: FakeManagement) -> None:
    for _ in range(1000):
        made.scheduler.found_missing("/", "lane.a")
    overlays = made.reader.overlays
    assert (overlays.of(X).statement_count, overlays.of(("/", "lane.a")).statement_count) == (1, 0)
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {B: 2}
    # It is there again, and gone again.
    made.scheduler.declared("/", ExchangeDeclared("lane.a", "fanout"))
    made.scheduler.declared("/", BindingAdded("lane.a", A, ""))
    made.scheduler.declared("/", BindingAdded("x", LANE_A, "1"))
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {A: 1, B: 2}
    made.scheduler.found_missing("/", "lane.a")
    await made.scheduler.look_up(X, 10)
    assert made.weights() == {B: 2}


@pytest.mark.parametrize("late", [True, False])
async def test_a_first_reading_looks_twice_at_a_lane_without_a_binding(fake: FakeManagement, late: bool) -> None:
    """One empty answer would move every key of its queue."""
    lane(fake, "a")
    lane(fake, "b")
    fake.exchange("x", binding("lane.a", "1", "exchange"), binding("lane.b", "2", "exchange"))
    path, answers = "/api/exchanges/%2F/lane.a/bindings/source", [[], [binding("a", "")] if late else []]

    async def lying(request: web.Request) -> web.StreamResponse:
        return web.json_response(answers.pop(0))

    fake.fail(lying, path)
    async with scheduling(fake, settle_time=0.01) as made:
        await made.scheduler.look_up(X, 10)
        assert (fake.count(path), fake.count(path.replace("lane.a", "lane.b"))) == (2, 1)
        assert made.weights() == ({A: 1, B: 2} if late else {B: 2})


@pytest.mark.parametrize(
    ("declaration", "news"),
    [
        (BindingAdded("lane.a", A, ""), False),
        (BindingAdded("lane.a", A, "another key"), True),
        (BindingAdded("lane.a", A, "", plain=False), True),
        (BindingAdded("lane.a", B, ""), True),
        (BindingAdded("lane.a", Destination("exchange", "a"), ""), True),
        (BindingRemoved("lane.a", A, ""), True),
    ],
)
async def test_what_may_change_a_lane(made: Made, declaration: BindingAdded | BindingRemoved, news: bool) -> None:
    assert changes_lane(made.entry, declaration) == news


def test_what_no_publish_reaches_the_way_it_did() -> None:
    lanes = {A: "lane.a", B: "lane.b"}
    plain = Destination("exchange", "plain")
    all_well = {
        "lane.a": Behind(Leads.TO_QUEUE, "a"),
        "lane.b": Behind(Leads.NOWHERE),
        "plain": Behind(Leads.ELSEWHERE),
    }
    in_force = [A, B, C, plain]
    assert gone_behind(in_force, lanes, all_well, ()) == set()
    assert gone_behind(in_force, lanes, all_well, {LANE_B}) == {B}
    absent = dict.fromkeys(all_well, Behind(Leads.ABSENT))
    assert gone_behind(in_force, lanes, absent, ()) == {A, B, plain}
    aside = dict.fromkeys(all_well, Behind(Leads.ASIDE, why="w"))
    assert gone_behind(in_force, lanes, aside, ()) == {A, B}
    lane_now = all_well | {"plain": Behind(Leads.TO_QUEUE, "c")}
    assert gone_behind(in_force, lanes, lane_now, ()) == {plain}


async def test_a_ring_that_is_read_once_has_the_queues_too(fake: FakeManagement) -> None:
    """As the pipeline reads it."""
    lane(fake, "a")
    fake.exchange("lane.b", type="fanout")
    fake.exchange("plain", type="topic")
    fake.exchange("x", *(binding(name, "2", "exchange") for name in ("lane.a", "lane.b", "plain")), binding("c"))
    async with Management([fake.url], 10) as api:
        spec = await read_ring_of(api, "/", "x")
        behind = await read_behind(api, "/", await api.bindings("/", "x"))
    assert spec.weights == {A: 2, C: 1, Destination("exchange", "plain"): 2}
    assert behind == {
        "lane.a": Behind(Leads.TO_QUEUE, "a"),
        "lane.b": Behind(Leads.NOWHERE),
        "plain": Behind(Leads.ELSEWHERE),
    }
