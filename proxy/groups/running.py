"""One group of this sidecar at work: hears and sends beats, decides, and has its members do what was decided."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from proxy.groups import exactness
from proxy.groups.beat import Beat, BeatError, OtherVersionError, decode, encode
from proxy.groups.changes import Changes
from proxy.groups.claims import priority
from proxy.groups.decision import Act, Step
from proxy.groups.exactness import Exactness, Shard
from proxy.groups.member import Actions, Link, Member
from proxy.groups.membership import Membership
from proxy.groups.redelivered import Redelivered, together
from proxy.groups.state import GroupState
from proxy.groups.view import SILENCE
from proxy.topology.bindings import TopologyError
from proxy.topology.management import Management, ManagementError
from proxy.topology.sync import Sync
from proxy.topology.table import Entry, Name, Router

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 15.0
"""Seconds between two readings of a group's shards from the management API by the first of its sidecars."""

LOOK_SELDOM: Final = 60.0
"""Seconds between two such readings by each other sidecar."""

READ_A_SECOND: Final = 40
"""The shards that all sidecars of a large group together read each second, in each of these two ways. One shard takes
RabbitMQ 4.3.6 about 1.1 ms of CPU time (measured)."""

LONGEST_SELDOM: Final = 600.0
"""The most seconds between two readings of all shards by one sidecar, however large the group is."""

STATISTICS: Final = 5.0
"""Seconds by which the figures of the management API may be old."""

TIMEOUT_ABOVE: Final = 60.0
"""The seconds by which the broker's consumer timeout of links is longer than `groups_ack_timeout`.

The sidecar ends a link whose client does not ack before that. But RabbitMQ 4.3 may go on delivering to a consumer whose
channel has ended. As no client holds a message for much longer than `groups_ack_timeout`, the oldest one that such
a consumer may hold comes back about so many seconds after the shard's last delivery to a client, or later.
"""

ANSWERED_WITHIN: Final = 20.0
"""Seconds for which a probe whose client has yet to answer its message is left as it is, though others are all back.

Most clients answer in time. One that waits for more messages before it acks gets that message once more.
"""

BROKERS_TIMEOUT: Final = 1800.0
"""Seconds of RabbitMQ's own consumer timeout, by default."""

TIMEOUT_MARGIN: Final = 2.0
"""Seconds beyond the consumer timeout after which RabbitMQ has surely begun to take messages back."""

WIDEN_EVERY: Final = 1.0
"""Seconds between two looks for probes whose place an ordinary link may take."""

FOLLOW_EVERY: Final = 0.05
"""Seconds between two looks for the link of a shard that a member of this sidecar has just claimed."""

ACKS_EVERY: Final = 2.0
"""Seconds between two checks for members that do not ack."""

POISON: Final = 21
"""The times that a message comes again from which on the log tells of it: more than RabbitMQ 4's default delivery limit
lets it come."""


@dataclass(frozen=True)
class Parts:
    """The settings and helpers that all groups of this sidecar share."""

    sync: Sync
    router: Router
    api: Management
    membership: Membership
    sidecar: str
    """The id of this process in beats."""
    host: str
    """The name of this machine in beats."""
    ack_timeout: float
    """The setting `groups_ack_timeout`, in seconds; 0 for never."""

    @property
    def consumer_timeout(self) -> float:
        """The x-consumer-timeout of links, in seconds; 0 leaves it to the broker."""
        return self.ack_timeout and self.ack_timeout + TIMEOUT_ABOVE

    @property
    def probes_after(self) -> float:
        """The seconds after a delivery of a shard before which it needs no probe.

        It is half of the time after which a consumer that RabbitMQ has kept may lose messages: the other half is there
        to open probes. Without `groups_ack_timeout` a client may hold a message for as long as it likes, so that a
        probe may be needed at any time.
        """
        return TIMEOUT_ABOVE / 2 if self.ack_timeout else 0.0


class RunningGroup:
    """One group, for as long as this sidecar has members of it."""

    def __init__(
        self,
        name: Name,
        parts: Parts,
        seen: Exactness | None,
        over: Callable[["RunningGroup"], None],
        redelivered: dict[str, Redelivered],
    ) -> None:
        """Begin. `seen` is a reading of the group's shards that was just made, if there is one.

        `redelivered` has the redeliveries by shard to members that are gone; the group adds those that leave it.
        `over` is called with the group, perhaps more than once, when this sidecar has neither a member any more nor one
        that has left and whose client holds messages.
        """
        self.name, self._parts, self._over = name, parts, over
        self.state = GroupState(parts.sidecar, parts.host)
        self.state.probes_after = parts.probes_after
        self.exactness = Exactness()
        self.waiting: frozenset[str] = frozenset()
        """The shards with messages that no member gets, by the last two readings.

        It is empty if another sidecar reads the shards.
        """
        self.stalled = 0
        """How many links this sidecar has ended because their clients did not ack."""
        self.oldest_unacked_at = 0.0
        """When the oldest delivery that a client has not settled was made, in monotonic seconds; 0 if there is none."""
        self._actions: dict[str, Actions] = {}
        self._wake, self._looking = asyncio.Event(), asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        """The last reading of shards that a report has asked for; None before the first."""
        self._redelivered = redelivered
        self._told_redelivered: dict[str, int] = {}
        """By shard, how many times a message had come again when the log last told of it."""
        self._told_of_bad = False
        self._changes = Changes()
        self._reasons: tuple[str, ...] = ()
        """The reasons of the last log lines."""
        self._next_beat = self._next_acks = 0.0
        self.room = parts.membership.enter(*name, self._heard, self._room_changed)
        if seen is not None:
            self._judge(seen)
        parts.router.on_change.append(self._wake.set)
        self._tasks = [asyncio.create_task(self._guarded(each)) for each in (self._run, self._look, self._widen)]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the group cannot be balanced in order; empty if it can, or as long as no shard has been read."""
        return (*self.exactness.reasons, *exactness.mixed(self.state.prefetches))

    # What sessions tell.

    def add(self, member: Member, actions: Actions) -> None:
        """Add a member that has begun to open its links."""
        self._actions[member.id] = actions
        self.state.joined(member, time.monotonic())
        self._wake.set()

    def remove(self, member: Member, *, is_lost: bool) -> None:
        """Remove a member that has ended; `is_lost` says that its connection to the broker is lost."""
        now = time.monotonic()
        for shard, counted in member.redelivered.items():
            self._redelivered[shard] = together([counted, self._redelivered.get(shard, Redelivered())], now)
        member.redelivered.clear()
        self.state.left(member.id, now, is_lost=is_lost)
        self._wake.set()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.state.is_over:
            self._over(self)

    def link_ended(self, member: Member, shard: str, why: str, *, is_missing: bool) -> None:
        """Note that the broker has ended a member's link, with an error or, if `why` is empty, by a cancel.

        `is_missing` says that the queue does not exist.
        """
        if self.state.link_ended(member.id, shard, why, is_missing=is_missing, now=time.monotonic()):
            log.warning(
                "group %r, virtual host %r: the broker refuses %s's consumer on shard %r, which is tried again: %s",
                *(self.name[1], self.name[0], member.client or member.id, shard, why),
            )
        self._wake.set()

    async def aclose(self) -> None:
        """Tell the other sidecars that this one has left the group; takes two seconds at most."""
        self._parts.router.on_change.remove(self._wake.set)
        for task in (*self._tasks, *([self._refreshing] if self._refreshing is not None else [])):
            task.cancel()
        last = encode(self.state.beat(time.monotonic()))
        await self._parts.membership.leave(self.room, last)

    # What the other sidecars tell.

    def _heard(self, body: bytes) -> None:
        try:
            beat = decode(body, time.time())
        except BeatError as error:
            if isinstance(error, OtherVersionError):
                self.state.peers.heard_other_version(error.sidecar, time.monotonic())
            if not self._told_of_bad:
                self._told_of_bad = True
                what = "of another release" if isinstance(error, OtherVersionError) else "no beat"
                where = self.name[1], self.name[0]
                log.warning("group %r, virtual host %r: a message is %s: %s", *where, what, error)
            return
        self._take(beat)

    def _take(self, beat: Beat) -> None:
        if beat.sidecar == self._parts.sidecar:
            self.room.echoed()
        if self.state.heard(beat, time.monotonic()):
            self._send()
        self._wake.set()

    def _room_changed(self) -> None:
        if self.room.fault:
            self.state.peers.disconnected()
        self._next_beat = 0.0
        self._wake.set()

    def _send(self) -> None:
        now = time.monotonic()
        self.room.send(encode(self.state.beat(now)))
        self._next_beat = now + self.state.every

    # What follows from it.

    async def _guarded(self, forever: Callable[[], Awaitable[None]]) -> None:
        """Run one of the group's loops again if it ends with a defect, which must not end the balance for good."""
        while True:
            try:
                await forever()
            except Exception:
                log.exception("group %r, virtual host %r: a defect", self.name[1], self.name[0])
            await asyncio.sleep(1.0)

    async def _run(self) -> None:
        while True:
            now = time.monotonic()
            self._follow(now)
            self._tell()
            if not self.state.is_followed:
                self._follow_raises(now)
            if now >= self._next_acks:
                self._next_acks = now + ACKS_EVERY
                self._look_for_acks(now)
                self._tell_redelivered(now)
                self._end_if_over()
            if now >= min(self._next_beat, self.state.due):
                steps = self.state.tick(now).steps
                for step in steps:
                    self._do(step)
                self._tell_changes()
                self._follow_raises(now)
                self._send()
            until = min(self._next_beat, self._next_acks, self.state.due)
            if not self.state.is_followed:
                until = min(until, now + FOLLOW_EVERY)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(until - time.monotonic(), 0.01)):
                    await self._wake.wait()
            self._wake.clear()

    def _follow(self, now: float) -> None:
        """Set the group's shards to the queues of the ring. While the exchange is not known, the former shards stay."""
        entry = self._parts.router.entries.get(self.name)
        if entry is None:
            self._parts.sync.want(self.name)
            return
        # Whom nobody uses would be forgotten.
        self._parts.router.used_at[self.name] = now
        self.state.follow(shards_of(entry), entry.read_at, now)

    def _follow_raises(self, now: float) -> None:
        """Open links again that wait for a shard and have the wrong priority since its holder has changed."""
        for step in self.state.followers(now):
            self._do(step)

    def _do(self, step: Step) -> None:
        member, actions = self.state.local.get(step.member), self._actions.get(step.member)
        if member is None or actions is None:
            return
        raised = priority(step.epoch, step.member) if step.act is Act.RAISE else step.priority
        present = member.links.get(step.shard)
        log.debug(
            "group %r, virtual host %r: shard %r: %s for %s, whose link has the priority %d%s%s",
            *(self.name[1], self.name[0], step.shard, step.act.value, member.client or member.id),
            present.priority if present is not None else 0,
            f" and is to have {raised}" if step.act in (Act.RAISE, Act.SUBSCRIBE) else "",
            " and be a probe" if step.is_probe else "",
        )
        if step.act is Act.CLAIM:
            return
        with self._a_session():
            if step.act is Act.HAND_OVER:
                actions.hand_over(member, step.shard)
                return
            actions.subscribe(member, step.shard, raised, is_probe=step.is_probe)

    def _tell_changes(self) -> None:
        """Log who has joined and left, and which member has got which shards, of all sidecars, in one line."""
        state = self.state
        members = {member.id: member.client or member.id for member in state.local.values()}
        for _, told in state.peers.members.values():
            if not told.is_leaving:
                members[told.id] = told.client or told.id
        if changes := self._changes.told(members, state.claims.holders):
            log.info("group %r, virtual host %r: %s", self.name[1], self.name[0], changes)

    @contextmanager
    def _a_session(self) -> Iterator[None]:
        """Log a defect of one session, which must not keep the others from their steps, or this sidecar from beats."""
        try:
            yield
        except Exception:
            log.exception("group %r, virtual host %r: a defect in a session", self.name[1], self.name[0])

    def _look_for_acks(self, now: float) -> None:
        """End the links whose client has not settled a delivery for `groups_ack_timeout`.

        The session itself ends those of members that have left.
        """
        timeout = self._parts.ack_timeout
        present = {*self.state.local, *self.state.leaving}
        self._actions = {member: actions for member, actions in self._actions.items() if member in present}
        times: list[float] = []
        for member in (*self.state.local.values(), *self.state.leaving.values()):
            actions = self._actions[member.id]
            with self._a_session():
                for shard, at in actions.oldest_unacked(member).items():
                    if timeout and now - at > timeout and member.id in self.state.local:
                        self._release(member, actions, shard, now - at)
                        self.state.released(member.id, shard, now + timeout, now)
                    else:
                        times.append(at)
        self.oldest_unacked_at = min(times, default=0.0)

    def _release(self, member: Member, actions: Actions, shard: str, age: float) -> None:
        """Take a shard from a member whose client has not acked a message of it for so many seconds."""
        log.warning(
            "group %r, virtual host %r: member %s has not acked a message of shard %r for %.0f s"
            " (groups_ack_timeout), so the shard goes to the next member",
            *(self.name[1], self.name[0], member.client or member.id, shard, age),
        )
        self.stalled += 1
        actions.release(member, shard)

    def redelivered(self, now: float) -> dict[str, Redelivered]:
        """Return the redeliveries by shard to members of this sidecar, of those shards that had any."""
        present = frozenset(self.state.shards)
        found: dict[str, list[Redelivered]] = {}
        for counted in (self._redelivered, *(member.redelivered for member in self.state.local.values())):
            for shard in counted.keys() - present:
                del counted[shard]  # it is no shard any more, and there may be any number of such
            for shard, each in counted.items():
                found.setdefault(shard, []).append(each)
        return {shard: together(each, now) for shard, each in found.items()}

    def _tell_redelivered(self, now: float) -> None:
        """Log each shard of which a message goes round, and again when the number of times has doubled."""
        worst = {shard: each.recent(now) for shard, each in self.redelivered(now).items()}
        self._told_redelivered = {shard: told for shard, told in self._told_redelivered.items() if worst.get(shard)}
        for shard, times in worst.items():
            if times >= max(POISON, 2 * self._told_redelivered.get(shard, 0)):
                self._told_redelivered[shard] = times
                log.warning(
                    "group %r, virtual host %r: a message of shard %r has come again %d times, as consumers return it"
                    " or end with it",
                    *(self.name[1], self.name[0], shard, times),
                )

    # What the management API tells.

    async def _look(self) -> None:
        """Read all shards now and then, and in between those that members of this sidecar hold.

        So all sidecars together read each shard about once in `LOOK_EVERY`, or less often in a large group.
        """
        while True:
            shards, sidecars = len(self.state.shards), 1 + len(self.state.peers.all)
            await self.look(min(max(LOOK_SELDOM, shards * sidecars / READ_A_SECOND), LONGEST_SELDOM))
            await asyncio.sleep(max(LOOK_EVERY, shards / READ_A_SECOND))
            is_first = all(self._parts.sidecar < other for other in self.state.peers.all)
            await self._read(self.state.held(is_first=is_first))

    async def _widen(self) -> None:
        """Replace the probes that have got a message which had come before, once no other consumer can hold such.

        What a consumer holds that RabbitMQ has kept, it got before the shard was raised. So once the consumer timeout
        has passed since the probe was opened, RabbitMQ may take all of it back. It looks whether it should when
        something happens in the queue. So a probe that has got nothing is then replaced by another one.
        """
        while True:
            await asyncio.sleep(WIDEN_EVERY)
            if due := self._unsure(time.monotonic()):
                await self._read(due)
            now = time.monotonic()
            timed_out = now - (self._parts.consumer_timeout or BROKERS_TIMEOUT) - TIMEOUT_MARGIN
            for probe in self.state.probes():
                actions, is_late = self._actions[probe.member.id], probe.opened_at < timed_out
                awaits_answer = probe.unacked and probe.delivered_at > now - ANSWERED_WITHIN
                with self._a_session():
                    if probe.is_safe or (probe.delivered and (is_late or self._is_alone(probe)) and not awaits_answer):
                        actions.widen(probe.member, probe.shard)
                    elif is_late:
                        actions.subscribe(probe.member, probe.shard, probe.priority, is_probe=True)

    def _unsure(self, now: float) -> list[str]:
        """Return the shards whose unacked messages are to be counted now, since somebody that is gone may hold some."""
        known = self.exactness.shards
        read_at = {shard: known[shard].read_at if shard in known else 0.0 for shard in self.state.shards}
        probed = {probe.shard for probe in self.state.probes() if probe.delivered and not probe.is_safe}
        # What somebody held before the claim may be counted until then. One reading after that is enough.
        counted = {shard: since + SILENCE + STATISTICS for shard, since in self.state.silent().items()}
        silent = {shard for shard, at in counted.items() if read_at.get(shard, 0.0) < at <= now}
        # Two readings tell more than one only if the broker may have counted in between.
        unsure = probed | silent | self.state.lost()
        return sorted(shard for shard in unsure if read_at.get(shard, 0.0) <= now - STATISTICS)

    def _is_alone(self, probe: Link) -> bool:
        """Return whether a reading that began after a probe got its message shows no other unacked message."""
        read = self.exactness.shards.get(probe.shard)
        return read is not None and read.unacked == 1 and read.read_at > probe.delivered_at + STATISTICS

    async def look(self, age: float) -> None:
        """Read all shards from the management API, unless all that is known of them was read within `age` seconds."""
        async with self._looking:
            if time.monotonic() - self.exactness.read_at >= age:
                self._follow(time.monotonic())
                await self._read(self.state.shards)

    async def refresh(self, age: float, within: float) -> None:
        """Have all shards read that were not read within `age` seconds; return after `within` seconds in any case.

        The reading goes on then, so that however long it takes, the next caller has its figures.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self.look(age))
        await asyncio.wait({self._refreshing}, timeout=within)

    async def _read(self, shards: list[str]) -> None:
        """Read these shards from the management API. After a failed reading the former figures stay."""
        present = set(self.state.shards)
        before = {shard: it for shard, it in self.exactness.shards.items() if shard in present}
        try:
            seen = await exactness.read(self._parts.api, self.name[0], shards, before)
        except (ManagementError, TopologyError) as error:
            if not self.exactness.shards:
                self._judge(exactness.unreadable(error))
            return
        mine = set(self.state.held(is_first=True))
        self.waiting = frozenset(shard for shard, it in seen.shards.items() if shard in mine and self._waits(shard, it))
        # The broker may have lost track of the active consumer; a new one of a higher priority has it choose again, but
        # only where no consumer holds a message, not even one that the broker has kept of a channel that has ended.
        self.state.wedged = frozenset(shard for shard in self.waiting if not seen.shards[shard].unacked)
        self._judge(seen)
        self._wake.set()

    def _waits(self, shard: str, it: Shard) -> bool:
        """Return whether two readings in a row show messages of a shard of which no member gets or holds any."""
        was = self.exactness.shards.get(shard)
        if was is None or it is was or it.read_at - was.read_at < STATISTICS:
            return shard in self.waiting
        is_idle = self.state.delivered_at(shard) < was.read_at - STATISTICS and not self.state.unacked(shard)
        return bool(it.ready and was.ready) and is_idle

    def _judge(self, seen: Exactness) -> None:
        before, self.exactness = self.exactness, seen
        self.state.unmovable = dict(seen.unmovable)
        self.state.lost_after = {name: shard.lost_after for name, shard in seen.shards.items()}
        kept = {name: shard.read_at for name, shard in seen.shards.items() if shard.may_keep and shard.unacked}
        idle = {name: shard.read_at for name, shard in seen.shards.items() if not shard.unacked}
        self.state.idle_at = {name: read_at - STATISTICS for name, read_at in idle.items()}
        self.state.movable = frozenset(seen.shards.keys() - seen.unmovable.keys())
        self.state.kept_at = {name: read_at - STATISTICS for name, read_at in kept.items()}
        self._tell()
        where = self.name[1], self.name[0]
        for warning in set(seen.warnings) - set(before.warnings):
            log.warning("group %r, virtual host %r: %s", *where, warning)

    def _tell(self) -> None:
        """Log why the group is not exact, if that has changed."""
        before, self._reasons = self._reasons, self.reasons
        where = self.name[1], self.name[0]
        if self._reasons != before:
            for reason in self._reasons:
                log.warning("group %r, virtual host %r: not exact: %s", *where, reason)
            if not self._reasons:
                log.info("group %r, virtual host %r: exact from now on", *where)


def shards_of(entry: Entry) -> list[str]:
    """Return the queues of an exchange's ring, sorted."""
    weights = entry.known.ring.as_weights() if entry.known is not None else entry.bindings.weights
    return sorted(destination.name for destination in weights if destination.kind == "queue")
