"""One task's connection: a queue's rows go out in order while the window has room, and again if they were lost."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pipeline import PipelineError
from pipeline.data.live import tls_of
from pipeline.publish.depth import Allowance, Depths
from pipeline.publish.messages import RowMessage
from pipeline.publish.options import Options
from pipeline.publish.pacing import Pace, Patience
from pipeline.publish.routes import Routes
from pipeline.publish.window import Window
from proxy.process.identity import of_job
from proxy.publisher.connection import BrokerConnection
from proxy.publisher.dial import Brokers
from proxy.publisher.protocol import Full
from proxy.routing.counters import Counters
from proxy.settings.config import Settings
from proxy.settings.credentials import of_url
from proxy.wire.frames import shorted

log = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK = 250
"""The most messages of one turn of the event loop, which go out in one write."""

CHUNK_BYTES = 1 << 18

_NOT_CLEAR = 0.1
"""Seconds between looks at a broker that refuses a user whom it took before."""

_NO_CHANNEL = 0.1
"""Seconds of a pause after which a channel may be free: one whose rows are all confirmed by then."""


@dataclass(frozen=True)
class SendResult:
    """The result of one task that has published all of its rows."""

    rows: dict[str, int]
    """How many rows were confirmed, by queue name; queues that got none are left out."""
    again: int
    """How many times a row was sent again that its queue may have had already: the most messages that are there twice.

    A row that was returned because it had no queue does not count: it is in none.
    """


class Sender:
    """The sending of one task's rows over a broker connection, until each row is confirmed or `patience` ends.

    A row that is lost with a connection, refused or not answered in time is sent again, on a new connection if the
    present one is gone: once all that is in flight is settled, and before any row behind it. A queue thus has its rows
    in their order, save that some come again.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        routes: Routes,
        window: int,
        patience: Patience,
        pace: Pace | None = None,
        depths: Allowance | None = None,
    ) -> None:
        """Take a connection that the caller runs, and limits.

        `window` is the most rows without a confirm. Without `pace` the rate has no limit, without `depths` the
        queues' depths have none.
        """
        self._connection, self._routes = connection, routes
        self._patience, self._pace, self._depths = patience, pace, depths
        self.window = Window(routes.queues, window, self._news)
        self._again: deque[RowMessage] = deque()
        """The rows that go out before any other: lost ones, and the one whose queue was too deep."""
        self._stop = ""
        self._full = -1
        """The index of the queue that may not be sent the next row as deep as it is; below 0 for none."""
        self._crowded = False
        """Whether the next row goes to a lane for which the connection has no channel free."""
        self._counters = Counters()
        self._awaited: Callable[[], bool] | None = None
        self._room: asyncio.Future[None] | None = None

    def _news(self) -> None:
        """Wake the waiting `_until` if its condition holds now."""
        if self._awaited is not None and self._awaited() and self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def _until(self, awaited: Callable[[], bool]) -> None:
        """Wait until a condition holds that only the window's news can change.

        This ends, since the connection gives up what takes too long.
        """
        if not awaited():
            self._awaited, self._room = awaited, asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._awaited = None

    @property
    def over(self) -> bool:
        """Whether the task has failed, so that nothing more is published."""
        return bool(self._stop)

    async def send(self, messages: Iterable[RowMessage]) -> None:
        """Publish messages in order, and return once all were sent, confirmed or not, or the task is `over`."""
        turn = iter(messages)
        if not (self._again or self.window.held):
            self._patience.rest()  # Upstream may have taken its time.
        while not self.over:
            await self._until_clear()
            sent, whole = (0, False) if self.over else self._publish(turn)
            self._connection.wake()
            # The connection writes at the end of this turn of the loop.
            await asyncio.sleep(self._pace.take(sent, time.monotonic()) if self._pace and sent else 0)
            if whole:
                return

    def _publish(self, turn: Iterator[RowMessage]) -> tuple[int, bool]:
        """Hand the connection as many messages as go out at once; return how many, and whether there are no more."""
        routes, window, again, depths, counters = self._routes, self.window, self._again, self._depths, self._counters
        index_of, targets, by_queue = routes.index_of, routes.targets, window.by_queue
        protocol = self._connection.protocol
        assert protocol is not None  # or the connection were not clear
        count = min(CHUNK, window.room, self._pace.burst if self._pace else CHUNK)
        room, sent = CHUNK_BYTES, 0
        while sent < count and room > 0:
            message = again.popleft() if again else next(turn, None)
            if message is None:
                return sent, True
            key, hashed, body, header = message
            index = index_of(hashed)
            if depths is not None and window.sent(index) >= depths.most[index]:
                again.appendleft(message)
                self._full = index
                break
            queue_window, target = by_queue[index], targets[index]
            # Through a lane a message keeps its routing key, and so needs no stamp with it.
            method, stamp = (target.method + shorted(key), b"") if target.is_lane else (target.method, routes.stamp)
            pending = queue_window, queue_window.next, counters
            try:
                protocol.publish(target.exchange, method, header, stamp, key, body, pending)
            except Full:
                again.appendleft(message)
                self._crowded = True
                break
            except ValueError as error:
                self._stop = f"queue {routes.queues[index]!r}, key {key[:60]!r}: {error}"
                break
            window.add(queue_window, message)
            sent += 1
            room -= len(body)
        return sent, False

    async def _until_clear(self) -> None:
        """Wait until a row may be sent, or the task is `over`."""
        window = self.window
        while not self.over:
            if window.lost:
                await self._recover()
            elif not self._connection.clear:
                await self._reachable()
            elif window.room <= 0:
                await self._until(lambda: window.roomy or window.lost)
            elif self._full >= 0:
                await self._drained()
            elif self._crowded:
                self._crowded = False
                await asyncio.sleep(_NO_CHANNEL)
            else:
                return

    async def _recover(self) -> None:
        """Wait until nothing is in flight, take back the rows that have to be sent again, and pause."""
        window = self.window
        await self._until(lambda: not window.unsettled)
        faults, hopeless = window.faults, window.hopeless
        self._again.extendleft(reversed(window.take_back()))
        if hopeless:
            self._stop = faults
        elif self._left() <= 0:
            self._give_up(faults)
        else:
            await asyncio.sleep(self._patience.pause())

    def _left(self) -> float:
        return self._patience.left(self.window.total, time.monotonic())

    def _give_up(self, why: str) -> None:
        waiting = len(self._again)
        more = f"; {waiting:,} {'row waits' if waiting == 1 else 'rows wait'} to be sent again" if waiting else ""
        self._stop = f"{why}{more}; no row was confirmed for {self._patience.limit:g} s (retry_timeout)"

    async def _reachable(self) -> None:
        """Wait until the connection takes rows, or the broker has been waited for long enough."""
        connection = self._connection
        try:
            async with asyncio.timeout(self._left()):
                while not connection.clear:
                    await connection.settled()
                    if connection.login_refused and not connection.connects:
                        self._stop = connection.why
                        return
                    if not connection.clear:
                        await asyncio.sleep(_NOT_CLEAR)
        except TimeoutError:
            self._give_up(connection.why)

    async def _drained(self) -> None:
        """Look at the queue that is full, and pause if it still is.

        Only looks that fail count against the limit of time; a full queue is waited for without limit.
        """
        index, self._full = self._full, -1
        assert self._depths is not None
        try:
            pause = await self._depths.look(index, self.window, time.monotonic())
        except PipelineError as error:
            pause = self._patience.pause()
            if self._left() <= 0:
                self._give_up(str(error))
                return
        else:
            self._patience.rest()
        await asyncio.sleep(pause)

    async def meanwhile(self, upstream: asyncio.Future[T]) -> T:
        """Return the result of `upstream`, and meanwhile send again the rows that are lost."""
        upstream.add_done_callback(lambda _: self._news())
        while not (upstream.done() or self.over):
            if self._again or self.window.lost:
                await self.send(())
            else:
                await self._until(lambda: upstream.done() or self.window.lost)
        return await upstream

    async def finish(self) -> None:
        """Wait until all rows are confirmed. Raises PipelineError if the task is `over` before."""
        window = self.window
        while (self._again or window.held) and not self.over:
            if self._again or window.lost:
                await self.send(())
            else:
                await self._until(lambda: not window.held or window.lost)
        if self.over:
            # Rows that are confirmed until then are counted.
            await self._until(lambda: not window.unsettled)
            raise PipelineError(f"{self._stop}; {window.total:,} rows of this task were confirmed before")


def connected(settings: Settings, done: Callable[[], bool]) -> tuple[BrokerConnection, Awaitable[None]]:
    """Return a connection to the broker and the coroutine that runs it.

    The coroutine connects again after each loss, until `done` returns true.
    """
    brokers = Brokers(settings.brokers, tls_of(settings.broker_url, settings), settings.lookup_timeout)
    connection = BrokerConnection(
        brokers.dial,
        lambda: of_url(settings.broker_url),
        settings.default_vhost,
        open_timeout=settings.lookup_timeout,
        confirm_timeout=settings.confirm_timeout,
        inventory=of_job(),
    )
    return connection, connection.run(lambda up: not done())


async def publish(batches: Iterator[Iterable[RowMessage]], options: Options, routes: Routes) -> SendResult:
    """Publish one task's rows, batch by batch, until each is confirmed.

    Raises PipelineError if a row cannot be confirmed, or was not within `retry_timeout`: then the task has to be
    published again as a whole.
    """
    settings, loop = options.settings, asyncio.get_running_loop()
    over = False
    connection, running = connected(settings, lambda: over)
    rate = options.rate / options.connections if options.rate else 0
    pace = Pace(rate, time.monotonic()) if rate else None
    connecting = asyncio.ensure_future(running)
    async with Depths(settings) as depths:
        allowance = Allowance(depths, routes.behind, options.max_depth) if options.max_depth else None
        sender = Sender(connection, routes, options.window, Patience(options.retry_timeout), pace, allowance)
        try:
            while not sender.over:
                # In a thread: upstream may take its time, and the broker wants heartbeats meanwhile.
                batch = await sender.meanwhile(loop.run_in_executor(None, next, batches, None))
                if batch is None:
                    break
                await sender.send(batch)
            await sender.finish()
        finally:
            over = True
            await connection.aclose()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
    rows = {queue: count for queue, count in zip(routes.queues, sender.window.confirmed, strict=True) if count}
    return SendResult(rows, sender.window.repeated)
