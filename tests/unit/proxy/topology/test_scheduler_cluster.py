"""Whose management API it is: the cluster's name, and its nodes' names where it has none."""

import asyncio
from unittest.mock import Mock

import pytest

from proxy.topology import cluster as identity_module
from proxy.topology.cluster import ASK_DISTANCE, FORMER_FOR, MOST_FORMER
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, body, status
from tests.unit.proxy.topology.scheduling import Clock, X, scheduling

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
    async with scheduling(fake) as made:
        await made.reader.identity.watch()
        assert made.reader.identity.cluster == api
        assert made.reader.identity.mismatch(broker) == (
            "" if same else f"the broker belongs to cluster {broker!r}, the management API to {api!r}"
        )


@pytest.mark.parametrize("answer", [{}, [1], [{"name": "/", "cluster_state": []}]])
async def test_nodes_that_cannot_be_read_leave_the_name_unread(
    fake: FakeManagement, clock: Clock, answer: object
) -> None:
    fake.fail(body(answer), "/api/vhosts")
    async with scheduling(fake) as made:
        await made.reader.identity.watch()
        assert made.reader.identity.cluster is None
        assert made.reader.identity.unreachable


async def test_another_cluster_s_name_is_told(fake: FakeManagement, clock: Clock) -> None:
    fake.exchange("x", binding("a"))
    async with scheduling(fake) as made:
        changed = Mock()
        made.router.on_change.append(changed)
        await made.scheduler.look_up(X, 10)
        assert changed.call_count == 2
        await made.reader.identity.watch()
        assert changed.call_count == 2
        fake.fail(body({"name": "other"}), "/api/cluster-name")
        await made.reader.identity.watch()
        assert changed.call_count == 3
        fake.fail(status(500), "/api/cluster-name")
        await made.reader.identity.watch()
        assert (changed.call_count, made.reader.identity.cluster) == (3, "other")


class Cluster:
    """A cluster as its management API shows it, whose name and nodes a test changes."""

    def __init__(self, fake: FakeManagement) -> None:
        self._fake = fake

    def is_now(self, name: str, *nodes: str) -> None:
        self._fake.faults.clear()
        self._fake.fail(body({"name": name}), "/api/cluster-name")
        self._fake.fail(body([{"name": "/", "cluster_state": dict.fromkeys(nodes, "running")}]), "/api/vhosts")


@pytest.fixture
def cluster(fake: FakeManagement) -> Cluster:
    return Cluster(fake)


def hours(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of identity.py, which only the test moves."""
    clock = Clock()
    monkeypatch.setattr(identity_module, "time", clock)
    return clock


async def test_a_renamed_cluster_is_the_same_for_connections_of_before(
    fake: FakeManagement, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = hours(monkeypatch)
    async with scheduling(fake) as made:
        identity = made.reader.identity
        cluster.is_now("rabbit@one", "rabbit@one", "rabbit@two")
        await identity.ask()
        told = clock.now
        clock.now += 100
        await identity.ask()
        cluster.is_now("orders", "rabbit@two", "rabbit@three")
        await identity.ask()
        for name in ("rabbit@one", "rabbit@two", "orders"):
            assert identity.mismatch(name, told) == ""
            assert await identity.confirmed(name, told, 10) == "orders"
        assert identity.mismatch("other", told)
        assert identity.is_same("orders", "rabbit@one")
        assert not identity.is_same("rabbit@one", "orders")
        assert not identity.is_same("orders", "other")
        # Renamed twice, and back.
        cluster.is_now("goods", "rabbit@two")
        await identity.ask()
        assert await identity.confirmed("rabbit@two", told, 10) == "goods"
        cluster.is_now("orders", "rabbit@two")
        await identity.ask()
        assert await identity.confirmed("goods", told, 10) == "orders"
        assert identity.mismatch("orders") == ""


async def test_a_name_that_was_given_up_is_anothers_for_connections_of_later(
    fake: FakeManagement, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = hours(monkeypatch)
    async with scheduling(fake) as made:
        identity = made.reader.identity
        cluster.is_now("orders", "rabbit@one")
        await identity.ask()
        clock.now += 100
        await identity.ask()
        last = clock.now
        clock.now += 10
        cluster.is_now("old-orders", "rabbit@one")
        await identity.ask()
        assert await identity.confirmed("orders", last + 1, 10) == "old-orders"
        assert await identity.confirmed("orders", last + FORMER_FOR + 1, 10) is None
        assert identity.mismatch("orders")


async def test_the_names_of_another_cluster_s_api_do_not_count(
    fake: FakeManagement, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It has other nodes: the management URL leads elsewhere."""
    async with scheduling(fake) as made:
        identity = made.reader.identity
        cluster.is_now("blue", "rabbit@one")
        await identity.ask()
        cluster.is_now("green", "rabbit@two")
        await identity.ask()
        assert await identity.confirmed("blue", 0.0, 10) is None
        assert "which is another one" in caplog.text


async def test_a_broker_that_was_renamed_before_the_api_was_asked_is_asked_for_once(
    fake: FakeManagement, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = hours(monkeypatch)
    async with scheduling(fake) as made:
        identity = made.reader.identity
        cluster.is_now("before", "rabbit@one")
        await identity.ask()
        cluster.is_now("after", "rabbit@one")
        # Not at once after another question, which any number of connections could ask for.
        assert await identity.confirmed("after", clock.now, 0.01) is None
        clock.now += ASK_DISTANCE
        assert await identity.confirmed("after", clock.now, 10) == "after"
        asked = fake.count("/cluster-name")
        clock.now += 100
        assert await identity.confirmed("never", clock.now - 101, 10) is None
        assert fake.count("/cluster-name") == asked
        # One that does not answer is not waited for again at once.
        fake.fail(status(503), "/api/cluster-name")
        for _ in range(3):
            assert await identity.confirmed("never", clock.now, 10) is None
        assert fake.count("/cluster-name") == asked + 1


async def test_questions_at_one_time_are_one(fake: FakeManagement) -> None:
    gate = Gate(fake)
    fake.fail(gate, "/api/cluster-name")
    async with scheduling(fake) as made:
        identity = made.reader.identity
        tasks = [asyncio.create_task(identity.ask()) for _ in range(5)]
        await eventually(lambda: gate.waiting == 1)
        gate.open()
        await asyncio.gather(*tasks)
        # One began before the others had asked.
        assert fake.count("/cluster-name") <= 2


async def test_former_names_have_a_limit(fake: FakeManagement, cluster: Cluster) -> None:
    async with scheduling(fake) as made:
        for n in range(MOST_FORMER + 10):
            cluster.is_now(f"c{n}", "rabbit@one")
            await made.reader.identity.ask()
        assert len(made.reader.identity._former) == MOST_FORMER
        assert made.reader.identity.mismatch("c0", 0.0)
        assert not made.reader.identity.mismatch(f"c{MOST_FORMER}", 0.0)
