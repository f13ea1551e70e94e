"""An AMQP session hands on everything but publishes to rings as it is: handshake, channels, contents, consumers."""

import struct
from contextlib import ExitStack

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue
from pamqp.header import ContentHeader

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import (
    PROTOCOL_HEADER,
    Client,
    Wire,
    port_of,
    publish_frames,
    raw_frame,
    short,
    wire,
)

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]


def least_frame_max(broker: Broker) -> int:
    major, minor = (int(part) for part in broker.version.split(".")[:2])
    return 8192 if (major, minor) >= (4, 1) else 4096


def test_sessions_in_several_virtual_hosts(
    sidecar: Sidecar, vhost: VirtualHost, other_vhost: VirtualHost, client: Client
) -> None:
    hosts = {vhost: ["a1", "a2"], other_vhost: ["b1", "b2", "b3"]}
    with ExitStack() as stack:
        sessions: list[tuple[VirtualHost, list[str], Wire]] = []
        for host, queues in hosts.items():
            host.ring("orders", queues)
            for _ in range(2):
                made = stack.enter_context(client.session(sidecar.amqp_port, host.name))
                made.channel()
                sessions.append((host, queues, made))
        for n in range(20):
            for host, _, made in sessions:
                made.publish(1, "orders", f"key {n}", host.name.encode())
        for _, _, made in sessions:
            made.confirm(1, 20)
    for host, queues in hosts.items():
        landed = {(m.headers["x-ring-routing-key"], m.body): q for q, got in host.drain_all().items() for m in got}
        assert landed == {(f"key {n}", host.name.encode()): owner(queues, f"key {n}") for n in range(20)}


def most_channels(client: Client, broker: Broker, vhost: VirtualHost) -> int:
    """One fewer than the broker has: that one is the proxy's own."""
    with client.session(port_of(broker.amqp_url), vhost.name) as direct:
        return (direct.tune.channel_max or 65535) - 1


def test_the_last_channel_that_is_offered(sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker) -> None:
    vhost.ring("orders", QUEUES)
    most = most_channels(client, broker, vhost)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        assert peer.tune.channel_max == most
        peer.channel(most)
        peer.publish(most, "orders", "last", b"last")
        peer.confirm(most)
        peer.tell(most + 1, Channel.Open())
        assert peer.expect(0, Connection.Close).reply_code == 530
    assert {q: [m.body for m in got] for q, got in vhost.drain_all().items()} == {owner(QUEUES, "last"): [b"last"]}


@pytest.mark.long
def test_every_channel_that_is_offered(sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker) -> None:
    vhost.ring("orders", QUEUES)
    most = most_channels(client, broker, vhost)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        assert peer.tune.channel_max == most
        for number in range(1, most + 1):
            peer.channel(number)
        for number in range(1, most + 1):
            peer.publish(number, "orders", f"{number}", b"%d" % number)
        confirmed: set[int] = set()
        while len(confirmed) < most:
            number, answer = peer.read()
            assert isinstance(answer, Basic.Ack)
            assert answer.delivery_tag == 1
            confirmed.add(number)
        assert peer.ask(1, Queue.Declare(queue="q1", passive=True), Queue.DeclareOk).message_count
        peer.tell(most + 1, Channel.Open())
        assert peer.expect(0, Connection.Close).reply_code == 530
    landed = {m.body: q for q, got in vhost.drain_all().items() for m in got}
    assert landed == {b"%d" % n: owner(QUEUES, f"{n}") for n in range(1, most + 1)}


def test_the_smallest_frames(sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker) -> None:
    vhost.ring("orders", ["q"])
    body = bytes(n * 7 % 251 for n in range(200_000))
    with client.session(sidecar.amqp_port, vhost.name, frame_max=least_frame_max(broker)) as peer:
        peer.channel()
        for exchange in ("orders", ""):
            peer.publish(1, exchange, "q", body)
        peer.confirm(1, 2)
        peer.channel(2, confirm=False)
        peer.ask(2, Basic.Consume(queue="q", no_ack=True), Basic.ConsumeOk)
        first, second = (peer.content(2, Basic.Deliver) for _ in range(2))
        assert first.body == second.body == body
        assert first.properties.headers
        assert not second.properties.headers
        peer.goodbye()


@pytest.mark.parametrize("exchange", ["orders", "amq.fanout"])
def test_empty_bodies(sidecar: Sidecar, vhost: VirtualHost, client: Client, exchange: str) -> None:
    vhost.ring("orders", ["q"])
    vhost.bind("amq.fanout", "q")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for _ in range(3):
            peer.publish(1, exchange, "k")
        peer.confirm(1, 3)
        peer.goodbye()
    assert [m.body for m in vhost.drain("q")] == [b""] * 3


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_contents_of_several_channels_in_turn(sidecar: Sidecar, vhost: VirtualHost, client: Client, step: int) -> None:
    """Frame by frame, in pieces of some bytes."""
    vhost.ring("orders", QUEUES)
    vhost.queue("passed")
    vhost.bind("amq.fanout", "passed")
    exchanges = {1: "orders", 2: "amq.fanout", 3: "orders", 4: ""}
    keys = {1: "key 1", 2: "", 3: "key 3", 4: "passed"}
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        for number in exchanges:
            peer.channel(number)
        contents = [
            publish_frames(n, exchanges[n], keys[n], b"%d" % n * 30, frame_max=18) for n in exchanges for _ in range(2)
        ]
        # Each channel's two contents follow each other; the channels take turns with their frames.
        by_channel = [contents[n] + contents[n + 1] for n in range(0, len(contents), 2)]
        sent = b"".join(frame for frames in zip(*by_channel, strict=True) for frame in frames)
        for at in range(0, len(sent), step):
            peer.send(sent[at : at + step])
        told: dict[int, int] = {}
        while set(told.values()) != {2} or len(told) < 4:
            number, answer = peer.read()
            assert isinstance(answer, Basic.Ack)
            told[number] = answer.delivery_tag or 0
        peer.goodbye()
    landed = sorted((q, m.body) for q, got in vhost.drain_all().items() for m in got)
    expected = {1: owner(QUEUES, "key 1"), 2: "passed", 3: owner(QUEUES, "key 3"), 4: "passed"}
    assert landed == sorted((queue, b"%d" % n * 30) for n, queue in expected.items() for _ in range(2))


def test_consuming_and_getting_on_the_connection_that_publishes(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["consumed"])
    vhost.ring("others", ["got"])
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.channel(2, confirm=False)
        peer.ask(2, Basic.Qos(prefetch_count=1), Basic.QosOk)
        peer.ask(2, Basic.Consume(queue="consumed", consumer_tag="me"), Basic.ConsumeOk)
        for n in range(5):
            peer.publish(1, "orders", f"key {n}", b"%d" % n)
        peer.publish(1, "others", "got key", b"got")
        bodies: list[bytes] = []
        acked = 0
        while len(bodies) < 5 or acked < 6:
            number, frame = peer.read()
            if isinstance(frame, Basic.Ack):
                acked = max(acked, frame.delivery_tag or 0)
            elif isinstance(frame, Basic.Deliver):
                assert (number, frame.exchange, frame.routing_key) == (2, "", "consumed")
                tag = frame.delivery_tag or 0
                _, head = peer.read()
                assert isinstance(head, ContentHeader)
                _, _, body = peer.read_frame()
                bodies.append(body)
                assert (head.properties.headers or {})["x-ring-routing-key"] == f"key {len(bodies) - 1}"
                peer.tell(2, Basic.Ack(tag))
        assert bodies == [b"%d" % n for n in range(5)]
        peer.ask(2, Basic.Cancel("me"), Basic.CancelOk)
        got = peer.get(2, "got")
        assert got is not None
        assert got.body == b"got"
        assert (got.properties.headers or {})["x-ring-exchange"] == "others"
        assert peer.get(2, "got") is None
        peer.goodbye()


def test_exclusive_and_server_named_queues(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        named = peer.ask(1, Queue.Declare(queue="", exclusive=True), Queue.DeclareOk).queue or ""
        # The empty name is the last queue declared; with an empty routing key that is its key, too: no weight.
        peer.ask(1, Queue.Bind(queue="", exchange="orders", routing_key="2"), Queue.BindOk)
        peer.publish(1, "orders", "k", b"mine", mandatory=True)
        peer.confirm(1)
        got = peer.get(1, named)
        assert got is not None
        assert isinstance(got.method, Basic.GetOk)
        assert (got.body, got.method.exchange, got.method.routing_key) == (b"mine", "", named)
        assert sidecar.weights(vhost.name, "orders") == {named: 2}
        # Nobody else may use what is exclusive. (Tried with a short name: 4.3.6 names the queue and the virtual host in
        # its refusal, and where that makes more than the 255 bytes of a reply-text, ends the connection with 541.)
        peer.ask(1, Queue.Declare(queue="own", exclusive=True), Queue.DeclareOk)
        with client.session(sidecar.amqp_port, vhost.name) as other:
            other.channel()
            assert other.ask(1, Queue.Declare(queue="own", passive=True), Channel.Close).reply_code == 405
        peer.goodbye()
    wait_until("they go with their session", lambda: vhost.queues() == [])


REQUESTS: list[tuple[base.Frame, type[base.Frame]]] = [
    (Exchange.Declare(exchange="made", exchange_type="topic", durable=True), Exchange.DeclareOk),
    (Exchange.Declare(exchange="made", exchange_type="topic", durable=True, passive=True), Exchange.DeclareOk),
    (Exchange.Bind(destination="made", source="amq.topic", routing_key="a.#"), Exchange.BindOk),
    (Exchange.Unbind(destination="made", source="amq.topic", routing_key="a.#"), Exchange.UnbindOk),
    (Queue.Declare(queue="made", durable=True, arguments={"x-max-length": 10}), Queue.DeclareOk),
    (Queue.Bind(queue="made", exchange="amq.headers", arguments={"x-match": "all", "a": 1}), Queue.BindOk),
    (Queue.Unbind(queue="made", exchange="amq.headers", arguments={"x-match": "all", "a": 1}), Queue.UnbindOk),
    (Queue.Purge(queue="made"), Queue.PurgeOk),
    (Basic.Recover(requeue=True), Basic.RecoverOk),
    (Queue.Delete(queue="made", if_empty=True), Queue.DeleteOk),
    (Exchange.Delete(exchange="made", if_unused=True), Exchange.DeleteOk),
    (Channel.Flow(active=True), Channel.FlowOk),
    (Channel.Close(200, "", 0, 0), Channel.CloseOk),
]


def test_requests_and_their_answers(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(confirm=False)
        for request, answer in REQUESTS:
            peer.ask(1, request, answer)
        peer.channel(confirm=False)
        peer.goodbye()


HEADERS = b"".join(
    (
        # Entries of RabbitMQ's types, x-ring ones of the client's own among them.
        short(b"x-ring-id") + b"l" + bytes(8),
        short(b"x-ring-exchange") + b"S" + struct.pack(">I", 4) + b"mine",
        short(b"CC") + b"A" + struct.pack(">I", 6) + b"S\0\0\0\1q",
        short(b"array") + b"A" + struct.pack(">I", 10) + b"I\xff\xff\xff\xfft\x01Vb\x80",
        short(b"table") + b"F" + struct.pack(">I", 14) + short(b"in") + b"d" + struct.pack(">d", 1.5) + b"\x00V",
        short(b"raw") + b"x" + struct.pack(">I", 2) + b"\x00\xff",
        short(b"T") + b"T" + struct.pack(">Q", 1),
    )
)
ALL_PROPERTIES = bytes.fromhex("fffc") + b"".join(
    (
        short(b"text/\xff"),
        short(b"gz"),
        struct.pack(">I", len(HEADERS)) + HEADERS,
        b"\x02\x09",
        *map(short, (b"correlation", b"reply", b"60000", b"id")),
        struct.pack(">Q", 1700000000),
        *map(short, (b"type", b"guest", b"app", b"")),
    )
)


def test_other_publishes_arrive_as_they_were_sent(
    sidecar: Sidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    """The frames of the delivery are those of the same publish without a proxy."""
    for queue, key in (("all", "#"), ("copied", "q")):
        vhost.queue(queue)
        vhost.bind("amq.topic", queue, key)
    header = struct.pack(">HHQ", 60, 0, 3) + ALL_PROPERTIES
    method = b"\x00\x3c\x00\x28\x00\x00" + short(b"amq.topic") + short(b"key \xff\xfe") + b"\x01"
    seen = []
    for port in (port_of(broker.amqp_url), sidecar.amqp_port):
        with client.session(port, vhost.name) as peer:
            peer.channel()
            peer.send(raw_frame(1, 1, method), raw_frame(2, 1, header), raw_frame(3, 1, b"abc"))
            peer.confirm(1)
            for queue in ("all", "copied"):
                peer.tell(1, Basic.Get(0, queue, True))
                seen.append([peer.read_frame() for _ in range(3)])
            peer.goodbye()
    assert seen[:2] == seen[2:]
    method_got, header_got, body_got = seen[2]
    assert b"key \xff\xfe" in method_got[2]
    assert short(b"text/\xff") in header_got[2]
    assert short(b"x-ring-exchange") + b"S\0\0\0\4mine" in header_got[2]
    assert body_got[2] == b"abc"


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_logins_with_a_password(sidecar: Sidecar, vhost: VirtualHost, client: Client, mechanism: str) -> None:
    # The second is a table without its length.
    entries = short(b"LOGIN") + b"S" + struct.pack(">I", len(client.user)) + client.user.encode()
    entries += short(b"PASSWORD") + b"S" + struct.pack(">I", len(client.password)) + client.password.encode()
    response = entries.decode() if mechanism == "AMQPLAIN" else f"\0{client.user}\0{client.password}"
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        start = peer.expect(0, Connection.Start)
        assert mechanism in start.mechanisms.split()
        peer.tune = peer.ask(0, Connection.StartOk({}, mechanism, response), Connection.Tune)
        peer.open(vhost.name)
        peer.channel()
        peer.goodbye()


def test_the_header_of_amqp_0_9_stands_for_0_9_1(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """RabbitMQ takes it so, and Perl's clients send it."""
    with wire(sidecar.amqp_port) as peer:
        peer.send(b"AMQP\x01\x01\x00\x09")
        peer.expect(0, Connection.Start)
        response = f"\0{client.user}\0{client.password}"
        peer.tune = peer.ask(0, Connection.StartOk({}, "PLAIN", response), Connection.Tune)
        peer.open(vhost.name)
        peer.goodbye()


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS"])
def test_the_proxys_own_identity_is_not_lent(sidecar: Sidecar, mechanism: str) -> None:
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        assert mechanism not in peer.expect(0, Connection.Start).mechanisms.split()
        closed = peer.ask(0, Connection.StartOk({}, mechanism, ""), Connection.Close)
        assert closed.reply_code == 503
        assert "allow_mechanisms" in closed.reply_text


def test_a_secret_is_renewed(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q"])
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.ask(0, Connection.UpdateSecret("new", "a test"), Connection.UpdateSecretOk)
        peer.publish(1, "orders", "k")
        peer.confirm(1)
        peer.goodbye()


def test_who_is_behind_it_shows_at_the_broker(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        assert peer.start.server_properties["product"] == "RabbitMQ"
        peer.channel()
        found = wait_until("it is listed", lambda: vhost.api.ask("GET", "vhosts", vhost.name, "connections"))
        properties = found[0]["client_properties"]
        assert properties["product"] == "wire"
        assert properties["ringproxy_ring_format"] == "1"
        assert properties["ringproxy_version"]


def test_heartbeats_keep_an_idle_session(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q"])
    with client.pika(sidecar.amqp_port, vhost.name, heartbeat=1) as channel:
        channel.basic_publish("orders", "k", b"before")
        # Longer than the two intervals after which either side gives up.
        channel.connection.process_data_events(3.5)
        channel.basic_publish("orders", "k", b"after")
    assert len(vhost.drain("q")) == 2


def test_a_frame_of_a_heartbeat_between_those_of_a_content(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", ["q"])
    with client.session(sidecar.amqp_port, vhost.name, heartbeat=30) as peer:
        peer.channel()
        for frame in publish_frames(1, "orders", "k", b"abcdef", frame_max=11):
            peer.send(frame, b"\x08\0\0\0\0\0\0\xce")
        peer.confirm(1)
        peer.goodbye()
    assert [m.body for m in vhost.drain("q")] == [b"abcdef"]
