"""The decision who should consume which shard, and what the members of this sidecar do for that. No I/O.

Each sidecar decides by itself, by what all beats tell. Two that know the same decide the same. Where they know
different things, one link more waits at the broker for a while: single active consumer gives each shard to one link
whatever sidecars believe, so that a wrong belief costs balance and never order.

The text of `proxy/groups/__init__.py` says how a shard moves. The **owner** of a shard is the member whose open link is
the oldest: RabbitMQ keeps the consumers of a queue in their order of arrival, and the first is the active one. The
**target** is the member that should consume it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from proxy.groups.assignment import assign
from proxy.groups.beats import LinkBeat, MemberBeat
from proxy.groups.model import LinkState, Member

_OPENING: Final = LinkState.OPENING.value
_OPEN: Final = LinkState.OPEN.value
_LEAVING: Final = LinkState.LEAVING.value


class Act(Enum):
    """An act of one member of this sidecar."""

    OPEN = "open a link"
    LET_GO = "let the link go"


class Step(NamedTuple):
    """An act that the decision calls for."""

    act: Act
    member: str
    shard: str


class Reason(Enum):
    """The reason why a shard is not with its target yet; `report.py` has the words."""

    DEAF = 1
    REFUSED = 2
    OPENING = 3
    NOT_OPENED = 4
    DISAGREEMENT = 5
    NOT_LET_GO = 6
    ACKS = 7
    PAUSED = 8
    ENDING = 9


class Move(NamedTuple):
    """A shard that is not with its target, or that its owner is about to let go."""

    shard: str
    owner: str
    """The member that owns it; empty for nobody."""
    target: str
    """The member that should own it; empty for nobody, as of a paused shard."""
    reason: Reason


class Stance(NamedTuple):
    """The words of a link about its shard in beats: see `LinkBeat`."""

    wants: bool
    behind: str


@dataclass(frozen=True)
class View:
    """All that a decision looks at."""

    shards: Sequence[str]
    """The shards of the ring, sorted."""
    members: Mapping[str, MemberBeat]
    """The members of all sidecars as their beats tell of them, by id; those of this sidecar as its next beat would."""
    local: Mapping[str, Member]
    """This sidecar's members, by id."""
    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By member, the shards that its sidecar's ring lacks; a member that is not here lacks none."""
    hears: bool = True
    """Whether this sidecar hears the others; else all links stay as they are."""
    vacant: Collection[str] = ()
    """The shards that a member of this sidecar is to open, whoever the targets are. If the sidecar hears the others,
    these are shards of which nobody has told a link for long. Otherwise the broker counts no consumer of them."""
    paused: Collection[str] = ()
    """The shards that nobody is to consume, as an operator has paused them, or as that is not known yet."""
    resting: Collection[tuple[str, str]] = ()
    """By member of this sidecar, the shards that ended at a marker, and that somebody else may still consume."""


@dataclass(frozen=True)
class Decision:
    """The owner and the target of each shard, and the acts of this sidecar's members that follow."""

    members: Mapping[str, MemberBeat] = field(default_factory=dict)
    """The members of all sidecars, by id, as they were."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The owner of each shard that has one."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """The target of each shard that is not paused; empty without members."""
    steps: Sequence[Step] = ()
    stances: Mapping[tuple[str, str], Stance] = field(default_factory=dict)
    """By member and shard, what the links of this sidecar's members are to say in beats."""
    moves: Sequence[Move] = ()


Links = Mapping[str, Sequence[tuple[str, LinkBeat]]]
"""By shard, the links that beats tell of, each with its member."""


def decide(view: View) -> Decision:
    """Return the decision that follows from a view."""
    links: dict[str, list[tuple[str, LinkBeat]]] = {}
    for member_id, member in view.members.items():
        for shard, link in member.links.items():
            links.setdefault(shard, []).append((member_id, link))
    owners = {shard: owner for shard, found in links.items() if (owner := owner_of(found))}
    # A paused shard counts for its target, so that a pause moves no other shard, and the end of it none either.
    targets = {shard: target for shard, target in _targets(view, owners).items() if shard not in view.paused}
    stances = {
        (member_id, shard): Stance(targets.get(shard) == member_id, _but(owners.get(shard, ""), member_id))
        for member_id in view.local
        for shard in view.members[member_id].links
    }
    steps = _openings(view, links, targets) if view.hears else []
    if view.hears:
        steps += _releases(view, owners, targets)
    steps += _pauses(view)
    steps += _vacancies(view, targets, {step.shard for step in steps if step.act is Act.OPEN})
    wanted = targets | dict.fromkeys(sorted(view.paused), "")
    moves = [
        move for shard, target in wanted.items() if (move := _move(view, links, owners, shard, target)) is not None
    ]
    return Decision(view.members, owners, targets, steps, stances, moves)


def owner_of(links: Sequence[tuple[str, LinkBeat]]) -> str:
    """Return the owner among the links of one shard: the oldest OPEN one's member, else the oldest LEAVING one's.

    The result is empty if neither is there.
    """
    ranked = [(link.state != _OPEN, link.since, member) for member, link in links if link.state != _OPENING]
    return min(ranked)[2] if ranked else ""


def _but(owner: str, member: str) -> str:
    return "" if owner == member else owner


def _targets(view: View, owners: Mapping[str, str]) -> dict[str, str]:
    """Return the target of each shard, which is one that may have it wherever there is such a member."""
    fit = _fit(view, view.members)
    since = {shard: view.members[owner].links[shard].since for shard, owner in owners.items()}
    targets = assign(fit, view.shards, owners, since)
    counts: dict[str, int] = dict.fromkeys(fit, 0)
    for target in targets.values():
        counts[target] += 1
    for shard, target in sorted(targets.items()):
        if _may_have(view, target, shard):
            continue
        able = [member for member in fit if _may_have(view, member, shard)]
        if not able:
            continue  # all are refused: the target tries again after its pause
        owner = owners.get(shard)
        other = owner if owner in able else min(able, key=lambda member: (counts[member], member))
        counts[target] -= 1
        counts[other] += 1
        targets[shard] = other
    return targets


def _fit(view: View, members: Iterable[str]) -> list[str]:
    """Return those of the members that are fit, or that stay where none is fit."""
    found = [member for member in members if view.members[member].is_fit]
    return found or [member for member in members if not view.members[member].is_leaving]


def _may_have(view: View, member: str, shard: str) -> bool:
    return shard not in view.members[member].refused and shard not in view.lacking.get(member, ())


def _openings(view: View, links: Links, targets: Mapping[str, str]) -> list[Step]:
    """Return the links that this sidecar's members are to open, as they are the targets."""
    return [
        Step(Act.OPEN, target, shard)
        for shard, target in targets.items()
        if _can_open(view, target, shard) and not _ends(view, target, links.get(shard, ()))
    ]


def _ends(view: View, target: str, links: Iterable[tuple[str, LinkBeat]]) -> bool:
    """Return whether a shard with these links may be about to be deleted, so that its target should not consume it.

    A member that stays in its group lets a link go where another one waits behind it, which needs no further one, and
    at a marker. The target itself knows when its shard may have a link again.
    """
    return any(
        link.state == _LEAVING and member != target and not view.members[member].is_leaving for member, link in links
    )


def _can_open(view: View, member_id: str, shard: str) -> bool:
    """Return whether a member of this sidecar may open a link.

    It may not before the channel of its last one has ended, nor in the wait after one that ended at a marker.
    """
    if member_id not in view.local or shard in view.local[member_id].links or (member_id, shard) in view.resting:
        return False
    member = view.members[member_id]
    return not member.is_leaving and shard not in member.refused


def _releases(view: View, owners: Mapping[str, str], targets: Mapping[str, str]) -> list[Step]:
    """Return the links that this sidecar's members are to let go."""
    steps = []
    for member_id in view.local:
        member = view.members[member_id]
        for shard, link in member.links.items():
            target = targets.get(shard, member_id)
            if link.state == _OPEN and not member.is_leaving and target != member_id:
                owner = owners[shard]
                if _waits_behind(view, target, shard, member_id, owner) or _is_spare(view, shard, member_id, owner):
                    steps.append(Step(Act.LET_GO, member_id, shard))
    return steps


def _pauses(view: View) -> list[Step]:
    """Return the links to paused shards, which this sidecar's members let go whether or not it hears the others."""
    return [
        Step(Act.LET_GO, member_id, shard)
        for member_id in view.local
        for shard, link in view.members[member_id].links.items()
        if shard in view.paused and link.state == _OPEN and not view.members[member_id].is_leaving
    ]


def _waits_behind(view: View, target: str, shard: str, member: str, owner: str) -> bool:
    """Return whether the target's link waits, and its sidecar agrees that it is to get the shard from this member.

    A target of this sidecar agrees by this very decision. Another sidecar's tells so in its beat. Where the two see
    different owners, it is enough that both see the same, though it is not this member.
    """
    link = view.members[target].links.get(shard)
    if link is None or link.state != _OPEN:
        return False
    agrees = link.behind == member or (owner != member and _but(owner, target) == link.behind)
    return target in view.local or (link.wants and agrees)


def _is_spare(view: View, shard: str, member_id: str, owner: str) -> bool:
    """Return whether a link of a member that is not the target waits behind the owner's open link, for nothing.

    One that has brought messages does not wait: the owner's clock is wrong, and its own link is the one that waits.
    """
    waits = owner != member_id and not view.local[member_id].links[shard].delivered
    return waits and view.members[owner].links[shard].state == _OPEN


def _vacancies(view: View, targets: Mapping[str, str], opened: Collection[str]) -> list[Step]:
    """Return the links that this sidecar's members are to open to vacant shards: each by the one with the fewest.

    One member tries at a time, beside the target. A shard is vacant until a link is open, and a broker that is slow to
    answer would otherwise get a link of each member.
    """
    fit = _fit(view, view.local)
    counts = {member: len(view.members[member].links) for member in fit}
    steps = []
    for shard in view.shards:
        if (
            shard not in view.vacant
            or shard in view.paused
            or shard in opened
            or _is_tried(view, shard, targets.get(shard))
        ):
            continue
        if able := [member for member in fit if _can_open(view, member, shard)]:
            member = min(able, key=lambda member: (counts[member], member))
            counts[member] += 1
            steps.append(Step(Act.OPEN, member, shard))
    return steps


def _is_tried(view: View, shard: str, target: str | None) -> bool:
    """Return whether a member of this sidecar has a link to a shard that may yet open; of the target, if it is deaf."""
    tried = [view.members[member] for member in view.local if member != target or not view.hears]
    return any(shard in member.links and shard not in member.refused for member in tried)


def _move(view: View, links: Links, owners: Mapping[str, str], shard: str, target: str) -> Move | None:
    """Return the move of a shard that is not with its target, or whose last owner has yet to ack; None if it stays."""
    for member, link in links.get(shard, ()):
        if link.state == _LEAVING:
            # Without acks to wait for a link ends at once, unless the member has let the shard go at a marker.
            return Move(shard, member, target, Reason.ACKS if link.unacked else Reason.ENDING)
    owner = owners.get(shard, "")
    return Move(shard, owner, target, _reason(view, shard, owner, target)) if owner != target else None


def _reason(view: View, shard: str, owner: str, target: str) -> Reason:
    """Return why a shard is with its owner, or with nobody, and not with its target."""
    if not target:
        return Reason.PAUSED
    if not view.hears:
        return Reason.DEAF
    link = view.members[target].links.get(shard)
    if link is None or link.state != _OPEN:
        if shard in view.members[target].refused:
            return Reason.REFUSED
        return Reason.NOT_OPENED if link is None else Reason.OPENING
    return Reason.DISAGREEMENT if owner in view.local or not owner else Reason.NOT_LET_GO
