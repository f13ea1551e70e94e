"""The sending of one message over HTTP, which is sent again if it comes back."""

import asyncio
import time

from proxy.http.formats.message import Message
from proxy.http.sending.dispatch import Dispatch, ExchangeHandle, Placement
from proxy.publisher.channel import PublishResult
from proxy.republishes import MOST_REPUBLISHES


class Single:
    """The sending of one message, from its first attempt to the broker's last answer."""

    __slots__ = ("_dispatch", "_handle", "_loop", "_message", "_result", "placement")

    def __init__(
        self, dispatch: Dispatch, handle: ExchangeHandle, message: Message, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Prepare the sending; the loop is given, since finding the running one costs a system call."""
        self._dispatch, self._handle, self._message, self._loop = dispatch, handle, message, loop
        self.placement: Placement
        """The placement of the message when it was sent last; `send` sets it."""
        self._result: asyncio.Future[PublishResult] = loop.create_future()

    async def send(self) -> None:
        """Send the message. Raises ProblemError if it cannot be sent."""
        self.placement = await self._dispatch.send(self._handle, self._message, self, 0)

    def settled(self, index: int, result: PublishResult) -> None:
        """Take the broker's answer."""
        if not self._result.done():
            self._result.set_result(result)

    async def result(self) -> PublishResult:
        """Return the broker's last answer. Raises ProblemError if the message came back and cannot be sent again."""
        for _ in range(MOST_REPUBLISHES):
            result = await self._result
            if not self._dispatch.came_back(self.placement, result):
                return result
            self._dispatch.comes_back(self._handle, 1)
            try:
                if not await self._sent_again(time.monotonic()):
                    return result
            finally:
                self._dispatch.comes_back(self._handle, -1)
        return await self._result

    async def _sent_again(self, since: float) -> bool:
        """Send the message again that had come back by `since`, monotonic; return False if that is no use."""
        await self._dispatch.read_again(self.placement, "a message did not reach it")
        if not self._dispatch.goes_again(self._handle, self._message, self.placement, since):
            return False
        self._result = self._loop.create_future()
        came_from = self.placement
        await self.send()
        self._dispatch.count_rerouted(came_from)
        return True
