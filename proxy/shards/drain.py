"""The part of a change of generations over AMQP: probe that lanes are closed, and be the last consumer of old queues.

Theory
------

**Probes.** A mandatory message to a lane comes back once the node that takes it routes by the lane's end. Nodes learn
of it one after the other, and a frozen one goes on routing, so each node is asked, until the probe comes back.

**The last consumer.** An old queue has single active consumer. Its consumers stand in a line, in the order in which
they came, and the first gets all messages. The drainer joins that line. The group's member lets the queue
go when it gets a marker and has acked all before it. The drainer is the active consumer then, puts a further marker,
and looks at each message up to that one. If all are markers, the queue had nothing else: nobody else consumes, a
requeued message comes before what was put later, and the broker returns what late publishers send. If one is a message,
the drainer closes its channel, which puts the message back in its place, and joins the line again.

A quorum queue puts a message that comes back behind those that came back before. The drainer therefore takes at least
as many at a time as a consumer before it may have held: of ten that came back, one in its hands would come back last.
The broker counts each as a delivery. The drainer therefore joins the line behind a member, or where nothing waits; it
looks now and then at a queue without a member only if no delivery limit counts that. A classic queue puts each message
back in its place, so the drainer takes one at a time there.

**Programs that consume an old queue by its own name** (`--drained-by empty`) know no markers. They stand in the same
line, with the same priority, so the drainer is the active consumer once they have stopped, and puts no marker before
that. A program may cancel its consumer and hold messages still. A quorum queue's passive declaration counts the active
consumer, and each cancelled one that holds messages, but none that waits (4.3.6). Once it counts one, again and again,
while the drainer is active, nobody else holds any, and the drainer puts the marker up to which it looks. A classic
queue does not count cancelled consumers, so its programs are not waited for.
"""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from proxy.shards.broker import NodeConnection, answered
from proxy.shards.consumers import Consumer
from proxy.topology.marker import DRAINER, LINK_PRIORITY, MARKER, PROBE, STAMP

_PROBE_AGAIN = 0.05
"""Seconds until a lane is probed again that a node has routed by."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds until a drainer joins the line of a queue again: the pause doubles up to the longest."""

_NO_PROCESS_PAUSE = 25.0
"""Seconds until a queue is tried again that has no process."""

_LOOKS = 2.0, 4.0, 8.0, 16.0, 32.0
"""Seconds from one look of a drainer in the line whether its queue is there, and its marker, to the next one.

After the last one it leaves the line and joins again by another node. RabbitMQ has deliveries of a quorum queue made by
the replica on the consumer's node, and where that has crashed, nobody makes them (4.3.6, seen after two nodes ended
during a deletion of the queue).
"""

_PROGRAMS_EVERY, _PROGRAMS_LOOKS = 2.0, 30
"""Seconds from one look at the programs in the line to the next one, and after how many this process joins again."""

_ALONE_LOOKS = 3
"""How many looks in a row must count this consumer alone."""

_LEAST_PREFETCH, _NO_PREFETCH = 200, 2000
"""How many messages a member holds that sets no prefetch, and how many a quorum queue gives to such a program."""

_TWICE = 2
"""How often the broker must say that a queue is not there."""


async def closed(connection: AbstractConnection, lanes: Sequence[str]) -> None:
    """Return once a node returns what is sent to each lane. Raises OSError or AMQPError if it does not answer."""
    async with asyncio.TaskGroup() as tasks:
        channel = await answered(connection.channel(publisher_confirms=True, on_return_raises=True))
        for lane in lanes:
            tasks.create_task(_closed(channel, lane))
    with suppress(Exception):
        await answered(channel.close())


async def _closed(channel: AbstractChannel, lane: str) -> None:
    exchange = await channel.get_exchange(lane, ensure=False)
    while True:
        try:
            # A probe that is routed lies in the shard, where a member's sidecar acks it, and its client gets nothing.
            await answered(exchange.publish(aio_pika.Message(b"", headers={PROBE: True}), "", mandatory=True))
        except aio_pika.exceptions.DeliveryError as error:
            if error.frame.name == "Basic.Nack":
                await asyncio.sleep(_PROBE_AGAIN)
                continue
            return
        await asyncio.sleep(_PROBE_AGAIN)


async def delete(channel: AbstractChannel, queue: str) -> None:
    """Delete a queue by the channel whose consumer is its only one. Raises AMQPError, or OSError if there is no answer.

    RabbitMQ ends a deletion over AMQP even if the client is gone. A request to the management API ends with its client,
    which left 1 or 2 of 40 queues half deleted (4.3.6, 4.0.5, 3.10.8): they are listed as running and have no process.
    """
    await answered((await channel.get_queue(queue, ensure=False)).delete(if_unused=False, if_empty=False))


class Queue(NamedTuple):
    """An old queue."""

    name: str
    generation: int
    """The generation that ends."""
    is_quorum: bool = True
    may_look: Callable[[], bool] = lambda: False
    """Whether a message may be looked at now though no member consumes: no delivery limit counts that."""
    has_programs: bool = False
    """Whether programs may consume a quorum queue by its own name, and are waited for."""


class Line:
    """This process's place in the line of consumers of one old queue, until the queue is drained."""

    def __init__(
        self,
        nodes: Sequence[NodeConnection],
        queue: Queue,
        consumers: Callable[[str], Awaitable[Sequence[Consumer]]],
    ) -> None:
        """Take the connection to each node, and what lists the consumers of a queue by its name."""
        self._nodes, self._terms, self._consumers = nodes, queue, consumers
        self.queue = queue.name
        self._told = ""
        """The last text that was told."""
        self.has_no_process = False
        """Whether RabbitMQ said at the last try that the queue has no process: it is half deleted, or has no leader."""
        self._markers: set[str] = set()
        """The names of the markers of this process that are in the queue, as far as it knows."""

    async def drained(self, room: asyncio.Semaphore, say: Callable[[str], None]) -> AbstractChannel | None:
        """Return a channel whose consumer is the only one of the queue without a message; None if the queue is gone.

        The queue is to be deleted while that channel is open. `room` is held while this process is in the line, and
        `say` gets what is waited for. A queue that does not answer is asked again and again, each time by another node.
        """
        pause, missing = _FIRST_PAUSE, 0
        for node in itertools.cycle(self._nodes):
            if missing >= _TWICE:
                break
            async with room:
                channel: AbstractChannel | None = None
                try:
                    channel = await answered((await node.open()).channel())
                    if await self._joined_and_empty(channel, say, is_patient=pause >= _LONGEST_PAUSE):
                        return channel
                    missing, self.has_no_process = 0, False
                except aio_pika.exceptions.ChannelNotFoundEntity as error:
                    # RabbitMQ answers with the same code while the node of a classic queue is down.
                    missing, self.has_no_process = missing + 1 if "no queue" in str(error) else 0, False
                except (aio_pika.exceptions.AMQPError, OSError) as error:
                    text = str(error)
                    # The end of a connection is told to all who use it, whichever queue it is for.
                    if text.endswith("noproc") and f"queue '{self.queue}' in vhost" in text:
                        self.has_no_process = True
                        text += "; if this stays so while all nodes run, it is half deleted: delete it once more"
                    self._tell(text, say)
                if channel is not None:
                    with suppress(Exception):
                        await answered(channel.close())
            # Each try at a queue without a process costs all lines their connection, so they get time in between.
            await asyncio.sleep(_NO_PROCESS_PAUSE if self.has_no_process else pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    async def _joined_and_empty(
        self, channel: AbstractChannel, say: Callable[[str], None], *, is_patient: bool
    ) -> bool:
        """Join the line; return whether this consumer has become the active one and found nothing but markers.

        Raises AMQPError, also for a queue that is gone, and OSError if there is no answer.
        """
        listed = await self._consumers(self.queue) if self._terms.is_quorum else []
        await answered(channel.set_qos(self._prefetch(listed)))
        if await self._has_nobody(channel, say) and not (is_patient and self._terms.may_look()):
            return False
        inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        queue = await channel.get_queue(self.queue, ensure=False)
        # The priority is that of all others in the line, so that RabbitMQ takes them in their order of arrival.
        is_of_group = not self._terms.has_programs or any(each.is_link for each in listed)
        arguments: dict[str, Any] = {"x-priority": LINK_PRIORITY} if is_of_group else {}
        tag = f"{DRAINER}-{uuid.uuid4().hex}"
        await answered(queue.consume(inbox.put, consumer_tag=tag, arguments=arguments))
        self.has_no_process = False
        last, looks = "", iter(_LOOKS)
        while (wait := next(looks, None)) is not None:
            if not self._markers:
                if not await self._may_mark(channel, tag, inbox, say):
                    return False
                await self._put(channel)
            try:
                message = await asyncio.wait_for(inbox.get(), wait)
            except TimeoutError:
                found = (await answered(channel.declare_queue(self.queue, passive=True))).declaration_result
                if not found.message_count:  # a member without acks takes markers out of the queue
                    self._markers.clear()
                    last = ""
                continue
            looks = iter(_LOOKS)
            if not _is_own(message):
                return False
            if last and message.message_id == last:
                return True
            await answered(message.ack())
            self._markers.discard(message.message_id or "")
            if not last and await self._is_alone(channel, inbox, say):
                # This consumer is the active one, so whatever is in the queue comes before a marker that is put now.
                last = await self._put(channel)
        return False

    async def _has_nobody(self, channel: AbstractChannel, say: Callable[[str], None]) -> bool:
        """Return, and say, whether the queue has a message that is no marker of this process, and no consumer."""
        found = (await answered(channel.declare_queue(self.queue, passive=True))).declaration_result
        if found.consumer_count or (found.message_count or 0) <= len(self._markers):
            return False
        who = "program consumes it: start one again" if self._terms.has_programs else "member of the group consumes it"
        self._tell(f"no {who}", say)
        return True

    def _prefetch(self, listed: Sequence[Consumer]) -> int:
        """Return how many messages to take at a time: as many as come back together from one of these consumers."""
        if not self._terms.is_quorum:
            return 1
        return max([_LEAST_PREFETCH, *(each.prefetch or _NO_PREFETCH for each in listed)])

    async def _put(self, channel: AbstractChannel) -> str:
        """Put a marker into the queue, and return its name. Raises OSError if the queue does not take it."""
        name = uuid.uuid4().hex
        marker = aio_pika.Message(
            b"",
            headers={MARKER: self._terms.generation},
            message_id=name,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            priority=0,
        )
        try:
            await answered(channel.default_exchange.publish(marker, self.queue, mandatory=True))
        except aio_pika.exceptions.DeliveryError:
            raise OSError(f"queue {self.queue!r} takes no marker: it is gone, full, or has no leader") from None
        self._markers.add(name)
        return name

    async def _may_mark(
        self,
        channel: AbstractChannel,
        tag: str,
        inbox: asyncio.Queue[AbstractIncomingMessage],
        say: Callable[[str], None],
    ) -> bool:
        """Return once a marker reaches no program: this consumer, `tag`, is the active one, or only members are.

        False after a long wait, so that another node is tried.
        """
        if not self._terms.has_programs:
            return True
        for _ in range(_PROGRAMS_LOOKS):
            listed = await self._consumers(self.queue)
            programs = [each for each in listed if each.is_program]
            is_active = any(each.tag == tag and each.is_active for each in listed)
            if is_active or not inbox.empty() or (not programs and any(each.is_link for each in listed)):
                return True
            if programs:
                found = (await answered(channel.declare_queue(self.queue, passive=True))).declaration_result
                has_all = found.consumer_count and not found.message_count  # without a leader both are 0
                state = "has got all: stop it" if has_all else "has messages to do"
                self._tell(f"the program with the consumer {programs[0].tag[:60]!r} {state}", say)
            await asyncio.sleep(_PROGRAMS_EVERY)
        return False

    async def _is_alone(
        self, channel: AbstractChannel, inbox: asyncio.Queue[AbstractIncomingMessage], say: Callable[[str], None]
    ) -> bool:
        """Return once no cancelled consumer holds a message: True, or False if this consumer, the active one, has got
        something meanwhile, or after a long wait.

        A replica that does not know yet that it leads no more counts the program that was active before. It is told
        within a second or two if it can be reached, so some looks in a row must count this consumer alone.
        """
        if not self._terms.has_programs:
            return inbox.empty()
        alone = 0
        for _ in range(_PROGRAMS_LOOKS):
            if not inbox.empty():
                break
            found = (await answered(channel.declare_queue(self.queue, passive=True))).declaration_result
            alone = alone + 1 if found.consumer_count == 1 else 0
            if alone == _ALONE_LOOKS:
                return inbox.empty()
            if not found.consumer_count:
                self._tell("it has no leader", say)
            elif not alone:
                self._tell("a program that has stopped holds messages still", say)
            await asyncio.sleep(_PROGRAMS_EVERY)
        return False

    def _tell(self, text: str, say: Callable[[str], None]) -> None:
        """Say what the queue waits for, if that has changed."""
        if text != self._told:
            say(f"  {self.queue}: {text}")
            self._told = text


def _is_own(message: AbstractIncomingMessage) -> bool:
    """Return whether a message is a marker or a probe, as sidecars tell them from messages of clients."""
    if message.body or STAMP in message.headers:
        return False
    is_marker = not message.exchange and type(message.headers.get(MARKER)) is int
    return is_marker or PROBE in message.headers
