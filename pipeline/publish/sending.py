"""One task's connection: a queue's rows go out in order while the window has room; each one's fate is counted."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator

from pipeline import PipelineError
from pipeline.live import tls_of
from pipeline.publish.depth import Depths
from pipeline.publish.messages import Message
from pipeline.publish.options import Options
from pipeline.publish.pace import Pace
from pipeline.publish.routes import Routes, in_words
from proxy.amqp.brokers import Brokers
from proxy.amqp.confirm_channel import Verdict
from proxy.amqp.link import Link
from proxy.config import Settings
from proxy.credentials import of_url
from proxy.outcome import Outcome
from proxy.tally import Tally

CHUNK = 250
"""Messages put together in one turn of the event loop: they go out in one write."""

CHUNK_BYTES = 1 << 18

LOOK = 1.0
"""Seconds between looks at how deep the queues are."""

_WORDS = {
    Outcome.UNROUTABLE: "returned, since there was no queue to take them",
    Outcome.NACKED: "refused by the broker (basic.nack)",
    Outcome.INVALID: "refused by the broker",
    Outcome.UNKNOWN: "without an answer",
}


class Sender:
    """Publishes by a link that somebody runs, and is told of each publish's fate."""

    def __init__(self, link: Link, routes: Routes, window: int, timeout: float, pace: Pace | None) -> None:
        """`timeout`: seconds for which the broker may take nothing at all."""
        self._link, self._routes, self._window, self._timeout, self._pace = link, routes, window, timeout, pace
        self.confirmed = [0] * len(routes.queues)
        """Rows by queue, as `routes.queues` has them."""
        self._failed: dict[Outcome, Counter[str]] = {}
        self._why = ""
        self._stop = ""
        self._left_out = False
        tally = Tally()
        self._told = tuple((self, index, tally) for index in range(len(routes.queues)))
        self._unsettled = 0
        self._resume_at = -1
        self._room: asyncio.Future[None] | None = None

    # What the link's client tells.

    def settled(self, index: int, verdict: Verdict) -> None:
        """Counts one row's fate; `index` is of its queue."""
        self._unsettled -= 1
        if verdict.outcome is Outcome.CONFIRMED:
            self.confirmed[index] += 1
        else:
            self._failed.setdefault(verdict.outcome, Counter())[self._routes.queues[index]] += 1
            self._why = self._why or verdict.detail
        if self._room is not None and (self._unsettled <= self._resume_at or self._failed):
            self._wake()

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def stop(self, why: str) -> None:
        """No more rows go out; those in flight are still waited for."""
        self._stop = self._stop or why
        self._wake()

    @property
    def over(self) -> bool:
        """Whether to publish no more."""
        return bool(self._failed or self._stop)

    @property
    def failed(self) -> bool:
        """Whether a row was refused or left out: no matter what comes, the task fails."""
        return bool(self._failed) or self._left_out

    # What goes out.

    async def send(self, messages: Iterable[Message]) -> None:
        """Publishes messages in order; returns at their end, or once it is `over`: the rest is not sent then."""
        turn = iter(messages)
        while not self.over:
            await self._until_clear()
            count = min(CHUNK, self._window - self._unsettled, self._pace.burst if self._pace else CHUNK)
            sent, whole = (0, False) if self.over else self._publish(turn, count)
            self._link.wake()
            # The link writes at the end of this turn of the loop.
            await asyncio.sleep(self._pace.take(sent, time.monotonic()) if self._pace and sent else 0)
            if whole:
                return
        self._left_out = self._left_out or next(turn, None) is not None

    def _publish(self, turn: Iterator[Message], count: int) -> tuple[int, bool]:
        """Queues up to so many messages; how many, and whether there are no more."""
        routes, told = self._routes, self._told
        index_of, methods, stamp = routes.index_of, routes.methods, routes.stamp
        client = self._link.client
        assert client is not None  # or the link were not clear
        room, sent = CHUNK_BYTES, 0
        while sent < count and room > 0:
            message = next(turn, None)
            if message is None:
                return sent, True
            key, hashed, body, header = message
            index = index_of(hashed)
            try:
                client.publish(b"", methods[index], header, stamp, key, body, told[index])
            except ValueError as error:
                self.stop(f"queue {routes.queues[index]!r}, key {key[:60]!r}: {error}")
                self._left_out = True
                return sent, False
            self._unsettled += 1
            sent += 1
            room -= len(body)
        return sent, False

    async def _until_clear(self) -> None:
        """Returns once a row may be sent, or none may any more."""
        while not self.over:
            if not self._link.clear:
                await self._reachable()
            elif self._unsettled >= self._window:
                await self._settled_down_to(self._window * 3 // 4)
            else:
                return

    async def _reachable(self) -> None:
        link = self._link
        try:
            async with asyncio.timeout(self._timeout):
                await link.settled()
        except TimeoutError:
            self.stop(link.why)
        else:
            if not link.clear:
                self.stop(link.why)

    async def _settled_down_to(self, count: int) -> None:
        """Returns once no more rows are unsettled, or a failure is known. The link gives up what takes too long."""
        self._resume_at, self._room = count, asyncio.get_running_loop().create_future()
        await self._room
        self._room = None

    async def finish(self) -> None:
        """Waits for the confirms. Raises PipelineError for rows that failed or were never sent."""
        while self._unsettled:
            self._resume_at, self._room = 0, asyncio.get_running_loop().create_future()
            await self._room
        if not self.failed:
            return
        told = [in_words(queues, _WORDS.get(outcome, outcome.value)) for outcome, queues in self._failed.items()]
        told += [text for text in (self._stop, self._why) if text]
        raise PipelineError(f"{'; '.join(told)}; {sum(self.confirmed):,} rows of this task were confirmed before")


def connected(settings: Settings, done: Callable[[], bool]) -> tuple[Link, Awaitable[None]]:
    """A link to the broker, and what runs it: until it was connected once and lost, or it is `done`."""
    brokers = Brokers(settings.brokers, tls_of(settings.broker_url, settings), settings.lookup_timeout)
    link = Link(
        brokers.dial,
        lambda: of_url(settings.broker_url),
        settings.default_vhost,
        open_timeout=settings.lookup_timeout,
        confirm_timeout=settings.confirm_timeout,
    )
    return link, link.run(lambda up: not done() and (up or not link.connects))


async def publish(batches: Iterator[Iterable[Message]], options: Options, routes: Routes) -> dict[str, int]:
    """Publishes one task's rows, batch by batch; rows confirmed by queue.

    Raises PipelineError that says which queue and how many where one was not confirmed: then the task has to be
    published again as a whole.
    """
    settings, loop = options.settings, asyncio.get_running_loop()
    over = False
    link, running = connected(settings, lambda: over)
    rate = options.rate / options.connections if options.rate else 0
    pace = Pace(rate, time.monotonic()) if rate else None
    sender = Sender(link, routes, options.window, settings.confirm_timeout, pace)
    tasks = [asyncio.ensure_future(running)]
    if options.max_depth:
        looked = asyncio.Event()
        tasks.append(asyncio.ensure_future(_watch(sender, options, routes, looked)))
    try:
        if options.max_depth:
            await looked.wait()
        # In a thread: upstream may take its time, and the broker wants heartbeats meanwhile.
        while not sender.failed and (batch := await loop.run_in_executor(None, next, batches, None)) is not None:
            await sender.send(batch)
        await sender.finish()
    finally:
        over = True
        await link.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {queue: count for queue, count in zip(routes.queues, sender.confirmed, strict=True) if count}


async def _watch(sender: Sender, options: Options, routes: Routes, looked: asyncio.Event) -> None:
    """Stops the sender once a queue that it has sent to is too deep, or nobody can tell.

    First it looks at all of the ring's, which an attempt before this one may have filled, and sets `looked`.
    """
    queues = list(routes.queues)
    try:
        async with Depths(options.settings) as depths:
            while not (why := depths.too_deep(await depths.of(queues), options.max_depth)):
                looked.set()
                await asyncio.sleep(LOOK)
                queues = [queue for queue, count in zip(routes.queues, sender.confirmed, strict=True) if count]
            sender.stop(why)
    except PipelineError as error:
        sender.stop(str(error))
    finally:
        looked.set()
