"""The migration, as its document has it: from publishers at the broker to a fleet that routes, and back."""

import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ring.hashing import slot_of
from ring.share import rank_of, slots_in
from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.conftest import USER, Login, StartSidecar, with_login
from tests.integration.documents import Document, Shell, parsed, tried, variables
from tests.integration.native import publish_counted
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of

pytestmark = pytest.mark.versions

MIGRATION = Document("docs/how-to/migrate.md")
SETTINGS = Document("docs/how-to/migrate.md", "toml")
PRINTED = Document("docs/how-to/migrate.md", "text")
QUEUES = ["orders.1", "orders.2", "orders.3"]
KEYS = [f"customer-{n}" for n in range(40)]

Placed = dict[str, str]
"""The queue in which each key's message was found."""


def test_every_command_is_tried_here() -> None:
    assert tried(MIGRATION, "MIGRATION", __file__)
    assert tried(SETTINGS, "SETTINGS", __file__)


@pytest.fixture
def shop(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield the virtual host of the document's commands, under a name of its own.

    In one named `shop`, RabbitMQ may count publishes of an earlier test, whose exchange had the same name.
    """
    made = VirtualHost(api, fresh_name("shop"), [USER])
    made.ring("orders", QUEUES)
    yield made
    made.delete()


def renamed(shop: VirtualHost, blocks: Iterable[str]) -> list[str]:
    """Return the document's blocks with the name that its virtual host has here."""
    return [re.sub(r"\bshop\b", shop.name, block) for block in blocks]


class Fleet:
    """Two sidecars of the same file of settings, in addition to what every test's have."""

    def __init__(self, start: StartSidecar, folder: Path) -> None:
        self._start, self.file = start, folder / "ringproxy.toml"
        self.sidecars: list[Sidecar] = []

    def restart(self, settings: str) -> list[Sidecar]:
        for sidecar in self.sidecars:
            sidecar.stop()
        self.file.write_text(settings)
        self.sidecars = [self._start(config=str(self.file)) for _ in range(2)]
        for sidecar in self.sidecars:
            sidecar.wait_ready()
        return self.sidecars


def placed(shop: VirtualHost) -> Placed:
    return {m.body.decode(): queue for queue, messages in shop.drain_all().items() for m in messages}


def through(client: Client, port: int, shop: VirtualHost, *, counted: bool = True) -> Placed:
    """Where each key of an AMQP publisher lands; the queues are empty afterwards.

    `counted`: they come into the exchange, natively or passed.
    """
    if counted:
        publish_counted(client, port, shop, "orders", KEYS)
        return placed(shop)
    with client.session(port, shop.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, len(KEYS))
        peer.goodbye()
    return placed(shop)


def test_from_native_to_routed_and_back(
    start_sidecar: StartSidecar, shop: VirtualHost, client: Client, broker: Broker, tmp_path: Path
) -> None:
    fleet = Fleet(start_sidecar, tmp_path)
    explain, *_ = renamed(shop, MIGRATION["Shadow"])
    look_at_connections, count = renamed(shop, MIGRATION["All publishers"])
    (look_at_queues,) = renamed(shop, MIGRATION["Cut-over"])
    (done,) = renamed(shop, MIGRATION["See that it is done"])
    (shadow,), (route,) = renamed(shop, SETTINGS["Shadow"]), renamed(shop, SETTINGS["Cut-over"])

    native = through(client, port_of(broker.amqp_url), shop)
    assert native.keys() == set(KEYS)

    # Shadow: all lands where it did, and it is known where it would.
    one, other = fleet.restart(shadow)
    for sidecar in (one, other):
        assert through(client, sidecar.amqp_port, shop) == native
    shell = Shell(variables(broker, one, other))
    told = shell(explain)
    assert "mode shadow" in told
    would = owner(QUEUES, "customer-4711")
    assert f"owner        queue {would}" in told
    assert '"passed": "shadow"' in told
    for empty in ("ignored_bindings", "duplicate_bindings", "dead_letter_queues"):
        assert f'"{empty}": []' in told
    shadowed = re.findall(r'^ringproxy_shadowed_total{destination="(.+?)",.*} (.+)$', told, flags=re.M)
    assert {queue: float(n) for queue, n in shadowed} == {
        queue: sum(owner(QUEUES, key) == queue for key in KEYS) for queue in QUEUES
    }

    # All publishers: the broker counts one more than the sidecars passed for each that is not there yet.
    def grown() -> float:
        """Publishes that the broker counts beyond the passes of all, those before the migration left out."""
        looks = [Shell(variables(broker, sidecar))(count) for sidecar in fleet.sidecars]
        publish_in = max(figure(look, "exchange_publish_in") for look in looks)
        return publish_in - len(KEYS) - sum(figure(look, "passed") for look in looks)

    wait_until("no native publishes", lambda: grown() == 0)
    port = port_of(broker.amqp_url)
    with client.session(one.amqp_port, shop.name), client.session(port, shop.name):
        wait_until("the connection without a sidecar", lambda: f"-> 127.0.0.1:{port}\n" in shell(look_at_connections))
    through(client, port_of(broker.amqp_url), shop)
    wait_until("a native publisher", lambda: grown() == len(KEYS))

    # Cut-over, with empty queues.
    wait_until("empty queues", lambda: all(q.get("messages") == 0 for q in parsed(shell(look_at_queues))[0]))
    one, other = fleet.restart(route)
    ring = {key: owner(QUEUES, key) for key in KEYS}
    for sidecar in (one, other):
        assert through(client, sidecar.amqp_port, shop, counted=False) == ring
    shell = Shell(variables(broker, one, other))
    told = shell(done)
    assert f'ringproxy_ring_routed{{exchange="orders",vhost="{shop.name}"}} 1.0' in told
    assert "the sidecars agree" in told
    receipt, counted = parsed(told[told.index('{"outcome"') :])
    assert (receipt["outcome"], receipt["destination"]["name"]) == ("confirmed", would)
    # As many as before it: two shadowing sidecars' and two rounds of the native publisher's.
    assert counted == {"message_stats": {"publish_in": 4 * len(KEYS)}}
    assert placed(shop) == {'{"order": 1}': would}

    # Without the right to write to the exchange, what a ring routes goes on.
    shop.permit(USER, write=r"^amq\.default$")
    wait_until("confirmed", lambda: one.publish("orders", "customer-4711", vhost=shop.name).status == 200)
    shop.permit(USER)
    shop.drain_all()

    # And back: nothing of what was routed has come to the exchange.
    one, other = fleet.restart(shadow)
    for sidecar in (one, other):
        assert through(client, sidecar.amqp_port, shop) == native
    publish_in = "ringproxy_exchange_publish_in_total"
    wait_until("the rest", lambda: one.metric(publish_in, exchange="orders") == 6 * len(KEYS))


def wait_for_share(sidecar: Sidecar, shop: VirtualHost, percent: float) -> None:
    wait_until("the share", lambda: sidecar.ring(shop.name, "orders").get("route_share") == percent)


def test_cut_over_by_shares(
    start_sidecar: StartSidecar, shop: VirtualHost, client: Client, broker: Broker, tmp_path: Path
) -> None:
    fleet = Fleet(start_sidecar, tmp_path)
    (shadow,), (shared,) = renamed(shop, SETTINGS["Shadow"]), renamed(shop, SETTINGS["Cut over by shares"])
    change, look = renamed(shop, MIGRATION["Cut over by shares"])
    changed, seen = renamed(shop, PRINTED["Cut over by shares"])
    native = through(client, port_of(broker.amqp_url), shop)
    one, other = fleet.restart(shadow)
    new = tmp_path / "new.toml"
    more = {"NEW": str(new), "CONFIG": str(fleet.file), "PID": str(one.process.pid)}
    shell = Shell(variables(broker, one, other) | more)
    expected = native
    for percent in (10, 25, 50, 100):
        new.write_text(shared.replace("route_share = 10\n", f"route_share = {percent}\n"))
        told = shell(change)
        other.signal(signal.SIGHUP)
        for sidecar in (one, other):
            wait_for_share(sidecar, shop, percent)
        assert percent != 10 or told.endswith(changed.removeprefix("..."))
        told = shell(look)
        assert told == seen if percent == 10 else told.endswith("the sidecars agree\n")
        before, expected = (
            expected,
            {
                key: owner(QUEUES, key) if rank_of(slot_of(key.encode())) < slots_in(percent) else native[key]
                for key in KEYS
            },
        )
        assert expected != before
        for sidecar in (one, other):
            assert through(client, sidecar.amqp_port, shop, counted=False) == expected
    assert expected == {key: owner(QUEUES, key) for key in KEYS}


def test_the_permission_that_shadow_does_not_need(shop: VirtualHost, broker: Broker) -> None:
    (publish,) = MIGRATION["Before"]
    shop.api.ask("PUT", "users", "restricted", body={"password": "pw-restricted", "tags": ""})
    try:
        url = with_login(broker.amqp_url, "restricted", "pw-restricted", f"/{shop.name}")
        shell = Shell({"NATIVE": url})
        shop.permit("restricted", write=r"^(amq\.default|orders)$")
        assert shell(publish) == "may publish to the default exchange\n"
        shop.permit("restricted", write="^orders$")
        shell(publish, status=1)
    finally:
        shop.api.ask("DELETE", "users", "restricted")


def figure(told: str, what: str) -> float:
    """The sum of a counter's samples."""
    return sum(map(float, re.findall(rf"^ringproxy_{what}_total{{.*}} (.+)$", told, flags=re.M)))
