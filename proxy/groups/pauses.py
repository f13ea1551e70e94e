"""Orders to pause and resume shards, and which shards are paused by them. This module does no I/O.

The orders of a group stand in a stream of the broker (`pause_log.py`), and every sidecar reads all of them, the oldest
first. For each shard the last order counts that names it or the whole group. An order that does not count changes
nothing: one by a user whom `groups_operators` does not name, or one that cannot be read, cannot hide an earlier one.
"""

import time
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from proxy.groups.operators import MAX_BYTES, OrderError

MOST_PAUSES: Final = 20_000
"""The most shards of a group of which it is known by themselves that they are paused, or are not."""

_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970."""


class Verb(StrEnum):
    """The fate of the shards."""

    PAUSE = "pause"
    """Nobody consumes them until they are resumed; their messages wait."""
    RESUME = "resume"
    """They are consumed again."""


class PauseOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """An order of an operator, as the stream keeps it."""

    verb: Verb
    group: Annotated[str, Meta(min_length=1, max_length=255)]
    """The name that clients consume; an order for another group does not count."""
    at: Annotated[float, Meta(ge=0, le=_LATEST)]
    """When it was given, in seconds since 1970."""
    shard: Annotated[str, Meta(max_length=255)] = ""
    """The shard that it is about; empty for all, also those that come later."""


class Heeded(Struct, frozen=True):
    """The answer of a sidecar to an order."""

    host: str
    """The name of its machine."""
    why: str
    """Why the order does not count here; empty where it does."""
    sidecars: int = 1
    """How many sidecars have members of the group, as this one knows them, itself included."""
    paused: tuple[str, ...] = ()
    """The shards that are paused now."""
    unacked: int = 0
    """How many messages of these its clients have yet to ack."""


class Pause(NamedTuple):
    """The pause of a shard."""

    by: str
    """The user who has ordered it."""
    since: float
    """When it was ordered, in seconds since 1970."""

    def __str__(self) -> str:
        return f"paused by {self.by} since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(self.since))}"


class Pauses:
    """The shards of one group that are paused, by all orders that were taken so far."""

    def __init__(self) -> None:
        self._all: Pause | None = None
        self._shards: dict[str, Pause | None] = {}
        """By shard, what an order after the last one for all shards says of it."""

    def of(self, shard: str) -> Pause | None:
        """Return the pause of a shard; None where it is not paused."""
        return self._shards.get(shard, self._all)

    def take(self, order: PauseOrder, by: str) -> str:
        """Let an order of a user count; return why it does not, and an empty string where it does."""
        pause = Pause(by, order.at) if order.verb is Verb.PAUSE else None
        if not order.shard:
            self._all = pause
            self._shards.clear()
        elif pause is None and self._all is None:
            self._shards.pop(order.shard, None)
        elif len(self._shards) >= MOST_PAUSES and order.shard not in self._shards:
            return f"the pauses of {MOST_PAUSES} shards are known, which are the most"
        else:
            self._shards[order.shard] = pause
        return ""


def decode(body: bytes) -> PauseOrder:
    """Return the order that a message is. Raises OrderError, which names the wrong field, and shows the message."""
    if len(body) > MAX_BYTES:
        raise OrderError(f"more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=PauseOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OrderError(f"{error}: {body[:200]!r}") from None
