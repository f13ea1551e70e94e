"""The memory of a session for messages that came back, and for its own channel, which publishes them again."""

# mypyc: compiled

from proxy.session.channel import Channel
from proxy.session.direction import Direction
from proxy.session.publishing.parking import ParkedMessage, Parking, Return, ReturnedMessage


class _Content:
    """Frames of one message that wait until the message before it has gone out whole."""

    __slots__ = ("frames", "whole")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.whole = False
        """Whether the message's last frame is among them."""


class Republishing:
    """The messages of one session that came back, and the session's own confirm channel; lives as long as the session.

    The channel's number is kept back in the handshake, and the channel is opened when it is first needed.
    """

    __slots__ = (
        "_behind",
        "_digests",
        "_sending",
        "again",
        "answered",
        "barred",
        "begun",
        "by_ring_id",
        "frame",
        "gathering",
        "is_open",
        "left",
        "number",
        "parked",
        "parking",
        "released",
        "returning",
        "tag",
        "to_client",
        "under_way",
        "unroutable",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start with no message that came back, and with no channel to publish on."""
        self.parking = Parking()
        """The messages that wait for a reading."""
        self.returning: dict[Channel, Return] = {}
        """By channel of the client: the basic.return whose content is not through yet."""
        self.gathering = 0
        """Contents under way whose body frames must come whole, since they do not pass to the client as they come."""
        self.released: list[Channel] = []
        """The channels whose withheld answers are due."""
        self.barred: dict[tuple[str, bytes], float] = {}
        """By virtual host and user: the monotonic time before which no session opens its own channel.

        It is set when the broker has closed a connection because its own channel was one too many for the user. All
        sessions share the table.
        """
        self.number = 0
        """The number of the channel; 0 if there is none."""
        self.begun = self.is_open = self.answered = False
        """Whether the channel was ever opened; whether it is open; whether the broker has answered on it since."""
        self.tag = 0
        """The delivery tag of the last publish on the channel."""
        self.under_way: dict[int, ReturnedMessage] = {}
        """The messages published again that the broker has not answered yet, by delivery tag."""
        self.by_ring_id: dict[int, ReturnedMessage] = {}
        """The messages of `under_way`, by ring id."""
        self.frame = b""
        """A basic.return on the channel whose content header is still due; empty if none is."""
        self.left = 0
        """Bytes still to come of the body of the message that comes back on the channel."""
        self.again: ReturnedMessage | None = None
        """The message that comes back on the channel, if it is published once more; else None."""
        self.parked: ParkedMessage | None = None
        """The message that comes back on the channel, if it waits for a reading; else None."""
        self.unroutable: ReturnedMessage | None = None
        """The message that comes back on the channel, if no queue takes it; else None.

        Its client is told once the message is whole.
        """
        self.to_client: list[bytes] = []
        """The frames by which the client gets the message that comes back on the channel; kept until it is whole."""
        self._digests: dict[bytes, tuple[str, int]] = {}
        """By exchange of a message in `under_way`: the digest of its messages' route there, and their number."""
        self._sending: ReturnedMessage | None = None
        self._behind: dict[ReturnedMessage, _Content] = {}

    @property
    def since(self) -> float | None:
        """The monotonic time at which the first message of `under_way` came back; None if none is under way."""
        return min((message.since for message in self.under_way.values()), default=None)

    def excuse(self, since: float, now: float) -> None:
        """Leave the span from `since` to `now`, when the broker was not read, out of each message's waiting time.

        `since` and `now` are monotonic.
        """
        for message in self.under_way.values():
            message.since += now - max(message.since, since)

    def send(self, to_broker: Direction, message: ReturnedMessage, frames: bytes, *, last: bool) -> None:
        """Send a part of a message, or keep it until the messages before it have gone out whole.

        Contents of one channel may not mingle (AMQP section 4.2.6), though on several channels they came mingled.
        """
        if not message.tag:
            return  # the channel was closed meanwhile
        if self._sending not in (None, message):
            behind = self._behind.setdefault(message, _Content())
            behind.frames.append(frames)
            if last:
                behind.whole = True
            return
        to_broker.insert(frames)
        self._sending = None if last else message
        while self._sending is None and self._behind:
            following, behind = next(iter(self._behind.items()))
            del self._behind[following]
            to_broker.insert(b"".join(behind.frames))
            self._sending = None if behind.whole else following

    def put(self, message: ReturnedMessage) -> None:
        """Number a message that is about to be published."""
        self.tag += 1
        message.tag = self.tag
        message.tries += 1
        message.channel.unsettled_returns += 1
        self.under_way[message.tag] = message
        self.by_ring_id[message.ring_id] = message
        _, count = self._digests.get(message.exchange, ("", 0))
        self._digests[message.exchange] = (message.digest, count + 1)

    def by_other_ring(self, message: ReturnedMessage) -> bool:
        """Return whether messages of its exchange are under way by another ring than the one that is to place it.

        One of these may come back again, and has to go out before it.
        """
        known = self._digests.get(message.exchange)
        return known is not None and known[0] != message.digest

    def take(self, message: ReturnedMessage) -> None:
        """Take a message that the broker has answered out of `under_way`, if it is in there."""
        if self.under_way.pop(message.tag, None) is message:
            message.channel.unsettled_returns -= 1
            self.by_ring_id.pop(message.ring_id, None)
            digest, count = self._digests.pop(message.exchange)
            if count > 1:
                self._digests[message.exchange] = (digest, count - 1)
        message.tag = 0

    def expect(self, channel: Channel, rest: Return | None) -> None:
        """Note the part still to come of a message that comes back on a client's channel; None if it is through."""
        if rest is None:
            self.returning.pop(channel, None)
        else:
            self.returning[channel] = rest

    def end_return(self) -> None:
        """Forget the message that comes back on the channel: it is through, or there is no channel any more."""
        self.again, self.to_client, self.unroutable, self.parked = None, [], None, None

    def closed(self) -> list[ReturnedMessage]:
        """Forget the channel, which the broker has closed; return the messages under way, whose fate nobody knows."""
        lost = list(self.under_way.values())
        for message in lost:
            self.take(message)
        self.is_open, self.answered, self.tag = False, False, 0
        self._sending, self._behind = None, {}
        self.frame, self.left = b"", 0
        self.end_return()
        return lost
