"""A receiver of OpenTelemetry's OTLP over HTTP, in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1 import trace_pb2


class Seen:
    """One span as the receiver got it."""

    def __init__(self, span: trace_pb2.Span, resource: dict[str, Any]) -> None:
        self.name, self.kind, self.resource = span.name, trace_pb2.Span.SpanKind.Name(span.kind), resource
        self.trace_id, self.span_id, self.parent_id = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.started_at = span.start_time_unix_nano / 1e9
        self.is_error = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
        self.attributes = values(span.attributes)

    @property
    def error(self) -> str | None:
        """The class of its error; None if it has none."""
        found: str | None = self.attributes.get("error.type")
        assert self.is_error == (found is not None)
        return found

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Receiver:
    """The spans that have come so far, and whether requests are answered."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Seen] = []
        self.answers = threading.Event()
        """Set while requests are answered; else they hang."""
        self.answers.set()
        self.asked = threading.Event()
        """Set once a request has come."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                receiver.asked.set()
                receiver.answers.wait()
                receiver.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A sidecar that was stopped does not wait for its answer."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            resource = values(each.resource.attributes)
            for scope in each.scope_spans:
                assert scope.scope.name == "ringproxy"
                self.spans += [Seen(span, resource) for span in scope.spans]

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(port)
    try:
        yield receiver
    finally:
        receiver.close()
