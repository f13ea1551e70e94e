"""`apply --watch` on a real cluster: a node that joins gets its shards, and one that leaves is told."""

import math
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import proxy
from proxy.cli import main
from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node, free_ports
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.load import Confirmed, Load
from tests.integration.own_node import BROKER, private_only
from tests.integration.rings import owner
from tests.integration.sidecar import COMMAND, Sidecar
from tests.integration.topology import killed

pytestmark = [pytest.mark.long, private_only]

FILE = """
[[exchange]]
name = "orders"
shards_per_node = 2
arguments = { x-single-active-consumer = false }
"""
START_SECONDS = 120.0


class InForce:
    """The weights of an exchange's shards, each with the time in which a publish may be routed by them."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Begin with the weights that are routed by already."""
        self._of = [(0.0, dict(weights), math.inf)]

    @contextmanager
    def changing(self, weights: Mapping[str, int]) -> Iterator[None]:
        """Change to other weights: within the block a publish may be routed by those before or by these."""
        (begin, before, _), since = self._of.pop(), time.monotonic()
        yield
        self._of += [(begin, before, time.monotonic()), (since, dict(weights), math.inf)]

    def misplaced(self, found: Mapping[str, set[str]], receipts: Mapping[str, Confirmed]) -> list[str]:
        """Return the confirmed keys that are not in just the queue that a ring of their time chooses."""
        queues: dict[str, list[str]] = {}
        for queue, keys in found.items():
            for key in keys:
                queues.setdefault(key, []).append(queue)
        return [
            key
            for key, receipt in receipts.items()
            if queues.get(key) != [receipt.queue]
            or not any(
                owner(weights, key) == receipt.queue
                for begin, weights, end in self._of
                if begin <= receipt.confirmed and receipt.sent <= end
            )
        ]


class Watcher:
    """A running `ring-proxy topology apply --watch`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, port: int) -> None:
        self.process, self._log, self._port = process, log, port

    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ready(self) -> bool:
        return self.ask("/readyz")[0] == 200

    def metric(self, sample: str) -> float:
        lines = self.ask("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} "))


@contextmanager
def watching(node: Node, folder: Path) -> Iterator[Watcher]:
    """Watch the file `FILE`, by one node's addresses."""
    file, log = folder / "topology.toml", folder / "watch.log"
    file.write_text(FILE)
    (port,) = free_ports(1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    clean["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])
    flags = [f"--broker-url={node.amqp_url}", f"--management-url={node.management_url}", "--sync-interval=1"]
    command = [COMMAND, "topology", "apply", "--watch", *flags, f"--admin-listen=127.0.0.1:{port}", str(file)]
    with log.open("wb") as output, subprocess.Popen(command, env=clean, stdout=output, stderr=output) as process:
        try:
            yield Watcher(process, log, port)
        finally:
            process.kill()


def leaders(api: BrokerApi) -> dict[str, str]:
    """Return the node that leads each shard, by the name of its queue."""
    queues: list[dict[str, Any]] = api.ask("GET", "queues", "/", query="columns=name,leader")
    return {queue["name"]: queue.get("leader", "") for queue in queues if queue["name"].startswith("orders.")}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Yield three nodes of one cluster, of which the third has not joined yet."""
    with private_cluster(installation(BROKER), 3, running=2) as nodes:
        yield nodes


def test_a_node_that_joins_gets_its_shards_while_publishing_goes_on(nodes: list[Node], tmp_path: Path) -> None:
    first, _, third = nodes
    api = BrokerApi(first.management_url)
    home = VirtualHost(api, "/", [])
    settings = {"broker_url": first.amqp_url, "management_url": first.management_url, "sync_interval": "0.5"}
    with watching(first, tmp_path) as watcher:
        wait_until("four shards", watcher.ready, START_SECONDS)
        assert sorted(leaders(api)) == [f"orders.{n}" for n in range(1, 5)]
        assert sorted(leaders(api).values()) == sorted([node.name for node in nodes[:2]] * 2)
        sidecar = Sidecar(settings, tmp_path)
        load = Load(sidecar, "orders", "/", workers=4)
        in_force = InForce({f"orders.{n}": 1 for n in range(1, 5)})
        try:
            with load.running():
                wait_until("messages", lambda: len(load.confirmed) > 500)
                six = {f"orders.{n}": 1 for n in range(1, 7)}
                with in_force.changing(six):
                    third.start()
                    wait_until("its shards", lambda: len(leaders(api)) == 6, START_SECONDS)
                    sidecar.wait_for_weights("/", "orders", six)
                enough = len(load.confirmed) + 500
                wait_until("messages by the ring of six", lambda: len(load.confirmed) > enough)
            found = {queue: {message.body.decode() for message in home.drain(queue)} for queue in six}
        finally:
            sidecar.stop()
        led = leaders(api)
        assert [led["orders.5"], led["orders.6"]] == [third.name, third.name]
        assert (load.refused, load.unanswered) == ([], [])
        assert in_force.misplaced(found, load.receipts) == []
        assert sum(map(len, found.values())) == len(load.receipts)
        assert all(found.values())


def test_apply_is_killed_after_every_step_while_publishing_goes_on(nodes: list[Node], tmp_path: Path) -> None:
    """Each of the steps that add a shard, or change a weight, is the last one of a killed apply in its turn."""
    first = nodes[0]
    home = VirtualHost(BrokerApi(first.management_url), "/", [])
    settings = {"broker_url": first.amqp_url, "management_url": first.management_url, "sync_interval": "0.3"}
    file = tmp_path / "topology.toml"
    urls = [f"--broker-url={first.amqp_url}", f"--management-url={first.management_url}"]
    head = '[[exchange]]\nname = "steps"\narguments = { x-single-active-consumer = false }\n'
    weights = {"steps.1": 1}
    file.write_text(f"{head}shards = 1\n")
    assert main(["topology", "apply", *urls, str(file)]) == 0
    sidecar = Sidecar(settings, tmp_path)
    load = Load(sidecar, "steps", "/", workers=2)
    in_force = InForce(weights)
    try:
        with load.running():
            for killed_after in (*range(5), *range(5, 8)):
                if killed_after < 5:
                    weights[f"steps.{len(weights) + 1}"] = 1
                else:
                    weights[f"steps.{killed_after - 4}"] = 2
                shards = (f"[[exchange.shard]]\nnumber = {q[6:]}\nweight = {w}\n" for q, w in weights.items())
                file.write_text(f"{head}shards = {len(weights)}\n{''.join(shards)}")
                lines = killed_after if killed_after < 5 else killed_after - 5
                with in_force.changing(weights):
                    assert killed(["topology", "apply", *urls, str(file)], lines) == lines
                    assert main(["topology", "apply", *urls, str(file)]) == 0
                    assert main(["topology", "check", *urls, str(file)]) == 0
                    sidecar.wait_for_weights("/", "steps", weights)
        found = {queue: {message.body.decode() for message in home.drain(queue)} for queue in weights}
    finally:
        sidecar.stop()
    assert (load.refused, load.unanswered) == ([], [])
    assert len(load.receipts) > 100
    assert in_force.misplaced(found, load.receipts) == []
    assert sum(map(len, found.values())) == len(load.receipts)


def test_a_node_that_leaves_is_told_and_changes_nothing(nodes: list[Node], tmp_path: Path) -> None:
    first, _, third = nodes
    api = BrokerApi(first.management_url)
    with watching(first, tmp_path) as watcher:
        wait_until("a look", watcher.ready, START_SECONDS)
        third.kill()
        wait_until("the node that left", lambda: watcher.metric('ringproxy_topology_nodes{state="gone"}') == 1)
        assert f"node '{third.name}' does not run, and has replicas of " in watcher.log()
        steps = watcher.metric("ringproxy_topology_steps_total")
        looks = watcher.metric('ringproxy_topology_looks_total{result="ok"}')
        wait_until("more looks", lambda: watcher.metric('ringproxy_topology_looks_total{result="ok"}') > looks + 2)
        assert len(leaders(api)) == 6
        assert watcher.metric("ringproxy_topology_steps_total") == steps
        assert watcher.ready()
        watcher.process.send_signal(signal.SIGTERM)
        assert watcher.process.wait(DEADLINE_SECONDS) == 0
        assert "Traceback" not in watcher.log()
