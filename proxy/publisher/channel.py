"""What becomes of the publishes of a channel of our own: each is told once, to whoever sent it."""

import secrets
from typing import Final, NamedTuple, Protocol

from mypy_extensions import i64

from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.wire.frames import BODY, FRAME_ERROR, HEADER, METHOD, U16, Fault


class PublishResult(NamedTuple):
    """What became of a publish that was sent, and the broker's words where it had any."""

    outcome: Outcome
    detail: str = ""
    code: int = 0
    """The reply code with which the broker closed the channel over it; 0 where it did not."""


class Receiver(Protocol):
    """Who is told of a publish's fate."""

    def settled(self, index: int, verdict: PublishResult) -> None:
        """Called once for each publish, `index` being the caller's own. Must not raise, nor publish anew where a
        connection is lost: others are told after it."""


Pending = tuple[Receiver, int, Counters]
"""A publish whose result is awaited: who receives the result, the receiver's index for it, and where it is counted."""

CONFIRMED: Final = PublishResult(Outcome.CONFIRMED)
NACKED: Final = PublishResult(Outcome.NACKED, "the broker answered basic.nack")
UNROUTABLE: Final = PublishResult(Outcome.UNROUTABLE, "there was no queue for it")


class ConfirmChannel:
    """One channel in confirm mode and its unsettled publishes; numbers are delivery tags, from 1."""

    __slots__ = (
        "body_start", "exchange", "given_up", "header_start", "id", "low", "method_start", "nonce", "number", "pending",
        "returned",
    )  # fmt: skip

    def __init__(self, channel_id: int, exchange: bytes) -> None:
        """For publishes to one exchange."""
        self.id, self.exchange = channel_id, exchange
        self.method_start, self.header_start, self.body_start = (
            bytes((kind,)) + U16.pack(channel_id) for kind in (METHOD, HEADER, BODY)
        )
        """How its frames begin, up to their size."""
        self.number = self.low = 0
        """Of the last publish; and up to which all are settled."""
        self.given_up = -1
        """Of the last publish that was settled without the broker's answer; below 0 for none."""
        self.pending: dict[int, Pending] = {}
        self.returned: set[int] = set()
        # Positive int64s: the nonce tells this channel's publishes from those of others.
        self.nonce: i64 = (secrets.randbits(30) | 1 << 30) << 32

    def settle(self, number: int, multiple: bool, verdict: PublishResult) -> int:
        """Tells of one publish, or of all up to it; returns of how many. An answer to nothing is ignored.

        One that came back counts in no outcome here: its receiver may send it again.
        """
        if number > self.number:
            raise Fault(FRAME_ERROR, f"the broker confirmed {number}, the last publish was {self.number}")
        pending, first = self.pending, number
        if multiple:
            first = self.low + 1
            self.low = max(self.low, number)
        settled = 0
        for n in range(first, number + 1):
            entry = pending.pop(n, None)
            if entry is not None:
                settled += 1
                receiver, index, counters = entry
                if self.returned and n in self.returned:
                    self.returned.discard(n)
                    receiver.settled(index, UNROUTABLE)
                elif verdict is CONFIRMED:
                    counters.acked += 1
                    receiver.settled(index, verdict)
                else:
                    counters.nacked += verdict.outcome is Outcome.NACKED
                    if verdict.outcome is Outcome.UNKNOWN:
                        counters.unknown += 1
                        self.given_up = n
                    receiver.settled(index, verdict)
        while self.low < self.number and self.low + 1 not in pending:
            self.low += 1
        return settled
