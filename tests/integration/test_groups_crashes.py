"""Messages that end the program that works on them: each is found, and those beside it are done."""

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

import pytest
from pamqp.commands import Basic

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, deliveries, publish, sharded, waiting
from tests.integration.sidecar import Sidecar
from tests.integration.test_groups_dead_letters import LIMITED, buried, consume, grave
from tests.integration.wire_client import Client, port_of

pytestmark = pytest.mark.versions

WORKER = """
import os, signal, sys
import pika

port, vhost, seen = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a", buffering=1)


def work(channel, method, properties, body):
    if body == b"bad 1":
        os.kill(os.getpid(), signal.SIGKILL)
    print(body.decode(), file=seen)
    channel.basic_ack(method.delivery_tag)


credentials = pika.PlainCredentials("guest", "guest")
parameters = pika.ConnectionParameters("127.0.0.1", port, vhost, credentials, blocked_connection_timeout=60)
channel = pika.BlockingConnection(parameters).channel()
channel.basic_qos(prefetch_count=20)
channel.basic_consume("orders", work)
channel.start_consuming()
"""
"""A program that is killed at one message, with others in its hands."""

KEYS = ("bad", *(f"k{number}" for number in range(8)))
EACH = 10


class Workers:
    """Copies of the program, each at a sidecar, that are started anew as they end."""

    def __init__(self, sidecars: list[Sidecar], vhost: VirtualHost, seen: Path) -> None:
        self.sidecars, self.vhost, self.seen = sidecars, vhost, seen
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.ended = 0

    def look(self) -> None:
        for sidecar in self.sidecars:
            port = sidecar.amqp_port
            worker = self.running.get(port)
            if worker is not None and worker.poll() is None:
                continue
            if worker is not None:
                assert worker.returncode == -9, "the program failed otherwise"
                self.ended += 1
            command = [sys.executable, "-c", WORKER, str(port), self.vhost.name, str(self.seen)]
            self.running[port] = subprocess.Popen(command)

    def end(self) -> None:
        for worker in self.running.values():
            worker.kill()
            worker.wait()


@pytest.mark.long
def test_a_message_that_kills_its_worker_at_two_sidecars_becomes_a_dead_letter_alone(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    sharded(vhost)
    grave(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    sidecars = [start_sidecar(**LIMITED) for _ in range(2)]
    published = [("orders", key, f"{key} {number}".encode()) for number in range(EACH) for key in KEYS]
    publish(client, sidecars[0].amqp_port, vhost, published)
    seen = tmp_path / "seen"
    seen.touch()
    wanted = {body.decode() for _, _, body in published} - {"bad 1"}
    workers = Workers(sidecars, vhost, seen)

    def all_is_done() -> bool:
        workers.look()
        return wanted <= set(seen.read_text().splitlines())

    try:
        wait_until("all others are done", all_is_done, within=60)
        (letter,) = buried(vhost)
        wait_until(
            "nothing is left", lambda: not sum(waiting(client, port_of(broker.amqp_url), vhost).values()), within=20
        )
        time.sleep(1.0)  # a further letter would come within that time
        assert not vhost.drain("graves")
    finally:
        workers.end()
    assert (letter.body, letter.headers["x-ring-reason"]) == (b"bad 1", "crash")
    assert 3 <= letter.headers["x-ring-attempt"] <= workers.ended
    done: dict[str, list[int]] = defaultdict(list)
    for line in seen.read_text().splitlines():
        key, number = line.split()
        if int(number) not in done[key]:  # a message may come twice
            done[key].append(int(number))
    every = list(range(EACH))
    assert done == {key: [each for each in every if (key, each) != ("bad", 1)] for key in KEYS}
    labels = {"vhost": vhost.name, "exchange": "orders"}
    assert sum(sidecar.metric("ringproxy_group_crash_loops_total", **labels) for sidecar in sidecars) >= 2


def test_only_a_connection_that_is_lost_counts_as_a_crash(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, SHARDS[:1])
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    sidecar = start_sidecar(groups="orders", groups_in_series="orders")
    publish(client, sidecar.amqp_port, vhost, [("orders", "a", b"1")])
    path = f"/groups/{quote(vhost.name, safe='')}/orders/keys"

    def crashes() -> list[int]:
        return [key["crashes"] for key in sidecar.admin(path).json["keys"]]

    for how in ("close", "loss", "close", "loss"):
        with client.session(sidecar.amqp_port, vhost.name) as wire:
            consume(wire)
            deliveries(wire, 1, 1)
            if how == "close":
                wire.goodbye()
            else:
                wire.socket.close()
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        (got,) = deliveries(wire, 1, 1)
        assert crashes() == [2]
        wire.tell(1, Basic.Ack(got.number))
        wait_until("it is done", lambda: crashes() == [])
        wire.goodbye()
    assert sidecar.log().count("was lost without a close") == 1
