"""Batches: every message is told its fate, the fate told is true, and what is good arrives in order."""

import base64
import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Answer, Sidecar, publish_path

QUEUES = ["q1", "q2", "q3"]
NDJSON = "application/x-ndjson"


def numbered(count: int, keys: int = 17) -> list[dict[str, Any]]:
    """Messages whose payloads are their numbers."""
    return [{"id": f"id {n}", "key": f"key {n % keys}", "payload": str(n)} for n in range(count)]


def lines(items: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def landed(vhost: VirtualHost) -> dict[str, list[str]]:
    """The bodies in each queue, in their order."""
    return {queue: [m.body.decode() for m in messages] for queue, messages in vhost.drain_all().items()}


def failed(answer: Answer, status: int, kind: str = "batch-failed", outcome: str = "unknown") -> list[dict[str, Any]]:
    """The results that a batch's problem holds."""
    answer.problem(status, kind, outcome, retryable=status == 503)
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
    results: list[dict[str, Any]] = answer.json["results"]
    return results


def outcomes(results: Iterable[Mapping[str, Any]]) -> list[str]:
    return [result["outcome"] for result in results]


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["application/json", NDJSON, "application/ndjson", "application/jsonl; charset=utf-8"])
def test_every_form_of_a_batch(sidecar: Sidecar, vhost: VirtualHost, kind: str, compressed: bool) -> None:
    vhost.ring("orders", QUEUES)
    items = numbered(300)
    body = lines(items) if kind != "application/json" else json.dumps({"messages": items}).encode()
    headers = {"Content-Type": kind} | ({"Content-Encoding": "gzip"} if compressed else {})

    answer = sidecar.batch("orders", gzip.compress(body) if compressed else body, vhost=vhost.name, headers=headers)

    assert answer.receipt() == {"outcome": "confirmed", "messages": 300, "confirmed": 300, "passed": 0}
    expected: dict[str, list[str]] = {}
    for item in items:
        expected.setdefault(owner(QUEUES, item["key"]), []).append(item["payload"])
    assert landed(vhost) == expected


def test_all_that_an_item_may_say(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    data = bytes(range(256))
    headers = {"text": "ü", "small": 1, "large": 1 << 40, "yes": True, "none": None, "list": [1, "a"], "in": {"a": 1.5}}
    properties = {
        "content_encoding": "br",
        "delivery_mode": 1,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "3600000",
        "message_id": "m",
        "timestamp": 1700000000,
        "type": "t",
        "app_id": "a",
    }
    items: list[dict[str, Any]] = [
        {"id": "1", "key": "k", "payload": "žluť\0", "content_type": "text/plain", "properties": properties},
        {"key": "k", "payload": base64.b64encode(data).decode(), "payload_encoding": "base64", "headers": headers},
        {"key": "k", "payload": {"a": [1, None, "ü"]}, "payload_encoding": "json"},
    ]

    assert sidecar.batch("orders", items, vhost=vhost.name).receipt()["confirmed"] == 3

    first, second, third = vhost.drain("q")
    assert [m.body for m in (first, second, third)] == ["žluť\0".encode(), data, '{"a":[1,null,"ü"]}'.encode()]
    got = {name: value for name, value in first.properties.items() if name != "headers"}
    assert got == properties | {"content_type": "text/plain"}
    assert {name: value for name, value in second.headers.items() if not name.startswith("x-ring-")} == (
        # The management API's word for a void.
        headers | {"none": "undefined"}
    )
    assert second.properties["delivery_mode"] == 2
    assert third.properties["content_type"] == "application/json"
    assert third.headers["x-ring-routing-key"] == "k"


def test_what_a_client_prefers_to_be_told(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    items = numbered(4)

    minimal = sidecar.batch("orders", items, vhost=vhost.name, headers={"Prefer": "return=minimal"})
    assert (minimal.status, minimal.body, minimal.headers["preference-applied"]) == (204, b"", "return=minimal")
    told = sidecar.batch("orders", items, vhost=vhost.name, headers={"Prefer": "return=representation"}).receipt()

    assert [result["id"] for result in told["results"]] == ["id 0", "id 1", "id 2", "id 3"]
    for item, result in zip(items, told["results"], strict=True):
        single = sidecar.publish("orders", item["key"], vhost=vhost.name).receipt()
        assert {name: value for name, value in result.items() if name != "id"} == single
    assert sum(len(bodies) for bodies in landed(vhost).values()) == 3 * len(items)


def test_an_empty_batch_is_confirmed(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    nothing = {"outcome": "confirmed", "messages": 0, "confirmed": 0, "passed": 0}

    assert sidecar.batch("orders", [], vhost=vhost.name).receipt() == nothing
    assert sidecar.batch("orders", b"", vhost=vhost.name, headers={"Content-Type": NDJSON}).receipt() == nothing


def test_rings_behind_a_ring_and_an_exchange_without_one(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("inner", ["q1", "q2"])
    vhost.ring("outer", ["q3"])
    vhost.bind("outer", "inner", "3", kind="e")
    vhost.exchange("fan", "fanout")
    vhost.bind("fan", "q1", "")
    items = numbered(200, 200)

    answer = sidecar.batch("outer", items, vhost=vhost.name, headers={"Prefer": "return=representation"}).receipt()
    assert answer["confirmed"] == 200
    told = {item["payload"]: r["destination"]["name"] for item, r in zip(items, answer["results"], strict=True)}
    bodies = landed(vhost)
    assert {body: queue for queue, in_queue in bodies.items() for body in in_queue} == told
    assert sum(map(len, bodies.values())) == 200
    assert set(bodies) == set(QUEUES)

    passed = sidecar.batch("fan", items[:5], vhost=vhost.name, headers={"Prefer": "return=representation"}).receipt()
    results = [{"id": f"id {n}", "outcome": "passed", "exchange": "fan", "reason": "type"} for n in range(5)]
    assert passed == {"outcome": "confirmed", "messages": 5, "confirmed": 0, "passed": 5, "results": results}
    assert landed(vhost) == {"q1": [str(n) for n in range(5)]}


def test_a_bad_message_near_the_end(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    items = numbered(500)
    items[498] |= {"payload": "no=base64", "payload_encoding": "base64"}
    items[499] |= {"key": items[498]["key"]}

    answer = sidecar.batch("orders", items, vhost=vhost.name)

    results = failed(answer, 503)
    assert [result["id"] for result in results] == [item["id"] for item in items]
    assert outcomes(results) == ["confirmed"] * 498 + ["invalid", "rejected"]
    assert results[498]["detail"].startswith("messages[498].payload: not base64")
    assert results[498]["detail"] in answer.json["detail"]
    assert "earlier message of its key" in results[499]["detail"]
    # The last one is in order, and may be sent again without the one before it.
    assert [result["retryable"] for result in results[498:]] == [False, True]
    expected: dict[str, list[str]] = {}
    for item in items[:498]:
        expected.setdefault(owner(QUEUES, item["key"]), []).append(item["payload"])
    assert landed(vhost) == expected


@pytest.mark.parametrize(
    ("item", "detail"),
    [
        ({"key": "k", "payload": "p", "paylod": 1}, "messages[1].paylod: unknown field"),
        ({"key": "k" * 300, "payload": "p"}, "messages[1].key: 'kkkk"),
        ({"key": 7, "payload": "p"}, "messages[1].key: 7 is not a string"),
        ({"key": "k"}, "messages[1].payload: missing"),
        ({"payload": "p"}, "messages[1].key: missing"),
        (
            {"key": "k", "payload": {}},
            'messages[1].payload: an object is not a string; send it as one, or set payload_encoding to "json"',
        ),
        ({"key": "k", "payload": "p", "payload_encoding": "hex"}, "messages[1].payload_encoding: 'hex'"),
        ({"key": "k", "payload": "p", "id": "i" * 256}, "messages[1].id: 'iiii"),
        ({"key": "k", "payload": "p", "headers": []}, "messages[1].headers: "),
        ({"key": "k", "payload": "p", "headers": {"CC": ["q"]}}, "messages[1].headers: CC"),
        (
            {"key": "k", "payload": "p", "headers": {"a": "x" * 200_000}},
            "messages[1].headers: properties and",
        ),
        ({"key": "k", "payload": "p", "properties": {"priority": 256}}, "messages[1].properties.priority: 256"),
        (
            {"key": "k", "payload": "p", "properties": {"expiration": "soon"}},
            "messages[1].properties.expiration: 'soon'",
        ),
        ({"key": "k", "payload": "p", "properties": {"user_id": "guest"}}, "messages[1].properties.user_id: "),
        ({"key": "k", "payload": "p", "properties": {"nonesuch": 1}}, "messages[1].properties.nonesuch: unknown field"),
        ({"key": "k", "payload": "\ud800"}, "messages[1].payload: "),
    ],
)
def test_each_mistake_names_its_field(sidecar: Sidecar, vhost: VirtualHost, item: dict[str, Any], detail: str) -> None:
    vhost.ring("orders", ["q"])
    assert sidecar.batch("orders", [{"key": "a", "payload": "first"}], vhost=vhost.name).status == 200
    assert landed(vhost) == {"q": ["first"]}
    connects = sidecar.metric("ringproxy_broker_connects_total")
    items = [{"key": "a", "payload": "before"}, item, {"key": "b", "payload": "after"}]

    results = failed(sidecar.batch("orders", items, vhost=vhost.name), 422)

    assert outcomes(results) == ["confirmed", "invalid", "confirmed"]
    assert results[1]["detail"].startswith(detail)
    assert landed(vhost) == {"q": ["before", "after"]}
    assert sidecar.metric("ringproxy_broker_connects_total") == connects


@pytest.mark.parametrize("kind", ["application/json", NDJSON])
def test_an_id_given_twice(sidecar: Sidecar, vhost: VirtualHost, kind: str) -> None:
    vhost.ring("orders", ["q"])
    items: list[dict[str, Any]] = [
        {"id": "a", "key": "k1", "payload": "first"},
        {"id": "a", "key": "k2", "payload": "again"},
        {"id": "b", "key": "k3"},
        {"id": "b", "key": "k4", "payload": "an id of one that was malformed"},
        {"key": "k5", "payload": "without one"},
        {"key": "k6", "payload": "without one too"},
        {"id": "A", "key": "k7", "payload": "another"},
        {"id": "a", "key": "k8", "payload": "a third time"},
    ]
    body = lines(items) if kind == NDJSON else json.dumps({"messages": items}).encode()

    results = failed(sidecar.batch("orders", body, vhost=vhost.name, headers={"Content-Type": kind}), 422)

    told = {n: result["detail"] for n, result in enumerate(results) if result["outcome"] == "invalid"}
    assert told == {
        1: "messages[1].id: given twice: 'a'",
        2: "messages[2].payload: missing",
        3: "messages[3].id: given twice: 'b'",
        7: "messages[7].id: given twice: 'a'",
    }
    assert not any(results[n]["retryable"] for n in told)
    assert [result.get("id") for result in results] == [item.get("id") for item in items]
    assert outcomes(results).count("confirmed") == 4
    assert landed(vhost) == {"q": ["first", "without one", "without one too", "another"]}


@pytest.mark.parametrize("wrong", [{"id": "1", "payload": "again"}, {"id": "2", "payload": "x" * 101}])
def test_what_is_not_taken_holds_back_those_of_its_header(
    start_sidecar: StartSidecar, vhost: VirtualHost, wrong: dict[str, Any]
) -> None:
    """But not where no message could be made of it: what is hashed of that is not known."""
    vhost.ring("by header", ["q"], hash_header="user")
    sidecar = start_sidecar(max_body="100")
    of = {user: {"key": user, "headers": {"user": user}} for user in ("7", "8")}
    items = [
        of["7"] | {"id": "1", "payload": "a"},
        of["7"] | wrong,
        of["8"] | {"payload": "b"},
        of["7"] | {"payload": "c"},
        of["8"] | {"payload": 5},
        of["8"] | {"payload": "d"},
    ]

    results = failed(sidecar.batch("by header", items, vhost=vhost.name), 503)

    assert outcomes(results) == ["confirmed", "invalid", "confirmed", "rejected", "invalid", "confirmed"]
    assert landed(vhost) == {"q": ["a", "b", "d"]}


@pytest.mark.parametrize(
    ("kind", "broken", "detail"),
    [
        ("application/json", b'{"messages":[%s,{"key":"k","payload":nul}]}', "messages[40]: "),
        ("application/json", b'{"messages":[%s,{"key":"k"', "messages[40]: "),
        ("application/json", b'{"messages":[%s],"more":1}', "body: more: unknown field"),
        ("application/json", b'{"messages":[%s] "more":1}', "body: '\"' where } should be"),
        ("application/json", b'{"messages":[%s,7]}', "messages[40]: begins with '7'"),
        ("application/json", b'{"messages":[%s,{"key":"\xff"}]}', "messages[40]: the byte 0xff"),
        (NDJSON, b'%s\n{"key":"k",}\n{"key":"k","payload":"never read"}', "messages[40]: "),
    ],
)
def test_json_that_breaks_in_the_middle(
    sidecar: Sidecar, vhost: VirtualHost, kind: str, broken: bytes, detail: str
) -> None:
    vhost.ring("orders", QUEUES)
    items = numbered(40)
    whole = [json.dumps(item).encode() for item in items]
    body = broken % (b"\n" if kind == NDJSON else b",").join(whole)

    answer = sidecar.batch("orders", body, vhost=vhost.name, headers={"Content-Type": kind})

    results = failed(answer, 400, "bad-request")
    assert answer.json["detail"].startswith(detail)
    assert outcomes(results) == ["confirmed"] * 40
    assert sorted(body for bodies in landed(vhost).values() for body in bodies) == sorted(i["payload"] for i in items)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "messages[0]: the body ends"),
        (b"[]", 'body: a list; send an object {"messages": [...]}, or one object a line with Content-Type '),
        (
            b'{"message":[]}',
            'body: message: unknown field; send an object {"messages": [...]}, or one object a line '
            "with Content-Type application/x-ndjson",
        ),
        (b"{}", "body: '}'"),
        (b"\x1f\x8b\x08", ""),
    ],
)
def test_what_is_no_batch(sidecar: Sidecar, vhost: VirtualHost, body: bytes, detail: str) -> None:
    vhost.ring("orders", ["q"])

    answer = sidecar.batch("orders", body, vhost=vhost.name)

    assert answer.problem(400, "bad-request", "invalid", retryable=False).startswith(detail)
    assert answer.json["results"] == []


@pytest.mark.parametrize(
    ("header", "value"),
    [("Routing-Key", "k"), ("Amqp-Nonesuch", "1"), ("Amqp-Expiration", "nonsense"), ("Amqp-Header-Tenant", "x")],
)
def test_headers_of_a_single_message(sidecar: Sidecar, vhost: VirtualHost, header: str, value: str) -> None:
    """They would be lost, so they are refused, and nothing is published."""
    vhost.ring("orders", ["q"])

    answer = sidecar.batch("orders", numbered(2), vhost=vhost.name, headers={header: value})

    detail = answer.problem(400, "bad-request", "invalid", retryable=False)
    assert detail == f"{header}: not taken here; a message has its own `key`, `properties` and `headers`"
    assert vhost.drain_all() == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/cloudevents+json"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Encoding": "br"},
    ],
)
def test_types_that_are_not_taken(sidecar: Sidecar, vhost: VirtualHost, headers: dict[str, str]) -> None:
    vhost.ring("orders", ["q"])

    detail = sidecar.batch("orders", numbered(2), vhost=vhost.name, headers=headers).problem(
        415, "media-type", "invalid", retryable=False
    )

    assert detail.startswith(f"{next(iter(headers))}:")
    assert landed(vhost) == {}


@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"'])
def test_the_encoding_may_be_named(sidecar: Sidecar, vhost: VirtualHost, charset: str) -> None:
    vhost.ring("orders", ["q"])

    answer = sidecar.batch(
        "orders", numbered(2), vhost=vhost.name, headers={"Content-Type": f"application/json; charset={charset}"}
    )

    assert answer.status == 200
    assert len(landed(vhost)["q"]) == 2


def test_an_unknown_exchange_is_looked_up_once(sidecar: Sidecar, vhost: VirtualHost) -> None:
    before = sidecar.metric("ringproxy_syncs_total", result="absent")

    answer = sidecar.batch("nonesuch", numbered(300, 300), vhost=vhost.name)

    assert "'nonesuch'" in answer.problem(404, "unknown-exchange", "invalid", retryable=False)
    assert sidecar.metric("ringproxy_syncs_total", result="absent") - before <= 2


def test_an_internal_exchange(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("inner", internal=True)

    answer = sidecar.batch("inner", numbered(3), vhost=vhost.name)

    answer.problem(403, "internal-exchange", "invalid", retryable=False)


def test_a_full_queue_refuses_and_the_keys_keep_their_order(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.queue("full", x_max_length=5, x_overflow="reject-publish")
    vhost.bind("orders", "full")
    vhost.queue("free")
    vhost.bind("orders", "free")
    items = numbered(2000, 40)

    def body() -> Iterator[bytes]:
        """Send the second half only once the queue has refused a message of the first."""
        yield lines(items[:1000])
        labels = {"vhost": vhost.name, "outcome": "nacked"}
        wait_until("a nack", lambda: sidecar.metric("ringproxy_publishes_total", **labels) > 0)
        yield lines(items[1000:])

    path = publish_path("orders", vhost.name, "publish/batch")
    results = failed(sidecar.ask("POST", path, body(), {"Content-Type": NDJSON}), 503)

    told = outcomes(results)
    full = [n for n, item in enumerate(items) if owner(["full", "free"], item["key"]) == "full"]
    confirmed = [n for n in full if told[n] == "confirmed"]
    assert set(told) == {"confirmed", "nacked", "rejected"}
    assert 5 <= len(confirmed) < 20
    assert all(told[n] == "confirmed" for n in range(len(items)) if n not in full)
    first_rejected: dict[str, int] = {}
    for n in full:
        first_rejected.setdefault(items[n]["key"], n) if told[n] == "rejected" else None
        if n > first_rejected.get(items[n]["key"], n):
            assert told[n] == "rejected", n
    assert all(result["retryable"] for n, result in enumerate(results) if told[n] != "confirmed")
    got = landed(vhost)
    assert got["full"] == [items[n]["payload"] for n in confirmed]
    assert got["free"] == [items[n]["payload"] for n in range(len(items)) if n not in full]


def test_a_deleted_queue_costs_a_batch_nothing(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(sync_interval="600")
    assert sidecar.publish("orders", "key 0", b"first", vhost=vhost.name).status == 200
    vhost.delete_queue("q2")
    vhost.drain_all()
    items = numbered(300)

    assert sidecar.batch("orders", items, vhost=vhost.name).receipt()["confirmed"] == 300

    left = [queue for queue in QUEUES if queue != "q2"]
    expected: dict[str, list[str]] = {}
    for item in items:
        expected.setdefault(owner(left, item["key"]), []).append(item["payload"])
    got = landed(vhost)
    assert {queue: sorted(bodies) for queue, bodies in got.items()} == {q: sorted(b) for q, b in expected.items()}
    for key in {item["key"] for item in items}:
        mine = [item["payload"] for item in items if item["key"] == key]
        assert [body for body in got[owner(left, key)] if body in mine] == mine
    lost = sum(owner(QUEUES, item["key"]) == "q2" for item in items)
    assert 0 < sidecar.metric("ringproxy_rerouted_total", ingress="http", exchange="orders") <= lost


def test_more_messages_than_a_batch_may_have(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_batch="50", max_body="1000", max_batch_body="100000")

    assert sidecar.batch("orders", numbered(50), vhost=vhost.name).receipt()["confirmed"] == 50
    answer = sidecar.batch("orders", numbered(51), vhost=vhost.name)
    results = failed(answer, 413, "too-large")
    assert answer.json["detail"] == "messages: more than 50 (max_batch)"
    assert outcomes(results) == ["confirmed"] * 50

    large = [{"key": "a", "payload": "x" * 1000}, {"key": "b", "payload": "x" * 1001}, {"key": "c", "payload": "last"}]
    results = failed(sidecar.batch("orders", large, vhost=vhost.name), 422)
    assert outcomes(results) == ["confirmed", "invalid", "confirmed"]
    assert results[1]["detail"] == "messages[1].payload: more than 1000 bytes (max_body)"

    for body in (b" " * 100_001, b"".join([b'{"messages":[', b" " * 100_000])):
        answer = sidecar.batch("orders", body, vhost=vhost.name)
        assert "100000" in answer.problem(413, "too-large", "invalid", retryable=False)
    assert len(vhost.drain("q")) == 102


def bomb(before: bytes, piece: bytes, pieces: int) -> bytes:
    """Gzip of much text, made without holding it."""
    made = zlib.compressobj(1, wbits=16 + zlib.MAX_WBITS)
    return b"".join([made.compress(before), *(made.compress(piece) for _ in range(pieces)), made.flush()])


@pytest.mark.parametrize(
    "letter",
    [
        pytest.param("\u044f", marks=pytest.mark.long),
        pytest.param("\u20ac", marks=pytest.mark.long),
        "\U0001f430",
        "\n",
    ],
)
def test_the_longest_message_may_come_escaped(start_sidecar: StartSidecar, vhost: VirtualHost, letter: str) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_body="600000")
    longest = letter * (600_000 // len(letter.encode()))
    body = json.dumps({"messages": [{"key": "k", "payload": payload} for payload in ("before", longest, "behind")]})
    assert body.isascii()
    assert sidecar.batch("orders", body.encode(), vhost=vhost.name).status == 200
    assert [len(message.body) for message in vhost.drain("q")] == [6, 600_000, 6]


def test_gzip_bombs(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_body="2000000", max_batch_body="50000000")
    assert sidecar.batch("orders", numbered(10), vhost=vhost.name).status == 200
    memory = sidecar.memory()

    first, longest = "messages[0]", 3 * 2_000_000 + (1 << 17)
    for before, piece, status, detail in (
        (b'{"messages":[', b" ", 413, f"{first}: the body has more than 50000000 bytes (max_batch_body)"),
        (b'{"messages":[{"key":"k","payload":"', b"x", 413, f"{first}: has more than {longest} characters (max_body)"),
        (b'{"messages":[{"key":"k","headers":', b"[", 400, f"{first}: nested too deeply"),
        (
            b'{"messages":[{"key":"k","payload":',
            b"1",
            413,
            f"{first}: has more than 262144 characters outside its strings",
        ),
    ):
        body = bomb(before, piece * 1_000_000, 150)
        assert len(body) < 1_000_000
        answer = sidecar.batch("orders", body, vhost=vhost.name, headers={"Content-Encoding": "gzip"})
        kind = "too-large" if status == 413 else "bad-request"
        assert answer.problem(status, kind, "invalid", retryable=False) == detail

    assert sidecar.memory("VmHWM") - memory < 64 << 20
    assert len(vhost.drain("q")) == 10


def test_a_large_body_is_never_held_whole(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.queue("q", x_max_length=20)
    vhost.bind("orders", "q")
    sidecar = start_sidecar()
    assert sidecar.batch("orders", numbered(10), vhost=vhost.name).status == 200
    memory = sidecar.memory()

    def parts() -> Iterator[bytes]:
        for n in range(400):
            yield b'{"key":"%d","payload":"%s"}\n' % (n, b"%03d" % n * 87_381)

    path = publish_path("orders", vhost.name, "publish/batch")
    answer = sidecar.ask("POST", path, parts(), {"Content-Type": NDJSON})

    assert answer.receipt() == {"outcome": "confirmed", "messages": 400, "confirmed": 400, "passed": 0}
    assert sidecar.memory("VmHWM") - memory < 64 << 20
    assert [m.body for m in vhost.drain("q")] == [b"%03d" % n * 87_381 for n in range(380, 400)]


def test_a_client_that_leaves_in_the_middle(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar()
    head = f"POST {publish_path('orders', vhost.name, 'publish/batch')} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: {NDJSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    items = numbered(200)
    sent = lines(items)
    with socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS) as connection:
        connection.sendall(head.encode() + b"%x\r\n%s\r\n" % (len(sent), sent) + b'100\r\n{"key":"half')
        wait_until("all that was sent", lambda: confirmed(sidecar) == 200)

    wait_until("the request's end", lambda: sidecar.metric("ringproxy_in_flight") == 0)
    assert sorted(body for bodies in landed(vhost).values() for body in bodies) == sorted(i["payload"] for i in items)
    # Nothing is left of it that would hold up the end: `stop` of the fixture's checks the log too.
    sidecar.stop()
    assert "drain_time is over" not in sidecar.log()


def confirmed(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_publishes_total", outcome="confirmed")


def test_batches_leave_room_for_single_messages(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(max_in_flight="40")
    stop = threading.Event()
    singles: list[Answer] = []

    def publish() -> None:
        while not stop.is_set():
            singles.append(sidecar.publish("orders", "single", b"single", vhost=vhost.name))

    with ThreadPoolExecutor(10) as pool:
        alone = [pool.submit(publish) for _ in range(4)]
        try:
            batches = list(pool.map(lambda n: sidecar.batch("orders", numbered(800, 50), vhost=vhost.name), range(4)))
        finally:
            stop.set()
        for one in alone:
            one.result()

    for answer in batches:
        assert answer.receipt()["confirmed"] == 800
    assert {answer.status for answer in singles} == {200}
    assert len(singles) > 8
    assert sum(map(len, landed(vhost).values())) == 4 * 800 + len(singles)


@pytest.mark.parametrize("most", ["1", pytest.param("2", marks=pytest.mark.long), "3"])
def test_the_smallest_limits_take_batches(start_sidecar: StartSidecar, vhost: VirtualHost, most: str) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(max_in_flight=most, max_in_flight_bytes="1000000")

    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: sidecar.batch("orders", numbered(20), vhost=vhost.name), range(4)))

    assert [answer.receipt()["confirmed"] for answer in answers] == [20] * 4
