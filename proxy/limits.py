"""How much may be under way at once: messages and bytes taken from HTTP clients and not answered yet."""

import asyncio
from collections import deque


class Limits:
    """Counts what is under way. Single messages are refused at a limit; batches wait from half of it on."""

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        """Both at least 1."""
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self.messages = self.bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def full(self, messages: int, size: int) -> str:
        """Why so many more messages, or bytes, are too much; empty where they are not."""
        if self.messages + messages > self._most_messages:
            return f"{self.messages} messages are in flight, max_in_flight is {self._most_messages}"
        if self.bytes and self.bytes + size > self._most_bytes:
            return f"{self.bytes} bytes are in flight, max_in_flight_bytes is {self._most_bytes}"
        return ""

    def take(self, messages: int, size: int) -> None:
        """Counts them in."""
        self.messages += messages
        self.bytes += size

    def give(self, messages: int, size: int) -> None:
        """Counts them out."""
        self.messages -= messages
        self.bytes -= size
        if self._waiting and self.has_room:
            self._wake()

    @property
    def has_room(self) -> bool:
        """Whether batches may go on: half of both limits is kept for single messages.

        Where no message is under way one always may, however small the limits are.
        """
        return not self.messages or (self.messages * 2 < self._most_messages and self.bytes * 2 < self._most_bytes)

    async def room(self) -> None:
        """Returns once there is room for more of a batch; those who wait take turns."""
        while not self.has_room:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
