"""What one sidecar knows of a group at one time, as its decisions read it. No I/O."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from proxy.groups.claims import LEVELS, Claim, Claims, priority

WAITING_FROM: Final = 64
"""How much lower than the holder's the priority of links that wait may get, as shards are handed on, until they follow.
"""

SILENCE: Final = 2.0
"""The least seconds between a claim that brings nothing and a sight of unacked messages that nobody is known to hold.
"""


class LinkView(NamedTuple):
    """One member's link to one shard, as this sidecar knows it."""

    delivered_at: float = 0.0
    """When the member last got a delivery of the shard, in monotonic seconds; 0 for never."""
    unacked: int = 0
    is_open: bool = True
    """Whether the broker has confirmed the link's consumer."""
    priority: int = 0
    """The x-priority of the link. For another sidecar's member it is 0 unless it holds the shard, or is to hold it."""
    is_probe: bool = False
    hands_over: bool = False
    """Whether the member holds the shard and gives it up."""


@dataclass(frozen=True)
class MemberView:
    """One member of a group, as this sidecar knows it."""

    is_local: bool
    """Whether the member's client is connected to this sidecar."""
    links: Mapping[str, LinkView]
    """The member's links by shard; for another sidecar's member only the links that its beats name."""
    is_stalled: bool = False
    """Whether the member has lately lost a shard since its client did not ack; while others live, it gets none."""
    no_ack: bool = False
    """Whether the member consumes without acks. Then it can have no probe."""


@dataclass(frozen=True)
class View:
    """What one sidecar knows of a group at one time."""

    members: Mapping[str, MemberView]
    """All living members, by id."""
    shards: Sequence[str]
    """The shards to assign, the same in all sidecars: those of the ring, and all others that members claim."""
    claims: Claims
    leaving: Mapping[str, MemberView] = field(default_factory=dict)
    """The members that have left and whose clients still hold messages, by id, with the links of these messages."""
    hears: bool = True
    """Whether this sidecar hears the other sidecars of the group, and so knows all members. If it does not, it claims
    nothing, since it could take shards from members that it does not know of."""
    movable: Set[str] = frozenset()
    """The shards that were read, and that a higher x-priority moves to another member."""
    unmovable: Mapping[str, str] = field(default_factory=dict)
    """The shards that a higher x-priority does not move to another member, each with the reason."""
    not_before: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By member id and shard, when the member may subscribe again after its link has ended, in monotonic seconds."""
    wedged: Set[str] = frozenset()
    """The shards that have ready messages, nothing unacked, and nobody to whom RabbitMQ delivers."""
    foreign: Set[str] = frozenset()
    """The shards that this sidecar has never seen in the ring, so that none of its members may consume them."""
    not_raised_before: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By member id and shard whose last raise had no effect, when the member may raise it again, in monotonic seconds.
    """
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By member and shard, why the broker refuses the link."""
    lost_after: Mapping[str, float] = field(default_factory=dict)
    """The seconds for which RabbitMQ waits for a shard's consumer if its node is lost; 0 where it does not wait."""
    kept_at: Mapping[str, float] = field(default_factory=dict)
    """The shards of which RabbitMQ may keep a consumer that is gone, and that have unacked messages: the last time, in
    monotonic seconds, at which these were seen."""
    idle_at: Mapping[str, float] = field(default_factory=dict)
    """The shards of which the last reading showed no unacked messages: when it began, in monotonic seconds."""
    probed_from: Mapping[str, float] = field(default_factory=dict)
    """By shard of which a delivery is known, the time in monotonic seconds before which it needs no probe, as RabbitMQ
    cannot have taken anything back yet from a consumer that it keeps."""
    every: float = 0.0
    """Seconds between the beats of a sidecar, so as long may pass until this one knows what another one's members hold.
    """
    next_in_line: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """`Decision.next_in_line` of the last decision."""
    least_epoch: int = 0
    """The lowest epoch of a new claim. It is the time of this machine, in seconds since 1970. So a raise in a group
    that begins anew is above the consumers that RabbitMQ has kept of an earlier one, unless this machine's clock is
    behind those of that group's sidecars."""

    def next_epoch(self, shard: str) -> int:
        """Return the epoch of a claim to a shard that is made now."""
        return max(self.claims.epoch(shard) + 1, self.least_epoch)


Links = dict[str, list[tuple[str, LinkView]]]
"""Some links by shard, each with the id of its member."""


def link_to(view: View, member_id: str, shard: str) -> LinkView:
    """Return a member's link to a shard; one that has never got anything if there is none, or no such member."""
    member = view.members.get(member_id)
    return member.links.get(shard, LinkView()) if member is not None else LinkView()


def busy(view: View) -> Links:
    """Return the links that have had deliveries or hold messages, by shard, with the ids of their members.

    Members that have left are among them.
    """
    found: Links = {}
    for member, seen in (*view.members.items(), *view.leaving.items()):
        for shard, link in seen.links.items():
            if link.delivered_at or link.unacked:
                found.setdefault(shard, []).append((member, link))
    return found


def held_unacked(links: Links, shard: str, besides: str) -> tuple[int, str] | None:
    """Return the most messages of a shard that another member holds unacked, and its id; None if none holds any."""
    found = [(link.unacked, member) for member, link in links.get(shard, ()) if member != besides and link.unacked]
    return max(found, default=None)


def has_orphans(view: View, links: Links, shard: str, holder: Claim) -> bool:
    """Return whether RabbitMQ shows unacked messages that no known member holds, though the claim has brought nothing.

    Most likely it keeps a consumer that is gone, or has yet to notice that a connection is dead. `links` are those of
    `busy`.
    """
    # What another sidecar's member holds is known with the second beat, at the latest.
    late = max(SILENCE, 2 * view.every)
    is_seen = view.kept_at.get(shard, 0.0) >= holder.since + late
    # A claim that RabbitMQ was not told of may follow its first delivery.
    since = holder.since if is_raised(view, shard, holder) else holder.since - late
    has_got = link_to(view, holder.member, shard).delivered_at > since
    return is_seen and not has_got and held_unacked(links, shard, "") is None


def is_raised(view: View, shard: str, claim: Claim) -> bool:
    """Return whether RabbitMQ has been told of a claim to a shard, by a link of its priority, as far as is known."""
    return link_to(view, claim.member, shard).priority >= priority(claim.epoch, claim.member)


def top_of(held: LinkView, holder: Claim) -> int:
    """Return the priority below which all other links to a shard wait."""
    return min(held.priority, priority(holder.epoch, holder.member))


def has_room(top: int) -> bool:
    """Return whether there are enough priorities below the holder's that nobody else uses; none if it is not known."""
    return top % LEVELS > 2 * WAITING_FROM
