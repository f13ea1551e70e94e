"""Faults that stop `retire` before it deletes a queue; `test_retirement.py` has the parts of a shard that it finds."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.shards import retire as module
from proxy.shards.apply import StoppedError
from proxy.shards.fleet import FleetError
from proxy.shards.retire import Retirement
from proxy.shards.retirement import Parts, Removals
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from ring.destination import Destination
from tests.unit.proxy.shards.fake_api import Pages, management

FANOUT, RING = FoundExchange("fanout"), FoundExchange("x-consistent-hash")
EMPTY = {"messages_ready": 0, "messages_unacknowledged": 0}
NOTHING: Mapping[str, int] = {}


def leads(kind: Any, name: str, key: str = "") -> tuple[FoundBinding, ...]:
    return (FoundBinding(Destination(kind, name), key, key or "~"),)


def state(*queues: str, bindings: Any = None, **exchanges: FoundExchange) -> State:
    """A virtual host with the ring `orders`; exchanges are named with `_` for each dot."""
    named = {name.replace("_", "."): exchange for name, exchange in exchanges.items()}
    return State("/", {"orders": RING, **named}, dict.fromkeys(queues, FoundQueue("quorum")), bindings or {})


def retirement(queue: str) -> Retirement:
    return Retirement("/", "orders", queue, False, [], False, 1.0)


class HeldLock:
    """A lock that stays held, whose broker counts a queue as it is told."""

    def __init__(self, ready: Mapping[str, int] = NOTHING) -> None:
        self.ready = ready

    async def check(self) -> None:
        pass

    async def count_ready(self, vhost: str, queue: str) -> int:
        return self.ready.get(queue, 0)


ONE: Pages = {"orders.3": EMPTY}


async def left(
    monkeypatch: pytest.MonkeyPatch, *states: State, pages: Pages = ONE, ready: Mapping[str, int] = NOTHING
) -> str:
    """Return what is left in queues whose pages these are, while each look finds the next state."""
    monkeypatch.setattr(module, "BETWEEN_LOOKS", 0.0)
    turns = iter(states)

    async def read(_: Any) -> dict[str, State]:
        return {"/": next(turns)}

    what = retirement("orders.3")
    async with management({f"queues///{name}": page for name, page in pages.items()}) as api:
        broker = cast("Any", SimpleNamespace(api=api, states=read))
        parts = Parts((), ("orders.lane.3",), ("orders.fan.3",), tuple(pages))
        course = module._Course(broker, cast("Any", HeldLock(ready)), what, parts, Removals(()), print)
        return await module._left(course)


@pytest.mark.parametrize(
    "bindings",
    [
        {"orders": leads("queue", "orders.3", "1")},
        {"orders": leads("exchange", "orders.lane.3", "1")},
        {"orders": leads("exchange", "orders.fan.3", "1")},
    ],
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
    assert await left(monkeypatch, free, free, ready={"orders.3": 2}) == (
        "orders.3 has 2 messages ready, which the management API does not count yet"
    )


@pytest.mark.parametrize("name", ["orders.3", "orders.audit.3"])
async def test_the_queue_of_each_group_must_be_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    free = state("orders.3", "orders.audit.3")
    pages = {"orders.audit.3": EMPTY, "orders.3": EMPTY}
    assert await left(monkeypatch, free, free, pages=pages) == ""
    unacked = {**pages, name: {"messages_ready": 0, "messages_unacknowledged": 1}}
    assert await left(monkeypatch, free, free, pages=unacked) == f"{name} has 0 messages ready and 1 not acked yet"
    delayed = {**pages, name: {**EMPTY, "messages": 2}}
    told = await left(monkeypatch, free, free, pages=delayed)
    assert told.endswith("0 not acked yet, and 2 wait for a delayed retry or to be dead-lettered")
    turns = iter([EMPTY, {"messages_ready": 1, "messages_unacknowledged": 0}])
    later = {**pages, name: lambda: next(turns)}
    assert await left(monkeypatch, free, free, pages=later) == f"{name} has 1 messages ready and 0 not acked yet"
    assert (await left(monkeypatch, free, free, pages=pages, ready={name: 1})).startswith(
        f"{name} has 1 messages ready"
    )


async def test_a_queue_that_is_gone_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    free = state("orders.3")
    pages = {"orders.audit.3": None, "orders.3": EMPTY}
    counts = {"orders.audit.3": 1, "orders.3": 2}
    assert await left(monkeypatch, free, free, pages=pages) == ""
    assert (await left(monkeypatch, free, free, pages=pages, ready=counts)).startswith("orders.3 has 2 messages ready")


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
