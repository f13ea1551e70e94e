"""Dead letters of groups in series: published by the sidecar itself, and only then acked at the shard.

RabbitMQ's own dead-lettering loses a message whose dead-letter exchange has no queue for it, and tells neither the key
nor the tries. A dead letter of a group is mandatory and confirmed, and goes out as this sidecar's own user, not on the
client's connection: an alarm of the broker stops connections that publish, and the client's acks with them.

It has the routing key of the message's publish; `letters.py` says what else.
"""

import asyncio
import logging
from typing import Final

from proxy.groups.consuming.letters import Letter, header_of, payload_of
from proxy.groups.groups import Groups
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult
from proxy.publisher.pool import Publisher, Unavailable
from proxy.publisher.protocol import Full
from proxy.routing.counters import Counters
from proxy.routing.route import PUBLISH
from proxy.wire.frames import Fault, shorted

log = logging.getLogger(__name__)

MOST_TOLD: Final = 1_000
"""The most reasons of failures that the log tells of."""

MOST_AT_ONCE: Final = 100
"""The most dead letters of one virtual host that await their confirms; further ones wait for their turn."""


class DeadLetters:
    """The dead letters of all groups of this sidecar; it lives as long as the process."""

    def __init__(self, publisher: Publisher, exchange: str, within: float, confirmed: float, groups: Groups) -> None:
        """Take the exchange that they are published to, empty for none, and `groups`, which counts them.

        A connection has `within` seconds to come up, and the broker has `confirmed` seconds to confirm one.
        """
        self._publisher, self.exchange, self._groups = publisher, exchange, groups
        self._within, self._confirmed = within, confirmed
        self._turns: dict[str, asyncio.Semaphore] = {}
        """By virtual host, so that none waits for another one's connection, or for queues that confirm nothing."""
        self._counters = Counters()
        self._told: set[tuple[str, str]] = set()
        """The reasons for which a dead letter was not confirmed, by virtual host, that the log has told of."""

    async def publish(self, letter: Letter) -> bool:
        """Publish a dead letter; return whether the broker has confirmed it. The log tells why not, once."""
        async with self._turns.setdefault(letter.vhost, asyncio.Semaphore(MOST_AT_ONCE)):
            why = await self._publish(letter)
        self._groups.count_dead_letter((letter.vhost, letter.group), is_confirmed=not why)
        if why and (letter.vhost, why) not in self._told and len(self._told) < MOST_TOLD:
            self._told.add((letter.vhost, why))
            log.error(
                "group %r, virtual host %r: no dead letter goes to the exchange %r (groups_dead_letter), and the keys"
                " of the messages stand still: %s",
                *(letter.group, letter.vhost, self.exchange, why),
            )
        return not why

    async def _publish(self, letter: Letter) -> str:
        """Publish a dead letter; return why it is not confirmed, an empty string where it is."""
        exchange = self.exchange.encode()
        try:
            header, body = header_of(letter), payload_of(letter.body)
            connection = self._publisher.group(letter.vhost).connection
            await self._publisher.cleared(connection, self._within)
            protocol = connection.protocol
            if protocol is None:
                return connection.why
            answer = _Answer()
            method = PUBLISH + shorted(exchange) + shorted(letter.key)
            protocol.publish(exchange, method, header, b"", b"", body, (answer, 0, self._counters))
        except (Fault, Unavailable, Full, ValueError) as error:
            return str(error)
        connection.wake()
        try:
            async with asyncio.timeout(self._confirmed):
                result = await answer.result
        except TimeoutError:
            return f"no confirm for {self._confirmed:g} s (confirm_timeout)"
        return "" if result.outcome is Outcome.CONFIRMED else result.detail or result.outcome.value


class _Answer:
    """The receiver of one publish's result."""

    def __init__(self) -> None:
        self.result: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()

    def settled(self, index: int, verdict: PublishResult) -> None:
        if not self.result.done():
            self.result.set_result(verdict)
