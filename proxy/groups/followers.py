"""The links that wait for a shard: who is next in line, and when all of them are probes. No I/O."""

from collections.abc import Mapping
from typing import Final

from proxy.groups.claims import Claim, priority
from proxy.groups.decision import Act, Step, sure_from
from proxy.groups.member import QUIET
from proxy.groups.view import WAITING_FROM, Links, View, busy, has_orphans, has_room, link_to, top_of

WAITING_BELOW: Final = 32
"""How much lower than the holder's the priority of the links is that wait. Who is next has one that is lower by 1."""


def followers(view: View, targets: Mapping[str, str], now: float) -> list[Step]:
    """Return steps that replace links: waiting ones so that each has the right priority, and all by probes or back.

    `targets` has the member that each shard should belong to. If it is not the holder, it is to be the next in line: it
    has the highest priority below that of the holder. Once the holder hands the shard over, RabbitMQ makes it active.
    The others wait below it.

    RabbitMQ 4.3 keeps a consumer whose channel ends while it gives way to another one, with the priority that it had,
    which is lower than the new holder's. It must not be the next one that the broker chooses. So this is due as soon as
    the priority of a raise is known, and does not wait until the raise has come through. A link that has got a message
    is left alone until it has been silent for QUIET, since messages may be on their way to it. RabbitMQ 4.0 gives
    nobody a shard whose old consumer has sent back the last that it held, until that consumer ends.

    If a raise brings nothing, and the shard has unacked messages that nobody holds, RabbitMQ 4.3 waits for a consumer
    that it has kept of a channel or node that is gone, until the consumer timeout. That runs for each message by
    itself. So RabbitMQ takes back the first one alone, and would give the next consumer newer ones with it. A probe
    gets the first one only. All links become probes, since the holder may be lost meanwhile, those of members that join
    later as well. They are replaced once the holder gets messages as usual. Where the shard was claimed without a
    raise, `decide` raises it by a probe, and the others follow.

    While another member than the holder gets the shard's messages, it is to claim the shard first. A link that is
    opened above its own meanwhile would make it give way, and RabbitMQ 4.3 would keep it if it were lost then.

    There is no probe before `View.probed_from`. What comes back until then a member held whose link has just ended, and
    all of it comes at once. A prefetch of 1 would do harm then: if the probe's member ended as well, the message that
    it held would go behind the others.
    """
    steps: list[Step] = []
    links = busy(view)
    local = [(member, seen) for member, seen in view.members.items() if seen.is_local]
    for shard in view.shards:
        holder = view.claims.holder(shard)
        if holder is None or holder.member not in view.members or shard in view.unmovable or shard in view.foreign:
            continue
        held = link_to(view, holder.member, shard)
        if _is_anothers(view, links, shard, holder):
            continue
        is_silent = _is_silent(view, links, shard, holder, now)
        flows = held.delivered_at > holder.since and not held.is_probe
        for member, seen in local:
            link = seen.links.get(shard)
            if link is None or not link.is_open or link.unacked or link.delivered_at > now - QUIET:
                continue
            level = link.priority
            if member != holder.member:
                level = _level(link.priority, top_of(held, holder), is_next=targets.get(shard) == member)
            is_probe = not seen.no_ack and (is_silent or held.is_probe or (link.is_probe and not flows))
            if (level, is_probe) != (link.priority, link.is_probe):
                steps.append(Step(Act.SUBSCRIBE, member, shard, priority=level, is_probe=is_probe))
    return steps


def _is_anothers(view: View, links: Links, shard: str, holder: Claim) -> bool:
    """Return whether another member than the holder got the last delivery of a shard, and not before the claim."""
    own = link_to(view, holder.member, shard).delivered_at
    others = [link.delivered_at for member, link in links.get(shard, ()) if member != holder.member]
    return max(others, default=0.0) > max(own, sure_from(view, shard, holder))


def _level(present: int, top: int, *, is_next: bool) -> int:
    """Return the priority that a link which is not the holder's should have.

    One above the holder's may be the active one of a shard of which no message comes, since a claim without a raise
    changes nothing at the broker. It ends with nobody above it, so that the broker makes the holder's active.
    """
    if not has_room(top):
        return max(present, top - 1)
    if is_next:
        return top - 1
    return present if top - WAITING_FROM <= present < top - 1 else top - WAITING_BELOW


def _is_silent(view: View, links: Links, shard: str, holder: Claim, now: float) -> bool:
    """Return whether a shard was raised for its holder, who has got nothing, and RabbitMQ shows unacked messages of it
    that nobody holds.
    """
    member, held = view.members[holder.member], link_to(view, holder.member, shard)
    was_raised = held.priority == priority(holder.epoch, holder.member)
    may_probe = not member.no_ack and now >= view.probed_from.get(shard, 0.0)
    return was_raised and may_probe and has_orphans(view, links, shard, holder)
