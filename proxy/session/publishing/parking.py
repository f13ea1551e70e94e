"""Messages that came back, some of which wait for a reading while all else that the broker sends goes on.

Pure state: nothing here reads or writes.
"""

# mypyc: compiled

from collections import deque
from typing import Final, NamedTuple

from proxy.routing.route import Choice
from proxy.session.channel import Channel, RingId
from proxy.session.events import Stale
from proxy.topology.table import Name, Unread
from proxy.wire import content
from proxy.wire.frames import OVERHEAD
from ring.destination import Destination

MOST_PARKED: Final = 1 << 20
"""Bytes of waiting messages in one session from which on the broker is not read until one of them has been placed."""

MOST_HELD: Final = 1 << 22
"""Bytes of them from which on no further one waits while they wait for answers of the broker, which has to be read.

It takes two changes of a ring within one round trip, and so many messages that came back meanwhile. The clients of
those beyond it are told that they failed.
"""

_OVERHEAD: Final = 1024
"""Bytes of memory that one waiting message takes beside its frames."""

Read = Stale | Unread
"""A ring or an exchange that must be read before a message that came back can be placed."""


class ReturnedMessage:
    """A publish of the client's that came back; it lives until its client is told what became of it."""

    __slots__ = (
        "by_lane", "channel", "choice", "chosen_by", "digest", "exchange", "key", "origin", "passed", "put_back",
        "returned_at", "ring_id", "sent_to", "since", "tag", "tries",
    )  # fmt: skip

    def __init__(self, channel: Channel, origin: RingId, stamps: content.Stamps, put_back: bytes, since: float) -> None:
        """`channel` is the client's, `origin` its publish; `since` is when the message came back first, monotonic.

        `put_back` holds the entries that were cut from the message's headers table.
        """
        self.channel, self.origin, self.put_back, self.since = channel, origin, put_back, since
        self.exchange, self.key, self.ring_id = stamps.exchange, stamps.routing_key, stamps.ring_id
        self.returned_at = since
        """The monotonic time at which the message came back last: where it came back from, it has no place since."""
        self.sent_to: Destination | None = None
        """The destination that the message came back from last; for a lane the lane, not the queue behind it."""
        self.by_lane = False
        """Whether `sent_to` is a lane, so that the return tells of the queue behind it."""
        self.choice: Choice | None = None
        """The ring's choice by which the message goes out next; None if no ring chose."""
        self.chosen_by: Name | None = None
        """The exchange whose ring still names `sent_to`, which may be a ring behind a ring; None if it is not known."""
        self.digest = ""
        """The digest (`Route.digest`) by which the message goes out next, or went out last."""
        self.passed = False
        """Whether the message went out last to the client's own exchange, with no stamp but its ring id."""
        self.tries = 0
        """How often the message was published again."""
        self.tag = 0
        """The message's delivery tag on the session's own channel; 0 while it is not under way there."""

    @property
    def tells_of_queue(self) -> bool:
        """Whether the message came back because a queue of the ring is gone, or is behind its lane no more."""
        return self.sent_to is not None and (self.sent_to.kind == "queue" or self.by_lane)

    def stale(self, vhost: str) -> Stale:
        """Return what the message shows by having come back: its queue is gone, or its exchange delivers nowhere.

        A lane that delivers nowhere counts as a queue that is gone.
        """
        gone = self.sent_to if self.tells_of_queue else None
        return Stale(self.chosen_by or (vhost, self.exchange.decode(errors="replace")), gone)


class ParkedMessage:
    """A message that came back, from its return until it is known where it goes; its body is kept as it comes."""

    __slots__ = ("bodies", "came_on_own_channel", "frame", "given_up", "header", "left", "message", "tried", "unread")

    def __init__(
        self,
        message: ReturnedMessage,
        frame: bytes,
        header: bytes,
        left: int,
        unread: Read | None,
        *,
        came_on_own_channel: bool,
    ) -> None:
        """`frame` and `header` are the frames of basic.return and of its content header.

        `left` counts the bytes of the body that have not come yet; `came_on_own_channel` says that the message came
        back on the session's own channel, so it had been published again before.
        """
        self.message, self.frame, self.header, self.left = message, frame, header, left
        self.came_on_own_channel = came_on_own_channel
        self.unread = unread
        """The ring or exchange to be read before the message can be placed.

        None if nothing is known to be unread; the message may still wait behind another of its exchange.
        """
        self.bodies: list[bytes] = []
        """The body frames that have come."""
        self.tried: set[Stale | Name] = set()
        """The readings that were asked for after the message came back, with or without success.

        None of them is made twice for one return.
        """
        self.given_up = False
        """Whether the message has waited as long as a message may, so that it waits for no other reading."""

    @property
    def size(self) -> int:
        """The bytes of memory that the message takes, roughly."""
        return _OVERHEAD + len(self.header) + sum(map(len, self.bodies))

    def was_read(self, what: Read, asked: float) -> None:
        """Note that something has been read, or could not be, by a reading that was asked for at `asked`, monotonic.

        A message that waits behind another may come to want the same reading only at its turn, and must not make it
        once more then: each of them would take as long as the least time between two readings.
        """
        was_wanted = self.unread == what
        if was_wanted:
            self.unread = None
        # An exchange that was unread then may have to be read again since, for what was declared meanwhile.
        if self.message.returned_at <= asked and (was_wanted or isinstance(what, Stale)):
            self.tried.add(what.name if isinstance(what, Unread) else what)


class Return(NamedTuple):
    """A basic.return on a client's channel whose content is not through yet; without a message its body is dropped."""

    frame: bytes
    """The method frame, held back until the content header tells whose message it is; empty after that."""
    left: int = 0
    """Bytes of the body still to come that the client must not see as they are."""
    again: ReturnedMessage | None = None
    """The message, if it is published again; else None."""
    parked: ParkedMessage | None = None
    """The message, if it waits for a reading; it keeps the rest of its body. Else None."""
    unroutable: ReturnedMessage | None = None
    """The message, if no queue takes it; else None.

    Its client gets the rest of the return if it published with mandatory, and then an ack or nack.
    """


class Parking:
    """The messages of a session that wait, by the exchange that their clients published them to, in their order.

    A message waits too if an earlier message of the same exchange waits, because both may have the same key.
    """

    __slots__ = ("_by_exchange", "size")

    def __init__(self) -> None:
        """Start with no message waiting."""
        self._by_exchange: dict[bytes, deque[ParkedMessage]] = {}
        self.size = 0
        """Bytes of memory of all messages."""

    def __bool__(self) -> bool:
        """Whether any message waits."""
        return bool(self._by_exchange)

    def __contains__(self, exchange: bytes) -> bool:
        """Return whether a message of the exchange waits."""
        return exchange in self._by_exchange

    @property
    def waits(self) -> bool:
        """Whether the first message of any exchange waits for a reading."""
        return any(parked[0].unread is not None for parked in self._by_exchange.values())

    @property
    def is_full(self) -> bool:
        """Whether no further message may wait, as those here wait for answers of the broker, which has to be read."""
        return self.size > MOST_HELD and not self.waits

    @property
    def exchanges(self) -> list[bytes]:
        """The exchanges of which messages wait."""
        return list(self._by_exchange)

    def wanted(self, exchange: bytes) -> Read | None:
        """Return what must be read before the first waiting message of an exchange can be placed.

        The result is None if the message waits for no reading, or no message of the exchange waits.
        """
        parked = self._by_exchange.get(exchange)
        return parked[0].unread if parked else None

    def put(self, parked: ParkedMessage) -> None:
        """Add a message behind those of its exchange that were published before it.

        One that came back on the session's own channel was under way before those that wait and came on a client's.
        """
        others = self._by_exchange.setdefault(parked.message.exchange, deque())
        at = len(others)
        while parked.came_on_own_channel and at and not others[at - 1].came_on_own_channel:
            at -= 1
        others.insert(at, parked)
        self.size += parked.size

    def grow(self, parked: ParkedMessage, body: bytes) -> None:
        """Add a body frame to a message that waits."""
        parked.bodies.append(body)
        parked.left -= len(body) - OVERHEAD
        self.size += len(body)

    def messages(self) -> list[ReturnedMessage]:
        """Return the messages of all exchanges."""
        return [parked.message for others in self._by_exchange.values() for parked in others]

    def first(self, exchange: bytes) -> ParkedMessage | None:
        """Return the first message of an exchange; None if none waits."""
        parked = self._by_exchange.get(exchange)
        return parked[0] if parked else None

    def remove(self, parked: ParkedMessage) -> None:
        """Take a message out."""
        exchange = parked.message.exchange
        others = self._by_exchange[exchange]
        others.remove(parked)
        self.size -= parked.size
        if not others:
            del self._by_exchange[exchange]

    def was_read(self, exchange: bytes, what: Read, asked: float) -> None:
        """Note for each message of an exchange that something has been read, or could not be.

        The reading was asked for at `asked`, monotonic. It tells nothing of a message that came back since.
        """
        for parked in self._by_exchange.get(exchange, ()):
            parked.was_read(what, asked)

    def give_up(self, exchange: bytes) -> None:
        """Let no message of an exchange wait for a reading any more."""
        for parked in self._by_exchange.get(exchange, ()):
            parked.unread, parked.given_up = None, True

    def drop(self) -> None:
        """Forget all messages: the session ends."""
        self._by_exchange.clear()
        self.size = 0
