"""Several URLs of one management API: which is asked, and which of them is believed."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from proxy.topology.management import Management, ManagementError
from tests.unit.proxy.fake_management import FakeManagement, Gate, binding, body, serving, silent, status
from tests.unit.proxy.topology.scheduling import A, B, Clock, X, scheduling, warnings

NODES = [{"name": "/", "cluster_state": {"rabbit@one": "running", "rabbit@two": "running"}}]


@pytest.fixture
async def other() -> AsyncIterator[FakeManagement]:
    """A second node; of the same cluster as the first, unless told otherwise."""
    async with serving(FakeManagement()) as made:
        yield made


async def test_a_node_that_hangs_costs_one_time_out_and_not_one_a_request(
    fake: FakeManagement, other: FakeManagement
) -> None:
    fake.fail(silent)
    async with Management([fake.url, other.url], timeout=0.2) as api:
        for _ in range(20):
            assert await api.vhosts() == {"/"}
    assert (len(fake.requests), len(other.requests)) == (1, 20)


@pytest.mark.parametrize("fault", [status(500), status(503), silent])
async def test_another_node_answers_what_the_first_does_not(
    fake: FakeManagement, other: FakeManagement, caplog: pytest.LogCaptureFixture, fault: object
) -> None:
    caplog.set_level(logging.INFO)
    async with Management([fake.url, other.url], timeout=0.3) as api:
        assert await api.cluster_name() == "rabbit@fake"
        assert other.requests == []
        fake.fail(fault)  # type: ignore[arg-type]
        assert await api.vhosts() == {"/"}
        # Its cluster was asked for before its answer counted.
        assert other.requests == ["/api/cluster-name", "/api/vhosts", "/api/vhosts"]
        assert api.switches == 1
        fake.mend()
        assert await api.vhosts() == {"/"}
        assert len(other.requests) == 4, "the one that answered last is asked first"
    (told,) = warnings(caplog)
    assert told.startswith(
        f"management_url: 127.0.0.1:{other.url.port} is asked from now on; 127.0.0.1:{fake.url.port}: "
    )
    assert "hush" not in caplog.text


@pytest.mark.parametrize("code", [401, 403, 404, 429])
async def test_an_answer_is_an_answer_also_where_it_refuses(
    fake: FakeManagement, other: FakeManagement, code: int
) -> None:
    fake.fail(status(code))
    async with Management([fake.url, other.url], timeout=10) as api:
        with pytest.raises(ManagementError, match=str(code)):
            await api.vhosts()
    assert other.requests == []


async def test_where_no_node_answers_each_is_named_with_its_fault(fake: FakeManagement, other: FakeManagement) -> None:
    fake.fail(status(503, headers={"Retry-After": "7"}))
    other.fail(status(500, headers={"Retry-After": "3"}))
    async with Management([fake.url, other.url], timeout=10) as api:
        for _ in range(2):
            with pytest.raises(ManagementError) as raised:
                await api.vhosts()
            # In the setting's order, so that the log tells an unchanged fault once.
            assert str(raised.value) == (
                f"/api/vhosts: none of 2 nodes answers: 127.0.0.1:{fake.url.port}: 503; 127.0.0.1:{other.url.port}: 500"
            )
            assert raised.value.retry_after == 3.0


async def test_a_node_of_another_cluster_is_never_believed(
    fake: FakeManagement, other: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fake.exchange("x", binding("a"))
    other.exchange("x", binding("b"))
    other.fail(body({"name": "elsewhere"}), "/api/cluster-name")
    other.fail(body([{"name": "/", "cluster_state": {"rabbit@elsewhere": "running"}}]), "/api/vhosts")
    async with scheduling(fake, others=(other,)) as made:
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {A: 1}
        fake.fail(status(503))
        for _ in range(3):
            await made.scheduler.read_again(X, "test", {A})
            await made.scheduler._again(X)
            await made.reader.identity.watch()
        assert (made.weights(), made.reader.identity.cluster) == ({A: 1}, "rabbit@fake")
        assert "belongs to cluster 'elsewhere'" in made.scheduler.faults[X]
        assert "belongs to cluster 'elsewhere'" in made.reader.identity.unreachable
        fake.mend()
        await made.scheduler._again(X)
        assert made.scheduler.faults == {}
    assert "/api/exchanges/%2F/x" not in other.requests
    said = [line for line in warnings(caplog) if "is not asked" in line]
    assert said == [
        f"management_url: 127.0.0.1:{other.url.port} is not asked: "
        "it belongs to cluster 'elsewhere', and the node that answered before to 'rabbit@fake'"
    ]


async def test_a_cluster_that_was_renamed_meanwhile_is_known_by_its_nodes(
    fake: FakeManagement, other: FakeManagement, clock: Clock
) -> None:
    for node in (fake, other):
        node.exchange("x", binding("a"))
        node.fail(body(NODES), "/api/vhosts")
    other.fail(body({"name": "orders"}), "/api/cluster-name")
    async with scheduling(fake, others=(other,)) as made:
        await made.scheduler.look_up(X, 10)
        fake.fail(status(503))
        other.exchange("x", binding("a"), binding("b"))
        await made.scheduler._again(X)
        assert made.weights() == {A: 1, B: 1}


async def test_a_name_and_the_nodes_of_two_clusters_are_never_taken_for_one(
    fake: FakeManagement, other: FakeManagement, clock: Clock
) -> None:
    """The first node goes between the two requests of the first question of all."""
    gate = Gate(fake)
    fake.fail(gate, "/api/vhosts")
    other.fail(body({"name": "elsewhere"}), "/api/cluster-name")
    async with scheduling(fake, others=(other,)) as made:
        asking = asyncio.create_task(made.reader.identity.watch())
        async with asyncio.timeout(10):
            while not gate.waiting:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.005)
        fake.fail(status(503))
        for transport in list(fake.transports):
            transport.close()
        await asking
        assert made.reader.identity.cluster is None
        assert "another node of management_url answers now" in made.reader.identity.unreachable
        await made.reader.identity.watch()
        assert made.reader.identity.cluster == "elsewhere"
