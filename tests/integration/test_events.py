"""CloudEvents, made by the official SDK and read by it again from the queue."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import amqp, http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.integration.broker_api import Delivered, VirtualHost
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Answer, Headers, Sidecar, publish_path

QUEUES = ["q1", "q2", "q3"]
BATCHED = {"Content-Type": "application/cloudevents-batch+json"}
STRUCTURED = {"Content-Type": "application/cloudevents+json"}

ATTRIBUTES: dict[str, Any] = {
    "id": "A-1 é",
    "source": "/shop/ä b%",
    "type": "com.example.created",
    "subject": 'quoted "subject"',
    "time": datetime(2026, 11, 21, 10, 0, 1, 500_000, tzinfo=UTC),
    "dataschema": "https://example.com/schema",
    "partitionkey": "customer 17",
    "trace": "a=1,b=2",
}


def event(data: Any = None, content_type: str | None = "application/json", **changes: Any) -> CloudEvent:
    attributes = ATTRIBUTES | ({} if content_type is None else {"datacontenttype": content_type}) | changes
    return CloudEvent({name: value for name, value in attributes.items() if value is not None}, data)


def post(sidecar: Sidecar, vhost: VirtualHost, body: bytes, headers: Headers, **query: str) -> Answer:
    return sidecar.ask("POST", publish_path("orders", vhost.name, "events", **query), body, headers)


def binary(sidecar: Sidecar, vhost: VirtualHost, sent: CloudEvent, **query: str) -> Answer:
    made = http.to_binary_event(sent)
    return post(sidecar, vhost, made.body, made.headers, **query)


def structured(sidecar: Sidecar, vhost: VirtualHost, sent: CloudEvent, **query: str) -> Answer:
    made = http.to_structured_event(sent)
    return post(sidecar, vhost, made.body, made.headers, **query)


def batch_of(*events: CloudEvent) -> bytes:
    return b"[" + b",".join(JSONFormat().write(one) for one in events) + b"]"


def received(message: Delivered) -> BaseCloudEvent:
    """The event as a consumer's SDK reads it."""
    properties = {"content-type": message.properties.get("content_type")}
    headers = {name: value for name, value in message.headers.items() if not name.startswith("x-ring-")}
    assert all(name.startswith("cloudEvents_") for name in headers)
    properties = {name: value for name, value in properties.items() if value is not None}
    return amqp.from_binary_event(amqp.AMQPMessage(properties, headers, message.body))


@pytest.mark.parametrize("send", [binary, structured])
@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ({"order": 7, "name": "ü"}, "application/json"),
        ({"list": [1, None, "ü"]}, "application/vnd.example+json"),
        ("žluť", "text/plain"),
        (bytes(range(256)), "application/octet-stream"),
        (None, None),
    ],
)
def test_an_event_arrives_as_it_was_made(
    sidecar: Sidecar, vhost: VirtualHost, send: Any, data: Any, content_type: str | None
) -> None:
    vhost.ring("orders", QUEUES)
    sent = event(data, content_type)

    answer = send(sidecar, vhost, sent)

    assert answer.queue() == owner(QUEUES, "customer 17")
    assert answer.json["outcome"] == "confirmed"
    (message,) = vhost.drain(answer.queue())
    got = received(message)
    assert got.get_attributes() == sent.get_attributes()
    if data is not None:
        assert got.get_data() == data
    assert message.properties["message_id"] == sent.get_id()
    assert message.properties["delivery_mode"] == 2
    assert message.headers["x-ring-routing-key"] == "customer 17"
    assert message.headers["cloudEvents_time"].startswith("2026-11-21T10:00:01.5")


def test_the_key(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    without = event({}, partitionkey=None)
    for send in (binary, structured):
        for n in range(10):
            assert send(sidecar, vhost, event({}, partitionkey=f"k{n}")).queue() == owner(QUEUES, f"k{n}")
            # The event's own key is the one that counts.
            assert send(sidecar, vhost, event({}, partitionkey=f"k{n}"), key="other").queue() == owner(QUEUES, f"k{n}")
            assert send(sidecar, vhost, without, key=f"k{n}").queue() == owner(QUEUES, f"k{n}")
        detail = send(sidecar, vhost, without).problem(400, "no-routing-key", "invalid", retryable=False)
        field = "ce-partitionkey" if send is binary else "partitionkey"
        assert detail == f"{field}: missing; give the routing key in this attribute or as ?key="
    assert sum(map(len, vhost.drain_all().values())) == 60


@pytest.mark.parametrize("form", ["binary", "structured", "batched"])
def test_headers_of_a_message_that_is_no_event(sidecar: Sidecar, vhost: VirtualHost, form: str) -> None:
    """They would be lost, so they are refused, and nothing is published."""
    vhost.ring("orders", QUEUES)
    made = http.to_binary_event(event({}))
    headers, body = {
        "binary": (dict(made.headers), made.body),
        "structured": (STRUCTURED, http.to_structured_event(event({})).body),
        "batched": (BATCHED, batch_of(event({}))),
    }[form]

    for header, value in (
        ("Routing-Key", "customer 17"),
        ("Amqp-Nonesuch", "1"),
        ("Amqp-Delivery-Mode", "1"),
        ("Amqp-Expiration", "nonsense"),
        ("Amqp-Header-Tenant", "x"),
    ):
        answer = post(sidecar, vhost, body, headers | {header: value})
        detail = answer.problem(400, "bad-request", "invalid", retryable=False)
        assert detail.startswith(f"{header}: not taken here; the routing key is the attribute partitionkey")
    assert vhost.drain_all() == {}
    assert post(sidecar, vhost, body, headers).status == 200


@pytest.mark.parametrize("send", [http.to_binary_event, http.to_structured_event])
def test_the_trace_of_a_request(sidecar: Sidecar, vhost: VirtualHost, send: Any) -> None:
    vhost.ring("orders", ["q"])
    made = send(event({}))
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}

    assert post(sidecar, vhost, made.body, dict(made.headers) | trace).queue() == "q"

    (message,) = vhost.drain("q")
    assert {name: message.headers[name] for name in trace} == trace


def test_an_exchange_that_hashes_an_attribute(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES, hash_header="cloudEvents_subject")

    for n in range(10):
        sent = event({}, partitionkey=None, subject=f"s{n}")
        assert binary(sidecar, vhost, sent).queue() == owner(QUEUES, f"s{n}")
    assert sum(map(len, vhost.drain_all().values())) == 10


def test_a_client_that_wants_no_receipt(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    made = http.to_structured_event(event({"a": 1}))

    for body, headers in ((made.body, made.headers), (batch_of(event({}), event({}, id="another")), BATCHED)):
        answer = post(sidecar, vhost, body, dict(headers) | {"Prefer": "return=minimal"})
        assert (answer.status, answer.body) == (204, b"")
    assert len(vhost.drain("q")) == 3


def test_a_batch(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    events = [event({"n": n}, id=f"id {n}", partitionkey=f"k{n % 7}") for n in range(100)]

    answer = post(sidecar, vhost, batch_of(*events), BATCHED | {"Prefer": "return=representation"})

    told = answer.receipt()
    assert {name: told[name] for name in ("outcome", "messages", "confirmed", "passed")} == {
        "outcome": "confirmed",
        "messages": 100,
        "confirmed": 100,
        "passed": 0,
    }
    assert [result["id"] for result in told["results"]] == [f"id {n}" for n in range(100)]
    landed = {queue: [received(m).get_id() for m in messages] for queue, messages in vhost.drain_all().items()}
    expected: dict[str, list[str]] = {}
    for n in range(100):
        expected.setdefault(owner(QUEUES, f"k{n % 7}"), []).append(f"id {n}")
    assert landed == expected


def test_a_batch_without_events_of_its_own_keys(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    body = batch_of(event({}, partitionkey="own"), event({}, id="another", partitionkey=None))

    assert post(sidecar, vhost, body, BATCHED, key="given").receipt()["confirmed"] == 2
    keys = sorted(m.headers["x-ring-routing-key"] for messages in vhost.drain_all().values() for m in messages)
    assert keys == ["given", "own"]
    assert post(sidecar, vhost, b"[]", BATCHED).receipt()["messages"] == 0

    answer = post(sidecar, vhost, body, BATCHED)
    answer.problem(422, "batch-failed", "unknown", retryable=False)
    assert [result["outcome"] for result in answer.json["results"]] == ["confirmed", "invalid"]
    assert answer.json["results"][1]["detail"] == "events[1].partitionkey: missing"
    assert sum(map(len, vhost.drain_all().values())) == 1


def test_a_bad_event_in_a_batch(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    events = [json.loads(JSONFormat().write(event({}, id=f"{n}", partitionkey=f"{n}"))) for n in range(5)]
    del events[1]["source"]
    events[2]["time"] = "yesterday"
    events[3] = {}

    answer = post(sidecar, vhost, json.dumps(events).encode(), BATCHED)

    answer.problem(422, "batch-failed", "unknown", retryable=False)
    results = answer.json["results"]
    assert [result["outcome"] for result in results] == ["confirmed", "invalid", "invalid", "invalid", "confirmed"]
    assert [result.get("id") for result in results] == ["0", "1", "2", None, "4"]
    assert results[1]["detail"].startswith("events[1].source: missing")
    assert results[2]["detail"].startswith("events[2].time: ")
    assert results[3]["detail"].startswith("events[3].specversion: missing")
    assert [received(m).get_id() for m in vhost.drain("q")] == ["0", "4"]


@pytest.mark.parametrize(
    ("rest", "fault"),
    [
        (b", 7]", "events[2]: begins with '7', not as an object"),
        (b"", "events[2]: the body ends before its JSON is complete"),
        (b"] more", "body: 'm' where nothing more should be"),
    ],
)
def test_a_batch_that_breaks(sidecar: Sidecar, vhost: VirtualHost, rest: bytes, fault: str) -> None:
    """The events before it are sent, as of a batch of messages."""
    vhost.ring("orders", ["q"])
    body = batch_of(event({}, id="0"), event({}, id="1")).removesuffix(b"]") + rest

    answer = post(sidecar, vhost, body, BATCHED)

    assert answer.problem(400, "bad-request", "unknown", retryable=False) == fault
    assert [(result["id"], result["outcome"]) for result in answer.json["results"]] == [
        ("0", "confirmed"),
        ("1", "confirmed"),
    ]
    assert [received(m).get_id() for m in vhost.drain("q")] == ["0", "1"]


def test_a_batch_has_the_limits_of_one(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_body="1000", max_batch="3", max_batch_body="10000")
    small = [event("x", "text/plain", id=f"{n}", partitionkey=f"{n}") for n in range(4)]
    large = event("x" * 1001, "text/plain", id="large", partitionkey="large")

    answer = post(sidecar, vhost, batch_of(small[0], large, small[1]), BATCHED)
    answer.problem(422, "batch-failed", "unknown", retryable=False)
    assert [result["outcome"] for result in answer.json["results"]] == ["confirmed", "invalid", "confirmed"]
    assert answer.json["results"][1]["detail"] == "events[1].data: more than 1000 bytes (max_body)"

    answer = post(sidecar, vhost, batch_of(*small), BATCHED)
    assert answer.problem(413, "too-large", "unknown", retryable=False) == "events: more than 3 (max_batch)"
    assert [result["outcome"] for result in answer.json["results"]] == ["confirmed"] * 3

    answer = post(sidecar, vhost, batch_of(small[0]) + b" " * 10_000, BATCHED)
    detail = answer.problem(413, "too-large", "invalid", retryable=False)
    assert detail == "body: more than 10000 bytes (max_batch_body)"
    assert len(vhost.drain("q")) == 5


def test_an_event_given_twice_in_a_batch(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    named = [("1", "/a", "k1"), ("1", "/b", "k2"), ("2", "/a", "k3"), ("1", "/a", "k4"), ("1" * 300, "/a", "k5")]
    events = [event({}, id=id_, source=source, partitionkey=key) for id_, source, key in [*named, named[-1]]]

    answer = post(sidecar, vhost, batch_of(*events), BATCHED)

    answer.problem(422, "batch-failed", "unknown", retryable=False)
    results = answer.json["results"]
    assert [result["outcome"] for result in results] == [*["confirmed"] * 3, "invalid", "confirmed", "invalid"]
    assert results[3]["detail"] == "events[3].id: given twice by one source: '1'"
    assert results[5]["detail"] == f"events[5].id: given twice by one source: '{'1' * 60}'"
    assert len(vhost.drain("q")) == 4


def test_an_event_given_twice_holds_back_those_of_its_attribute(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("by subject", ["q"], hash_header="cloudEvents_subject")
    named = [("1", "a"), ("1", "a"), ("2", "b"), ("3", "a")]
    events = [event({}, id=id_, subject=subject, partitionkey="k") for id_, subject in named]

    answer = sidecar.ask("POST", publish_path("by subject", vhost.name, "events"), batch_of(*events), BATCHED)

    answer.problem(503, "batch-failed", "unknown", retryable=True)
    told = [result["outcome"] for result in answer.json["results"]]
    assert told == ["confirmed", "invalid", "confirmed", "rejected"]
    assert len(vhost.drain("q")) == 2


@pytest.mark.parametrize(
    ("headers", "body", "status", "kind", "detail"),
    [
        ({"ce-id": "1", "ce-type": "t", "ce-specversion": "1.0"}, b"", 400, "bad-request", "ce-source: missing"),
        ({}, b"{}", 400, "bad-request", "ce-"),
        (
            {"ce-id": "1", "ce-type": "t", "ce-source": "s", "ce-specversion": "0.3", "ce-partitionkey": "k"},
            b"",
            400,
            "bad-request",
            "ce-specversion: '0.3'",
        ),
        (
            {"ce-id": "1", "ce-type": "t", "ce-source": "s", "ce-specversion": "1.0", "ce-partitionkey": "k" * 300},
            b"",
            400,
            "bad-request",
            "ce-partitionkey: ",
        ),
        (
            {"ce-id": "1", "ce-type": "t", "ce-source": "%FF", "ce-specversion": "1.0", "ce-partitionkey": "k"},
            b"",
            400,
            "bad-request",
            "ce-source: ",
        ),
        (STRUCTURED, b"{", 400, "bad-request", "body: "),
        (STRUCTURED, b"[]", 400, "bad-request", "event: not an object"),
        (STRUCTURED, b"\xff", 400, "bad-request", "body: "),
        (BATCHED, b"{}", 400, "bad-request", "body: an object; send a list of events, or one event "),
        ({"Content-Type": "application/cloudevents+avro"}, b"", 415, "media-type", "Content-Type: "),
        (STRUCTURED | {"Content-Encoding": "gzip"}, b"", 415, "media-type", "Content-Encoding: "),
    ],
)
def test_what_is_no_event(
    sidecar: Sidecar, vhost: VirtualHost, headers: dict[str, str], body: bytes, status: int, kind: str, detail: str
) -> None:
    vhost.ring("orders", QUEUES)

    answer = post(sidecar, vhost, body, headers)

    assert answer.problem(status, kind, "invalid", retryable=False).startswith(detail)
    assert vhost.drain_all() == {}


def test_events_to_an_exchange_that_is_not_there(sidecar: Sidecar, vhost: VirtualHost) -> None:
    for body, headers in (
        (b"", http.to_binary_event(event()).headers),
        (batch_of(event({}), event({}, id="another")), BATCHED),
    ):
        answer = post(sidecar, vhost, body, headers)
        assert "'orders'" in answer.problem(404, "unknown-exchange", "invalid", retryable=False)


def test_batches_of_events_do_not_wait_for_each_others_bodies(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """The bytes that a batch holds count, and must leave room for its own messages."""
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(max_in_flight_bytes="1500000", max_in_flight="6")
    body = batch_of(*(event("x" * 1000, "text/plain", id=f"{n}", partitionkey=f"{n}") for n in range(60)))
    assert 70_000 < len(body) < 100_000

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda n: post(sidecar, vhost, body, BATCHED), range(2)))

    assert [answer.receipt()["confirmed"] for answer in answers] == [60, 60]
    assert sum(map(len, vhost.drain_all().values())) == 120
