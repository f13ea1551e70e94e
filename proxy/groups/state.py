"""One group as this sidecar knows it: its own members, those of the other sidecars, and who claims what. No I/O."""

import time
from collections.abc import Iterable
from typing import Final

from proxy.groups.attempts import Attempts
from proxy.groups.beat import Beat, LinkBeat, MemberBeat
from proxy.groups.claims import Claims
from proxy.groups.decision import HEAL, Act, Decision, Step, decide
from proxy.groups.deliveries import Deliveries
from proxy.groups.followers import followers
from proxy.groups.member import Link, Member
from proxy.groups.peers import Peers
from proxy.groups.view import LinkView, MemberView, View, is_raised

CALM: Final = 0.3
"""Seconds without a further change before changes are acted upon, so that many changes lead to one decision."""

LONGEST_CALM: Final = 2.0
"""Seconds after which a change is acted upon even if there is always another one."""

BEAT_EVERY: Final = 1.0
"""The least seconds between two beats without news."""

LONGEST_EVERY: Final = 15.0
"""The most seconds between two beats."""

SIDECARS_A_SECOND: Final = 20
"""The most beats a second that one sidecar gets of a group without news, as far as `LONGEST_EVERY` allows."""

LINKS_A_SECOND: Final = 2_000
"""The most links that one sidecar tells of each second without news, as far as `LONGEST_EVERY` allows."""

LOOKED_AT_A_SECOND: Final = 20_000
"""The most links of its own members that a sidecar looks at each second without news, as far as `LONGEST_EVERY` allows;
1,000 take about 1 ms (measured)."""

UNREAD_LOST_AFTER: Final = 5.0
"""The seconds for which a shard is taken to wait for a consumer whose node is lost, until the shard is read."""

LATELY: Final = 30.0
"""Seconds after a delivery in which beats tell of it."""


class GroupState:
    """The state of one group in one sidecar; it lives as long as the sidecar has members of the group."""

    def __init__(self, sidecar: str, host: str) -> None:
        """Take the id of this process and the name of its machine, as its beats give them."""
        self._sidecar, self.host = sidecar, host
        self.local: dict[str, Member] = {}
        """The members of this sidecar, by id."""
        self.leaving: dict[str, Member] = {}
        """The members of this sidecar that have left in good order, by id, until their clients hold no messages any
        more and a beat has told of it."""
        self.peers = Peers(sidecar)
        self.claims = Claims()
        self.lost_after: dict[str, float] = {}
        """The seconds for which each shard waits for a consumer whose node is lost, as far as that is read."""
        self.unmovable: dict[str, str] = {}
        """The shards that a higher x-priority does not move to another member, each with the reason."""
        self.movable: frozenset[str] = frozenset()
        """See `View.movable`."""
        self.idle_at: dict[str, float] = {}
        """See `View.idle_at`."""
        self.kept_at: dict[str, float] = {}
        """See `View.kept_at`; of the shards that are read."""
        self.probes_after = 0.0
        """The seconds after a delivery of a shard before which it needs no probe."""
        self.wedged: frozenset[str] = frozenset()
        """The shards with ready messages that RabbitMQ delivers to nobody, until they are claimed or raised."""
        self.decision = Decision({})
        """The result of the last call of `decide`; empty before the first."""
        self.moving_since: dict[str, float] = {}
        """By shard that is to move, since when it is to move, in monotonic seconds."""
        self.is_followed = True
        """Whether `followers` has been called since another sidecar's member claimed a shard, and has found the link of
        each shard that a member of this sidecar has just claimed."""
        self._unopened: set[str] = set()
        """The shards that a member of this sidecar has just claimed and to which it has no link yet."""
        self.moves = 0
        """How many shards members of this sidecar have taken."""
        self._deliveries = Deliveries()
        self._changes: tuple[float, float] | None = None
        """When the first and the last change since the last decision came, in monotonic seconds; None without any."""
        self._ring: tuple[str, ...] = ()
        self._seen: set[str] = set()
        """The queues of the present ring, and those of earlier ones that were claimed when it came."""
        self._missing: dict[str, float] = {}
        self.attempts = Attempts()
        self._handing_over: dict[tuple[str, str], Link] = {}
        """By member and shard, the links by which members of this sidecar are giving shards up."""
        self._stalled_until: dict[str, float] = {}
        # Of a later group of the same exchange, so that the others do not take its first beats for late ones.
        self._number = time.time_ns() // 1_000_000
        self._links_told = 0

    # What this sidecar's sessions and readings tell.

    def joined(self, member: Member, now: float) -> None:
        """Add a member of this sidecar."""
        self.local[member.id] = member
        self._changed(now)

    def left(self, member_id: str, now: float, *, is_lost: bool = False) -> None:
        """Remove a member of this sidecar; `is_lost` says that its connection to the broker is lost."""
        member = self.local.pop(member_id, None)
        if member is not None:
            self._deliveries.note_own(member, self._seen)
            self.claims.forget(member_id, now, in_good_order=not is_lost)
            if not is_lost:
                self.leaving[member_id] = member
            self._stalled_until.pop(member_id, None)
            self.attempts.forget(member_id)
            self._changed(now)

    @property
    def is_over(self) -> bool:
        """Whether this sidecar has no member any more, nor one that has left and whose client holds messages."""
        return not self.local and not any(member.held for member in self.leaving.values())

    def follow(self, ring: Iterable[str], read_at: float, now: float) -> None:
        """Set the queues of the ring, from a reading that began at `read_at`, in monotonic seconds."""
        ring = tuple(sorted(ring))
        found = [shard for shard, since in self._missing.items() if shard in ring and read_at > since]
        for shard in found:
            del self._missing[shard]
        if found or ring != self._ring:
            self._ring = ring
            self._seen = {*ring, *(self._seen & self.claims.winners.keys())}
            self._deliveries.follow(self._seen)
            self._changed(now)

    def link_ended(self, member_id: str, shard: str, why: str, *, is_missing: bool, now: float) -> bool:
        """Note that the broker has ended a member's link, with an error or, if `why` is empty, by a cancel.

        `is_missing` says that the queue does not exist. Returns whether the error is news.
        """
        if member_id not in self.local:
            return False
        self._changed(now)
        if is_missing:
            self._missing[shard] = now
            self.attempts.missing(member_id, shard)
            for member in self.local:
                self.claims.drop(shard, member, now)
            return False
        self.claims.drop(shard, member_id, now, in_good_order=True)
        return self.attempts.ended(member_id, shard, why, now)

    def released(self, member_id: str, shard: str, until: float, now: float) -> None:
        """Note that a member's link to a shard was ended since its client did not ack.

        Until the time `until`, in monotonic seconds, the member gets no shard while other members live. It gives up its
        claim, as RabbitMQ gives the shard to the highest of those that wait, whoever that is; that one is to claim it.
        An only member gets the shard again. Of a shard that is no more in the ring, a claim is all that is known.
        """
        self._stalled_until[member_id] = until
        if shard in self._ring and (len(self.local) > 1 or self.peers.members):
            self.claims.drop(shard, member_id, now, in_good_order=True)
        self._changed(now)

    def probes(self) -> list[Link]:
        """Return the probes of this sidecar's members."""
        return [link for member in self.local.values() for link in member.links.values() if link.is_probe]

    def lost(self) -> set[str]:
        """Return the shards that should belong to members of this sidecar, and whose holder is gone without a word."""
        moves = [move for move in self.decision.moves if not move.holder and move.target in self.local]
        shards = {move.shard for move in moves} - self.unmovable.keys()
        return {shard for shard in shards if not self.claims.is_given_up(shard)}

    def silent(self) -> dict[str, float]:
        """Return the shards whose claims have brought members of this sidecar nothing, and the times of these."""
        mine = {shard: claim for shard, claim in self.claims.winners.items() if claim.member in self.local}
        links = {shard: self.local[claim.member].links.get(shard) for shard, claim in mine.items()}
        return {
            shard: mine[shard].since
            for shard, link in links.items()
            if link is not None and link.delivered_at <= mine[shard].since
        }

    def held(self, *, is_first: bool) -> list[str]:
        """Return the shards that members of this sidecar hold; with `is_first` also those that no member holds."""
        holders = self.claims.holders
        return [s for s in self.shards if (holders[s] in self.local if s in holders else is_first)]

    # What the other sidecars tell.

    def heard(self, beat: Beat, now: float) -> bool:
        """Take a beat of any sidecar; return whether its sender is new and waits to hear from this sidecar."""
        heard = self.peers.heard(beat, self.local, self.every, now)
        before = dict(self.claims.winners)
        for member in heard.members:
            self._told_of(member, now)
        for gone in heard.gone:
            self._forget(gone, now)
        if self.claims.winners != before:
            self.is_followed = False
            self._changed(now)
        if heard.is_news:
            self._changed(now)
        return heard.is_new

    def _told_of(self, member: MemberBeat, now: float) -> None:
        """Take what a beat tells of another sidecar's member."""
        if member.is_leaving:
            self.claims.forget(member.id, now, in_good_order=True)
        claims = {}
        for shard, link in member.links.items():
            if shard not in self._seen and not self.claims.may_learn(shard):
                continue
            self.claims.learn(shard, link.epoch)
            if link.claim and not member.is_leaving:
                claims[shard] = link.claim
            elif link.priority and self.claims.holders.get(shard) in self.local:
                self._changed(now)  # It may be next in line now, so that it gets the shard.
            if link.delivered_ago is not None and shard in self._seen:
                self._deliveries.heard(member.id, shard, now - link.delivered_ago, is_probe=link.is_probe)
        self.claims.replace(member.id, claims, now)

    def _forget(self, member_id: str, seen: float) -> None:
        """Forget another sidecar's member that was last seen at the time `seen`."""
        self.claims.forget(member_id, seen)
        self._deliveries.forget(member_id)

    # What follows from it.

    @property
    def claimed(self) -> set[str]:
        """The shards that members claim and that this sidecar has never seen in the ring."""
        return self.claims.winners.keys() - self._seen - self._missing.keys()

    @property
    def shards(self) -> list[str]:
        """The queues of the ring and those of an earlier ring that members claim, without those that do not exist.

        A queue that this sidecar has never seen in the ring is none of the group's, whoever claims it.
        """
        return sorted({*self._ring, *(self._seen & self.claims.winners.keys())} - self._missing.keys())

    @property
    def every(self) -> float:
        """Seconds between two beats of this sidecar without news: more in a large fleet."""
        looked_at = sum(len(member.links) for member in self.local.values())
        slow = max(
            (len(self.peers.all) + 1) / SIDECARS_A_SECOND,
            self._links_told / LINKS_A_SECOND,
            looked_at / LOOKED_AT_A_SECOND,
        )
        return min(max(BEAT_EVERY, slow), LONGEST_EVERY)

    def delivered_at(self, shard: str, besides: str = "") -> float:
        """Return when any member, `besides` one, last got a delivery of a shard; monotonic seconds, 0 for never."""
        own = [
            member.links[shard].delivered_at
            for member in self.local.values()
            if shard in member.links and member.id != besides
        ]
        return max([self._deliveries.last_of_others(shard, besides), *own])

    def unacked(self, shard: str) -> int:
        """Return how many unacked messages of a shard all members together hold, as far as this sidecar knows."""
        own = sum(member.links[shard].unacked for member in self.local.values() if shard in member.links)
        all_own = (*self.local.values(), *self.leaving.values())
        own += sum(link.unacked for member in all_own for link in member.held if link.shard == shard)
        told = (member.links[shard].unacked for _, member in self.peers.members.values() if shard in member.links)
        return own + sum(told)

    @property
    def prefetches(self) -> set[int]:
        """The prefetches of all members; a member without acks has 0."""
        own = {member.held_at_most for member in self.local.values()}
        return own | {told.prefetch for _, told in self.peers.members.values() if not told.is_leaving}

    def hears(self, now: float) -> bool:
        """Return whether this sidecar hears the others, and knows what all of them say."""
        return self.peers.hears(now, self.every) and not self.peers.other_versions(now)

    @property
    def due(self) -> float:
        """When the changes since the last decision are to be acted upon, in monotonic seconds; infinity for none."""
        if self._changes is None:
            return float("inf")
        first, last = self._changes
        return min(last + CALM, first + LONGEST_CALM)

    def tick(self, now: float) -> Decision:
        """Decide, and note the claims that this makes. The caller has the members subscribe as the steps say."""
        self._changes = None
        for peer in self.peers.expire(now, self.every):
            for member in peer.members:
                self._forget(member, peer.heard_at)
        self.claims.follow(self.shards, now)
        for its in self.local.values():
            self._deliveries.note_own(its, self._seen)
        self._end_hand_overs(now)
        self.claims.withdraw(self.local, now)
        for step in (decision := decide(self._view(now), now)).steps:
            if step.act is Act.HAND_OVER:
                self._handing_over[step.member, step.shard] = self.local[step.member].links[step.shard]
                self.attempts.handed_over(step.member, step.shard)
                self._changed(now)
            elif step.act is not Act.CLAIM:
                self.attempts.asked(step.member, step.shard, now)
            if step.act in (Act.CLAIM, Act.RAISE):
                holder = self.claims.holder(step.shard)
                self.moves += holder is None or holder.member != step.member
                if step.act is Act.RAISE:
                    self.attempts.raised(step.member, step.shard, now, was_in_vain=self._was_in_vain(step))
                self.claims.add(step.shard, step.epoch, step.member, now)
                self.wedged -= {step.shard}
        self.attempts.prune(now, self._lacks, decision.targets.__contains__)
        self.moving_since = {move.shard: self.moving_since.get(move.shard, now) for move in decision.moves}
        self.decision = decision
        return decision

    def _end_hand_overs(self, now: float) -> None:
        """Take back the claims to shards that members of this sidecar have given up, once their clients hold nothing.

        RabbitMQ has made the next member active by then.
        """
        for (member_id, shard), link in list(self._handing_over.items()):
            member = self.local.get(member_id)
            if member is not None and member.links.get(shard) is link:
                del self._handing_over[member_id, shard]  # Its session could not do so, as while it ends.
            elif member is None or link not in member.held:
                del self._handing_over[member_id, shard]
                self.claims.drop(shard, member_id, now, in_good_order=True)

    def followers(self, now: float) -> list[Step]:
        """Return which links are to be replaced since the holders of their shards have changed.

        It also notes in each link whether another member has been raised over it. A raise ends the member's link before
        it opens the next one. Until that is there its priority is not known, so this is to be called again soon.
        """
        unopened = {
            shard
            for shard, claim in self.claims.winners.items()
            if claim.member in self.local and shard not in self.local[claim.member].links
            if (claim.member, shard) not in self._handing_over and now < claim.since + HEAL
        }
        if self._unopened - unopened:
            self._changed(now)  # The other sidecars are to know the priority, too.
        self._unopened, self.is_followed = unopened, not unopened
        view = self._view(now)
        for member in (*self.local.values(), *self.leaving.values()):
            for link in (*member.links.values(), *member.held):
                claim = self.claims.winners.get(link.shard)
                is_over = claim is not None and claim.member != member.id and is_raised(view, link.shard, claim)
                link.raised_over_at = claim.since if claim is not None and is_over else 0.0
        return followers(view, self.decision.targets, now)

    def _lacks(self, member_id: str, shard: str) -> bool:
        """Return whether a member of this sidecar is to have a link to a shard and has none that is open."""
        link = self.local[member_id].links.get(shard) if member_id in self.local else None
        return not (link is not None and link.is_open) and shard in self._seen and shard not in self._missing

    def _was_in_vain(self, step: Step) -> bool:
        """Return whether the last raise of a shard for the member of this step did not bring its messages to it."""
        at, member = self.attempts.raised_at(step.member, step.shard), self.local[step.member]
        if at is None:
            return False
        own = member.links[step.shard].delivered_at if step.shard in member.links else 0.0
        return self.delivered_at(step.shard, besides=step.member) > at + HEAL and own <= at

    def beat(self, now: float) -> Beat:
        """Return the next beat of this sidecar."""
        self._number += 1
        held: dict[str, dict[str, int]] = {}
        for shard, claim in self.claims.winners.items():
            held.setdefault(claim.member, {})[shard] = claim.epoch
        members = tuple(self._told(member, held.get(member.id, {}), now) for member in self.local.values())
        members += tuple(self._told_leaving(member) for member in self.leaving.values())
        # Whoever holds nothing any more is told of this once.
        self.leaving = {member_id: member for member_id, member in self.leaving.items() if member.held}
        self._links_told = sum(len(member.links) for member in members)
        return Beat(self._sidecar, self.host, self._number, self.every, members)

    def _told(self, member: Member, held: dict[str, int], now: float) -> MemberBeat:
        """Return a member as the next beat describes it; `held` has the epochs of its claims, by shard."""
        links = {shard: LinkBeat(epoch, self.claims.epoch(shard), None, 0) for shard, epoch in held.items()}
        since, targets = now - LATELY, self.decision.targets
        for shard, link in member.links.items():
            is_next = link.is_open and targets.get(shard) == member.id
            if link.unacked or link.delivered_at > since or shard in held or is_next:
                late = round(max(now - link.delivered_at, 0.0), 3) if link.delivered_at > since else None
                level = link.priority if shard in held or is_next else 0
                epoch = self.claims.epoch(shard)
                links[shard] = LinkBeat(held.get(shard, 0), epoch, late, link.unacked, level, link.is_probe)
        for link in member.held:
            told = links.get(link.shard, LinkBeat(0, self.claims.epoch(link.shard), None, 0))
            links[link.shard] = told._replace(unacked=told.unacked + link.unacked)
        for (member_id, shard), link in self._handing_over.items():
            if member_id == member.id and shard in held:
                links[shard] = links[shard]._replace(priority=link.priority, hands_over=True)
        is_stalled, most = self.is_stalled(member.id, now), member.held_at_most
        return MemberBeat(member.id, member.client, member.since, is_stalled, prefetch=most, links=links)

    def _told_leaving(self, member: Member) -> MemberBeat:
        links = {link.shard: LinkBeat(0, self.claims.epoch(link.shard), None, link.unacked) for link in member.held}
        most = member.held_at_most
        return MemberBeat(member.id, member.client, member.since, is_leaving=True, prefetch=most, links=links)

    def is_stalled(self, member_id: str, now: float) -> bool:
        """Return whether a member of this sidecar has lately lost a shard since its client did not ack."""
        return now < self._stalled_until.get(member_id, now)

    def _links_of(self, member: Member) -> dict[str, LinkView]:
        """Return the links of one of this sidecar's members as `decide` sees them."""
        links = {
            shard: LinkView(
                link.delivered_at,
                link.unacked,
                link.is_open,
                self._handing_over.get((member.id, shard), link).priority,
                link.is_probe,
                (member.id, shard) in self._handing_over,
            )
            for shard, link in member.links.items()
        }
        for link in member.held:
            key = member.id, link.shard
            given_up = LinkView(is_open=False, priority=link.priority, hands_over=key in self._handing_over)
            seen = links.get(link.shard, given_up)
            links[link.shard] = seen._replace(
                unacked=seen.unacked + link.unacked, delivered_at=max(seen.delivered_at, link.delivered_at)
            )
        return links

    def _view(self, now: float) -> View:
        members = {
            member.id: MemberView(
                is_local=True,
                links=self._links_of(member),
                is_stalled=self.is_stalled(member.id, now),
                no_ack=member.no_ack,
            )
            for member in self.local.values()
        }
        leaving = {
            member.id: MemberView(
                is_local=True, links={link.shard: LinkView(link.delivered_at, link.unacked) for link in held}
            )
            for member in self.leaving.values()
            if (held := member.held)
        }
        for member_id, (_, told) in self.peers.members.items():
            delivered_at = self._deliveries.of_other(member_id)
            links = {
                shard: LinkView(
                    delivered_at.get(shard, 0.0),
                    link.unacked,
                    priority=link.priority,
                    is_probe=link.is_probe,
                    hands_over=link.hands_over,
                )
                for shard, link in told.links.items()
            }
            no_ack = not told.prefetch
            seen = MemberView(is_local=False, links=links, is_stalled=told.is_stalled, no_ack=no_ack)
            if not told.is_leaving:
                members[member_id] = seen
            elif links:
                leaving[member_id] = seen
        foreign = self.claimed
        return View(
            members,
            sorted({*self.shards, *foreign}),
            self.claims,
            leaving,
            hears=self.hears(now),
            movable=self.movable,
            unmovable=self.unmovable,
            lost_after={shard: self.lost_after.get(shard, UNREAD_LOST_AFTER) for shard in self.shards},
            kept_at=self.kept_at,
            idle_at=self.idle_at,
            probed_from={shard: at + self.probes_after for shard, at in self._deliveries.ordinary.items()},
            every=self.every,
            not_before=self.attempts.not_before,
            wedged=self.wedged,
            next_in_line=self.decision.next_in_line,
            foreign=foreign,
            refused={key: refusal.why for key, refusal in self.attempts.refused.items()},
            not_raised_before=self.attempts.not_raised_before,
            least_epoch=int(time.time()),
        )

    def _changed(self, now: float) -> None:
        self._changes = (self._changes[0] if self._changes is not None else now), now
