"""The reading of a virtual host, and the answers that are not believed."""

from typing import Any

import pytest

from proxy.shards.reading import READS, read_state
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue
from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError
from ring.destination import Destination
from tests.unit.proxy.shards.fake_api import Pages, management


def pages(**changes: Any) -> Pages:
    """A virtual host `/` with the ring `orders`, one lane and its queue."""
    plain = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    names = {"orders": "x-consistent-hash", "orders.lane.1": "fanout", "": "direct"}
    bound = [
        ("", "orders.1", "queue", "orders.1", "orders.1"),
        ("orders", "orders.lane.1", "exchange", "3", "3"),
        ("orders.lane.1", "orders.1", "queue", "", "~"),
    ]
    fields = ("source", "destination", "destination_type", "routing_key", "properties_key")
    nodes = {"rabbit@b": "running", "rabbit@a": "running", "rabbit@c": "stopped"}
    return {
        "vhosts": [{"name": "/", "cluster_state": nodes}],
        "overview": {"rabbitmq_version": "4.3.6"},
        "policies//": [{"name": "p", "definition": {"alternate-exchange": "a"}}],
        "exchanges//": [{"name": name, "type": kind, **plain} for name, kind in names.items()],
        "bindings//": [dict(zip(fields, row, strict=True)) for row in bound],
        "queues//": [
            {
                "name": "orders.1", "type": "quorum", "durable": True, "auto_delete": False, "exclusive": False,
                "arguments": {"x-queue-type": "quorum"}, "effective_policy_definition": [], "messages_ready": 4,
                "messages_unacknowledged": 1, "messages": 7, "leader": "rabbit@a", "members": ["rabbit@a", "rabbit@b"],
            }
        ],
        **changes,
    }  # fmt: skip


async def test_all_that_a_plan_needs_is_read() -> None:
    async with management(pages()) as api:
        state = await read_state(api, "/")

    assert state.nodes == ("rabbit@a", "rabbit@b")
    assert state.version == (4, 3, 6)
    assert state.exchanges["orders"] == FoundExchange("x-consistent-hash")
    found = state.queues["orders.1"]
    assert found == FoundQueue(
        "quorum", {"x-queue-type": "quorum"}, True, {}, 4, 1, 2, "rabbit@a", frozenset({"rabbit@a", "rabbit@b"})
    )
    assert found.waiting == 7
    assert state.bindings["orders.lane.1"] == (FoundBinding(Destination("queue", "orders.1"), "", "~"),)
    assert state.weights("orders") == {Destination("queue", "orders.1"): 3}


async def test_a_lane_with_an_alternate_exchange_by_policy_is_no_lane() -> None:
    listed = [each | {"policy": "p"} for each in pages()["exchanges//"]]
    async with management(pages(**{"exchanges//": listed})) as api:
        state = await read_state(api, "/")

    assert "has an alternate exchange by policy 'p'" in state.lane_fault("orders.lane.1")
    assert state.weights("orders") == {Destination("exchange", "orders.lane.1"): 3}


async def test_a_queue_that_has_no_statistics_yet_has_no_count() -> None:
    (queue,) = pages()["queues//"]
    del queue["messages_ready"], queue["effective_policy_definition"]
    async with management(pages(**{"queues//": [queue]})) as api:
        assert (await read_state(api, "/")).queues["orders.1"].waiting is None


async def test_a_queue_that_ends_while_the_lists_are_read_is_no_fault() -> None:
    """Programs that make a queue for each reply would make every reading one."""
    (queue,) = pages()["queues//"]
    answers = iter([[queue, queue | {"name": "reply"}], [{"name": "orders.1"}]])

    async with management(pages(**{"queues//": lambda: next(answers)})) as api:
        state = await read_state(api, "/")

    assert state.queues.keys() == {"orders.1"}


async def test_a_queue_that_is_down_need_not_have_its_bindings_listed() -> None:
    """RabbitMQ 3 lists no binding of a classic queue whose node does not run."""
    (queue,) = pages()["queues//"]
    down = queue | {"name": "other", "type": "classic", "state": "down"}

    async with management(pages(**{"queues//": [queue, down]})) as api:
        state = await read_state(api, "/", pause=0.0)

    assert {name: found.bindings_known for name, found in state.queues.items()} == {"orders.1": True, "other": False}


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("exchanges//", "no default exchange"),
        ("bindings//", "no binding of the default exchange to queue 'orders.1'"),
    ],
)
async def test_lists_that_lack_what_is_always_there_are_read_again_and_then_not_believed(page: str, told: str) -> None:
    whole = pages()[page]
    asked: list[str] = []

    def later() -> Any:
        asked.append(page)
        return whole if len(asked) == READS else []

    async with management(pages(**{page: later})) as api:
        assert (await read_state(api, "/", pause=0.0)).exchanges.keys() >= {"orders"}
    async with management(pages(**{page: []})) as api:
        with pytest.raises(ManagementError, match=f"lists disagree: {told}"):
            await read_state(api, "/", pause=0.0)


@pytest.mark.parametrize(
    ("text", "version"),
    [("4.3.6", (4, 3, 6)), ("3.13.0-rc.1", (3, 13, 0)), ("4.2.0+1.g8", (4, 2, 0)), (f"4.{'9' * 5000}", (4, 99999))],
)
async def test_versions(text: str, version: tuple[int, ...]) -> None:
    async with management(pages(overview={"rabbitmq_version": text})) as api:
        assert (await read_state(api, "/")).version == version


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"vhosts": []}, ManagementError, "virtual host '/' does not exist, or the management user may not see it"),
        ({"vhosts": {}}, TopologyError, "vhosts: '{}' is not a list"),
        ({"queues//": None}, ManagementError, "virtual host '/' is not there any more"),
        ({"queues//": {"items": []}}, TopologyError, "queues: .* is not a list of objects"),
        ({"queues//": [{"name": 3}]}, TopologyError, "name: '3' is not a string"),
        ({"queues//": [{"name": "\ud800"}]}, ManagementError, "not an answer of the management API"),
        ({"queues//": [{"name": "q", "type": "quorum", "members": 5}]}, TopologyError, "members: '5' is not a list"),
        ({"vhosts": [{"name": "/", "cluster_state": ["rabbit@a"]}]}, TopologyError, "cluster_state: .* is not an obj"),
        ({"bindings//": [{"destination_type": "x"}]}, TopologyError, "destination_type: 'x' is not 'queue' or"),
        ({"exchanges//": [{"name": "x", "type": "fanout", "arguments": "a"}]}, TopologyError, "arguments: 'a' is not"),
        ({"overview": {}}, TopologyError, "rabbitmq_version: 'None' is not a version"),
        ({"overview": {"rabbitmq_version": "\u00b2"}}, TopologyError, "rabbitmq_version: '\u00b2' is not a version"),
    ],
)
async def test_an_answer_of_another_form_is_told(changes: Pages, kind: type[Exception], told: str) -> None:
    async with management(pages(**changes)) as api:
        with pytest.raises(kind, match=told):
            await read_state(api, "/", pause=0.0)
