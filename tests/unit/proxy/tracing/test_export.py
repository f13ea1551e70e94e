"""The queue before the SDK's thread: it is limited, and what it has no room for is counted."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from proxy.tracing import export
from proxy.tracing.environment import Environment
from proxy.tracing.export import Export
from proxy.tracing.tracer import Kind, Tracer

HEADER = b"\0\x3c\0\0" + bytes(8) + b"\0\0"


class Endpoint(SpanExporter):
    """An exporter that hangs until it is let go, and fails as long as it is told to."""

    def __init__(self) -> None:
        self.go_on, self.came = threading.Event(), threading.Semaphore(0)
        self.fails = False
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.came.release()
        self.go_on.wait()
        self.spans += spans
        if self.fails:
            logging.getLogger("opentelemetry.exporter").warning("why it fails")
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    made = Endpoint()
    monkeypatch.setattr(export, "OTLPSpanExporter", lambda: made)
    monkeypatch.setattr(export, "FLUSH_TIMEOUT", 0.1)
    yield made
    made.go_on.set()


def publish(tracer: Tracer, count: int = 1) -> None:
    for _ in range(count):
        tracer.publish(("/", "x"), b"k", "q", HEADER, 0, len(HEADER), None, Kind.PRODUCER).end("")


async def test_what_the_queue_has_no_room_for_is_dropped_and_counted(endpoint: Endpoint) -> None:
    made = Export(Environment("http://x", queue=4, batch=1, delay=1))
    tracer = Tracer(1.0, made.ended)
    async with made.running():
        publish(tracer)
        await asyncio.to_thread(endpoint.came.acquire)
        publish(tracer, 10)
        assert (made.ends, made.full, made.failed, tracer.open) == (11, 6, 0, 0)
        endpoint.go_on.set()
    assert len(endpoint.spans) == 5


async def test_the_end_does_not_wait_for_an_endpoint_that_hangs(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    made = Export(Environment("http://x", queue=4, batch=1, delay=1))
    async with made.running():
        publish(Tracer(1.0, made.ended), 3)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert "the last spans were not exported before the sidecar ended" in caplog.text


async def test_a_failing_endpoint_is_told_of_once(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    endpoint.go_on.set()
    endpoint.fails = True
    made = Export(Environment("http://x", queue=4, batch=1, delay=1))
    tracer = Tracer(1.0, made.ended)
    async with made.running():
        for failed in (1, 2):
            publish(tracer)
            while made.failed < failed:  # noqa: ASYNC110 - it is the SDK's thread that counts
                await asyncio.sleep(0.01)
        states = [made.is_failing]
        endpoint.fails = False
        publish(tracer)
        while made.is_failing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert states == [True]
    lines = [record.getMessage() for record in caplog.records if record.name == "proxy.tracing.export"]
    assert lines == [
        "traces go to http://x",
        "spans cannot be exported to http://x, and are dropped: why it fails",
        "spans are exported again",
    ]


async def test_an_error_of_the_sdk_is_told_once_and_breaks_no_answer(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.go_on.set()
    made = Export(Environment("http://x", queue=1, batch=1, delay=1))
    tracer = Tracer(1.0, made.ended)
    with monkeypatch.context() as broken:
        broken.setattr(ReadableSpan, "__init__", None)
        publish(tracer, 3)
    assert (made.ends, made.refused, made.full, tracer.open) == (3, 3, 0, 0)
    assert caplog.text.count("SDK failed on a span, which is dropped") == 1
    async with made.running():
        publish(tracer)
    assert len(endpoint.spans) == 1
