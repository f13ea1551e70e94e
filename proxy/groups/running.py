"""One group of this sidecar at work: hears and sends beats, and has its members do what was decided."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.groups.attempts import Attempts
from proxy.groups.beats import BeatError, OtherVersionError, decode, encode
from proxy.groups.blocked import MOST_KEYS, Backlog, BlockedKey
from proxy.groups.changes import news, some
from proxy.groups.decide import Act, Step
from proxy.groups.group import Group
from proxy.groups.membership import Membership, MissingError
from proxy.groups.model import Actions, LinkState, Member
from proxy.groups.operators import Answer, Operators, OrderError, Sent
from proxy.groups.operators import decode as decode_order
from proxy.groups.pause_log import PauseLog
from proxy.groups.pausing import Pausing
from proxy.groups.peers import Question
from proxy.groups.redelivered import Redelivered
from proxy.groups.shard_readings import Exactness, Readings, ending, queues_of
from proxy.groups.timing import ACKS_EVERY, STARVED
from proxy.topology.bindings import balancing
from proxy.topology.management import Management
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, Name, Router

log = logging.getLogger(__name__)

CHANGES_KEPT: Final = 50
"""The most changes of its members and moves that a group remembers, for the console."""


@dataclass(frozen=True)
class Parts:
    """The settings and helpers that all groups of this sidecar share."""

    scheduler: Scheduler
    router: Router
    api: Management
    membership: Membership
    sidecar: str
    """The id of this process in beats."""
    host: str
    """The name of this machine in beats."""
    ack_timeout: float
    """The setting `groups_ack_timeout`, in seconds; 0 for never."""
    operators: frozenset[str]
    """The setting `groups_operators`: the users whose orders are done."""
    leave_timeout: float
    """The setting `groups_leave_timeout`, in seconds; 0 for as long as `ack_timeout`."""


class RunningGroup:
    """One group, for as long as this sidecar has members of it."""

    def __init__(
        self,
        name: Name,
        exchange: str,
        parts: Parts,
        seen: Exactness | None,
        over: Callable[["RunningGroup"], None],
        redelivered: dict[str, Redelivered],
        attempts: Attempts,
    ) -> None:
        """Begin. `name` has the name that clients consume, and `exchange` is the exchange whose group that is.

        `seen` is a reading of the group's shards that was just made, if there is one.

        `redelivered` has the redeliveries by shard to members of this sidecar, those that are gone included, and
        `attempts` what is known of tries by such members. `over` is called with the group, perhaps more than once,
        when this sidecar has no member of it any more.
        """
        self.name, self._parts, self._over = name, parts, over
        self.ring = (name[0], exchange)
        self._title = f"group {name[1]!r}, virtual host {name[0]!r}"
        self.state = Group(parts.sidecar, parts.host, time.monotonic(), attempts)
        self.readings = Readings(self._title, name[0], parts.api, self.state, seen)
        self.stalled = 0
        """How many links this sidecar has ended because their clients did not ack."""
        self.oldest_unacked_at = 0.0
        """When the oldest delivery that a client has not settled was made, in monotonic seconds; 0 if there is none."""
        self.oldest_unacked_of = "", ""
        """The client and the shard of that delivery; empty if there is none."""
        self.changes: deque[tuple[float, str]] = deque(maxlen=CHANGES_KEPT)
        """When members came and went and shards moved, in seconds since 1970, and which, in words: the last of them."""
        self.orders = 0
        """How many orders of operators were done, but for those to pause and to resume."""
        self._operators = Operators(parts.operators, self._title)
        self.crashes = 0
        """How often clients in series were lost with a message that an earlier one was lost with."""
        self.returns = 0
        """How often clients in series have returned a message."""
        self.backlogs: list[Backlog] = []
        """How much the keys of each member in series waited when that was last looked at."""
        self._actions: dict[str, Actions] = {}
        self._wake = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        """The questions that the broker has yet to answer."""
        self.redelivered = redelivered
        self._told_of_bad = False
        self._next_acks = 0.0
        self._followed: Entry | None = None
        """The reading of the ring whose queues are the group's shards."""
        self._ending: frozenset[str] | None = None
        """The shards whose generation ends, by that reading; None if not known."""
        ordered = self._ordered if parts.operators else None
        balanced_by = balancing(exchange, name[1])
        self.room = parts.membership.enter(*name, balanced_by, self._heard, self._connected, ordered)
        self.pausing = Pausing(name[1], self.state, self._operators, self._title, self._answer, self._wake.set)
        self.pauses: PauseLog | None = None
        """The orders to pause, as they are read; None where nobody may give any."""
        if parts.operators:
            self.state.awaits_pauses(time.monotonic())
            judge = self.pausing
            self.pauses = PauseLog(self.room.line, self._title, balanced_by, judge.begun, judge.taken, judge.known)
        parts.router.on_change.append(self._wake.set)
        self._tasks = [asyncio.create_task(self._guarded(each)) for each in (self._run, self.readings.run)]

    # Input from sessions

    def add(self, member: Member, actions: Actions) -> None:
        """Let a member take part; `actions` are those of its session."""
        self._actions[member.id] = actions
        member.redelivered, member.attempts = self.redelivered, self.state.attempts
        now = time.monotonic()
        self._follow(now)
        member.ending = self._ending
        self.state.joined(member, now)
        self._wake.set()

    def remove(self, member: Member) -> None:
        """Note that a member has left: its links are let go, or have ended with its session."""
        self._take_returns(member)
        self.state.left(member, time.monotonic())
        self._changed()

    def link_changed(self, member: Member) -> None:
        self.state.changed(member, time.monotonic())
        self._changed()

    def _changed(self) -> None:
        self._wake.set()
        if not self.state.local:
            self._over(self)

    def link_refused(self, member: Member, shard: str, why: str, *, is_missing: bool) -> None:
        """Note that the broker has ended a member's link, and why; `is_missing` says that there is no such queue."""
        now = time.monotonic()
        if is_missing:
            self.state.missing(shard, now)
        elif self.state.refused(member, shard, why, now) and shard not in member.endings:
            who = member.client or member.id
            log.warning("%s: member %s has no consumer on shard %r: %s", self._title, who, shard, why)
        self._wake.set()

    def link_broken(self, shard: str, text: str) -> None:
        """Note that the broker closes a member's connection, since it cannot consume a shard, and with which text."""
        now = time.monotonic()
        pause = self.state.link_broken(shard, text, now)
        log.error(
            "%s: shard %r has cost a client its connection (%s): no member here consumes it for %d s; if its queue is"
            " half deleted, delete it once more: docs/explanation/broker-faults.md",
            *(self._title, shard, text, pause),
        )
        self._wake.set()

    async def aclose(self) -> None:
        """Tell the other sidecars that this one has left the group; takes two seconds at most."""
        self._parts.router.on_change.remove(self._wake.set)
        self.readings.end()
        for task in (*self._tasks, *self._asking):
            task.cancel()
        last = encode(self.state.last_beat(time.monotonic()))
        if self.pauses is not None:
            await self.pauses.aclose()
        await self._parts.membership.leave(self.room, last)

    # Input from other sidecars

    def _heard(self, body: bytes) -> bool:
        """Take a message of the beats' exchange; return whether it is a beat of this sidecar."""
        now = time.monotonic()
        try:
            beat = decode(body)
        except BeatError as error:
            if isinstance(error, OtherVersionError):
                self.state.peers.heard_other_version(error.sidecar, now)
            if not self._told_of_bad:
                self._told_of_bad = True
                what = "of another release" if isinstance(error, OtherVersionError) else "no beat"
                log.warning("%s: a message is %s: %s", self._title, what, error)
            return False
        self.state.heard(beat, now)
        if self.state.due <= now:
            self._wake.set()
        return beat.sidecar == self._parts.sidecar

    def _ordered(self, sent: Sent) -> None:
        """Do the order of an operator, if a member of this sidecar has the shard, and answer."""
        if not self._operators.may_order(sent.user):
            return
        try:
            order = decode_order(sent.body)
        except OrderError as error:
            log.warning("%s: a message of the operator %r is no order: %s", self._title, sent.user, error)
            return
        member = self.state.local.get(self.state.decision.owners.get(order.shard) or "")
        actions = self._actions.get(member.id) if member is not None else None
        if member is None or actions is None:
            return
        why = "the sidecar had an unexpected error"
        with self._a_session():
            why = actions.operate(member, order)
        self.orders += not why
        log.warning(
            "%s: operator %r: %s the message %s of the key %s, shard %r: %s",
            *(self._title, sent.user, order.act, order.fingerprint, order.key_hash, order.shard, why or "done"),
        )
        if sent.reply_to:
            self._answer(sent.reply_to, msgspec.json.encode(Answer(why)))

    def _answer(self, queue: str, body: bytes) -> None:
        self._ask(self.room.line.answer(queue, body))

    def _connected(self, queue: str) -> None:
        self.state.connected(queue, time.monotonic(), is_refused=self.room.is_refused)
        self._wake.set()

    # Loops of the group

    async def _guarded(self, forever: Callable[[], Awaitable[None]]) -> None:
        """Run one of the group's loops again if it ends with an unexpected error, which must not end the balance."""
        while True:
            try:
                await forever()
            except Exception:
                log.exception("%s: unexpected error", self._title)
            await asyncio.sleep(1.0)

    async def _run(self) -> None:
        """Do all that is due, sleep until something is due or has come, and so on.

        Ends by being cancelled, or by an unexpected error, after which `_guarded` runs it again.
        """
        while True:
            now = time.monotonic()
            self._follow(now)
            self.readings.tell()
            if now >= self._next_acks:
                self._next_acks = now + ACKS_EVERY
                self._check_ack_timeouts(now)
                self._check_starved(now)
                self._look_at_keys()
                self._tell_redelivered(now)
                self.state.attempts.expire(time.time(), self._held_of)
            before = self.state.decision
            self._tick(now)
            # The log tells of all sidecars' members and shards in one line.
            if self.state.decision is not before and (changes := news(before, self.state.decision)):
                log.info("%s: %s", self._title, changes)
                self.changes.append((time.time(), changes))
            until = min(self._next_acks, self.state.due)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(until - time.monotonic(), 0.005)):
                    await self._wake.wait()
            self._wake.clear()

    def _tick(self, now: float) -> None:
        """Do what the group's state says is due at `now`: steps, a beat, and questions to the broker."""
        tick = self.state.tick(now)
        for step in tick.steps:
            self._do(step, now)
        if tick.steps:
            self._log(tick.steps)
        if tick.beat is not None:
            self.room.send(encode(tick.beat))
        for question in tick.questions:
            self._ask(self._is_there(question))
        if tick.counted:
            self._ask(self._count(tick.counted))

    def _follow(self, now: float) -> None:
        """Set the group's shards to the queues of the ring. While the exchange is not known, the former shards stay."""
        entry = self._parts.router.entries.get(self.ring)
        if entry is None:
            self._parts.scheduler.want(self.ring)
            return
        # The router forgets exchanges that nobody uses.
        self._parts.router.used_at[self.ring] = now
        if entry is self._followed:
            return
        self._followed = entry
        shards = queues_of(entry, self.name[1], self.ring[1])
        self.readings.missing = frozenset(q for lost in entry.incomplete.values() for q in lost).intersection(shards)
        self._ending = ending(entry)
        for member in self.state.local.values():
            member.ending = self._ending
        self.state.follow(shards, entry.read_at, now)

    def _do(self, step: Step, now: float) -> None:
        """Have a member of this sidecar open a link or let it go; a link that it cannot open is noted as refused."""
        member, actions = self.state.local.get(step.member), self._actions.get(step.member)
        if member is None or actions is None:
            return
        with self._a_session():
            if step.act is Act.LET_GO:
                actions.let_go(member, step.shard)
            elif why := actions.open(member, step.shard):
                self.state.refused(member, step.shard, why, now, lacked_room=True)

    def _log(self, steps: Sequence[Step]) -> None:
        """Log at debug which links were opened and let go, or how many and the first of them."""
        for act in Act:
            if shards := [step.shard for step in steps if step.act is act]:
                log.debug("%s: %s: %s", self._title, act.value, ", ".join(some(shards)))

    @contextmanager
    def _a_session(self) -> Iterator[None]:
        """Log an unexpected error of one session, which must not keep the others from their steps."""
        try:
            yield
        except Exception:
            log.exception("%s: unexpected error of a session", self._title)

    def _ask(self, question: Awaitable[None]) -> None:
        task = asyncio.ensure_future(question)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _is_there(self, question: Question) -> None:
        is_there = await self.room.line.is_there(self.room.asked, question.queue)
        self.state.answered(question, is_there, time.monotonic())
        self._wake.set()

    async def _count(self, shards: Sequence[str]) -> None:
        """Count the consumers of shards, one after the other, until the broker does not answer."""
        for shard in shards:
            try:
                consumers = await self.room.line.consumers(shard)
            except MissingError:
                self.state.missing(shard, time.monotonic())
                continue
            self.state.counted(shard, consumers, time.monotonic())
            self._wake.set()
            if consumers is None:
                return

    def _check_ack_timeouts(self, now: float) -> None:
        """End the links whose client has not settled a delivery within the limits."""
        self._actions = {each: actions for each, actions in self._actions.items() if each in self.state.local}
        found: list[tuple[float, str, str]] = []
        for member in list(self.state.local.values()):
            actions = self._actions[member.id]
            with self._a_session():
                since, limit = actions.hangs_since(member), self._parts.ack_timeout
                if since and (now < member.stalled_until or 0 < limit < now - since):
                    found.append((since, member.client or member.id, "a shard that it lost"))
                    # In short steps, so that it is fit again soon after it has acked.
                    if member.stalled_until < now + 2 * ACKS_EVERY:
                        self.state.stalled(member, now + 3 * ACKS_EVERY, now)
                for shard, at in actions.oldest_unacked(member).items():
                    if not self._end_if_ack_overdue(member, actions, shard, now, now - at):
                        found.append((at, member.client or member.id, shard))
        self.oldest_unacked_at, *of = min(found, default=(0.0, "", ""))
        self.oldest_unacked_of = of[0], of[1]

    def _end_if_ack_overdue(self, member: Member, actions: Actions, shard: str, now: float, age: float) -> bool:
        """End a link of which a delivery is so many seconds old, if that is too long; return whether it was ended."""
        parts, link = self._parts, member.links.get(shard)
        if link is None:
            return False
        then = "so the shard goes to the next member"
        # Behind a marker no member waits. A message that takes longer than groups_leave_timeout would never be settled,
        # since the next link finds the marker, too.
        is_awaited = link.state == LinkState.LEAVING and (member.leaving or not link.is_marked)
        leaves_for = now - link.changed_at if is_awaited else 0.0
        if parts.leave_timeout and leaves_for > parts.leave_timeout:
            limit = "groups_leave_timeout"
        elif parts.ack_timeout and age > parts.ack_timeout:
            limit = "groups_ack_timeout"
            self.stalled += 1
            if actions.is_with_client(member, shard):
                self.state.stalled(member, now + parts.ack_timeout, now)
            else:
                then = "as it waits in series, so the shard's messages come again"
        else:
            return False
        log.warning(
            "%s: member %s has not acked a message of shard %r for %.0f s (%s), %s",
            *(self._title, member.client or member.id, shard, age, limit, then),
        )
        actions.give_up(member, shard)
        return True

    def _check_starved(self, now: float) -> None:
        """End the links that bring nothing of their shards though messages wait there.

        RabbitMQ has a quorum queue's deliveries made by the replica on the consumer's node. If that does not run, the
        queue takes publishes, counts the consumer as active, and sends it nothing for ever (measured on 4.3.6). The
        next consumer in the line may be by another node: that of another member, or of a command that drains the shard.

        A sidecar that does not hear the others may be so as the broker has an alarm, and takes no acks.
        """
        if not self.state.peers.hears(now):
            return
        for shard in self.readings.waiting:
            member = self.state.local.get(self.state.decision.owners.get(shard, ""))
            actions = self._actions.get(member.id) if member is not None else None
            if member is None or actions is None or (starved := self.readings.starved(shard)) < STARVED:
                continue
            with self._a_session():
                link = member.links.get(shard)
                if link is None or link.state != LinkState.OPEN or not actions.has_nothing(member, shard):
                    continue
                if max(link.delivered_at, link.changed_at) > self.readings.waiting[shard]:
                    continue
                log.warning(
                    "%s: messages of shard %r wait, and RabbitMQ has sent none to its only consumer, member %s, for"
                    " %.0f s: the next consumer gets the shard",
                    *(self._title, shard, member.client or member.id, starved),
                )
                self.state.starved(member, shard, now)
                actions.give_up(member, shard)

    def _held_of(self, shard: str) -> set[str]:
        """Return the fingerprints of the messages of a shard with tries that members of this sidecar have here."""
        found: set[str] = set()
        for member in self.state.local.values():
            with self._a_session():
                found.update(self._actions[member.id].fingerprints(member, shard) if shard in member.links else ())
        return found

    def _look_at_keys(self) -> None:
        """Gather the figures of keys in series that wait, and what came back, from this sidecar's members."""
        self.backlogs = []
        for member in self.state.local.values():
            with self._a_session():
                backlog = self._actions[member.id].backlog(member)
                if backlog is not None:
                    self.backlogs.append(backlog)
                self._take_returns(member)

    def _take_returns(self, member: Member) -> None:
        self.returns += member.returns
        self.crashes += member.crashes
        member.returns = member.crashes = 0

    async def blocked_keys(self) -> list[BlockedKey]:
        """Return the keys of members of this sidecar that wait for one message, longest first, MOST_KEYS at the most.

        Others have a turn between two shards: what is returned is not one moment's.
        """
        found: list[BlockedKey] = []
        for member in list(self.state.local.values()):
            for shard in list(member.links):
                actions = self._actions.get(member.id)
                with self._a_session():
                    found += actions.blocked_keys(member, shard) if actions is not None else ()
                if len(found) > 2 * MOST_KEYS:
                    found = sorted(found)[:MOST_KEYS]
                await asyncio.sleep(0)
        return sorted(found)[:MOST_KEYS]

    def _tell_redelivered(self, now: float) -> None:
        """Log each shard of which a message goes round, and again when the number of times has doubled."""
        for shard in self.redelivered.keys() - self.state.present:
            del self.redelivered[shard]  # it is no shard any more, and there may be any number of such
        for shard, counted in self.redelivered.items():
            if times := counted.news(now):
                why = "as consumers return it or end with it"
                log.warning("%s: a message of shard %r has come again %d times, %s", self._title, shard, times, why)


def counted(group: RunningGroup) -> Counter[str]:
    """Return the totals of a group that metrics add up over its lives in this process."""
    found = Counter(moves=group.state.moves, stalled=group.stalled, lost=group.state.peers.lost)
    found.update(returns=group.returns, orders=group.orders + group.pausing.orders, crashes=group.crashes)
    return found
