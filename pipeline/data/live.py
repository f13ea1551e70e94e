"""An exchange's ring as its bindings make it now: the management API asked as a sidecar asks it."""

import asyncio
import ssl
from collections.abc import Callable

from yarl import URL

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.tls import BrokerTls
from proxy.topology.bindings import RING_TYPES, TopologyError, weigh
from proxy.topology.generations import current, queues_behind
from proxy.topology.lanes import read_behind
from proxy.topology.management import Management, ManagementError
from proxy.topology.reading import read_exchange_and_bindings

MANAGEMENT = {
    "management_url": "URL of the management API, with the user that reads bindings",
    "management_password_file": "file whose first line replaces the password in management_url",
    "ca_file": "CA certificates (PEM) of the management API",
    "client_cert_file": "certificate chain (PEM) to show to it",
    "client_key_file": "private key (PEM) of client_cert_file",
    "management_timeout": "seconds that one request to the management API may take",
}
"""The sidecar's settings that say how the management API is reached, by their names, and what they mean here."""


def live_ring(settings: Settings, vhost: str, exchange: str) -> RingSpec:
    """Return the ring that the bindings of an exchange make now.

    Raises PipelineError where there is no such exchange or it makes no ring, and where the API gives no usable answer.
    """

    async def asked() -> RingSpec:
        async with management(settings) as api:
            return await read_ring_of(api, vhost, exchange)

    try:
        return asyncio.run(asked())
    except (ManagementError, TopologyError) as error:
        raise PipelineError(f"management API: {error}") from None
    except ConfigError as error:
        raise PipelineError(f"option {error}") from None


async def read_ring_of(api: Management, vhost: str, exchange: str) -> RingSpec:
    """Return the ring that the bindings of an exchange make now, by an API that is open.

    Raises PipelineError where there is no such exchange or it makes no ring; ManagementError and TopologyError where
    the API gives no usable answer.
    """
    reading = await read_exchange_and_bindings(api, (vhost, exchange))
    if reading.exchange is None:
        raise PipelineError(f"exchange {exchange!r} does not exist in virtual host {vhost!r}")
    if reading.exchange.type not in RING_TYPES:
        raise PipelineError(f"exchange {exchange!r} is of type {reading.exchange.type}, which makes no ring")
    found = current(reading.bindings)
    ring = found.bindings
    behind = await read_behind(api, vhost, ring)
    bindings = weigh(ring, reading.exchange.type, behind)
    if not bindings.weights:
        raise PipelineError(f"exchange {exchange!r} has no binding that makes a ring")
    lanes = {queue.name: lane for queue, lane in bindings.lanes.items()}
    queues = queues_behind((queue.name for queue in bindings.weights if queue.kind == "queue"), found.ring.number)
    return RingSpec(reading.exchange.type, str(reading.exchange.hashed), dict(bindings.weights), lanes, queues=queues)


def management(settings: Settings) -> Management:
    """Return the settings' management API, to be opened with `async with`. Raises ConfigError for a bad certificate."""
    urls = settings.management_url
    encrypted = next((url for url in urls if url.scheme == "https"), urls[0])
    return Management(urls, settings.management_timeout, tls=tls_of(encrypted, settings))


def tls_of(url: URL, settings: Settings) -> Callable[[], ssl.SSLContext] | None:
    """Return what makes the TLS context for one of the settings' URLs, called at each connect; None for plain TCP.

    Raises ConfigError.
    """
    if url.scheme not in ("amqps", "https"):
        return None
    return BrokerTls(settings.ca_file, settings.client_cert_file, settings.client_key_file)
