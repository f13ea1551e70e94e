"""An exchange with quorum queues as shards, and sidecars whose clients may consume from its name."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from yarl import URL

from testbed.broker import Broker
from testbed.demo.topology import Topology
from testbed.demo.world import new_world
from testbed.sidecar import Sidecar, running_sidecar

EXCHANGE = "orders"


class Listeners(NamedTuple):
    """The URLs of a sidecar that stands beside the exchange."""

    amqp_url: str
    admin_url: str


@asynccontextmanager
async def sharded(
    broker: Broker, vhost: str, folder: Path, queues: Sequence[str], sidecars: int, settings: Mapping[str, str]
) -> AsyncIterator[list[Listeners]]:
    """Make a virtual host with the exchange, and give the URLs of so many sidecars with further settings."""
    url = str(URL(broker.amqp_url).with_path("/") / vhost)
    settings = {"broker-url": url, "management-url": broker.management_url, "groups": EXCHANGE, **settings}
    topology = Topology(broker, vhost, EXCHANGE, folder / "sharded.toml", "quorum")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(new_world(broker, vhost))
        topology.write(dict.fromkeys(queues, 1))
        await topology.apply()
        started = [stack.enter_context(running_sidecar(settings)) for _ in range(sidecars)]
        yield [Listeners(amqp_url(url, sidecar), sidecar.admin_url) for sidecar in started]


def amqp_url(url: str, sidecar: Sidecar) -> str:
    """Return the broker's URL with the sidecar's AMQP listener in the broker's place."""
    listener = URL(f"amqp://{sidecar.amqp_address}")
    return str(URL(url).with_host(listener.host or "").with_port(listener.port))
