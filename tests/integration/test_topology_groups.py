"""`ring-proxy topology` with several groups on one exchange: added under load, checked, exported, refused."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.broker_api import wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.topology import Topology
from tests.integration.wire_client import Client

SHARDS = ["orders.1", "orders.2", "orders.3"]
FILE = '[[exchange]]\nname = "orders"\nshards = 3\narguments = { x-single-active-consumer = false }\n'
"""Without single active consumer, so that a test can empty the queues by basic.get."""


@contextmanager
def publishing(sidecar: Sidecar, client: Client, vhost: str) -> Iterator[list[int]]:
    """Publish through a sidecar all the while; give the numbers that were confirmed."""
    confirmed: list[int] = []
    over = threading.Event()

    def publish() -> None:
        number = 0
        with client.session(sidecar.amqp_port, vhost) as wire:
            wire.channel(1)
            while not over.is_set():
                wire.publish(1, "orders", f"key {number}", b"%d" % number)
                wire.confirm(1, number + 1, number)
                confirmed.append(number)
                number += 1
            wire.goodbye()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield confirmed
    finally:
        over.set()
        thread.join()


@pytest.mark.versions
def test_a_group_is_added_under_load_and_nothing_is_lost_doubled_or_moved(
    start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    topology.write(FILE)
    topology.did("apply")
    sidecar = start_sidecar(settle_time="5")
    topology.write(FILE + 'groups = ["audit"]\n')
    with publishing(sidecar, client, topology.vhost.name) as confirmed:
        wait_until("some messages before", lambda: len(confirmed) > 100)
        told = topology.run("plan").stdout
        topology.did("apply")
        complete_from = len(confirmed) + 1  # one may be under way
        wait_until("some messages after", lambda: len(confirmed) > complete_from + 100)
    assert "no key moves" in told
    assert topology.plan()["steps"] == 0
    topology.did("check")
    landed = topology.vhost.drain_all()
    own = {int(each.body): queue for queue in SHARDS for each in landed[queue]}
    assert sum(len(landed[queue]) for queue in SHARDS) == len(own), "a message is there twice"
    assert own == {number: owner(SHARDS, f"key {number}") for number in confirmed}
    audit = Counter(int(each.body) for queue in SHARDS for each in landed[queue.replace("orders", "orders.audit")])
    assert set(audit.values()) == {1}
    for queue in SHARDS:
        of_shard = [number for number in confirmed if own[number] == queue]
        copied = [number for number in of_shard if number in audit]
        assert copied == of_shard[-len(copied) :], "a message is missing behind one that was copied"
    assert {number for number in confirmed if number >= complete_from} <= audit.keys()


@pytest.mark.versions
def test_a_queue_of_a_group_that_is_deleted_is_told_and_made_again(topology: Topology) -> None:
    topology.write(FILE + 'groups = ["audit"]\n')
    topology.did("apply")
    topology.vhost.delete_queue("orders.audit.2")
    found = topology.run("check")
    assert found.returncode == 1
    assert "declare queue orders.audit.2" in found.stdout
    topology.did("apply")
    topology.did("check")


@pytest.mark.versions
def test_what_is_exported_has_the_groups(topology: Topology) -> None:
    topology.write(FILE + 'groups = ["audit", "billing"]\n')
    topology.did("apply")
    text = topology.did("export", "orders", f"--vhost={topology.vhost.name}")
    assert 'groups = ["audit", "billing"]' in text


def test_killed_after_any_step_and_run_again_it_ends_the_same(topology: Topology) -> None:
    topology.write(FILE)
    topology.did("apply")
    topology.write(FILE + 'groups = ["audit"]\n')
    steps = topology.plan()["steps"]
    lines = 0
    while topology.killed("apply", 3) == 3:
        lines += 3
        assert lines < 2 * steps
    topology.did("apply")
    topology.did("check")
