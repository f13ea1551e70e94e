"""The cut-over share by share: the same keys on two sidecars, and what a raise does to publishers and consumers."""

import itertools
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from pamqp.commands import Basic

from ring.hashing import slot_of
from ring.share import rank_of, slots_in
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, landed, queues_of, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import consume, deliveries, numbered, publish, sharded
from tests.integration.load import meanwhile
from tests.integration.rings import LEFT, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.test_reload import SettingsFile
from tests.integration.wire_client import Client, port_of

KEYS = [f"customer-{n}" for n in range(60)]
LANED = [f"laned.{queue}" for queue in QUEUES]
HASHED = [f"hashed.{queue}" for queue in QUEUES]
OWNERS = {"orders": QUEUES, "laned": LANED, "hashed": HASHED}

Places = dict[tuple[str, str], str]
"""By exchange and key, or hashed value, the queue that got the message."""


class Fleet:
    """Two sidecars, each with a settings file of its own."""

    def __init__(self, start: StartSidecar, folder: Path) -> None:
        self.files = [SettingsFile(folder / f"{n}.toml", route_share=0) for n in range(2)]
        patience = {"lookup_timeout": "25", "management_timeout": "25", "sync_interval": "600"}
        self.sidecars = [start(config=str(file.path), **patience) for file in self.files]

    def share(self, percent: float) -> None:
        for sidecar, file in zip(self.sidecars, self.files, strict=True):
            file.reload(sidecar, route_share=percent)


@pytest.fixture
def fleet(start_sidecar: StartSidecar, tmp_path: Path) -> Fleet:
    return Fleet(start_sidecar, tmp_path)


@pytest.fixture
def rings(vhost: VirtualHost) -> VirtualHost:
    """A virtual host with three hash exchanges: to queues, through lanes, and by a header."""
    vhost.ring("orders", QUEUES)
    vhost.exchange("laned")
    vhost.lanes("laned", LANED)
    vhost.ring("hashed", HASHED, **{"hash-header": "customer"})
    return vhost


def follows(key: str, percent: float) -> bool:
    """Return whether a key is in a share, computed without the proxy."""
    return rank_of(slot_of(key.encode())) < slots_in(percent)


def over_amqp(client: Client, port: int, vhost: VirtualHost) -> Places:
    """Publish a message of each key to each exchange; return where they went."""
    with client.session(port, vhost.name) as peer:
        peer.channel(1)
        for exchange, key in itertools.product(OWNERS, KEYS):
            # An exchange that hashes the header gets the same routing key for all.
            properties = Basic.Properties(headers={"customer": key})
            routing_key = "same" if exchange == "hashed" else key
            peer.publish(1, exchange, routing_key, f"{exchange}|{key}".encode(), properties, mandatory=True)
        peer.confirm(1, len(OWNERS) * len(KEYS))
    return {tuple(body.split("|")): queue for body, queue in queues_of(vhost).items()}  # type: ignore[misc]


def right(native: Places, percent: float) -> Places:
    """Return where keys belong by a share."""
    return {
        (exchange, key): owner(OWNERS[exchange], key) if follows(key, percent) else native[exchange, key]
        for exchange, key in native
    }


def test_both_sidecars_have_the_same_keys_in_each_share(
    fleet: Fleet, rings: VirtualHost, broker: Broker, client: Client
) -> None:
    native = over_amqp(client, port_of(broker.amqp_url), rings)
    shares = {0: 0, 10: 0, 37.5: 0, 100: 0}
    for percent in shares:
        fleet.share(percent)
        for sidecar in fleet.sidecars:
            assert over_amqp(client, sidecar.amqp_port, rings) == right(native, percent), percent
        shares[percent] = sum(place != native[pair] for pair, place in right(native, percent).items())
    # Some keys have the same queue both ways.
    assert shares[0] == 0 < shares[10] < shares[37.5] < shares[100]


def test_all_that_tells_of_a_key_tells_the_truth(fleet: Fleet, rings: VirtualHost) -> None:
    one, _ = fleet.sidecars
    fleet.share(25)
    for key in KEYS:
        told = one.publish("orders", key, vhost=rings.name).receipt()
        asked = one.route("orders", key, vhost=rings.name).json
        (shown,) = (one.admin(f"/rings/{quote(rings.name, safe='')}/orders?key={key}").json["key"],)
        ring_owner = owner(QUEUES, key)
        if follows(key, 25):
            assert (told["outcome"], told["destination"]["name"]) == ("confirmed", ring_owner)
            assert asked["destination"]["name"] == ring_owner
            assert (shown["owner"]["name"], shown["passed"]) == (ring_owner, None)
        else:
            assert told == {"outcome": "passed", "exchange": "orders", "reason": "share"}
            assert (asked["outcome"], asked["reason"]) == ("passed", "share")
            assert asked["would_be"]["destination"]["name"] == ring_owner
            assert (shown["owner"]["name"], shown["passed"]) == (ring_owner, "share")
    inside = sum(follows(key, 25) for key in KEYS)
    of = {"exchange": "orders"}
    assert one.metric("ringproxy_publishes_total", ingress="http", outcome="confirmed", **of) == inside
    assert one.metric("ringproxy_passed_total", reason="share", **of) == len(KEYS) - inside
    assert one.metric("ringproxy_ring_routed", **of) == 0.25
    would = sum(one.metric("ringproxy_shadowed_total", destination=queue, **of) for queue in QUEUES)
    assert would == len(KEYS) - inside
    assert one.ring(rings.name, "orders")["route_share"] == 25
    rings.drain_all()


class Publisher:
    """Publishes numbered messages of all keys in turn to all exchanges, one at a time, until each is confirmed."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def next(self) -> tuple[str, str, bytes]:
        """Return exchange, key and body of the next message."""
        exchange, key = ("orders", "laned")[self.count % 2], KEYS[self.count // 2 % len(KEYS)]
        self.count += 1
        return exchange, key, f"{self.name}|{exchange}|{key}|{self.count}".encode()

    def wait_for_all_keys(self) -> None:
        """Return once a message of each key was published to each exchange from now on."""
        goal = self.count + 2 * len(KEYS) + 1
        wait_until("all keys", lambda: self.count >= goal)


@pytest.mark.parametrize("steps", [(5, 20, 50, 100), (50, 10, 0)], ids=["raised", "lowered"])
def test_each_key_moves_once_under_load_and_nothing_is_lost(
    steps: tuple[float, ...], fleet: Fleet, rings: VirtualHost, broker: Broker, client: Client
) -> None:
    native = over_amqp(client, port_of(broker.amqp_url), rings)
    if steps[0] > steps[-1]:
        fleet.share(100)
    publishers = [Publisher(name) for name in ("amqp", "other", "http")]
    amqp, other, http = publishers
    with ExitStack() as stack:
        for publisher, sidecar in zip((amqp, other), fleet.sidecars, strict=True):
            peer = stack.enter_context(client.session(sidecar.amqp_port, rings.name))
            peer.channel(1)

            def publish_one(publisher: Publisher = publisher, peer=peer) -> None:  # type: ignore[no-untyped-def]
                exchange, key, body = publisher.next()
                peer.publish(1, exchange, key, body, mandatory=True)
                peer.confirm(1, publisher.count, publisher.count - 1)

            stack.enter_context(meanwhile(publish_one))

        def publish_over_http() -> None:
            exchange, key, body = http.next()
            fleet.sidecars[1].publish(exchange, key, body, vhost=rings.name).receipt()

        stack.enter_context(meanwhile(publish_over_http))
        for percent in steps:
            for publisher in publishers:
                publisher.wait_for_all_keys()
            fleet.share(percent)
        for publisher in publishers:
            publisher.wait_for_all_keys()
    found: dict[tuple[str, str, str], dict[int, bool]] = {}
    for body, (queue, message) in landed(rings).items():
        name, exchange, key, number = body.split("|")
        is_routed = message.exchange != exchange
        assert queue == (owner(OWNERS[exchange], key) if is_routed else native[exchange, key])
        found.setdefault((name, exchange, key), {})[int(number)] = is_routed
    assert sum(map(len, found.values())) == sum(publisher.count for publisher in publishers)
    ends_routed = steps[-1] == 100
    for of, ways in found.items():
        ordered = [ways[number] for number in sorted(ways)]
        assert ordered == sorted(ordered, reverse=not ends_routed), of
        assert ordered[-1] is ends_routed or (0 < steps[-1] < 100), of
    # Keys moved at each step, and not all at one.
    assert len({tuple(ways.values()).count(True) for ways in found.values()}) > 2


def test_a_queue_that_has_gone_sends_no_key_into_another_share(
    fleet: Fleet, rings: VirtualHost, broker: Broker, client: Client
) -> None:
    fleet.share(50)
    one = fleet.sidecars[0]
    over_amqp(client, one.amqp_port, rings)
    # The sidecar learns of it by a message that comes back.
    rings.delete_queue("q2")

    def orders(port: int) -> dict[str, str]:
        with client.session(port, rings.name) as peer:
            peer.channel(1)
            for key in KEYS:
                peer.publish(1, "orders", key, key.encode(), mandatory=True)
            peer.confirm(1, len(KEYS))
        return queues_of(rings)

    went = orders(one.amqp_port)
    native = orders(port_of(broker.amqp_url))
    assert went == {key: owner(LEFT, key) if follows(key, 50) else native[key] for key in KEYS}
    assert one.metric("ringproxy_rerouted_total", ingress="amqp", exchange="orders") > 0


def test_members_of_a_group_get_the_messages_of_both_ways(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """Each key's of one shard, in order, and in series one at a time."""
    sharded(vhost, lanes=True)
    sidecar: Sidecar = start_sidecar(route_share="50", groups="orders", groups_in_series="orders")
    with client.session(sidecar.amqp_port, vhost.name) as member:
        member.channel(1, confirm=False)
        consume(member, 1, prefetch=1000)
        # Two messages of each key.
        publish(client, sidecar.amqp_port, vhost, [(e, KEYS[int(b) % 30], b) for e, _, b in numbered(range(60))])
        first = deliveries(member, 1, 30)
        assert sorted(int(each.body) for each in first) == list(range(30))
        for each in first:
            member.tell(1, Basic.Ack(each.number))
        second = deliveries(member, 1, 30)
        assert sorted(int(each.body) for each in second) == list(range(30, 60))
        for each in second:
            member.tell(1, Basic.Ack(each.number))
    inside = sum(follows(key, 50) for key in KEYS[:30])
    assert 0 < inside < 30
    assert sidecar.metric("ringproxy_passed_total", exchange="orders", reason="share") == 2 * (30 - inside)
