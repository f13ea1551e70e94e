"""A publish lands once, where the ring says, as it was sent."""

import gzip
import http.client
import random
from contextlib import closing

import pytest

from ring.hashing import slot_of
from tests.integration.broker_api import DEADLINE_SECONDS, NAME_SHAPES, VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.rings import built, owner
from tests.integration.sidecar import Answer, Sidecar, publish_path

WEIGHTS = {"q1": 1, "q2": 2, "q3": 3}
KEYS = [f"key {n}" for n in range(60)]


def test_lands_once_in_the_queue_that_the_receipt_and_the_ring_name(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", WEIGHTS)
    ring = built(WEIGHTS)

    receipts = {key: sidecar.publish("orders", key, key.encode(), vhost=vhost.name).receipt() for key in KEYS}

    for key, receipt in receipts.items():
        assert receipt["outcome"] == "confirmed"
        assert receipt["slot"] == slot_of(key.encode())
        assert receipt["destination"] == {"type": "queue", "name": ring.owner_of(key.encode()).name}
    assert len({receipt["ring"] for receipt in receipts.values()}) == 1
    landed = [(m.body.decode(), queue) for queue, messages in vhost.drain_all().items() for m in messages]
    assert sorted(landed) == sorted((key, receipt["destination"]["name"]) for key, receipt in receipts.items())
    assert {queue for _, queue in landed} == set(WEIGHTS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        bytes(range(256)),
        "žluťoučký".encode(),
        random.Random(1).randbytes(1_000_000),
        gzip.compress(b"z" * 99),
    ],
    ids=["empty", "NUL", "every byte", "text", "1 MB", "gzip"],
)
def test_body_and_its_description_are_kept(sidecar: Sidecar, vhost: VirtualHost, body: bytes) -> None:
    vhost.ring("orders", ["q"])
    headers = {"Content-Type": "application/x-test; charset=x", "Content-Encoding": "gzip"}

    assert sidecar.publish("orders", "k", body, vhost=vhost.name, headers=headers).queue() == "q"

    (message,) = vhost.drain("q")
    assert message.body == body
    assert message.properties["content_type"] == headers["Content-Type"]
    assert message.properties["content_encoding"] == "gzip"
    assert message.properties["delivery_mode"] == 2


def test_every_property_and_header_is_carried(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    properties = {
        "Content-Type": ("content_type", "text/x-é"),
        "Content-Encoding": ("content_encoding", "br"),
        "Amqp-Priority": ("priority", 255),
        "Amqp-Correlation-Id": ("correlation_id", "correlated"),
        "Amqp-Reply-To": ("reply_to", "answers"),
        "Amqp-Expiration": ("expiration", "3600000"),
        "Amqp-Message-Id": ("message_id", "id é"),
        "Amqp-Timestamp": ("timestamp", 1700000000),
        "Amqp-Type": ("type", "created"),
        "Amqp-App-Id": ("app_id", "shop"),
    }
    carried = {
        "Amqp-Header-customer": "Å & co",
        "Amqp-Header-empty": "",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "a=1,b=2",
    }
    headers = {field: str(value) for field, (_, value) in properties.items()} | carried

    assert sidecar.publish("orders", "k", vhost=vhost.name, headers=headers).status == 200

    (message,) = vhost.drain("q")
    got = {name: value for name, value in message.properties.items() if name != "headers"}
    assert got == dict(properties.values()) | {"delivery_mode": 2}
    assert {name: value for name, value in message.headers.items() if not name.startswith("x-ring-")} == {
        name.removeprefix("Amqp-Header-"): value for name, value in carried.items()
    }


def test_persistent_unless_asked_otherwise(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])

    for headers in ({}, {"Amqp-Delivery-Mode": "2"}, {"Amqp-Delivery-Mode": "1"}):
        assert sidecar.publish("orders", "k", vhost=vhost.name, headers=headers).status == 200

    assert [m.properties["delivery_mode"] for m in vhost.drain("q")] == [2, 2, 1]


def test_the_key_of_the_query_is_that_of_the_header(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", WEIGHTS)

    for key in (*KEYS[:10], "ü&=+/ %", ""):
        by_query = sidecar.ask("POST", publish_path("orders", vhost.name, key=key), b"")
        assert by_query.receipt() == sidecar.publish("orders", key, vhost=vhost.name).receipt()

    keys = [m.headers["x-ring-routing-key"] for messages in vhost.drain_all().values() for m in messages]
    assert sorted(keys) == sorted([*KEYS[:10], "ü&=+/ %", ""] * 2)


@pytest.mark.parametrize("prefer", ["return=minimal", "respond-async, Return=Minimal; x=y"])
def test_a_client_that_wants_no_receipt(sidecar: Sidecar, vhost: VirtualHost, prefer: str) -> None:
    vhost.ring("orders", ["q"])

    answer = sidecar.publish("orders", "k", b"b", vhost=vhost.name, headers={"Prefer": prefer})

    assert (answer.status, answer.body, answer.headers["preference-applied"]) == (204, b"", "return=minimal")
    assert [m.body for m in vhost.drain("q")] == [b"b"]
    # A problem is told all the same.
    gone = sidecar.publish("none", "k", vhost=vhost.name, headers={"Prefer": prefer})
    gone.problem(404, "unknown-exchange", "invalid", retryable=False)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"hash_header": "customer"}, "Amqp-Header-customer"),
        ({"hash_property": "message_id"}, "Amqp-Message-Id"),
        ({"hash_property": "correlation_id"}, "Amqp-Correlation-Id"),
        ({"hash_property": "timestamp"}, "Amqp-Timestamp"),
    ],
)
def test_an_exchange_that_hashes_something_else_needs_no_key(
    sidecar: Sidecar, vhost: VirtualHost, arguments: dict[str, str], field: str
) -> None:
    vhost.ring("orders", WEIGHTS, **arguments)
    values = [str(1000 + n) for n in range(30)]

    for value in values:
        answer = sidecar.publish("orders", None, value.encode(), vhost=vhost.name, headers={field: value})
        assert answer.queue() == owner(WEIGHTS, value)
    without = sidecar.publish("orders", "its key does not matter", vhost=vhost.name)

    assert without.queue() == owner(WEIGHTS, "")
    landed = {m.body.decode(): queue for queue, messages in vhost.drain_all().items() for m in messages}
    assert landed == {value: owner(WEIGHTS, value) for value in values} | {"": owner(WEIGHTS, "")}
    assert len(set(landed.values())) == len(WEIGHTS)


def test_keys_keep_their_order_through_singles_and_a_batch(sidecar: Sidecar, vhost: VirtualHost) -> None:
    queues = ["q1", "q2", "q3", "q4"]
    vhost.ring("orders", queues)
    keys = ["a", "b", "c", "d", "e"]
    sent = [(keys[n * 7 % 11 % 5], n) for n in range(2000)]
    with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=DEADLINE_SECONDS)) as connection:
        for key, n in sent:
            connection.request("POST", publish_path("orders", vhost.name), b"%d" % n, {"Routing-Key": key})
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
    batch = sidecar.batch("orders", [{"key": k, "payload": str(2000 + n)} for k, n in sent], vhost=vhost.name)
    assert batch.receipt() == {"outcome": "confirmed", "messages": 2000, "confirmed": 2000, "passed": 0}

    landed = vhost.drain_all()

    expected: dict[str, list[int]] = {}
    for key, n in [*sent, *((key, 2000 + n) for key, n in sent)]:
        expected.setdefault(owner(queues, key), []).append(n)
    assert {queue: [int(m.body) for m in messages] for queue, messages in landed.items()} == expected


def test_consumers_learn_exchange_and_routing_key(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders é", ["q"])
    forged = {"Amqp-Header-x-ring-exchange": "f", "Amqp-Header-x-ring-routing-key": "f", "Amqp-Header-x-ring-id": "1"}

    for key in ("the key ü", ""):
        assert sidecar.publish("orders é", key, vhost=vhost.name, headers=forged).status == 200

    messages = vhost.drain("q")
    assert [m.headers["x-ring-exchange"] for m in messages] == ["orders é"] * 2
    assert [m.headers["x-ring-routing-key"] for m in messages] == ["the key ü", ""]
    assert [(m.exchange, m.routing_key) for m in messages] == [("", "q")] * 2
    ids = {m.headers["x-ring-id"] for m in messages}
    assert len(ids) == 2
    assert all(isinstance(i, int) and 0 < i < 1 << 63 for i in ids)


def test_route_agrees_and_publishes_nothing(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", WEIGHTS)
    ring = built(WEIGHTS)

    for key in KEYS[:20]:
        answer = sidecar.route("orders", key, vhost=vhost.name).receipt()
        slot = slot_of(key.encode())
        assert answer["slot"] == slot
        assert answer["destination"] == {"type": "queue", "name": ring.owner(slot).name}
        runner_up = ring.runner_up(slot)
        assert runner_up is not None
        assert answer["runner_up"] == {"type": "queue", "name": runner_up.name}
        assert answer["hashed"] == "routing_key"
    assert vhost.drain_all() == {}
    published = sidecar.publish("orders", KEYS[0], vhost=vhost.name).receipt()
    routed = sidecar.route("orders", KEYS[0], vhost=vhost.name).receipt()
    assert {name: routed[name] for name in ("destination", "slot", "ring")} == {
        name: published[name] for name in ("destination", "slot", "ring")
    }


def test_a_ring_of_one_has_no_runner_up(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])

    assert sidecar.route("orders", "k", vhost=vhost.name).receipt()["runner_up"] is None


def test_keys_of_an_owner_that_leaves_go_to_their_runners_up_and_no_other_moves(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    vhost.ring("orders", WEIGHTS)
    sidecar = start_sidecar()
    before = {key: sidecar.route("orders", key, vhost=vhost.name).receipt() for key in KEYS}

    vhost.unbind("orders", "q2", "2")
    sidecar.wait_for_weights(vhost.name, "orders", {"q1": 1, "q3": 3})

    moved = 0
    for key, was in before.items():
        now = sidecar.publish("orders", key, vhost=vhost.name).queue()
        owner = was["destination"]["name"]
        moved += owner == "q2"
        assert now == (was["runner_up"]["name"] if owner == "q2" else owner)
    assert 0 < moved < len(KEYS)


def test_shares_follow_the_weights(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", {"light": 1, "heavy": 4, "heaviest": 5})
    sidecar.route("orders", "k", vhost=vhost.name).receipt()

    shares = {d["name"]: d["share"] for d in sidecar.ring(vhost.name, "orders")["destinations"]}

    # 4 sigma of 2^20 slots are under 0.2%.
    assert shares == pytest.approx({"light": 0.1, "heavy": 0.4, "heaviest": 0.5}, abs=0.002)


@pytest.mark.parametrize("shape", [*NAME_SHAPES, "%2F", "*", "{x}", "ends with /"])
def test_any_name_of_an_exchange_and_a_queue(sidecar: Sidecar, vhost: VirtualHost, shape: str) -> None:
    exchange, queue = f"{shape}x", f"{shape}q"
    vhost.ring(exchange, [queue])

    assert sidecar.publish(exchange, "k", b"b", vhost=vhost.name).queue() == queue

    (message,) = vhost.drain(queue)
    assert message.headers["x-ring-exchange"] == exchange
    assert sidecar.weights(vhost.name, exchange) == {queue: 1}


def test_several_virtual_hosts_at_once(
    sidecar: Sidecar, vhost: VirtualHost, other_vhost: VirtualHost, login: Login
) -> None:
    vhost.ring("orders", ["here"])
    other_vhost.ring("orders", ["there"])

    answers: list[Answer] = []
    for _ in range(3):
        answers += [sidecar.publish("orders", "k", vhost=v.name) for v in (vhost, other_vhost)]

    assert [answer.queue() for answer in answers] == ["here", "there"] * 3
    assert (len(vhost.drain("here")), len(other_vhost.drain("there"))) == (3, 3)
    assert "vhost" not in answers[0].json
    detail = sidecar.publish("orders", "k").problem(404, "unknown-exchange", "invalid", retryable=False)
    assert repr(login.vhost) in detail


def test_the_default_virtual_host_is_the_broker_urls(sidecar: Sidecar, login: Login, vhost: VirtualHost) -> None:
    home = VirtualHost(vhost.api, login.vhost, [])
    home.ring("at home", ["home queue"])
    try:
        # Another test may have asked for a name that does not exist there, less than a second ago.
        wait_until("it is seen", lambda: sidecar.publish("at home", "k").status == 200)
        assert sidecar.publish("at home", "k", vhost=login.vhost).queue() == "home queue"
        assert len(home.drain("home queue")) >= 2
    finally:
        home.delete_queue("home queue")
        home.delete_exchange("at home")


def test_an_exchange_declared_after_its_404_works_a_second_later(sidecar: Sidecar, vhost: VirtualHost) -> None:
    sidecar.publish("late", "k", vhost=vhost.name).problem(404, "unknown-exchange", "invalid", retryable=False)

    vhost.ring("late", ["q"])

    wait_until("it is seen", lambda: sidecar.publish("late", "k", vhost=vhost.name).status == 200)
    assert sidecar.publish("late", "k", vhost=vhost.name).queue() == "q"


def test_the_brokers_connection_list_tells_version_and_ring_format(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar.publish("orders", "k", vhost=vhost.name).receipt()

    def properties() -> object:
        connections = vhost.api.ask("GET", "connections")
        return next((c["client_properties"] for c in connections if c.get("vhost") == vhost.name), None)

    shown = wait_until("the connection in the broker's list", properties)
    assert isinstance(shown, dict)
    assert shown["product"] == "ringproxy"
    assert shown["ringproxy_ring_format"] == "1"
    assert shown["ringproxy_version"]
