"""Whose management API it is: the cluster's name, and its nodes' names where it has none."""

from unittest.mock import Mock

import pytest

from tests.unit.proxy.fake_management import FakeManagement, binding, body, status
from tests.unit.proxy.syncing import Clock, X, syncing

NODES = [
    {"name": "/", "cluster_state": {"rabbit@one": "running", "rabbit@two": "running", "hare@localhost": "stopped"}},
    {"name": "/b", "cluster_state": {"rabbit@four.in.full": "running"}},
    {"name": "/c"},
]


@pytest.mark.parametrize(
    ("api", "broker", "same"),
    [
        ("rabbit@one.example", "rabbit@one.example", True),
        ("rabbit@one.example", "rabbit@two.example", True),
        ("rabbit@one", "rabbit@two", True),
        ("rabbit@one.example", "hare@one.example", True),
        ("rabbit@one.example", "hare@two.example", False),
        ("rabbit@one.example", "rabbit@two.elsewhere", False),
        ("rabbit@four.in.full", "rabbit@four.in.full", True),
        ("rabbit@four.in.full", "rabbit@four.in.part", False),
        ("rabbit@one.example", "rabbit@three.example", False),
        ("rabbit@one.example", "hamster@two.example", False),
        ("rabbit@one.example", "rabbit@two-and-more", False),
        ("rabbit@one.example", "orders", False),
        ("rabbit@elsewhere", "rabbit@one.example", False),
        ("orders", "rabbit@one.example", False),
        ("orders@home", "rabbit@one.example", False),
    ],
)
async def test_nodes_of_a_cluster_without_a_name_are_one_cluster(
    fake: FakeManagement, clock: Clock, api: str, broker: str, same: bool
) -> None:
    """Each gives it a name of its own then."""
    fake.fail(body({"name": api}), "/api/cluster-name")
    fake.fail(body(NODES), "/api/vhosts")
    async with syncing(fake) as made:
        await made.sync.identity.watch()
        assert made.sync.identity.cluster == api
        assert made.sync.identity.mismatch(broker) == (
            "" if same else f"the broker is of cluster {broker!r}, the management API of {api!r}"
        )


@pytest.mark.parametrize("answer", [{}, [1], [{"name": "/", "cluster_state": []}]])
async def test_nodes_that_cannot_be_read_leave_the_name_unread(
    fake: FakeManagement, clock: Clock, answer: object
) -> None:
    fake.fail(body(answer), "/api/vhosts")
    async with syncing(fake) as made:
        await made.sync.identity.watch()
        assert made.sync.identity.cluster is None
        assert made.sync.identity.unreachable


async def test_another_cluster_s_name_is_told(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with syncing(fake) as made:
        changed = Mock()
        made.router.on_change.append(changed)
        await made.sync.look_up(X, 10)
        assert changed.call_count == 2
        await made.sync.identity.watch()
        assert changed.call_count == 2
        fake.fail(body({"name": "other"}), "/api/cluster-name")
        await made.sync.identity.watch()
        assert changed.call_count == 3
        fake.fail(status(500), "/api/cluster-name")
        await made.sync.identity.watch()
        assert (changed.call_count, made.sync.identity.cluster) == (3, "other")
