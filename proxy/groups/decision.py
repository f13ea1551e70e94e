"""The decision of one sidecar: which of its members of a group is to claim, consume or give up which shard.

`decide` is a pure function. Each sidecar calls it with its own view of the group and acts for its own members only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from proxy.groups.assignment import assign
from proxy.groups.claims import Claim
from proxy.groups.view import (
    Links,
    LinkView,
    View,
    busy,
    has_orphans,
    has_room,
    held_unacked,
    is_raised,
    link_to,
    top_of,
)

EVIDENCE: Final = 1.0
"""Seconds for which a shard without a holder is not claimed: a delivery may show whom RabbitMQ has activated. For as
long after a claim without a raise, deliveries to other members do not count."""

LOST_MARGIN: Final = 2.0
"""Seconds beyond `View.lost_after` for which no claim follows the loss of a holder, since it is noticed late."""

CLAIMED_WITHIN: Final = 5.0
"""Seconds after a delivery to another member in which a shard is left alone, since that one is to claim it first."""

DEAD_WITHIN: Final = 15.0
"""Seconds after the loss of a holder in which a shard is claimed only if a reading shows no unacked messages of it: the
broker may have yet to notice that the holder's connection is dead."""

READ_BEFORE: Final = 2.0
"""Seconds by which such a reading may have begun before the loss, as it is noticed late."""

HANDED_OVER_WITHIN: Final = 10.0
"""The least seconds after which a shard is raised all the same whose holder does not begin to hand it over; in a large
fleet it is three of a sidecar's beats."""

HEAL: Final = 5.0
"""Seconds after a raise in which deliveries to other members do not count, since they may precede the takeover. A shard
is raised since another member gets its messages only if it got one this and `CLAIMED_WITHIN` after the claim."""


class Act(Enum):
    """The kinds of steps that `decide` may ask for."""

    SUBSCRIBE = "subscribe"
    """Open a link that waits behind the active consumer; a link of another priority is replaced."""
    CLAIM = "claim"
    """Claim a shard without telling RabbitMQ. The member is its active consumer already, or becomes so once the links
    above its own are opened again below it."""
    RAISE = "raise"
    """Claim a shard, and subscribe with the x-priority of the claim, so that RabbitMQ makes the member active."""
    HAND_OVER = "hand over"
    """Give a shard up to the member that is next in line: the link ends once its client has acked what it has got."""


class Step(NamedTuple):
    """One thing to do for one member of this sidecar and one shard."""

    act: Act
    member: str
    shard: str
    epoch: int = 0
    """The epoch of the claim; 0 for SUBSCRIBE and HAND_OVER."""
    priority: int = 0
    """The priority of the link that SUBSCRIBE opens."""
    is_probe: bool = False
    """Whether SUBSCRIBE or RAISE opens a probe: a link that gets a single message, since a consumer that RabbitMQ has
    kept may hold earlier ones."""


class Move(NamedTuple):
    """A shard of which another member has the claim, or messages, than the one that it should belong to."""

    shard: str
    holder: str
    """The id of the member that holds the shard, or its messages; empty if nobody does."""
    target: str
    why: str
    """The reason for which the shard has not moved yet, in words that reports show."""


@dataclass
class Decision:
    """The result of `decide`: the steps to take now, and the shards that are about to move."""

    targets: Mapping[str, str]
    """The member that each shard should belong to."""
    steps: list[Step] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    next_in_line: dict[tuple[str, str], float] = field(default_factory=dict)
    """By member and shard, the members of this sidecar that RabbitMQ makes active once the holder's link has ended, and
    since when, in monotonic seconds. They stay so while nobody is known to hold the shard.
    """


class _Case(NamedTuple):
    """One shard, and the member of this sidecar that it should belong to."""

    shard: str
    holder: Claim | None
    target: str
    link: LinkView
    """The link by which that member consumes the shard."""
    others_at: float
    """When any other member last got a delivery of the shard, in monotonic seconds; 0 for never."""
    left_unacked: int
    """How many messages of the shard clients hold whose members have left."""
    others_unacked: int
    """How many messages of the shard the other living members hold."""

    @property
    def is_active(self) -> bool:
        """Whether the member got the last known delivery of the shard."""
        return self.link.delivered_at > 0 and self.link.delivered_at >= self.others_at


def decide(view: View, now: float) -> Decision:
    """Return the steps that this sidecar should take now for its own members. Other sidecars decide for theirs."""
    able = [member for member, seen in view.members.items() if not seen.is_stalled]
    epochs = {shard: claim.epoch for shard, claim in view.claims.winners.items()}
    decision = Decision(assign(able or view.members, view.shards, view.claims.holders, epochs))
    consumed = [shard for shard in view.shards if shard not in view.foreign]
    wanted = set(consumed)
    decision.steps = [
        Step(Act.SUBSCRIBE, member, shard)
        for member, seen in view.members.items()
        if seen.is_local and not wanted <= seen.links.keys()
        for shard in consumed
        if shard not in seen.links and view.not_before.get((member, shard), now) <= now
    ]
    links = busy(view)
    for shard, target in decision.targets.items():
        holder = view.claims.holder(shard)
        act, why = _look(view, links, shard, holder, target, now)
        active = _active(view, links, shard, holder) if view.hears else None
        if act is Act.RAISE and active is not None:
            decision.steps.append(Step(Act.CLAIM, active, shard, view.next_epoch(shard)))
        elif act is not None:
            has_probe = any(
                link_to(view, member, shard).is_probe for member in (target, holder.member if holder else "")
            )
            is_kept = holder is not None and _is_kept(view, links, shard, holder, now)
            is_probe = act is Act.RAISE and (has_probe or is_kept)
            decision.steps.append(Step(act, target, shard, view.next_epoch(shard), is_probe=is_probe))
        elif holder is not None and _may_hand_over(view, shard, holder, target):
            decision.steps.append(Step(Act.HAND_OVER, holder.member, shard))
        elif active is not None:
            decision.steps.append(Step(Act.CLAIM, active, shard, view.next_epoch(shard)))
        if (since := _next_since(view, shard, holder, target, now)) is not None:
            decision.next_in_line[target, shard] = since
        if holder is None or holder.member != target:
            decision.moves.append(Move(shard, holder.member if holder else "", target, why))
        elif link_to(view, target, shard).hands_over:
            decision.moves.append(
                Move(shard, target, target, "it was about to be handed over, and comes back once acked")
            )
        elif (holds := held_unacked(links, shard, target)) is not None:
            decision.moves.append(
                Move(shard, holds[1], target, f"the old member has yet to ack {holds[0]} of its messages")
            )
    return decision


def _may_hand_over(view: View, shard: str, holder: Claim, target: str) -> bool:
    """Return whether a member of this sidecar is to give its shard up now, as the next one is ready to take it."""
    member = view.members.get(holder.member)
    if member is None or not member.is_local or not view.hears or shard not in view.movable or holder.member == target:
        return False
    held, its = link_to(view, holder.member, shard), link_to(view, target, shard)
    is_ready = its.is_open and its.priority == top_of(held, holder) - 1
    return is_ready and held.is_open and not held.hands_over and not _has_old(held)


def _next_since(view: View, shard: str, holder: Claim | None, target: str, now: float) -> float | None:
    """Return since when a member of this sidecar is next in line for a shard; None if it is not."""
    since = view.next_in_line.get((target, shard))
    if holder is None:
        return since
    its = link_to(view, target, shard)
    if not view.members[target].is_local or its.priority != top_of(link_to(view, holder.member, shard), holder) - 1:
        return None
    return since if since is not None and since >= holder.since else now


def _has_old(held: LinkView) -> bool:
    """Return whether the holder's link is a probe that has got its message: a consumer that is gone may hold others.

    Until these are back, nobody else may get messages of the shard.
    """
    return held.is_probe and held.delivered_at > 0


def _active(view: View, links: Links, shard: str, holder: Claim | None) -> str | None:
    """Return the member of this sidecar that the broker has chosen for a shard, whoever claims it.

    It is None where that member holds the shard already, or is another sidecar's, or is not known.
    """
    latest, link = max(links.get(shard, ()), key=lambda found: found[1].delivered_at, default=("", LinkView()))
    member = view.members.get(latest)
    if member is None or not member.is_local or (holder is not None and holder.member == latest):
        return None
    if holder is not None:
        return latest if link.delivered_at > sure_from(view, shard, holder) else None
    # What it holds came from the broker, even if another sidecar told late that it has given the shard up.
    return latest if link.unacked or link.delivered_at > view.claims.left_at(shard) else None


def sure_from(view: View, shard: str, holder: Claim) -> float:
    """Return the time from which on deliveries to other members show that the holder of a shard is not the active one.

    In monotonic seconds. A claim that RabbitMQ was not told of changes nothing there.
    """
    return holder.since + (HEAL if is_raised(view, shard, holder) else EVIDENCE)


def _look(
    view: View, links: Links, shard: str, holder: Claim | None, target: str, now: float
) -> tuple[Act | None, str]:
    """Return the step that a member takes for a shard that should be its own, if any, and the reason in words."""
    if not view.hears:
        return None, "this sidecar does not hear the others"
    if shard in view.foreign:
        return None, "this sidecar has never seen it bound to the exchange"
    member = view.members[target]
    if not member.is_local:
        return None, "its sidecar has yet to claim it"
    link = member.links.get(shard)
    if link is None or not link.is_open:
        why = view.refused.get((target, shard))
        return None, f"the broker refuses its consumer: {why}" if why else "its consumer is being opened"
    others = [found.delivered_at for member_id, found in links.get(shard, ()) if member_id != target]
    unacked = {member_id: found.unacked for member_id, found in links.get(shard, ()) if member_id != target}
    left = sum(count for member_id, count in unacked.items() if member_id in view.leaving)
    case = _Case(shard, holder, target, link, max(others, default=0.0), left, sum(unacked.values()) - left)
    if holder is None:
        return _of_nobody(view, case, now)
    if holder.member == target:
        return _of_its_own(view, links, case, holder, now)
    if case.is_active and link.delivered_at > sure_from(view, shard, holder):
        return Act.CLAIM, "the broker delivers to it already"
    return _of_another(view, case, holder, now)


def _of_another(view: View, case: _Case, holder: Claim, now: float) -> tuple[Act | None, str]:
    """Wait for the holder to hand the shard over. It is raised only where that cannot be, or is not done.

    RabbitMQ 4.3 would keep the holder's consumer if its channel ended while it gives way to a higher priority.
    """
    held = link_to(view, holder.member, case.shard)
    top = top_of(held, holder)
    old = view.members.get(holder.member)
    # A raise ends the holder's link before it opens the next one, and a beat in between tells of none.
    is_told = held.priority or now >= holder.since + max(HANDED_OVER_WITHIN, 3 * view.every)
    if old is not None and not (case.shard in old.links if old.is_local else is_told):
        return None, "the old member's consumer is being opened"
    if old is None or case.shard in view.unmovable or not has_room(top):
        return _raise(view, case, now)
    if _has_old(held):
        return None, "RabbitMQ may have kept a consumer that is gone, for whose messages the old member waits"
    if held.hands_over:
        return None, f"the old member has yet to ack {held.unacked} of its messages"
    if case.link.priority > top:
        return Act.CLAIM, "its consumer is above the old member's"
    if case.link.priority != top - 1:
        return None, "it is to be the next in line"
    since = view.next_in_line.get((case.target, case.shard), now)
    if now < max(since, holder.since) + max(HANDED_OVER_WITHIN, 3 * view.every):
        return None, "the old member is to hand it over"
    return _raise(view, case, now)


def _of_nobody(view: View, case: _Case, now: float) -> tuple[Act | None, str]:
    """Claim a shard that nobody claims. RabbitMQ has chosen somebody by itself, so there is no raise.

    If that is another member, it claims the shard once messages come, and hands it over. Only an only member that has
    had no delivery raises, as the broker may have kept a consumer of an earlier member. But if the last holder may be
    alive for the broker, and hold messages, its consumer would be kept by that raise.

    Unless the last holder has left in good order, or there is a delivery since, its node may be lost. RabbitMQ 4.3 then
    waits for the holder's consumer, and if one of a higher priority comes meanwhile, it waits until the consumer
    timeout, for minutes.
    """
    vacant_since, left_at = view.claims.vacant_since(case.shard), view.claims.left_at(case.shard)
    is_only = len(view.members) == 1 and not view.leaving
    has_got = case.link.unacked > 0 or case.link.delivered_at > left_at
    if (case.is_active and has_got) or (is_only and case.shard in view.unmovable):
        return Act.CLAIM, "the broker delivers to it already"
    if case.left_unacked:
        # RabbitMQ makes another consumer active as soon as the link of these has ended, with or without a raise.
        return None, f"a member that has left has yet to ack {case.left_unacked} of its messages"
    if case.others_unacked:
        return None, "the broker delivers to another member, which is to claim it first"
    if (case.target, case.shard) in view.next_in_line and view.claims.is_given_up(case.shard):
        return Act.CLAIM, "it was the next in line"
    if case.others_at > max(left_at, now - CLAIMED_WITHIN):
        return None, "the broker delivers to another member, which is to claim it first"
    lost_after = 0.0 if view.claims.is_given_up(case.shard) else view.lost_after.get(case.shard, 0.0)
    has_moved_on = max(case.link.delivered_at, case.others_at) > left_at
    if lost_after and not has_moved_on and now < vacant_since + lost_after + LOST_MARGIN:
        return None, "the last holder's node may be lost, for which RabbitMQ waits"
    # What another sidecar's member gets is known with the next beat.
    late = 0.0 if all(member.is_local for member in view.members.values()) else view.every
    if now < vacant_since + EVIDENCE + late:
        return None, "a delivery may show whom the broker has chosen"
    is_read_idle = view.idle_at.get(case.shard, 0.0) >= vacant_since - READ_BEFORE
    is_over = view.claims.is_given_up(case.shard) or case.shard in view.unmovable or is_read_idle
    if not is_over and not has_moved_on and now < vacant_since + DEAD_WITHIN:
        return None, "RabbitMQ may have yet to notice that its last holder is gone"
    if case.shard in view.unmovable or (is_only and (is_over or not view.claims.epoch(case.shard))):
        return _raise(view, case, now)
    return Act.CLAIM, "nobody gets messages of it"


def _of_its_own(view: View, links: Links, case: _Case, holder: Claim, now: float) -> tuple[Act | None, str]:
    """Raise a shard that the target has claimed, where another member, or nobody, gets its messages.

    Another member that gets them claims the shard first, and then hands it over. Unacked messages that nobody holds are
    with a consumer that the broker has kept, or has yet to notice that is gone. What a kept one holds comes back to
    probes. The raise opens one, so it is not due before there may be any.
    """
    is_lost = not case.is_active and case.others_at > holder.since + HEAL + CLAIMED_WITHIN
    is_kept = _is_kept(view, links, case.shard, holder, now) and not is_raised(view, case.shard, holder)
    if case.shard not in view.wedged and not is_lost and not is_kept:
        return None, ""
    return _raise(view, case, now)


def _is_kept(view: View, links: Links, shard: str, holder: Claim, now: float) -> bool:
    """Return whether the broker has most likely kept a consumer that holds messages of a shard, and may give some back
    before long, so that the holder is to have a probe."""
    return now >= view.probed_from.get(shard, 0.0) and has_orphans(view, links, shard, holder)


def _raise(view: View, case: _Case, now: float) -> tuple[Act | None, str]:
    if case.shard in view.unmovable:
        return None, f"the broker moves it only when its active consumer ends: {view.unmovable[case.shard]}"
    if now < view.not_raised_before.get((case.target, case.shard), now):
        return None, "the last raise has not brought it a message, and the next one waits"
    if case.link.unacked:
        return None, f"the new holder has {case.link.unacked} unacked messages of it"
    return Act.RAISE, "it is being raised"
