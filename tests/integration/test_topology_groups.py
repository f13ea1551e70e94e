"""`ring-proxy topology` with several groups on one exchange: added and taken away under load, checked, exported."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pamqp.commands import Basic, Connection

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import consume, deliveries, numbered, publish
from tests.integration.load import meanwhile, publishing
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.topology import Topology, between_looks, fleet_flags, killed
from tests.integration.wire_client import Client

SHARDS = ["orders.1", "orders.2", "orders.3"]
FILE = '[[exchange]]\nname = "orders"\nshards = 3\narguments = { x-single-active-consumer = false }\n'
"""Without single active consumer, so that a test can empty the queues by basic.get."""
WITH_AUDIT = FILE + 'groups = ["audit"]\n'
AUDIT = [queue.replace("orders", "orders.audit") for queue in SHARDS]


@pytest.fixture(autouse=True)
def looks_as_the_broker_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.shards.retire.BETWEEN_LOOKS", between_looks(broker))


@pytest.fixture
def audited(topology: Topology) -> Topology:
    """Three shards with the group audit, which the file does not name any more."""
    topology.write(WITH_AUDIT)
    topology.did("apply")
    topology.write(FILE)
    return topology


def retiring(topology: Topology, *flags: str, timeout: str = "60") -> tuple[str, ...]:
    return ("orders", "audit", "--vhost", topology.vhost.name, "--timeout", timeout, *flags)


@contextmanager
def load(sidecar: Sidecar, client: Client, vhost: str) -> Iterator[list[int]]:
    """Publish through a sidecar all the while; give the numbers that were confirmed."""
    with client.session(sidecar.amqp_port, vhost) as wire:
        wire.channel(1)
        with publishing(wire, "orders", "key {}") as confirmed:
            yield confirmed
        wire.goodbye()


@pytest.mark.versions
def test_a_group_is_added_under_load_and_nothing_is_lost_doubled_or_moved(
    start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    topology.write(FILE)
    topology.did("apply")
    sidecar = start_sidecar(settle_time="5")
    topology.write(FILE + 'groups = ["audit"]\n')
    with load(sidecar, client, topology.vhost.name) as confirmed:
        wait_until("some messages before", lambda: len(confirmed) > 100)
        told = topology.run("plan").stdout
        assert "orders/audit: every message that is published from now on" in topology.did("apply")
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


@contextmanager
def consuming(sidecar: Sidecar, client: Client, vhost: str, group: str) -> Iterator[list[int]]:
    """Consume a group all the while; give the numbers that were acked."""
    acked: list[int] = []
    with client.pika(sidecar.amqp_port, vhost) as channel:
        messages = channel.consume(group, inactivity_timeout=0.1)

        def ack() -> None:
            method, _, body = next(messages)
            if method is not None and body is not None:
                assert method.delivery_tag is not None
                channel.basic_ack(method.delivery_tag)
                acked.append(int(body))

        with meanwhile(ack):
            yield acked


@pytest.mark.versions
def test_a_group_leaves_under_load_and_is_drained_by_its_members(
    start_sidecar: StartSidecar, audited: Topology, client: Client
) -> None:
    vhost = audited.vhost
    sidecar = start_sidecar(settle_time="5", groups="orders")
    with (
        consuming(sidecar, client, vhost.name, "orders/audit") as acked,
        load(sidecar, client, vhost.name) as confirmed,
    ):
        wait_until("some messages", lambda: min(len(acked), len(confirmed)) > 100)
        told = audited.did("retire-group", *retiring(audited)).splitlines()
        at_end = len(confirmed)
        wait_until("some messages after", lambda: len(confirmed) > at_end + 100)
    assert told[-3:] == [f"delete queue {queue}" for queue in AUDIT]
    audited.did("check")
    assert sorted(vhost.queues()) == SHARDS
    landed = vhost.drain_all()
    own = {int(each.body): queue for queue in SHARDS for each in landed[queue]}
    assert sum(len(landed[queue]) for queue in SHARDS) == len(own), "a message is there twice"
    assert own == {number: owner(SHARDS, f"key {number}") for number in confirmed}
    assert set(Counter(acked).values()) == {1}
    for queue in SHARDS:
        of_shard = [number for number in confirmed if own[number] == queue]
        copied = [number for number in acked if own[number] == queue]
        assert copied == of_shard[: len(copied)], "a message is missing before one that was copied, or out of order"


@pytest.mark.versions
def test_a_shard_leaves_under_load_and_the_members_of_each_group_drain_it(
    api: BrokerApi, start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    topology.write(WITH_AUDIT)
    topology.did("apply")
    topology.write(WITH_AUDIT + "retiring = [3]\n")
    vhost = topology.vhost
    sidecar = start_sidecar(groups="orders")
    flags = fleet_flags(api)
    with (
        consuming(sidecar, client, vhost.name, "orders") as own,
        consuming(sidecar, client, vhost.name, "orders/audit") as audit,
        load(sidecar, client, vhost.name) as confirmed,
    ):
        wait_until("some messages", lambda: min(map(len, (own, audit, confirmed))) > 30)
        told = topology.did("retire", *leaving(topology, *flags)).splitlines()
        at_end = len(confirmed)
        wait_until("some messages after", lambda: len(confirmed) > at_end + 30)
        wait_until("all of them", lambda: min(len(own), len(audit)) >= len(confirmed) - 10)
    assert [line for line in told if line.startswith(("unbind", "delete"))] == [
        "unbind orders from exchange orders.lane.3, weight 1",
        "unbind orders.lane.3 from exchange orders.fan.3",
        "delete queue orders.audit.3",
        "delete queue orders.3",
        "delete exchange orders.lane.3",
        "delete exchange orders.fan.3",
    ]
    assert topology.did("check") == "nothing to do\n"
    made = topology.made()
    assert not [each for each in (*made["exchanges"], *made["queues"]) if each["name"].endswith(".3")]
    landed = vhost.drain_all()
    for acked, queues in ((own, SHARDS), (audit, AUDIT)):
        left = [int(each.body) for queue in queues for each in landed.get(queue, [])]
        assert sorted([*acked, *left]) == confirmed


def leaving(topology: Topology, *flags: str, timeout: str = "60") -> tuple[str, ...]:
    return ("orders", "orders.3", "--vhost", topology.vhost.name, "--timeout", timeout, *flags)


@pytest.mark.long
@pytest.mark.parametrize("group", ["orders", "orders/audit"])
def test_a_shard_is_deleted_once_the_queue_of_each_group_is_empty(
    api: BrokerApi, start_sidecar: StartSidecar, topology: Topology, group: str
) -> None:
    topology.write(WITH_AUDIT)
    topology.did("apply")
    start_sidecar().wait_ready()
    flags = fleet_flags(api)
    queue = {"orders": "orders.3", "orders/audit": "orders.audit.3"}[group]
    topology.vhost.api.ask(
        "POST", "exchanges", topology.vhost.name, "amq.default", "publish",
        body={"properties": {}, "routing_key": queue, "payload": "kept", "payload_encoding": "string"},
    )  # fmt: skip
    command = ["topology", "retire", *topology.flags(), *leaving(topology, *flags)]
    assert killed(command, 3) == 3  # which are the sidecars, the keys, and the first step
    assert "orders.lane.3" not in [each["destination"] for each in topology.made()["bindings"]]

    waited = topology.run("retire", *leaving(topology, *flags, timeout="8"))

    assert waited.returncode == 2
    assert f"the queues to be empty twice: {queue} has 1 messages ready and 0 not acked yet" in waited.stderr
    assert [each.body for each in topology.vhost.drain(queue)] == [b"kept"]
    # It goes on where another run would have been killed as well, once one queue had gone.
    topology.vhost.delete_queue("orders.audit.3")
    told = topology.did("retire", *leaving(topology, *flags)).splitlines()
    assert told[-3:] == ["delete queue orders.3", "delete exchange orders.lane.3", "delete exchange orders.fan.3"]
    topology.write(WITH_AUDIT + "retiring = [3]\n")
    assert topology.did("check") == "nothing to do\n"
    exported = topology.did("export", "orders", f"--vhost={topology.vhost.name}")
    assert "shards = 2\n" in exported
    assert 'groups = ["audit"]' in exported


@pytest.mark.versions
def test_a_group_with_messages_is_taken_away_only_as_told(
    start_sidecar: StartSidecar, audited: Topology, client: Client
) -> None:
    vhost = audited.vhost
    sidecar = start_sidecar()
    publish(client, sidecar.amqp_port, vhost, numbered(range(10)))
    (told,) = audited.run("plan").stdout.split("cannot be done:\n")[1].splitlines()[:1]
    assert "group 'audit' exists and is not in the file: add it to groups, or take it away with: " in told
    assert told.endswith("ring-proxy topology retire-group orders audit")

    waited = audited.run("retire-group", *retiring(audited, timeout="2"))
    assert waited.returncode == 2
    assert "waited 2 s for the queues to be empty twice: orders.audit." in waited.stderr
    audited.did("check")
    publish(client, sidecar.amqp_port, vhost, numbered(range(10, 20)))

    dropped = audited.did("retire-group", *retiring(audited, "--drop"))
    assert dropped.splitlines() == [f"delete queue {queue}" for queue in AUDIT]
    assert audited.did("retire-group", *retiring(audited)).endswith("nothing to do\n")
    audited.did("check")
    assert sum(map(len, vhost.drain_all().values())) == 20


def test_a_group_that_is_kept_has_its_messages_when_it_is_added_again(
    start_sidecar: StartSidecar, audited: Topology, client: Client
) -> None:
    sidecar = start_sidecar()
    publish(client, sidecar.amqp_port, audited.vhost, numbered(range(10)))
    told = audited.did("retire-group", *retiring(audited, "--keep"))
    assert "get no more copies, and keep their messages" in told
    publish(client, sidecar.amqp_port, audited.vhost, numbered(range(10, 20)))
    audited.write(WITH_AUDIT)
    audited.did("apply")
    publish(client, sidecar.amqp_port, audited.vhost, numbered(range(20, 30)))
    landed = audited.vhost.drain_all()
    got = sorted(int(each.body) for queue in AUDIT for each in landed[queue])
    assert got == [*range(10), *range(20, 30)]


def test_killed_while_it_takes_a_group_away_it_goes_on(audited: Topology) -> None:
    command = ["topology", "retire-group", *audited.flags(), *retiring(audited)]
    for lines in (2, 6):
        killed(command, lines)
    if audited.run("retire-group", *retiring(audited)).returncode:
        # It was killed between an unbind and its bind.
        audited.write(WITH_AUDIT)
        audited.did("apply")
        audited.write(FILE)
        audited.did("retire-group", *retiring(audited))
    audited.did("check")
    assert sorted(audited.vhost.queues()) == SHARDS


@pytest.mark.parametrize("further", [(), ("--keep",)])
def test_ended_before_it_binds_a_lane_again_it_says_how_to_go_on(audited: Topology, further: tuple[str, ...]) -> None:
    """The lane is off the ring, and apply without the group in its file refuses."""
    (bound,) = audited.vhost.api.ask("GET", "bindings", audited.vhost.name, "e", "orders", "e", "orders.lane.1")
    path = ("bindings", audited.vhost.name, "e", "orders", "e", "orders.lane.1", bound["properties_key"])
    audited.vhost.api.ask("DELETE", *path)
    told = audited.run("retire-group", *retiring(audited, *further))
    assert told.returncode == 2
    assert "lane 'orders.lane.1' is bound to no exchange" in told.stderr
    assert "add 'audit' to groups of the topology file, apply, take it out, and run this again" in told.stderr
    audited.write(WITH_AUDIT)
    audited.did("apply")
    audited.write(FILE)
    audited.did("retire-group", *retiring(audited, *further))
    audited.did("check")


def takes(sidecar: Sidecar, client: Client, vhost: str, group: str, log: list[int], count: int) -> None:
    """Be a member of a group for so many messages, then leave with others that are not acked."""
    with client.session(sidecar.amqp_port, vhost) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, exchange=group, prefetch=20)
        for _ in range(count):
            (got,) = deliveries(wire, 1, 1)
            log.append(int(got.body))
            wire.tell(1, Basic.Ack(got.number))
        wire.tell(0, Connection.Close(200, "", 0, 0))
        while not isinstance(wire.read()[1], Connection.CloseOk):
            pass


@pytest.mark.versions
def test_each_group_is_complete_and_in_order_while_members_leave(
    start_sidecar: StartSidecar, topology: Topology, client: Client
) -> None:
    vhost = topology.vhost.name
    topology.write('[[exchange]]\nname = "orders"\nshards = 3\ngroups = ["audit"]\n')
    topology.did("apply")
    sidecars = [start_sidecar(groups="orders") for _ in range(2)]
    logs: dict[str, list[int]] = {"orders": [], "orders/audit": []}

    def comes_and_goes(group: str, sidecar: Sidecar) -> None:
        for _ in range(3):
            takes(sidecar, client, vhost, group, logs[group], 30)

    with load(sidecars[0], client, vhost) as confirmed:
        members = [threading.Thread(target=comes_and_goes, args=(each, at)) for each in logs for at in sidecars]
        for member in members:
            member.start()
        for member in members:
            member.join()
    for group, log in logs.items():
        takes(sidecars[1], client, vhost, group, log, len(confirmed) - len(log))
        assert sorted(log) == confirmed
        for queue in SHARDS:
            of_shard = [number for number in log if owner(SHARDS, f"key {number}") == queue]
            assert of_shard == sorted(of_shard)
