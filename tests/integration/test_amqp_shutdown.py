"""How sessions end: at SIGTERM what was taken is answered first; a client's end loses nothing; a broker's is told."""

import signal
import socket
import time

import pytest
from pamqp.commands import Basic, Connection, Queue, Tx

from proxy.session.listener import LAST_WORDS
from testbed.broker import Broker
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import (
    PROTOCOL_HEADER,
    Client,
    Wire,
    port_of,
    publish_frames,
    publishing,
    wire,
)

QUEUES = ["q1", "q2", "q3"]


def ends(sidecar: Sidecar) -> None:
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0, sidecar.log()


def told_to_go(peer: Wire) -> None:
    """The session is closed with 320, and the client agrees."""
    closed = peer.expect(0, Connection.Close)
    assert closed.reply_code == 320
    assert "shutting down" in closed.reply_text
    peer.tell(0, Connection.CloseOk())
    assert peer.at_end()


def test_an_idle_session_is_closed_at_once(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sidecar = start_sidecar(drain_time="600")
    with client.session(sidecar.amqp_port, vhost.name) as peer, wire(sidecar.amqp_port) as shaking:
        peer.channel()
        shaking.send(PROTOCOL_HEADER)
        shaking.expect(0, Connection.Start)
        with wire(sidecar.amqp_port) as silent:
            sidecar.signal(signal.SIGTERM)
            told_to_go(peer)
            told_to_go(shaking)
            assert silent.at_end()
        ends(sidecar)
    with pytest.raises(ConnectionRefusedError):
        Wire(sidecar.amqp_port)


def test_unconfirmed_publishes_get_their_confirms_first(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", QUEUES)
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, drain_time="600")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "first")
            peer.confirm(1)
            link.freeze()
            for n in range(10):
                peer.publish(1, "orders", f"{n}", b"%d" % n)
            wait_until("all in flight", lambda: sidecar.metric("ringproxy_in_flight") == 10)
            sidecar.signal(signal.SIGTERM)
            wait_until("draining", lambda: sidecar.admin("/readyz").status == 503)
            # Not read any more: nobody may wait for its confirm.
            peer.publish(1, "orders", "late", b"late")
            with wire(sidecar.amqp_port) as late:
                late.send(PROTOCOL_HEADER)
                late.expect(0, Connection.Start)
                assert late.expect(0, Connection.Close).reply_code == 320
            link.thaw()
            peer.confirm(1, 11, after=1)
            told_to_go(peer)
        ends(sidecar)
    bodies = sorted(m.body for got in vhost.drain_all().values() for m in got)
    assert bodies == sorted([b"", *(b"%d" % n for n in range(10))])


def test_the_drain_time_limits_it(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, drain_time="0.5")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "first")
            peer.confirm(1)
            link.freeze()
            peer.publish(1, "orders", "k")
            wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 1)
            started = time.monotonic()
            sidecar.signal(signal.SIGTERM)
            closed = peer.expect(0, Connection.Close)
            assert closed.reply_code == 320
            ends(sidecar)
            # Beside it, what a client that does not agree gets, and a busy machine.
            assert time.monotonic() - started < 0.5 + LAST_WORDS + 5
        assert "drain_time is over, and 1 AMQP sessions are still open: they are closed" in sidecar.log()


@pytest.mark.parametrize("exchange", ["orders", "amq.fanout"])
@pytest.mark.parametrize("sent", ["method", "header", "half a body"])
def test_inside_a_content(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, exchange: str, sent: str
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(drain_time="600")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "first", b"first")
        peer.confirm(1)
        method, header, body = publish_frames(1, exchange, "k", bytes(50_000))
        begun = method + (header if sent != "method" else b"") + (body[:20_000] if sent == "half a body" else b"")
        before = sidecar.metric("ringproxy_amqp_bytes_total", leg="client")
        peer.send(begun)
        all_of_it = before + len(begun)
        wait_until("it is read", lambda: sidecar.metric("ringproxy_amqp_bytes_total", leg="client") >= all_of_it)
        sidecar.signal(signal.SIGTERM)
        assert peer.expect(0, Connection.Close).reply_code == 320
        # The body that a client has begun to write is ended before it agrees.
        peer.send(*([body[20_000:]] if sent == "half a body" else []))
        peer.tell(0, Connection.CloseOk())
        ends(sidecar)
    assert [m.body for m in vhost.drain("q")] == [b"first"]


def test_inside_a_transaction(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    """Nothing is answered before its commit, which nobody reads any more."""
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(drain_time="600")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(confirm=False)
        peer.ask(1, Tx.Select(), Tx.SelectOk)
        peer.publish(1, "orders", "k", b"committed")
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
        peer.publish(1, "orders", "k", b"open")
        wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 1)
        sidecar.signal(signal.SIGTERM)
        told_to_go(peer)
        ends(sidecar)
    assert [m.body for m in vhost.drain("q")] == [b"committed"]


def test_a_client_that_never_agrees_does_not_hold_it_up(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar(drain_time="1")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        started = time.monotonic()
        sidecar.signal(signal.SIGTERM)
        assert peer.expect(0, Connection.Close).reply_code == 320
        ends(sidecar)
        assert time.monotonic() - started < 1 + LAST_WORDS + 5


def test_nothing_acknowledged_is_lost(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar()
    acked: set[int] = set()
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        sent = 0
        while True:
            for _ in range(20):
                sent += 1
                try:
                    peer.publish(1, "orders", f"key {sent}", b"%d" % sent)
                except OSError:
                    break
            if sent == 400:
                sidecar.signal(signal.SIGTERM)
            # At most 200 wait for their confirm.
            try:
                while sent - len(acked) > 200 or sent > 2000:
                    _, frame = peer.read()
                    if isinstance(frame, Connection.Close):
                        assert frame.reply_code == 320
                        raise EOFError
                    assert isinstance(frame, Basic.Ack)
                    tag = frame.delivery_tag or 0
                    acked |= set(range(1, tag + 1)) if frame.multiple else {tag}
            except EOFError:
                break
    ends(sidecar)
    landed = {int(m.body) for got in vhost.drain_all().values() for m in got}
    assert len(acked) >= 200
    assert acked <= landed
    # Everything that it took was answered before it said 320.
    assert landed == acked


@pytest.mark.parametrize("how", ["close", "end of file"])
def test_a_client_that_just_leaves(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, how: str
) -> None:
    """All that it sent reaches the broker.

    Which gets the end of file last: RabbitMQ itself drops what its channels have not looked at by then (up to 150 of
    5,000 were seen, with and without a proxy).
    """
    vhost.ring("orders", QUEUES)
    count = 5000
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url)
        link.hold_ends()
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel(confirm=False)
            for at in range(0, count, 500):
                peer.send(*[publishing(1, "orders", f"{n}", b"%d" % n) for n in range(at, at + 500)])
            if how == "end of file":
                peer.socket.shutdown(socket.SHUT_WR)
        with client.session(sidecar.amqp_port, vhost.name) as other:
            other.channel(confirm=False)

            def there() -> int:
                asked = (other.ask(1, Queue.Declare(queue=queue, passive=True), Queue.DeclareOk) for queue in QUEUES)
                return sum(answer.message_count or 0 for answer in asked)

            wait_until("all of them", lambda: there() == count)
            link.pass_ends()
            other.goodbye()
        wait_until("both ended", lambda: sidecar.metric("ringproxy_amqp_session_ends_total", reason="client") == 2)


def test_a_client_that_leaves_while_its_publish_waits(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.management_url) as (link, management_url):
        sidecar = start_sidecar(management_url=management_url, lookup_timeout="20")
        link.freeze()
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel(confirm=False)
            peer.publish(1, "orders", "k", b"waits")
            peer.socket.shutdown(socket.SHUT_WR)
            link.thaw()
            assert peer.at_end()
    wait_until("it arrives", lambda: vhost.drain("q"))


def test_a_broker_that_goes_away(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)
            link.freeze()
            peer.publish(1, "orders", "k")
            wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 1)
            link.cut()
            link.thaw()
            assert peer.at_end()
        wait_until("ended", lambda: sidecar.metric("ringproxy_amqp_session_ends_total", reason="broker") == 1)
        link.open()
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)


def test_several_brokers(start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client) -> None:
    """Each session dials from the next address on; one that refuses is passed over."""
    vhost.ring("orders", ["q"])
    with relay(broker.amqp_url) as (link, link_url), relay(broker.amqp_url) as (cut, cut_url):
        cut.cut()
        sidecar = start_sidecar(broker_addresses=f"127.0.0.1:{port_of(cut_url)}, 127.0.0.1:{port_of(link_url)}")
        for _ in range(3):
            with client.session(sidecar.amqp_port, vhost.name) as peer:
                peer.channel()
                peer.publish(1, "orders", "k")
                peer.confirm(1)
        cut.open()
        link.cut()
        for _ in range(3):
            with client.session(sidecar.amqp_port, vhost.name) as peer:
                peer.channel()
                peer.publish(1, "orders", "k")
                peer.confirm(1)
