"""The processes that are measured: a RabbitMQ node, sidecars beside it, and what they are compared with."""

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from bench import BenchError
from bench.bare import running_bare
from bench.process import has_loaded, memory
from bench.relay import Relay, running_relay
from ring.compiled import PURE
from testbed import SetupError
from testbed.broker import installation
from testbed.debian import ensure_package
from testbed.node import Node, private_node
from testbed.readiness import DIRECT
from testbed.sidecar import Sidecar, running_sidecar

EXCHANGE = "bench"
MODULUS_EXCHANGE = "bench.modulus"
LANES_EXCHANGE = "bench.lanes"
"""The exchange of the same type and over the same queues as EXCHANGE, with a lane before each queue."""
QUEUES = [f"{EXCHANGE}.q{number}" for number in range(8)]
LANES = [f"{LANES_EXCHANGE}.lane.{number}" for number in range(8)]
"""The lanes of LANES_EXCHANGE, in the order of the queues to which they lead."""

BOUNDED = {"x-max-length": 1000, "x-overflow": "drop-head"}
"""Nobody consumes: the queues must neither fill the memory nor refuse."""

_ROOT = Path(__file__).parents[1]
_COMPILED = _ROOT / "build" / "compiled"


@dataclass(frozen=True)
class World:
    """The running processes that a measurement needs, for as long as the benchmark runs."""

    node: Node
    version: str
    """The version of the broker."""
    has_modulus: bool
    """Whether the broker has the type x-modulus-hash."""
    sidecar: Sidecar
    """The sidecar with its hot modules compiled, as it is installed."""
    idle_memory: int
    """The resident bytes of the sidecar before any load, with one ring."""
    pure: Sidecar
    relay: Relay
    bare_url: str
    bare_pid: int
    event_loop: str
    """The name of the event loop of the sidecar and of the bare handler."""
    wrk: Path
    folder: Path
    """The folder for files of requests that other processes send."""


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
        _declare_lanes(node.amqp_url)
        has_modulus = _declare_modulus(node.amqp_url)
        with ExitStack() as stack:
            sidecar = stack.enter_context(running_compiled(node))
            check_routed(sidecar.http_url)
            idle = memory(sidecar.process.pid)
            check_routed(sidecar.http_url, LANES_EXCHANGE)
            pure = stack.enter_context(running_pure(node))
            check_routed(pure.http_url)
            relay = stack.enter_context(running_relay(node.amqp_url))
            uvloop = has_loaded(sidecar.process.pid, "/uvloop/")
            url, pid = stack.enter_context(running_bare(uvloop=uvloop))
            loop = "uvloop" if uvloop else "asyncio"
            yield World(node, version, has_modulus, sidecar, idle, pure, relay, url, pid, loop, wrk, Path(folder))


@contextmanager
def running_compiled(
    node: Node, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Sidecar]:
    """Yield a sidecar with its hot modules compiled; raises SetupError where they were not."""
    _check_compiled()
    with running_sidecar(
        {**_beside(node), **(settings or {})}, compiled_environment() | dict(environment or {})
    ) as sidecar:
        if not _is_compiled(sidecar):
            raise SetupError("the sidecar does not run compiled: `make bench` compiles it first")
        yield sidecar


@contextmanager
def running_pure(node: Node) -> Iterator[Sidecar]:
    """Yield a sidecar of the compiled build that runs as pure Python, by RINGPROXY_PURE=1."""
    with running_sidecar(_beside(node), compiled_environment() | {PURE: "1"}) as sidecar:
        if _is_compiled(sidecar):
            raise SetupError(f"the sidecar runs compiled in spite of {PURE}=1")
        yield sidecar


def declare(
    amqp_url: str,
    exchange: str = EXCHANGE,
    queues: Sequence[str] = QUEUES,
    weights: Sequence[int] = (1,),
    arguments: Mapping[str, object] = BOUNDED,
) -> None:
    """Declare a hash exchange and its queues, which drop what is oldest, bound with these weights in turn."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
    for queue, weight in zip(queues, itertools.cycle(weights), strict=False):
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, exchange, routing_key=str(weight))
    connection.close()


def _declare_lanes(amqp_url: str) -> None:
    """Declare a hash exchange that leads to the same queues through lanes: fanout exchanges of one queue each."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.exchange_declare(LANES_EXCHANGE, "x-consistent-hash", durable=True)
    for lane, queue in zip(LANES, QUEUES, strict=True):
        channel.exchange_declare(lane, "fanout", durable=True)
        channel.queue_bind(queue, lane)
        channel.exchange_bind(lane, LANES_EXCHANGE, routing_key="1")
    connection.close()


def _declare_modulus(amqp_url: str) -> bool:
    """Declare an x-modulus-hash exchange over the same queues; return False where the broker has no such type."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    try:
        channel.exchange_declare(MODULUS_EXCHANGE, "x-modulus-hash", durable=True)
    except AMQPError:
        return False  # the broker has closed the connection: an unknown type is an error of that
    for queue in QUEUES:
        channel.queue_bind(queue, MODULUS_EXCHANGE, routing_key="")
    connection.close()
    return True


def _beside(node: Node) -> dict[str, str]:
    return {"broker-url": node.amqp_url, "management-url": node.management_url}


def compiled_environment(*more: Path) -> dict[str, str]:
    """Return an environment that imports from the compiled build, and then from `more`, never from the current
    folder.
    """
    return {"PYTHONPATH": ":".join(map(str, (_COMPILED, *more))), "PYTHONSAFEPATH": "1", PURE: ""}


def _check_compiled() -> None:
    """Raise SetupError where what was compiled is not the source as it is: its figures would be told as this one's."""
    for package in ("ring", "proxy"):
        for source in (_ROOT / package).rglob("*.py"):
            built = _COMPILED / source.relative_to(_ROOT)
            if not built.is_file() or built.read_bytes() != source.read_bytes():
                changed = source.relative_to(_ROOT)
                raise SetupError(f"{changed} has changed since it was compiled: run testbed/build-compiled again")


def _is_compiled(sidecar: Sidecar) -> bool:
    return has_loaded(sidecar.process.pid, "ringproxy__mypyc")


def check_routed(http_url: str, exchange: str = EXCHANGE) -> None:
    """Raise BenchError where the sidecar does not route the exchange itself: what it passes is answered 200 too."""
    with DIRECT.open(f"{http_url}/v1/exchanges/{exchange}/route?key=any", timeout=10) as response:
        answer = json.load(response)
    if answer.get("destination", {}).get("name") not in QUEUES:
        raise BenchError(f"the sidecar routes {exchange} to none of its queues: {answer}")
