"""The commands of the guides on shards, as their readers run them."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from proxy.cli import main
from testbed.broker import Broker
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.documents import Document, Shell, shop_of, tried
from tests.integration.topology import between_looks, fleet_flags

SHARDS = Document("docs/how-to/shards.md")
FILES = Document("docs/how-to/shards.md", "toml")
PROGRAMS = Document("docs/how-to/shards.md", "python")
SHARDING = Document("docs/how-to/migrate-from-sharding.md")


def test_every_command_is_tried_here() -> None:
    assert tried(SHARDS, "SHARDS", __file__)
    assert tried(FILES, "FILES", __file__)
    assert tried(PROGRAMS, "PROGRAMS", __file__)
    assert tried(SHARDING, "SHARDING", __file__)


@pytest.fixture
def shop(api: BrokerApi) -> Iterator[VirtualHost]:
    with shop_of(api, ["rabbitmqctl set_permissions -p shop topology .* .* .*"]) as made:
        yield made


class Reader:
    """Runs the guide's commands on a file of its own."""

    def __init__(
        self, broker: Broker, folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        # The user is made by `shop`; `test_topology_apply.py` runs the rabbitmqctl lines' rights.
        _, settings = SHARDS["Before you begin"]
        for usual, url in (("5672", broker.amqp_url), ("15672", broker.management_url)):
            parts = urlsplit(url)
            settings = settings.replace(f"localhost:{usual}", f"{parts.hostname}:{parts.port}")
        self._settings, self.file = settings, folder / "topology.toml"
        self._shell, self._capsys, self._patch = Shell({}), capsys, patch

    def __call__(self, commands: str, status: int = 0, more: str = "") -> str:
        said = commands.strip().replace("topology.toml", str(self.file)) + more
        return self._shell(f"{self._settings}{said}", status, seconds=2 * DEADLINE_SECONDS)

    def here(self, command: str, status: int = 0, more: str = "") -> str:
        """Run one command in this process, where a test can set what it waits for, and which needs no time to start."""
        assert self.run(f"{command} {more}") == status
        return self._capsys.readouterr().out

    def run(self, command: str) -> int:
        """Run one command in this process, and return its exit status."""
        for name, value in re.findall(r"^export (\w+)=(\S+)$", self._settings, flags=re.M):
            self._patch.setenv(name, value)
        program, *arguments = shlex.split(command.replace("topology.toml", shlex.quote(str(self.file))))
        assert program == "ring-proxy"
        self._capsys.readouterr()
        return main(arguments)


@pytest.fixture
def reader(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Reader:
    return Reader(broker, tmp_path, capsys, monkeypatch)


def test_the_guide_from_the_first_shard_to_check(
    api: BrokerApi,
    broker: Broker,
    shop: VirtualHost,
    start_sidecar: StartSidecar,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (least,) = FILES["Make the shards"]
    plan, apply = SHARDS["Make the shards"]
    (check,) = SHARDS["Check it in CI"]
    reader.file.write_text(least)
    assert "17 steps to do" in reader(plan, status=1)
    assert "17 steps done" in reader(apply)
    assert reader(check) == "nothing to do\n"

    # An exchange that has no lanes yet.
    reader.file.write_text(f"{least}lanes = false\n")
    reader.here(apply)
    (export,) = SHARDS["Put lanes under an exchange that you have"]
    reader(export)
    assert "lanes = false" in reader.file.read_text()
    reader.file.write_text(reader.file.read_text().replace("lanes = false\n", ""))
    told = reader.here(plan, status=1)
    assert "  no key moves\n" in told
    before, _, afterwards = told.partition("set these once it is applied and sidecars have noticed:")
    assert r"amq\.default" in before.partition("set these before you apply the file:")[2]
    assert "WRITER" in afterwards
    assert r"amq\.default" not in afterwards
    reader.here(apply)

    (grown,) = SHARDS["Add a shard"]
    five = least.replace("shards = 4", "shards = 5")
    reader.file.write_text(five)
    assert "20.0651% of the keys move (210,398 of 1,048,576 slots):" in reader.here(grown, status=1)
    reader.here(apply)

    (weight,) = FILES["Change a weight"]
    reader.file.write_text(f"{five}\n{weight}")
    assert "unbind orders from exchange orders.lane.5, weight 1" in reader.here(plan, status=1)
    reader.here(apply)

    (generation,) = FILES["Change what a queue cannot change"]
    reader.file.write_text(generation)
    assert "declare queue orders.9: " in reader.here(plan, status=1)
    reader.here(apply)
    assert reader.here(check) == "nothing to do\n"

    (retire,) = SHARDS["Take a shard away"]
    # It looks twice at the fleet and twice at the queue: as in test_topology_retire.py, not half a minute apart.
    monkeypatch.setattr("proxy.shards.retire.BETWEEN_LOOKS", between_looks(broker))
    start_sidecar().wait_ready()
    told = reader.here(retire, more=" ".join(fleet_flags(api)))
    assert told.endswith("delete exchange orders.lane.5\n")
    assert reader.here(check) == "nothing to do\n"
    assert sorted(shop.queues()) == [f"orders.{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9)]


def test_a_group_is_added_and_taken_away(
    broker: Broker, shop: VirtualHost, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    (least,), (groups,) = FILES["Make the shards"], FILES["Add a group"]
    plan, apply = SHARDS["Make the shards"]
    reader.file.write_text(least)
    reader(apply)
    reader.file.write_text(least + groups)
    told = reader(plan, status=1)
    assert "  no key moves\n" in told
    assert "bind orders to exchange orders.lane.4, weight 1, for the groups orders, orders/audit" in told
    reader(apply)
    assert "orders.audit.4" in shop.queues()

    reader.file.write_text(least)
    (retire,) = SHARDS["Add a group"]
    monkeypatch.setattr("proxy.shards.retire.BETWEEN_LOOKS", between_looks(broker))
    assert reader.here(retire).endswith("delete queue orders.audit.4\n")
    (check,) = SHARDS["Check it in CI"]
    assert reader(check) == "nothing to do\n"
    assert sorted(shop.queues()) == [f"orders.{n}" for n in (1, 2, 3, 4)]


def test_shards_for_each_node(shop: VirtualHost, reader: Reader) -> None:
    (file,) = FILES["Give each node its shards"]
    reader.file.write_text(file)

    reader(SHARDS["Make the shards"][1])

    assert sorted(shop.queues()) == ["orders.1", "orders.2"]


@pytest.mark.versions
def test_what_consumers_reject_is_kept(
    broker: Broker, shop: VirtualHost, start_sidecar: StartSidecar, reader: Reader
) -> None:
    (file,) = FILES["Keep the messages that fail"]
    reader.file.write_text(file)
    reader(SHARDS["Make the shards"][1])
    (policy,) = SHARDS["Keep the messages that fail"]
    name, pattern, definition, _, apply_to = shlex.split(policy)[4:]
    body = {"pattern": pattern, "definition": json.loads(definition), "apply-to": apply_to}
    shop.api.ask("PUT", "policies", shop.name, name, body=body)
    sidecar = start_sidecar()
    queue = sidecar.publish("orders", "customer-4711", b"rejected", vhost=shop.name).receipt()["destination"]["name"]
    with pika.BlockingConnection(pika.URLParameters(in_shop(broker))) as connection:
        channel = connection.channel()
        rejected = consumed(channel, queue)
        channel.basic_reject(rejected.delivery_tag, requeue=False)
        channel.cancel()
        dead = consumed(channel, "orders.dead.1")
        assert (dead.body, dead.key) == (b"rejected", "customer-4711")
        assert (dead.death["queue"], dead.death["reason"]) == (queue, "rejected")
        channel.basic_ack(dead.delivery_tag)
        channel.cancel()


class Consumed(NamedTuple):
    delivery_tag: int
    key: str
    body: bytes
    death: Mapping[str, Any]
    """The newest record of the header x-death; empty if the message has none."""


def consumed(channel: BlockingChannel, queue: str) -> Consumed:
    """Consume one message. (basic.get is refused where there is a single active consumer.)"""
    method, properties, body = next(channel.consume(queue, inactivity_timeout=DEADLINE_SECONDS))
    assert method is not None
    assert properties is not None
    headers: Mapping[str, Any] = properties.headers or {}
    (death, *_) = headers.get("x-death", [{}])
    return Consumed(int(method.delivery_tag or 0), str(method.routing_key), bytes(body or b""), death)


@pytest.mark.versions
def test_basic_get_works_on_shards_without_a_single_active_consumer(
    broker: Broker, shop: VirtualHost, start_sidecar: StartSidecar, reader: Reader, tmp_path: Path
) -> None:
    (file,) = FILES["Fetch messages with basic.get"]
    (program,) = PROGRAMS["Fetch messages with basic.get"]
    here = tmp_path / "fetch.py"
    here.write_text(program.replace("amqp://READER:PASSWORD@localhost:5672/shop", in_shop(broker)))
    sidecar = start_sidecar()

    def fetched(of: str) -> subprocess.CompletedProcess[str]:
        reader.file.write_text(of)
        reader(SHARDS["Make the shards"][1])
        assert sidecar.publish("orders", "customer-4711", b"first", vhost=shop.name).status == 200
        return subprocess.run([sys.executable, here], capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    assert fetched(file).stdout == "customer-4711 b'first'\n"
    # With the default arguments RabbitMQ refuses it, as the guide says.
    for queue in shop.queues():
        shop.delete_queue(queue)
    (least,) = FILES["Make the shards"]
    told = fetched(least)
    assert told.returncode == 1
    assert "405" in told.stderr
    assert "RESOURCE_LOCKED" in told.stderr


def in_shop(broker: Broker) -> str:
    """Return the URL of the guide's virtual host, as the guide's user."""
    parts = urlsplit(broker.amqp_url)
    return f"amqp://topology:PASSWORD@{parts.hostname}:{parts.port}/shop"


@pytest.fixture
def sharded(shop: VirtualHost) -> VirtualHost:
    """The exchange `images`, sharded by the plugin."""
    shop.exchange("images", "x-modulus-hash")
    shop.policy("images-shard", "^images$", "exchanges", shards_per_node=2, routing_key="1234")
    wait_until("the plugin's shards", lambda: len(shop.queues()) == 2)
    wait_until("their bindings", lambda: len(bound(shop)) == 2)
    return shop


def bound(shop: VirtualHost) -> list[str]:
    """The destinations of the exchange `images`."""
    listed = shop.api.ask("GET", "exchanges", shop.name, "images", "bindings", "source")
    return sorted(binding["destination"] for binding in listed)


@pytest.mark.long
def test_the_shards_of_the_plugin_are_adopted_and_its_policy_goes(
    sharded: VirtualHost, start_sidecar: StartSidecar, reader: Reader
) -> None:
    queues = sorted(sharded.queues())
    sidecar = start_sidecar()
    keys = [f"image-{n}" for n in range(20)]

    def placed() -> list[str]:
        return [sidecar.publish("images", key, vhost="shop").queue() for key in keys]

    before = placed()
    assert set(before) == set(queues)
    (read,) = SHARDING["Read what is there"]
    told = reader(read)
    assert told.endswith("nothing to do\n")
    assert "policy 'images-shard' of the sharding plugin (shards-per-node 2, routing-key '1234')" in told
    file = reader.file.read_text()
    assert all(f'queue = "{queue}"' in file for queue in queues)

    reader.file.write_text(file.replace("lanes = false\n", ""))
    plan, apply = SHARDING["Put lanes in front"]
    assert "  no key moves\n" in reader(plan, status=1)
    reader(apply)
    assert bound(sharded) == ["images.lane.1", "images.lane.2"]
    assert placed() == before

    check, clear, again = SHARDING["Clear the policy"][0].splitlines()
    assert reader(check).endswith("nothing to do\n")
    assert clear == "rabbitmqctl clear_policy -p shop images-shard"
    sharded.api.ask("DELETE", "policies", "shop", "images-shard")
    wait_until("the exchange without the policy", lambda: reader(again) == "nothing to do\n")
    assert bound(sharded) == ["images.lane.1", "images.lane.2"]
    assert placed() == before
    assert sorted(sharded.queues()) == queues
