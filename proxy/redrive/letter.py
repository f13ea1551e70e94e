"""A dead letter as it is read from its queue, and the content header with which it is published again. No I/O."""

from typing import Final, NamedTuple

from proxy.groups.consuming import letters
from proxy.wire import content, table
from proxy.wire.frames import Fault

MAYBE_TWICE: Final = b"x-ring-maybe-twice"
"""The header of a message that may have been published again before, by a run that did not come to its ack."""

_DEATHS: Final = frozenset(
    {
        *(b"x-death", b"x-first-death-exchange", b"x-first-death-queue", b"x-first-death-reason"),
        *(b"x-last-death-exchange", b"x-last-death-queue", b"x-last-death-reason"),
    }
)
"""The headers in which RabbitMQ counts dead-letterings. With them it may take the next one for a cycle, and drop it."""

_CUT: Final = content.STAMPS | letters.HEADERS | content.DELIVERY_COUNTS | _DEATHS | {MAYBE_TWICE}
"""The headers that sidecars and RabbitMQ have set; all others are the publisher's, and stay."""


class Origin(NamedTuple):
    """The place that a dead letter comes from, by its headers."""

    group: bytes
    shard: bytes


def origin_of(payload: bytes) -> Origin | None:
    """Return the origin of a message by the payload of its content header; None if it is no dead letter of a group."""
    try:
        _, first, stop = content.parts(payload, 0, len(payload))
        found = [table.text(payload[first:stop], name) for name in (letters.GROUP, letters.SHARD)]
    except (Fault, IndexError):
        return None
    group, shard = found
    return Origin(group, shard) if group is not None and shard is not None else None


def deliveries_of(payload: bytes) -> int:
    """Return how many times its queue had delivered a message before; 0 if the content header does not say."""
    return content.times_redelivered(payload, 0, len(payload))


def redriven(payload: bytes, *, maybe_twice: bool) -> bytes:
    """Return the content header's payload with the publisher's headers alone, and with `MAYBE_TWICE` if that is asked.

    Raises Fault for a payload that cannot be read.
    """
    told = bytes((len(MAYBE_TWICE),)) + MAYBE_TWICE + b"t\1" if maybe_twice else b""
    return content.unstamped(payload, 0, len(payload), told, had_headers=False, stamps=_CUT)
