"""`ring-proxy topology retire` on a real broker with real sidecars: no message is lost, none deleted."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.load import Load
from tests.integration.topology import Topology, between_looks, fleet_flags

pytestmark = pytest.mark.versions

THREE = '[[exchange]]\nname = "orders"\nshards = 3\n'
PATIENT, NOT_PATIENT = "--timeout=60", "--timeout=25"
"""How long a retirement waits. The sidecar that most tests share is one of the fleet, and reads a ring once in 15 s."""


@pytest.fixture(autouse=True)
def looks_as_the_broker_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.shards.retire.BETWEEN_LOOKS", between_looks(broker))


@pytest.fixture
def fleet(api: BrokerApi, start_sidecar: StartSidecar) -> list[str]:
    """Flags for a new sidecar, and for those that other tests have left running."""
    start_sidecar().wait_ready()
    return fleet_flags(api)


def retired(topology: Topology, *arguments: str) -> str:
    return topology.did("retire", "orders", "orders.3", "--vhost", topology.vhost.name, PATIENT, *arguments)


def refused(topology: Topology, *arguments: str, timeout: str = NOT_PATIENT) -> str:
    result = topology.run("retire", "orders", "orders.3", "--vhost", topology.vhost.name, timeout, *arguments)
    assert result.returncode == 2, result
    return result.stderr


def drained(vhost: VirtualHost, queue: str) -> list[bytes]:
    """Take everything out of a shard, whose single active consumer basic.get has nothing to do with."""
    return [message.body for message in vhost.drain(queue)]


@pytest.fixture
def direct(topology: Topology) -> Topology:
    """Three shards without lanes."""
    topology.write(THREE + "arguments = { x-single-active-consumer = false }\nlanes = false\n")
    topology.did("apply")
    return topology


@pytest.fixture
def shards(topology: Topology) -> Topology:
    """Three shards with lanes."""
    # Without single active consumer: the tests take messages out by basic.get.
    topology.write(THREE + "arguments = { x-single-active-consumer = false }\n")
    topology.did("apply")
    return topology


@pytest.mark.parametrize("kind", ["shards", pytest.param("direct", marks=pytest.mark.long)])
def test_a_shard_leaves_while_publishing_goes_on_and_nothing_is_lost(
    request: pytest.FixtureRequest, api: BrokerApi, start_sidecar: StartSidecar, kind: str
) -> None:
    shards: Topology = request.getfixturevalue(kind)
    vhost = shards.vhost
    sidecars = [start_sidecar(), start_sidecar()]
    flags = fleet_flags(api)
    loads = [Load(sidecar, "orders", vhost.name, workers=1) for sidecar in sidecars]
    taken: list[bytes] = []
    with loads[0].running(), loads[1].running():
        wait_until("messages", lambda: min(len(load.confirmed) for load in loads) > 100)
        gone = threading.Event()

        def consume() -> None:
            body = {"count": 100, "ackmode": "ack_requeue_false", "encoding": "auto"}
            path = "queues", vhost.name, "orders.3", "get"
            while not gone.is_set():
                try:
                    got = vhost.api.ask("POST", *path, body=body, missing=[])
                except AssertionError as error:
                    # The queue was deleted under this request: the answer says so, or that its process is gone (400,
                    # noproc), or is 500 with nothing.
                    said = str(error)
                    if "delete" not in said and "noproc" not in said and not said.endswith(": 500 b''"):
                        raise
                    return
                taken.extend(message["payload"].encode() for message in got)

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            told = retired(shards, *flags)
        finally:
            gone.set()
            consumer.join()
        assert all(set(sidecar.weights(vhost.name, "orders")) == {"orders.1", "orders.2"} for sidecar in sidecars)

    assert "of the keys move" in told
    first, last = {
        "shards": ("unbind orders from exchange orders.lane.3, weight 1\n", "delete exchange orders.lane.3\n"),
        "direct": ("unbind orders from queue orders.3, weight 1\n", "delete queue orders.3\n"),
    }[kind]
    assert first in told
    assert told.endswith(last)
    assert "delete queue orders.3\n" in told
    assert sorted(vhost.queues()) == ["orders.1", "orders.2"]
    found = [*taken, *drained(vhost, "orders.1"), *drained(vhost, "orders.2")]
    confirmed = sorted(key.encode() for load in loads for key in load.confirmed)
    assert not any(load.refused or load.unanswered for load in loads)
    assert sorted(found) == confirmed


@pytest.mark.long
def test_a_queue_with_messages_is_not_deleted_and_the_next_run_goes_on(shards: Topology, fleet: list[str]) -> None:
    vhost = shards.vhost
    vhost.api.ask(
        "POST", "exchanges", vhost.name, "amq.default", "publish",
        body={"properties": {}, "routing_key": "orders.3", "payload": "kept", "payload_encoding": "string"},
    )  # fmt: skip
    told = refused(shards, *fleet)

    assert "waited 25 s for the queue to be empty twice: orders.3 has 1 messages ready and 0 not acked yet" in told
    assert "run it again: it goes on from here" in told
    assert drained(vhost, "orders.3") == [b"kept"]
    assert "delete queue orders.3" in retired(shards, *fleet)


@pytest.mark.long
def test_a_refusal_in_the_middle_tells_what_was_done_and_how_to_go_on(
    api: BrokerApi, shards: Topology, fleet: list[str]
) -> None:
    user, login = f"retirer {fresh_name()}", (shards.amqp_url, shards.management_url)
    api.ask("PUT", "users", user, body={"password": "p", "tags": "monitoring"})
    shards.vhost.permit(user, ".*", "^orders.lane.*$", ".*")
    shards.login(user, "p")

    told = refused(shards, *fleet)

    assert told.splitlines() == [
        "ring-proxy: step 2 of 4, unbind orders.lane.3 from queue orders.3: the broker refused: Access refused. (the "
        "user needs read on 'orders.lane.3' and write on 'orders.3')",
        "ring-proxy: done:",
        "ring-proxy:   unbind orders from exchange orders.lane.3, weight 1",
        "ring-proxy: not done:",
        "ring-proxy:   unbind orders.lane.3 from queue orders.3",
        "ring-proxy:   delete queue orders.3",
        "ring-proxy:   delete exchange orders.lane.3",
        "ring-proxy: run it again: it goes on from here",
    ]
    shards.amqp_url, shards.management_url = login
    api.ask("DELETE", "users", user)
    assert retired(shards, *fleet).endswith("delete queue orders.3\ndelete exchange orders.lane.3\n")


def test_a_shard_whose_lane_has_lost_its_binding_leaves_nothing_on_the_ring(shards: Topology, fleet: list[str]) -> None:
    """RabbitMQ itself would give the lane its share of messages for ever, and drop them."""
    shards.vhost.unbind("orders.lane.3", "orders.3", "")
    shards.write(THREE + "arguments = { x-single-active-consumer = false }\nretiring = [3]\n")
    assert "lane 'orders.lane.3' of the retiring shard 3 leads to no queue" in shards.run("plan").stdout

    told = retired(shards, *fleet)

    assert "unbind orders from exchange orders.lane.3, weight 1\n" in told
    made = shards.made()
    assert "orders.3" not in str(made)
    assert "orders.lane.3" not in str(made)
    assert shards.did("check") == "nothing to do\n"


@pytest.mark.long
def test_a_queue_that_a_consumer_binds_again_is_not_deleted(shards: Topology, fleet: list[str]) -> None:
    vhost = shards.vhost
    vhost.api.ask(
        "POST", "exchanges", vhost.name, "amq.default", "publish",
        body={"properties": {}, "routing_key": "orders.3", "payload": "kept", "payload_encoding": "string"},
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(retired, shards, *fleet)
        wait_until("its lane to be closed", lambda: "orders.lane.3" not in str(shards.made()["bindings"]))
        vhost.bind("orders", "orders.3")
        assert drained(vhost, "orders.3") == [b"kept"]
        with pytest.raises(AssertionError, match="was bound again, by exchange 'orders', so it may get messages"):
            running.result()

    assert "orders.3" in vhost.queues()


def test_a_queue_that_was_never_of_the_exchange_is_not_deleted(shards: Topology, fleet: list[str]) -> None:
    shards.vhost.queue("invoices")

    result = shards.run("retire", "orders", "invoices", "--vhost", shards.vhost.name, NOT_PATIENT, *fleet)

    assert result.returncode == 2
    assert "exchange 'orders' is not bound to queue 'invoices', and nothing tells that it was" in result.stderr
    assert "invoices" in shards.vhost.queues()


def test_a_sidecar_that_does_not_answer_is_waited_for_and_told(shards: Topology, fleet: list[str]) -> None:
    told = refused(shards, "--sidecar=http://127.0.0.1:9", *fleet, timeout="--timeout=5")

    assert "waited 5 s for every sidecar to route by the ring without it: http://127.0.0.1:9 (" in told
    assert "orders.3" in shards.vhost.queues()


def test_with_keep_the_queue_stays(shards: Topology, fleet: list[str]) -> None:
    told = retired(shards, "--keep", *fleet)

    assert told.endswith("queue orders.3 is off the ring, and stays with its messages\n")
    assert "orders.3" in shards.vhost.queues()
    shards.write(THREE.replace("3", "2") + "arguments = { x-single-active-consumer = false }\n")
    assert shards.did("check") == "nothing to do\n"


@pytest.mark.long
def test_the_file_that_retires_a_shard_is_in_order_before_and_after(shards: Topology, fleet: list[str]) -> None:
    shards.write(THREE + "arguments = { x-single-active-consumer = false }\nretiring = [3]\n")
    assert shards.did("check") == "nothing to do\n"

    retired(shards, *fleet)

    assert shards.did("check") == "nothing to do\n"
    assert "nothing to do" in retired(shards, *fleet)


def test_the_last_shard_is_not_retired(topology: Topology) -> None:
    topology.write('[[exchange]]\nname = "orders"\nshards = [3]\n')
    topology.did("apply")
    before = topology.made()

    assert "is the only one of exchange 'orders', which would lose messages" in refused(topology)
    assert topology.made() == before


def test_a_queue_that_gets_messages_elsewhere_too_is_not_retired(shards: Topology) -> None:
    shards.vhost.bind("amq.topic", "orders.3", "#")

    assert "also gets messages from exchange 'amq.topic'; unbind that first" in refused(shards)


@pytest.fixture
def streams(topology: Topology) -> Topology:
    """Three shards that are streams, without lanes."""
    topology.write('[[exchange]]\nname = "orders"\nshards = 3\nqueue_type = "stream"\nlanes = false\n')
    topology.did("apply")
    return topology


def test_a_stream_is_not_retired(streams: Topology) -> None:
    assert "is a stream, which keeps its messages and is never empty: use --keep" in refused(streams)


@pytest.mark.long
def test_a_stream_is_kept(streams: Topology, fleet: list[str]) -> None:
    retired(streams, "--keep", *fleet)


def test_sidecars_that_cannot_be_asked_are_told_before_anything_is_changed(
    api: BrokerApi, shards: Topology, start_sidecar: StartSidecar
) -> None:
    """Both are of one host, and have admin listeners of their own ports: each of them must be named."""
    one, other = start_sidecar(), start_sidecar()
    flags = fleet_flags(api)
    wait_until("it in the API's list", lambda: other.id in str(api.ask("GET", "connections")))
    before = shards.made()

    told = refused(shards, *(flag for flag in flags if not flag.endswith(other.admin_url)))

    assert f"1 sidecars of the cluster cannot be asked: sidecar {other.id} at 127.0.0.1; asked were " in told
    assert f"{one.admin_url} (sidecar {one.id})" in told
    assert "name the admin listener of each of them: --sidecar URL" in told
    assert "nothing was changed" in told
    assert shards.made() == before


def test_without_the_tag_that_shows_the_fleet_nothing_is_changed(api: BrokerApi, shards: Topology) -> None:
    user = f"retirer {fresh_name()}"
    api.ask("PUT", "users", user, body={"password": "p", "tags": "management"})
    shards.vhost.permit(user, ".*", ".*", ".*")
    shards.login(user, "p")

    told = refused(shards)

    assert "needs the tag monitoring" in told
    api.ask("DELETE", "users", user)
