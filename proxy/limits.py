"""How much may be under way at once: messages and bytes taken from HTTP clients and not answered yet."""

import asyncio
from collections import deque


class Limits:
    """Counts what is under way. Requests are refused at a limit; messages of batches wait while half of it is theirs.

    The bytes of requests do not keep them waiting, or batches would wait for each other's bodies and for slow senders.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        """Both at least 1."""
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self.messages = self.bytes = 0
        self._batched = self._batched_bytes = 0
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

    def take_batched(self, size: int) -> None:
        """Counts one message of a batch in."""
        self.take(1, size)
        self._batched += 1
        self._batched_bytes += size

    def give_batched(self, size: int) -> None:
        """Counts one message of a batch out."""
        self.give(1, size)
        self._batched -= 1
        self._batched_bytes -= size
        if self._waiting and self.has_room:
            self._wake()

    @property
    def has_room(self) -> bool:
        """Whether one more message of a batch may go: always where none is under way, however small the limits are."""
        few = self._batched * 2 < self._most_messages and self.messages < self._most_messages
        return (few and self._batched_bytes * 2 < self._most_bytes) or not self._batched

    async def room(self) -> None:
        """Returns once there is room for more of a batch; those who wait take turns."""
        wait = self._waiting.append
        while not self.has_room:
            waiter = asyncio.get_running_loop().create_future()
            wait(waiter)
            # Who was woken and finds none keeps his turn.
            wait = self._waiting.appendleft
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
        # There may be room for the next too, or who was let in has nothing to send after all.
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
