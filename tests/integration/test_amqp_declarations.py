"""A program that declares, binds and publishes at once works unchanged: each publish meets what was declared before."""

import itertools
import struct

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx
from pamqp.header import ContentHeader

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import management_front
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, encoded, port_of, publishing, raw_frame, short

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
HASH = "x-consistent-hash"


def landed(vhost: VirtualHost) -> dict[str, str]:
    """The queue of each message, by its body; all of them were routed by a ring."""
    found = {}
    for queue, messages in vhost.drain_all().items():
        for message in messages:
            assert message.exchange == "", message
            found[message.body.decode()] = queue
    return found


def declare(exchange: str, kind: str = HASH, *, nowait: bool = False) -> base.Frame:
    return Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True, nowait=nowait)


def bind(queue: str, exchange: str, key: str = "1", *, nowait: bool = False) -> base.Frame:
    return Queue.Bind(queue=queue, exchange=exchange, routing_key=key, nowait=nowait)


def made(peer: Wire, exchange: str, queues: list[str]) -> None:
    """An exchange with these queues, by methods."""
    peer.ask(1, declare(exchange), Exchange.DeclareOk)
    for queue in queues:
        peer.ask(1, Queue.Declare(queue=queue, durable=True), Queue.DeclareOk)
        peer.ask(1, bind(queue, exchange), Queue.BindOk)


@pytest.mark.parametrize("rounds", [8, pytest.param(50, marks=pytest.mark.long)])
def test_without_waiting_for_any_answer(sidecar: Sidecar, vhost: VirtualHost, client: Client, rounds: int) -> None:
    """All in one write, nothing but the confirms comes back; each time an exchange that nobody has ever seen."""
    expected: dict[str, str] = {}
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for n in range(rounds):
            exchange, queues = f"orders {n}", [f"{n} {name}" for name in QUEUES]
            requests = [declare(exchange, nowait=True)]
            for queue in queues:
                requests.append(Queue.Declare(queue=queue, durable=True, nowait=True))
                requests.append(bind(queue, exchange, nowait=True))
            keys = [f"{n} key {k}" for k in range(4)]
            peer.send(
                *(encoded(1, request) for request in requests),
                *(publishing(1, exchange, key, key.encode()) for key in keys),
            )
            expected |= {key: owner(queues, key) for key in keys}
        peer.confirm(1, 4 * rounds)
        peer.goodbye()
    assert landed(vhost) == expected


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.long)])
def test_a_bind_before_every_publish(sidecar: Sidecar, vhost: VirtualHost, client: Client, count: int) -> None:
    expected = {}
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.ask(1, declare("orders"), Exchange.DeclareOk)
        queues: list[str] = []
        for n in range(count):
            queues.append(f"q{n}")
            peer.ask(1, Queue.Declare(queue=f"q{n}", durable=True), Queue.DeclareOk)
            peer.ask(1, bind(f"q{n}", "orders"), Queue.BindOk)
            for k in range(3):
                peer.publish(1, "orders", f"{n} {k}", b"%d %d" % (n, k))
                expected[f"{n} {k}"] = owner(queues, f"{n} {k}")
            peer.confirm(1, 3 * n + 3, after=3 * n)
        for n in range(count * 3 // 4):
            peer.ask(1, Queue.Unbind(queue=f"q{n}", exchange="orders", routing_key="1"), Queue.UnbindOk)
            queues.remove(f"q{n}")
            peer.publish(1, "orders", f"un {n}", b"un %d" % n)
            expected[f"un {n}"] = owner(queues, f"un {n}")
            peer.confirm(1, 3 * count + 1 + n, after=3 * count + n)
        peer.goodbye()
    assert landed(vhost) == expected


CHANGES: dict[str, tuple[list[tuple[base.Frame, type[base.Frame]]], dict[str, int]]] = {
    "unbind": (
        [(Queue.Unbind(queue="q1", exchange="orders", routing_key="1"), Queue.UnbindOk)],
        {"q2": 1, "q3": 1},
    ),
    "queue.delete": ([(Queue.Delete(queue="q1"), Queue.DeleteOk)], {"q2": 1, "q3": 1}),
    "another weight": (
        [
            (Queue.Unbind(queue="q1", exchange="orders", routing_key="1"), Queue.UnbindOk),
            (bind("q1", "orders", "9"), Queue.BindOk),
        ],
        {"q1": 9, "q2": 1, "q3": 1},
    ),
    "exchange.delete, with other bindings anew": (
        [
            (Exchange.Delete(exchange="orders"), Exchange.DeleteOk),
            (declare("orders"), Exchange.DeclareOk),
            (bind("q3", "orders", "2"), Queue.BindOk),
            (bind("q2", "orders", "1"), Queue.BindOk),
        ],
        {"q3": 2, "q2": 1},
    ),
    "queue.delete, and anew": (
        [
            (Queue.Delete(queue="q1"), Queue.DeleteOk),
            (Queue.Declare(queue="q1", durable=True), Queue.DeclareOk),
        ],
        {"q2": 1, "q3": 1},
    ),
    "another exchange": (
        [(declare("others"), Exchange.DeclareOk), (bind("q1", "others"), Queue.BindOk)],
        dict.fromkeys(QUEUES, 1),
    ),
}


IN_ONE_WAY = {True: {"queue.delete", "another weight"}, False: {"queue.delete, and anew", "another exchange"}}
"""The cases that only `make test-all` runs, answered or at once: the other way they always run."""


@pytest.mark.parametrize(
    ("requests", "weights", "ask_first"),
    [
        pytest.param(
            *change,
            ask_first,
            id=f"{'answered' if ask_first else 'at once'}-{what}",
            marks=[pytest.mark.long] if what in IN_ONE_WAY[ask_first] else [],
        )
        for ask_first in (True, False)
        for what, change in CHANGES.items()
    ],
)
def test_a_change_and_then_publishes(
    sidecar: Sidecar,
    vhost: VirtualHost,
    client: Client,
    requests: list[tuple[base.Frame, type[base.Frame]]],
    weights: dict[str, int],
    ask_first: bool,
) -> None:
    """By the session that declared and over HTTP, and by another session once the first has its answers."""
    keys = [f"key {n}" for n in range(30)]
    with client.session(sidecar.amqp_port, vhost.name) as peer, client.session(sidecar.amqp_port, vhost.name) as other:
        for session in (peer, other):
            session.channel()
        made(peer, "orders", QUEUES)
        for session in (peer, other):
            session.publish(1, "orders", "before", b"before")
            session.confirm(1)
        assert set(landed(vhost)) == {"before"}
        published = [publishing(1, "orders", key, key.encode()) for key in keys]
        if ask_first:
            for request, answer in requests:
                peer.ask(1, request, answer)
            other.send(*[publishing(1, "orders", key, b"other " + key.encode()) for key in keys])
            queue = sidecar.publish("orders", "http", b"http", vhost=vhost.name).queue()
            assert queue == owner(weights, "http")
            peer.send(*published)
            other.confirm(1, len(keys))
        else:
            peer.send(*(encoded(1, request) for request, _ in requests), *published)
            for _, answer in requests:
                peer.expect(1, answer)
        peer.confirm(1, len(keys))
    found = landed(vhost)
    assert {key: found[key] for key in keys} == {key: owner(weights, key) for key in keys}
    if ask_first:
        assert {key: found[f"other {key}"] for key in keys} == {key: owner(weights, key) for key in keys}


def test_the_last_binding_leaves(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """Then the exchange drops what it gets, as it does natively."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        made(peer, "orders", ["q"])
        peer.publish(1, "orders", "k", b"before")
        peer.confirm(1)
        peer.ask(1, Queue.Unbind(queue="q", exchange="orders", routing_key="1"), Queue.UnbindOk)
        peer.publish(1, "orders", "k", b"dropped")
        assert peer.expect(1, Basic.Ack).delivery_tag == 2
        peer.ask(1, bind("q", "orders"), Queue.BindOk)
        peer.publish(1, "orders", "k", b"after")
        assert peer.expect(1, Basic.Ack).delivery_tag == 3
    assert landed(vhost) == {"before": "q", "after": "q"}


def test_an_exchange_becomes_one_of_another_type(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        made(peer, "orders", ["q"])
        for n, kind in enumerate(["fanout", HASH, "direct", HASH] * 3):
            peer.send(
                encoded(1, Exchange.Delete(exchange="orders", nowait=True)),
                encoded(1, declare("orders", kind, nowait=True)),
                encoded(1, bind("q", "orders", "7", nowait=True)),
                publishing(1, "orders", "7", b"%d" % n),
            )
            assert peer.expect(1, Basic.Ack).delivery_tag == n + 1
    messages = vhost.drain("q")
    assert [m.exchange for m in messages] == ["orders", "", "orders", ""] * 3
    assert [m.body for m in messages] == [b"%d" % n for n in range(12)]


def test_channels_that_declare_and_publish_by_turns(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """Two channels in confirm mode, one that publishes and one that binds, unbinds and waits for each answer."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        for number in (1, 2):
            peer.ask(number, Channel.Open(), Channel.OpenOk)
        made(peer, "orders", QUEUES)
        peer.ask(2, Confirm.Select(), Confirm.SelectOk)
        expected = {}
        numbers = itertools.count()
        for _ in range(8):
            for weights, request, answer in (
                (["q2", "q3"], Queue.Unbind(queue="q1", exchange="orders", routing_key="1"), Queue.UnbindOk),
                (QUEUES, bind("q1", "orders"), Queue.BindOk),
            ):
                peer.ask(1, request, answer)
                for _ in range(5):
                    body = f"key {next(numbers)}"
                    peer.publish(2, "orders", body, body.encode())
                    expected[body] = owner(weights, body)
                peer.confirm(2, len(expected), after=len(expected) - 5)
    assert landed(vhost) == expected


def test_in_a_transaction(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """Routed when published; there once committed; nothing of what is rolled back."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(confirm=False)
        made(peer, "orders", QUEUES)
        peer.ask(1, Tx.Select(), Tx.SelectOk)
        for body in (b"one", b"two"):
            peer.publish(1, "orders", body.decode(), body)
        with client.session(sidecar.amqp_port, vhost.name) as other:
            other.channel(confirm=False)
            for queue in QUEUES:
                assert other.get(1, queue) is None
        wait_until("both under way", lambda: sidecar.metric("ringproxy_in_flight") == 2)
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
        assert sidecar.metric("ringproxy_in_flight") == 0
        peer.publish(1, "orders", "three", b"three")
        peer.ask(1, Tx.Rollback(), Tx.RollbackOk)
        peer.publish(1, "orders", "four", b"four")
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
        peer.publish(1, "orders", "five", b"five")
        peer.goodbye()
    bodies = ("one", "two", "four")
    assert landed(vhost) == {body: owner(QUEUES, body) for body in bodies}
    confirmed = sidecar.metric("ringproxy_publishes_total", vhost=vhost.name, exchange="orders", outcome="confirmed")
    assert confirmed == len(bodies)


def test_declared_on_a_broker_whose_management_api_lags(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    """An API that does not show a binding yet, as after a nowait or from a follower: the -ok says that it is there."""
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, sync_interval="600")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            made(peer, "orders", ["q1"])
            peer.publish(1, "orders", "before", b"before")
            peer.confirm(1)
            shown = vhost.api.ask("GET", "exchanges", vhost.name, "orders", "bindings", "source")
            assert [binding["destination"] for binding in shown] == ["q1"]
            front.answer("/orders/bindings/source", 200, shown)
            peer.ask(1, Queue.Declare(queue="q2", durable=True), Queue.DeclareOk)
            peer.ask(1, bind("q2", "orders"), Queue.BindOk)
            keys = [f"key {n}" for n in range(20)]
            peer.send(*[publishing(1, "orders", key, key.encode()) for key in keys])
            peer.confirm(1, len(keys) + 1, after=1)
            assert sidecar.weights(vhost.name, "orders") == {"q1": 1, "q2": 1}
    assert landed(vhost) == {"before": "q1"} | {key: owner(["q1", "q2"], key) for key in keys}


# Names as the broker has them: it takes CR and LF out of those that a declaration has.


def frame_of(form: str, *names: str, channel: int = 1) -> bytes:
    """Return a method with these names, its bits clear and its table empty: pamqp takes no such names."""
    ids, arguments = FORMS_OF_NAMES[form]
    payload = struct.pack(">HHH", *ids, 0) + b"".join(short(name.encode()) for name in names) + arguments
    return raw_frame(1, channel, payload)


_DURABLE, _PASSIVE, _NOTHING, _NO_TABLE = b"\2", b"\1", b"\0", bytes(4)
FORMS_OF_NAMES = {
    "exchange.declare": ((40, 10), _DURABLE + _NO_TABLE),
    "exchange.declare, passive": ((40, 10), _PASSIVE + _NO_TABLE),
    "exchange.delete": ((40, 20), _NOTHING),
    "exchange.bind": ((40, 30), _NOTHING + _NO_TABLE),
    "exchange.unbind": ((40, 40), _NOTHING + _NO_TABLE),
    "queue.declare": ((50, 10), _DURABLE + _NO_TABLE),
    "queue.declare, passive": ((50, 10), _PASSIVE + _NO_TABLE),
    "queue.bind": ((50, 20), _NOTHING + _NO_TABLE),
    "queue.unbind": ((50, 50), _NO_TABLE),
    "queue.delete": ((50, 40), _NOTHING),
    "queue.purge": ((50, 30), _NOTHING),
    "basic.get": ((60, 70), _NOTHING),
    "basic.publish": ((60, 40), _NOTHING),
}


def ask(peer: Wire, form: str, *names: str, channel: int = 1) -> None:
    """Send such a method, and read its -ok."""
    peer.send(frame_of(form, *names, channel=channel))
    at, answer = peer.read()
    assert at == channel
    assert isinstance(answer, base.Frame)
    assert answer.name.lower() == form.split(",")[0] + "ok", answer


def refused(peer: Wire, form: str, *names: str, channel: int = 1) -> int:
    """Send such a method, and return the reply code with which the channel is closed for it."""
    peer.send(frame_of(form, *names, channel=channel))
    if form == "basic.publish":
        peer.tell(channel, ContentHeader(0, 0, Basic.Properties()))
    closed = peer.expect(channel, Channel.Close)
    peer.tell(channel, Channel.CloseOk())
    return closed.reply_code or 0


def test_a_queue_bound_under_a_name_with_line_ends_gets_its_messages(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        made(peer, "orders", ["q1"])
        peer.publish(1, "orders", "k", b"first")
        peer.confirm(1)
        ask(peer, "queue.declare", "q2\n")
        ask(peer, "queue.bind", "q\r2\n", "\norders", "1")
        keys = [f"key {n}" for n in range(30)]
        for key in keys:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, 31, 1)
        assert landed(vhost) == {"first": "q1"} | {key: owner(["q1", "q2"], key) for key in keys}
        ask(peer, "queue.unbind", "q2\n", "orders\n", "1")
        for key in keys:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, 61, 31)
        assert landed(vhost) == dict.fromkeys(keys, "q1")


def test_an_exchange_deleted_under_a_name_with_line_ends_is_gone(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        made(peer, "orders", QUEUES)
        peer.publish(1, "orders", "k", b"first")
        peer.confirm(1)
        ask(peer, "exchange.delete", "orders\n")
        assert refused(peer, "basic.publish", "orders", "k") == 404


def test_an_exchange_declared_under_a_name_with_line_ends_has_the_name_without(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """A publish finds it by that name alone, and learns at once that the other one does not exist."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        ask(peer, "exchange.declare", "g\n", HASH)
        peer.ask(1, Queue.Declare(queue="q1", durable=True), Queue.DeclareOk)
        peer.ask(1, bind("q1", "g"), Queue.BindOk)
        peer.publish(1, "g", "k", b"first")
        peer.confirm(1)
        assert refused(peer, "basic.publish", "g\n", "k") == 404
    assert landed(vhost) == {"first": "q1"}
    assert sidecar.publish("g\n", "k", b"third", vhost=vhost.name).status == 404


@pytest.mark.long
def test_the_broker_takes_line_ends_out_of_the_names_in_these_methods_alone(
    broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    """As `requests.stored` has it."""
    vhost.exchange("x", "fanout")
    vhost.exchange("y", "fanout")
    vhost.queue("q")
    with client.session(port_of(broker.amqp_url), vhost.name) as peer:
        peer.channel()
        ask(peer, "exchange.declare", "x\n", "fanout")
        ask(peer, "exchange.declare, passive", "\rx", "fanout")
        ask(peer, "exchange.bind", "y\n", "x\r\n", "k\n")
        ask(peer, "queue.declare", "q\n")
        ask(peer, "queue.declare, passive", "\nq")
        ask(peer, "queue.bind", "q\n", "x\r", "k\n")
        found = [b for b in vhost.api.ask("GET", "bindings", vhost.name) if b["source"]]
        shown = [(b["source"], b["destination"], b["routing_key"]) for b in found]
        assert sorted(shown) == [("x", "q", "k\n"), ("x", "y", "k\n")]
        ask(peer, "exchange.unbind", "y\r", "\nx", "k\n")
        ask(peer, "queue.unbind", "\rq", "x\n", "k\n")
        assert [b for b in vhost.api.ask("GET", "bindings", vhost.name) if b["source"]] == []
        for number, (form, *names) in enumerate(
            [("queue.purge", "q\n"), ("basic.get", "q\n"), ("basic.publish", "x\n", "k")], 2
        ):
            peer.channel(number)
            assert refused(peer, form, *names, channel=number) == 404, form
        ask(peer, "queue.delete", "q\r")
        ask(peer, "exchange.delete", "x\n")
    assert vhost.queues() == []
    assert vhost.api.ask("GET", "exchanges", vhost.name, "x") is None
