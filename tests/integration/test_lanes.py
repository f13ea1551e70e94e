"""Lanes: a fanout exchange between the ring's exchange and each queue, over AMQP and HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue, Tx

from tests.integration.broker_api import BrokerApi, VirtualHost, landed, queues_of, wait_until
from tests.integration.conftest import Login, StartSidecar, with_login
from tests.integration.relay import Relay, relay
from tests.integration.rings import GONE, KEPT, KEYS, LEFT, LOST, QUEUES, owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, publish_frames

pytestmark = pytest.mark.versions


def lane(queue: str) -> str:
    return f"orders.lane.{queue}"


@pytest.fixture
def laned(vhost: VirtualHost) -> VirtualHost:
    """A virtual host whose exchange orders leads through lanes."""
    vhost.exchange("orders")
    vhost.lanes("orders", QUEUES)
    return vhost


@pytest.fixture
def peer(slow: Sidecar, laned: VirtualHost, client: Client) -> Iterator[Wire]:
    """A session that has published to the ring once."""
    with client.session(slow.amqp_port, laned.name) as made:
        made.channel(1)
        made.publish(1, "orders", KEPT[0], b"first")
        made.confirm(1)
        yield made


def loses_its_queue(vhost: VirtualHost, how: str) -> None:
    """Do what an operator does to the lane of GONE."""
    if how in ("unbound", "unbound and off the ring"):
        vhost.unbind(lane(GONE), GONE, "")
    if how == "unbound and off the ring":
        vhost.unbind("orders", lane(GONE), kind="e")
    if how == "the queue is deleted":
        vhost.delete_queue(GONE)


WAYS = ["unbound", "unbound and off the ring", "the queue is deleted"]

PROPERTIES = Basic.Properties(
    content_type="a/b",
    headers={"mine": "1", "CC": ["q1", "q2", "q3"], "BCC": ["q1"], "x-ring-exchange": "mine, too", "n": -5},
    message_id="m",
)


# The form of a publish


def test_over_amqp(sidecar: Sidecar, laned: VirtualHost, client: Client) -> None:
    with client.session(sidecar.amqp_port, laned.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "orders", key, key.encode(), PROPERTIES)
        peer.confirm(1, len(KEYS))
    found = landed(laned)
    assert {body: queue for body, (queue, _) in found.items()} == {key: owner(QUEUES, key) for key in KEYS}
    for key, (queue, message) in found.items():
        assert (message.exchange, message.routing_key) == (lane(queue), key)
        # As natively: CC stays and asks for no further copy, BCC is taken out by RabbitMQ.
        ring_id = message.headers["x-ring-id"]
        assert message.headers == {"mine": "1", "CC": ["q1", "q2", "q3"], "n": -5, "x-ring-id": ring_id}
        assert isinstance(ring_id, int)
        assert message.properties["message_id"] == "m"


def test_over_http(sidecar: Sidecar, laned: VirtualHost) -> None:
    for key in KEYS[:30]:
        answer = sidecar.publish("orders", key, key.encode(), vhost=laned.name)
        assert answer.queue() == owner(QUEUES, key)
    items = [{"key": key, "payload": key} for key in KEYS[30:]]
    assert sidecar.batch("orders", items, vhost=laned.name).receipt()["confirmed"] == len(items)
    found = landed(laned)
    assert {body: queue for body, (queue, _) in found.items()} == {key: owner(QUEUES, key) for key in KEYS}
    for key, (queue, message) in found.items():
        assert (message.exchange, message.routing_key) == (lane(queue), key)
        assert list(message.headers) == ["x-ring-id"]


def test_what_is_told_speaks_of_the_queue(sidecar: Sidecar, laned: VirtualHost) -> None:
    key = KEYS[0]
    queue = owner(QUEUES, key)
    assert sidecar.route("orders", key, vhost=laned.name).queue() == queue
    ring = sidecar.ring(laned.name, "orders")
    assert ring["passed"] is None
    assert {(d["type"], d["name"], d["lane"]) for d in ring["destinations"]} == {("queue", q, lane(q)) for q in QUEUES}
    assert sidecar.metric("ringproxy_ring_destinations", vhost=laned.name, exchange="orders") == 3


def test_adopting_lanes_moves_no_key(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """With the direct binding still there, and after it: the ring stays, and so does the order of each key."""
    weights = {"q1": 1, "q2": 3, "q3": 2}
    vhost.ring("orders", weights)
    with client.session(slow.amqp_port, vhost.name) as peer, client.session(slow.amqp_port, vhost.name) as admin:
        peer.channel()
        admin.channel(confirm=False)
        sent = 0

        def publish() -> None:
            nonlocal sent
            for key in KEYS:
                peer.publish(1, "orders", key, b"%d" % sent)
                sent += 1

        publish()
        peer.confirm(1, sent)
        before = slow.ring(vhost.name, "orders")["ring"]
        for queue, weight in weights.items():
            admin.ask(1, Exchange.Declare(exchange=lane(queue), exchange_type="fanout"), Exchange.DeclareOk)
            admin.ask(1, Queue.Bind(queue=queue, exchange=lane(queue)), Queue.BindOk)
            bound = Exchange.Bind(destination=lane(queue), source="orders", routing_key=str(weight))
            admin.ask(1, bound, Exchange.BindOk)
            publish()
        for queue, weight in weights.items():
            unbound = Queue.Unbind(queue=queue, exchange="orders", routing_key=str(weight))
            admin.ask(1, unbound, Queue.UnbindOk)
            publish()
        peer.confirm(1, sent, len(KEYS))
    ring = slow.ring(vhost.name, "orders")
    assert ring["ring"] == before
    assert {d["name"]: (d["weight"], d["lane"]) for d in ring["destinations"]} == {
        queue: (weight, lane(queue)) for queue, weight in weights.items()
    }
    assert len(ring["changes"]) == 1
    for queue, messages in vhost.drain_all().items():
        by_key: dict[int, list[int]] = {}
        for message in messages:
            number = int(message.body)
            assert owner(weights, KEYS[number % len(KEYS)]) == queue
            by_key.setdefault(number % len(KEYS), []).append(number)
        assert all(numbers == sorted(numbers) and len(numbers) == 7 for numbers in by_key.values())


def test_declared_bound_and_published_by_one_session(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """In the order that is wrong, too: the ring's binding first, and the lane's after it."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.ask(1, Exchange.Declare(exchange="orders", exchange_type="x-consistent-hash"), Exchange.DeclareOk)
        for n, queue in enumerate(QUEUES):
            peer.ask(1, Queue.Declare(queue=queue, durable=True), Queue.DeclareOk)
            peer.ask(1, Exchange.Declare(exchange=lane(queue), exchange_type="fanout"), Exchange.DeclareOk)
            peer.ask(1, Exchange.Bind(destination=lane(queue), source="orders", routing_key="1"), Exchange.BindOk)
            peer.publish(1, "orders", "k", b"%d before" % n)
            peer.confirm(1, 2 * n + 1, 2 * n)
            peer.ask(1, Queue.Bind(queue=queue, exchange=lane(queue)), Queue.BindOk)
            peer.publish(1, "orders", KEYS[n], b"%d behind" % n)
            peer.confirm(1, 2 * n + 2, 2 * n + 1)
    bound = {f"{n} behind": owner(QUEUES[: n + 1], KEYS[n]) for n in range(3)}
    # Before the first lane leads anywhere, no queue takes a message.
    bound |= {f"{n} before": owner(QUEUES[:n], "k") for n in (1, 2)}
    assert queues_of(vhost) == bound


def test_a_ring_that_hashes_a_header(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders", hash_header="customer")
    vhost.lanes("orders", QUEUES)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "orders", "ignored", key.encode(), Basic.Properties(headers={"customer": key}))
        peer.confirm(1, len(KEYS))
        vhost.unbind(lane(GONE), GONE, "")
        for key in KEYS:
            peer.publish(1, "orders", "ignored", b"2" + key.encode(), Basic.Properties(headers={"customer": key}))
        peer.confirm(1, 2 * len(KEYS), len(KEYS))
    for key in KEYS[:5]:
        answer = sidecar.publish("orders", "x", b"3", vhost=vhost.name, headers={"Amqp-Header-customer": key})
        assert answer.queue() == owner(LEFT, key)
    found = {m.body.decode(): q for q, messages in vhost.drain_all().items() for m in messages if m.body != b"3"}
    assert found == {key: owner(QUEUES, key) for key in KEYS} | {f"2{key}": owner(LEFT, key) for key in KEYS}


def test_rings_behind_a_ring_lead_through_lanes(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", QUEUES)
    vhost.exchange("outer")
    vhost.bind("outer", "orders", kind="e")
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "outer", key, key.encode())
        peer.confirm(1, len(KEYS))
        assert queues_of(vhost) == {key: owner(QUEUES, key) for key in KEYS}
        vhost.unbind(lane(GONE), GONE, "")
        peer.publish(1, "outer", LOST[0], b"again", mandatory=True)
        peer.confirm(1, 1 + len(KEYS), len(KEYS))
    assert queues_of(vhost) == {"again": owner(LEFT, LOST[0])}


def test_plain_queues_and_lanes_on_one_ring(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", ["q1"])
    vhost.lanes("orders", ["q2", "q3"])
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, len(KEYS))
    found = landed(vhost)
    assert {body: queue for body, (queue, _) in found.items()} == {key: owner(QUEUES, key) for key in KEYS}
    for key, (queue, message) in found.items():
        assert message.routing_key == ("q1" if queue == "q1" else key)
        assert ("x-ring-routing-key" in message.headers) == (queue == "q1")


def test_two_lanes_to_one_queue(sidecar: Sidecar, vhost: VirtualHost) -> None:
    """They count once, with the larger weight, as two bindings of one queue do."""
    vhost.exchange("orders")
    vhost.lanes("orders", {"q1": 2, "q2": 3})
    vhost.exchange("another", "fanout")
    vhost.bind("another", "q1", "")
    vhost.bind("orders", "another", "5", kind="e")
    for key in KEYS:
        assert sidecar.publish("orders", key, key.encode(), vhost=vhost.name).queue() == owner({"q1": 5, "q2": 3}, key)
    ring = sidecar.ring(vhost.name, "orders")
    assert ring["duplicate_bindings"] == [{"type": "queue", "name": "q1"}]
    assert len(landed(vhost)) == len(KEYS)


# Returned messages


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("mandatory", "size", "properties"),
    [
        (False, 0, None),
        (True, 300_000, PROPERTIES),
        pytest.param(True, 0, None, marks=pytest.mark.long),
        pytest.param(False, 10, PROPERTIES, marks=pytest.mark.long),
        pytest.param(True, 10, PROPERTIES, marks=pytest.mark.long),
        pytest.param(False, 300_000, PROPERTIES, marks=pytest.mark.long),
    ],
)
def test_what_comes_back_goes_where_the_ring_says_now(
    peer: Wire,
    slow: Sidecar,
    laned: VirtualHost,
    how: str,
    mandatory: bool,
    size: int,
    properties: Basic.Properties | None,
) -> None:
    loses_its_queue(laned, how)
    body = bytes(n % 251 for n in range(size))
    peer.publish(1, "orders", LOST[0], body, properties, mandatory=mandatory)
    assert peer.expect(1, Basic.Ack).delivery_tag == 2

    queue = owner(LEFT, LOST[0])
    (message,) = [m for m in laned.drain(queue) if m.body == body]
    assert (message.exchange, message.routing_key) == (lane(queue), LOST[0])
    kept = {"mine": "1", "CC": ["q1", "q2", "q3"], "n": -5} if properties else {}
    assert message.headers == kept | {"x-ring-id": message.headers["x-ring-id"]}
    assert slow.metric("ringproxy_rerouted_total", ingress="amqp", exchange="orders") == 1
    slow.wait_for_weights(laned.name, "orders", dict.fromkeys(LEFT, 1))


@pytest.mark.parametrize("how", [pytest.param(WAYS[0], marks=pytest.mark.long), *WAYS[1:]])
def test_of_a_stream_of_publishes_none_is_lost_or_refused(peer: Wire, laned: VirtualHost, how: str) -> None:
    """Natively half of what follows would be dropped; each goes to the ring's queue, all of a key in order."""
    for n in range(40):
        peer.publish(1, "orders", KEYS[n % 20], b"%d" % n, mandatory=True)
    loses_its_queue(laned, how)
    for n in range(40, 400):
        peer.publish(1, "orders", KEYS[n % 20], b"%d" % n, mandatory=True)
    peer.confirm(1, 401, 1)
    found = {m.body: q for q in LEFT for m in laned.drain(q)}
    for n in range(40, 400):
        assert found[b"%d" % n] == owner(LEFT, KEYS[n % 20])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("unbound", marks=pytest.mark.long),
        "unbound and off the ring",
        pytest.param("the queue is deleted", marks=pytest.mark.long),
    ],
)
def test_over_http_it_goes_where_the_ring_says_now(slow: Sidecar, laned: VirtualHost, how: str) -> None:
    assert slow.publish("orders", LOST[0], b"1", vhost=laned.name).queue() == GONE
    loses_its_queue(laned, how)
    assert slow.publish("orders", LOST[0], b"2", vhost=laned.name).queue() == owner(LEFT, LOST[0])
    items = [{"key": key, "payload": key} for key in KEYS]
    assert slow.batch("orders", items, vhost=laned.name).receipt()["confirmed"] == len(items)
    found = {m.body.decode(): q for q in LEFT for m in laned.drain(q)}
    assert found == {key: owner(LEFT, key) for key in KEYS} | {"2": owner(LEFT, LOST[0])}


@pytest.mark.parametrize("mandatory", [False, True])
def test_nowhere_is_left(slow: Sidecar, vhost: VirtualHost, client: Client, mandatory: bool) -> None:
    """As with queues: who asked for mandatory gets the message back, and who did not gets a nack."""
    vhost.exchange("orders")
    vhost.lanes("orders", ["q1"])
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"first")
        peer.confirm(1)
        vhost.unbind(lane("q1"), "q1", "")
        peer.publish(1, "orders", "k", b"body", PROPERTIES, mandatory=mandatory)
        if mandatory:
            returned = peer.content(1, Basic.Return)
            assert isinstance(returned.method, Basic.Return)
            assert (returned.method.exchange, returned.method.routing_key) == ("orders", "k")
            # RabbitMQ takes BCC out before it routes, and so out of what it returns, natively too.
            kept = {name: value for name, value in (PROPERTIES.headers or {}).items() if name != "BCC"}
            assert returned.properties.headers == kept
            assert returned.body == b"body"
        assert peer.answers(1, 2, 1) == {2: "ack" if mandatory else "nack"}


def test_in_a_transaction(slow: Sidecar, laned: VirtualHost, client: Client) -> None:
    with client.session(slow.amqp_port, laned.name) as peer:
        peer.channel(confirm=False)
        peer.ask(1, Tx.Select(), Tx.SelectOk)
        peer.publish(1, "orders", LOST[0], b"1")
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
        laned.unbind(lane(GONE), GONE, "")
        peer.publish(1, "orders", LOST[0], b"2")
        peer.ask(1, Tx.Commit(), Tx.CommitOk)
    assert queues_of(laned) == {"1": GONE, "2": owner(LEFT, LOST[0])}


def test_without_confirms(slow: Sidecar, laned: VirtualHost, client: Client) -> None:
    with client.session(slow.amqp_port, laned.name) as peer:
        peer.channel(confirm=False)
        peer.publish(1, "orders", LOST[0], b"1")
        wait_until("it is there", lambda: laned.drain(GONE))
        laned.unbind(lane(GONE), GONE, "")
        peer.publish(1, "orders", LOST[0], b"2")
        peer.goodbye()
    assert queues_of(laned) == {"2": owner(LEFT, LOST[0])}


def test_a_header_that_leaves_no_room_for_the_id(slow: Sidecar, laned: VirtualHost, client: Client) -> None:
    with client.session(slow.amqp_port, laned.name, frame_max=8192) as peer:
        peer.channel()
        for n in range(8192 - 8 - 100, 8192 - 8, 9):
            properties = Basic.Properties(headers={"big": "x" * (n - 14 - 4 - 4 - 5)})
            peer.publish(1, "orders", LOST[0], b"%d" % n, properties)
        peer.confirm(1, 12)
        assert len(laned.drain(GONE)) == 12
        laned.unbind(lane(GONE), GONE, "")
        peer.publish(1, "orders", LOST[0], b"comes back", properties)
        # A message without its id cannot be told from others if it comes back twice: its client sends it again.
        assert peer.content(1, Basic.Return).body == b"comes back"
        assert peer.expect(1, Basic.Nack).delivery_tag == 13


def test_a_full_queue_behind_a_lane_nacks(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", ["q1"])
    vhost.queue("full", x_max_length=1, x_overflow="reject-publish")
    vhost.exchange(lane("full"), "fanout")
    vhost.bind(lane("full"), "full", "")
    vhost.unbind("orders", lane("q1"), kind="e")
    vhost.bind("orders", lane("full"), kind="e")
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        for _ in range(8):
            peer.publish(1, "orders", "k")
        assert peer.answers(1, 8)[8] == "nack"
    slow.publish("orders", "k", vhost=vhost.name).problem(503, "nacked", "nacked", retryable=True)


def test_dead_letters_behind_a_lane_keep_their_routing_keys(
    sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.exchange("dead", "topic")
    vhost.queue("found")
    vhost.bind("dead", "found", "eu.*")
    vhost.exchange("orders")
    vhost.queue("q1", x_dead_letter_exchange="dead", x_message_ttl=0)
    vhost.exchange(lane("q1"), "fanout")
    vhost.bind(lane("q1"), "q1", "")
    vhost.bind("orders", lane("q1"), kind="e")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "eu.7", b"1")
        peer.confirm(1)
    ring = sidecar.ring(vhost.name, "orders")
    assert (ring["passed"], ring["dead_letter_queues"]) == (None, [])
    (message,) = wait_until("the dead letter is there", lambda: vhost.drain("found"))
    assert message.routing_key == "eu.7"


def test_direct_publishes_and_those_through_a_lane_stay_in_order(
    sidecar: Sidecar, laned: VirtualHost, client: Client
) -> None:
    with client.session(sidecar.amqp_port, laned.name) as peer:
        peer.channel()
        for n in range(2000):
            peer.publish(1, *(("orders", LOST[0]) if n % 2 else ("", GONE)), b"%d" % n)
        peer.confirm(1, 2000)
    assert [int(m.body) for m in laned.drain(GONE)] == list(range(2000))


# A lane that is gone.


def test_a_lane_that_is_deleted_closes_no_channel(
    peer: Wire, slow: Sidecar, laned: VirtualHost, client: Client
) -> None:
    """RabbitMQ answers the next publish to it by closing the channel, which its client does not see."""
    laned.delete_exchange(lane(GONE))
    peer.publish(1, "orders", LOST[0], b"refused")
    assert peer.answers(1, 2, 1) == {2: "nack"}
    for n, key in enumerate(KEYS):
        peer.publish(1, "orders", key, b"%d" % n)
    peer.confirm(1, 2 + len(KEYS), 2)
    peer.publish(1, "nowhere", "k")
    assert peer.expect(1, Channel.Close).reply_code == 404
    assert "is opened again, and 1 publishes without an answer are nacked: NOT_FOUND - no exchange" in slow.log()
    found = queues_of(laned)
    assert found.pop("first")
    assert found == {str(n): owner(LEFT, key) for n, key in enumerate(KEYS)}


def test_what_was_under_way_is_nacked_and_nothing_acked_is_lost(peer: Wire, laned: VirtualHost) -> None:
    keys = [KEYS[n % 20] for n in range(3000)]
    for n, key in enumerate(keys):
        if n == 1000:
            laned.delete_exchange(lane(GONE))
        peer.publish(1, "orders", key, b"%d" % n)
    told = peer.answers(1, 1 + len(keys), 1)
    nacked = [n for n in range(len(keys)) if told[n + 2] == "nack"]
    assert nacked
    for n in nacked:
        peer.publish(1, "orders", keys[n], b"%d" % n)
    peer.confirm(1, 1 + len(keys) + len(nacked), 1 + len(keys))
    found = {int(m.body): q for q in LEFT for m in laned.drain(q) if m.body != b"first"}
    before = {int(m.body) for m in laned.drain(GONE)}
    assert found.keys() | before == set(range(len(keys)))
    for n, queue in found.items():
        assert queue in (owner(LEFT, keys[n]), owner(QUEUES, keys[n]))


@pytest.mark.parametrize("inside", ["a body frame", pytest.param("two body frames", marks=pytest.mark.long), "content"])
def test_it_is_deleted_in_the_midst_of_a_content(peer: Wire, laned: VirtualHost, inside: str) -> None:
    """The rest of the content is dropped, since the broker has dropped its beginning."""
    body = bytes(300_000)
    method, header, *frames = publish_frames(1, "orders", KEPT[1], body, frame_max=peer.frame_max)
    laned.delete_exchange(lane(GONE))
    refused = publish_frames(1, "orders", LOST[0], b"refused")
    cut = {"a body frame": frames[0][:1000], "two body frames": frames[0] + frames[1][:1000], "content": b""}[inside]
    # In one piece: the sidecar has taken the beginning of the content when the broker closes the channel.
    peer.send(*refused, method, header, cut)
    assert peer.answers(1, 2, 1) == {2: "nack"}
    peer.send(b"".join(frames)[len(cut) :])
    assert peer.answers(1, 3, 2) == {3: "nack"}
    peer.publish(1, "orders", KEPT[1], b"again")
    peer.publish(1, "orders", LOST[0], b"again, too")
    peer.confirm(1, 5, 3)
    found = queues_of(laned)
    assert found == {
        "first": owner(QUEUES, KEPT[0]),
        "again": owner(QUEUES, KEPT[1]),
        "again, too": owner(LEFT, LOST[0]),
    }


@pytest.mark.parametrize("what", ["no confirms", "a transaction", "a consumer"])
def test_where_more_would_be_lost_the_channel_is_closed(
    slow: Sidecar, laned: VirtualHost, client: Client, what: str
) -> None:
    with client.session(slow.amqp_port, laned.name) as peer:
        peer.channel(confirm=what == "a consumer")
        if what == "a transaction":
            peer.ask(1, Tx.Select(), Tx.SelectOk)
        if what == "a consumer":
            peer.ask(1, Basic.Consume(queue="q1"), Basic.ConsumeOk)
        slow.route("orders", "k", vhost=laned.name)
        laned.delete_exchange(lane(GONE))
        peer.publish(1, "orders", LOST[0])
        assert peer.expect(1, Channel.Close).reply_code == 404
        peer.tell(1, Channel.CloseOk())
        peer.channel()
        peer.publish(1, "orders", LOST[0], b"after")
        peer.confirm(1)
    assert queues_of(laned) == {"after": owner(LEFT, LOST[0])}


@pytest.fixture
def blind(start_sidecar: StartSidecar, login: Login) -> Iterator[tuple[Sidecar, Relay]]:
    """A sidecar that reads rings again only when something says so, and its way to the management API."""
    with relay(login.management_url) as (way, url):
        yield start_sidecar(sync_interval="600", management_url=url), way


def test_while_nothing_can_be_read_the_others_take_its_keys(
    blind: tuple[Sidecar, Relay], laned: VirtualHost, client: Client
) -> None:
    """RabbitMQ itself has said that the lane does not exist: each further publish to it would end its channel."""
    sidecar, way = blind
    with client.session(sidecar.amqp_port, laned.name) as peer:
        peer.channel()
        peer.publish(1, "orders", LOST[0], b"1")
        peer.confirm(1)
        way.cut()
        laned.delete_exchange(lane(GONE))
        peer.publish(1, "orders", LOST[0], b"refused")
        assert peer.answers(1, 2, 1) == {2: "nack"}
        for key in LOST:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, 2 + len(LOST), 2)
        # Another one ends, while it is known that nothing can be read.
        left = owner(LEFT, LOST[0])
        laned.delete_exchange(lane(left))
        peer.publish(1, "orders", LOST[0], b"refused, too")
        assert peer.answers(1, 3 + len(LOST), 2 + len(LOST)) == {3 + len(LOST): "nack"}
        sidecar.wait_for_weights(laned.name, "orders", dict.fromkeys(set(LEFT) - {left}, 1))
        peer.publish(1, "orders", LOST[0], b"2")
        peer.confirm(1, 4 + len(LOST), 3 + len(LOST))
        way.open()
    found = {"1": GONE, "2": next(queue for queue in LEFT if queue != left)}
    assert queues_of(laned) == found | {key: owner(LEFT, key) for key in LOST}


def test_what_came_back_and_waits_for_a_reading_is_nacked_and_no_more(
    blind: tuple[Sidecar, Relay], laned: VirtualHost, client: Client
) -> None:
    """Its client sends it again: a return or another copy of it, after its nack, would be one too many."""
    sidecar, way = blind
    other = next(key for key in KEPT if owner(QUEUES, key) == "q1")
    with client.session(sidecar.amqp_port, laned.name) as peer:
        peer.channel()
        peer.publish(1, "orders", KEPT[0], b"first")
        peer.confirm(1)
        way.freeze()
        laned.unbind(lane(GONE), GONE, "")
        laned.delete_exchange(lane("q1"))
        peer.publish(1, "orders", LOST[0], b"comes back", mandatory=True)
        peer.publish(1, "orders", other, b"refused")
        assert peer.answers(1, 3, 1) == {2: "nack", 3: "nack"}
        way.thaw()
        sidecar.wait_for_weights(laned.name, "orders", {"q3": 1})
        peer.publish(1, "orders", other, b"behind")
        peer.confirm(1, 4, 3)
    assert queues_of(laned) == {"first": owner(QUEUES, KEPT[0]), "behind": "q3"}


def test_a_clients_own_publish_to_a_lane_that_is_gone_closes_its_channel(peer: Wire, laned: VirtualHost) -> None:
    """As it does without a sidecar."""
    laned.delete_exchange(lane(GONE))
    peer.publish(1, lane(GONE), "k")
    assert peer.expect(1, Channel.Close).reply_code == 404


@pytest.mark.parametrize("names", [["it's", "a' in vhost '/' b"], [f"{'x' * 243}{n}" for n in (1, 2)]])
def test_a_lane_of_any_name_that_is_deleted_closes_no_channel(
    slow: Sidecar, vhost: VirtualHost, client: Client, names: list[str]
) -> None:
    """RabbitMQ names it in words only, without escapes, and cuts them where they are long."""
    vhost.exchange("orders")
    queues = [name[-12:] for name in names]
    for queue, name in zip(queues, names, strict=True):
        vhost.queue(queue)
        vhost.exchange(f"orders.lane{name}", "fanout")
        vhost.bind(f"orders.lane{name}", queue, "")
        vhost.bind("orders", f"orders.lane{name}", kind="e")
    key = next(key for key in KEYS if owner(queues, key) == queues[0])
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", key, b"1")
        peer.confirm(1)
        vhost.delete_exchange(f"orders.lane{names[0]}")
        peer.publish(1, "orders", key, b"2")
        assert peer.answers(1, 2, 1) == {2: "nack"}
        slow.wait_for_weights(vhost.name, "orders", {queues[1]: 1})
        peer.publish(1, "orders", key, b"3")
        peer.confirm(1, 3, 2)
    assert queues_of(vhost) == {"1": queues[0], "3": queues[1]}


def test_over_http_another_lane_takes_it(slow: Sidecar, laned: VirtualHost) -> None:
    assert slow.publish("orders", LOST[0], b"1", vhost=laned.name).queue() == GONE
    laned.delete_exchange(lane(GONE))
    assert slow.publish("orders", LOST[0], b"2", vhost=laned.name).queue() == owner(LEFT, LOST[0])
    laned.delete_exchange(lane("q1"))
    items = [{"key": key, "payload": key} for key in KEYS]
    for _ in range(2):
        # With several under way on the lane's channel it is not known which of them a queue has: they are `unknown`.
        answer = slow.batch("orders", items, vhost=laned.name)
    assert answer.receipt()["confirmed"] == len(items)


def test_a_lane_is_deleted_by_a_session(slow: Sidecar, laned: VirtualHost, client: Client) -> None:
    with client.session(slow.amqp_port, laned.name) as peer:
        peer.channel()
        for n in range(2):
            for key in KEYS:
                peer.publish(1, "orders", key, b"%d %s" % (n, key.encode()))
            peer.confirm(1, (n + 1) * len(KEYS), n * len(KEYS))
            peer.ask(1, Exchange.Delete(exchange=lane(GONE)), Exchange.DeleteOk)
    expected = {f"0 {key}": owner(QUEUES, key) for key in KEYS} | {f"1 {key}": owner(LEFT, key) for key in KEYS}
    assert queues_of(laned) == expected


# Exchanges that are no lanes


def with_alternate_by_policy(vhost: VirtualHost) -> None:
    vhost.policy("ae", "^orders.lane.q2$", "exchanges", alternate_exchange="amq.fanout")


def with_a_second_queue(vhost: VirtualHost) -> None:
    vhost.queue("second")
    vhost.bind(lane(GONE), "second", "")


def with_an_exchange(vhost: VirtualHost) -> None:
    vhost.unbind(lane(GONE), GONE, "")
    vhost.bind(lane(GONE), "amq.fanout", "", kind="e")


def another(vhost: VirtualHost, **fields: Any) -> None:
    vhost.delete_exchange(lane(GONE))
    body = {"type": "fanout", "durable": True, "arguments": {}, "auto_delete": False} | fields
    vhost.api.ask("PUT", "exchanges", vhost.name, lane(GONE), body=body)
    vhost.bind(lane(GONE), GONE, "")
    vhost.bind("orders", lane(GONE), kind="e")


FAULTS: dict[str, Callable[[VirtualHost], None]] = {
    "policy 'ae' gives it an alternate exchange": with_alternate_by_policy,
    "it has 2 bindings": with_a_second_queue,
    "its arguments name an alternate exchange": lambda v: another(v, arguments={"alternate-exchange": "amq.fanout"}),
    "it is an auto-delete exchange": lambda v: another(v, auto_delete=True),
    "it is bound to exchange 'amq.fanout', and the binding to it has no argument x-ring-shard": with_an_exchange,
}


QUICK = "policy 'ae' gives it an alternate exchange", "it has 2 bindings"
"""The others are as quickly tried without a broker, by tests/unit/proxy/topology/test_lanes.py."""


@pytest.mark.parametrize("why", [pytest.param(why, marks=[] if why in QUICK else [pytest.mark.long]) for why in FAULTS])
def test_what_is_no_lane_passes_the_exchange(
    start_sidecar: StartSidecar, laned: VirtualHost, client: Client, why: str
) -> None:
    sidecar = start_sidecar()
    FAULTS[why](laned)
    with client.session(sidecar.amqp_port, laned.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k", b"1")
        peer.confirm(1)
    ring = sidecar.ring(laned.name, "orders")
    assert ring["passed"] == "not_a_lane"
    assert ring["not_lanes"] == [{"name": lane(GONE), "reason": why}]
    assert f"'{lane(GONE)}' ({why})" in sidecar.log()
    assert sidecar.metric("ringproxy_passed_total", exchange="orders", reason="not_a_lane") == 1
    assert sidecar.publish("orders", "k", vhost=laned.name).receipt()["reason"] == "not_a_lane"


def test_of_many_lanes_the_next_reading_sees_a_policy_with_an_alternate_exchange(
    slow: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The lane is far from its turn; a message that comes back from another lane has the ring read again, once."""
    queues = [f"q{n}" for n in range(10, 40)]
    vhost.exchange("orders")
    vhost.lanes("orders", queues)
    key = next(key for key in KEYS if owner(queues, key) == "q20")
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.publish(1, "orders", key, b"first")
        peer.confirm(1)
        vhost.policy("ae", "^orders.lane.q39$", "exchanges", alternate_exchange="amq.fanout")
        vhost.unbind(lane("q20"), "q20", "")

        peer.publish(1, "orders", key, b"second")
        peer.confirm(1, 2, 1)

    ring = slow.ring(vhost.name, "orders")
    assert (ring["passed"], ring["not_lanes"]) == (
        "not_a_lane",
        [{"name": lane("q39"), "reason": "policy 'ae' gives it an alternate exchange"}],
    )


def test_a_lane_that_is_mended_is_one_again(start_sidecar: StartSidecar, laned: VirtualHost) -> None:
    sidecar = start_sidecar()
    assert sidecar.publish("orders", LOST[0], vhost=laned.name).queue() == GONE
    with_a_second_queue(laned)
    wait_until("it passes", lambda: sidecar.ring(laned.name, "orders")["passed"] == "not_a_lane")
    laned.delete_queue("second")
    wait_until("it routes", lambda: sidecar.ring(laned.name, "orders")["passed"] is None)
    assert sidecar.publish("orders", LOST[0], vhost=laned.name).queue() == GONE


def test_an_internal_lane_passes_the_exchange(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q1"])
    vhost.exchange("inside", "fanout", internal=True)
    vhost.bind("inside", "q1", "")
    vhost.bind("orders", "inside", kind="e")
    assert sidecar.publish("orders", "k", vhost=vhost.name).receipt()["reason"] == "internal_destination"


def test_a_lane_without_a_queue_gets_no_keys(sidecar: Sidecar, laned: VirtualHost) -> None:
    """Passing the exchange would lose what it hashes to that lane; the others take its keys, and all is told."""
    laned.unbind(lane(GONE), GONE, "")
    for key in KEYS[:20]:
        assert sidecar.publish("orders", key, vhost=laned.name).queue() == owner(LEFT, key)
    ring = sidecar.ring(laned.name, "orders")
    assert ring["ignored_bindings"] == [
        {
            "destination": {"type": "exchange", "name": lane(GONE)},
            "key": "1",
            "reason": "no queue is bound to this lane",
        }
    ]
    assert sidecar.metric("ringproxy_ignored_bindings", vhost=laned.name, exchange="orders") == 1
    assert "no queue is bound to this lane" in sidecar.log()


# Rights.


@pytest.fixture
def least(laned: VirtualHost, api: BrokerApi) -> Iterator[Client]:
    """A user who may write on the ring's exchange and its lanes, and nothing else."""
    api.ask("PUT", "users", "least lanes", body={"password": "pw", "tags": ""})
    laned.permit("least lanes", write="^orders(\\.lane\\..*)?$")
    yield Client("least lanes", "pw")
    api.ask("DELETE", "users", "least lanes")


def test_a_publisher_needs_no_right_on_the_default_exchange(slow: Sidecar, laned: VirtualHost, least: Client) -> None:
    with least.session(slow.amqp_port, laned.name) as peer:
        peer.channel()
        for key in KEYS:
            peer.publish(1, "orders", key, key.encode())
        peer.confirm(1, len(KEYS))
        laned.unbind(lane(GONE), GONE, "")
        peer.publish(1, "orders", LOST[0], b"again")
        peer.confirm(1, 1 + len(KEYS), len(KEYS))
        peer.publish(1, "", GONE, b"refused")
        assert peer.expect(1, Channel.Close).reply_code == 403


def test_over_http_the_sidecars_user_needs_none_either(
    start_sidecar: StartSidecar, login: Login, laned: VirtualHost, least: Client
) -> None:
    sidecar = start_sidecar(broker_url=with_login(login.broker_url, least.user, least.password))
    for key in KEYS[:10]:
        assert sidecar.publish("orders", key, vhost=laned.name).queue() == owner(QUEUES, key)


def test_a_missing_right_on_a_lane(slow: Sidecar, laned: VirtualHost, least: Client) -> None:
    laned.permit(least.user, write="^(orders|orders.lane.q1|amq.default)$")
    with least.session(slow.amqp_port, laned.name) as peer:
        peer.channel()
        peer.publish(1, "orders", LOST[0])
        closed = peer.expect(1, Channel.Close)
        assert closed.reply_code == 403
        assert f"access to exchange '{lane(GONE)}'" in closed.reply_text
        assert closed.reply_text.endswith("grant write on ^orders(\\.lane\\..*)?$")
