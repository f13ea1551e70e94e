"""An exchange with quorum queues as shards, and sidecars whose clients may consume from its name."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from yarl import URL

from testbed.broker import Broker
from testbed.demo.topology import Topology
from testbed.demo.world import new_world
from testbed.sidecar import running_sidecar

EXCHANGE = "orders"


@asynccontextmanager
async def sharded(
    broker: Broker, vhost: str, folder: Path, queues: Sequence[str], sidecars: int, settings: Mapping[str, str]
) -> AsyncIterator[list[str]]:
    """Make a virtual host with the exchange, and give the AMQP URLs of so many sidecars with further settings."""
    url = str(URL(broker.amqp_url).with_path("/") / vhost)
    settings = {"broker-url": url, "management-url": broker.management_url, "groups": EXCHANGE, **settings}
    topology = Topology(broker, vhost, EXCHANGE, folder / "sharded.toml", "quorum")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(new_world(broker, vhost))
        topology.write(dict.fromkeys(queues, 1))
        await topology.apply()
        started = [stack.enter_context(running_sidecar(settings)) for _ in range(sidecars)]
        listeners = [URL(f"amqp://{sidecar.amqp_address}") for sidecar in started]
        yield [str(URL(url).with_host(each.host).with_port(each.port)) for each in listeners if each.host]
