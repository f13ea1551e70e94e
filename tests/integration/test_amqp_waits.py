"""Who waits while the management API, or one queue of the broker, does not answer: nobody but who must."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue

from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.own_node import own_node, private_only
from tests.integration.relay import Relay, relay
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire

QUEUES = [f"q{n}" for n in range(8)]
GONE = QUEUES[:4]
KEYS = [f"key {n}" for n in range(400)]
HEALTHY = [key for key in KEYS if owner(QUEUES, key) not in GONE]
LOST = [key for key in KEYS if owner(QUEUES, key) in GONE]
FOR_EVER = "600"


@contextmanager
def publishing(
    start: StartSidecar, login: Login, vhost: VirtualHost, client: Client, **settings: str
) -> Iterator[tuple[Sidecar, Relay, Wire]]:
    """A session that has published to a ring, and the way to the management API of its sidecar."""
    vhost.ring("orders", QUEUES)
    with relay(login.management_url) as (link, management_url):
        sidecar = start(management_url=management_url, sync_interval=FOR_EVER, **settings)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel(1)
            peer.publish(1, "orders", HEALTHY[0], b"first")
            peer.confirm(1)
            yield sidecar, link, peer


def test_healthy_queues_are_answered_while_the_api_hangs_and_several_queues_are_gone(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """Their acks do not wait for the reading that returns of other queues have asked for, which hangs all along."""
    settings = {"management_timeout": FOR_EVER, "lookup_timeout": FOR_EVER}
    with publishing(start_sidecar, login, vhost, client, **settings) as (sidecar, link, peer):
        peer.ask(2, Channel.Open(), Channel.OpenOk)
        vhost.queue("other")
        peer.ask(2, Basic.Consume(queue="other", consumer_tag="c", no_ack=True), Basic.ConsumeOk)
        link.freeze()
        for queue in GONE:
            vhost.delete_queue(queue)
        mixed = [key for pair in zip(LOST, HEALTHY, strict=False) for key in pair]
        for key in mixed:
            peer.publish(1, "orders", key, key.encode())
        waiting = {n for n, key in enumerate(mixed, 2) if key in HEALTHY}
        told: set[int] = set()
        while waiting - told:
            at, answer = peer.read()
            assert at == 1
            assert isinstance(answer, Basic.Ack), answer
            tag = answer.delivery_tag or 0
            told |= {n for n in range(2, tag + 1) if n not in told} if answer.multiple else {tag}
        assert told == waiting, "one that came back was acknowledged before it was placed"
        # A delivery on another channel of the session does not wait either.
        peer.channel(3, confirm=False)
        peer.publish(3, "", "other", b"delivered")
        assert peer.content(2, Basic.Deliver).body == b"delivered"
        link.thaw()
        left = [n for n in range(2, len(mixed) + 2) if n not in told]
        while left:
            at, answer = peer.read()
            assert (at, type(answer)) == (1, Basic.Ack), answer
            assert isinstance(answer, Basic.Ack)
            tag = answer.delivery_tag or 0
            left = [n for n in left if n != tag and not (answer.multiple and n <= tag)]
    found = {message.body for messages in vhost.drain_all().values() for message in messages}
    assert found == {b"first", *(key.encode() for key in mixed)}
    assert sidecar.metric("ringproxy_rerouted_total", ingress="amqp", exchange="orders") >= len(mixed) / 2


def test_once_a_reading_has_failed_no_return_waits_for_another(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """Whichever queue it came back from: each is answered by the ring that there is, and readings go on behind."""
    settings = {"management_timeout": FOR_EVER, "lookup_timeout": FOR_EVER}
    with publishing(start_sidecar, login, vhost, client, **settings) as (sidecar, link, peer):
        link.cut()
        for queue in GONE:
            vhost.delete_queue(queue)
        peer.publish(1, "orders", LOST[0])
        assert peer.expect(1, Basic.Nack).delivery_tag == 2
        assert sidecar.metric("ringproxy_syncs_total", result="failed") >= 1
        # From now on a reading hangs.
        link.freeze()
        link.open()
        for n, key in enumerate(LOST[:100], 3):
            peer.publish(1, "orders", key)
            assert peer.expect(1, Basic.Nack).delivery_tag == n
        link.thaw()

        def placed() -> bool:
            peer.publish(1, "orders", LOST[0], b"placed")
            _, answer = peer.read()
            return isinstance(answer, Basic.Ack)

        wait_until("the ring is read again", placed)


def test_a_declaration_that_changes_nothing_costs_no_request(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """As of a program that connects, declares its exchange, queue and binding, publishes and leaves."""
    settings = {"management_timeout": FOR_EVER, "lookup_timeout": FOR_EVER}
    with publishing(start_sidecar, login, vhost, client, **settings) as (sidecar, link, _):
        link.freeze()
        for _ in range(3):
            with client.session(sidecar.amqp_port, vhost.name) as program:
                program.channel(1)
                program.ask(
                    1,
                    Exchange.Declare(exchange="orders", exchange_type="x-consistent-hash", durable=True),
                    Exchange.DeclareOk,
                )
                program.ask(1, Queue.Declare(queue="q1", durable=True), Queue.DeclareOk)
                program.ask(1, Queue.Bind(queue="q1", exchange="orders", routing_key="1"), Queue.BindOk)
                program.publish(1, "orders", "key")
                program.confirm(1)


@pytest.mark.parametrize("since_the_start", [True, False])
def test_a_shadowed_publish_waits_for_nothing(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, since_the_start: bool
) -> None:
    """Over AMQP and HTTP, with a management API that hangs, also behind a declaration that changes something."""
    vhost.ring("orders", QUEUES)
    with relay(login.management_url) as (link, management_url):
        if since_the_start:
            link.freeze()
        settings = {"lookup_timeout": FOR_EVER, "management_timeout": FOR_EVER, "sync_interval": FOR_EVER}
        sidecar = start_sidecar(management_url=management_url, shadow="orders", **settings)
        if not since_the_start:
            assert sidecar.publish("orders", "first", b"x", vhost=vhost.name).status == 200
            sidecar.wait_for_weights(vhost.name, "orders", dict.fromkeys(QUEUES, 1))
            link.freeze()
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel(1)
            peer.publish(1, "orders", "before")
            peer.confirm(1)
            peer.ask(1, Queue.Declare(queue="new", durable=True), Queue.DeclareOk)
            peer.ask(1, Queue.Bind(queue="new", exchange="orders", routing_key="1"), Queue.BindOk)
            peer.publish(1, "orders", "after")
            peer.confirm(1, 2, 1)
        if not since_the_start:
            assert sidecar.publish("orders", "http", b"x", vhost=vhost.name).status == 200
        assert sidecar.metric("ringproxy_amqp_refusals_total", code="541") == 0


@private_only
def test_a_queue_that_does_not_answer_holds_the_channel_that_asked_it_and_no_other(start_sidecar: StartSidecar) -> None:
    """A queue's process stands still: a deletion of it is not answered, nor is what its channel publishes behind."""
    with own_node("") as (node, control):
        vhost = VirtualHost(BrokerApi(node.management_url), "stuck", [])
        vhost.ring("orders", ["q1"])
        vhost.queue("busy")
        sidecar = start_sidecar(
            broker_url=node.amqp_url, management_url=node.management_url, confirm_timeout="1", drain_time="1"
        )
        process = (
            'fun(Do) -> {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"stuck">>, queue, <<"busy">>)),'
            " sys:Do(amqqueue:get_pid(Q)) end"
        )
        with Client("guest", "guest").session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel(1)
            peer.channel(2)
            control("eval", f"({process})(suspend).")
            try:
                peer.tell(1, Queue.Delete(queue="busy"))
                peer.publish(1, "orders", "behind")
                peer.publish(2, "orders", "beside")
                peer.confirm(2)
                # The first is refused in the end, and its number stays taken until the broker answers.
                closed = peer.expect(1, Channel.Close)
                assert closed.reply_code == 541
                assert "has not answered a declaration" in closed.reply_text
                peer.tell(1, Channel.CloseOk())
                peer.publish(2, "orders", "beside, later")
                peer.confirm(2, 2, 1)
                peer.tell(1, Channel.Open())
                assert "has not closed" in peer.expect(1, Channel.Close).reply_text
                peer.tell(1, Channel.CloseOk())
            finally:
                control("eval", f"({process})(resume).")
            peer.tell(1, Channel.Open())
            at, answer = peer.read()
            while isinstance(answer, Channel.Close):
                peer.tell(1, Channel.CloseOk())
                peer.tell(1, Channel.Open())
                at, answer = peer.read()
            assert (at, type(answer)) == (1, Channel.OpenOk)
            peer.goodbye()
