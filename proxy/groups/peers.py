"""The other sidecars that have members of one group, known by their beats, and which of them are still there. No I/O.

All times are in monotonic seconds of this machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from proxy.groups.beats import Beat, LinkBeat, MemberBeat
from proxy.groups.timing import ASK_AGAIN, DEAF, GONE, LATE

OTHER_VERSION: Final = 60.0
"""Seconds after a beat of another version for which its sender counts as there."""

MOST_PEERS: Final = 1_000
"""The most other sidecars that are known of one group."""

MOST_TOLD: Final = 50_000
"""The most members, links, refusals and shards of all other sidecars together that are known.

Whoever may send beats can make up any. They take some 30 MB. A beat that would bring more is ignored.
"""


class Answer(Enum):
    """The broker's answer to the question whether a sidecar's queue is there."""

    THERE = 1
    ABSENT = 2
    UNKNOWN = 3
    """There was no answer in time, or none that tells."""


class News(Enum):
    """How much a beat changes of what is known."""

    NOTHING = 0
    """The beat tells what was known, but for counts that decide nothing."""
    LINKS = 1
    """Links have changed, or a ring has."""
    MEMBERS = 2
    """Members came, left, stalled or recovered."""


class Heard(NamedTuple):
    """What came of one beat."""

    news: News = News.NOTHING
    is_new: bool = False
    """Whether the sender was not known, or has a new queue, and so waits for a full beat of this sidecar."""


@dataclass
class Peer:
    """Another sidecar that has members of the group."""

    number: int
    """The number of its last beat."""
    heard_at: float
    """When its last beat came."""
    host: str = ""
    queue: str = ""
    """The name of its exclusive queue."""
    ring: str = ""
    """The digest of its ring."""
    shards: frozenset[str] | None = None
    """The shards of its ring, as far as it has told them."""
    members: dict[str, MemberBeat] = field(default_factory=dict)
    size: int = 0
    """The size of its last full beat, as `Beat.size` has it."""
    asked_at: float = 0.0
    """When the broker was last asked for its queue; 0 for never since its last beat."""
    absent_at: float = 0.0
    """When the broker first answered that the queue is not there, since the last beat; 0 for never."""


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
        self._size = 0
        self._others: dict[str, float] = {}

    def hears(self, now: float) -> bool:
        """Return whether this sidecar gets its own beats back, and so those of others."""
        return now - self.echo_at <= DEAF

    def disconnected(self) -> None:
        """Note that the connection is lost: no sidecar is heard until a beat of this one comes back again."""
        self.echo_at = float("-inf")

    def echoed(self, now: float) -> bool:
        """Note that a beat of this sidecar has come back; return whether it hears again.

        The others then have time to beat again before they count as late.
        """
        hears_again = not self.hears(now)
        self.echo_at = now
        if hears_again:
            for peer in self.all.values():
                peer.heard_at, peer.asked_at, peer.absent_at = now, 0.0, 0.0
        return hears_again

    def heard(self, beat: Beat, taken: Mapping[str, object], now: float) -> Heard:
        """Take another sidecar's beat. A member whose id is in `taken`, or that another sidecar has, is ignored."""
        peer = self.all.get(beat.sidecar)
        if peer is None:
            # Without a full beat nothing is known of it, and with one that tells of no member it has left.
            if not beat.members or len(self.all) >= MOST_PEERS or self._size + beat.size > MOST_TOLD:
                return Heard()
            peer = self.all[beat.sidecar] = Peer(beat.number - 1, now)
        elif beat.number <= peer.number:
            return Heard()
        self.lost += beat.number - peer.number - 1
        peer.number, peer.heard_at, peer.asked_at, peer.absent_at = beat.number, now, 0.0, 0.0
        if beat.members is None or self._size - peer.size + beat.size > MOST_TOLD:
            return Heard()
        return self._full(beat, beat.members, peer, taken)

    def _full(self, beat: Beat, members: tuple[MemberBeat, ...], peer: Peer, taken: Mapping[str, object]) -> Heard:
        others = {each for other in self.all.values() if other is not peer for each in other.members}
        told = {each.id: each for each in members if each.id not in taken and each.id not in others}
        is_new = peer.queue != beat.queue
        news = _news(peer.members, told)
        if news is News.NOTHING and (peer.ring, peer.shards) != (beat.ring, beat.shards):
            news = News.LINKS
        self._size += beat.size - peer.size
        peer.host, peer.queue, peer.ring, peer.size = beat.host, beat.queue, beat.ring, beat.size
        peer.members, peer.shards = told, beat.shards
        if not members:
            self.remove(beat.sidecar)
        return Heard(news, is_new)

    def remove(self, sidecar: str) -> bool:
        """Forget a sidecar that has left or is gone; return whether it was known."""
        peer = self.all.pop(sidecar, None)
        if peer is not None:
            self._size -= peer.size
        return peer is not None

    # Which of them are gone.

    def expire(self, now: float) -> tuple[list[str], list[str]]:
        """Return the sidecars that are gone, and those whose queue the broker is to be asked for, which are late.

        None of either while this sidecar hears nobody.
        """
        if not self.hears(now):
            return [], []
        gone = [sidecar for sidecar, peer in self.all.items() if now - peer.heard_at > GONE]
        late = [
            sidecar
            for sidecar, peer in self.all.items()
            if LATE < now - peer.heard_at <= GONE and now - peer.asked_at >= ASK_AGAIN and peer.queue
        ]
        for sidecar in late:
            self.all[sidecar].asked_at = now
        return gone, late

    def answered(self, sidecar: str, queue: str, answer: Answer, now: float) -> bool:
        """Take the broker's answer about a sidecar's queue; return whether the sidecar is gone.

        One that has beaten since, or has another queue now, is there.
        """
        peer = self.all.get(sidecar)
        if peer is None or not peer.asked_at or peer.queue != queue or answer is Answer.UNKNOWN:
            return False
        if answer is Answer.THERE:
            peer.absent_at = 0.0
            return False
        is_gone = bool(peer.absent_at) and now - peer.absent_at >= ASK_AGAIN / 2
        peer.absent_at = peer.absent_at or now
        return is_gone

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
    """Return how much of what decides has changed between two beats of one sidecar."""
    if {(each.id, each.is_fit) for each in before.values()} != {(each.id, each.is_fit) for each in after.values()}:
        return News.MEMBERS
    for member_id, member in after.items():
        was = before[member_id]
        if member.refused != was.refused or _deciding(member.links) != _deciding(was.links):
            return News.LINKS
    return News.NOTHING


def _deciding(links: Mapping[str, LinkBeat]) -> dict[str, LinkBeat]:
    """Return links without the counts of what their clients hold, which decide nothing."""
    return {shard: link._replace(unacked=0) for shard, link in links.items()}
