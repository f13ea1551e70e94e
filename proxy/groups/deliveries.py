"""Deliveries: when each shard of one group last brought a message, and to whom, as far as this sidecar knows. No I/O.

All times are in monotonic seconds of this machine.
"""

from collections.abc import Collection, Mapping

from proxy.groups.member import Member


class Deliveries:
    """The last deliveries of one group; it lives as long as the sidecar has members of the group."""

    def __init__(self) -> None:
        """Begin without any delivery."""
        self._of_others: dict[str, dict[str, float]] = {}
        self.ordinary: dict[str, float] = {}
        """When any member, also one that is gone, last got a delivery of each shard by a link that is no probe. Other
        modules only read it.

        A probe's message may be one that was taken back from a consumer which still holds others.
        """

    def heard(self, member: str, shard: str, at: float, *, is_probe: bool) -> None:
        """Note what a beat tells: when another sidecar's member last got a delivery of a shard, and by which link."""
        self._of_others.setdefault(member, {})[shard] = at
        if not is_probe:
            self._add(shard, at)

    def note_own(self, member: Member, shards: Collection[str]) -> None:
        """Note when a member of this sidecar last got deliveries, by the links to these shards that it has."""
        for link in (*member.links.values(), *member.leaving):
            if link.delivered_at and not link.is_probe and link.shard in shards:
                self._add(link.shard, link.delivered_at)

    def _add(self, shard: str, at: float) -> None:
        self.ordinary[shard] = max(at, self.ordinary.get(shard, 0.0))

    def of_other(self, member: str) -> Mapping[str, float]:
        """Return when another sidecar's member last got deliveries, by shard."""
        return self._of_others.get(member, {})

    def last_of_others(self, shard: str, besides: str) -> float:
        """Return when another sidecar's member, `besides` one, last got a delivery of a shard; 0 if none has."""
        return max(
            (at[shard] for member, at in self._of_others.items() if shard in at and member != besides), default=0.0
        )

    def forget(self, member: str) -> None:
        """Forget to whom another sidecar's member that is gone was delivered; what it got still counts as ordinary."""
        self._of_others.pop(member, None)

    def follow(self, shards: Collection[str]) -> None:
        """Forget the ordinary deliveries of all other shards than these, which may be taken for the group's."""
        self.ordinary = {shard: at for shard, at in self.ordinary.items() if shard in shards}
