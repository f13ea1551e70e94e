"""How often messages in series were tried: known beyond the link, the client and the sidecar by which they came.

The sidecar that owns a shard counts the tries of its messages, and the crashes of clients that held them, and tells
both in its full beats. All others keep what the owner told last, and the next owner goes on from there. While a shard
moves, it has its new owner already, and clients of the former one still hold messages: their sidecar tells what comes
of these, and the owner adds that to its own record.

A message is recognised by its fingerprint. A count that is lost, as at the end of all sidecars at once, gives a message
some tries more, and never fewer.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

MOST_ATTEMPTS: Final = 1_000
"""The most messages of one group whose tries one beat tells of."""

MOST_TOLD: Final = 10_000
"""The most messages of one group whose tries are known, of all sidecars together."""

LATEST: Final = 86_400.0
"""Seconds from now until the latest next try that is believed."""

KEPT: Final = 900.0
"""Seconds for which the tries of a message that is not held are known after its next try was due."""


class Attempt(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The tries of one message so far."""

    tries: Annotated[int, Meta(ge=0, le=2**31)]
    """How often clients have returned the message."""
    due: Annotated[float, Meta(ge=0, le=1e11)]
    """When the next try is due, in seconds since 1970."""
    crashes: Annotated[int, Meta(ge=0, le=2**31)] = 0
    """How many clients were lost without a close while they held the message."""
    is_alone: bool = False
    """Whether the last of them held nothing else."""
    since: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """When a client first returned the message, in seconds since 1970; 0 for never."""


class Attempts:
    """The tries of the messages of one group, by shard and fingerprint."""

    def __init__(self) -> None:
        self.shards: dict[str, dict[str, Attempt]] = {}
        """No shard without a message."""
        self._count = 0
        self._noted: set[str] = set()
        """The shards of which this sidecar was the last to know better."""
        self._untold: set[str] = set()
        """The shards among these of which no beat has told yet."""

    def of(self, shard: str, fingerprint: str) -> Attempt | None:
        """Return the tries of a message; None if there were none, or they are not known."""
        return self.shards.get(shard, {}).get(fingerprint)

    def note(self, shard: str, fingerprint: str, tries: int, due: float, since: float = 0.0) -> None:
        """Note the tries of a message, the next of which is due at `due`, in seconds since 1970; 0 tries for none.

        `since` is when the message was first returned, in seconds since 1970, where that is not known yet.

        Nothing is noted of further messages while there are MOST_TOLD.
        """
        before = self.of(shard, fingerprint)
        if before is not None:
            since = before.since or since
        if before is not None and before.crashes:
            self._put(shard, fingerprint, Attempt(tries, due, before.crashes, before.is_alone, since))
        elif tries:
            self._put(shard, fingerprint, Attempt(tries, due, 0, False, since))
        else:
            self.forget(shard, fingerprint)

    def note_crash(self, shard: str, fingerprint: str, now: float, *, is_alone: bool) -> int:
        """Note that a client was lost that held a message, at `now` in seconds since 1970; return how many were."""
        before = self.of(shard, fingerprint) or Attempt(0, now)
        self._put(shard, fingerprint, Attempt(before.tries, now, before.crashes + 1, is_alone, before.since))
        return before.crashes + 1

    def note_company(self, shard: str, fingerprint: str) -> None:
        """Note that the last client to be lost with a message may have been lost for another one."""
        if (before := self.of(shard, fingerprint)) is not None:
            self._put(shard, fingerprint, Attempt(before.tries, before.due, before.crashes, False, before.since))

    def _put(self, shard: str, fingerprint: str, attempt: Attempt) -> None:
        if self._count < MOST_TOLD or self.of(shard, fingerprint) is not None:
            self._noted.add(shard)
            self._untold.add(shard)
            found = self.shards.setdefault(shard, {})
            self._count += fingerprint not in found
            found[fingerprint] = attempt

    def forget(self, shard: str, fingerprint: str) -> None:
        """Forget a message, which is settled."""
        found = self.shards.get(shard, {})
        if found.pop(fingerprint, None) is not None:
            self._count -= 1
            if not found:
                del self.shards[shard]
                self._noted.discard(shard)
                self._untold.discard(shard)

    def replace(self, shard: str, told: Mapping[str, Attempt]) -> None:
        """Take what the owner of a shard tells of it in place of what was known.

        The owner does not know yet what this sidecar has yet to tell, such as a crash of a former owner's client.
        """
        if shard in self._untold:
            self.merge(shard, told)
            return
        self._noted.discard(shard)
        self._count += len(told) - len(self.shards.pop(shard, ()))
        if self._count > MOST_TOLD:
            self._count -= len(told)
        elif told:
            self.shards[shard] = dict(told)

    def merge(self, shard: str, told: Mapping[str, Attempt]) -> None:
        """Add what another sidecar tells of a shard that this one owns; of each count the higher one is true.

        A message that was settled meanwhile is known again, until it expires.
        """
        for fingerprint, other in told.items():
            own = self.of(shard, fingerprint)
            merged = other if own is None else _merged(own, other)
            if merged != own:
                self._put(shard, fingerprint, merged)

    def told(self, owned: Collection[str]) -> dict[str, dict[str, Attempt]]:
        """Have one beat tell of the shards that this sidecar owns, and before these of those that it has just lost.

        Until it has told of a lost shard it takes nothing for settled that the new owner no longer tells.
        """
        found: dict[str, dict[str, Attempt]] = {}
        room = MOST_ATTEMPTS
        lost = [shard for shard in self._noted if shard not in owned]
        # Once more of those that were told, as a beat may be lost, and behind the others.
        lost.sort(key=lambda shard: shard not in self._untold)
        for shard in (*lost, *owned):
            if room and (known := self.shards.get(shard)):
                found[shard] = dict(list(known.items())[:room])
                room -= len(found[shard])
        self._untold.difference_update(found)
        return found

    def expire(self, now: float, held_of: Callable[[str], Collection[str]] = lambda _: ()) -> None:
        """Forget messages that have not come again for long; `now` is in seconds since 1970.

        `held_of` returns the fingerprints of the messages of a shard that are here, by default none: these stay known.
        """
        for shard, known in list(self.shards.items()):
            quiet = [(each, at) for each, at in known.items() if not now - KEPT / 2 < at.due < now + LATEST]
            held = held_of(shard) if quiet else ()
            for fingerprint, at in quiet:
                if fingerprint in held:
                    self._put(shard, fingerprint, replace(at, due=now))
                elif not now - KEPT < at.due < now + LATEST:
                    self.forget(shard, fingerprint)


def _merged(one: Attempt, other: Attempt) -> Attempt:
    """Return what two sidecars know of one message together; the higher count of crashes knows the last crash."""
    is_alone = one.is_alone and other.is_alone
    if one.crashes != other.crashes:
        is_alone = max(one, other, key=lambda each: each.crashes).is_alone
    since = min(filter(None, (one.since, other.since)), default=0.0)
    return Attempt(
        max(one.tries, other.tries), max(one.due, other.due), max(one.crashes, other.crashes), is_alone, since
    )
