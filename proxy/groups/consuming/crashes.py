"""Crashes of clients in series: which messages a client held that was lost without a close.

A process may have several connections, and all of them end with it. A message is taken for alone with its client only
if no other client of this sidecar was lost at nearly the same time with another message in its hands. A program with
several connections that are all at work has therefore no message alone, and none is taken for the culprit.
"""

import logging
import time
from itertools import islice
from typing import Final, NamedTuple

from proxy.groups.attempts import MOST_ATTEMPTS, Attempts
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.consuming.letters import payload_of
from proxy.groups.consuming.retries import fingerprint
from proxy.groups.consuming.series import SUSPECTED, Held, HeldState
from proxy.groups.consuming.tags import TaggedSource
from proxy.groups.model import Member

log = logging.getLogger(__name__)

TOGETHER: Final = 0.2
"""Seconds within which the connections of a process end that has ended, as the sidecar sees them.

The next client gets such a message later: its group waits for a moment before it moves shards.
"""


class _Alone(NamedTuple):
    """A message that was alone with its client."""

    attempts: Attempts
    shard: str
    fingerprint: str


class Crashes:
    """The crashes of the clients of one listener."""

    def __init__(self) -> None:
        self._at = float("-inf")
        """When a client was last lost that held anything, in monotonic seconds."""
        self._alone: _Alone | None = None
        """The message that was alone with it; None if it held several, or one that has no record."""

    def note(self, g: Consuming) -> None:
        """Note that the client of a session is lost without a close."""
        count, held = _in_hands(g)
        if not count:
            return
        alone: _Alone | None = None
        if count == len(held) == 1:
            ((each, member, shard),) = held
            alone = _Alone(member.attempts, shard, each.fingerprint)
        now = time.monotonic()
        if now - self._at < TOGETHER and alone != self._alone:
            if self._alone is not None:
                self._alone.attempts.note_company(self._alone.shard, self._alone.fingerprint)
            alone = None
        self._at, self._alone = now, alone
        again: dict[Member, int] = {}
        for each, member, shard in held:
            crashes = member.attempts.note_crash(shard, each.fingerprint, time.time(), is_alone=alone is not None)
            if crashes >= SUSPECTED:
                again[member] = again.get(member, 0) + 1
            rules = each.window.series.rules
            if rules.spares and alone is not None and crashes >= rules.crashes:
                member.attempts.note(shard, each.fingerprint, each.tries, time.time() + rules.longest)
        for member, suspects in again.items():
            member.crashes += 1
            log.warning(
                "group %r, virtual host %r: client %s was lost without a close, and held %d messages that an earlier"
                " client was lost with: each is delivered alone from now on",
                *(member.group, g.c.vhost, member.client, suspects),
            )


def _in_hands(g: Consuming) -> tuple[int, list[tuple[Held, Member, str]]]:
    """Return how many messages the client holds, and those in series that have a record, with member and shard.

    A channel's ordinary deliveries from before its first member count as one, also where it is not known of them.
    A message without a key has none, as in `retries.known`, and one that is STALE is another client's by now.
    """
    numberings = {each.numbering: None for each in g.sources.values() if isinstance(each, TaggedSource)}
    count, found = 0, list[tuple[Held, Member, str]]()
    for numbering in numberings:
        count += len(numbering.unacked) + numbering.may_hold_own
        for delivery in islice(numbering.unacked.values(), MOST_ATTEMPTS - len(found)):
            held, source = delivery.held, delivery.source
            if held is None or not isinstance(source, HiddenChannel) or source.consumer.leaving:
                continue
            link = source.link
            if held.state == HeldState.CLIENT and held.key and link is not None:
                held.fingerprint = held.fingerprint or fingerprint(held.key, held.header, payload_of(held.body))
                found.append((held, source.consumer.member, link.shard))
    return count, found
