"""The export of ended spans by OpenTelemetry's SDK, whose thread sends them in batches by OTLP over HTTP.

Where to and how the environment says, in the variables OTEL_* of the SDK. The event loop makes the SDK's span and
appends it to a queue, which is limited: an endpoint that is down, or answers nothing, costs the loop no more than that.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from proxy import __version__
from proxy.process.identity import process_id
from proxy.tracing.environment import Environment
from proxy.tracing.tracer import Kind, Span

log = logging.getLogger(__name__)

FLUSH_TIMEOUT = 1.0
"""Seconds for the last spans at the end."""

_LONGEST = 300
"""The most characters of a reason in the log."""

_KINDS = {kind: SpanKind[kind.name] for kind in Kind}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Export:
    """The way of one process's spans to the SDK, and the SDK's queue and thread; the others may read the counts."""

    def __init__(self, environment: Environment) -> None:
        """Set the SDK up, which reads the variables that are not of `environment` itself."""
        reasons = _Reasons()
        # The SDK logs each try: the log would have several lines in ten seconds while the endpoint is down. It may also
        # log what the environment says, as soon as the exporter is made, and that has secrets.
        sdk = logging.getLogger("opentelemetry")
        sdk.propagate, sdk.handlers = False, [reasons]
        self._sender = _Sender(OTLPSpanExporter(), environment.endpoint, reasons)
        self._most = environment.queue
        self._ids = _Ids()
        provider = TracerProvider(
            # The hot paths have sampled already, so OTEL_TRACES_SAMPLER means nothing.
            sampler=ALWAYS_ON,
            resource=_resource(),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=environment.queue,
            schedule_delay_millis=environment.delay,
            max_export_batch_size=environment.batch,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("ringproxy", __version__)
        self._queued = 0
        """How many spans the queue has got."""
        self.full = 0
        """How many spans were dropped, since the queue was full."""
        self.refused = 0
        """How many spans were dropped, since the SDK failed on them."""

    @property
    def ends(self) -> int:
        """How many spans have ended, dropped ones included."""
        return self._queued + self.full + self.refused

    @property
    def failed(self) -> int:
        """How many spans were dropped, since the endpoint did not take them."""
        return self._sender.failed

    @property
    def is_failing(self) -> bool:
        """Whether the endpoint did not take the last spans."""
        return self._sender.is_failing

    def ended(self, span: Span) -> None:
        """Hand a span over, or drop it where the queue is full: then it costs next to nothing.

        Raises nothing: callers are about to pass an answer on to a client.
        """
        # The queue holds no more than this difference, as spans that the thread is about to send have left it.
        if self._queued - self._sender.taken >= self._most:
            self.full += 1
            return
        self._queued += 1
        try:
            self._hand_over(span)
        except Exception:
            self._queued -= 1
            if not self.refused:
                log.warning("OpenTelemetry's SDK failed on a span, which is dropped", exc_info=True)
            self.refused += 1

    def _hand_over(self, span: Span) -> None:
        context = None
        if span.parent_id:
            parent = SpanContext(span.trace_id, span.parent_id, is_remote=True, trace_flags=_SAMPLED)
            context = set_span_in_context(NonRecordingSpan(parent))
        self._ids.trace_id, self._ids.span_id = span.trace_id, span.span_id
        made = self._tracer.start_span(
            span.name, context, kind=_KINDS[span.kind], attributes=span.attributes, start_time=span.started_at
        )
        if span.error:
            made.set_attribute("error.type", span.error)
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.ended_at)

    def close(self) -> None:
        """Send what is left, and end the SDK's thread."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end of the context, send what is left for FLUSH_TIMEOUT at most."""
        log.info("traces go to %s", self._sender.endpoint)
        try:
            yield
        finally:
            # A thread of its own, which the end of the process does not wait for: the endpoint may answer nothing.
            thread = threading.Thread(target=self.close, name="last spans", daemon=True)
            thread.start()
            await asyncio.to_thread(thread.join, FLUSH_TIMEOUT)
            if thread.is_alive():
                log.warning("the last spans were not exported before the sidecar ended")


class _Ids(IdGenerator):
    """The ids of the span that is handed over: messages named them before the SDK made the span."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Sender(SpanExporter):
    """The exporter that the SDK's thread calls: it counts, and has the log tell once that the endpoint fails."""

    def __init__(self, exporter: SpanExporter, endpoint: str, reasons: "_Reasons") -> None:
        self._exporter, self.endpoint = exporter, endpoint
        self.taken = self.failed = 0
        """How many spans the thread has taken out of the queue, and how many of these were dropped."""
        self.is_failing = False
        self._reasons = reasons

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; a failure is final, since the exporter has tried for OTEL_EXPORTER_OTLP_TIMEOUT."""
        self.taken += len(spans)
        self._reasons.first = ""
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing:
            self.failed += len(spans)
        if is_failing and not self.is_failing:
            why = self._reasons.first[:_LONGEST] or "unknown reason"
            log.warning("spans cannot be exported to %s, and are dropped: %s", self.endpoint, why)
        elif self.is_failing and not is_failing:
            log.info("spans are exported again")
        self.is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Reasons(logging.Handler):
    """The first thing that the SDK logs while it exports a batch, which says why that fails."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def _resource() -> Resource:
    """Return what is known of this service; what the environment says of it comes before that."""
    own = {"service.name": "ringproxy", "service.version": __version__, "service.instance.id": process_id()}
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in given})
