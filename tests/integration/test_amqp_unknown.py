"""An exchange that cannot be read: its publishes close their channel, for a key placed natively would be worse."""

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import management_front, relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import HEARTBEAT, Client, Wire, port_of, publish_frames, publishing

pytestmark = pytest.mark.versions


def refused(peer: Wire, channel: int, exchange: str = "orders") -> str:
    return refusal(peer, channel, peer.expect(channel, Channel.Close), exchange)


def refusal(peer: Wire, channel: int, closed: Channel.Close, exchange: str = "orders") -> str:
    assert closed.reply_code == 541
    assert closed.reply_text.startswith(f"INTERNAL_ERROR - the ring of exchange '{exchange}' is not known: ")
    assert (closed.class_id, closed.method_id) == (60, 40)
    peer.tell(channel, Channel.CloseOk())
    return closed.reply_text


def bodies(vhost: VirtualHost, queue: str = "q") -> list[bytes]:
    return [m.body for m in vhost.drain(queue)]


def unavailable(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_publishes_total", ingress="amqp", outcome="unavailable")


def test_only_its_channel_is_closed(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    vhost.ring("read", ["r"])
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, lookup_timeout="0.5")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            for number in (1, 2, 3):
                peer.channel(number)
            peer.publish(1, "read", "k", b"before")
            peer.confirm(1)
            front.answer("", 503)
            # Frames after it on its channel are dropped; the other channels' wait, and go on.
            peer.send(
                publishing(1, "orders", "k", b"refused"),
                publishing(1, "read", "k", b"dropped"),
                publishing(1, "", "q", b"dropped"),
                publishing(2, "read", "k", b"ring"),
                publishing(3, "", "q", b"passed"),
            )
            # The broker's channels answer in any order.
            told = dict(peer.read() for _ in range(3))
            closed = told.pop(1)
            assert isinstance(closed, Channel.Close)
            assert "503" in refusal(peer, 1, closed)
            assert {n: frame.delivery_tag for n, frame in told.items() if isinstance(frame, Basic.Ack)} == {2: 1, 3: 1}
            # Its number is free at once.
            peer.channel(1)
            peer.publish(1, "read", "k", b"anew")
            peer.confirm(1)
            assert unavailable(sidecar) == 1
            assert sidecar.metric("ringproxy_amqp_refusals_total", code="541") == 1
            front.answers.clear()

            def readable() -> bool:
                peer.publish(1, "orders", "k", b"readable")
                _, frame = peer.read()
                if isinstance(frame, Channel.Close):
                    peer.tell(1, Channel.CloseOk())
                    peer.channel(1)
                return isinstance(frame, Basic.Ack)

            wait_until("readable", readable)
            peer.goodbye()
    assert bodies(vhost, "r") == [b"before", b"ring", b"anew"]
    assert bodies(vhost) == [b"passed", b"readable"]


def test_no_management_api_at_all(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, login: Login
) -> None:
    """Nothing listens where it should be; all that needs no ring goes on."""
    vhost.ring("orders", ["q"])
    with relay(login.management_url) as (link, management_url):
        link.cut()
        sidecar = start_sidecar(management_url=management_url, lookup_timeout="0.3")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "", "q", b"default")
            peer.confirm(1)
            peer.ask(1, Queue.Declare(queue="made"), Queue.DeclareOk)
            for _ in range(3):
                peer.publish(1, "orders", "k", b"refused")
                refused(peer, 1)
                peer.channel()
            peer.goodbye()
    assert bodies(vhost) == [b"default"]


def test_answers_to_earlier_publishes_come_before_the_close(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, lookup_timeout="0.5")
        front.answer("", 500)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.send(*[publishing(1, "", "q", b"%d" % n) for n in range(10)], publishing(1, "orders", "k"))
            peer.confirm(1, 10)
            refused(peer, 1)
            # Inside a content, sent on after the close.
            peer.channel()
            method, header, body = publish_frames(1, "orders", "k", bytes(1000))
            peer.send(method)
            closed = peer.expect(1, Channel.Close)
            assert closed.reply_code == 541
            peer.send(header, body)
            peer.tell(1, Channel.CloseOk())
            peer.channel()
            peer.goodbye()
    assert bodies(vhost) == [b"%d" % n for n in range(10)]


def test_a_client_that_closes_the_channel_while_its_publish_waits(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, lookup_timeout="0.5")
        front.answer("", 500)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.tell(1, Channel.Close(200, "", 0, 0))
            # Both close: each side's close has its answer.
            closed = peer.expect(1, Channel.Close)
            assert closed.reply_code == 541
            peer.expect(1, Channel.CloseOk)
            peer.tell(1, Channel.CloseOk())
            peer.channel()
            peer.goodbye()


def test_the_connection_outlives_a_long_wait(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """The client is read meanwhile, and its heartbeats reach the broker."""
    vhost.ring("orders", ["q"])
    with relay(login.management_url) as (link, management_url):
        sidecar = start_sidecar(management_url=management_url, lookup_timeout="30", management_timeout="30")
        link.freeze()
        # RabbitMQ gives up on a client that is silent for two intervals.
        with client.session(sidecar.amqp_port, vhost.name, heartbeat=1) as peer:
            peer.channel()
            peer.publish(1, "orders", "k", b"waits")
            heard = 0
            while heard < 8:
                # The broker's own, every half second.
                kind, _, _ = peer.read_frame()
                assert kind == 8
                peer.send(HEARTBEAT)
                heard += 1
            assert unavailable(sidecar) == 0
            link.thaw()
            peer.confirm(1)
    wait_until("it arrives", lambda: bodies(vhost) == [b"waits"])


def test_a_virtual_host_that_the_management_user_may_not_see(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """RabbitMQ 4.3 answers as if it did not exist; but the session is open in it, so its exchanges are not absent."""
    vhost.ring("orders", ["q"])
    with management_front(login.management_url) as front:
        front.answer("/exchanges", 404, {})
        front.answer("/vhosts", 200, [])
        sidecar = start_sidecar(management_url=front.url)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k", b"refused")
            assert "may not see it" in refused(peer, 1)
    assert bodies(vhost) == []


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_is_a_step_of_a_urls_path_is_decided_at_once(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker, name: str
) -> None:
    """The management API cannot be asked for the bindings of such an exchange, but for its type."""
    for kind in ("fanout", "x-consistent-hash"):
        with client.session(port_of(broker.amqp_url), vhost.name) as peer:
            peer.channel()
            peer.ask(1, Exchange.Declare(exchange=name, exchange_type=kind), Exchange.DeclareOk)
            peer.ask(1, Queue.Declare(queue="q"), Queue.DeclareOk)
            peer.ask(1, Queue.Bind(queue="q", exchange=name, routing_key="1"), Queue.BindOk)
            peer.goodbye()
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, name, "k", b"1")
            if kind == "fanout":
                peer.confirm(1)
                peer.ask(1, Exchange.Delete(exchange=name), Exchange.DeleteOk)
            else:
                assert "cannot be asked for what is called" in refused(peer, 1, name)
            peer.goodbye()
    assert bodies(vhost) == [b"1"]
