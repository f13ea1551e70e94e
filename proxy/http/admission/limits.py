"""The limits of what is under way at once: messages and bytes of HTTP clients that are not answered yet."""

# mypyc: compiled

import asyncio

LEAST_RATE = 1 << 16
"""Bytes a second: a client that sends a body, or reads an answer, at this rate may take as long as it needs."""


_BATCHES = 3 / 8
"""Share of `max_in_flight_bytes` that requests with batches may hold; with their messages they have half."""


class Limits:
    """The counts of messages and bytes under way. Requests are refused at a limit, batches at `_BATCHES` of the bytes.

    Messages of batches wait while half of a limit is taken by batches, counting the bytes of their requests. But one
    message may always go, or batches would wait for each other's bodies and for slow senders.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        """Start with nothing under way; both limits are at least 1."""
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self.messages = self.bytes = 0
        self._batched = self._batched_bytes = 0
        self._batches = 0
        """Bytes of requests that bring batches."""
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    def resize(self, most_messages: int, most_bytes: int) -> None:
        """Take other limits, both at least 1. All that is under way goes on."""
        self._most_messages, self._most_bytes = most_messages, most_bytes
        if self._turn.locked() and self._has_room():
            self._freed.set()

    def full(self, size: int, held: int = 0, *, batch: bool = False) -> str:
        """Return why `size` more bytes are too much for a request that holds `held` bytes; empty if they are not.

        A request that holds no bytes yet may also be a message too many. The only request that holds any may go on,
        however large; so may the only `batch`, as far as single messages leave room.
        """
        if not held and self.messages > self._most_messages:
            return f"{self.messages} messages are in flight, max_in_flight is {self._most_messages}"
        if self.bytes > held and self.bytes + size > self._most_bytes:
            return f"{self.bytes} bytes are in flight, max_in_flight_bytes is {self._most_bytes}"
        if batch and self._batches > held and self._batches + size > self._most_bytes * _BATCHES:
            return (
                f"requests with batches hold {self._batches} bytes, and may hold {_BATCHES:.1%} of max_in_flight_bytes"
            )
        return ""

    def take(self, messages: int, size: int) -> None:
        """Count messages and bytes in."""
        self.messages += messages
        self.bytes += size

    def give(self, messages: int, size: int) -> None:
        """Count messages and bytes out."""
        self.messages -= messages
        self.bytes -= size
        if self._turn.locked() and self._has_room():
            self._freed.set()

    def take_for_batch(self, size: int) -> None:
        """Count in bytes that a request with a batch holds."""
        self._batches += size
        self.bytes += size

    def give_for_batch(self, size: int) -> None:
        """Count out bytes that a request with a batch held."""
        self._batches -= size
        self.give(0, size)

    def take_batched(self, size: int) -> None:
        """Count in one message of a batch, and its bytes."""
        self.messages += 1
        self.bytes += size
        self._batched += 1
        self._batched_bytes += size

    def give_batched(self, size: int) -> None:
        """Count out one message of a batch, and its bytes."""
        self._batched -= 1
        self._batched_bytes -= size
        self.give(1, size)

    @property
    def has_room(self) -> bool:
        """Whether one more message of a batch may be sent now; always, if none is in flight."""
        return not self._turn.locked() and self._has_room()

    def _has_room(self) -> bool:
        few = self._batched * 2 < self._most_messages and self.messages < self._most_messages
        return (few and (self._batched_bytes + self._batches) * 2 < self._most_bytes) or not self._batched

    async def room(self) -> None:
        """Return once there is room for one more message of a batch; those who wait take turns."""
        async with self._turn:  # which lets them in as they came
            while not self._has_room():
                self._freed.clear()
                await self._freed.wait()
