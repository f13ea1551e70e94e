"""The groups of this sidecar: lets members join and leave, and keeps each group that has a member at work."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from proxy.groups.attempts import Attempts
from proxy.groups.broken import Broken
from proxy.groups.membership import Connect, Membership
from proxy.groups.model import Actions, Member
from proxy.groups.redelivered import Redelivered
from proxy.groups.report import keys_report, report
from proxy.groups.running import Parts, RunningGroup, counted
from proxy.groups.shard_readings import Exactness, mixed, no_group, partly_in_series, queues_of, read, unreadable
from proxy.groups.timing import TIMEOUT_ABOVE
from proxy.settings.config import Settings
from proxy.settings.patterns import Patterns
from proxy.topology.bindings import GROUP_NAME, RING_TYPES, TopologyError
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.management import Management, ManagementError
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, Name, Router

log = logging.getLogger(__name__)

NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
INTERNAL_ERROR: Final = 541

_FAREWELL: Final = 1.5
"""Seconds that all groups together have to send their last beats when the process ends."""

MOST_NAMES: Final = 1_000
"""The most groups whose totals are counted under their own names; all further groups share one count."""


class Groups:
    """All groups that clients of this sidecar consume from; it lives as long as the process."""

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        router: Router,
        api: Management,
        connect: Callable[[str], Connect],
        process: str,
    ) -> None:
        """`connect` returns how to connect to a virtual host as this sidecar's own user.

        `process` is the id of this process, which no other sidecar has.
        """
        self._patterns = Patterns(settings.groups)
        self._requires_exact = settings.groups_require == "exact"
        self._lookup_timeout = settings.lookup_timeout
        host = socket.gethostname()
        limits = (settings.groups_ack_timeout, settings.groups_leave_timeout)
        operators = frozenset(settings.groups_operators)
        self._parts = Parts(scheduler, router, api, Membership(connect), process, host, limits[0], operators, limits[1])
        self._joining: dict[str, asyncio.Task[None]] = {}
        """The tasks of the members that have asked to join, by id."""
        self._groups: dict[Name, RunningGroup] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._redelivered: dict[Name, dict[str, Redelivered]] = {}
        """By group and shard, the redeliveries to members of this sidecar."""
        self._attempts: dict[Name, Attempts] = {}
        """The tries of messages in series: a program that crashes at one has no member for some time."""
        self._broken: dict[Name, Broken] = {}
        """The shards that cost a client its connection: it may have been the group's only one here."""
        self._totals: dict[Name, Counter[str]] = {}
        """The totals of groups that have no member at this sidecar any more, and the dead letters of all."""

    def select(self, patterns: Iterable[str]) -> None:
        """Take the setting `groups` anew, for the consumers from now on: members stay until they leave."""
        self._patterns = Patterns(patterns)

    def exchanges(self) -> set[Name]:
        """Return the exchanges of the groups that this sidecar has members of."""
        return {group.ring for group in self._groups.values()}

    @property
    def consumer_timeout(self) -> float:
        """The seconds after which the broker itself takes back what is not acked; 0 for the broker's own setting."""
        return self._parts.ack_timeout and self._parts.ack_timeout + TIMEOUT_ABOVE

    def match(self, vhost: str, exchange: str) -> bool:
        """Return whether the setting `groups` names an exchange, so that clients may consume from its name.

        The name may also be that of one of the exchange's groups, such as `orders/audit`.
        """
        return self._patterns.match(vhost, exchange) or bool(self._before_slash((vhost, exchange)))

    def _before_slash(self, name: Name) -> str:
        """Return the part of a name before its last slash, if the setting `groups` names that; empty otherwise."""
        exchange, _, group = name[1].rpartition("/")
        is_group = exchange and GROUP_NAME.fullmatch(group) and self._patterns.match(name[0], exchange)
        return exchange if is_group else ""

    async def shards(self, name: Name) -> list[str] | None:
        """Return the queues of the group of this name, for a client that wants to consume it.

        None if the name is no group of a hash exchange.

        Raises Absent or NotReadable where the management API does not tell, and has not told before. NotReadable is
        also raised for a group that a hash exchange with other groups does not have.
        """
        exchange, entry = await self._found(name)
        if entry.exchange_type not in RING_TYPES:
            return None
        queues = queues_of(entry, name[1], exchange)
        if not queues and exchange != name[1]:
            if entry.groups:
                raise NotReadable(no_group(name[1], exchange, entry))
            return None
        return queues

    async def _found(self, name: Name) -> tuple[str, Entry]:
        """Return the exchange whose group has this name, and what is known of it. Raises Absent or NotReadable.

        Where there is an exchange of the part before the last slash, and it has no groups but its own, an exchange of
        the whole name comes first, if the setting `groups` names that too.
        """
        exchange, is_named = self._before_slash(name), self._patterns.match(*name)
        if exchange:
            try:
                entry = await self._entry((name[0], exchange))
            except Absent:
                if not is_named:
                    raise
            else:
                if not is_named or name[1] in entry.groups:
                    return exchange, entry
        return name[1], await self._entry(name)

    async def _entry(self, name: Name) -> Entry:
        """Return what is known of an exchange, which is read unless it is known to be a hash exchange.

        It is also read if a declaration is to be read back. If that fails, the last reading of a hash exchange is good
        enough to consume by, since a group follows later ones. Raises Absent or NotReadable.
        """
        router = self._parts.router
        entry = router.entries.get(name)
        is_known = entry is not None and entry.exchange_type in RING_TYPES
        if not is_known or router.awaits_read_back(name):
            try:
                await self._parts.scheduler.look_up(name, self._lookup_timeout)
            except NotReadable:
                if not is_known:
                    raise
        entry = router.entries.get(name)
        if entry is None:
            raise Absent(f"exchange {name[1]!r} is gone")
        return entry

    def join(self, member: Member, actions: Actions) -> None:
        """Let a member join its group; returns at once.

        Later `actions.start` is called once, from the event loop and never from within this call, or `actions.refuse`
        where the member cannot join. Neither is called for a member that has left by then.
        """
        self._joining[member.id] = asyncio.create_task(self._joined(member, actions))

    def leave(self, member: Member) -> None:
        """Note that a member leaves: its links are let go, or have ended with its session.

        A member that is not known is ignored. A group goes on while links of a member that has left have yet to end.
        """
        if (task := self._joining.pop(member.id, None)) is not None:
            task.cancel()
        if (group := self._groups.get((member.vhost, member.group))) is not None:
            group.remove(member)

    def link_changed(self, member: Member) -> None:
        """Note that a link of a member has changed its state."""
        if (group := self._groups.get((member.vhost, member.group))) is not None:
            group.link_changed(member)

    def link_refused(self, member: Member, shard: str, code: int, text: str) -> None:
        """Note that the broker has ended a member's link to a shard, with this reply code and text.

        `code` is 0 where the broker has cancelled the consumer. The link is opened again after a pause; where the queue
        does not exist, only once a reading of the bindings shows it. A queue whose node is down is no such queue.
        """
        if (group := self._groups.get((member.vhost, member.group))) is not None:
            why = f"{code} {text}" if code else text
            group.link_refused(member, shard, why, is_missing=code == NOT_FOUND and "no queue" in text)

    def link_broken(self, member: Member, shard: str, text: str) -> None:
        """Note that the broker closes a member's connection, since it cannot consume a shard."""
        if (group := self._groups.get((member.vhost, member.group))) is not None:
            group.link_broken(shard, text)

    def report(self) -> list[dict[str, Any]]:
        """Return the state of each group that has members at this sidecar, as the admin listener shows it."""
        return [report(group) for _, group in sorted(self._groups.items())]

    async def report_of(self, name: Name) -> dict[str, Any] | None:
        """Return the state of one group, with new figures of its shards if these can be had at once; None if none."""
        group = self._groups.get(name)
        if group is None:
            return None
        await group.readings.read_for_report(self._lookup_timeout / 2)
        return report(group)

    async def keys_of(self, name: Name) -> dict[str, Any] | None:
        """Return the keys of a group that wait at members of this sidecar; None if it has no member of it."""
        group = self._groups.get(name)
        return keys_report(group, await group.blocked_keys()) if group is not None else None

    @property
    def running(self) -> Mapping[Name, RunningGroup]:
        """The groups that this sidecar has members of."""
        return self._groups

    def totals(self) -> dict[Name, Counter[str]]:
        """Return the counts of moves, stalled links, lost beats and dead letters of each group since the start."""
        found = {name: counter.copy() for name, counter in self._totals.items()}
        for name, group in self._groups.items():
            found.setdefault(self._counted_as(name), Counter()).update(counted(group))
        return found

    def count_dead_letter(self, name: Name, *, is_confirmed: bool) -> None:
        """Count a dead letter of a group, or a publish of one that was not confirmed."""
        self._totals.setdefault(self._counted_as(name), Counter())[
            "dead_letters" if is_confirmed else "dead_letters_failed"
        ] += 1

    def redelivered(self, now: float) -> dict[Name, dict[str, Redelivered]]:
        """Return by group and shard the redeliveries to members of this sidecar, and to those that left of late.

        A program that crashes at a message has no member for most of the time.
        """
        for name, shards in list(self._redelivered.items()):
            if name not in self._groups and not any(each.recent(now) for each in shards.values()):
                del self._redelivered[name]
        return self._redelivered

    async def aclose(self) -> None:
        """Tell the other sidecars that this one's members have left, and end all tasks; takes two seconds at most."""
        for task in self._joining.values():
            task.cancel()
        for group in list(self._groups.values()):
            self._end(group)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_FAREWELL)
        for task in self._leaving:
            task.cancel()

    async def _joined(self, member: Member, actions: Actions) -> None:
        """Let a member join; an unexpected error is logged, and refuses the member. Never raises."""
        try:
            await self._join(member, actions)
        except Exception:
            log.exception("unexpected error while a member joined")
            actions.refuse(member, INTERNAL_ERROR, "unexpected error of the sidecar")
        finally:
            self._joining.pop(member.id, None)

    async def _join(self, member: Member, actions: Actions) -> None:
        """Look the exchange up, and let the member start or refuse it."""
        name = (member.vhost, member.group)
        where = f"exchange {name[1]!r} in vhost {name[0]!r}"
        try:
            member.exchange, entry = await self._found(name)
        except Absent:
            actions.refuse(
                member, NOT_FOUND, f"no queue {name[1]!r} in vhost {name[0]!r}, and no exchange of that name"
            )
            return
        except NotReadable as error:
            actions.refuse(member, INTERNAL_ERROR, f"{where} cannot be read: {error}")
            return
        if entry.exchange_type not in RING_TYPES:
            why = f"its type is {entry.exchange_type!r}, and only hash exchanges have groups"
            actions.refuse(member, PRECONDITION_FAILED, f"{where} has no group: {why}")
            return
        if member.exchange != name[1] and name[1] not in entry.groups:
            actions.refuse(member, NOT_FOUND, no_group(name[1], member.exchange, entry))
            return
        seen = await self._exactness(name, member.exchange, entry) if self._requires_exact else None
        if seen is not None and (reasons := self._reasons(seen, member)):
            why = "; ".join(reasons)
            # Where the management API does not tell, a later try may succeed.
            code, what = (PRECONDITION_FAILED, "no") if seen.shards else (INTERNAL_ERROR, "perhaps no")
            actions.refuse(member, code, f"groups_require is exact, and {where} has {what} exact group: {why}")
            return
        actions.start(member)
        if member.id not in self._joining:
            return  # Its session could not start it, and `leave` was called from there.
        group = self._groups.get(name)
        if group is None:
            redelivered = self._redelivered.setdefault(name, {})
            attempts = self._attempts.setdefault(name, Attempts())
            group = self._groups[name] = RunningGroup(
                name, member.exchange, self._parts, seen, self._end, redelivered, attempts
            )
            group.state.broken = self._broken.setdefault(name, Broken())
        group.add(member, actions)

    def _reasons(self, seen: Exactness, member: Member) -> tuple[str, ...]:
        """Return why the group is not exact, or would not be with a new member.

        Where the members have different prefetches already, another one with one of these changes nothing.
        """
        group = self._groups.get((member.vhost, member.group))
        present = group.state.prefetches if group is not None else set()
        in_series = group.state.in_series if group is not None else set()
        own = member.held_at_most
        return (
            *seen.reasons,
            *(mixed({*present, own}) if own and own not in present else ()),
            *(partly_in_series({*in_series, member.in_series}) if member.in_series not in in_series else ()),
        )

    async def _exactness(self, name: Name, exchange: str, entry: Entry) -> Exactness:
        """Return what a new member must know of the shards, by a reading that is made now if there is none."""
        group = self._groups.get(name)
        if group is not None and group.readings.exactness.shards:
            return group.readings.exactness
        try:
            async with asyncio.timeout(self._lookup_timeout):
                return await read(self._parts.api, name[0], queues_of(entry, name[1], exchange), {})
        except (ManagementError, TopologyError) as error:
            return unreadable(error)
        except TimeoutError:
            return unreadable(ManagementError("no answer in time (lookup_timeout)"))

    def _end(self, group: RunningGroup) -> None:
        """Leave a group in a task of its own, if this is not done already."""
        if self._groups.get(group.name) is not group:
            return
        del self._groups[group.name]
        self._totals.setdefault(self._counted_as(group.name), Counter()).update(counted(group))
        self.redelivered(time.monotonic())  # forgets what is not recent
        self._broken = {
            name: broken
            for name, broken in self._broken.items()
            if name in self._groups or not broken.forget(time.monotonic())
        }
        for name, attempts in list(self._attempts.items()):
            attempts.expire(time.time())
            if name not in self._groups and (not attempts.shards or len(self._attempts) > MOST_NAMES):
                del self._attempts[name]
        if len(self._redelivered) > MOST_NAMES:
            self._redelivered.pop(group.name, None)
        task = asyncio.create_task(group.aclose())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _counted_as(self, name: Name) -> Name:
        """Return under which name a group's totals are counted: clients can make any number of exchanges."""
        return name if name in self._totals or len(self._totals) < MOST_NAMES else ("", "")
