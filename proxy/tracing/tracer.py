"""Spans as the hot paths see them: begun for a sample of the messages, and ended once they are settled. No I/O.

A span is plain data until it ends. Only then the SDK gets it (`proxy/tracing/export.py`), with the times at which it
began and ended, and its thread sends it. Nothing here waits, and the spans under way are limited.
"""

# mypyc: compiled

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from random import getrandbits, random
from time import monotonic, time_ns
from typing import Final

from proxy.outcome import Outcome
from proxy.topology.table import Name
from proxy.tracing.context import Parent, field_of
from proxy.wire import content
from proxy.wire.frames import Fault
from ring.hashed import HashedValue

MOST_OPEN: Final = 10_000
"""The most spans under way. Each takes some 0.7 KiB, and clients choose how many publishes they leave unsettled."""

MOST_A_SECOND: Final = 1000
"""The most spans that begin in a second, on average: clients choose how many of their traces are sampled, and a span
takes many times the CPU time of its publish."""

_CHOSEN: Final = "messaging.destination.partition.id"
"""The attribute of the queue or exchange that a ring chose: in the words of the conventions, one of the parts of the
exchange."""

_MESSAGE_ID: Final = HashedValue("property", "message_id")

_GOOD: Final = frozenset({Outcome.CONFIRMED, Outcome.PASSED, Outcome.SENT})
"""The outcomes of a publish that are no errors."""

Attributes = dict[str, str | int]


class Kind(Enum):
    """The kind of a span, by the conventions for messaging; the names are those of OpenTelemetry."""

    PRODUCER = 1
    """A publish whose span the message names as its own."""
    CLIENT = 2
    """A publish of a message that names a span of the client's."""
    CONSUMER = 3
    """A delivery, until its client has settled it."""


class Span:
    """One publish or delivery that is traced, until it is settled. It ends once: by `end`, `settled` or `forget`."""

    __slots__ = (
        "_tracer", "attributes", "ended_at", "error", "kind", "name", "parent_id", "span_id", "started_at", "trace_id",
    )  # fmt: skip

    def __init__(self, tracer: "Tracer", kind: Kind, name: str, attributes: Attributes, parent: Parent | None) -> None:
        """Begin a span now; without a parent it is the first one of a new trace."""
        self._tracer, self.kind, self.name, self.attributes = tracer, kind, name, attributes
        self.trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
        self.parent_id = parent.span_id if parent is not None else 0
        """The id of the span before; 0 for none."""
        self.span_id = getrandbits(64) or 1
        self.started_at = self.ended_at = time_ns()
        """In nanoseconds since 1970."""
        self.error = ""
        """The class of the error that the span ended with; empty for none."""

    @property
    def field(self) -> bytes:
        """The header by which a message names this span, as a field of its headers table."""
        return field_of(self.trace_id, self.span_id)

    def placed(self, destination: str) -> None:
        """Set where a message went that came back; an empty name stands for the exchange itself."""
        self.attributes.pop(_CHOSEN, None)
        if destination:
            self.attributes[_CHOSEN] = destination

    def settled(self, outcome: Outcome) -> None:
        """End the span of a publish."""
        self.end("" if outcome in _GOOD else str(outcome))

    def end(self, error: str) -> None:
        """End the span now, with the class of an error or an empty string."""
        # The clock may have been set back meanwhile.
        self.ended_at, self.error = max(time_ns(), self.started_at), error
        self._tracer.open -= 1
        self._tracer.ended(self)

    def forget(self) -> None:
        """End the span without a trace of it, since what it stands for was not done."""
        self._tracer.open -= 1


class Tracer:
    """The tracing of one process; only the event loop's thread may call it."""

    def __init__(self, share: float, ended: Callable[[Span], None]) -> None:
        """Trace this share of what belongs to no trace yet, and all that belongs to a sampled one.

        `ended` takes each span that has ended, and must not wait.
        """
        self._share, self.ended = share, ended
        self.open = 0
        """How many spans are under way."""
        self.dropped = 0
        """How many spans were not begun, since MOST_OPEN were under way."""
        self.limited = 0
        """How many spans were not begun, since MOST_A_SECOND had begun."""
        self._left, self._counted_at = float(MOST_A_SECOND), monotonic()
        # How many spans may begin at once, and when that was counted.

    def takes(self, parent: Parent | None) -> bool:
        """Return whether to begin a span behind `parent`; None for what belongs to no trace yet."""
        if not (parent.sampled if parent is not None else random() < self._share):
            return False
        if self.open >= MOST_OPEN:
            self.dropped += 1
            return False
        now = monotonic()
        self._left = min(float(MOST_A_SECOND), self._left + (now - self._counted_at) * MOST_A_SECOND)
        self._counted_at = now
        if self._left < 1:
            self.limited += 1
            return False
        self._left -= 1
        return True

    def publish(
        self,
        name: Name,
        key: bytes,
        destination: str,
        header: bytes,
        start: int,
        end: int,
        parent: Parent | None,
        kind: Kind,
    ) -> Span:
        """Begin the span of a publish that `takes` has let in.

        `destination` is the queue or exchange that the ring chose, empty for none, and `header` has the content
        header's payload from `start` to `end`.
        """
        vhost, exchange = name
        attributes = _attributes(vhost, "send", "publish", (exchange, _text(key)), destination, header, start, end)
        return self._begun(kind, f"publish {_template(attributes, exchange)}", attributes, parent)

    def delivery(
        self,
        vhost: str,
        group: str,
        exchange: str,
        key: bytes,
        shard: str,
        number: int,
        header: bytes,
        start: int,
        end: int,
        parent: Parent | None,
    ) -> Span:
        """Begin the span of a delivery by a group that `takes` has let in; `number` is the client's delivery tag."""
        place = (exchange, _text(key), shard)
        attributes = _attributes(vhost, "process", "deliver", place, shard, header, start, end)
        attributes["messaging.consumer.group.name"] = group
        attributes["messaging.rabbitmq.message.delivery_tag"] = number
        return self._begun(Kind.CONSUMER, f"deliver {_template(attributes, exchange)}", attributes, parent)

    def _begun(self, kind: Kind, name: str, attributes: Attributes, parent: Parent | None) -> Span:
        self.open += 1
        return Span(self, kind, name, attributes, parent)


def _attributes(
    vhost: str,
    operation: str,
    operation_name: str,
    place: tuple[str, ...],
    destination: str,
    header: bytes,
    start: int,
    end: int,
) -> Attributes:
    """Return the attributes of any span, by OpenTelemetry's conventions for RabbitMQ; `place` begins with the exchange.

    The conventions know no virtual host.
    """
    attributes: Attributes = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation_name,
        "messaging.destination.name": ":".join([part for part in place if part]) or _DEFAULT_EXCHANGE,
        "messaging.message.body.size": content.body_size(header, start),
        "ringproxy.vhost": vhost,
    }
    if place[1]:
        attributes["messaging.rabbitmq.destination.routing_key"] = place[1]
    if destination:
        attributes[_CHOSEN] = destination
    with suppress(Fault):  # a header that cannot be read is the broker's to refuse
        message_id = content.hashed_value(_MESSAGE_ID, b"message_id", header, start, end)
        if message_id:
            attributes["messaging.message.id"] = _text(message_id)
    return attributes


_DEFAULT_EXCHANGE: Final = "amq.default"
"""The conventions' name of the default exchange."""


def _template(attributes: Attributes, exchange: str) -> str:
    """Add and return the destination without its key, of which there are few, as a span's name needs it."""
    template = attributes["messaging.destination.template"] = exchange or _DEFAULT_EXCHANGE
    return template


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
