"""`ring-proxy topology apply --ordered`: another number of shards, or other weights, with each key's order kept."""

import asyncio
import itertools
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from proxy.settings.config import Settings
from proxy.shards import apply, drain, reshard
from proxy.shards.generation import DRAINED
from proxy.shards.reshard import Manner
from proxy.shards.watch import Watch
from proxy.topology.management import ManagementError
from proxy.topology.marker import MARKER
from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, fresh_name, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import consume
from tests.integration.load import publishing
from tests.integration.ordered_load import OrderedLoad
from tests.integration.sidecar import Sidecar
from tests.integration.topology import Topology, between_looks, fleet_flags
from tests.integration.wire_client import Client, port_of

COUNTED = reshard._COUNTED_WITHIN
WAITS = [f"proxy.shards.reshard.{name}" for name in ("_COUNTED_WITHIN", "_LISTED_WITHIN")]
FILE = '[[exchange]]\nname = "orders"\nshards = {}\n'


def bound(topology: Topology) -> dict[str, set[str]]:
    """Return by source the names of what is bound to it."""
    found: dict[str, set[str]] = {}
    for each in topology.made()["bindings"]:
        found.setdefault(each["source"], set()).add(each["destination"])
    return found


def queues(topology: Topology) -> set[str]:
    """Return the names of the queues of shards."""
    names = {each["name"] for each in topology.made()["queues"]}
    return {name for name in names if not name.startswith("orders.group.")}


@pytest.fixture(autouse=True)
def waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only as long as this broker takes to count."""
    for name in WAITS:
        monkeypatch.setattr(name, between_looks(broker))


@contextmanager
def stopped_after(steps: int) -> Iterator[list[int]]:
    """Have the management API go away after some steps; give how many more it would have taken."""
    left = [steps]

    def counted(do: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def take(*step: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise ManagementError("the management API is away")
            await do(*step)

        return take

    with pytest.MonkeyPatch.context() as patched:
        for do in (apply.take, drain.delete):
            patched.setattr(reshard, do.__name__, counted(do))
        yield left


def fleet(topology: Topology) -> list[str]:
    """Return the flags for a fleet that may have other tests' sidecars, or none."""
    return ["--no-sidecars", *fleet_flags(topology.vhost.api)]


def ordered(topology: Topology) -> str:
    return topology.did("apply", "--ordered", str(topology.file), *fleet(topology))


@pytest.mark.versions
def test_empty_shards_are_replaced_up_and_down(topology: Topology) -> None:
    topology.write(FILE.format(2))
    topology.did("apply")
    topology.write(FILE.format(3))
    ordered(topology)
    lanes = {f"orders.lane.g2.{n}": {f"orders.g2.{n}"} for n in (1, 2, 3)}
    assert bound(topology) == {"orders": set(lanes), **lanes}
    assert queues(topology) == {"orders.g2.1", "orders.g2.2", "orders.g2.3"}
    topology.did("check")
    assert "nothing to do" in ordered(topology)
    topology.write(FILE.format(1))
    ordered(topology)
    assert bound(topology) == {"orders": {"orders.lane.g3.1"}, "orders.lane.g3.1": {"orders.g3.1"}}
    assert queues(topology) == {"orders.g3.1"}
    topology.did("check")


def test_a_generation_is_taken_back_as_long_as_it_is_not_the_ring(topology: Topology) -> None:
    topology.write(FILE.format(2))
    topology.did("apply")
    before = topology.made()
    topology.write(FILE.format(3))
    with stopped_after(11):
        told = topology.run("apply", "--ordered", *fleet(topology), str(topology.file))
    assert told.returncode == 2
    assert "the management API is away" in told.stderr
    assert "run it again: it goes on from here" in told.stderr
    told = topology.run("status", "orders", "--vhost", topology.vhost.name)
    assert told.returncode == 1
    assert "step 1 of 4: 2 of 3 lanes are bound" in told.stdout
    assert "generation 2 is being made" in topology.run("apply").stderr
    wait_until("it is taken back", lambda: topology.run("apply", "--abort", str(topology.file)).returncode == 0)
    assert topology.made() == before
    with stopped_after(12):
        topology.run("apply", "--ordered", *fleet(topology), str(topology.file))
    assert "is the ring already" in topology.run("apply", "--abort", str(topology.file)).stderr


def test_a_change_that_stops_at_any_step_is_ended_by_the_next_run(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAITS:  # nobody publishes
        monkeypatch.setattr(name, 0.0)
    topology.write(FILE.format(2))
    topology.did("apply")
    sizes, more = itertools.cycle((3, 2)), 0
    for steps in itertools.count(0, 2):
        topology.write(FILE.format(next(sizes)))
        with stopped_after(steps) as left:
            topology.run("apply", "--ordered", *fleet(topology), str(topology.file))
        if more := max(left[0], 0):
            break
        ordered(topology)
        topology.did("check")
    assert more, steps
    (generation,) = {name.rsplit(".", 2)[1] for name in queues(topology)}
    assert bound(topology)["orders"] == {name.replace("orders.", "orders.lane.", 1) for name in queues(topology)}
    told = topology.did("status", "orders", "--vhost", topology.vhost.name)
    assert f"generation {generation[1:]} with " in told


def through(sidecar: Sidecar, vhost: str) -> str:
    return f"amqp://guest:guest@127.0.0.1:{sidecar.amqp_port}/{quote(vhost, safe='')}"


@pytest.mark.versions
@pytest.mark.parametrize("rights", [(".*", ".*", ".*"), ("", ".*", "")], ids=["members-agree", "members-unbalanced"])
def test_each_key_stays_in_order_while_its_exchange_grows_shrinks_and_gets_other_weights(
    start_sidecar: StartSidecar, topology: Topology, rights: tuple[str, str, str]
) -> None:
    topology.write(FILE.format(3) + 'groups = ["audit"]\n')
    topology.did("apply")
    topology.vhost.permit(USER, *rights)
    sidecars = [start_sidecar(groups="orders", sync_interval="3") for _ in range(2)]
    urls = [through(each, topology.vhost.name) for each in sidecars]
    told = []
    with OrderedLoad(urls, urls, keys=40, rate=100, groups=("orders", "orders/audit")) as load:
        for shards, more in ((5, ""), (2, ""), (2, "\n[[exchange.shard]]\nnumber = 1\nweight = 3\n")):
            topology.write(FILE.format(shards) + 'groups = ["audit"]\n' + more)
            begun = load.total
            told.append(ordered(topology))
            topology.did("check")
            wait_until("messages of this generation", lambda begun=begun: load.total > begun + 100)  # type: ignore[misc]
    assert not load.overtaken
    assert not load.missing
    assert queues(topology) == {f"orders{group}.g4.{n}" for n in (1, 2) for group in ("", ".audit")}
    print(*told, f"{load.total} messages, slowest confirm {load.slowest:.2f} s", sep="\n")


def test_a_change_that_would_leave_somebody_behind_is_not_begun(
    start_sidecar: StartSidecar, topology: Topology, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology.write(FILE.format(2))
    topology.did("apply")
    before = topology.made()
    topology.write(FILE.format(3))
    vhost, flags = topology.vhost, fleet(topology)

    def refused() -> str:
        told = topology.run("apply", "--ordered", str(topology.file), *flags)
        assert told.returncode == 2
        assert topology.made() == before
        return told.stderr

    vhost.permit(USER, "", r"^(orders|orders\.lane\.[0-9]+)$", "")
    assert "may write on 'orders.lane.1' and not on 'orders.lane.g2.1'" in refused()
    vhost.permit(USER, "", r"^(orders|orders\.lane\.(g[0-9]+\.)?[0-9]+)$", "")
    with client.session(port_of(topology.amqp_url), vhost.name) as wire:
        wire.channel(1)
        consume(wire, 1, "mine", "orders.2")
        wait_until("it is listed", lambda: bool(vhost.api.ask("GET", "consumers", vhost.name)))
        told = refused()
        assert "queue 'orders.2' has the consumer 'mine'" in told
        assert "--drained-by empty waits for the programs of quorum queues" in told
        wire.goodbye()
    with client.session(start_sidecar().amqp_port, vhost.name) as wire:
        told = refused()
        assert "cannot be asked" in told
        assert "nothing was changed" in told
        wire.goodbye()
    with client.session(port_of(topology.amqp_url), vhost.name) as wire:
        wire.channel(1)
        monkeypatch.setattr(WAITS[0], COUNTED)
        with publishing(wire, "orders", "key {}"):
            assert "messages were published to exchange 'orders' itself" in refused()
        wire.goodbye()


def watching(topology: Topology) -> Watch:
    """Return what `apply --watch --ordered` runs, for a fleet that may have other tests' sidecars, or none."""
    broker_url, management_url = (URL(url, encoded=True) for url in (topology.amqp_url, topology.management_url))
    settings = Settings(broker_url=broker_url, management_url=(management_url,))
    return Watch(settings, topology.file, Manner([each.admin_url for each in Sidecar.running], no_sidecars=True))


async def test_a_watch_changes_the_shards_that_its_file_changes(topology: Topology) -> None:
    topology.write(FILE.format(2))
    watch = watching(topology)
    await watch.look()
    assert (watch.fault, queues(topology)) == ("", {"orders.1", "orders.2"})
    topology.write(FILE.format(3))
    fleet_flags(topology.vhost.api)
    await watch.look()
    # It may be a lie of the management API. Meanwhile the exchange does not get a third shard without an order.
    assert watch.fault == "orders: has other shards than the file says; they change at the next look"
    assert queues(topology) == {"orders.1", "orders.2"}
    with stopped_after(9):
        await watch.look()
    assert "the management API is away" in watch.fault
    await watch.look()
    assert (watch.fault, queues(topology)) == ("", {"orders.g2.1", "orders.g2.2", "orders.g2.3"})
    await watch.look()
    assert (
        watch.registry.get_sample_value(
            "ringproxy_topology_shards", {"vhost": topology.vhost.name, "exchange": "orders"}
        )
        == 3
    )


def test_a_watch_makes_the_other_exchanges_though_one_is_refused(topology: Topology) -> None:
    topology.write(FILE.format(2))
    topology.did("apply")
    more = FILE.replace('"orders"', '"payments"').format(2)
    topology.write(
        FILE.format(4)
        + "retiring = [3]\n"
        + FILE.replace('"orders"', '"refunds"').replace("shards = {}", "shards_per_node = 1")
        + more
    )
    watch = watching(topology)
    for _ in range(2):
        asyncio.run(watch.look())
    assert "retiring: [3]: a new generation leaves shards out" in watch.fault
    assert "shards_per_node: --ordered changes a number of shards" in watch.fault
    assert queues(topology) == {"orders.1", "orders.2", "payments.1", "payments.2"}


@pytest.mark.versions
def test_the_rights_that_the_plan_names_are_enough_for_a_change_in_order(topology: Topology, api: BrokerApi) -> None:
    groups, name = 'groups = ["audit"]\n', f"topology {fresh_name()}"
    topology.write(FILE.format(2) + groups)
    topology.did("apply")
    assert topology.plan()["rights_ordered"] == []
    topology.write(FILE.format(3) + groups)
    lines = [shlex.split(line) for line in topology.plan()["rights_ordered"]]
    (rights,) = (line[5:] for line in lines if line[4] == "TOPOLOGY")
    flags = fleet(topology)
    api.ask("PUT", "users", name, body={"password": "s3cret", "tags": "monitoring"})
    try:
        topology.vhost.permit(name, *rights)
        topology.login(name, "s3cret")
        topology.did("apply", "--ordered", str(topology.file), *flags)
        topology.did("check")
    finally:
        api.ask("DELETE", "users", name)


@pytest.mark.versions
def test_markers_of_a_command_that_was_killed_are_taken_away(topology: Topology) -> None:
    topology.write(FILE.format(1))
    topology.did("apply")
    vhost = topology.vhost
    wait_until("the first shard", lambda: "orders.1" in queues(topology))
    for _ in range(3):
        properties = {"delivery_mode": 2, "headers": {MARKER: 1}}
        body = {"routing_key": "orders.1", "payload": "", "payload_encoding": "string", "properties": properties}
        assert vhost.api.ask("POST", "exchanges", vhost.name, "amq.default", "publish", body=body)["routed"]
    topology.write(FILE.format(2))
    ordered(topology)
    assert queues(topology) == {"orders.g2.1", "orders.g2.2"}


def mark(topology: Topology, queue: str, arguments: dict[str, int]) -> None:
    body = {"type": "fanout", "durable": True, "arguments": arguments}
    topology.vhost.api.ask("PUT", "exchanges", topology.vhost.name, queue, body=body)


@pytest.mark.versions
def test_a_queue_that_was_drained_before_is_deleted_as_it_is(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after nodes and the command were killed in its deletion, where no consumer can become active any more."""
    topology.write(FILE.format(2))
    topology.did("apply")
    vhost, api = topology.vhost, topology.vhost.api
    wait_until("the shards", lambda: queues(topology) == {"orders.1", "orders.2"})
    mark(topology, "orders.1", {DRAINED: 1})  # of a queue that had this name before
    mark(topology, "orders.2", {})  # of something else
    topology.write(FILE.format(1))

    async def killed(*_: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("proxy.shards.reshard.Line.drained", killed)
        told = topology.run("apply", "--ordered", str(topology.file), *fleet(topology))
    assert "killed" in told.stderr
    exchanges = {each["name"] for each in topology.made()["exchanges"]}
    assert exchanges == {"orders", "orders.2", *(f"orders.lane.{name}" for name in ("1", "2", "g2.1"))}
    mark(topology, "orders.1", {DRAINED: 1})
    body = {"routing_key": "orders.1", "payload": "", "payload_encoding": "string", "properties": {}}
    assert api.ask("POST", "exchanges", vhost.name, "amq.default", "publish", body=body)["routed"]

    async def lost(*_: Any) -> None:
        """Take the queue for one without a majority; test_broker_node_loss.py deletes a real one."""

    monkeypatch.setattr("proxy.shards.reshard._Course._is_lost", lost)
    ordered(topology)
    assert queues(topology) == {"orders.g2.1"}
    assert {each["name"] for each in topology.made()["exchanges"]} == {"orders", "orders.lane.g2.1", "orders.2"}
