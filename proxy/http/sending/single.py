"""One message, sent and, where it came back, sent again."""

import asyncio

from proxy.http.formats.message import Message
from proxy.http.sending.dispatch import Dispatch, Outlet, Placed
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult
from proxy.session.placement import MOST_TRIES


class Single:
    """A message that is on its way."""

    __slots__ = ("_dispatch", "_fate", "_loop", "_message", "_outlet", "placed")

    def __init__(self, dispatch: Dispatch, outlet: Outlet, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        """Not sent yet. (To find the running loop costs a system call.)"""
        self._dispatch, self._outlet, self._message, self._loop = dispatch, outlet, message, loop
        self.placed: Placed
        """Where it went last."""
        self._fate: asyncio.Future[PublishResult] = loop.create_future()

    async def send(self) -> None:
        """Sends it. Raises ProblemError where it cannot be sent."""
        self.placed = await self._dispatch.send(self._outlet, self._message, self, 0)

    def settled(self, index: int, verdict: PublishResult) -> None:
        """The broker has answered for it."""
        if not self._fate.done():
            self._fate.set_result(verdict)

    async def verdict(self) -> PublishResult:
        """What the broker says of it in the end. Raises ProblemError where it came back, and cannot be sent again."""
        for _ in range(MOST_TRIES):
            verdict = await self._fate
            if verdict.outcome is not Outcome.UNROUTABLE:
                return verdict
            await self._dispatch.refresh(self.placed, "a message did not reach it")
            if not self._dispatch.moved(self._outlet, self._message, self.placed):
                return verdict
            self._fate = self._loop.create_future()
            came_from = self.placed
            await self.send()
            self._dispatch.count_rerouted(came_from)
        return await self._fate
