"""Where publishes to rings go over AMQP, what they carry, and what they hash."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue
from pamqp.common import FieldTable, FieldValue

from ring.destination import Destination
from ring.ring import Ring
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, port_of, raw_frame, short

QUEUES = ["q1", "q2", "q3"]
KEYS = [f"key {n}" for n in range(30)]


def landed(vhost: VirtualHost) -> dict[str, str]:
    """The queue of each message, by its body."""
    return {m.body.decode(): queue for queue, got in vhost.drain_all().items() for m in got}


def publish(peer: Wire, exchange: str, messages: Iterable[tuple[str, Basic.Properties | None]]) -> None:
    """Messages by body and routing key, all of them confirmed."""
    count = 0
    for body, properties in messages:
        count += 1
        peer.publish(1, exchange, body, body.encode(), properties)
    peer.confirm(1, count)


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash"])
def test_by_the_routing_key(sidecar: Sidecar, vhost: VirtualHost, client: Client, kind: str) -> None:
    weights = {"q1": 1, "q2": 5, "q3": 2}
    vhost.ring("orders", weights, kind)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        publish(peer, "orders", ((key, None) for key in KEYS))
    assert landed(vhost) == {key: owner(weights if kind == "x-consistent-hash" else QUEUES, key) for key in KEYS}


def test_any_bytes_are_a_routing_key(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES)
    keys = [b"", b"\xff\xfe", bytes(range(255)), "ünï".encode(), b"a" * 255]
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for n, key in enumerate(keys):
            method = b"\x00\x3c\x00\x28\x00\x00" + short(b"orders") + short(key) + b"\0"
            content = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\0\0"
            peer.send(raw_frame(1, 1, method), raw_frame(2, 1, content), raw_frame(3, 1, b"%d" % n))
        peer.confirm(1, len(keys))
        peer.channel(2, confirm=False)
        for n, key in enumerate(keys):
            peer.tell(2, Basic.Get(0, owner(QUEUES, key), True))
            frames = [peer.read_frame()[2] for _ in range(3)]
            assert short(b"x-ring-routing-key") + b"S" + len(key).to_bytes(4, "big") + key in frames[1]
            assert frames[2] == b"%d" % n
        peer.goodbye()


def test_what_a_message_carries(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """All that the client sent, and the stamps; keys of the client's own with their names are replaced."""
    vhost.ring("orders", ["q"])
    sent = Basic.Properties(
        content_type="a/b",
        content_encoding="c",
        headers={"mine": 1, "x-ring-id": "mine", "x-ring-exchange": "mine", "nested": {"x-ring-id": [1, None, True]}},
        delivery_mode=2,
        priority=3,
        correlation_id="d",
        reply_to="e",
        expiration="600000",
        message_id="f",
        timestamp=datetime(2026, 11, 21, tzinfo=UTC),
        message_type="g",
        user_id=client.user,
        app_id="h",
    )
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"body", sent)
        peer.confirm(1)
        got = peer.get(1, "q")
        assert got is not None
        assert isinstance(got.method, Basic.GetOk)
        assert (got.method.exchange, got.method.routing_key, got.body) == ("", "q", b"body")
        assert {**dict(got.properties), "headers": None} == {**dict(sent), "headers": None}
        headers = dict(got.properties.headers or {})
        assert (headers.pop("x-ring-exchange"), headers.pop("x-ring-routing-key")) == ("orders", "k")
        assert isinstance(headers.pop("x-ring-id"), int)
        assert headers == {"mine": 1, "nested": {"x-ring-id": [1, None, True]}}


def test_copies_are_not_sent(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """CC and BCC fan out on the default exchange; on hash exchanges they do not."""
    vhost.ring("orders", QUEUES)
    vhost.queue("copied")
    headers: FieldTable = {"CC": ["copied", "q1", "q2"], "BCC": ["copied", "q3"], "cc": "kept"}
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"one", Basic.Properties(headers=headers))
        peer.confirm(1)
        got = peer.get(1, owner(QUEUES, "k"))
        assert got is not None
        assert not {"CC", "BCC"} & set(got.properties.headers or {})
        assert (got.properties.headers or {})["cc"] == "kept"
    assert landed(vhost) == {}


@pytest.mark.versions
def test_copies_that_are_no_list_are_refused_by_the_broker_alone(
    sidecar: Sidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    """A difference that the reference of AMQP names: the header is taken out of what goes to a queue."""
    vhost.ring("orders", QUEUES)
    vhost.exchange("laned")
    vhost.lanes("laned", QUEUES)
    for port, exchange, refused in (
        (port_of(broker.amqp_url), "orders", True),
        (sidecar.amqp_port, "orders", False),
        (sidecar.amqp_port, "laned", True),
    ):
        for header in ("CC", "BCC"):
            with client.session(port, vhost.name) as peer:
                peer.channel()
                peer.publish(1, exchange, "k", b"body", Basic.Properties(headers={header: "text"}))
                if refused:
                    closed = peer.expect(1, Channel.Close)
                    assert closed.reply_code == 406
                    assert f'unacceptable_type_in_header,"{header}",longstr' in closed.reply_text
                else:
                    peer.confirm(1)
    assert landed(vhost) == {"body": owner(QUEUES, "k")}


def test_by_a_header(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES, hash_header="customer")
    values: dict[str, tuple[FieldTable, str]] = {
        **{f"text {n}": ({"customer": f"c{n}", "other": n}, f"c{n}") for n in range(10)},
        **{f"number {n}": ({"customer": n * 10**k}, f"{n * 10**k}") for n in (-7, 1, 40) for k in (0, 3, 8)},
        "none": ({"other": "x"}, ""),
        "empty": ({"customer": ""}, ""),
    }
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        publish(peer, "orders", ((body, Basic.Properties(headers=table)) for body, (table, _) in values.items()))
        peer.publish(1, "orders", "no headers", b"no headers")
        peer.confirm(1, len(values) + 1, after=len(values))
    assert landed(vhost) == {body: owner(QUEUES, value) for body, (_, value) in values.items()} | {
        "no headers": owner(QUEUES, "")
    }
    assert sidecar.metric("ringproxy_value_missing_total", vhost=vhost.name, exchange="orders") == 2


def test_a_header_of_any_type_leads_to_one_queue_over_amqp_and_http(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", [f"q{n}" for n in range(32)], hash_header="customer")
    values: dict[str, tuple[FieldValue, bytes]] = {
        "whole": (7.0, b"7"),
        "fraction": (19.5, b"19.5"),
        "boolean": (True, b"true"),
        "array": ([3, 4], b"3"),
        "empty array": ([], b"[]"),
        "table": ({"b": 2, "a": [1, None, "x"]}, b'{"a":[1,null,"x"],"b":2}'),
    }
    only_amqp: dict[str, tuple[FieldValue, bytes]] = {
        "decimal": (Decimal("19.50"), b"19.5"),
        "time": (datetime(2026, 11, 21, tzinfo=UTC), b"1795219200"),
        "bytes": (bytearray(b"\xff"), b"\xff"),
    }
    missing: dict[str, tuple[FieldValue, bytes]] = {"void": (None, b""), "large": ({"a": "x" * 2000}, b"")}
    over_http = [
        {"key": f"http {name}", "payload": f"http {name}", "headers": {"customer": value}}
        for name, (value, _) in (values | missing).items()
    ]
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        over_amqp = {
            name: Basic.Properties(headers={"customer": v}) for name, (v, _) in (values | only_amqp | missing).items()
        }
        publish(peer, "orders", ((f"amqp {name}", properties) for name, properties in over_amqp.items()))
    assert sidecar.batch("orders", over_http, vhost=vhost.name).status == 200
    queues = [f"q{n}" for n in range(32)]
    expected = {
        f"{way} {name}": owner(queues, key)
        for way, sent in (("amqp", values | only_amqp | missing), ("http", values | missing))
        for name, (_, key) in sent.items()
    }
    assert landed(vhost) == expected
    assert sidecar.metric("ringproxy_value_missing_total", vhost=vhost.name, exchange="orders") == 4


@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_by_a_property(sidecar: Sidecar, vhost: VirtualHost, client: Client, name: str) -> None:
    vhost.ring("orders", QUEUES, hash_property=name)
    made: dict[str, Basic.Properties] = {}
    for n in range(1700000000, 1700000020):
        # Headers in front of it, and the other properties with values of their own.
        properties = Basic.Properties(headers={"a": 1}, message_id=f"m{n}", correlation_id=f"c{n}")
        value = datetime.fromtimestamp(n, UTC) if name == "timestamp" else f"{n}"
        setattr(properties, name, value)
        made[f"{n}"] = properties
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        publish(peer, "orders", made.items())
    assert landed(vhost) == {body: owner(QUEUES, body) for body in made}


def test_exchanges_and_rings_behind_a_ring(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("inner", QUEUES)
    vhost.exchange("topics", "topic")
    vhost.queue("topical")
    vhost.bind("topics", "topical", "key.#")
    vhost.queue("direct")
    vhost.exchange("outer")
    for name, kind in (("inner", "e"), ("topics", "e"), ("direct", "q")):
        vhost.bind("outer", name, "2", kind=kind)
    outer = Ring.build(
        {Destination("exchange", "inner"): 2, Destination("exchange", "topics"): 2, Destination("queue", "direct"): 2}
    )

    def goes_to(key: str) -> str:
        first = outer.owner_of(key.encode()).name
        return {"inner": owner(QUEUES, key), "topics": "topical", "direct": "direct"}[first]

    keys = [f"key.{n}" for n in range(40)]
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        publish(peer, "outer", ((key, None) for key in keys))
        peer.goodbye()
    messages = {m.body.decode(): (queue, m) for queue, got in vhost.drain_all().items() for m in got}
    assert {key: queue for key, (queue, _) in messages.items()} == {key: goes_to(key) for key in keys}
    assert {queue for queue, _ in messages.values()} == {*QUEUES, "topical", "direct"}
    for key, (queue, message) in messages.items():
        assert message.headers["x-ring-exchange"] == "outer"
        assert message.headers["x-ring-routing-key"] == key
        expected = ("topics", key) if queue == "topical" else ("", queue)
        assert (message.exchange, message.routing_key) == expected


def test_an_exchange_behind_the_ring_is_deleted_by_somebody_else(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The next publish to it is nacked, as with a lane; the one after that finds the ring without it."""
    vhost.exchange("orders")
    vhost.exchange("topics", "topic")
    vhost.bind("orders", "topics", kind="e")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k")
        peer.confirm(1)
        vhost.queue("q")
        vhost.bind("orders", "q")
        vhost.delete_exchange("topics")
        peer.publish(1, "orders", "k")
        assert peer.answers(1, 2, 1) == {2: "nack"}
        peer.publish(1, "orders", "k", b"after")
        peer.confirm(1, 3, 2)
    assert landed(vhost) == {"after": "q"}


def test_bound_exchange_to_exchange_by_the_session(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for exchange, kind in (("outer", "x-consistent-hash"), ("inner", "x-consistent-hash")):
            peer.ask(1, Exchange.Declare(exchange=exchange, exchange_type=kind), Exchange.DeclareOk)
        peer.ask(1, Exchange.Bind(destination="inner", source="outer", routing_key="1"), Exchange.BindOk)
        for n, queue in enumerate(QUEUES):
            peer.ask(1, Queue.Declare(queue=queue, durable=True), Queue.DeclareOk)
            peer.ask(1, Queue.Bind(queue=queue, exchange="inner", routing_key="1"), Queue.BindOk)
            for k in range(5):
                peer.publish(1, "outer", f"{n} {k}", f"{n} {k}".encode())
            peer.confirm(1, 5 * n + 5, after=5 * n)
        peer.ask(1, Exchange.Unbind(destination="inner", source="outer", routing_key="1"), Exchange.UnbindOk)
        peer.ask(1, Queue.Bind(queue="q1", exchange="outer", routing_key="1"), Queue.BindOk)
        peer.publish(1, "outer", "last", b"last")
        peer.confirm(1, 16, after=15)
    expected = {f"{n} {k}": owner(QUEUES[: n + 1], f"{n} {k}") for n in range(3) for k in range(5)}
    assert landed(vhost) == expected | {"last": "q1"}
