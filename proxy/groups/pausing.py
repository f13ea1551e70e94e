"""The pauses of one group at this sidecar: judges orders to pause and resume as they come. This module does no I/O."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from proxy.groups.changes import some
from proxy.groups.group import Group
from proxy.groups.model import LinkState
from proxy.groups.operators import Operators, OrderError, Sent
from proxy.groups.pauses import Heeded, PauseOrder, Pauses, decode

log = logging.getLogger(__name__)

_ASKERS: Final = "amq.rabbitmq.reply-to."
"""The beginning of the names of RabbitMQ's own queues for answers, whose owners await one.

An operator could else have this sidecar publish to a queue to which it may not publish itself.
"""

MOST_TOLD: Final = 100
"""The most messages of which the log tells that they are no orders."""


class Pausing:
    """The judge of a group's orders, which come first all from the beginning on, and then as they are given."""

    def __init__(
        self,
        name: str,
        state: Group,
        operators: Operators,
        title: str,
        answer: Callable[[str, bytes], None],
        changed: Callable[[], None],
    ) -> None:
        """`answer` is called with the queue that awaits an answer, and the answer; `changed` once pauses have changed.

        `name` is the group's, as clients consume it, and `title` how log lines begin.
        """
        self._name, self._state, self._operators, self._title = name, state, operators, title
        self._answer, self._changed = answer, changed
        self._read: Pauses | None = None
        """The pauses by the orders that were read so far, while those of the past are read."""
        self._told_of: set[str] = set()
        """Why messages were no orders, as the log has told: those of the past are read again now and then."""
        self.orders = 0
        """How many orders have counted as they were given."""

    def begun(self) -> None:
        """Note that all orders of the past come once more. Until they are known, what is paused stays so."""
        self._read = Pauses()

    def known(self) -> None:
        """Note that the last order of the past has come."""
        if self._read is not None:
            before, read, self._read = self._state.paused_shards, self._read, None
            self._state.paused(read, time.monotonic())
            after = self._state.paused_shards
            if before != after:
                self._tell(after)
            self._changed()

    def taken(self, sent: Sent) -> None:
        """Take the next message of the stream. A user who may not order gets no answer, and the log tells of it."""
        order, why = self._judged(sent)
        if order is not None and not why:
            why = (self._read or self._state.pauses).take(order, sent.user)
        if self._read is not None:
            self._state.still_awaits_pauses(time.monotonic())
            return
        if order is not None and not why:
            self.orders += 1
            what = f"shard {order.shard!r}" if order.shard else "all shards"
            log.warning("%s: operator %r: %s %s", self._title, sent.user, order.verb, what)
            self._state.paused(self._state.pauses, time.monotonic())
            if order.shard and order.shard not in self._state.present:
                why = f"kept, and counts once {order.shard!r} is a shard of the group, which it is not here"
            self._changed()
        if self._operators.may_order(sent.user) and sent.reply_to.startswith(_ASKERS):
            self._answer(sent.reply_to, msgspec.json.encode(self._heeded(why)))

    def _judged(self, sent: Sent) -> tuple[PauseOrder | None, str]:
        """Return the order that a message is, and an empty text; or None, and why it does not count (logged once)."""
        if not self._operators.may_order(sent.user):
            return None, "groups_operators does not name the user"
        try:
            order = decode(sent.body)
            if order.group != self._name:
                raise OrderError(f"group: {order.group!r} is another group")
        except OrderError as error:
            if (why := str(error)) not in self._told_of and len(self._told_of) < MOST_TOLD:
                self._told_of.add(why)
                log.warning("%s: a message of the operator %r is no order: %s", self._title, sent.user, why)
            return None, why
        return order, ""

    def _heeded(self, why: str) -> Heeded:
        state, paused = self._state, self._state.paused_shards
        links = [member.links[shard] for member in state.local.values() for shard in paused if shard in member.links]
        unacked = sum(link.unacked for link in links if link.state in (LinkState.OPEN, LinkState.LEAVING))
        return Heeded(state.host, why, 1 + len(state.peers.all), tuple(some(paused)), unacked)

    def _tell(self, paused: list[str]) -> None:
        told = [f"{shard} {self._state.pauses.of(shard)}" for shard in paused]
        log.warning("%s: %s", self._title, "; ".join(some(told)) or "no shard is paused any more")
