"""Where each publish goes: one table of exchanges, each entry replaced whole when what is known of it changes."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from proxy.settings.patterns import Mode
from proxy.topology.bindings import Bindings
from ring.hashed import HashedValue
from ring.ring import Ring, fingerprint

Name = tuple[str, str]
"""A virtual host and an exchange's name."""

NEVER: Final = float("-inf")
"""The monotonic time of what has not happened yet."""

CHANGES_KEPT = 16
"""Changes of its ring that one entry remembers."""

MAX_HOPS = 8
"""Ring exchanges that one publish may go through before it counts as a cycle."""


class PassReason(StrEnum):
    """Why publishes to an exchange that exists are left to the exchange itself."""

    TYPE = "type"
    NO_BINDINGS = "no_bindings"
    MODE_PASS = "pass"
    SHADOW = "shadow"
    DEAD_LETTER = "dead_letter"
    INTERNAL_DESTINATION = "internal_destination"
    CYCLE = "cycle"
    INTERNAL = "internal"
    ABSENT = "absent"


WHATEVER_IS_BOUND: Final = frozenset({PassReason.TYPE, PassReason.MODE_PASS})
"""Reasons to pass that no binding changes."""


KEEPS_FROM_ROUTING: Final = frozenset({PassReason.DEAD_LETTER, PassReason.INTERNAL_DESTINATION})
"""Reasons for which an exchange with a ring is not routed though it should be, until somebody mends its topology."""


@dataclass(frozen=True)
class Change:
    """One change of a ring, as logs and `ring-proxy explain` tell it."""

    at: float
    """Seconds since the epoch."""
    why: str
    what: str
    moved: float
    """Share of the slots that changed owner, 0 to 1."""
    fingerprint: str


@dataclass(frozen=True)
class KnownRing:
    """A ring with what its exchange hashes."""

    ring: Ring
    hashed: HashedValue
    exchange_type: str
    fingerprint: str

    @classmethod
    def of(cls, ring: Ring, hashed: HashedValue, exchange_type: str) -> "KnownRing":
        """With its fingerprint."""
        return cls(ring, hashed, exchange_type, fingerprint(ring.as_weights(), exchange_type, str(hashed)))


@dataclass(frozen=True)
class Entry:
    """All that is known of one exchange: it exists, and has a ring to route by, or a reason to pass, or both."""

    mode: Mode
    exchange_type: str
    known: KnownRing | None
    passed: PassReason | None
    """Why publishes are passed; None where `known` routes them."""
    bindings: Bindings
    read_at: float
    """Monotonic time at which the last good reading started."""
    queues: Mapping[str, str | None] = field(default_factory=dict)
    """What makes each bound queue dead-letter under its own name, as `topology.dead_letters_by_own_name` tells it.

    The queue that was looked at longest ago comes first."""
    changes: tuple[Change, ...] = ()
    internal: bool = False
    """Takes messages from other exchanges only."""
    publish_in: int | None = None
    """Messages published into it, as the broker last counted them; None where it did not say."""
    restored: bool = False
    """Not read by this process, but kept on disk by one before it."""
    refused: str = ""
    """Why publishes are refused rather than passed for the reason `passed`; empty where they are not refused."""

    @property
    def follows_bindings(self) -> bool:
        """Whether a reading of the bindings could make a ring route: then passing for want of one is a guess too."""
        return self.mode is Mode.ROUTE and self.passed is not PassReason.TYPE

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """The queues that would dead-letter under their own name."""
        return tuple(sorted(queue for queue, cause in self.queues.items() if cause))


class Unread(NamedTuple):
    """The reason why nothing may be published to an exchange now; as a rule that it must be read first."""

    name: Name
    """The exchange in the way: the one published to, or one that its ring leads to."""
    why: str
    other_cluster: bool = False
    """The broker's cluster is not known to be the management API's: no look-up helps, asking for its name again may."""
    refused: bool = False
    """The exchange is known, and takes no publishes for the reason `why`: no look-up helps."""


class _UnreadDeclarations(NamedTuple):
    """Something was declared on an exchange that its entry does not show."""

    since: float
    """When the first such declaration came,"""
    at: float
    """and the last."""
    certain: bool


class Router:
    """The table of what is known of each exchange. Not thread-safe: belongs to the event loop."""

    def __init__(self, ring_max_age: float, refuse_stale: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """A ring that routes and is older than `ring_max_age` seconds answers Unread if `refuse_stale`."""
        self._entries: dict[Name, Entry] = {}
        self._max_age, self._refuse_stale, self.clock = ring_max_age, refuse_stale, clock
        self.used_at: dict[Name, float] = {}
        """When a publish last asked for each exchange."""
        self._unread: dict[Name, _UnreadDeclarations] = {}
        self.on_change: list[Callable[[], None]] = []
        """Called whenever where publishes to any exchange go may change."""

    @property
    def entries(self) -> Mapping[Name, Entry]:
        """Every exchange that is known."""
        return self._entries

    def put(self, name: Name, entry: Entry) -> None:
        """Swaps an exchange's entry; tells of it unless nothing that matters to routing changed."""
        before = self._entries.get(name)
        same = before is not None and _routes_alike(before, entry) and self.clock() <= self.fresh_until(before)
        self._entries[name] = entry
        unread = self._unread.get(name)
        if unread is not None and unread.at <= entry.read_at:
            del self._unread[name]
            same = False
        if not same:
            self.notify()

    def drop(self, name: Name) -> None:
        """Forgets an exchange."""
        self._entries.pop(name, None)
        self.used_at.pop(name, None)
        self._unread.pop(name, None)
        self.notify()

    def notify(self) -> None:
        """Calls whoever wants to know of changes."""
        for callback in self.on_change:
            callback()

    def mark_declared(self, name: Name, at: float, *, certain: bool) -> None:
        """Something was declared on an exchange at `at`: it is Unread until an entry that was read after that.

        Not `certain` where, as far as is known, the declaration changed nothing.
        """
        unread = self._unread.get(name)
        if unread is None:
            self._unread[name] = _UnreadDeclarations(at, at, certain)
        else:
            self._unread[name] = _UnreadDeclarations(
                min(at, unread.since), max(at, unread.at), certain or unread.certain
            )
        if unread is None:
            self.notify()

    def release_uncertain(self, name: Name, started: float) -> bool:
        """A reading that started then failed: what was declared before it is not waited for unless it is certain.

        Nor what was declared since: else clients that declare in turn would hold up publishes for as long as nothing
        can be read. Returns whether there was such a thing.
        """
        unread = self._unread.get(name)
        if unread is None or unread.certain or unread.since > started:
            return False
        del self._unread[name]
        self.notify()
        return True

    def awaits_read_back(self, name: Name, asked: float = math.inf) -> bool:
        """Whether a declaration on an exchange is to be read back; not where its entry was read at `asked` or later."""
        entry = self._entries.get(name)
        return name in self._unread and (entry is None or entry.read_at < asked)

    def stale(self, entry: Entry) -> bool:
        """Whether a ring has not been read for longer than its greatest age."""
        return self.clock() - entry.read_at > self._max_age

    def fresh_until(self, entry: Entry) -> float:
        """The monotonic time after which an entry is not served; inf where it always is."""
        return entry.read_at + self._max_age if self._refuse_stale and entry.follows_bindings else math.inf

    def look(self, name: Name, asked: float = math.inf) -> Entry | Unread:
        """The entry of an exchange that is published to, or why it must be read first.

        A declaration that came after `asked`, when the publish did, is not waited for by an entry that was read
        after it: else a stream of declarations would hold up a publish for as long as it lasts.
        """
        entry = self._entries.get(name)
        if entry is None:
            return Unread(name, "not read yet")
        self.used_at[name] = self.clock()
        if self.awaits_read_back(name, asked):
            return Unread(name, "a declaration has not been read back yet")
        if self.clock() > self.fresh_until(entry):
            return Unread(name, f"its ring is older than {self._max_age:g} s")
        if entry.refused:
            return Unread(name, entry.refused, refused=True)
        return entry


def _routes_alike(one: Entry, other: Entry) -> bool:
    alike = (one.passed, one.mode, one.internal) == (other.passed, other.mode, other.internal)
    return alike and one.refused == other.refused and one.known is other.known


def with_change(entry: Entry, change: Change) -> Entry:
    """The entry with one more change, the oldest beyond CHANGES_KEPT dropped."""
    return replace(entry, changes=tuple(deque((*entry.changes, change), maxlen=CHANGES_KEPT)))
