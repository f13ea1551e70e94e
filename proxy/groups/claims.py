"""Claims: which member of a group means to be the active consumer of each shard, and since which epoch."""

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

MAX_EPOCH: Final = 1 << 34
"""The highest epoch of a claim, so that a priority computed from an epoch fits into a signed integer of 64 bits.

No group gets there: epochs begin at the time, in seconds since 1970, and no beat that is far ahead of that is taken.
"""

MOST_KNOWN: Final = 20_000
"""The most shards of which an epoch is remembered though they are not in the ring: whoever may send beats can name any.
"""

_TIE_BITS: Final = 16

_FAR: Final = 1 << 34
"""A time that no clock shows, in seconds since 1970. Until then the priorities of those who join later fall towards 0.
"""

LEVELS: Final = 4096
"""How many priorities there are for each claim, and for each second in which consumers without one are subscribed.

That of the claim itself is in the middle. Those below it are for members that wait, and for those that the shard is
handed on to. No other claim uses them.
"""


class Claim(NamedTuple):
    """One member's claim to one shard."""

    epoch: int
    """The number of this change of the shard's holder; a higher one wins."""
    member: str
    """The id of the member."""
    since: float
    """When this sidecar first saw the claim, in monotonic seconds."""


@lru_cache(4096)
def _tie(member: str) -> int:
    """Return a number for a member. Of two members that claim one shard in the same epoch, the higher number wins."""
    return int.from_bytes(hashlib.blake2b(member.encode(), digest_size=4).digest()) >> (32 - _TIE_BITS)


def priority(epoch: int, member: str) -> int:
    """Return the x-priority of a member's consumer for a claim, so that the broker prefers whom the claims prefer.

    The next higher one is for the link that comes in the place of the claim's probe.
    """
    return (epoch << _TIE_BITS | _tie(member)) * LEVELS + LEVELS // 2


def lowest(now: float) -> int:
    """Return the x-priority of a consumer that is subscribed at the time `now`, in seconds since 1970, without a claim.

    It is below that of each claim, and below that of each consumer that was subscribed earlier: so whoever joins waits,
    and those who joined earlier may hand a shard on among themselves.
    """
    return (_FAR - int(now)) * LEVELS + LEVELS // 2


def _rank(claim: Claim) -> tuple[int, str]:
    return priority(claim.epoch, claim.member), claim.member


class Claims:
    """All claims to the shards of one group that this sidecar knows of."""

    def __init__(self) -> None:
        """Begin without any claim."""
        self._by_shard: dict[str, dict[str, Claim]] = {}
        self.winners: dict[str, Claim] = {}
        """The claim that wins, for each shard that any member claims. Other modules only read it."""
        self._epochs: dict[str, int] = {}
        self._vacant: dict[str, float] = {}
        self._given_up: set[str] = set()

    @property
    def holders(self) -> dict[str, str]:
        """The member that holds each shard that is claimed."""
        return {shard: claim.member for shard, claim in self.winners.items()}

    def holder(self, shard: str) -> Claim | None:
        """Return the claim that wins; None if nobody claims the shard."""
        return self.winners.get(shard)

    def epoch(self, shard: str) -> int:
        """Return the highest epoch of a shard that this sidecar has heard of; 0 for none."""
        return self._epochs.get(shard, 0)

    def vacant_since(self, shard: str) -> float:
        """Return since when nobody has held a shard, in monotonic seconds.

        That is when its last holder was last seen, or when the shard was first seen if it had no holder yet.
        """
        return self._vacant.get(shard, 0.0)

    def is_given_up(self, shard: str) -> bool:
        """Return whether the last holder of a shard that nobody holds has left in good order, or given it up.

        If it is not, its node of RabbitMQ may be lost, for which RabbitMQ 4.3 waits.
        """
        return shard in self._given_up

    def left_at(self, shard: str) -> float:
        """Return until when a shard that nobody holds may have had a holder, in monotonic seconds; 0 if none is known.

        A delivery after that time went to a member that RabbitMQ has chosen by itself. Members that join open their
        links before their sidecar decides, so the first delivery of a new group may precede `vacant_since`.
        """
        return self.vacant_since(shard) if self.epoch(shard) else 0.0

    def may_learn(self, shard: str) -> bool:
        """Return whether an epoch of this shard is known already, or there is room for one more."""
        return shard in self._epochs or len(self._epochs) < MOST_KNOWN

    def learn(self, shard: str, epoch: int) -> None:
        """Note that a shard has had this epoch, so that the next claim to it takes a higher one."""
        self._epochs[shard] = max(epoch, self._epochs.get(shard, 0))

    def add(self, shard: str, epoch: int, member: str, now: float) -> None:
        """Add a member's claim to a shard, in place of its former one."""
        claims = self._by_shard.setdefault(shard, {})
        if member not in claims or claims[member].epoch != epoch:
            claims[member] = Claim(epoch, member, now)
            self.winners[shard] = max(claims.values(), key=_rank)
            self._given_up.discard(shard)
        self.learn(shard, epoch)

    def replace(self, member: str, epochs: Mapping[str, int], now: float) -> None:
        """Put these claims, an epoch by shard, in place of all former claims of a member, which is there."""
        for shard in [shard for shard, claims in self._by_shard.items() if member in claims and shard not in epochs]:
            self.drop(shard, member, now, in_good_order=True)
        for shard, epoch in epochs.items():
            self.add(shard, epoch, member, now)

    def withdraw(self, members: Collection[str], now: float) -> None:
        """Take back the claims of these members that others have overtaken: they do not come back by themselves."""
        for shard, claims in list(self._by_shard.items()):
            for member in [member for member in claims if member in members and self.winners[shard].member != member]:
                self.drop(shard, member, now)

    def forget(self, member: str, seen: float, *, in_good_order: bool = False) -> None:
        """Drop all claims of a member that has left; `seen` is when it was last known to be there.

        `in_good_order` says that it has left by itself, so that its consumers end at once.
        """
        for shard in [shard for shard, claims in self._by_shard.items() if member in claims]:
            self.drop(shard, member, seen, in_good_order=in_good_order)

    def drop(self, shard: str, member: str, seen: float, *, in_good_order: bool = False) -> None:
        """Take a member's claim to a shard back; `seen` is when the member was last known to be there.

        `in_good_order` says that it has given the shard up by itself.
        """
        claims = self._by_shard.get(shard)
        if claims is None or member not in claims:
            return
        if self.winners[shard] == claims.pop(member):
            self._vacant[shard] = seen
            self._given_up.discard(shard)
            if in_good_order and not claims:
                self._given_up.add(shard)
        if claims:
            self.winners[shard] = max(claims.values(), key=_rank)
        else:
            del self._by_shard[shard], self.winners[shard]

    def follow(self, shards: Collection[str], now: float) -> None:
        """Set the group's shards, and forget since when others are vacant that no member claims.

        Their epochs are forgotten only for want of room, since a queue may be bound again.
        """
        for shard in shards:
            self._vacant.setdefault(shard, now)
        kept = {*shards, *self._by_shard}
        for shard in self._vacant.keys() - kept:
            del self._vacant[shard]
        self._given_up &= kept
        if len(self._epochs) >= MOST_KNOWN:
            self._epochs = {shard: epoch for shard, epoch in self._epochs.items() if shard in kept}
