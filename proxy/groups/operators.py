"""Orders of operators: they say what becomes of the first message of a key in series. This module does no I/O.

An order is a message to a group's exchange of orders, to which each sidecar with a member binds its queue. The sidecar
that has the shard does what it says, and answers. RabbitMQ refuses a publish whose user_id is not the connection's
user, so the sender of an order is known, and the setting `groups_operators` says whose orders count.

An order names the message by its fingerprint, and does nothing if the message is not the first of its key any more.
"""

import logging
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

log = logging.getLogger(__name__)

MOST_STRANGERS: Final = 100
"""The most users of whose orders the log tells that they do not count."""

MAX_BYTES: Final = 4096
"""The most bytes of one order."""

_Digits = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]


class Act(StrEnum):
    """The fate of the first message of a key."""

    RELEASE = "release"
    """The message is tried again at once, and has all its tries again."""
    SKIP = "skip"
    """The message is acked, and so lost; its key goes on."""
    DEAD_LETTER = "dead-letter"
    """The message is published to groups_dead_letter, and then acked; its key goes on."""


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """The order of an operator."""

    act: Act
    shard: Annotated[str, Meta(min_length=1, max_length=255)]
    key_hash: _Digits
    fingerprint: _Digits


class Answer(Struct, frozen=True):
    """The answer of the sidecar that has the shard."""

    why: str
    """Why the order was not done; empty where it was."""


class Sent(NamedTuple):
    """A message to a group's exchange of orders."""

    user: str
    """The property user_id, which RabbitMQ has checked; empty without one."""
    body: bytes
    reply_to: str
    """The queue that awaits the answer; empty for none."""


class Operators:
    """The users whose orders count, and those others whose orders have come for one group."""

    def __init__(self, names: Collection[str], title: str) -> None:
        """Take the setting `groups_operators`, and how log lines about the group begin."""
        self._names, self._title = names, title
        self._strangers: set[str] = set()
        """The users of whose orders the log has told that they do not count."""

    def may_order(self, user: str) -> bool:
        """Return whether a user's order counts; the log tells once of each user whose do not."""
        if user in self._names:
            return True
        if user not in self._strangers and len(self._strangers) < MOST_STRANGERS:
            self._strangers.add(user)
            log.warning("%s: an order of %r, whom groups_operators does not name", self._title, user)
        return False


class OrderError(ValueError):
    """Raised for a message that is not an order; its text names the wrong field."""


def decode(body: bytes) -> Order:
    """Return the order that a message is. Raises OrderError."""
    if len(body) > MAX_BYTES:
        raise OrderError(f"more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=Order)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OrderError(str(error)) from None
