"""Rings behind upstream exchanges: every message gets where the broker would have brought it, by the ring's choice."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

import proxy
from proxy.topology.bindings import Binding
from proxy.topology.matching import Matcher
from ring.destination import Destination
from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, landed, queues_of, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import COMMAND, Sidecar
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
KEYS = [f"orders.{n}" for n in range(30)]


@pytest.fixture
def slow(start_sidecar: StartSidecar) -> Sidecar:
    """One that reads exchanges again only when something says so."""
    return start_sidecar(sync_interval="600", route="*,events")


@pytest.fixture
def fast(start_sidecar: StartSidecar) -> Sidecar:
    return start_sidecar(route="*,events,inner")


@pytest.fixture
def events(vhost: VirtualHost) -> VirtualHost:
    """A virtual host with a topic exchange events before the ring orders, and a queue for payments."""
    vhost.ring("orders", QUEUES)
    vhost.exchange("events", "topic")
    vhost.bind("events", "orders", "orders.#", kind="e")
    vhost.queue("payments")
    vhost.bind("events", "payments", "payments.#")
    return vhost


@pytest.fixture
def peer(slow: Sidecar, events: VirtualHost, client: Client) -> Iterator[Wire]:
    with client.session(slow.amqp_port, events.name) as made:
        made.channel(1)
        yield made


def by_ring(keys: list[str], queues: list[str] = QUEUES) -> dict[str, str]:
    return {key: owner(queues, key) for key in keys}


def passed(sidecar: Sidecar, vhost: VirtualHost, reason: str, exchange: str = "events") -> float:
    return sidecar.metric("ringproxy_passed_total", vhost=vhost.name, exchange=exchange, reason=reason)


def publish(channel: BlockingChannel, exchange: str, key: str, properties: BasicProperties | None = None) -> str:
    """Publish a message with `mandatory` and its key as body; return what becomes of it."""
    try:
        channel.basic_publish(exchange, key, key.encode(), properties, mandatory=True)
    except UnroutableError as error:
        return f"returned {error.messages[0].method.reply_code}"
    return "confirmed"


def test_amqp_publishes_go_to_the_queue_that_the_ring_behind_chooses(
    slow: Sidecar, events: VirtualHost, client: Client
) -> None:
    with client.pika(slow.amqp_port, events.name) as channel:
        assert {publish(channel, "events", key) for key in KEYS} == {"confirmed"}
    found = landed(events)
    assert {key: queue for key, (queue, _) in found.items()} == by_ring(KEYS)
    message = found[KEYS[0]][1]
    assert message.headers["x-ring-exchange"] == "events"
    assert message.headers["x-ring-routing-key"] == KEYS[0]
    assert "publishes that match a binding to a ring are routed by that ring: exchange 'orders'" in slow.log()


def test_http_publishes_too(slow: Sidecar, events: VirtualHost) -> None:
    assert {key: slow.publish("events", key, key.encode(), vhost=events.name).queue() for key in KEYS} == by_ring(KEYS)
    for key in KEYS[:3]:
        assert slow.route("events", key, vhost=events.name).queue() == owner(QUEUES, key)
    assert queues_of(events) == by_ring(KEYS)
    receipt = slow.publish("events", "payments.1", b"p", vhost=events.name).receipt()
    assert receipt == {"outcome": "passed", "exchange": "events", "reason": "no_ring"}
    assert queues_of(events) == {"p": "payments"}
    assert passed(slow, events, "no_ring") == 1


def test_through_lanes_consumers_see_the_routing_key(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", QUEUES)
    vhost.exchange("events", "direct")
    for key in KEYS:
        vhost.bind("events", "orders", key, kind="e")
    with client.pika(slow.amqp_port, vhost.name) as channel:
        assert {publish(channel, "events", key) for key in KEYS} == {"confirmed"}
        assert publish(channel, "events", "orders.#") == "returned 312"
    found = landed(vhost)
    assert {key: queue for key, (queue, _) in found.items()} == by_ring(KEYS)
    assert {message.routing_key for _, message in found.values()} == set(KEYS)


def test_the_routing_key_is_for_the_topic_and_a_header_for_the_ring(
    slow: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("eu", ["e1", "e2", "e3"], hash_header="customer")
    vhost.ring("us", ["u1", "u2", "u3"], hash_header="customer")
    vhost.exchange("events", "topic")
    vhost.bind("events", "eu", "#.eu", kind="e")
    vhost.bind("events", "us", "#.us", kind="e")
    with client.pika(slow.amqp_port, vhost.name) as channel:
        for kind in ("orders", "refunds"):
            for place in ("eu", "us"):
                for customer in map(str, range(10)):
                    properties = BasicProperties(headers={"customer": customer})
                    body = f"{kind} {place} {customer}"
                    channel.basic_publish("events", f"{kind}.{place}", body.encode(), properties, mandatory=True)
    queues = {"eu": ["e1", "e2", "e3"], "us": ["u1", "u2", "u3"]}
    found = queues_of(vhost)
    assert len(found) == 40
    assert found == {body: owner(queues[body.split()[1]], body.split()[2]) for body in found}


def test_a_batch_keeps_the_order_of_what_the_ring_hashes(slow: Sidecar, vhost: VirtualHost) -> None:
    """Messages of one customer have different routing keys, and get to one queue in their order."""
    vhost.ring("orders", QUEUES, hash_header="customer")
    vhost.exchange("events", "topic")
    vhost.bind("events", "orders", "orders.#", kind="e")
    items = [
        {"key": f"orders.{n}", "payload": f"{n % 7} {n:03}", "headers": {"customer": str(n % 7)}} for n in range(300)
    ]
    assert slow.batch("events", items, vhost=vhost.name).receipt()["confirmed"] == 300
    for queue, messages in vhost.drain_all().items():
        bodies = [message.body.decode() for message in messages]
        assert {owner(QUEUES, body[0]) for body in bodies} == {queue}
        for customer in {body[0] for body in bodies}:
            of_one = [body for body in bodies if body[0] == customer]
            assert of_one == sorted(of_one)


def test_what_no_ring_gets_is_the_brokers(peer: Wire, slow: Sidecar, events: VirtualHost) -> None:
    peer.publish(1, "events", "payments.1", b"payment")
    peer.publish(1, "events", "nothing", b"dropped")
    peer.confirm(1, 2)
    peer.publish(1, "events", "nothing", b"returned", mandatory=True)
    returned = peer.content(1, Basic.Return)
    assert isinstance(returned.method, Basic.Return)
    told = returned.method
    assert (told.reply_code, told.exchange, told.routing_key, returned.body) == (312, "events", "nothing", b"returned")
    peer.confirm(1, 3, 2)
    assert queues_of(events) == {"payment": "payments"}
    assert passed(slow, events, "no_ring") == 3


def test_an_alternate_exchange_gets_what_matches_nothing(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES)
    vhost.exchange("rest", "fanout")
    vhost.queue("rest")
    vhost.bind("rest", "rest", "")
    vhost.exchange("events", "topic", alternate_exchange="rest")
    vhost.bind("events", "orders", "orders.#", kind="e")
    with client.pika(slow.amqp_port, vhost.name) as channel:
        assert publish(channel, "events", "orders.1") == publish(channel, "events", "other") == "confirmed"
    assert queues_of(vhost) == {**by_ring(["orders.1"]), "other": "rest"}


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_message_with_further_keys_is_the_brokers(peer: Wire, events: VirtualHost, header: str) -> None:
    peer.publish(1, "events", "orders.1", b"m", Basic.Properties(headers={header: ["payments.1", "orders.2"]}))
    peer.confirm(1)
    found = {queue: len(messages) for queue, messages in events.drain_all().items()}
    assert found.pop("payments") == 1
    assert list(found.values()) == [1]
    assert set(found) <= set(QUEUES)


def test_a_queue_behind_the_ring_that_goes_away(peer: Wire, events: VirtualHost) -> None:
    peer.publish(1, "events", KEYS[0], b"first")
    peer.confirm(1)
    gone = next(iter(events.drain_all()))
    events.delete_queue(gone)
    for key in KEYS:
        peer.publish(1, "events", key, key.encode(), mandatory=True)
    peer.confirm(1, len(KEYS) + 1, 1)
    assert queues_of(events) == by_ring(KEYS, [queue for queue in QUEUES if queue != gone])


def test_the_last_queue_behind_the_ring_goes_away(peer: Wire, events: VirtualHost) -> None:
    """The client is told what the broker would tell it."""
    peer.publish(1, "events", KEYS[0], b"first")
    peer.confirm(1)
    for queue in QUEUES:
        events.delete_queue(queue)
    peer.publish(1, "events", KEYS[1], b"second", mandatory=True)
    returned = peer.content(1, Basic.Return)
    assert isinstance(returned.method, Basic.Return)
    told = returned.method
    assert (told.exchange, told.routing_key, returned.body) == ("events", KEYS[1], b"second")
    assert "x-ring-id" not in (returned.properties.headers or {})
    peer.confirm(1, 2, 1)


def test_a_lane_behind_that_is_deleted_closes_no_channel(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", QUEUES)
    vhost.exchange("events", "topic")
    vhost.bind("events", "orders", "#", kind="e")
    with client.session(slow.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.publish(1, "events", KEYS[0], b"first")
        peer.confirm(1)
        gone = owner(QUEUES, KEYS[0])
        vhost.delete_exchange(f"orders.lane.{gone}")
        peer.publish(1, "events", KEYS[0], b"refused")
        assert peer.answers(1, 2, 1) == {2: "nack"}
        for key in KEYS:
            peer.publish(1, "events", key, key.encode())
        peer.confirm(1, 2 + len(KEYS), 2)
    left = [queue for queue in QUEUES if queue != gone]
    assert queues_of(vhost) == {**by_ring(KEYS, left), "first": gone}


def test_the_rights_that_publishing_takes(slow: Sidecar, vhost: VirtualHost) -> None:
    """Write on the upstream exchange and the lanes, and none on the exchange of the ring.

    The broker checks rights on the upstream exchange, and topic permissions, of what is passed only.
    """
    vhost.exchange("orders")
    vhost.lanes("orders", QUEUES)
    vhost.exchange("events", "topic")
    vhost.bind("events", "orders", "orders.#", kind="e")
    least = Client("least upstream", "pw-least")
    vhost.api.ask("PUT", "users", least.user, body={"password": least.password, "tags": ""})
    vhost.permit(least.user, write=r"^(events|orders\.lane\..*)$")
    only_eu = {"exchange": "events", "write": r"^.*\.eu$", "read": ""}
    vhost.api.ask("PUT", "topic-permissions", vhost.name, least.user, body=only_eu)
    try:
        with least.session(slow.amqp_port, vhost.name) as peer:
            peer.channel(1)
            peer.publish(1, "events", "orders.eu", b"orders.eu")
            peer.publish(1, "events", "orders.us", b"orders.us")
            peer.publish(1, "events", "nothing.eu", b"dropped")
            peer.confirm(1, 3)
            peer.publish(1, "events", "nothing.us", b"refused")
            assert peer.expect(1, Channel.Close).reply_code == 403
    finally:
        vhost.api.ask("DELETE", "users", least.user)
    assert queues_of(vhost) == by_ring(["orders.eu", "orders.us"])


def explained(sidecar: Sidecar, vhost: VirtualHost, key: str) -> list[str]:
    command = [COMMAND, "explain", "events", key, "--vhost", vhost.name, "--sidecar", sidecar.admin_url]
    environment = {**os.environ, "PYTHONPATH": str(Path(proxy.__file__).parents[1])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_explain_tells_where_a_key_leads(slow: Sidecar, events: VirtualHost) -> None:
    for key, leads in (("orders.eu", "ring of exchange orders"), ("payments.eu", "no ring: it is passed")):
        assert explained(slow, events, key)[1:] == [f"key          {key}", f"leads to     {leads}"]


def test_explain_tells_of_a_conflict(slow: Sidecar, events: VirtualHost) -> None:
    events.bind("events", "payments", "#.eu")
    assert explained(slow, events, "orders.eu") == [
        f"exchange     events in virtual host {events.name}, topic, mode route",
        "passed       publishes go to the exchange itself: one message may match its binding to a ring and another"
        " binding (overlap)",
        "leads to     ring of exchange orders",
        "conflict     one message may match its bindings to exchange 'orders' with 'orders.#' and queue 'payments' with"
        " '#.eu'",
    ]


def test_declared_bound_and_published_at_once(slow: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """One session binds and unbinds by turns, with no pause."""
    with client.pika(slow.amqp_port, vhost.name) as channel:
        channel.exchange_declare("events", "topic")
        assert publish(channel, "events", "early") == "returned 312"
        channel.exchange_declare("orders", "x-consistent-hash")
        for queue in QUEUES:
            channel.queue_declare(queue)
            channel.queue_bind(queue, "orders", "1")
        for n, key in enumerate(KEYS):
            pattern = ["orders.*", "#.orders.#"][n % 2]
            channel.exchange_bind("orders", "events", pattern)
            assert publish(channel, "events", key) == "confirmed"
            channel.exchange_unbind("orders", "events", pattern)
            assert publish(channel, "events", key) == "returned 312"
    assert queues_of(vhost) == by_ring(KEYS)


def test_a_binding_that_one_message_may_match_too_has_all_passed(
    fast: Sidecar, events: VirtualHost, client: Client
) -> None:
    with client.pika(fast.amqp_port, events.name) as channel:
        assert publish(channel, "events", "orders.1") == "confirmed"
        events.queue("audit")
        channel.queue_bind("audit", "events", "orders.*.audit")
        assert publish(channel, "events", "orders.2") == publish(channel, "events", "orders.3.audit") == "confirmed"
        found = {queue: {m.body.decode() for m in messages} for queue, messages in events.drain_all().items()}
        assert found.pop("audit") == {"orders.3.audit"}
        assert set.union(*found.values()) == {"orders.1", "orders.2", "orders.3.audit"}
        assert passed(fast, events, "overlap") == 2
        both = "exchange 'orders' with 'orders.#' and queue 'audit' with 'orders.*.audit'"
        assert f"because one message may match its bindings to {both}" in fast.log()
        assert "not routed (overlap)" in fast.admin("/readyz?verbose").text
        channel.queue_unbind("audit", "events", "orders.*.audit")
        assert publish(channel, "events", "orders.4") == "confirmed"
    assert queues_of(events) == by_ring(["orders.4"])


def test_a_queue_that_a_client_binds_gets_a_copy_of_each_message_from_then_on(
    slow: Sidecar, events: VirtualHost, client: Client
) -> None:
    """The sidecar's next publish waits until it knows of the binding, whichever session made it."""
    events.queue("audit")
    with client.pika(slow.amqp_port, events.name) as one, client.pika(slow.amqp_port, events.name) as other:
        for n, key in enumerate(KEYS):
            assert publish(one, "events", f"{key}.before") == "confirmed"
            other.queue_bind("audit", "events", ["#", "orders.*.*", "*.#"][n % 3])
            assert publish(one, "events", f"{key}.during") == "confirmed"
            other.queue_unbind("audit", "events", ["#", "orders.*.*", "*.#"][n % 3])
    assert [m.body.decode() for m in events.drain("audit")] == [f"{key}.during" for key in KEYS]
    found = queues_of(events)
    assert found.keys() == {f"{key}.{when}" for key in KEYS for when in ("before", "during")}
    routed = [f"{key}.before" for key in KEYS]
    assert {key: found[key] for key in routed} == by_ring(routed)


def test_only_a_named_exchange_is_an_upstream_exchange(sidecar: Sidecar, events: VirtualHost) -> None:
    receipt = sidecar.publish("events", "orders.1", vhost=events.name).receipt()
    assert receipt == {"outcome": "passed", "exchange": "events", "reason": "type"}


def test_upstream_exchanges_and_internal_ones_one_behind_the_other(
    fast: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", QUEUES, internal=True)
    vhost.exchange("inner", "fanout")
    vhost.bind("inner", "orders", "whatever", kind="e")
    vhost.exchange("events", "topic")
    vhost.bind("events", "inner", "orders.#", kind="e")
    with client.pika(fast.amqp_port, vhost.name) as channel:
        assert {publish(channel, "events", key) for key in KEYS} == {"confirmed"}
    assert queues_of(vhost) == by_ring(KEYS)
    refused = fast.publish("orders", "k", vhost=vhost.name)
    refused.problem(403, "internal-exchange", "invalid", retryable=False)


def test_a_ring_behind_that_is_deleted_and_made_again(slow: Sidecar, events: VirtualHost, client: Client) -> None:
    with client.pika(slow.amqp_port, events.name) as channel:
        assert publish(channel, "events", KEYS[0]) == "confirmed"
        channel.exchange_delete("orders")
        assert publish(channel, "events", KEYS[0]) == "returned 312"
        channel.exchange_declare("orders", "x-consistent-hash", durable=True)
        channel.queue_bind("q1", "orders", "1")
        channel.exchange_bind("orders", "events", "orders.#")
        assert publish(channel, "events", KEYS[1]) == "confirmed"
    assert queues_of(events) == {KEYS[0]: owner(QUEUES, KEYS[0]), KEYS[1]: "q1"}


def test_a_ring_behind_that_is_deleted_elsewhere(fast: Sidecar, events: VirtualHost, client: Client) -> None:
    with client.pika(fast.amqp_port, events.name) as channel:
        assert publish(channel, "events", KEYS[0]) == "confirmed"
        events.delete_exchange("orders")
        wait_until("it is read", lambda: fast.ring(events.name, "events")["passed"] == "no_ring")
        assert publish(channel, "events", KEYS[0]) == "returned 312"


@pytest.mark.parametrize("http", [False, True])
def test_a_ring_behind_two_exchanges_that_is_deleted_elsewhere_before_it_was_read(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, http: bool
) -> None:
    """The exchange in between is read again, and its binding need not stay away: the ring's own page proves it."""
    sidecar = start_sidecar(sync_interval="600", settle_time="600", lookup_timeout="20", route="*,events,inner")
    vhost.ring("orders", QUEUES)
    for name, behind in (("inner", "orders"), ("events", "inner")):
        vhost.exchange(name, "topic")
        vhost.bind(name, behind, "#", kind="e")
        assert sidecar.ring(vhost.name, name)["passed"] is None
    vhost.delete_exchange("orders")
    if http:
        sidecar.publish("events", "k", vhost=vhost.name).problem(503, "unavailable", "unavailable", retryable=True)
        sidecar.publish("events", "k", vhost=vhost.name).problem(503, "unroutable", "unroutable", retryable=True)
    else:
        with client.pika(sidecar.amqp_port, vhost.name) as channel:
            assert publish(channel, "events", "k") == "returned 312"


def test_a_removed_binding_counts_once_it_stays_away(
    slow: Sidecar, start_sidecar: StartSidecar, events: VirtualHost
) -> None:
    """As with rings: an answer of the management API may lack what is there."""
    sidecar = start_sidecar(sync_interval="0.3", settle_time="1.5", route="events,orders")
    assert sidecar.publish("events", "orders.1", vhost=events.name).queue() == owner(QUEUES, "orders.1")
    events.unbind("events", "orders", "orders.#", kind="e")
    read = sidecar.metric("ringproxy_syncs_total", result="ok")
    wait_until("a reading", lambda: sidecar.metric("ringproxy_syncs_total", result="ok") >= read + 2)
    still = sidecar.publish("events", "orders.1", vhost=events.name)
    wait_until("it counts", lambda: sidecar.ring(events.name, "events")["passed"] == "no_ring")
    assert still.queue() == owner(QUEUES, "orders.1")
    sidecar.publish("events", "orders.1", vhost=events.name).problem(503, "unroutable", "unroutable", retryable=True)


def test_a_binding_with_three_any_words_is_refused_by_newer_brokers_and_changes_nothing(
    slow: Sidecar, events: VirtualHost, client: Client
) -> None:
    """RabbitMQ 4.3 takes two `#` in a binding key at most (17039). An older one takes it, and it counts here, too."""
    with client.pika(slow.amqp_port, events.name) as channel:
        assert publish(channel, "events", "orders.1") == "confirmed"
        other = channel.connection.channel()
        try:
            other.exchange_bind("orders", "events", "refunds.#.a.#.eu.#")
            refused = ""
        except ChannelClosedByBroker as error:
            refused = f"{error.reply_code} {error.reply_text}"
        if [int(part) for part in events.api.ask("GET", "overview")["rabbitmq_version"].split(".")[:2]] >= [4, 3]:
            assert "406 PRECONDITION_FAILED - Topic binding key 'refunds.#.a.#.eu.#' uses 3 '#'" in refused
        else:
            assert refused == ""
        refund = "refunds.1.a.eu.paris"
        assert publish(channel, "events", "orders.2") == "confirmed"
        assert publish(channel, "events", refund) == ("returned 312" if refused else "confirmed")
    assert queues_of(events) == by_ring(["orders.1", "orders.2", *([] if refused else [refund])])


RING = Destination("exchange", "r")


def words(most_any: int) -> st.SearchStrategy[list[str]]:
    """Words of a pattern; RabbitMQ 4.3 takes two `#` in one at most."""
    return st.lists(st.sampled_from(["a", "b", "", "*", "#", "é"]), max_size=5).filter(
        lambda w: w.count("#") <= most_any
    )


def matches(pattern: str, key: str) -> bool:
    matcher = Matcher("topic", [RING])
    assert matcher.add(Binding(RING, pattern)) is None
    return matcher.find(key.encode()) == 0


def test_patterns_match_as_the_brokers_do(broker: Broker, vhost: VirtualHost, client: Client) -> None:
    with client.pika(port_of(broker.amqp_url), vhost.name) as channel:
        queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]

        @settings(max_examples=min(60, settings().max_examples), database=None)
        @given(st.lists(words(2), min_size=1, max_size=3), st.lists(words(9), min_size=1, max_size=6))
        def check(patterns: list[list[str]], keys: list[list[str]]) -> None:
            channel.exchange_declare("topic", "topic")
            for queue, pattern in zip(queues, patterns, strict=False):
                channel.queue_bind(queue, "topic", ".".join(pattern))
            expected: list[list[str]] = [[] for _ in patterns]
            for key in (".".join(each) for each in keys):
                channel.basic_publish("topic", key, b"")
                for found, pattern in zip(expected, patterns, strict=True):
                    if matches(".".join(pattern), key):
                        found.append(key)
            assert [taken(channel, queue) for queue, _ in zip(queues, patterns, strict=False)] == expected
            channel.exchange_delete("topic")

        check()


def taken(channel: BlockingChannel, queue: str) -> list[str]:
    """Take every message out of a queue; return their routing keys."""
    keys: list[str] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        keys.append(str(got[0].routing_key))
    return keys


RINGS = {"r1": ["r1a", "r1b", "r1c"], "r2": ["r2a", "r2b"]}


def bind_at_random(vhost: VirtualHost, chance: random.Random, kind: str) -> None:
    """Bind the exchange events to two rings and two queues, so that no message can match two of them."""
    vhost.exchange("events", kind)
    names = ["r1"] if kind == "fanout" else [*RINGS, "p", "q"]
    for name, first in zip(names, chance.sample("abcd", len(names)), strict=True):
        for second in chance.sample("xy*#", 2):
            vhost.bind("events", name, f"{first}.{second}", kind="e" if name in RINGS else "q")


def by_group(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the bodies in each ring's queues together, and in each other queue."""
    groups: dict[str, list[str]] = {}
    for queue, bodies in found.items():
        groups.setdefault(queue[:2] if queue[:2] in RINGS else queue, []).extend(bodies)
    return {group: sorted(bodies) for group, bodies in groups.items()}


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("topic", 0),
        *(pytest.param("topic", n, marks=pytest.mark.long) for n in range(1, 5)),
        ("direct", 0),
        ("fanout", 0),
    ],
)
@pytest.mark.parametrize("conflict", [False, True])
def test_every_message_gets_where_the_broker_brings_it(
    broker: Broker, fast: Sidecar, vhost: VirtualHost, client: Client, kind: str, seed: int, conflict: bool
) -> None:
    """Random bindings: natively and through the sidecar each message gets to the same rings and queues."""
    chance = random.Random(seed)
    for ring, queues in RINGS.items():
        vhost.ring(ring, queues)
    for queue in ("p", "q"):
        vhost.queue(queue)
    bind_at_random(vhost, chance, kind)
    if conflict:
        taken_by_r1 = next(
            b["routing_key"]
            for b in vhost.api.ask("GET", "exchanges", vhost.name, "events", "bindings", "source")
            if b["destination"] == "r1"
        )
        vhost.bind("events", "q", taken_by_r1)
    keys = [".".join(chance.choices("abcdxy", k=chance.randint(1, 3))) for _ in range(40)]

    def brought(port: int) -> tuple[list[str], dict[str, list[str]]]:
        with client.pika(port, vhost.name) as channel:
            told = [publish(channel, "events", key) for key in keys]
        return told, {queue: [m.body.decode() for m in messages] for queue, messages in vhost.drain_all().items()}

    natively, ours = brought(port_of(broker.amqp_url)), brought(fast.amqp_port)

    assert natively[0] == ours[0]
    assert by_group(natively[1]) == by_group(ours[1])
    assert fast.ring(vhost.name, "events")["passed"] == ("overlap" if conflict else None)
    if not conflict:
        placed = {body: queue for queue, bodies in ours[1].items() if queue[:2] in RINGS for body in bodies}
        assert placed == {body: owner(RINGS[queue[:2]], body) for body, queue in placed.items()}
