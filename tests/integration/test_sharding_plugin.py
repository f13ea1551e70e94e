"""The examples of the sharding plugin's README through the AMQP port: its pseudo-queue, and a group in its place."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Channel, Queue

from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.consuming import Behaviour
from tests.integration.documents import ROOT
from tests.integration.groups import consume, deliveries
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire

pytestmark = pytest.mark.versions

PAGE = ROOT / "docs/how-to/migrate-from-sharding.md"
KEYS = [f"image-{number}" for number in range(20)]


@pytest.fixture
def consumer(api: BrokerApi) -> Iterator[Client]:
    """A user who consumes, and may do nothing else."""
    api.ask("PUT", "users", "billing", body={"password": "PASSWORD", "tags": ""})
    yield Client("billing", "PASSWORD")
    api.ask("DELETE", "users", "billing")


@pytest.fixture
def shop(api: BrokerApi, client: Client, consumer: Client) -> Iterator[VirtualHost]:
    """The exchange `images` with two shards of the plugin, and a consumer with the permissions that the page names."""
    made = VirtualHost(api, "shop", [])
    made.permit(client.user, ".*", ".*", ".*")
    (read,) = re.findall(r"the pattern is `'(.+)'`", PAGE.read_text())
    made.permit(consumer.user, write="", read=read)
    made.permit(USER, configure=r"^images\.group", read=r"^images\.group")
    made.exchange("images", "x-modulus-hash")
    made.policy("images-shard", "^images$", "exchanges", shards_per_node=2, routing_key="1234")
    wait_until("the plugin's shards", lambda: len(made.queues()) == 2)
    yield made
    made.delete()


@pytest.fixture
def sidecar(shop: VirtualHost, start_sidecar: StartSidecar, tmp_path: Path) -> Sidecar:
    """A sidecar with the setting of the page."""
    (setting,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    (tmp_path / "ringproxy.toml").write_text(setting)
    return start_sidecar(config=str(tmp_path / "ringproxy.toml"))


def fill(sidecar: Sidecar) -> dict[str, str]:
    """Publish a message of each key, and return the queue of each."""
    return {key: sidecar.publish("images", key, key.encode(), vhost="shop").queue() for key in KEYS}


def bodies(wire: Wire, count: int) -> set[str]:
    """Return the bodies of so many deliveries on channel 1, which are acked."""
    got = deliveries(wire, 1, count)
    wire.tell(1, Basic.Ack(got[-1].number, multiple=True))
    return {each.body.decode() for each in got}


def test_while_the_policy_stands_the_pseudo_queue_is_the_plugins(
    sidecar: Sidecar, shop: VirtualHost, client: Client, consumer: Client, rabbitmq: Behaviour
) -> None:
    placed = fill(sidecar)
    shards = [{key for key, queue in placed.items() if queue == shard} for shard in shop.queues()]
    assert all(shards)

    with consumer.session(sidecar.amqp_port, "shop") as wire:
        wire.channel(1)
        consume(wire, 1, exchange="images")
        first = next(iter(bodies(wire, 1)))
        (mine,) = [shard for shard in shards if first in shard]
        assert bodies(wire, len(mine) - 1) | {first} == mine

        # A second consumer gets the other shard.
        with consumer.session(sidecar.amqp_port, "shop") as other:
            other.channel(1)
            consume(other, 1, exchange="images")
            assert bodies(other, len(KEYS) - len(mine)) == set(KEYS) - mine
            other.goodbye()
        wire.goodbye()
    assert "'images' is a queue and the name of a group: the client uses the queue" in sidecar.log()

    if rabbitmq.raises:  # before RabbitMQ 4.0 the plugin ends the connection
        refused = Queue.Bind(0, "images", "amq.direct", "x"), Queue.Purge(0, "images"), Queue.Delete(0, "images")
        for method in refused:
            with client.session(sidecar.amqp_port, "shop") as wire:
                wire.channel(1)
                assert wire.ask(1, method, Channel.Close).reply_code == 406


def test_without_the_policy_one_consumer_gets_all_shards(sidecar: Sidecar, shop: VirtualHost, consumer: Client) -> None:
    queues = shop.queues()
    for number, queue in enumerate(queues):
        lane = f"images.lane.{number}"
        shop.exchange(lane, "fanout")
        shop.bind(lane, queue, "")
        shop.bind("images", lane, kind="e")
    shop.api.ask("DELETE", "policies", "shop", "images-shard")
    wait_until("the queues unbound from the exchange itself", lambda: not bound_directly(shop, queues))
    assert set(fill(sidecar).values()) == set(queues)

    with consumer.session(sidecar.amqp_port, "shop") as wire:
        wire.channel(1)
        # The plugin's README forbids to declare the name before, as that would make a queue.
        told = wire.ask(1, Queue.Declare(0, "images", durable=True), Queue.DeclareOk)
        assert (told.queue, told.message_count) == ("images", len(KEYS))
        consume(wire, 1, exchange="images")
        got = deliveries(wire, 1, len(KEYS))
        assert {each.body.decode() for each in got} == set(KEYS)
        assert all((each.exchange, each.key) == ("images", each.body.decode()) for each in got)
        wire.tell(1, Basic.Ack(got[-1].number, multiple=True))
        wire.goodbye()
    assert "images" not in shop.queues()


def bound_directly(shop: VirtualHost, queues: list[str]) -> set[str]:
    """Return the queues that are bound to the exchange itself, and not by their lanes."""
    listed = shop.api.ask("GET", "exchanges", shop.name, "images", "bindings", "source")
    return {binding["destination"] for binding in listed} & set(queues)
