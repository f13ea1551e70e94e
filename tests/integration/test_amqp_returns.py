"""A message that comes back for good is told in the client's own words, and nothing lost is acknowledged.

Here the management API does not answer, so that nobody learns where a message whose queue is gone should go instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pamqp.commands import Basic, Channel, Tx
from pamqp.common import FieldTable

from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import Relay, relay
from tests.integration.rings import GONE, KEPT, KEYS, LOST, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Content, Wire

pytestmark = pytest.mark.versions


@dataclass(frozen=True)
class Blind:
    """A sidecar that reads rings again only when something says so, and its way to the management API."""

    sidecar: Sidecar
    way: Relay


@pytest.fixture
def blind(start_sidecar: StartSidecar, login: Login) -> Iterator[Blind]:
    with relay(login.management_url) as (way, url):
        yield Blind(start_sidecar(sync_interval="600", management_url=url), way)


@pytest.fixture
def peer(blind: Blind, vhost: VirtualHost, client: Client) -> Iterator[Wire]:
    """A session that has published to the ring of an exchange, one of whose queues has been deleted since."""
    vhost.ring("orders", QUEUES)
    with client.session(blind.sidecar.amqp_port, vhost.name) as made:
        made.channel(1)
        made.publish(1, "orders", KEPT[0], b"first")
        made.confirm(1)
        vhost.delete_queue(GONE)
        blind.way.cut()
        yield made


def returned(peer: Wire, channel: int = 1) -> Content:
    content = peer.content(channel, Basic.Return)
    assert isinstance(content.method, Basic.Return)
    assert content.method.reply_code == 312
    return content


def came_from(content: Content) -> tuple[str, str]:
    assert isinstance(content.method, Basic.Return)
    return content.method.exchange or "", content.method.routing_key or ""


def bodies(vhost: VirtualHost) -> list[bytes]:
    return sorted(m.body for got in vhost.drain_all().values() for m in got)


def recovers(peer: Wire, blind: Blind, vhost: VirtualHost, published: int) -> None:
    """Once the management API answers again, the keys of the queue that is gone are confirmed."""
    blind.way.open()
    blind.sidecar.wait_for_weights(vhost.name, "orders", dict.fromkeys(set(QUEUES) - {GONE}, 1))
    peer.publish(1, "orders", LOST[0], b"recovered", mandatory=True)
    told = peer.expect(1, Basic.Ack)
    assert told.delivery_tag == published + 1
    assert b"recovered" in bodies(vhost)


PROPERTIES = Basic.Properties(
    content_type="a/b",
    headers={"mine": "1", "CC": ["elsewhere"], "x-ring-id": "mine, too", "n": -5},
    correlation_id="c",
    message_id="m",
    delivery_mode=2,
)


@pytest.mark.parametrize("properties", [None, Basic.Properties(headers={}), PROPERTIES], ids=["none", "empty", "all"])
@pytest.mark.parametrize("size", [0, pytest.param(10, marks=pytest.mark.long), 300_000])
def test_a_mandatory_publish_comes_back_as_the_clients_own(
    peer: Wire, blind: Blind, vhost: VirtualHost, properties: Basic.Properties | None, size: int
) -> None:
    body = bytes(n % 251 for n in range(size))
    peer.publish(1, "orders", LOST[0], body, properties, mandatory=True)

    content = returned(peer)

    assert came_from(content) == ("orders", LOST[0])
    assert content.body == body
    assert dict(content.properties) == dict(properties or Basic.Properties())
    # AMQP tells the fate of a mandatory publish by its return; the ack says no more than that it was handled.
    assert peer.expect(1, Basic.Ack).delivery_tag == 2
    recovers(peer, blind, vhost, 2)


@pytest.mark.parametrize("size", [0, 300_000])
def test_a_publish_that_is_not_mandatory_is_nacked(peer: Wire, blind: Blind, vhost: VirtualHost, size: int) -> None:
    peer.publish(1, "orders", LOST[0], bytes(size))

    assert peer.expect(1, Basic.Nack).delivery_tag == 2

    recovers(peer, blind, vhost, 2)
    assert (
        blind.sidecar.metric("ringproxy_publishes_total", ingress="amqp", exchange="orders", outcome="unroutable") == 1
    )


def test_without_confirms_nothing_comes_back_unasked(peer: Wire, blind: Blind, vhost: VirtualHost) -> None:
    peer.channel(2, confirm=False)
    peer.publish(2, "orders", LOST[0], b"x" * 1000)
    peer.publish(2, "orders", LOST[1], b"asked", mandatory=True)

    content = returned(peer, 2)

    assert (came_from(content), content.body) == (("orders", LOST[1]), b"asked")
    assert not content.properties.headers
    recovers(peer, blind, vhost, 1)


def test_many_in_flight(peer: Wire, blind: Blind, vhost: VirtualHost) -> None:
    """Some asked for mandatory, some did not: each learns its own fate, and what is acknowledged is there."""
    mandatory = {key for n, key in enumerate(KEYS) if n % 2}
    sent = [key for key in KEYS for _ in range(3)]
    for key in sent:
        peer.publish(1, "orders", key, key.encode(), mandatory=key in mandatory)
    told: dict[int, str] = {}
    back: list[str] = []
    while len(told) < len(sent):
        channel, frame = peer.read()
        assert channel == 1
        if isinstance(frame, Basic.Return):
            back.append(frame.routing_key or "")
            peer.read()
            peer.read()
            continue
        assert isinstance(frame, Basic.Ack | Basic.Nack)
        tag = (frame.delivery_tag or 0) - 2
        numbers = [n for n in range(tag + 1) if n not in told] if frame.multiple else [tag]
        told |= dict.fromkeys(numbers, "ack" if isinstance(frame, Basic.Ack) else "nack")
    landed = bodies(vhost)
    confirmed = [key for n, key in enumerate(sent) if told[n] == "ack" and key not in back]
    assert set(back) <= mandatory & set(LOST)
    assert set(KEPT) <= set(confirmed)
    assert sorted([b"first", *(key.encode() for key in confirmed)]) == landed
    # Those that came back were told of, or nacked; and some were, before the ring was read again.
    failed = {key for n, key in enumerate(sent) if told[n] == "nack"}
    assert failed <= set(LOST) - mandatory
    assert failed


def test_returns_of_passed_publishes(peer: Wire, blind: Blind) -> None:
    """Untouched, on a channel with publishes to rings: also those that look like the proxy's own."""
    blind.way.open()
    headers: FieldTable = {"x-ring-exchange": "orders", "x-ring-routing-key": "k", "x-ring-id": 12345678901234}
    for exchange, key in (("amq.direct", "nobody"), ("", GONE)):
        peer.publish(1, exchange, key, b"passed", Basic.Properties(headers=headers), mandatory=True)
        content = returned(peer)
        assert came_from(content) == (exchange, key)
        assert content.properties.headers == headers
        assert content.body == b"passed"
        peer.expect(1, Basic.Ack)


@pytest.mark.parametrize("mandatory", [True, False])
def test_stamps_that_do_not_fit(blind: Blind, vhost: VirtualHost, client: Client, mandatory: bool) -> None:
    """A header frame that the stamps would make too large goes out without them, and comes back all the same.

    It is not published again: nothing would tell it from others if it came back once more. Nor whose it is: so its
    client hears of it in any case.
    """
    vhost.ring("orders", QUEUES)
    with client.session(blind.sidecar.amqp_port, vhost.name, frame_max=8192) as peer:
        peer.channel(1)
        properties = Basic.Properties(headers={"large": "x" * (8192 - 60)})
        peer.publish(1, "orders", KEPT[0], b"kept", properties, mandatory=mandatory)
        peer.confirm(1)
        vhost.delete_queue(GONE)
        blind.way.cut()

        peer.publish(1, "orders", LOST[0], b"lost", properties, mandatory=mandatory)

        content = returned(peer)
        assert (came_from(content), content.body) == (("orders", LOST[0]), b"lost")
        assert content.properties.headers == properties.headers
        answer = peer.expect(1, Basic.Ack) if mandatory else peer.expect(1, Basic.Nack)
        assert answer.delivery_tag == 2
    (message,) = [m for got in vhost.drain_all().values() for m in got]
    assert set(message.headers) == {"large"}


def test_an_exchange_of_the_ring_that_nobody_is_bound_to(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """As natively: what the exchange behind the ring does not deliver is gone, and told only where it was asked for."""
    vhost.exchange("orders")
    vhost.exchange("behind", "topic")
    vhost.bind("orders", "behind", kind="e")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"unasked")
        assert peer.expect(1, Basic.Ack).delivery_tag == 1
        peer.publish(1, "orders", "k", b"asked", mandatory=True)
        content = returned(peer)
        assert (came_from(content), content.body) == (("orders", "k"), b"asked")
        assert peer.expect(1, Basic.Ack).delivery_tag == 2


def test_in_a_transaction(peer: Wire, blind: Blind, vhost: VirtualHost) -> None:
    """A commit that lost something is no commit: the channel is closed instead."""
    peer.channel(2, confirm=False)
    peer.ask(2, Tx.Select(), Tx.SelectOk)
    peer.publish(2, "orders", LOST[0], b"lost")
    peer.publish(2, "orders", KEPT[0], b"kept")
    closed = peer.ask(2, Tx.Commit(), Channel.Close)
    assert closed.reply_code == 541
    assert "1 publishes" in closed.reply_text
    peer.tell(2, Channel.CloseOk())
    # With mandatory the client is told, and that is all.
    peer.channel(2, confirm=False)
    peer.ask(2, Tx.Select(), Tx.SelectOk)
    vhost.delete_queue("q1")
    key = next(key for key in KEYS if owner(["q1", "q3"], key) == "q1")
    peer.publish(2, "orders", key, b"lost", mandatory=True)
    peer.tell(2, Tx.Commit())
    assert came_from(returned(peer, 2)) == ("orders", key)
    peer.expect(2, Tx.CommitOk)
