"""One group as one sidecar knows it: its own members, what the others tell, and what follows from both. No I/O.

`Group.tick` is to be called at `Group.due` and after whatever else happens. It decides, and returns what is to be done:
links to open and to let go, a beat to send, and questions for the broker.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from proxy.groups.attempts import Attempts
from proxy.groups.beats import TOLD, Beat, LinkBeat, MemberBeat, cut, digest
from proxy.groups.broken import Broken
from proxy.groups.decide import Decision, Stance, Step, View, decide
from proxy.groups.model import LinkState, Member
from proxy.groups.pauses import Pauses
from proxy.groups.peers import News, Peers, Question
from proxy.groups.timing import (
    BEAT,
    CALM,
    COUNT_AFTER,
    COUNT_EVERY,
    LONGEST_CALM,
    LONGEST_FULL,
    LOOK_EVERY,
    OPENED_WITHIN,
    ORPHANED,
    PAUSES_WITHIN,
    SOON,
    STARVED_FOR,
    between_news,
    tries,
)

DECIDED_A_SECOND: Final = 5_000
"""The most members and shards that one sidecar decides on each second. `decide` takes about 1% of its time then: 1.0 ms
for 50 members and 400 shards."""

TOLD_A_SECOND: Final = 200
"""The most members and links that one sidecar hears of each second without news, as far as `LONGEST_FULL` allows."""

_NEVER: Final = float("inf")

_UNDECIDED: Final = Stance(wants=False, behind="")
"""The words of a link about which nothing has been decided yet."""


def _told_links(member: Member, now: float) -> dict[str, tuple[int, float, int]]:
    """Return by shard what beats tell of a member's links: the state, since when it is open, and the unacked messages.

    A shard that the member let go at a marker stays the member's for the wait after that, and until its next link is
    open, which is soon if the member should still have the shard.
    """
    leaving = LinkState.LEAVING.value
    endings = {} if member.leaving else member.endings
    told = {shard: (leaving, it.since, 0) for shard, it in endings.items() if now < it.until + ORPHANED}
    for shard, link in member.links.items():
        if link.state in TOLD and not (link.state == LinkState.OPENING and shard in told):
            told[shard] = link.state, link.since, link.unacked
        elif link.may_end_its_shard:
            told[shard] = leaving, link.since, link.unacked
    return told


class Shard:
    """One shard of the group, from the reading of the ring that first shows it until no reading does."""

    __slots__ = ("missing_at", "moving_since", "owner_since", "told_at")

    def __init__(self, now: float) -> None:
        self.owner_since = now
        """Since when it is owned by its owner, or by nobody, in monotonic seconds."""
        self.moving_since = 0.0
        """Since when it is to move, or is without an owner, in monotonic seconds; 0 where it stays."""
        self.told_at = now
        """When a beat last told of a link to it that is open, or that may open yet, in monotonic seconds."""
        self.missing_at = 0.0
        """When the broker last said that its queue does not exist, in monotonic seconds; 0 where it has not."""


class Tick(NamedTuple):
    """The acts that are due after a look at a group."""

    steps: Sequence[Step] = ()
    beat: Beat | None = None
    questions: Sequence[Question] = ()
    """The queues of sidecars to ask for; the answers go to `Group.answered`."""
    counted: Sequence[str] = ()
    """The shards whose consumers are to be counted; the answers go to `Group.counted`."""


class Group:
    """The state of one group in one sidecar; it lives as long as the sidecar has members of the group."""

    def __init__(self, sidecar: str, host: str, now: float, attempts: Attempts | None = None) -> None:
        """Take the id of this process and the name of its machine, as its beats give them."""
        self.attempts = attempts or Attempts()
        """The tries of messages in series, as this sidecar counts them for its shards, and others tell of theirs."""
        self.broken = Broken()
        """The shards that cost a client its connection: `Groups` has the record of earlier members."""
        self.sidecar, self.host = sidecar, cut(host)
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
        self.pauses = Pauses()
        """The shards that operators have paused, as far as this sidecar knows."""
        self._pauses_by = 0.0
        """Until when nothing is opened as the pauses are not known yet, in monotonic seconds; 0 if they are."""
        self._is_refused = False
        """Whether the broker refuses the rights that beats need."""
        self._unconsumed: frozenset[str] = frozenset()
        """The shards without a consumer, as the broker has counted since this sidecar does not hear the others."""
        self._ring: tuple[str, ...] = ()
        self._digest = digest(())
        self._started = now
        self._changes: float | None = None
        """When the first change of members since the last decision came; None without any."""
        self._decide_at = _NEVER
        self._decided_at = self._told_at = float("-inf")
        """When the last decision was made, and when the last full beat was sent."""
        self._tell_at, self._beaten_at = now, now
        """When news are to be told by a full beat, and when the last beat of any kind was sent."""
        self._full_sent = self._full_back = 0
        """The numbers of the last full beat, and of the last one that has come back."""
        self._full_at = self._look_at = self._count_at = now
        # Beats count from the time, or the others take the first ones of the exchange's next group for late ones.
        self._number = time.time_ns() // 1_000_000

    # News of this sidecar's sessions.

    def joined(self, member: Member, now: float) -> None:
        self.local[member.id] = member
        member.pauses.update(self.broken.pauses(now))
        self._tell(now)
        self._calm(now)

    def left(self, member: Member, now: float) -> None:
        """Note that a member of this sidecar has left: its links are let go, or have ended with its session."""
        member.leaving = True
        self._inherit(member)
        self.changed(member, now)

    def changed(self, member: Member, now: float) -> None:
        """Note that a link of a member has changed its state. One that has left is forgotten with its last link."""
        if member.id in self.local:
            if member.leaving and not member.links:
                del self.local[member.id]
                self._inherit(member)
            self._tell(now)
            self._soon(now)

    def _inherit(self, member: Member) -> None:
        """Have another member of this sidecar leave those shards alone that a member has which is going."""
        if (heir := next((other for other in self.local.values() if not other.leaving), None)) is not None:
            for shard, ending in member.endings.items():
                if shard not in heir.endings or heir.endings[shard].at < ending.at:
                    heir.endings[shard] = ending

    def refused(self, member: Member, shard: str, why: str, now: float, *, lacked_room: bool = False) -> bool:
        """Note that the broker has ended a member's link; return whether the reason is news.

        With `lacked_room` the session has not even asked, since it has no room for one link more.
        """
        self.changed(member, now)
        return member.refused(shard, why, now, lacked_room=lacked_room)

    def link_broken(self, shard: str, why: str, now: float) -> float:
        """Note that a link to a shard has cost a client its connection; return the seconds until another one is opened.

        A link that is open stays.
        """
        pause = self.broken.note(shard, why, now)
        for member in self.local.values():
            if shard not in member.links:
                member.pauses[shard] = pause
        self._tell(now)
        self._soon(now)
        return pause.length

    def missing(self, shard: str, now: float) -> None:
        """Note that the broker has no queue of that name; the next reading of the ring says whether it comes back."""
        if shard in self.shards:
            self.shards[shard].missing_at = now
            for member in self.local.values():
                member.endings.pop(shard, None)
            self._set_shards(now)

    def stalled(self, member: Member, until: float, now: float) -> None:
        """Note that a member did not ack in time: until `until`, monotonic, it gets no shard while others may."""
        member.stalled_until = until
        self._tell(now)
        self._soon(now)

    def starved(self, member: Member, shard: str, now: float) -> None:
        """Have another member get a shard of which this one gets nothing, if there is one that may."""
        member.starved[shard] = now + STARVED_FOR
        self._tell(now)
        self._soon(now)

    # News of operators.

    def awaits_pauses(self, now: float) -> None:
        """Have the members open nothing until it is known which shards are paused, or cannot be known in time."""
        self._pauses_by = now + PAUSES_WITHIN

    def still_awaits_pauses(self, now: float) -> None:
        """Note that one more order of the past has come: where they are awaited, the time begins anew."""
        if now < self._pauses_by:
            self._pauses_by = now + PAUSES_WITHIN

    def paused(self, pauses: Pauses, now: float) -> None:
        """Note which shards operators have paused."""
        self.pauses, self._pauses_by = pauses, 0.0
        self._soon(now)

    @property
    def paused_shards(self) -> list[str]:
        """The shards that operators have paused, sorted."""
        return [name for name in self.present if self.pauses.of(name) is not None]

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
                self.shards[name] = Shard(now)
        self._set_shards(now)

    def _set_shards(self, now: float) -> None:
        """Take it that the group's shards have changed: have the other sidecars told, and a decision made.

        A shard whose queue is missing and that is not on the ring is forgotten. `now` is monotonic.
        """
        gone = [name for name, shard in self.shards.items() if shard.missing_at and name not in self._ring]
        for name in gone:
            del self.shards[name]
            for member in self.local.values():
                member.forget(name)
        self._digest = digest(self.present)
        self._tell(now)
        self._calm(now)

    @property
    def present(self) -> list[str]:
        """The shards whose queues exist, as far as this sidecar knows, sorted."""
        return sorted(name for name, shard in self.shards.items() if not shard.missing_at)

    # News of the other sidecars.

    def heard(self, beat: Beat, now: float) -> None:
        """Take a beat of any sidecar, this one included, and have what follows from it told and decided.

        This sidecar's own beat shows that it hears; one that says it has left, though it has members, is answered.
        """
        if beat.sidecar == self.sidecar:
            if beat.members == () and self.local:
                # Those who watch this sidecar took it for gone, as while its connection was lost.
                self._tell(now)
                return
            if beat.members is not UNSET:
                self._full_back = beat.number
            if self.peers.echoed(now):
                self._unconsumed = frozenset()
                for shard in self.shards.values():
                    shard.told_at = now
                self._tell(now)
                self._calm(now)
            return
        self._learn(beat)
        heard = self.peers.heard(beat, self.local, now)
        if heard.is_new:
            self._tell(now)
        if heard.news is News.MEMBERS:
            self._calm(now)
        elif heard.news is News.LINKS:
            self._soon(now)

    def _learn(self, beat: Beat) -> None:
        """Take what another sidecar tells of tries: all that it knows of the shards that its members own.

        Another sidecar tells of a shard that this one owns what its clients still held as the shard moved.
        """
        peer = self.peers.all.get(beat.sidecar)
        if beat.members is UNSET or (peer is not None and beat.number <= peer.number):
            return
        owners, members = self.decision.owners, peer.members if peer is not None else {}
        for shard in {*beat.attempts, *(name for name, owner in owners.items() if owner in members)}:
            if shard not in self.shards:
                continue
            if owners.get(shard) in self.local:
                self.attempts.merge(shard, beat.attempts.get(shard, {}))
            else:
                self.attempts.replace(shard, beat.attempts.get(shard, {}))

    def connected(self, queue: str, now: float, *, is_refused: bool = False) -> None:
        """Note that beats come by a new queue; with an empty name, that none come.

        With `is_refused` none will: this sidecar counts as deaf for so long that it looks after the shards at once.
        """
        self.queue, self._is_refused = queue, is_refused
        if queue:
            self._tell(now)
            return
        self.peers.disconnected()
        if is_refused:
            self._look_at = self._count_at = now

    def answered(self, question: Question, is_there: bool | None, now: float) -> None:
        """Take the broker's answer whether a sidecar's queue is there; None where it does not tell."""
        if self.peers.answered(question, is_there, now):
            self._soon(now)

    def counted(self, shard: str, consumers: int | None, now: float) -> None:
        """Take the number of a shard's consumers; None where the broker does not tell."""
        for member in self.local.values():
            member.counted(shard, consumers, now)
        if self._is_deaf(now):
            self._unconsumed = self._unconsumed - {shard} | ({shard} if consumers == 0 else set())
        self._soon(now)

    # Decisions and timers

    @property
    def due(self) -> float:
        """When `tick` is to be called at the latest, in monotonic seconds."""
        return float("-inf") if self.peers.farewells else min(self._decide_at, self._beat_at, self._look_at)

    @property
    def _beat_at(self) -> float:
        """When the next beat is due, in monotonic seconds."""
        return min(self._tell_at, self._beaten_at + self.peers.every)

    def tick(self, now: float) -> Tick:
        """Decide what is due, and return what is to be done."""
        questions, counted = self._look(now) if now >= self._look_at else ((), ())
        # The decision comes first, so that the beat tells of it.
        steps = self._decide(now) if now >= self._decide_at else ()
        return Tick(steps, self._next_beat(now), questions, counted)

    def _next_beat(self, now: float) -> Beat | None:
        """Return the beat that is due at `now`, monotonic; None if none is.

        A farewell for a sidecar that is gone comes first. A beat is full if there are news, if the last full one was
        lost, or if a full one is due.
        """
        if self.peers.farewells:
            # A beat that has not gone out yet is replaced by the next one, so this sidecar's own news come once more.
            self._tell_at = min(self._tell_at, now + SOON)
            return self.peers.farewells.pop()
        if now < self._beat_at:
            return None
        # A full beat that has not come back was lost, with its connection or as the next one replaced it.
        is_lost = self._full_sent > self._full_back
        is_full = is_lost or now >= min(self._tell_at, self._full_at)
        self._tell_at, self._beaten_at = _NEVER, now
        return self.beat(now, is_full=is_full)

    def _look(self, now: float) -> tuple[list[Question], list[str]]:
        """Look for sidecars that are gone or late; return the questions about late ones, and the shards to count."""
        self._look_at = now + LOOK_EVERY
        gone, questions = self.peers.expire(now)
        if gone:
            self._soon(now)
        counted: list[str] = []
        if self._is_deaf(now) and now >= self._count_at:
            self._count_at = now + COUNT_EVERY
            linked = {shard for member in self.local.values() for shard in member.links}
            linked |= {shard for _, shard in self._resting()}
            counted = [shard for shard in self.present if shard not in linked]
        return questions, list(dict.fromkeys([*counted, *self._ended(now)]))

    def _ended(self, now: float) -> list[str]:
        """Return the shards that members let go at a marker and whose consumers are to be counted now."""
        found = []
        for member in self.local.values():
            for shard, ending in member.endings.items():
                if not (ending.is_over or member.leaving) and now >= ending.until:
                    # The broker has until the next count to answer this one.
                    member.endings[shard] = ending._replace(until=now + COUNT_EVERY)
                    found.append(shard)
        return found

    def _decide(self, now: float) -> Sequence[Step]:
        """Decide anew who should have which shard, note what has changed, and return the steps of this sidecar."""
        # Pauses that are over, for example, are no event of their own, so there is a decision now and then.
        self._changes, self._decide_at, self._decided_at = None, now + BEAT, now
        members = self.members(now)
        shards, before = self.present, self.decision
        paused = shards if now < self._pauses_by else self.paused_shards
        # A shard to which a link may open soon is no orphan, and a paused shard is none as soon as its pause is over.
        told = [
            name
            for member in members.values()
            for name, link in member.links.items()
            if link.state != LinkState.OPENING or name not in member.refused
        ]
        for name in (*told, *paused):
            if name in self.shards:
                self.shards[name].told_at = now
        view = View(
            shards,
            members,
            self.local,
            self._lacking(shards),
            self.peers.hears(now),
            self._vacant(now),
            set(paused),
            self._resting(),
        )
        self.decision = decide(view)
        if self.decision.stances != before.stances:
            self._tell(now)
        moving = {move.shard for move in self.decision.moves}
        for name, shard in self.shards.items():
            owner = self.decision.owners.get(name, "")
            if owner != before.owners.get(name, ""):
                self.moves += owner in self.local
                shard.owner_since = now
            shard.moving_since = (shard.moving_since or now) if name in moving else 0.0
        return self.decision.steps

    def _resting(self) -> set[tuple[str, str]]:
        """Return by member the shards that it leaves alone, as they ended at a marker and may be consumed still."""
        return {
            (member.id, shard)
            for member in self.local.values()
            for shard, ending in member.endings.items()
            if not ending.is_over
        }

    def _lacking(self, shards: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return by member the shards that its sidecar's ring lacks, where that has told its shards."""
        every = frozenset(shards)
        found: dict[str, frozenset[str]] = {}
        for peer in self.peers.all.values():
            its = peer.beat.shards
            if peer.beat.ring != self._digest and its is not None and (lacks := every - its):
                found |= dict.fromkeys(peer.members, lacks)
        return found

    def _vacant(self, now: float) -> Collection[str]:
        """Return the shards that this sidecar should have consumed, whoever their targets are: see `View.vacant`."""
        if self.peers.hears(now):
            return [
                name for name, turn in self.peers.turns(self.shards) if turn < tries(now - self.shards[name].told_at)
            ]
        return self._unconsumed if self._is_deaf(now) else ()

    def _is_deaf(self, now: float) -> bool:
        """Return whether this sidecar has heard nobody for so long that it looks after the shards by itself."""
        return self._is_refused or now - max(self.peers.echo_at, self._started) > self.peers.every + COUNT_AFTER

    # Beats of this sidecar

    def beat(self, now: float, *, is_full: bool) -> Beat:
        """Return the next beat of this sidecar, numbered; a full one tells of its members, links and shards.

        A beat that is not full is only a sign of life. The shards are left out if all other sidecars know the same.
        """
        self._number += 1
        if not is_full:
            return Beat(self.sidecar, self._number)
        attempts = self.attempts.told(self.owned(is_first=False))
        size = self.peers.size + sum(1 + len(member.links) for member in self.local.values())
        full_every = min(max(size / TOLD_A_SECOND, self.peers.every), LONGEST_FULL)
        self._told_at, self._full_at, self._full_sent = now, now + full_every, self._number
        differs = any(peer.beat.ring != self._digest for peer in self.peers.all.values())
        shards = frozenset(self.present) if differs else None
        members = tuple(self._local_beats(now))
        return Beat(self.sidecar, self._number, self.host, self.queue, self._digest, shards, members, attempts)

    def last_beat(self, now: float) -> Beat:
        """Return the beat by which this sidecar leaves the group."""
        self.local = {}
        return self.beat(now, is_full=True)

    def members(self, now: float) -> dict[str, MemberBeat]:
        """Return the members of all sidecars as their beats tell of them, by id; own ones as the next beat would."""
        found = {name: told for peer in self.peers.all.values() for name, told in peer.members.items()}
        return found | {own.id: own for own in self._local_beats(now)}

    def _local_beats(self, now: float) -> Iterator[MemberBeat]:
        """Yield what the next beat tells of each member of this sidecar; decisions and reports go by it, too."""
        stances = self.decision.stances
        for member in self.local.values():
            links = {
                shard: LinkBeat(state, since, unacked, *stances.get((member.id, shard), _UNDECIDED))
                for shard, (state, since, unacked) in _told_links(member, now).items()
            }
            yield MemberBeat(
                member.id,
                cut(member.client),
                member.since,
                now < member.stalled_until,
                member.leaving,
                member.held_at_most,
                member.in_series,
                frozenset(self._refused(member, now)),
                links,
            )

    def _refused(self, member: Member, now: float) -> Iterable[str]:
        """Yield the shards that a member may not have now.

        The broker refuses its link, or does not answer, or brings nothing, and another member may have the shard.
        """
        for shard, pause in member.pauses.items():
            if now < pause.until:
                yield shard
        for link in member.links.values():
            if link.state == LinkState.OPENING and now - link.changed_at > OPENED_WITHIN:
                yield link.shard
        for shard, until in member.starved.items():
            if now < until and self._may_go_elsewhere(member, shard, now):
                yield shard

    def _may_go_elsewhere(self, member: Member, shard: str, now: float) -> bool:
        """Return whether a fit member beside this one may have a shard."""
        lacking = self._lacking(self.present)
        return any(
            told.is_fit and shard not in told.refused and shard not in lacking.get(told.id, ())
            for each in self.peers.all.values()
            for told in each.members.values()
        ) or any(
            now >= max(other.stalled_until, other.starved.get(shard, 0.0))
            and not (shard in other.pauses and now < other.pauses[shard].until)
            for other in self.local.values()
            if other is not member and not other.leaving
        )

    # Times of the next beat and decision

    def _tell(self, now: float) -> None:
        """Have a full beat sent in a moment, or in a large fleet a while after the last one."""
        self._tell_at = min(self._tell_at, max(now + SOON, self._told_at + between_news(1 + len(self.peers.all))))

    def _soon(self, now: float) -> None:
        """Have a decision made at once, or in a large group a while after the last one, unless it waits for a calm."""
        if self._changes is None:
            size = len(self.shards) + len(self.local) + sum(len(peer.members) for peer in self.peers.all.values())
            self._decide_at = min(self._decide_at, max(now, self._decided_at + size / DECIDED_A_SECOND))

    def _calm(self, now: float) -> None:
        """Have a decision made once no further member comes or goes for a moment."""
        first = self._changes if self._changes is not None else now
        self._changes, self._decide_at = first, min(now + CALM, first + LONGEST_CALM)

    # Values for reports and metrics

    @property
    def is_first(self) -> bool:
        """Whether this sidecar is the one that looks after the shards that nobody owns."""
        return all(self.sidecar < other for other in self.peers.all)

    def owned(self, *, is_first: bool) -> list[str]:
        """Return the shards that members of this sidecar own; with `is_first` also those that nobody owns."""
        owners = self.decision.owners
        return [name for name in self.present if (owners[name] in self.local if name in owners else is_first)]

    @property
    def prefetches(self) -> set[int]:
        """The prefetches of all members that have not left; a member without acks has 0."""
        own = {member.held_at_most for member in self.local.values() if not member.leaving}
        told = [each for peer in self.peers.all.values() for each in peer.members.values()]
        return own | {each.prefetch for each in told if not each.is_leaving}

    @property
    def in_series(self) -> set[bool]:
        """Whether members consume in series, of all that have not left: both where some do, and others do not."""
        own = {member.in_series for member in self.local.values() if not member.leaving}
        told = [each for peer in self.peers.all.values() for each in peer.members.values()]
        return own | {each.in_series for each in told if not each.is_leaving}
