"""The shard and lanes that `retire` finds, and what stops it before it deletes a queue."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.shards import retire as module
from proxy.shards.apply import StoppedError
from proxy.shards.fleet import FleetError
from proxy.shards.retire import RetireError, Retirement
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from ring.destination import Destination
from tests.unit.proxy.shards.fake_api import management

FANOUT, RING = FoundExchange("fanout"), FoundExchange("x-consistent-hash")
EMPTY = {"messages_ready": 0, "messages_unacknowledged": 0}


def leads(kind: Any, name: str, key: str = "") -> tuple[FoundBinding, ...]:
    return (FoundBinding(Destination(kind, name), key, key or "~"),)


def state(*queues: str, bindings: Any = None, **exchanges: FoundExchange) -> State:
    """A virtual host with the ring `orders`; exchanges are named with `_` for each dot."""
    named = {name.replace("_", "."): exchange for name, exchange in exchanges.items()}
    return State("/", {"orders": RING, **named}, dict.fromkeys(queues, FoundQueue("quorum")), bindings or {})


def retirement(queue: str, keep: bool = False) -> Retirement:
    return Retirement("/", "orders", queue, keep, [], False, 1.0)


def checked(found: State, queue: str, keep: bool = False) -> list[str]:
    """Return the lanes of a queue that may be retired."""
    what = retirement(queue, keep)
    bindings = module._bindings(found, what)
    lanes = module._lanes(found, what, bindings)
    module._check(found, what, bindings, lanes)
    return lanes


@pytest.mark.parametrize("queue", ["invoices", "orders.3x", "orders", "orders3", "invoices.3"])
def test_a_queue_that_nothing_ties_to_the_exchange_is_not_retired(queue: str) -> None:
    with pytest.raises(RetireError, match=r"is not bound to queue .* and nothing tells that it was"):
        checked(state(queue), queue)
    assert checked(state(queue), queue, keep=True) == []


def test_a_queue_off_the_ring_is_known_by_its_name_or_by_a_lane_that_was_left() -> None:
    assert checked(state("orders.3"), "orders.3") == []
    left = state("adopted", orders_lane_7=FANOUT, bindings={"orders.lane.7": leads("queue", "adopted")})
    assert checked(left, "adopted") == ["orders.lane.7"]


def test_a_lane_that_leads_nowhere_is_known_by_its_number_only() -> None:
    assert checked(state("orders.3", orders_lane_3=FANOUT, orders_lane_4=FANOUT), "orders.3") == ["orders.lane.3"]


def test_a_lane_on_the_ring_that_leads_nowhere_is_its_shards_own() -> None:
    """Otherwise the queue would be deleted, and the lane would stay and swallow its share of the messages."""
    others = {"orders_lane_1": FANOUT, "orders_lane_3": FANOUT}
    ring = (*leads("exchange", "orders.lane.1", "1"), *leads("exchange", "orders.lane.3", "1"))
    bindings = {"orders": ring, "orders.lane.1": leads("queue", "orders.1")}
    found = state("orders.1", "orders.3", bindings=bindings, **others)

    assert checked(found, "orders.3") == ["orders.lane.3"]
    assert module._bindings(found, retirement("orders.3")) == list(ring[1:])
    # The bindings of the queue behind the last lane that leads somewhere all stay.
    with pytest.raises(RetireError, match="is the only one of exchange 'orders'"):
        checked(found, "orders.1")
    assert module._bindings(found, retirement("orders.1")) == list(ring[:1])


def test_an_exchange_that_another_feeds_is_no_lane_that_was_left() -> None:
    bindings = {"orders.lane.7": leads("queue", "orders.3"), "amq.topic": leads("exchange", "orders.lane.7", "#")}
    with pytest.raises(RetireError, match=r"also gets messages from exchange 'orders.lane.7'"):
        checked(state("orders.3", orders_lane_7=FANOUT, bindings=bindings), "orders.3")


class HeldLock:
    """A lock that stays held, whose broker counts a queue as it is told."""

    def __init__(self, ready: int = 0) -> None:
        self.ready = ready

    async def check(self) -> None:
        pass

    async def count_ready(self, vhost: str, queue: str) -> int:
        return self.ready


async def left(monkeypatch: pytest.MonkeyPatch, *states: State, ready: int = 0) -> str:
    """Return what is left in `orders.3`, while each look finds the next state."""
    monkeypatch.setattr(module, "BETWEEN_LOOKS", 0.0)
    turns = iter(states)

    async def read(_: Any) -> dict[str, State]:
        return {"/": next(turns)}

    what = retirement("orders.3")
    async with management({"queues///orders.3": EMPTY}) as api:
        broker = cast("Any", SimpleNamespace(api=api, states=read))
        taken = module._removed_destinations(what, ["orders.lane.3"])
        return await module._left(broker, what, cast("Any", HeldLock(ready)), taken)


@pytest.mark.parametrize(
    "bindings", [{"orders": leads("queue", "orders.3", "1")}, {"orders": leads("exchange", "orders.lane.3", "1")}]
)
async def test_a_queue_that_is_bound_again_while_it_drains_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, bindings: Any
) -> None:
    free = state("orders.3", orders_lane_3=FANOUT)
    assert await left(monkeypatch, free, free) == ""
    with pytest.raises(StoppedError, match="was bound again, by exchange 'orders'"):
        await left(monkeypatch, free, state("orders.3", orders_lane_3=FANOUT, bindings=bindings))


async def test_what_the_broker_counts_at_the_end_outweighs_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    free = state("orders.3")
    assert await left(monkeypatch, free, free, ready=2) == (
        "2 messages are ready, which the management API does not count yet"
    )


async def test_an_empty_fleet_is_refused_unless_it_is_said_to_be_empty() -> None:
    said: list[str] = []

    async def read(_: Any) -> dict[str, State]:
        return {"/": state("orders.3")}

    async with management({"whoami": {"name": "u", "tags": ["monitoring"]}, "connections": []}) as api:
        broker = cast("Any", SimpleNamespace(api=api, states=read))
        with pytest.raises(FleetError, match="no sidecar is connected to the cluster: use --no-sidecars"):
            await module.retire(broker, cast("Any", HeldLock()), retirement("orders.3"), said.append)
    assert said == []


def test_statistics_that_a_broker_makes_every_30_s_are_newer_at_the_second_look() -> None:
    assert module.BETWEEN_LOOKS > 30
