"""The exchanges and queues that may hang on a hash exchange, and the values that it may hash."""

from collections import Counter

import pytest

from ring.destination import Destination
from ring.hashing import slot_of
from ring.ring import Ring
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
KEYS = [f"key {n}" for n in range(30)]


def passed(reason: str, exchange: str = "orders") -> dict[str, str]:
    return {"outcome": "passed", "exchange": exchange, "reason": reason}


def test_modulus_hash_ignores_binding_keys(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders", "x-modulus-hash")
    for queue, key in zip(QUEUES, ("", "7", "not a number"), strict=True):
        vhost.queue(queue)
        vhost.bind("orders", queue, key)

    for key in KEYS:
        assert sidecar.publish("orders", key, vhost=vhost.name).queue() == owner(QUEUES, key)

    assert sidecar.weights(vhost.name, "orders") == dict.fromkeys(QUEUES, 1)
    assert sum(map(len, vhost.drain_all().values())) == len(KEYS)


def test_modulus_hash_gives_a_queue_that_is_bound_thrice_three_shares_as_the_broker_does(
    sidecar: Sidecar, vhost: VirtualHost
) -> None:
    vhost.exchange("orders", "x-modulus-hash")
    for queue, keys in (("q1", "abc"), ("q2", "a")):
        vhost.queue(queue)
        for key in keys:
            vhost.bind("orders", queue, key)

    for key in map(str, range(400)):
        vhost.api.ask(
            "POST", "exchanges", vhost.name, "orders", "publish",
            body={"properties": {}, "routing_key": key, "payload": key, "payload_encoding": "string"},
        )  # fmt: skip
    natively = len(vhost.drain("q1"))

    assert sidecar.publish("orders", "key", vhost=vhost.name).status == 200
    assert sidecar.weights(vhost.name, "orders") == {"q1": 3, "q2": 1}
    # 400 keys of 3 in 4: five standard deviations, 43, either way.
    assert 257 < natively < 343


def test_an_exchange_behind_the_ring_routes_by_the_original_key(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.exchange("by topic", "topic")
    vhost.bind("orders", "by topic", "1", kind="e")
    for queue, pattern in (("reds", "red.*"), ("blues", "blue.*")):
        vhost.queue(queue)
        vhost.bind("by topic", queue, pattern)

    receipt = sidecar.publish("orders", "red.1", vhost=vhost.name).receipt()

    assert receipt["outcome"] == "confirmed"
    assert receipt["destination"] == {"type": "exchange", "name": "by topic"}
    (message,) = vhost.drain("reds")
    assert (message.exchange, message.routing_key) == ("by topic", "red.1")
    assert message.headers["x-ring-exchange"] == "orders"
    assert message.headers["x-ring-routing-key"] == "red.1"
    nobody = sidecar.publish("orders", "green.1", vhost=vhost.name)
    detail = nobody.problem(503, "unroutable", "unroutable", retryable=True)
    assert "by topic" in detail
    assert vhost.drain_all() == {}


def test_a_ring_behind_a_ring(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("inner", QUEUES)
    vhost.exchange("outer")
    vhost.bind("outer", "inner", "3", kind="e")
    vhost.queue("direct")
    vhost.bind("outer", "direct", "3")
    outer = Ring.build({Destination("exchange", "inner"): 3, Destination("queue", "direct"): 3})

    expected = [owner(QUEUES, key) if outer.owner_of(key.encode()).name == "inner" else "direct" for key in KEYS]
    assert {"direct", *QUEUES} == set(expected)
    assert [sidecar.publish("outer", key, vhost=vhost.name).queue() for key in KEYS] == expected
    assert {queue: len(found) for queue, found in vhost.drain_all().items()} == Counter(expected)


def test_a_queue_that_leaves_the_inner_of_two_rings(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """The return must have the ring read again that chose the queue, not the one that was published to."""
    vhost.ring("inner", QUEUES)
    vhost.exchange("outer")
    vhost.bind("outer", "inner", "1", kind="e")
    sidecar = start_sidecar(sync_interval="600")
    gone = sidecar.publish("outer", "k", vhost=vhost.name).queue()

    vhost.delete_queue(gone)

    assert sidecar.publish("outer", "k", vhost=vhost.name).queue() == owner([q for q in QUEUES if q != gone], "k")


def test_an_exchange_that_leaves_the_ring(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """A publish to a deleted exchange is a channel's end, not a return; the message goes where the new ring says."""
    vhost.exchange("orders")
    vhost.exchange("topics", "topic")
    vhost.queue("topical")
    vhost.bind("topics", "topical", "#")
    vhost.bind("orders", "topics", "1", kind="e")
    sidecar = start_sidecar(sync_interval="600")
    receipt = sidecar.publish("orders", "k", vhost=vhost.name).receipt()
    assert receipt["destination"] == {"type": "exchange", "name": "topics"}

    vhost.queue("q")
    vhost.bind("orders", "q")
    vhost.delete_exchange("topics")

    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == "q"


def test_an_internal_exchange_behind_it_is_left_to_the_broker(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.exchange("inside", "fanout", internal=True)
    vhost.queue("q")
    vhost.bind("inside", "q", "")
    vhost.bind("orders", "inside", "1", kind="e")

    receipt = sidecar.publish("orders", "k", vhost=vhost.name).receipt()

    assert receipt == passed("internal_destination")
    (message,) = vhost.drain("q")
    assert (message.exchange, message.routing_key) == ("orders", "k")


def test_a_cycle_of_rings_is_left_to_the_broker(sidecar: Sidecar, vhost: VirtualHost) -> None:
    for exchange in ("one", "two"):
        vhost.exchange(exchange)
    vhost.bind("one", "two", "1", kind="e")
    vhost.bind("two", "one", "1", kind="e")

    answer = sidecar.route("one", "k", vhost=vhost.name).receipt()
    assert (answer["outcome"], answer["reason"]) == ("passed", "cycle")
    sidecar.publish("one", "k", vhost=vhost.name).problem(503, "unroutable", "unroutable", retryable=True)


def test_a_queue_bound_twice_counts_once_with_its_larger_weight(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", {"twice": 2, "once": 1})
    # RabbitMQ counts the first binding of a queue only, but keeps both.
    vhost.bind("orders", "twice", "5")

    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

    ring = sidecar.ring(vhost.name, "orders")
    assert {d["name"]: d["weight"] for d in ring["destinations"]} == {"twice": 5, "once": 1}
    assert ring["duplicate_bindings"] == [{"type": "queue", "name": "twice"}]
    assert sum(map(len, vhost.drain_all().values())) == 1


def test_hashes_the_header_that_the_exchange_names(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES, hash_header="customer")

    for value in [*KEYS, "ünï", ""]:
        answer = sidecar.publish("orders", "ignored", vhost=vhost.name, headers={"Amqp-Header-customer": value})
        assert answer.queue() == owner(QUEUES, value)
        assert sidecar.route("orders", value, vhost=vhost.name).queue() == owner(QUEUES, value)


def test_messages_without_the_hashed_value_share_a_queue_and_are_counted(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES, hash_header="customer")

    for key in KEYS[:5]:
        receipt = sidecar.publish("orders", key, vhost=vhost.name, headers={"Amqp-Header-other": key}).receipt()
        assert receipt["slot"] == slot_of(b"")

    assert {queue: len(found) for queue, found in vhost.drain_all().items()} == {owner(QUEUES, ""): 5}
    assert sidecar.metric("ringproxy_value_missing_total", vhost=vhost.name, exchange="orders") == 5


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_an_exchange_of_another_type_is_left_to_the_broker(sidecar: Sidecar, vhost: VirtualHost, kind: str) -> None:
    vhost.exchange("plain", kind)
    vhost.queue("q")
    vhost.bind("plain", "q", "k")

    receipt = sidecar.publish("plain", "k", b"body", vhost=vhost.name, headers={"Content-Type": "a/b"}).receipt()

    assert receipt == passed("type", "plain")
    (message,) = vhost.drain("q")
    assert (message.body, message.exchange, message.routing_key) == (b"body", "plain", "k")
    assert message.properties["content_type"] == "a/b"
    assert "x-ring-exchange" not in message.headers
    sidecar.publish("plain", None, vhost=vhost.name).problem(400, "no-routing-key", "invalid", retryable=False)


def test_passed_and_taken_by_nobody(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("plain", "direct")
    vhost.exchange("empty ring")

    plain = sidecar.publish("plain", "k", vhost=vhost.name)
    assert "exchange 'plain' has no queue" in plain.problem(503, "unroutable", "unroutable", retryable=True)
    # To send it again helps nobody: there is no binding.
    empty = sidecar.publish("empty ring", "k", vhost=vhost.name)
    told = empty.problem(422, "unroutable", "unroutable", retryable=False)
    assert told.startswith("exchange 'empty ring' has no binding that takes the message; bind a queue")
    batch = sidecar.batch("empty ring", [{"key": "k", "payload": "p"}], vhost=vhost.name)
    batch.problem(422, "batch-failed", "unroutable", retryable=False)
    assert [result["retryable"] for result in batch.json["results"]] == [False]


def test_an_empty_rings_alternate_exchange_gets_it(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("lost", "fanout")
    vhost.queue("found")
    vhost.bind("lost", "found", "")
    vhost.exchange("orders", alternate_exchange="lost")

    assert sidecar.publish("orders", "k", b"b", vhost=vhost.name).receipt() == passed("no_bindings")

    assert [m.body for m in vhost.drain("found")] == [b"b"]


def test_shadow_and_pass(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    for exchange in ("watched", "alone", "routed", "other"):
        vhost.ring(exchange, [f"{exchange} 1", f"{exchange} 2"])
    sidecar = start_sidecar(shadow="w*", **{"pass": "alo?e"}, route="*ed")

    assert sidecar.publish("watched", "k", vhost=vhost.name).receipt() == passed("shadow", "watched")
    assert sidecar.publish("alone", "k", vhost=vhost.name).receipt() == passed("pass", "alone")
    assert sidecar.publish("other", "k", vhost=vhost.name).receipt() == passed("pass", "other")
    would_be = owner(["watched 1", "watched 2"], "k")
    answer = sidecar.route("watched", "k", vhost=vhost.name).receipt()
    assert answer["would_be"]["destination"] == {"type": "queue", "name": would_be}
    assert sidecar.metric("ringproxy_shadowed_total", exchange="watched", destination=would_be) == 1
    assert sidecar.metric("ringproxy_shadowed_total") == 1
    assert sidecar.publish("routed", "k", vhost=vhost.name).queue() == owner(["routed 1", "routed 2"], "k")
    watched = [m for queue in ("watched 1", "watched 2") for m in vhost.drain(queue)]
    assert [(m.exchange, m.routing_key) for m in watched] == [("watched", "k")]


def test_a_queue_that_would_dead_letter_under_its_own_name_passes_the_ring(
    sidecar: Sidecar, start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q1"])
    vhost.queue("q2", x_dead_letter_exchange="dead")
    vhost.bind("orders", "q2")

    assert sidecar.publish("orders", "k", vhost=vhost.name).receipt() == passed("dead_letter")
    assert sidecar.ring(vhost.name, "orders")["dead_letter_queues"] == ["q2"]

    rewriting = start_sidecar(on_dead_letter="rewrite")
    assert rewriting.publish("orders", "k", vhost=vhost.name).queue() == owner(["q1", "q2"], "k")
    assert rewriting.ring(vhost.name, "orders")["dead_letter_queues"] == ["q2"]


def test_a_dead_letter_routing_key_keeps_the_ring(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.queue("q", x_dead_letter_exchange="dead", x_dead_letter_routing_key="orders")
    vhost.bind("orders", "q")

    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == "q"
