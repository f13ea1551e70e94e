"""A dead letter of a group in series: the message as it is published, made of the one that came. No I/O.

Its properties are those of the message but for two that would keep it from arriving: `expiration`, and `user_id`, which
must be the publishing user's. Four headers tell where it came from.
"""

from typing import Final, NamedTuple

from proxy.wire import content, table
from proxy.wire.frames import OVERHEAD, u32
from proxy.wire.properties import DIRECT_REPLY, Header

_EXPIRATION: Final = 1 << 8
_USER_ID: Final = 1 << 4
_REPLY_TO: Final = 1 << 9

ATTEMPT: Final = b"x-ring-attempt"
"""The header that tells how often a message was tried, with this try; a first try has none."""

GROUP: Final = b"x-ring-group"
SHARD: Final = b"x-ring-shard"
_REASON: Final = b"x-ring-reason"
HEADERS: Final = frozenset({GROUP, SHARD, ATTEMPT, _REASON})
"""The headers that a dead letter gets: the group, the queue that was its shard, how often it was tried, and why.

`header_of` writes them: a further one goes into both.
"""

_CUT: Final = content.STAMPS_AND_COPIES | HEADERS | content.DELIVERY_COUNTS | {b"x-stream-filter-value", b"x-delay"}
"""The headers that a dead letter does not carry on: what RabbitMQ would heed, and what held in the shard alone."""


class Letter(NamedTuple):
    """A message that is to be a dead letter."""

    vhost: str
    group: str
    shard: str
    key: bytes
    """The routing key of its publish."""
    header: bytes
    """The frame of its content header, as the broker sent it."""
    body: bytes
    """Its body frames."""
    tries: int
    reason: str
    """Why, as the header x-ring-reason and the metric tell it."""


def header_of(letter: Letter) -> Header:
    """Return the properties and headers of a dead letter, with all of HEADERS.

    Raises Fault for a content header that cannot be read.
    """
    header, end = letter.header, len(letter.header) - 1
    found = content.properties(header, 7, end)
    fields = b""
    if (headers := found.get(content.HEADERS)) is not None:
        fields, _ = table.without(headers, 4, len(headers), _CUT)
    found.pop(_EXPIRATION, None)
    found.pop(_USER_ID, None)
    if found.get(_REPLY_TO, b"")[1:] == DIRECT_REPLY.encode():
        del found[_REPLY_TO]
    told = (
        table.text_field(GROUP, letter.group.encode()),
        table.text_field(SHARD, letter.shard.encode()),
        table.integer_field(ATTEMPT, letter.tries),
        table.text_field(_REASON, letter.reason.encode()),
    )
    return Header.of(found)._replace(headers=b"".join(told) + fields)


def payload_of(frames: bytes) -> bytes:
    """Return the payload of whole body frames, one behind the other."""
    parts, at = [], 0
    while at < len(frames):
        size = u32(frames, at + 3)
        parts.append(frames[at + OVERHEAD - 1 : at + OVERHEAD - 1 + size])  # the end mark is behind the payload
        at += OVERHEAD + size
    return b"".join(parts)
