"""Fans: the exchange behind a lane that gives each group of a shard its copy, and what the ring's binding promises."""

import json
from typing import Any

import pytest
from aiohttp import web

from proxy.topology.bindings import (
    CONSISTENT_HASH,
    MAX_GENERATION,
    MOST_GROUPS,
    UNREADABLE,
    Behind,
    Binding,
    Exchange,
    Fan,
    IgnoredBinding,
    Leads,
    Promise,
    behind_of,
    parse_bindings,
    promises_of,
    weigh,
)
from proxy.topology.table import PassReason
from ring.destination import MAX_DESTINATIONS, Destination
from tests.unit.proxy.fake_management import FakeManagement, binding
from tests.unit.proxy.topology.scheduling import SETTLE, Clock, X, scheduling, warnings

PROMISE = Promise("orders.1", (("orders", "orders.1"), ("orders/audit", "orders.audit.1")))
OWN, AUDIT = (Binding(Destination("queue", name), "") for name in ("orders.1", "orders.audit.1"))
TO_FAN = Binding(Destination("exchange", "fan"), "")
FANOUT = Exchange("fanout")
FULL = Fan("fan", FANOUT, (OWN, AUDIT))
SHARD = Destination("queue", "orders.1")


def led(*bindings: Binding, promise: Promise | None = PROMISE, fan: Fan | None = FULL) -> Behind:
    return behind_of(FANOUT, bindings, {"ae"}, promise, fan)


def test_a_lane_to_a_fan_is_placed_by_the_shard_that_the_ring_promises() -> None:
    assert led(TO_FAN) == Behind(Leads.TO_QUEUE, "orders.1", fan="fan", promise=PROMISE)


def test_a_lane_to_one_queue_is_placed_by_the_promise_too() -> None:
    found = led(AUDIT, fan=None)
    assert (found.leads, found.queue, found.missing) == (Leads.TO_QUEUE, "orders.1", ("orders.1",))


@pytest.mark.parametrize("order", [(OWN, TO_FAN), (TO_FAN, OWN)])
@pytest.mark.parametrize("promise", [None, PROMISE])
def test_while_a_group_is_added_the_lane_leads_to_its_queue_and_the_fan(
    order: tuple[Binding, ...], promise: Promise | None
) -> None:
    found = led(*order, promise=promise)
    assert (found.leads, found.queue, found.fan, found.missing) == (Leads.TO_QUEUE, "orders.1", "fan", ())


@pytest.mark.parametrize(
    ("bound", "missing"), [((OWN,), ("orders.audit.1",)), ((AUDIT,), ("orders.1",)), ((OWN, AUDIT), ())]
)
def test_a_fan_is_held_to_what_is_promised(bound: tuple[Binding, ...], missing: tuple[str, ...]) -> None:
    found = led(TO_FAN, fan=Fan("fan", FANOUT, bound))
    assert (found.queue, found.missing) == ("orders.1", missing)


def test_a_queue_beside_the_promised_ones_does_no_harm() -> None:
    tapped = Fan("fan", FANOUT, (OWN, AUDIT, Binding(Destination("queue", "tap"), "")))
    assert led(TO_FAN, fan=tapped).missing == ()


@pytest.mark.parametrize("fan", [Fan("fan", FANOUT), Fan("fan", None)])
def test_a_fan_without_a_queue_leads_nowhere(fan: Fan) -> None:
    assert led(TO_FAN, fan=fan) == Behind(Leads.NOWHERE, promise=PROMISE)


@pytest.mark.parametrize(
    ("bindings", "promise", "fan", "why"),
    [
        ((TO_FAN,), None, FULL, "it is bound to exchange 'fan', and the binding to it has no argument x-ring-shard"),
        ((TO_FAN, Binding(Destination("queue", "q"), "")), PROMISE, FULL, "it has 2 bindings"),
        ((TO_FAN, Binding(Destination("exchange", "e"), "")), PROMISE, None, "it has 2 bindings"),
        ((TO_FAN,), PROMISE, Fan("fan", Exchange("topic")), "it is bound to exchange 'fan'"),
        (
            (TO_FAN,),
            PROMISE,
            Fan("fan", Exchange("fanout", policy="ae"), (OWN,)),
            "it is bound to exchange 'fan', of which is true: policy 'ae' gives it an alternate exchange",
        ),
        (
            (TO_FAN,),
            PROMISE,
            Fan("fan", FANOUT, (OWN, Binding(Destination("exchange", "e"), ""))),
            "it is bound to exchange 'fan', and that to exchange 'e'",
        ),
        (
            (TO_FAN,),
            Promise(""),
            FULL,
            "the bindings to it name different shards in x-ring-shard, or different generations",
        ),
    ],
)
def test_what_is_no_lane(bindings: tuple[Binding, ...], promise: Promise | None, fan: Fan | None, why: str) -> None:
    found = led(*bindings, promise=promise, fan=fan)
    assert found == Behind(Leads.ASIDE, why=why, promise=promise, fan="" if promise else "fan")


def shown(arguments: object) -> Promise | None:
    item: dict[str, Any] = {"destination": "lane", "destination_type": "exchange", "routing_key": "1"}
    (found,) = parse_bindings(json.dumps([item | {"arguments": arguments}]).encode())
    return found.promise


def test_the_promise_that_is_read_is_the_one_that_was_made() -> None:
    assert shown(PROMISE.as_arguments()) == PROMISE


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        [],
        None,
        {"x-match": "all"},
        {"x-ring-shard": 1, "x-ring-groups": {}},
        {"x-ring-shard": "", "x-ring-groups": {}},
        {"x-ring-shard": "s" * 256, "x-ring-groups": {}},
        {"x-ring-shard": "s", "x-ring-groups": ["q"]},
        {"x-ring-shard": "s", "x-ring-groups": {"g": 1}},
        {"x-ring-shard": "s", "x-ring-groups": {"": "q"}},
        {"x-ring-shard": "s", "x-ring-groups": {f"g{n}": "q" for n in range(MOST_GROUPS + 1)}},
    ],
)
def test_other_arguments_promise_nothing(arguments: object) -> None:
    assert shown(arguments) is None


LATER = Promise("orders.1", PROMISE.groups, 2, 6)


@pytest.mark.parametrize("promise", [LATER, LATER._replace(groups=())])
def test_a_later_generation_promises_a_shard_to_the_groups_that_it_is_open_to(promise: Promise) -> None:
    assert shown(promise.as_arguments()) == promise
    assert ("x-ring-groups" in promise.as_arguments()) is bool(promise.groups)


@pytest.mark.parametrize(
    "wrong",
    [{"x-ring-generation": number} for number in (0, 1, -2, 2.0, "2", True, [2], MAX_GENERATION + 1)]
    + [{"x-ring-shards": shards} for shards in (None, 0, -1, "6", 6.0, True, MAX_DESTINATIONS + 1)]
    + [{"x-ring-shard": shard} for shard in (None, 1, "")]
    + [{"x-ring-groups": groups} for groups in (["q"], {"g": 1})],
)
def test_a_generation_in_another_form_gives_no_weight(wrong: dict[str, Any]) -> None:
    arguments = LATER.as_arguments() | wrong
    assert shown({name: value for name, value in arguments.items() if value is not None}) == UNREADABLE
    lane = Destination("exchange", "lane")
    found = weigh([Binding(lane, "1", UNREADABLE), Binding(SHARD, "1")], CONSISTENT_HASH)
    assert found.weights == {SHARD: 1}
    assert found.ignored == (IgnoredBinding(lane, "1", "its arguments with x-ring-generation have another form"),)
    assert promises_of([Binding(lane, "1", UNREADABLE), Binding(lane, "1", LATER)]) == {"lane": LATER}


def test_one_lane_is_of_one_generation() -> None:
    lane = Destination("exchange", "lane")
    opened = Promise("orders.1", (("orders", "orders.g2.1"),), 2, 6)
    assert promises_of([Binding(lane, "1", opened._replace(groups=())), Binding(lane, "1", opened)]) == {"lane": opened}
    torn = promises_of([Binding(lane, "1", opened), Binding(lane, "1", opened._replace(generation=3))])["lane"]
    assert torn is not None
    assert (torn.shard, torn.generation) == ("", 3)


def test_bindings_to_one_lane_promise_together() -> None:
    lane = Destination("exchange", "lane")
    other = Promise("orders.1", (("orders/more", "orders.more.1"),))
    assert promises_of([Binding(lane, "1"), Binding(SHARD, "1")]) == {"lane": None}
    assert promises_of([Binding(lane, "1", PROMISE), Binding(lane, "2")]) == {"lane": PROMISE}
    both = promises_of([Binding(lane, "1", PROMISE), Binding(lane, "2", other)])["lane"]
    assert both == Promise("orders.1", (*PROMISE.groups, *other.groups))
    torn = promises_of([Binding(lane, "1", PROMISE), Binding(lane, "2", Promise("s"))])["lane"]
    assert torn == Promise("", PROMISE.groups)


def test_the_ring_has_the_shard() -> None:
    lane = Destination("exchange", "lane")
    found = weigh([Binding(lane, "3", PROMISE)], CONSISTENT_HASH, {"lane": led(TO_FAN)})
    assert (found.weights, found.lanes) == ({SHARD: 3}, {SHARD: "lane"})


# Readings


def promised(weight: str = "1") -> dict[str, Any]:
    return binding("lane", weight, "exchange") | {"arguments": PROMISE.as_arguments()}


def laned(fake: FakeManagement, *queues: str) -> None:
    """Make a ring of one lane with a fan in front of these queues, and of one queue."""
    fake.exchange("fan", *(binding(name, "") for name in queues), type="fanout")
    fake.exchange("lane", binding("fan", "", "exchange"), type="fanout")
    fake.exchange("x", promised(), binding("b"))


BOTH = {SHARD: 1, Destination("queue", "b"): 1}


async def test_a_reading_follows_the_lane_to_its_fan(fake: FakeManagement) -> None:
    laned(fake, "orders.1", "orders.audit.1")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert made.weights() == BOTH
        assert made.entry.lanes == {SHARD: "lane"}
        assert made.entry.passed is None
        assert made.entry.groups == {"orders", "orders/audit"}
        assert made.entry.queues_of("orders/audit") == ["orders.audit.1"]
        assert made.entry.incomplete == {}


async def test_a_queue_that_somebody_deletes_is_told_and_moves_no_key(
    fake: FakeManagement, caplog: pytest.LogCaptureFixture
) -> None:
    laned(fake, "orders.1", "orders.audit.1")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.bindings["/", "fan"] = [binding("orders.audit.1", "")]
        for _ in range(2):
            await made.scheduler.read_again(X, "test", ())
        assert made.weights() == BOTH
        assert made.entry.incomplete == {"orders.1": ("orders.1",)}
        told = [line for line in warnings(caplog) if "a group loses every message" in line]
        assert len(told) == 1
        assert "queue 'orders.1'" in told[0]


async def test_a_lane_that_is_bound_anew_keeps_its_keys(fake: FakeManagement, clock: Clock) -> None:
    """As `ring-proxy topology apply` does to change a promise: unbind, then bind."""
    laned(fake, "orders.1", "orders.audit.1")
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        fake.bindings["/", "x"] = [binding("b")]
        await made.scheduler.read_again(X, "test", ())
        assert made.weights() == BOTH
        assert made.entry.passed is None
        clock.now += SETTLE / 2
        fake.bindings["/", "x"] = [promised(), binding("b")]
        await made.scheduler.read_again(X, "test", ())
        clock.now += 2 * SETTLE
        await made.scheduler.read_again(X, "test", ())
        assert made.weights() == BOTH
        assert len(made.entry.changes) == 1


async def test_a_fan_without_a_promise_passes_the_exchange(fake: FakeManagement) -> None:
    laned(fake, "orders.1", "orders.audit.1")
    fake.bindings["/", "x"] = [binding("lane", "1", "exchange"), binding("b")]
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.passed is PassReason.NOT_A_LANE


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_reading_between_the_steps_that_add_a_group_moves_no_key(fake: FakeManagement, is_known: bool) -> None:
    fake.exchange("fan", binding("orders.1", ""), binding("orders.audit.1", ""), type="fanout")
    fake.exchange("lane", binding("orders.1", ""), binding("fan", "", "exchange"), type="fanout")
    fake.exchange("x", binding("lane", "1", "exchange"), binding("b"))
    async with scheduling(fake) as made:
        if is_known:
            await made.scheduler.look_up(X, 10)
            assert made.weights() == BOTH

        async def taken(request: web.Request) -> web.StreamResponse:
            """Take the last steps once the ring's bindings are read, and before the lane's are."""
            fake.mend()
            fake.bindings["/", "x"] = [promised(), binding("b")]
            fake.bindings["/", "lane"] = [binding("fan", "", "exchange")]
            return web.json_response(fake.bindings["/", "lane"])

        fake.fail(taken, "/api/exchanges/%2F/lane/bindings/source")
        if is_known:
            await made.scheduler.read_again(X, "test", ())
        else:
            await made.scheduler.look_up(X, 10)
        assert not fake.faults
        assert made.weights() == BOTH
        assert made.entry.passed is None
        assert made.entry.groups == {"orders", "orders/audit"}
