"""Traces: spans of publishes and deliveries in a receiver of OTLP, linked by the header `traceparent`."""

import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator

import pytest
from pamqp.commands import Basic

from proxy import __version__
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.documents import ROOT, Document, Shell
from tests.integration.groups import consume, deliveries, sharded
from tests.integration.receiver import Receiver, Seen, receiving
from tests.integration.sidecar import COMMAND, Answer, Sidecar
from tests.integration.wire_client import Client, publishing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"

Traced = Callable[..., Sidecar]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def traced(start_sidecar: StartSidecar, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Start sidecars that send their spans soon."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    return start_sidecar


def got(receiver: Receiver, count: int) -> list[Seen]:
    """Return so many spans, which are all that have come, by the time at which they began."""
    wait_until("the spans", lambda: len(receiver.spans) >= count)
    assert len(receiver.spans) == count
    return sorted(receiver.spans, key=lambda span: span.started_at)


def test_a_trace_leads_from_an_http_request_to_the_consumer(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = traced(trace_sample="0", groups="orders")
    headers = {"traceparent": SAMPLED, "tracestate": "a=1", "Amqp-Message-Id": "m1"}
    before = time.time()
    shard = sidecar.publish("orders", "customer-1", b"12345", vhost=vhost.name, headers=headers).queue()
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        content = wire.content(1, Basic.Deliver)
        wire.tell(1, Basic.Ack(1))
        published, delivered = got(receiver, 2)
        wire.goodbye()

    assert (published.trace_id, published.parent_id) == (TRACE, SPAN)
    assert (delivered.trace_id, delivered.parent_id) == (TRACE, published.span_id)
    assert content.properties.headers is not None
    assert content.properties.headers["traceparent"] == published.traceparent
    assert content.properties.headers["tracestate"] == "a=1"
    assert (published.name, published.kind) == ("publish orders", "SPAN_KIND_PRODUCER")
    assert (delivered.name, delivered.kind) == ("deliver orders", "SPAN_KIND_CONSUMER")
    assert before <= published.started_at <= delivered.started_at <= time.time()
    assert 0 < published.seconds < 30
    common = {
        "messaging.system": "rabbitmq",
        "messaging.destination.template": "orders",
        "messaging.destination.partition.id": shard,
        "messaging.rabbitmq.destination.routing_key": "customer-1",
        "messaging.message.id": "m1",
        "messaging.message.body.size": 5,
        "ringproxy.vhost": vhost.name,
    }
    assert published.attributes == common | {
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "orders:customer-1",
    }
    assert delivered.attributes == common | {
        "messaging.operation.type": "process",
        "messaging.operation.name": "deliver",
        "messaging.destination.name": f"orders:customer-1:{shard}",
        "messaging.consumer.group.name": "orders",
        "messaging.rabbitmq.message.delivery_tag": 1,
    }
    assert (published.error, delivered.error) == (None, None)
    assert published.resource["service.name"] == "ringproxy"
    assert published.resource["service.instance.id"] == sidecar.id
    assert published.resource["service.version"] == __version__


def publish_traced(client: Client, sidecar: Sidecar, vhost: VirtualHost, headers: dict[str, str] | None) -> None:
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "orders", "k", b"1", Basic.Properties(headers=headers))  # type: ignore[arg-type]
        wire.confirm(1, 1)
        wire.goodbye()


def delivered_headers(client: Client, sidecar: Sidecar, vhost: VirtualHost, count: int = 1) -> list[dict[str, object]]:
    """Have a member ack so many deliveries; return the headers they had, but for the stamps."""
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        contents = [wire.content(1, Basic.Deliver) for _ in range(count)]
        wire.tell(1, Basic.Ack(0, True))
        wire.goodbye()
    found = [content.properties.headers or {} for content in contents]
    return [{name: value for name, value in headers.items() if not name.startswith("x-")} for headers in found]


def test_what_an_amqp_client_traces_keeps_its_header(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = traced(trace_sample="0", groups="orders", groups_in_series="orders")
    publish_traced(client, sidecar, vhost, {"traceparent": SAMPLED, "a": "b"})
    assert delivered_headers(client, sidecar, vhost) == [{"traceparent": SAMPLED, "a": "b"}]
    published, delivered = got(receiver, 2)
    assert (published.name, published.kind) == ("publish orders", "SPAN_KIND_CLIENT")
    assert (delivered.name, delivered.kind) == ("deliver orders", "SPAN_KIND_CONSUMER")
    assert {(span.trace_id, span.parent_id, span.error) for span in (published, delivered)} == {(TRACE, SPAN, None)}


@pytest.mark.parametrize("headers", [{"traceparent": UNSAMPLED}, {"traceparent": "no such"}, None])
def test_of_what_is_not_sampled_there_is_no_span(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client, headers: dict[str, str] | None
) -> None:
    """With share 0 that is all that belongs to no trace; and what a client does not sample never is."""
    sharded(vhost)
    sidecar = traced(trace_sample="0" if headers is None else "1", groups="orders")
    publish_traced(client, sidecar, vhost, headers)
    assert sidecar.publish("orders", "k", vhost=vhost.name, headers=headers).status == 200
    assert delivered_headers(client, sidecar, vhost, 2) == [headers or {}] * 2
    assert sidecar.metric("ringproxy_spans_total") == 0
    sidecar.stop()
    assert receiver.spans == []


def test_a_message_of_no_trace_begins_one_that_its_header_tells_of(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = traced(trace_sample="1", groups="orders")
    publish_traced(client, sidecar, vhost, {"a": "b"})
    (headers,) = delivered_headers(client, sidecar, vhost)
    published, delivered = got(receiver, 2)
    assert headers == {"a": "b", "traceparent": published.traceparent}
    assert (published.kind, published.parent_id) == ("SPAN_KIND_PRODUCER", "")
    assert (delivered.trace_id, delivered.parent_id) == (published.trace_id, published.span_id)


def test_of_many_messages_the_guides_share_is_traced(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client
) -> None:
    (block,) = Document("docs/how-to/trace.md")["# Trace messages"]
    install, *exports, run = block.splitlines()
    extra = install.partition("[")[2].partition("]")[0]
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = Shell({})("\n".join([*exports, 'echo "$OTEL_EXPORTER_OTLP_ENDPOINT $RINGPROXY_TRACE_SAMPLE"']))
    endpoint, share = told.split()
    assert (endpoint, run) == ("http://localhost:4318", "ring-proxy run")
    vhost.ring("orders", ["q1", "q2"])
    sidecar = traced(trace_sample=share)
    messages = 10_000
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.send(*(publishing(1, "orders", f"key {n}", b"1") for n in range(messages)))
        wire.confirm(1, messages)
        wire.goodbye()
    count = sidecar.metric("ringproxy_spans_total")
    # Nine standard deviations on either side.
    assert 10 < count < 190
    assert len({span.trace_id for span in got(receiver, int(count))}) == count


def test_spans_tell_how_publishes_and_deliveries_failed(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, ["orders.0"])
    vhost.queue("full", x_max_length=1, x_overflow="reject-publish")
    vhost.exchange("narrow")
    vhost.bind("narrow", "full")
    sidecar = traced(trace_sample="0", groups="orders", groups_ack_timeout="600")
    headers = {"traceparent": SAMPLED}
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(2)
        for answer in (Basic.Ack, Basic.Nack):
            wire.publish(2, "narrow", "k", b"1", Basic.Properties(headers=headers))  # type: ignore[arg-type]
            wire.expect(2, answer)
        for n in range(3):
            assert sidecar.publish("orders", "k", b"%d" % n, vhost=vhost.name, headers=headers).status == 200
        wire.channel(3, confirm=False)
        consume(wire, 3)
        deliveries(wire, 3, 3)
        wire.tell(3, Basic.Reject(1, requeue=False), Basic.Nack(2, requeue=True))
        again = [wire.content(3, Basic.Deliver)]
        assert again[0].body == b"1"
    # The connection is lost with two deliveries unsettled.
    spans = got(receiver, 9)
    assert [span.error for span in spans if span.name == "publish narrow"] == [None, "nacked"]
    assert [span.error for span in spans if span.name == "publish orders"] == [None] * 3
    errors = [span.error for span in spans if span.name == "deliver orders"]
    assert errors == ["rejected", "requeued", "unsettled", "unsettled"]


def test_an_endpoint_that_is_down_costs_no_publish(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is up, spans go to it; the log tells of either once."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    vhost.ring("orders", ["q1"])
    sidecar = start_sidecar(trace_sample="1")

    def publish() -> None:
        publish_traced(client, sidecar, vhost, None)
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

    def failed() -> float:
        return sidecar.metric("ringproxy_spans_dropped_total", reason="endpoint")

    publish()
    wait_until("spans are dropped", lambda: failed() == 2)
    publish()
    wait_until("more are dropped", lambda: failed() == 4)
    assert sidecar.metric("ringproxy_spans_failing") == 1
    assert sidecar.log().count(f"spans cannot be exported to http://127.0.0.1:{port}, and are dropped: ") == 1
    with receiving(port) as receiver:
        publish()
        got(receiver, 2)
        wait_until("it is told", lambda: sidecar.metric("ringproxy_spans_failing") == 0)
    assert sidecar.log().count("spans are exported again") == 1
    assert sidecar.metric("ringproxy_spans_total") == 6


def test_an_endpoint_that_hangs_costs_no_publish_and_no_shutdown(
    traced: Traced, receiver: Receiver, vhost: VirtualHost, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    vhost.ring("orders", ["q1"])
    receiver.answers.clear()
    sidecar = traced(trace_sample="1")
    publish_traced(client, sidecar, vhost, None)
    assert receiver.asked.wait(30)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for n in range(1000):
            wire.publish(1, "orders", f"key {n}", b"1")
        wire.confirm(1, 1000)
        wire.goodbye()
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    # The first one is with the receiver, and ten wait.
    wait_until("all have ended", lambda: sidecar.metric("ringproxy_spans_total") == 1002)
    assert sidecar.metric("ringproxy_spans_dropped_total", reason="queue") == 1002 - 1 - 10
    began = time.monotonic()
    sidecar.stop()
    assert time.monotonic() - began < 8
    assert "the last spans were not exported before the sidecar ended" in sidecar.log()


def test_the_last_spans_go_out_at_the_end(
    start_sidecar: StartSidecar, receiver: Receiver, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    vhost.ring("orders", ["q1"])
    sidecar = start_sidecar(trace_sample="1")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    assert receiver.spans == []
    sidecar.stop()
    (span,) = receiver.spans
    assert span.resource["service.name"] == "shop"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "not a URL such as http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "'grpc' is not supported, only http/protobuf"),
        ("RINGPROXY_TRACE_SAMPLE", "1.5", "trace_sample: 1.5 is more than 1"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc", "SDK cannot be set up: OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
    ],
)
def test_a_wrong_variable_is_named_at_the_start(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGPROXY_TRACE_SAMPLE", "1")
    monkeypatch.setenv(name, value)
    for command in (["run"], ["config", "--check"]):
        run = subprocess.run([COMMAND, *command], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0
        assert "Traceback" not in run.stderr
        assert why in run.stderr + run.stdout


def test_a_message_that_just_fits_a_frame_is_published_without_its_span(
    traced: Traced, receiver: Receiver, vhost: VirtualHost
) -> None:
    sharded(vhost)
    sidecar = traced(trace_sample="1")

    def publish(size: int) -> Answer:
        message = {"key": "k", "payload": "1", "headers": {"a": "x" * size}}
        return sidecar.batch("orders", [message], vhost=vhost.name)

    used, room = (int(number) for number in re.findall(r"\d{4,}", publish(1 << 17).json["detail"]))
    largest = (1 << 17) - (used - room)
    assert publish(largest + 1).status == 422
    assert publish(largest).receipt()["confirmed"] == 1
    assert publish(largest - 71).receipt()["confirmed"] == 1
    assert sidecar.metric("ringproxy_spans_total") == 0
    assert publish(largest - 72).receipt()["confirmed"] == 1
    got(receiver, 1)
