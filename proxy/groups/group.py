"""One group as one sidecar knows it: its own members, what the others tell, and what follows from both. No I/O.

`Group.tick` is to be called at `Group.due` and after whatever else happens. It decides, and returns what is to be done:
links to open and to let go, a beat to send, and questions for the broker.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from proxy.groups.beats import Beat, LinkBeat, MemberBeat, OtherVersionError, digest
from proxy.groups.decide import Decision, Step, View, decide
from proxy.groups.model import Link, LinkState, Member
from proxy.groups.peers import Answer, News, Peers
from proxy.groups.timing import (
    BEAT,
    CALM,
    COUNT_EVERY,
    GONE,
    LONGEST_CALM,
    LONGEST_FULL,
    LOOK_EVERY,
    OPENED_WITHIN,
    ORPHANED,
    SOON,
)

TOLD_A_SECOND: Final = 2_000
"""The most members and links that one sidecar hears of each second without news, as far as `LONGEST_FULL` allows."""

_NEVER: Final = float("inf")

_TOLD: Final = (LinkState.OPENING, LinkState.OPEN, LinkState.LEAVING)


class Shard:
    """One shard of the group, from the reading of the ring that first shows it until no reading does."""

    __slots__ = ("consumers", "missing_at", "moving_since", "name", "owner", "owner_since", "told_at")

    def __init__(self, name: str, now: float) -> None:
        """Nobody is known to consume the shard."""
        self.name = name
        self.owner = ""
        """The member that owns it; empty for nobody."""
        self.owner_since = now
        """Since when it is owned by that member, or by nobody, in monotonic seconds."""
        self.moving_since = 0.0
        """Since when it is to move, or is without an owner, in monotonic seconds; 0 where it stays."""
        self.told_at = now
        """When a beat last told of an open link to it, in monotonic seconds."""
        self.missing_at = 0.0
        """When the broker last said that its queue does not exist, in monotonic seconds; 0 where it has not."""
        self.consumers: int | None = None
        """How many consumers the broker last counted while this sidecar heard nobody; None where it has not."""


class Question(NamedTuple):
    """A question for the broker: whether the queue of a sidecar is there."""

    sidecar: str
    queue: str


class Tick(NamedTuple):
    """The acts that are due after a look at a group."""

    steps: tuple[Step, ...] = ()
    beat: Beat | None = None
    questions: tuple[Question, ...] = ()
    """The queues of sidecars to ask for; the answers go to `Group.answered`."""
    counted: tuple[str, ...] = ()
    """The shards whose consumers are to be counted; the answers go to `Group.counted`."""


class Group:
    """The state of one group in one sidecar; it lives as long as the sidecar has members of the group."""

    def __init__(self, sidecar: str, host: str, now: float, clock: Callable[[], float] = time.time) -> None:
        """Take the id of this process and the name of its machine, as its beats give them.

        `now` is in monotonic seconds; `clock` returns the seconds since 1970.
        """
        self.sidecar, self.host, self._clock = sidecar, host, clock
        self.queue = ""
        """The name of the queue by which this sidecar gets beats; empty until there is one."""
        self.local: dict[str, Member] = {}
        """The members of this sidecar, by id, also those that leave and whose links have yet to end."""
        self.peers = Peers(sidecar)
        self.shards: dict[str, Shard] = {}
        """The shards of the ring, and those of an earlier ring whose queues are still there."""
        self.decision = Decision()
        """The last decision."""
        self.moves = 0
        """How many shards members of this sidecar have become the owners of."""
        self._ring: tuple[str, ...] = ()
        self._digest = digest(())
        self._started = now
        self._changes: float | None = None
        """When the first change of members since the last decision came; None without any."""
        self._decide_at = _NEVER
        self._beat_at, self._is_full = now, True
        """When the next beat is due, and whether it is a full one in any case."""
        self._full_at = self._look_at = self._count_at = now
        # Beats count from the time, or the others take the first ones of the exchange's next group for late ones.
        self._number = time.time_ns() // 1_000_000

    # News of this sidecar's sessions.

    def joined(self, member: Member, now: float) -> None:
        """Add a member of this sidecar."""
        self.local[member.id] = member
        self._tell(now)
        self._calm(now)

    def left(self, member: Member, now: float) -> None:
        """Note that a member of this sidecar has left: its links are let go, or have ended with its session."""
        member.leaving = True
        self.changed(member, now)

    def changed(self, member: Member, now: float) -> None:
        """Note that a link of a member has changed its state. One that has left is forgotten with its last link."""
        if member.id in self.local:
            if member.leaving and not member.links:
                del self.local[member.id]
            self._tell(now)
            self._soon(now)

    def refused(self, member: Member, shard: str, why: str, now: float) -> bool:
        """Note that the broker has ended a member's link, or that none could be opened; return whether that is news."""
        self.changed(member, now)
        return member.refused(shard, why, now)

    def missing(self, shard: str, now: float) -> None:
        """Note that the broker has no queue of that name; the next reading of the ring says whether it comes back."""
        if shard in self.shards:
            self.shards[shard].missing_at = now
            self._set_shards(now)

    def stalled(self, member: Member, until: float, now: float) -> None:
        """Note that a member did not ack in time: until `until`, monotonic, it gets no shard while others may."""
        member.stalled_until = until
        self._tell(now)
        self._soon(now)

    @property
    def is_over(self) -> bool:
        """Whether this sidecar has no member any more."""
        return not self.local

    # News of the ring.

    def follow(self, ring: Iterable[str], read_at: float, now: float) -> None:
        """Set the shards of the ring, from a reading that began at `read_at`, in monotonic seconds.

        A shard that has left the ring stays the group's until its queue is gone: it may hold messages.
        """
        ring = tuple(sorted(ring))
        found = [name for name in ring if (it := self.shards.get(name)) and 0 < it.missing_at < read_at]
        if ring == self._ring and not found:
            return
        self._ring = ring
        for name in found:
            self.shards[name].missing_at = 0.0
        for name in ring:
            if name not in self.shards:
                self.shards[name] = Shard(name, now)
        self._set_shards(now)

    def _set_shards(self, now: float) -> None:
        gone = [name for name, shard in self.shards.items() if shard.missing_at and name not in self._ring]
        for name in gone:
            del self.shards[name]
        self._digest = digest(self.present)
        self._tell(now)
        self._calm(now)

    @property
    def present(self) -> list[str]:
        """The shards whose queues exist, as far as this sidecar knows, sorted."""
        return sorted(name for name, shard in self.shards.items() if not shard.missing_at)

    # News of the other sidecars.

    def heard(self, beat: Beat, now: float) -> None:
        """Take a beat of any sidecar, this one included."""
        if beat.sidecar == self.sidecar:
            if self.peers.echoed(now):
                for shard in self.shards.values():
                    shard.told_at, shard.consumers = now, None
                self._tell(now)
                self._calm(now)
            return
        heard = self.peers.heard(beat, self.local, now)
        if heard.is_new:
            self._tell(now)
        if heard.news is News.MEMBERS:
            self._calm(now)
        elif heard.news is News.LINKS:
            self._soon(now)

    def heard_other(self, error: OtherVersionError, now: float) -> None:
        """Take a beat of a sidecar of another release, which tells nothing that this one understands."""
        self.peers.heard_other_version(error.sidecar, now)

    def connected(self, queue: str, now: float) -> None:
        """Note that beats come by a new queue; with an empty name, that the connection is lost."""
        self.queue = queue
        if queue:
            self._tell(now)
        else:
            self.peers.disconnected()

    def answered(self, question: Question, answer: Answer, now: float) -> None:
        """Take the broker's answer about a sidecar's queue."""
        if self.peers.answered(question.sidecar, question.queue, answer, now):
            self.peers.remove(question.sidecar)
            self._soon(now)

    def counted(self, shard: str, consumers: int | None, now: float) -> None:
        """Take the number of a shard's consumers; None where the broker does not tell."""
        if shard in self.shards:
            self.shards[shard].consumers = consumers
            self._soon(now)

    # What follows from it.

    def hears(self, now: float) -> bool:
        """Return whether this sidecar hears the others."""
        return self.peers.hears(now)

    @property
    def due(self) -> float:
        """When `tick` is to be called at the latest, in monotonic seconds."""
        return min(self._decide_at, self._beat_at, self._look_at)

    def tick(self, now: float) -> Tick:
        """Decide what is due, and return what is to be done."""
        questions, counted = self._look(now) if now >= self._look_at else ((), ())
        steps: tuple[Step, ...] = ()
        # A beat tells what has just been decided. Pauses that are over, for example, are no event of their own.
        if now >= self._decide_at or (now >= self._beat_at and self._changes is None):
            steps = self._decide(now)
        beat = None
        if now >= self._beat_at:
            beat = self.beat(now, is_full=self._is_full or now >= self._full_at)
            self._beat_at, self._is_full = now + BEAT, False
        return Tick(steps, beat, questions, counted)

    def _look(self, now: float) -> tuple[tuple[Question, ...], tuple[str, ...]]:
        """Look for sidecars that are gone or late; return the questions about late ones, and the shards to count."""
        self._look_at = now + LOOK_EVERY
        gone, late = self.peers.expire(now)
        for sidecar in gone:
            self.peers.remove(sidecar)
        if gone:
            self._soon(now)
        counted: list[str] = []
        if self._is_deaf(now) and now >= self._count_at:
            self._count_at = now + COUNT_EVERY
            linked = {link.shard for link in self._links()}
            counted = [shard for shard in self.present if shard not in linked]
        return tuple(Question(sidecar, self.peers.all[sidecar].queue) for sidecar in late), tuple(counted)

    def _decide(self, now: float) -> tuple[Step, ...]:
        self._changes, self._decide_at = None, _NEVER
        members = {**self.told, **{each.id: each for each in self._members(now)}}
        for member in members.values():
            for shard, link in member.links.items():
                if link.state != LinkState.OPENING and shard in self.shards:
                    self.shards[shard].told_at = now
        self.decision = decide(self._view(members, now))
        for (member_id, shard), stance in self.decision.stances.items():
            own = self.local[member_id].links[shard]
            if (own.wants, own.behind) != stance:
                own.wants, own.behind = stance
                self._tell(now)
        self._note(now)
        return tuple(self.decision.steps)

    def _view(self, members: Mapping[str, MemberBeat], now: float) -> View:
        shards = self.present
        closing = [(link.member.id, link.shard) for link in self._links()]
        brought = [(link.member.id, link.shard) for link in self._links() if link.delivered]
        lacking = self._lacking(shards)
        return View(shards, members, self.local.keys(), lacking, self.hears(now), self._vacant(now), brought, closing)

    def _links(self) -> list[Link]:
        return [link for member in self.local.values() for link in member.links.values()]

    def _lacking(self, shards: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return by member the shards that its sidecar's ring lacks, where that has told its shards."""
        every = frozenset(shards)
        found: dict[str, frozenset[str]] = {}
        for peer in self.peers.all.values():
            if peer.ring != self._digest and peer.shards is not None and (lacks := every - peer.shards):
                found |= dict.fromkeys(peer.members, lacks)
        return found

    def _vacant(self, now: float) -> set[str]:
        """Return the shards that any sidecar should have consumed: see `View.vacant`."""
        if self.hears(now):
            return {shard.name for shard in self.shards.values() if now - shard.told_at > ORPHANED}
        return {shard.name for shard in self.shards.values() if shard.consumers == 0} if self._is_deaf(now) else set()

    def _is_deaf(self, now: float) -> bool:
        """Return whether this sidecar has heard nobody for so long that it looks after the shards by itself."""
        return now - max(self.peers.echo_at, self._started) > GONE

    def _note(self, now: float) -> None:
        """Note since when shards are owned and are to move."""
        moving = {move.shard for move in self.decision.moves}
        for shard in self.shards.values():
            owner = self.decision.owners.get(shard.name, "")
            if owner != shard.owner:
                self.moves += owner in self.local
                shard.owner, shard.owner_since = owner, now
            shard.moving_since = (shard.moving_since or now) if shard.name in moving else 0.0

    # What this sidecar tells.

    def beat(self, now: float, *, is_full: bool) -> Beat:
        """Return the next beat of this sidecar."""
        self._number += 1
        if not is_full:
            return Beat(self.sidecar, self._number, members=None)
        self._full_at = now + self._full_every
        differs = any(peer.ring != self._digest for peer in self.peers.all.values())
        shards = frozenset(self.present) if differs else None
        return Beat(self.sidecar, self._number, self.host, self.queue, self._digest, shards, self._members(now))

    def last_beat(self, now: float) -> Beat:
        """Return the beat by which this sidecar leaves the group."""
        self.local = {}
        return self.beat(now, is_full=True)

    @property
    def _full_every(self) -> float:
        size = sum(peer.size for peer in self.peers.all.values()) + sum(1 + len(m.links) for m in self.local.values())
        return min(max(size / TOLD_A_SECOND, BEAT), LONGEST_FULL)

    def _members(self, now: float) -> tuple[MemberBeat, ...]:
        return tuple(
            MemberBeat(
                member.id,
                member.client,
                member.since,
                self.is_stalled(member, now),
                member.leaving,
                member.held_at_most,
                frozenset(self._refused(member, now)),
                {
                    link.shard: LinkBeat(link.state, link.since, link.unacked, link.wants, link.behind)
                    for link in member.links.values()
                    if link.state in _TOLD
                },
            )
            for member in self.local.values()
        )

    def is_stalled(self, member: Member, now: float) -> bool:
        """Return whether a member of this sidecar gets no shard while others may, as its client did not ack."""
        return now < member.stalled_until

    def _refused(self, member: Member, now: float) -> Iterable[str]:
        """Yield the shards that a member may not have now: the broker refuses its link, or does not answer."""
        for shard, pause in member.pauses.items():
            if now < pause.until:
                yield shard
        for link in member.links.values():
            if link.state == LinkState.OPENING and now - link.changed_at > OPENED_WITHIN:
                yield link.shard

    # What is due.

    def _tell(self, now: float) -> None:
        """Have a full beat sent in a moment."""
        self._is_full = True
        self._beat_at = min(self._beat_at, now + SOON)

    def _soon(self, now: float) -> None:
        """Have a decision made at once, unless it waits for a calm."""
        if self._changes is None:
            self._decide_at = now

    def _calm(self, now: float) -> None:
        """Have a decision made once no further member comes or goes for a moment."""
        first = self._changes if self._changes is not None else now
        self._changes, self._decide_at = first, min(now + CALM, first + LONGEST_CALM)

    # What reports and metrics show.

    @property
    def told(self) -> Mapping[str, MemberBeat]:
        """The members of all other sidecars, by id, as their beats tell of them."""
        return {each.id: each for peer in self.peers.all.values() for each in peer.members.values()}

    def owned(self, *, is_first: bool) -> list[str]:
        """Return the shards that members of this sidecar own; with `is_first` also those that nobody owns."""
        shards = [self.shards[name] for name in self.present]
        return [it.name for it in shards if (it.owner in self.local if it.owner else is_first)]

    def delivered_at(self, shard: str) -> float:
        """Return when a member of this sidecar last got a delivery of a shard; monotonic seconds, 0 for never."""
        return max([link.delivered_at for link in self._links() if link.shard == shard], default=0.0)

    def yet_to_ack(self, shard: str) -> int:
        """Return how many messages of a shard members hold whose links are LEAVING, as far as this sidecar knows."""
        own = [(link.state, link.unacked) for link in self._links() if link.shard == shard]
        links = [told.links[shard] for told in self.told.values() if shard in told.links]
        told = [(link.state, link.unacked) for link in links]
        return sum(unacked for state, unacked in (*own, *told) if state == LinkState.LEAVING)

    def unacked(self, shard: str) -> int:
        """Return how many unacked messages of a shard all members together hold, as far as this sidecar knows."""
        own = sum(link.unacked for link in self._links() if link.shard == shard and link.state in _TOLD)
        return own + sum(told.links[shard].unacked for told in self.told.values() if shard in told.links)

    @property
    def prefetches(self) -> set[int]:
        """The prefetches of all members that have not left; a member without acks has 0."""
        own = {member.held_at_most for member in self.local.values() if not member.leaving}
        return own | {told.prefetch for told in self.told.values() if not told.is_leaving}
