"""Deliveries in series: a client works on one message of a key at a time. This module does no I/O.

Theory of operation
-------------------

A group delivers each key in order. A client with a prefetch of 50 and a pool of workers still works on two messages of
one key at once, and a message that it returns is passed by the later ones of its key. In series the sidecar therefore
keeps what the broker has delivered, and passes a message only once the one before it of its key is settled. Messages of
other keys go on.

Two numbers limit what is on its way. The *window* is the prefetch of each link: as many messages of one shard are here
at most, and a key that waits stands for its shard once it fills the window. The *room* is the client's own prefetch: as
many messages of all shards does the client hold at most, those that it has returned not counted.

    state     event     next      what happens
    --------  --------  --------  ------------------------------------------------------------
    (none)    arrive    READY     the message is the first of its key
    (none)    arrive    WAITING   another one of its key is before it
    WAITING   settle    READY     the one before it is settled
    READY     pass      CLIENT    the client has room: the message gets the channel's next delivery tag
    CLIENT    settle    GONE      the broker gets an ack, or a reject without requeue
    CLIENT    return    RETRY     the broker gets nothing; the delay grows with each return
    RETRY     due       READY     the message may be tried again
    RETRY     due       DEAD      it was tried as often as it may: the sidecar publishes it as a dead letter
    RETRY     due       STOPPED   the same where no dead letters are wanted: its key stands still
    READY,    release   READY     an operator has it tried at once, with all its tries
    RETRY or
    STOPPED
    the same  skip      GONE      an operator has the broker get an ack
    the same  bury      DEAD      an operator has the sidecar publish it as a dead letter
    DEAD      settle    GONE      the dead letter is confirmed, and the broker gets an ack
    DEAD      fail      RETRY     the dead letter is not confirmed: it is published again after the longest delay
    any but   drop      GONE      the link ends: the broker delivers the message again, to the next member
    CLIENT, DEAD
    CLIENT    end       STALE     the same, and the client still has the message, which takes room
    STALE     settle    GONE      the client answers, which gives it room, and the broker gets nothing

At most one message of a key is in a state other than WAITING. The broker gets only acks, rejects without requeue, and
the bare channel.close at the link's end: after a requeue it would deliver the message behind later ones of its key
(measured: 1 2 4 ... 20 3). Acks come out of order, and an ack of all up to a tag must not take in what is still here.
Acks of one read of the client's are therefore gathered. Those of the tags below the lowest one that is here go as one,
and the others one by one.

How often a message was tried outlives its link in `attempts.py`, so that a member that leaves, or a sidecar that ends,
does not give it all its tries once more. A count that is lost makes a dead letter later, and never earlier. The limit
is judged when the delay is over, and not when the client returns the message: a client that stops returns what it was
just sent, and its links have ended by then.

A client that is lost without a close has crashed, and each message that it held may be why. Each gets a crash more. A
message with SUSPECTED of them is a suspect: it is passed once the client holds nothing, and nothing else is passed
until it is answered, or its link is given up. Another shard's messages wait too, or it could not be told which one
ended the client. An innocent one is acked, and its record is gone. One whose client crashes again, with nothing else in
its hands, and that has `Rules.crashes` of them, is DEAD or STOPPED as one that was tried as often as it may. With
`Rules.spares` it is tried again after the longest delay instead: nobody has asked for a key to stand still.
`crashes.py` counts them.

A held message costs the broker: a quorum queue before RabbitMQ 4.3 keeps all that came behind the oldest unacked
message (measured: 142 MB for 100,000 messages of 1 kB, and 5 MB on 4.3). A message is therefore tried for no longer
than `Rules.hold` from its first return, and before 4.3 only until `MOST_BEHIND` bytes have come behind it. Then it is
DEAD, but each link tries it once. Where no dead letters are wanted its shard stands instead: of its window no other
message is passed, so the broker soon delivers nothing more, until the message is settled. It is tried as before, if it
has tries left.

The broker counts its consumer timeout from its own delivery, and takes back what is older message by message: newer
ones of the key then come between. A link whose oldest message, be it with the client or not, is older than
`groups_ack_timeout` therefore ends, and all of it comes again in order.
"""

# mypyc: compiled

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final

from proxy.groups.attempts import Attempt
from proxy.groups.consuming.rules import Rules, spread

MOST_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of messages of one member that are here; of the link that delivers more the broker keeps them."""

LEAVES_WITHIN: Final = 1.0
"""Seconds for which a client must go on consuming for a try to count: one that stops returns all that it has."""

SUSPECTED: Final = 2
"""The crashes of clients that held a message from which on it is passed alone."""

_MOST_PASSED: Final = 64
"""Passed messages leave the list of those that are READY once they are more than this, and most of it."""

_ANY_NUMBER: Final = 1 << 40
"""The room of a client without a limit."""

_OVERHEAD: Final = 400
"""Bytes of memory that one message takes beside its frames."""


class HeldState(IntEnum):
    """How far a message that the broker has delivered has come."""

    WAITING = 0
    """Another message of the same key is before the message."""
    READY = 1
    """The message goes to the client as soon as the client has room."""
    CLIENT = 2
    """The client works on the message."""
    RETRY = 3
    """The client has returned the message, which waits for the next try."""
    DEAD = 4
    """The sidecar has published the message as a dead letter, or is about to, and awaits the confirm."""
    STOPPED = 5
    """The client has returned the message as often as it may, and its key stands still."""
    STALE = 6
    """The client has the message, whose link has ended: the broker delivers it again, and takes no answer."""
    GONE = 7
    """The message is settled, or goes back to its queue with the end of its link."""


WORDS: Final = {
    HeldState.READY: "ready",
    HeldState.CLIENT: "with the client",
    HeldState.STALE: "with the client",
    HeldState.RETRY: "to be tried again",
    HeldState.DEAD: "a dead letter to be confirmed",
    HeldState.STOPPED: "stopped",
}
"""The words for the states of a key's first message."""

_WAITING: Final = HeldState.WAITING.value
_READY: Final = HeldState.READY.value
_CLIENT: Final = HeldState.CLIENT.value
_RETRY: Final = HeldState.RETRY.value
_DEAD: Final = HeldState.DEAD.value
_STOPPED: Final = HeldState.STOPPED.value
_STALE: Final = HeldState.STALE.value
_GONE: Final = HeldState.GONE.value


class Held:
    """One message that the broker has delivered, from then until it is settled."""

    __slots__ = (
        "after", "again", "at", "before", "body_at", "buried", "due", "fingerprint", "frames", "header_at", "key",
        "record", "returned_at", "since", "state", "tag", "tries", "window",
    )  # fmt: skip

    def __init__(
        self, window: "Window", tag: int, key: bytes, frames: bytes, header_at: int, body_at: int, at: float
    ) -> None:
        """Take a message that the broker has delivered with the delivery tag `tag`.

        `key` is a hash of the value that the ring hashed; empty if the message lacks it, so that it waits for none.
        `frames` are all of the broker's: basic.deliver, from `header_at` on the content header, and from `body_at` on
        the body. `at` is when the message came, monotonic: the broker counts its consumer timeout from then on.
        """
        self.window, self.tag, self.key = window, tag, key
        self.frames, self.header_at, self.body_at, self.at = frames, header_at, body_at, at
        self.state = _READY
        """A `HeldState`, as a plain integer for the hot loop."""
        self.tries = 0
        """How often a client has returned the message."""
        self.record: Attempt | None = None
        """The record of its tries and crashes that was known as it came; None if none was."""
        self.since = 0.0
        """When a client first returned it, in monotonic seconds, by another link too; 0 for never."""
        self.before = 0
        """The bytes that had come by its link then."""
        self.returned_at = 0.0
        """When this client last returned it, in monotonic seconds; 0 for never."""
        self.due = 0.0
        """When the next try is due, in monotonic seconds; in STOPPED, when it is next seen whether its shard stands."""
        self.fingerprint = ""
        """The message's own among all of its shard (`retries.fingerprint`); empty before it is needed."""
        self.again = False
        """Whether the client has had the message before."""
        self.buried = False
        """Whether an operator has the message published as a dead letter, however often it was tried."""
        self.after: Held | None = None
        """The next message of the key; None if this is the last."""

    @property
    def crashes(self) -> int:
        """How many clients were lost without a close while they held the message."""
        return self.record.crashes if self.record is not None else 0

    @property
    def size(self) -> int:
        """The bytes of memory that the message takes, roughly."""
        return _OVERHEAD + len(self.frames)

    @property
    def method(self) -> bytes:
        """The broker's frame of basic.deliver."""
        return self.frames[: self.header_at]

    @property
    def header(self) -> bytes:
        """The broker's frame of the content header."""
        return self.frames[self.header_at : self.body_at]

    @property
    def body(self) -> bytes:
        """The broker's body frames."""
        return self.frames[self.body_at :]


class Window:
    """The messages of one link that are not settled. Each key is in one window, as it is in one shard."""

    __slots__ = (
        "acked", "answered", "aside", "came", "held", "last", "low", "marker", "newest", "number", "overdue", "series",
        "waiting",
    )  # fmt: skip

    def __init__(self, series: "Series", number: int) -> None:
        """Start with nothing. `series` is the member's, and `number` that of the link's hidden channel."""
        self.series, self.number = series, number
        self.held: dict[int, Held] = {}
        """By the broker's delivery tag, the oldest first."""
        self.last: dict[bytes, Held] = {}
        """By key, the message that came last."""
        self.waiting = 0
        """How many of the messages are WAITING."""
        self.came = 0
        """The bytes of memory of all messages that came."""
        self.overdue: dict[Held, None] = {}
        """The messages that were held for too long: while there are any the shard stands, and only these are passed."""
        self.aside: list[Held] = []
        """The messages that are READY and wait for that, and some that are not READY any more."""
        self.low = 1
        """A delivery tag below which nothing is held."""
        self.newest = 0
        """The highest delivery tag that came."""
        self.marker = 0
        """The delivery tag of the first marker that came, which no ack may take in; 0 if none has."""
        self.acked: list[int] = []
        """The delivery tags of which the broker has yet to get an ack."""
        self.answered = False
        """Whether the client has answered a message in the read that is taken now."""

    def take_acked(self) -> tuple[int, list[int]]:
        """Return the acks that are due: of all up to a delivery tag, and of single ones; the tag is 0 for none.

        Call it only as long as all that the broker has delivered and that is not answered is held, but for markers.
        """
        held, low, newest = self.held, self.low, self.newest
        while low <= newest and low not in held and low != self.marker:
            low += 1
        self.low = low
        upto, below, single = 0, 0, list[int]()
        for tag in self.acked:
            if tag > low:
                single.append(tag)
            else:
                upto, below = max(upto, tag), below + 1
        self.acked = []
        if below == 1:
            single.append(upto)
            upto = 0
        return upto, single


class Hands:
    """The messages that one client holds in series, over all of its members, and its suspects, for one session."""

    __slots__ = ("holds_back", "suspects", "with_client")

    def __init__(self) -> None:
        self.with_client = 0
        """How many messages are with the client, but for STALE ones: it may hang on those for ever."""
        self.suspects: dict[Held, None] = {}
        """The suspects that are READY or with the client: the first one has its turn, and nothing else is passed."""
        self.holds_back = False
        """Whether there was a suspect when this was last looked at, so that members may have to be told to go on."""


class Series:
    """The deliveries of one member in series; it lives as long as the member."""

    __slots__ = (
        "_gone", "_next", "_number", "_ready", "_retries", "hands", "retried", "room", "rules", "size", "stopped",
    )  # fmt: skip

    def __init__(self, rules: Rules, room: int, hands: Hands | None = None) -> None:
        """`room` is how many messages the client may hold; 0 for any number. `hands` are the client's."""
        self.rules = rules
        self.hands = hands if hands is not None else Hands()
        self.room = room or _ANY_NUMBER
        """How many messages more the client may hold; less than 0 where a suspect was passed, which needs no room."""
        self.size = 0
        """The bytes of memory that all messages take, roughly."""
        self.retried: dict[Held, float] = {}
        """The messages that have tries behind them, the first one first, and when that was, in monotonic seconds."""
        self.stopped = 0
        """How many messages are STOPPED."""
        self._ready: list[Held] = []
        """From `_next` on the messages that are READY, the one that came to be so first before others, and some GONE.

        A list and no deque, since the compiler knows lists.
        """
        self._next = 0
        self._retries: list[tuple[float, int, Held]] = []
        """A heap of when each message in RETRY is due, monotonic, and some that are GONE."""
        self._gone = 0
        """How many elements of both are GONE, at the most."""
        self._number = 0
        """The number of the last element of `_retries`, by which elements of the same time are told apart."""

    def arrive(self, held: Held, due: float = 0.0, *, passes: bool = False) -> bool:
        """Take a message that the broker has delivered; return whether the client works on it from now on.

        `due` is when its next try is due, in monotonic seconds, if it was returned before; 0 otherwise. Whether it may
        be tried once more is judged then. `passes` says whether the client may get it at once, as no suspect is here.
        """
        window, key = held.window, held.key
        window.held[held.tag] = held
        window.newest = held.tag
        size = held.size
        self.size += size
        window.came += size
        before: Held | None = None
        if key:
            before = window.last.get(key)
            window.last[key] = held
        if before is not None:
            held.state = _WAITING
            window.waiting += 1
            before.after = held
        elif due:
            if held.tries:
                self.retried[held] = held.at
            self._wait(held, due)
        elif window.overdue:
            window.aside.append(held)
        elif passes and self._next == len(self._ready) and self.room > 0:
            held.state = _CLIENT
            self.room -= 1
            self.hands.with_client += 1
            return True
        else:
            self._ready.append(held)
        return False

    def pass_on(self) -> Held | None:
        """Return the next message for the client, which works on it from now on; None if there is none, or no room."""
        if not self.is_ready:
            return None
        if (suspect := self._suspect()) is not None:
            held = suspect
        else:
            held = self._ready[self._next]
            self._next += 1
        held.state = _CLIENT
        self.room -= 1
        self.hands.with_client += 1
        return held

    @property
    def is_ready(self) -> bool:
        """Whether there is a message for which the client has room."""
        if self.hands.suspects:
            return self._suspect() is not None
        ready, at = self._ready, self._next
        while at < len(ready) and ready[at].state != _READY:
            at += 1
        if at == len(ready) or (at > _MOST_PASSED and at > len(ready) >> 1):
            del ready[:at]
            at = 0
        self._next = at
        return at < len(ready) and self.room > 0

    def _suspect(self) -> Held | None:
        """Return the suspect that has its turn, if it is of this member and the client holds nothing."""
        if self.hands.with_client:
            return None
        held = next(iter(self.hands.suspects), None)
        return held if held is not None and held.window.series is self else None

    def settle(self, held: Held) -> None:
        """Take it that a message is settled, by the client or as a dead letter: the next one of its key has its turn.

        A message that is GONE already is left alone.
        """
        state = held.state
        if state == _CLIENT:
            self.room += 1
            self.hands.with_client -= 1
        elif state == _STALE:
            self.room += 1
        elif state == _GONE:
            return
        self._forget(held)
        after = held.after
        if after is not None:
            held.after = None
            if after.state == _WAITING:
                after.window.waiting -= 1
                self._make_ready(after)
        elif held.key:
            held.window.last.pop(held.key, None)

    def _take_back(self) -> None:
        self.room += 1
        self.hands.with_client -= 1

    def give_back(self, held: Held, now: float) -> float:
        """Take it that the client has returned a message at `now`, monotonic; return the seconds until the next try."""
        self._take_back()
        delay = min(self.rules.delay * 2.0 ** min(held.tries, 30), self.rules.longest) * spread(held.key)
        held.tries += 1
        self.retried.setdefault(held, now)
        if not held.since:
            held.since, held.before = now, held.window.came
        if 0 < self.rules.limit <= held.tries:
            delay = max(delay, LEAVES_WITHIN)
        held.returned_at = now
        if self.rules.hold and held not in held.window.overdue:
            delay = min(delay, max(held.since + self.rules.hold - now, LEAVES_WITHIN))
        self._wait(held, now + delay)
        return delay

    def fail(self, held: Held, now: float) -> None:
        """Take it that a dead letter was not confirmed: it is tried again after the longest delay."""
        if held.state == _DEAD:
            self._wait(held, now + max(self.rules.longest, 1.0))

    def recover(self, held: Held, now: float) -> None:
        """Take it that the client wants a message again, which does not count as a return; it is due at once.

        The message is not READY at once, or a client that says so again and again would have it sent each time.
        """
        self._take_back()
        self._wait(held, now)

    def _wait(self, held: Held, due: float) -> None:
        self.hands.suspects.pop(held, None)
        held.state, held.again = _RETRY, True
        self._look_at(held, due)

    def _look_at(self, held: Held, due: float) -> None:
        held.due = due
        self._number += 1
        heappush(self._retries, (due, self._number, held))

    def _make_ready(self, held: Held) -> None:
        held.state = _READY
        window = held.window
        if window.overdue and held not in window.overdue:
            window.aside.append(held)
        elif held.crashes >= SUSPECTED:
            self.hands.suspects[held] = None
            self.hands.holds_back = True
        else:
            self._ready.append(held)

    def is_overdue(self, held: Held, now: float) -> bool:
        """Return whether a message was first returned too long ago, or too much came behind it since."""
        rules = self.rules
        if not held.since or not rules.hold:
            return False
        return now >= held.since + rules.hold or 0 < rules.behind <= held.window.came - held.before

    def _stand(self, held: Held) -> None:
        """Have the shard of a message stand, which was held for too long."""
        window = held.window
        if not window.overdue:
            ready = self._ready[self._next :]
            window.aside = [each for each in (*ready, *self.hands.suspects) if each.window is window]
            window.aside = [each for each in window.aside if each.state == _READY]
            for each in window.aside:
                self.hands.suspects.pop(each, None)
            self._ready = [each for each in ready if each.window is not window]
            self._next = 0
        window.overdue[held] = None

    def _go_on(self, held: Held) -> None:
        """Have the shard of a message go on, unless it stands for another one."""
        window = held.window
        if held in window.overdue:
            del window.overdue[held]
            if not window.overdue:
                aside, window.aside = window.aside, []
                for each in aside:
                    if each.state == _READY:
                        self._make_ready(each)

    @property
    def due(self) -> float | None:
        """When the next message is to be tried again, or looked at, in monotonic seconds; None if none is."""
        while self._retries:
            due, _, held = self._retries[0]
            # An operator may have released the message, which was returned once more since.
            if (held.state == _RETRY or held.state == _STOPPED) and held.due == due:
                return due
            heappop(self._retries)
        return None

    def wakes_at(self, now: float, *, takes: bool) -> float | None:
        """Return when there is something to do for the timer; None if nothing is.

        `takes` says whether the client's channel takes deliveries. If not, READY messages wait for the client's acks.
        """
        return now if takes and self.is_ready else self.due

    def release(self, now: float, most: int) -> tuple[int, list[Held]]:
        """Have the messages tried again that are due at `now`, monotonic, but no more than `most`.

        Returns how many were due, and those of them that are DEAD or STOPPED, or for which their shard stands from now
        on. The caller publishes the first ones as dead letters.
        """
        count, ended = 0, []
        while count < most and (due := self.due) is not None and due <= now:
            held = heappop(self._retries)[2]
            count += 1
            before, is_late = held.state, self._is_late(held, now)
            state = self._judged(held, is_late=is_late)
            if is_late and state != _DEAD:
                self._stand(held)
            if state == _READY:
                self._make_ready(held)
            elif state == _STOPPED:
                self._stop(held, now)
            held.state = state
            if is_late or state == _DEAD or (state == _STOPPED and before != _STOPPED):
                ended.append(held)
        return count, ended

    def _judged(self, held: Held, *, is_late: bool) -> int:
        """Return the next state of a message that is due.

        ordered by an operator                     DEAD
        no tries left, dead letters wanted         DEAD
        no tries left                              STOPPED
        tries left, late, dead letters wanted      DEAD
        tries left                                 READY
        """
        is_over = self._is_over(held)
        if held.buried or (self.rules.dead_letters and (is_over or is_late)):
            return _DEAD
        return _STOPPED if is_over else _READY

    def _is_over(self, held: Held) -> bool:
        """Return whether a message was tried as often as it may."""
        return 0 < self.rules.limit <= held.tries or (self.is_culprit(held) and not self.rules.spares)

    def _is_late(self, held: Held, now: float) -> bool:
        """Return whether a message was held for too long, and its shard does not stand for it yet.

        A message that was overdue as it came, as after a pause, has one try.
        """
        is_tried = held.returned_at > 0 or held.buried or self._is_over(held)
        return is_tried and held not in held.window.overdue and self.is_overdue(held, now)

    def _stop(self, held: Held, now: float) -> None:
        """Have the key of a message stand still, which is looked at again until its shard stands too."""
        rules = self.rules
        self.stopped += held.state != _STOPPED
        if not held.since:
            held.since, held.before = now, held.window.came
        if rules.hold and held not in held.window.overdue:
            self._look_at(held, min(now + max(rules.longest, 1.0), max(held.since + rules.hold, now)))

    def is_culprit(self, held: Held) -> bool:
        """Return whether a message was with so many clients that crashed, and alone with the last one."""
        return held.record is not None and held.record.is_alone and held.crashes >= self.rules.crashes

    def go_on_at_once(self, held: Held) -> None:
        """Take it that an operator releases a message: it is tried now, has all its tries again, and is no suspect."""
        self._unretried(held)
        is_suspect = held in self.hands.suspects
        self.hands.suspects.pop(held, None)
        self._go_on(held)
        held.tries, held.buried, held.record, held.since = 0, False, None, 0.0
        if held.state != _READY or is_suspect:
            self._make_ready(held)

    def bury(self, held: Held) -> None:
        """Take it that an operator has a message published as a dead letter."""
        self.stopped -= held.state == _STOPPED
        self.hands.suspects.pop(held, None)
        self._go_on(held)
        held.state, held.buried = _DEAD, True

    def _unretried(self, held: Held) -> None:
        self.retried.pop(held, None)
        self.stopped -= held.state == _STOPPED

    def drop(self, window: Window) -> None:
        """Forget what neither the client nor a confirm holds of a link that ends: the next member gets it."""
        window.last.clear()
        window.overdue.clear()
        window.aside.clear()
        window.waiting = 0
        for held in list(window.held.values()):
            held.after = None
            if held.state not in (_CLIENT, _DEAD, _STALE):
                self._gone += held.state in (_READY, _RETRY)
                self._forget(held)
        if self._gone > len(self._ready) + len(self._retries) >> 1:
            # A client that holds all that it may takes nothing, however many links end under it.
            self._gone = self._next = 0
            self._ready = [held for held in self._ready if held.state == _READY]
            self._retries = [each for each in self._retries if each[2].state in (_RETRY, _STOPPED)]
            heapify(self._retries)

    def end(self, window: Window) -> None:
        """Take it that a link has ended, and no other message waits for what the client still holds of it."""
        for held in window.held.values():
            if held.state == _CLIENT:
                held.state = _STALE
                self.hands.with_client -= 1
                self.hands.suspects.pop(held, None)

    def _forget(self, held: Held) -> None:
        self.size -= held.size
        if held.tries or held.since or held.record is not None:
            self._unretried(held)
            self.hands.suspects.pop(held, None)
            self._go_on(held)
        held.state = _GONE
        held.frames = b""
        held.window.held.pop(held.tag, None)
