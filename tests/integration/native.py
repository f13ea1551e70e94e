"""Publishes that the broker counts as coming into their exchange: native ones, and such as a sidecar passes."""

from collections.abc import Iterable

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.wire_client import Client


def publish_in(vhost: VirtualHost, exchange: str) -> int:
    """Return the broker's count; 0 where there is none."""
    answer = vhost.api.ask("GET", "exchanges", vhost.name, exchange)
    return int((answer.get("message_stats") or {}).get("publish_in", 0))


def publish_counted(client: Client, port: int, vhost: VirtualHost, exchange: str, keys: Iterable[str]) -> None:
    """Confirmed AMQP publishes, each with its key as body, over a channel that is open until they are counted.

    All that came before must have been counted, and no test before may have had an exchange of this name in a virtual
    host of this name: RabbitMQ counts each 5 s, and adds what a closed channel published to a deleted exchange to the
    new one. Publishes of a channel from less than 5 s before it closed may be lost: RabbitMQ sweeps such counts every 2
    minutes.
    """
    keys, before = list(keys), publish_in(vhost, exchange)
    with client.session(port, vhost.name) as peer:
        peer.channel()
        for key in keys:
            peer.publish(1, exchange, key, key.encode())
        peer.confirm(1, len(keys))
        wait_until("the broker's count", lambda: publish_in(vhost, exchange) == before + len(keys))
        peer.goodbye()
