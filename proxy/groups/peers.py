"""The other sidecars that have members of one group, known by their beats, and which of them still send beats."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from proxy.groups.beat import Beat, MemberBeat

SILENT_BEATS: Final = 4
"""The number of beats after which a silent sidecar is gone."""

ECHO_BEATS: Final = 2
"""The number of beats after which a sidecar that has not got its own beats back hears nobody. It is less than
`SILENT_BEATS`, so that where no beats come through, each sidecar notices that before it takes others for gone."""

OTHER_VERSION: Final = 60.0
"""Seconds after a beat of another version for which its sender counts as there: as long as the longest pause between
beats."""

READY: Final = 1.0
"""Seconds that a sidecar, once it gets its own beats, waits for those of the others before it claims anything."""

MOST_PEERS: Final = 1_000
"""The most other sidecars that are known of one group."""

MOST_TOLD: Final = 50_000
"""The most members and links of all other sidecars together that are known: whoever may send beats can make up any.

They take some 30 MB. A beat that would bring more is ignored.
"""


@dataclass
class Peer:
    """Another sidecar that has members of the group."""

    host: str
    number: int
    """The number of its last beat."""
    every: float
    """Seconds between its beats."""
    heard_at: float
    """When its last beat came, in monotonic seconds."""
    members: dict[str, MemberBeat] = field(default_factory=dict)
    size: int = 0
    """How many members and links its last beat told of."""


class Heard(NamedTuple):
    """The news that one beat brought."""

    members: tuple[MemberBeat, ...] = ()
    """The members that its sender has."""
    gone: frozenset[str] = frozenset()
    """The ids of the members that its sender no longer has."""
    is_news: bool = False
    """Whether members came, left, ended, stalled or recovered."""
    is_new: bool = False
    """Whether the sender was not known, and waits to hear from this sidecar."""


class Peers:
    """The other sidecars of one group."""

    def __init__(self, own: str) -> None:
        """Take the id of this process."""
        self._own = own
        self.all: dict[str, Peer] = {}
        """The other sidecars, by id."""
        self.lost = 0
        """How many beats of other sidecars were lost, by the gaps in their numbers."""
        self._size = 0
        self._others: dict[str, float] = {}
        self._hears_since = self._echo_at = float("-inf")

    @property
    def members(self) -> dict[str, tuple[Peer, MemberBeat]]:
        """The members of all other sidecars, by id."""
        return {member.id: (peer, member) for peer in self.all.values() for member in peer.members.values()}

    def heard_other_version(self, sidecar: str, now: float) -> None:
        """Note a beat of a sidecar of another release: this one does not know which members that one has."""
        self._others = {other: at for other, at in self._others.items() if now - at <= OTHER_VERSION}
        if sidecar in self._others or len(self._others) < MOST_PEERS:
            self._others[sidecar] = now

    def other_versions(self, now: float) -> int:
        """Return how many sidecars of other releases have lately sent beats."""
        return sum(now - at <= OTHER_VERSION for at in self._others.values())

    def disconnected(self) -> None:
        """Note that the connection is lost: no sidecar is heard until a beat of this one comes back again."""
        self._echo_at = float("-inf")

    def hears(self, now: float, every: float) -> bool:
        """Return whether this sidecar gets its own beats back, sent every `every` seconds, and so those of others.

        If it does not, as while the broker takes no messages, nobody counts as gone.
        """
        return now - self._hears_since >= READY and now - self._echo_at <= ECHO_BEATS * every

    def heard(self, beat: Beat, own_members: Collection[str], every: float, now: float) -> Heard:
        """Take a beat of any sidecar, this one included. A member that another sidecar already has is ignored."""
        if beat.sidecar == self._own:
            if now - self._echo_at > ECHO_BEATS * every:
                self._hear_again(now)
            self._echo_at = now
            return Heard()
        peer = self.all.get(beat.sidecar)
        is_new = peer is None
        if peer is None:
            if beat.is_last or len(self.all) >= MOST_PEERS or self._size + beat.size > MOST_TOLD:
                return Heard()
            peer = self.all[beat.sidecar] = Peer(beat.host, beat.number - 1, beat.every, now)
        if beat.number <= peer.number or self._size - peer.size + beat.size > MOST_TOLD:
            return Heard()
        self.lost += beat.number - peer.number - 1
        taken = {*own_members, *(self.members.keys() - peer.members.keys())}
        members = {member.id: member for member in beat.members if member.id not in taken}
        before, peer.members = peer.members, members
        peer.number, peer.every, peer.heard_at = beat.number, beat.every, now
        self._size += beat.size - peer.size
        peer.size = beat.size
        if beat.is_last:
            self._remove(beat.sidecar)
        gone = before.keys() | members.keys() if beat.is_last else before.keys() - members.keys()
        is_news = _states(before) != _states(members)
        return Heard(tuple(members.values()), frozenset(gone), is_news, is_new)

    def expire(self, now: float, every: float) -> list[Peer]:
        """Remove and return the sidecars that have been silent for SILENT_BEATS; none while nobody can be heard."""
        if not self.hears(now, every):
            return []
        most = {sidecar: SILENT_BEATS * max(peer.every, every) for sidecar, peer in self.all.items()}
        silent = [sidecar for sidecar, peer in self.all.items() if now - peer.heard_at > most[sidecar]]
        return [self._remove(sidecar) for sidecar in silent]

    def _remove(self, sidecar: str) -> Peer:
        peer = self.all.pop(sidecar)
        self._size -= peer.size
        return peer

    def _hear_again(self, now: float) -> None:
        """Give all other sidecars time to beat again, after a time in which this one did not get even its own beats."""
        self._hears_since = now
        for peer in self.all.values():
            peer.heard_at = now


def _states(members: Mapping[str, MemberBeat]) -> set[tuple[str, bool, bool]]:
    """Return what decides which shards members should have: who they are, and which have stalled or left."""
    return {(member.id, member.is_stalled, member.is_leaving) for member in members.values()}
