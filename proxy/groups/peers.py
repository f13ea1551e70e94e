"""The other sidecars that have members of one group, known by their beats, and which of them are still there. No I/O.

All times are in monotonic seconds of this machine.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import UNSET

from proxy.groups.beats import Beat, MemberBeat
from proxy.groups.timing import ASK_AGAIN, BEAT, BEATS_UNTIL_GONE, DEAF, LATE, between_beats

OTHER_VERSION: Final = 60.0
"""Seconds after a beat of another version for which its sender counts as there."""

WATCHED: Final = 2
"""How many other sidecars each one watches, and so how many watch each."""

MOST_PEERS: Final = 1_000
"""The most other sidecars that are known of one group."""

MOST_TOLD: Final = 50_000
"""The most members, links, refusals and shards of all other sidecars together that are known.

A sender of beats can make up any number. They take some 30 MB. A beat that would bring more is ignored.
"""


class News(Enum):
    """How much a beat changes of what is known."""

    NOTHING = 0
    """The beat tells what was known, but for counts that decide nothing."""
    LINKS = 1
    """Links have changed, or a ring has."""
    MEMBERS = 2
    """Members came, left, stalled or recovered."""


class Heard(NamedTuple):
    """The news that one beat has brought."""

    news: News = News.NOTHING
    is_new: bool = False
    """Whether the sender was not known, or has a new queue, and so waits for a full beat of this sidecar."""


class Question(NamedTuple):
    """A question for the broker: whether the queue of a sidecar is there."""

    sidecar: str
    queue: str


@dataclass
class Peer:
    """Another sidecar that has members of the group."""

    beat: Beat
    """Its last full beat."""
    number: int
    """The number of its last beat."""
    heard_at: float
    """When its last beat came."""
    members: Mapping[str, MemberBeat]
    """The members that it told of, by id, but for those that another sidecar had already."""
    every: float
    """The seconds until its next beat, by the size of the fleet when the last one came."""
    asked_at: float = 0.0
    """When the broker was last asked for its queue; 0 for never since its last beat."""
    there_at: float = 0.0
    """When the broker last answered that the queue is there; 0 for never."""
    absent_at: float = 0.0
    """When the broker first answered that the queue is not there, since the last beat; 0 for never."""

    def is_heard(self, now: float, every: float) -> None:
        """Note a sign of life; the next one is due in so many seconds."""
        self.heard_at, self.every, self.asked_at, self.absent_at = now, every, 0.0, 0.0

    def is_late(self, every: float, now: float) -> bool:
        """Return whether the broker is to be asked for it, if a sign of life is due every so many seconds."""
        sign = max(self.heard_at, self.there_at)
        return now - sign > LATE / BEAT * every and now - self.asked_at >= ASK_AGAIN and bool(self.beat.queue)


class Peers:
    """The other sidecars of one group."""

    def __init__(self, own: str) -> None:
        """Take the id of this process."""
        self._own = own
        self.all: dict[str, Peer] = {}
        """The other sidecars, by id."""
        self.lost = 0
        """How many beats of other sidecars were lost, by the gaps in their numbers."""
        self.echo_at = float("-inf")
        """When a beat of this sidecar last came back."""
        self._echo_every = BEAT
        """The seconds until the next one, by the size of the fleet at that time."""
        self.size = 0
        """How many members, links, refusals and shards their last full beats tell of."""
        self.farewells: list[Beat] = []
        """The last beats of sidecars that are gone and that this one watched, to be sent in their place."""
        self._others: dict[str, float] = {}

    @property
    def every(self) -> float:
        """The seconds from one sign of life of a sidecar to the next, as far as this one knows the fleet."""
        return between_beats(1 + len(self.all))

    def hears(self, now: float) -> bool:
        """Return whether this sidecar gets its own beats back, and so those of others."""
        return now - self.echo_at <= max(self._echo_every, self.every) + DEAF

    def disconnected(self) -> None:
        """Note that the connection is lost: no sidecar is heard until a beat of this one comes back again."""
        self.echo_at = float("-inf")

    def echoed(self, now: float) -> bool:
        """Note that a beat of this sidecar has come back; return whether it hears again.

        The others then have time to beat again before they count as late.
        """
        hears_again = not self.hears(now)
        self.echo_at, self._echo_every = now, self.every
        if hears_again:
            for peer in self.all.values():
                peer.is_heard(now, self.every)
        return hears_again

    def heard(self, beat: Beat, taken: Mapping[str, object], now: float) -> Heard:
        """Take another sidecar's beat, and return its news. A beat that is late, or of too many, brings none.

        A member whose id is in `taken`, or that another sidecar has, is ignored.
        """
        peer = self.all.get(beat.sidecar)
        if peer is None:
            # Without a full beat nothing is known of it, and with one that tells of no member it has left.
            if not beat.told or len(self.all) >= MOST_PEERS or self.size + beat.size > MOST_TOLD:
                return Heard()
            peer = self.all[beat.sidecar] = Peer(Beat(beat.sidecar, 0), beat.number - 1, now, {}, self.every)
        elif beat.number <= peer.number:
            return Heard()
        self.lost += beat.number - peer.number - 1
        peer.number = beat.number
        peer.is_heard(now, self.every)
        size = self.size - peer.beat.size + beat.size
        if beat.members is UNSET or size > MOST_TOLD:
            return Heard()
        others = [other.members for other in self.all.values() if other is not peer]
        told = {
            each.id: each
            for each in beat.told
            if each.id not in taken and not any(each.id in members for members in others)
        }
        news = _news(peer.members, told)
        if news is News.NOTHING and (peer.beat.ring, peer.beat.shards) != (beat.ring, beat.shards):
            news = News.LINKS
        # A farewell needs no answer, though it has no queue.
        is_new = bool(beat.told) and peer.beat.queue != beat.queue
        self.size, peer.beat, peer.members = size, beat, told
        if not beat.told:
            self.remove(beat.sidecar)
        return Heard(news, is_new)

    def remove(self, sidecar: str) -> None:
        """Forget a sidecar that has left or is gone."""
        if (peer := self.all.pop(sidecar, None)) is not None:
            self.size -= peer.beat.size

    # Which of them are gone.

    @property
    def watched(self) -> set[str]:
        """The sidecars that this one watches: those before it in the order of ids, which is a circle.

        Each sidecar is so watched by the next two, who tell the others once it is gone. Any other asks for it only if
        its beat is late, which in a small fleet is as early.
        """
        circle = sorted([*self.all, self._own])
        at = circle.index(self._own)
        return {circle[(at - back) % len(circle)] for back in range(1, 1 + WATCHED)} - {self._own}

    def turns(self, shards: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Yield each shard with the number of sidecars whose turn to open a link comes before this one's."""
        circle = sorted([*self.all, self._own])
        at = circle.index(self._own)
        for shard in shards:
            yield shard, (at - crc32(shard.encode())) % len(circle)

    def expire(self, now: float) -> tuple[list[str], list[Question]]:
        """Forget the sidecars that are gone; return them, and the questions for the queues of those that are late.

        None of either while this sidecar hears nobody.
        """
        if not self.hears(now):
            return [], []
        every = self.every
        gone = [
            sidecar
            for sidecar, peer in self.all.items()
            if now - peer.heard_at > BEATS_UNTIL_GONE * max(peer.every, every)
        ]
        for sidecar in gone:
            self.remove(sidecar)
        watched = self.watched
        late: list[Question] = []
        for sidecar, peer in self.all.items():
            if peer.is_late(BEAT if sidecar in watched else max(peer.every, every), now):
                peer.asked_at = now
                late.append(Question(sidecar, peer.beat.queue))
        return gone, late

    def answered(self, question: Question, is_there: bool | None, now: float) -> bool:
        """Take the broker's answer about a sidecar's queue; forget the sidecar and return True if it is gone.

        `is_there` is None where the broker does not tell. A sidecar that has beaten since, or has another queue now, is
        there.
        """
        peer = self.all.get(question.sidecar)
        if peer is None or not peer.asked_at or peer.beat.queue != question.queue or is_there is None:
            return False
        if is_there:
            peer.there_at, peer.absent_at = now, 0.0
            return False
        if not peer.absent_at:
            peer.absent_at = now
        elif now - peer.absent_at >= ASK_AGAIN / 2:
            if question.sidecar in self.watched:
                self.farewells.append(Beat(question.sidecar, peer.number + 1, members=()))
            self.remove(question.sidecar)
            return True
        return False

    # Sidecars of other releases.

    def heard_other_version(self, sidecar: str, now: float) -> None:
        """Note a beat of a sidecar of another release: this one does not know which members that one has."""
        self._others = {other: at for other, at in self._others.items() if now - at <= OTHER_VERSION}
        if sidecar in self._others or len(self._others) < MOST_PEERS:
            self._others[sidecar] = now

    def other_versions(self, now: float) -> int:
        """Return how many sidecars of other releases have lately sent beats."""
        return sum(now - at <= OTHER_VERSION for at in self._others.values())


def _news(before: Mapping[str, MemberBeat], after: Mapping[str, MemberBeat]) -> News:
    """Return what has changed among one sidecar's members from one beat to the next.

    MEMBERS if members came, went, stalled or recovered; LINKS if only links or refusals changed; NOTHING if nothing
    did that decides who has which shard.
    """
    if before == after:
        return News.NOTHING
    if {(each.id, each.is_fit) for each in before.values()} != {(each.id, each.is_fit) for each in after.values()}:
        return News.MEMBERS
    return News.LINKS if any(_deciding(before[each]) != _deciding(after[each]) for each in after) else News.NOTHING


def _deciding(member: MemberBeat) -> object:
    """Return what decides of a member's refusals and links: all but the counts of what its client holds."""
    links = {shard: (link.state, link.since, link.wants, link.behind) for shard, link in member.links.items()}
    return member.refused, links
