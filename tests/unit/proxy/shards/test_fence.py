"""The fence around the bindings of groups: which nodes are asked, and what is told if one of them does not answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.shards.apply import StoppedError
from proxy.shards.difference import compare
from proxy.shards.document import parse
from proxy.shards.fence import fence, left_over
from proxy.shards.shard import Sharded
from proxy.shards.state import FoundBinding, FoundExchange, State
from proxy.topology.management import ManagementError, RefusedError
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after

NODES = ("rabbit@a", "rabbit@b", "rabbit@c")
FANOUT = FoundExchange("fanout")


def exchange(**fields: Any) -> Sharded:
    (found,) = parse({"exchange": [{"name": "orders", "shards": 2, **fields}]})
    return found


def made(wanted: Sharded, *further: str) -> State:
    """Return what exists on a cluster of three nodes once the exchange is made, with these exchanges beside it."""
    state = after(EMPTY, *compare(wanted, EMPTY).steps)
    return replace(state, nodes=NODES, exchanges={**state.exchanges, **dict.fromkeys(further, FANOUT)})


class Changes:
    """A cluster that notes each change as its method and its exchange, and the node that it goes by way of."""

    def __init__(self, state: State, refuse: Callable[[str], Exception | None] = lambda node: None) -> None:
        """`refuse` returns the error of a declaration by way of a node; None if it succeeds."""
        self.api, self._state, self._refuse = SimpleNamespace(change=self._change), state, refuse
        self.there = set(state.exchanges)
        self.asked: list[str] = []
        """The nodes that have answered a declaration, in order."""
        self.names: list[str] = []

    async def states(self, vhosts: Sequence[str]) -> dict[str, State]:
        return dict.fromkeys(vhosts, self._state)

    async def _change(self, method: str, path: Sequence[str], body: Mapping[str, Any] | None, query: str) -> None:
        what, vhost, name = path
        assert (what, vhost, query) == ("exchanges", "/", "")
        if method == "DELETE":
            if name not in self.there:
                raise RefusedError(name, 404, "Not Found")
            self.there.remove(name)
            return
        assert body is not None
        assert name not in self.there
        self.there.add(name)
        self.names.append(name)
        if (error := self._refuse(body["node"])) is not None:
            raise error
        self.asked.append(body["node"])


async def fenced(changes: Changes, *document: Sharded) -> list[str]:
    said: list[str] = []
    await fence(cast("Any", changes), document, said.append)
    return said


async def test_each_node_is_asked_by_an_exchange_of_its_own_that_is_deleted() -> None:
    wanted = exchange(groups=["audit", "billing"])
    changes = Changes(made(wanted))
    assert await fenced(changes, wanted) == [
        "orders/audit, orders/billing: every message that is published from now on, through any of 3 running nodes"
    ]
    assert changes.asked == list(NODES)
    assert len(set(changes.names)) == 3
    assert changes.there == set(made(wanted).exchanges)
    assert all(
        name.startswith("orders.fan.") and name.removeprefix("orders.fan.").isdecimal() for name in changes.names
    )


@pytest.mark.parametrize(
    "error", [ManagementError("no answer within 5 s"), RefusedError("/", 400, "Node 'rabbit@b' could not be contacted")]
)
async def test_nothing_is_said_if_a_node_does_not_answer(error: Exception) -> None:
    wanted = exchange(groups=["audit"])
    changes = Changes(made(wanted), lambda node: error if node == "rabbit@b" else None)
    said: list[str] = []
    with pytest.raises(StoppedError) as stopped:
        await fence(cast("Any", changes), [wanted], said.append)
    assert (
        stopped.value.lines[0] == f"all steps were taken, and node rabbit@b does not tell that it knows them: {error}"
    )
    assert said == []
    assert changes.asked == ["rabbit@a"]
    assert changes.there == set(made(wanted).exchanges)


async def test_an_only_node_has_answered_already() -> None:
    wanted = exchange(groups=["audit"])
    changes = Changes(replace(made(wanted), nodes=NODES[:1]))
    assert await fenced(changes, wanted) == ["orders/audit: every message that is published from now on"]
    assert changes.names == []


async def test_without_groups_nothing_is_asked() -> None:
    changes = Changes(made(exchange()))
    assert await fenced(changes, exchange()) == []
    assert changes.names == []


async def test_one_exchange_asks_for_all_of_a_virtual_host() -> None:
    bills = exchange(name="bills", groups=["copy"])
    orders = exchange(groups=["audit"])
    changes = Changes(made(orders))
    assert [line.partition(":")[0] for line in await fenced(changes, bills, orders)] == ["bills/copy", "orders/audit"]
    assert changes.asked == list(NODES)


@pytest.mark.parametrize("is_first", [False, True])
async def test_what_a_stopped_command_left_is_deleted_wherever_its_exchange_stands_in_the_file(is_first: bool) -> None:
    document = [exchange(groups=["audit"]), exchange(name="bills", groups=["copy"])]
    left = {f"{name}.fan.1764254823123456789" for name in ("orders", "bills")}
    changes = Changes(made(document[0], *left))
    await fenced(changes, *(document if is_first else reversed(document)))
    assert changes.there == set(made(document[0]).exchanges)


async def test_an_exchange_that_a_stopped_command_left_is_deleted() -> None:
    wanted = exchange(groups=["audit"])
    left = "orders.fan.1764254823123456789"
    others = ("orders.fan.10000", "orders.fan.spare", "bills.fan.1764254823123456789")
    state = made(wanted, left, *others)
    assert list(left_over(state, wanted)) == [left]
    changes = Changes(state)
    await fenced(changes, wanted)
    assert changes.there == set(state.exchanges) - {left}
    used = {**state.bindings, left: (FoundBinding(Destination("queue", "orders.1"), ""),)}
    assert list(left_over(replace(state, bindings=used), wanted)) == []
