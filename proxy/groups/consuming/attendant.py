"""The attendant of a session whose client may consume from groups: it stands between the session and the groups."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from proxy.groups.consuming import consumer, group_name, links, settle
from proxy.groups.consuming.actions import GroupActions
from proxy.groups.consuming.crashes import Crashes
from proxy.groups.consuming.dead_letters import DeadLetters
from proxy.groups.consuming.events import (
    DeadLetterDue,
    DeclaredGroup,
    GroupEvent,
    JoinAsked,
    Left,
    LinkBroken,
    LinkChanged,
    LinkRefused,
    Shadowed,
    ShardsAsked,
)
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.groups.consuming.rules import Rules
from proxy.groups.groups import Groups
from proxy.session.attendant import Attendant
from proxy.session.connection import Connection
from proxy.settings.config import Settings
from proxy.settings.patterns import Patterns
from proxy.topology.lookups import Absent, NotReadable
from proxy.tracing.tracer import Tracer

log = logging.getLogger(__name__)

MOST_HIDDEN: Final = 1024
"""The most channels of one connection that are kept back for links."""

LEAST_CRASHES: Final = 3
"""The least crashes of clients that held a message after which it is not tried again: it is alone from two on."""

MOST_NAMED: Final = 1_000
"""The most names of groups that lines of the log tell of."""

MOMENT: Final = 0.05
"""Seconds between the last reject with requeue of a link and its being sent to the broker, unless the member leaves.

Pika rejects what it has not looked at yet one by one, right before it cancels its consumer.
"""

LONGEST: Final = 1.0
"""Seconds after the first of such rejects in a row in which all are sent, though there are always further ones."""


class Attendants:
    """The attendants of all sessions of a listener: each session gets its own by a call."""

    def __init__(
        self, groups: Groups, settings: Settings, dead_letters: DeadLetters, tracer: Tracer | None = None
    ) -> None:
        """Take the groups of this sidecar, and the settings that say which of them are in series, and how."""
        self.tracer = tracer
        self.groups, self.serial, self.dead_letters = groups, Patterns(settings.groups_in_series), dead_letters
        self.rules = Rules(
            settings.groups_window,
            settings.groups_retry_delay,
            settings.groups_retry_delay_max,
            settings.groups_retry_limit or 0,
            settings.groups_retry_then == "dead-letter" and bool(settings.groups_dead_letter),
            bool(settings.groups_dead_letter),
            max(settings.groups_retry_limit or 0, LEAST_CRASHES),
            settings.groups_hold_max,
            spares=settings.groups_retry_then == "dead-letter" and not settings.groups_dead_letter,
        )
        self.crashes = Crashes()
        self._named: set[tuple[str, str, type]] = set()
        """The names of groups that lines of the log have told of: virtual host, name, and kind of event."""

    def __call__(
        self,
        connection: Connection,
        peer: Callable[[], str],
        guarded: Callable[[Callable[[], None]], None],
        acted: Callable[[], None],
    ) -> "GroupAttendant":
        """Return the attendant of a new session; the arguments are those of `Attend` in proxy/session/shared.py."""
        return GroupAttendant(self, connection, peer, guarded, acted)

    def is_serial(self, vhost: str, group: str) -> bool:
        """Return whether the setting `groups_in_series` names a group, or the exchange that has it."""
        exchange = group.rpartition("/")[0]
        return self.serial.match(vhost, group) or bool(exchange and self.serial.match(vhost, exchange))

    def tells_first(self, vhost: str, event: Shadowed | DeclaredGroup) -> bool:
        """Return whether the log is to tell of an event about a group's name: once for each name."""
        key = (vhost, event.name, type(event))
        is_first = key not in self._named and len(self._named) < MOST_NAMED
        if is_first:
            self._named.add(key)
        return is_first


class GroupAttendant(Attendant):
    """The timer, the tasks and the words for the groups of one session; it lives as long as the session."""

    kept_back = MOST_HIDDEN

    def __init__(
        self,
        attendants: Attendants,
        connection: Connection,
        peer: Callable[[], str],
        guarded: Callable[[Callable[[], None]], None],
        acted: Callable[[], None],
    ) -> None:
        """Take what `Attendants` got."""
        self._attendants, self._groups = attendants, attendants.groups
        self._peer, self._guarded, self._acted = peer, guarded, acted
        timeout = round(self._groups.consumer_timeout * 1000)
        self.interceptor: GroupInterceptor = GroupInterceptor(
            connection, self._groups.match, timeout, attendants.is_serial, attendants.rules, attendants.tracer
        )
        self._actions = GroupActions(self.interceptor, acted)
        self._is_client_lost = False
        self._try: asyncio.TimerHandle | None = None
        """The timer for the next message of a member in series that is tried again; None while there is none."""
        self._try_at = 0.0
        """When that is, in monotonic seconds."""
        self._requeue: asyncio.TimerHandle | None = None
        """The timer for what the client has returned of links; None while there is nothing."""
        self._asking: set[asyncio.Task[None]] = set()
        """The tasks that read shards for a method that waits, and those that publish dead letters."""

    def go_on(self) -> None:
        """Tell the groups what has happened, and have the broker get in a moment what the client has returned."""
        interceptor = self.interceptor
        if interceptor.events:
            events, interceptor.events = interceptor.events, []
            for event in events:
                self._handle(event)
        settle.go_on_by_turns(interceptor)
        if interceptor.requeued and self._requeue is None:
            due = min(min(at.last + MOMENT, at.first + LONGEST) for at in interceptor.requeued.values())
            loop = asyncio.get_running_loop()
            self._requeue = loop.call_later(max(due - time.monotonic(), 0.0), self._guarded, self._hand_back)

        if interceptor.retrying:
            now = time.monotonic()
            dues = [
                each.series.wakes_at(now, takes=not each.numbering.full)
                for each in interceptor.retrying
                if each.series is not None
            ]
            due = min((each for each in dues if each is not None), default=now)
            if self._try is not None and self._try_at > due:
                self._try.cancel()
                self._try = None
            if self._try is None:
                self._try_at = due
                delay = max(due - now, 0.0)
                self._try = asyncio.get_running_loop().call_later(delay, self._guarded, self._try_again)

    def _handle(self, event: GroupEvent) -> None:
        """Do what one event of the session's interceptor asks of the groups or of the log."""
        interceptor = self.interceptor
        vhost = interceptor.c.vhost
        if isinstance(event, LinkChanged):
            self._groups.link_changed(event.member)
        elif isinstance(event, JoinAsked):
            name = interceptor.c.handshake.connection_name.decode(errors="replace")
            event.member.client = f"{self._peer()} {name}".rstrip()
            event.member.since = time.time()
            self._groups.join(event.member, self._actions)
        elif isinstance(event, Left):
            self._groups.leave(event.member)
        elif isinstance(event, LinkRefused):
            self._groups.link_refused(event.member, event.shard, event.code, event.text)
        elif isinstance(event, LinkBroken):
            self._groups.link_broken(event.member, event.shard, event.text)
        elif isinstance(event, ShardsAsked | DeadLetterDue):
            asks = self._tell_shards(event) if isinstance(event, ShardsAsked) else self._publish(event)
            task = asyncio.create_task(asks)
            self._asking.add(task)
            task.add_done_callback(self._asked)
        elif self._attendants.tells_first(vhost, event):
            text = "is a queue and the name of a group: the client uses the queue"
            if isinstance(event, DeclaredGroup):
                text = "is a group: queue.declare makes no queue of that name, and its arguments mean nothing"
            log.warning("client %s, virtual host %r: %r %s", self._peer(), vhost, event.name, text)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        """Forget a task that has ended; an unexpected error of it ends the session."""
        self._asking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._guarded(task.result)

    async def _tell_shards(self, event: ShardsAsked) -> None:
        """Read a group's shards, for which a client's queue.declare or basic.get waits, and go on with that method."""
        interceptor = self.interceptor
        shards, why = None, ""
        try:
            shards = await self._groups.shards((interceptor.c.vhost, event.name))
        except Absent:
            why = "the management API does not show the exchange"
        except NotReadable as error:
            why = str(error)
        interceptor.c.now = time.monotonic()
        if interceptor.c.running:
            self._guarded(lambda: group_name.found(interceptor, event.channel, shards, why))
            self._acted()

    async def _publish(self, event: DeadLetterDue) -> None:
        """Publish a dead letter, and have its message settled once it is confirmed."""
        is_confirmed = await self._attendants.dead_letters.publish(event.letter)
        interceptor = self.interceptor
        interceptor.c.now = time.monotonic()
        if interceptor.c.running:
            self._guarded(lambda: settle.dead_lettered(interceptor, event.held, is_confirmed=is_confirmed))
            self._acted()

    def _hand_back(self) -> None:
        self._requeue = None
        if self.interceptor.c.running:
            now = time.monotonic()
            settle.hand_back(self.interceptor, now - MOMENT, now - LONGEST)
            self._acted()

    def _try_again(self) -> None:
        self._try = None
        if self.interceptor.c.running:
            self.interceptor.c.now = time.monotonic()
            settle.try_again(self.interceptor)
            self._acted()

    def drain(self) -> None:
        """Have all members leave; the client is read on until it has settled what it got."""
        consumer.leave_all(self.interceptor)

    @property
    def may_close(self) -> bool:
        """Whether the client has settled all that it got by links."""
        return not self.interceptor.unacked

    def client_lost(self) -> None:
        """Count what the client held in series: any of it may be why the client is gone."""
        if not self._is_client_lost:
            self._is_client_lost = True
            self._attendants.crashes.note(self.interceptor)

    def lost(self) -> None:
        """Have the groups told that all members have ended."""
        interceptor = self.interceptor
        # After an unexpected error there may be members whose end nobody was told of.
        untold = [event.member for event in interceptor.events if isinstance(event, Left)]
        for member in (*links.lose_all(interceptor), *untold):
            self._groups.leave(member)
        for timer in (self._requeue, self._try):
            if timer is not None:
                timer.cancel()
        for task in self._asking:
            task.cancel()
