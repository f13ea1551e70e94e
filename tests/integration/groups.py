"""Sharded exchanges for groups, and members of groups as clients see them."""

from collections.abc import Iterable

from pamqp.commands import Basic, Channel, Queue

from tests.integration.broker_api import VirtualHost
from tests.integration.wire_client import Client, Wire

SHARDS = ["orders.0", "orders.1", "orders.2"]
AUDIT = [shard.replace("orders.", "orders.audit.") for shard in SHARDS]


def sharded(
    vhost: VirtualHost, shards: Iterable[str] = SHARDS, *, exchange: str = "orders", lanes: bool = False
) -> None:
    """Make a hash exchange whose shards are quorum queues with a single active consumer."""
    vhost.exchange(exchange)
    for shard in shards:
        shard_queue(vhost, shard)
        if lanes:
            lane = f"{exchange}.lane.{shard.rpartition('.')[2]}"
            vhost.exchange(lane, "fanout")
            vhost.bind(lane, shard, "")
            vhost.bind(exchange, lane, "1", kind="e")
        else:
            vhost.bind(exchange, shard)


def shard_queue(vhost: VirtualHost, name: str) -> None:
    """Make one shard."""
    vhost.queue(name, x_queue_type="quorum", x_single_active_consumer=True)


def fanned_out(vhost: VirtualHost) -> None:
    """Make the exchange orders with the groups orders and orders/audit."""
    vhost.exchange("orders")
    for shard, audit in zip(SHARDS, AUDIT, strict=True):
        number = shard.rpartition(".")[2]
        lane, fan = f"orders.lane.{number}", f"orders.fan.{number}"
        for name in (lane, fan):
            vhost.exchange(name, "fanout")
        for queue in (shard, audit):
            shard_queue(vhost, queue)
            vhost.bind(fan, queue, "")
        vhost.bind(lane, fan, "", kind="e")
        promise = {"x-ring-shard": shard, "x-ring-groups": {"orders": shard, "orders/audit": audit}}
        path = ("bindings", vhost.name, "e", "orders", "e", lane)
        vhost.api.ask("POST", *path, body={"routing_key": "1", "arguments": promise})


class Got:
    """One delivery."""

    def __init__(self, method: Basic.Deliver, data: bytes) -> None:
        self.tag, self.number = method.consumer_tag, method.delivery_tag or 0
        self.exchange, self.key, self.redelivered = method.exchange, method.routing_key, method.redelivered
        self.body = data

    def __repr__(self) -> str:
        return f"{self.number}:{self.body!r}{'R' if self.redelivered else ''}"


def deliveries(wire: Wire, channel: int, count: int) -> list[Got]:
    """Return so many deliveries, which are all that comes."""
    return [_delivery(wire, channel) for _ in range(count)]


def _delivery(wire: Wire, channel: int) -> Got:
    content = wire.content(channel, Basic.Deliver)
    assert isinstance(content.method, Basic.Deliver)
    return Got(content.method, content.body)


def consume(
    wire: Wire, channel: int, tag: str = "c", exchange: str = "orders", *, prefetch: int = 0, no_ack: bool = False
) -> None:
    """Join the group, with a prefetch of the channel's own unless that is 0."""
    if prefetch:
        wire.ask(channel, Basic.Qos(0, prefetch), Basic.QosOk)
    request = Basic.Consume(0, exchange, tag, no_ack=no_ack)
    assert wire.ask(channel, request, Basic.ConsumeOk).consumer_tag == tag


def refused(wire: Wire, channel: int, code: int) -> str:
    """Return the reply text with which a channel is closed."""
    closed = wire.expect(channel, Channel.Close)
    wire.tell(channel, Channel.CloseOk())
    assert closed.reply_code == code
    return closed.reply_text


def publish(client: Client, port: int, vhost: VirtualHost, messages: Iterable[tuple[str, str, bytes]]) -> None:
    """Publish messages, each with its exchange, key and body, on a connection of its own, and have them confirmed."""
    with client.session(port, vhost.name) as wire:
        wire.channel(1)
        count = 0
        for exchange, key, data in messages:
            wire.publish(1, exchange, key, data)
            count += 1
        wire.confirm(1, count)
        wire.goodbye()


def numbered(count: Iterable[int], exchange: str = "orders", key: str = "key {}") -> list[tuple[str, str, bytes]]:
    """Return messages whose bodies are these numbers, each of the key that `key` makes of its number."""
    return [(exchange, key.format(number), b"%d" % number) for number in count]


def waiting(client: Client, port: int, vhost: VirtualHost, shards: Iterable[str] = SHARDS) -> dict[str, int]:
    """Return how many messages each shard has ready, as the broker counts them now."""
    with client.session(port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        asked = [wire.ask(1, Queue.Declare(0, shard, passive=True), Queue.DeclareOk) for shard in shards]
        wire.goodbye()
    return {answer.queue or "": answer.message_count or 0 for answer in asked}


def numbers(got: Iterable[Got]) -> list[int]:
    """Return the numbers that are bodies."""
    return [int(each.body) for each in got]
