"""What is measured: a RabbitMQ node of its own, a sidecar beside it, and a bare handler to compare with."""

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pika

from bench import BenchError
from bench.bare import running_bare
from bench.process import uses_uvloop
from testbed import SetupError
from testbed.broker import installation
from testbed.debian import ensure_package
from testbed.node import Node, private_node
from testbed.sidecar import Sidecar, running_sidecar

EXCHANGE = "bench"
QUEUES = [f"{EXCHANGE}.q{number}" for number in range(8)]

_BOUNDED = {"x-max-length": 1000, "x-overflow": "drop-head"}
"""Nobody consumes: the queues must neither fill the memory nor refuse."""


@dataclass(frozen=True)
class World:
    """All that a measurement needs."""

    node: Node
    version: str
    """The broker's."""
    sidecar: Sidecar
    bare_url: str
    bare_pid: int
    event_loop: str
    """Of the sidecar and of the bare handler."""
    wrk: Path
    folder: Path
    """For requests that other processes send."""


@contextmanager
def running_world(choice: str) -> Iterator[World]:
    """Start everything on a RabbitMQ of our own: `choice` is `installed`, a Debian suite such as `sid`, or empty."""
    if ":" in choice:
        raise SetupError(
            f"BROKER={choice}, but the broker's CPU time is measured, and it is frozen: use installed or sid"
        )
    wrk = ensure_package("wrk", "wrk")
    with private_node(installation(choice)) as node, tempfile.TemporaryDirectory(prefix="ringproxy-bench-") as folder:
        version = node.start()
        declare(node.amqp_url)
        settings = {"broker-url": node.amqp_url, "management-url": node.management_url}
        with running_sidecar(settings) as sidecar:
            _check_routed(sidecar.http_url)
            uvloop = uses_uvloop(sidecar.process.pid)
            with running_bare(uvloop=uvloop) as (url, pid):
                loop = "uvloop" if uvloop else "asyncio"
                yield World(node, version, sidecar, url, pid, loop, wrk, Path(folder))


def declare(amqp_url: str) -> None:
    """Declares the exchange and its queues, which drop what is oldest."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True, arguments=_BOUNDED)
        channel.queue_bind(queue, EXCHANGE, routing_key="1")
    connection.close()


def _check_routed(http_url: str) -> None:
    """Or the exchange itself would be measured: what is passed is answered 200 too."""
    with urllib.request.urlopen(f"{http_url}/v1/exchanges/{EXCHANGE}/route?key=any", timeout=10) as response:
        answer = json.load(response)
    if answer.get("destination", {}).get("name") not in QUEUES:
        raise BenchError(f"the sidecar routes {EXCHANGE} to none of its queues: {answer}")
