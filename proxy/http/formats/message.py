"""A message that came over HTTP, ready to be published; pure."""

# mypyc: compiled

from typing import NamedTuple

from proxy.wire import content
from proxy.wire.properties import Header, PropertyError

STAMPS = frozenset([name.decode() for name in content.STAMPS])
"""Headers that this proxy sets itself; a client's are dropped."""

FAN_OUT = frozenset([name.decode() for name in content.COPIES])
"""Headers of sender-selected distribution: copies to other queues would bypass the ring, and RabbitMQ closes the
channel, and with it everybody's messages in flight, over one that is not an array (observed)."""

TRACES = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
"""HTTP headers in lower case that become a message's headers (W3C Trace Context)."""


def put_trace(traces: dict[str, str], name: str, value: str) -> None:
    """Add one of TRACES; several `tracestate` become one list (section 3.3.1). Raises PropertyError."""
    if name not in traces:
        traces[name] = value
    elif name == "tracestate":
        traces[name] += "," + value
    else:
        raise PropertyError("given twice")


class Message(NamedTuple):
    """One message, whichever endpoint took it."""

    key: bytes | None
    """The routing key, at most 255 bytes; None if none was given."""

    header: Header
    """The message's properties; it is persistent unless the client asked otherwise."""

    body: bytes

    @property
    def size(self) -> int:
        """Bytes that the message holds: its headers may be as long as its body."""
        return len(self.body) + len(self.header.headers)
