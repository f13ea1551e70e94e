"""The confirms of the publishes on one of this sidecar's own channels: one result for each publish."""

# mypyc: compiled

import secrets
from typing import Final, NamedTuple, Protocol

from mypy_extensions import i64

from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.wire.frames import BODY, FRAME_ERROR, HEADER, METHOD, U16, Fault


class PublishResult(NamedTuple):
    """The result of a publish that was sent, as its sender gets it, once."""

    outcome: Outcome
    detail: str = ""
    """Why the publish failed, as far as possible in the broker's words; empty for a confirmed one."""
    code: int = 0
    """The reply code of the channel.close that ended the publish; 0 if none did."""


class Receiver(Protocol):
    """Something that sends publishes and takes their results."""

    def settled(self, index: int, verdict: PublishResult) -> None:
        """Take the result of the publish that the receiver itself calls `index`; this is called once for each publish.

        An implementation must not raise, nor publish anew if a connection was lost: it is called in the middle of a
        loop over all the results that are known by now.
        """


Pending = tuple[Receiver, int, Counters]
"""A publish whose result is awaited: who receives the result, the receiver's index for it, and where it is counted."""

CONFIRMED: Final = PublishResult(Outcome.CONFIRMED)
NACKED: Final = PublishResult(Outcome.NACKED, "the broker refused the message (basic.nack)")
UNROUTABLE: Final = PublishResult(Outcome.UNROUTABLE, "no queue takes the message")


class ConfirmChannel:
    """One channel in confirm mode and its unsettled publishes, from channel.open until either side closes it.

    Its publishes are numbered from 1, as the broker numbers them for its confirms (delivery tags).
    """

    __slots__ = (
        "body_start", "exchange", "given_up", "header_start", "id", "low", "method_start", "nonce", "number", "pending",
        "returned", "unanswered",
    )  # fmt: skip

    def __init__(self, channel_id: int, exchange: bytes) -> None:
        """Make the channel of number `channel_id` for publishes to one exchange; nothing is sent by that."""
        self.id, self.exchange = channel_id, exchange
        self.method_start, self.header_start, self.body_start = (
            bytes((kind,)) + U16.pack(channel_id) for kind in (METHOD, HEADER, BODY)
        )
        """The first three bytes of the channel's frames, type and channel number, before the payload's size."""
        self.number = 0
        """The number of the last publish; 0 before the first."""
        self.low = 0
        """The number up to which every publish is settled."""
        self.given_up = -1
        """The number of the last publish that was settled without the broker's answer; below 0 for none."""
        self.unanswered = 0
        """How many publishes were settled without the broker's answer and may have none yet; never too few."""
        self.pending: dict[int, Pending] = {}
        """The publishes that are not settled, by number."""
        self.returned: set[int] = set()
        """The numbers of publishes that the broker has returned as unroutable, and not yet acknowledged."""
        # Nonce plus number is the ring id in a publish's headers, an AMQP 64-bit signed integer that stays positive.
        # A returned message that another channel, or an earlier connection, has sent does not have this nonce.
        self.nonce: i64 = (secrets.randbits(30) | 1 << 30) << 32

    def settle(self, number: int, multiple: bool, verdict: PublishResult) -> int:
        """Give one publish its result, or with `multiple` all publishes up to it; return how many had none before.

        Publishes that are settled already are left alone. A returned one is UNROUTABLE whatever the verdict, and is in
        no counter here: its receiver may send it again. Raises Fault for a number that was not published.
        """
        if number > self.number:
            raise Fault(FRAME_ERROR, f"the broker confirmed {number}, the last publish was {self.number}")
        if self.unanswered and verdict.outcome is not Outcome.UNKNOWN:
            # A lane's answers come in the order of its publishes.
            self.unanswered = 0 if number >= self.given_up else self.unanswered - (number not in self.pending)
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
                        self.unanswered += 1
                    receiver.settled(index, verdict)
        while self.low < self.number and self.low + 1 not in pending:
            self.low += 1
        return settled
