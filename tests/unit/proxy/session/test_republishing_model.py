"""Random publishes, returns, answers and changes of the ring, between a client and a broker that obeys AMQP's order."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from random import Random
from struct import unpack_from

from hypothesis import event, given
from hypothesis import strategies as st
from pamqp import commands

from proxy.session import broker_loop, client_loop
from proxy.session.events import Stale
from proxy.topology.table import Entry, PassReason
from tests.properties import examples
from tests.unit.proxy.session.republishing import OURS, frames_of
from tests.unit.proxy.session.wire import (
    Frame,
    Published,
    Wire,
    ack,
    back,
    close_channel,
    code_of,
    confirm_select,
    header,
    known,
    made,
    message,
    method,
    nack,
    queue,
    ring,
    short_strings,
    split,
)

COMMIT, COMMIT_OK = made(3, commands.Tx.Commit()), made(3, commands.Tx.CommitOk())
OURS_CLOSE_OK = method(OURS, 20, 41)
CONFIRMED, PLAIN, TRANSACTED = 1, 2, 3
ALL = [f"q{n}" for n in range(1, 7)]
EXCHANGES = {CONFIRMED: b"x", PLAIN: b"y", TRANSACTED: b"z"}
PUBLISH, RETURN, OPEN, CLOSE, TX_COMMIT = (60, 40), (60, 50), (20, 10), (20, 40), (90, 20)


@dataclass
class Reader:
    """Frames of one direction, whole ones only, put together to contents on each channel."""

    contents: dict[int, list[Frame]] = field(default_factory=dict)

    def read(self, frame: Frame) -> Published | Frame | None:
        """A method without content, or a message that is whole now; fails for what stands in the midst of a content."""
        begun = self.contents.get(frame.channel)
        if begun is None:
            assert frame.kind == 1, f"content without a method: {frame}"
            if frame.id not in (PUBLISH, RETURN):
                return frame
            self.contents[frame.channel] = [frame]
            return None
        assert frame.kind == (2 if len(begun) == 1 else 3), f"in the midst of a content: {frame}"
        begun.append(frame)
        size = unpack_from(">Q", begun[1].payload, 4)[0]
        body = b"".join(each.payload for each in begun[2:])
        assert len(body) <= size
        if len(body) < size:
            return None
        del self.contents[frame.channel]
        names, _ = short_strings(begun[0].payload, 6, 2 if begun[0].id == PUBLISH else 3)
        return Published(frame.channel, names[-2], names[-1], begun[0].payload[-1], begun[1].payload, body)


def whole(data: bytes) -> tuple[bytes, bytes]:
    """The frames that are whole, and the rest."""
    at = 0
    while len(data) - at >= 7 and (end := at + 8 + unpack_from(">I", data, at + 3)[0]) <= len(data):
        at = end
    return data[:at], data[at:]


class Broker:
    """Queues, and what it will say on each channel, in order; channels among each other in any order."""

    def __init__(self) -> None:
        self.queues = set(ALL)
        self.full: set[str] = set()
        self.stored: list[bytes] = []
        self.places: list[str] = []
        """The queue of each message in `stored`."""
        self.refused: list[bytes] = []
        """By itself: in a transaction by a full queue, or passed while there was no binding."""
        self.says: dict[int, deque[Frame]] = defaultdict(deque)
        self.due: dict[int, dict[int, bool]] = defaultdict(dict)
        """By channel, of publishes whose answer is due: the tag, and whether it is an ack."""
        self.tags: Counter[int] = Counter()
        self.passed: Counter[int] = Counter()
        """By channel, publishes to an exchange."""
        self.pending: list[Published] = []
        """The publishes of the transaction."""
        self.closing_ours = self.closed_ours = False
        self.reader = Reader()

    def take(self, data: bytes) -> None:
        for frame in split(data):
            if self.closing_ours and frame.channel == OURS:
                # Dropped until the close-ok, as the broker does with a channel that it has closed.
                if frame.whole == OURS_CLOSE_OK:
                    self.closing_ours = False
                continue
            what = self.reader.read(frame)
            if isinstance(what, Published):
                if what.channel == TRANSACTED:
                    self.pending.append(what)
                else:
                    self.route(what)
            elif what is not None:
                self.obey(what)

    def obey(self, frame: Frame) -> None:
        if frame.id == TX_COMMIT:
            for each in self.pending:
                self.route(each)
            self.pending.clear()
            self.say(COMMIT_OK)
        elif frame.id == CLOSE:
            self.say(method(frame.channel, 20, 41))
        elif frame.id == OPEN:
            assert frame.channel == OURS
            self.tags[OURS] = 0
            self.say(method(OURS, 20, 11, b"\0\0\0\0"))
        else:
            assert frame.whole == confirm_select(OURS)

    def route(self, one: Published) -> None:
        self.tags[one.channel] += 1
        queue = one.key.decode()
        self.passed[one.channel] += bool(one.exchange)
        if one.exchange:  # passed: the ring's exchange itself
            queue = min(self.queues, default="")
        if queue not in self.queues and one.bits & 1:
            self.say(back(frames_of(one), 3))
        elif queue not in self.queues:
            assert one.exchange
            self.refused.append(one.body)
        elif queue not in self.full:
            self.stored.append(one.body)
            self.places.append(queue)
        elif one.channel == TRANSACTED:
            self.refused.append(one.body)
        if one.channel in (CONFIRMED, OURS):
            self.due[one.channel][self.tags[one.channel]] = queue not in self.full or queue not in self.queues

    def say(self, data: bytes) -> None:
        for frame in split(data):
            self.says[frame.channel].append(frame)

    def answer(self, channel: int, tag: int, multiple: bool) -> None:
        """To one publish, or to all up to it that are alike."""
        due = self.due[channel]
        acked = due[tag]
        several = multiple and all(each == acked for n, each in due.items() if n <= tag)
        for n in [n for n in due if n == tag or (several and n < tag)]:
            del due[n]
        self.say((ack if acked else nack)(channel, tag, several))

    def close_ours(self) -> None:
        """Close our channel; frames that the broker has said on it and not sent yet still come before."""
        self.due[OURS].clear()
        self.reader.contents.pop(OURS, None)
        self.closing_ours = self.closed_ours = True
        self.say(close_channel(OURS, 404, b"NOT_FOUND - no queue"))


@dataclass
class Sent:
    """A publish of the client's."""

    channel: int
    key: bytes
    body: bytes
    asked: bool
    acked: bool | None = None
    returned: bool = False


class Scene:
    """The client, the broker, and the proxy between them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.w = Wire(dict.fromkeys("xyz", ring(*map(queue, ALL))), channels=(1, 2, 3), spare=OURS)
        for number, channel in self.w.c.channels.items():
            channel.nonce += number << 34
        self.broker = Broker()
        self.w.client(confirm_select(1))
        self.w.client(made(3, commands.Tx.Select()))
        self.sent: dict[int, list[Sent]] = defaultdict(list)
        self.unsent = b""
        """The client's bytes that have not gone out."""
        self.unread = b""
        """The broker's bytes that the proxy has not read."""
        self.half = self.half_back = b""
        """A frame to the broker, and to the client, that has begun."""
        self.uncommitted: list[Sent] = []
        self.committing: list[Sent] | None = None
        self.stored_at_close: list[bytes] = []
        self.closed = False
        """The proxy has closed the transacted channel."""
        self.disturbed = False
        """Not every message can be in a queue in the end."""
        self.reader, self.said = Reader(), Reader()

    def draw(self, upto: int) -> int:
        return self.random.randint(0, upto)

    # Events

    def publish(self) -> None:
        channel = self.draw(2) + 1
        if channel == TRANSACTED and (self.closed or self.committing is not None):
            return
        number = sum(map(len, self.sent.values()))
        one = Sent(channel, b"key %d" % self.draw(5), b"%d:" % number + b"b" * self.draw(9), bool(self.draw(1)))
        self.sent[channel].append(one)
        self.unsent += message(channel, EXCHANGES[channel], one.key, one.body, one.asked)
        if channel == TRANSACTED:
            self.uncommitted.append(one)

    def commit(self) -> None:
        if self.committing is None and not self.closed:
            self.committing, self.uncommitted = self.uncommitted, []
            self.unsent += COMMIT

    def to_proxy(self, upto: int | None = None) -> None:
        """Some bytes of the client's."""
        n = len(self.unsent) if upto is None else self.draw(min(upto, len(self.unsent)))
        part, self.unsent = self.unsent[:n], self.unsent[n:]
        client_loop.from_client(self.w.c, part)
        self.flush()

    def from_proxy(self, upto: int | None = None) -> None:
        """Some bytes of the broker's."""
        n = len(self.unread) if upto is None else self.draw(min(upto, len(self.unread)))
        part, self.unread = self.unread[:n], self.unread[n:]
        broker_loop.from_broker(self.w.c, part)
        self.resume()

    def say(self) -> None:
        """The broker's next frame of some channel goes out."""
        ready = [channel for channel, frames in self.broker.says.items() if frames]
        if self.said.contents.keys() - {OURS}:
            # An outcome that is decided on our channel may have to be told on that of the content that is under way.
            ready = [channel for channel in ready if channel != OURS]
        if ready:
            frame = self.broker.says[ready[self.draw(len(ready) - 1)]].popleft()
            self.said.read(frame)
            self.unread += frame.whole

    def answer(self) -> None:
        ready = [(channel, tag) for channel, due in self.broker.due.items() for tag in due]
        if ready:
            self.broker.answer(*ready[self.draw(len(ready) - 1)], bool(self.draw(1)))

    def delete(self) -> None:
        if len(self.broker.queues) > 1:
            self.broker.queues.discard(self.random.choice(ALL))

    def declare(self) -> None:
        """A ring that was read before may name a queue that was gone meanwhile."""
        self.disturbed = True
        self.broker.queues.add(self.random.choice(ALL))

    def delete_all(self) -> None:
        self.disturbed = True
        self.broker.queues.clear()

    def fill(self) -> None:
        self.disturbed = True
        self.broker.full.add(self.random.choice(ALL))

    def close_ours(self) -> None:
        if self.w.c.republishing is not None and self.broker.tags[OURS] and not self.broker.closing_ours:
            self.disturbed = True
            self.broker.close_ours()

    def read_rings(self) -> None:
        """As the sync would find them."""
        for name in "xyz":
            self.w.router.put(("/", name), self.found())

    def found(self) -> Entry:
        queues = [queue(name) for name in sorted(self.broker.queues)]
        return known(ring(*queues)) if queues else known(None, PassReason.NO_BINDINGS)

    def reread(self) -> None:
        if isinstance(self.w.awaited, Stale):
            self.w.router.put(self.w.awaited.name, self.found())
            broker_loop.after_reading(
                self.w.c, self.w.c.republishing.parking.exchanges[0], self.w.awaited, self.w.c.now
            )
            self.resume()

    def resume(self) -> None:
        """Let channels go on that have waited, as the session does once it has taken the broker's bytes."""
        if self.w.c.waiting.channels:
            client_loop.resume(self.w.c)
        self.flush()

    # Output, and its check

    def flush(self) -> None:
        """The proxy's output reaches both sides: the broker whole frames, as they get whole."""
        data, self.half = whole(self.half + self.w.to_broker())
        self.broker.take(data)
        data, self.half_back = whole(self.half_back + self.w.to_client())
        for frame in split(data):
            what = self.reader.read(frame)
            if isinstance(what, Published):
                self.told_return(what)
            elif what is not None:
                self.told(what)

    def told_return(self, came: Published) -> None:
        assert came.exchange == EXCHANGES[came.channel]
        (one,) = [each for each in self.sent[came.channel] if each.body == came.body]
        assert one.asked
        assert not one.returned
        assert one.acked is None
        assert (came.key, came.header) == (one.key, header(1, len(one.body))[7:-1])
        one.returned = True

    def told(self, frame: Frame) -> None:
        if frame.id in ((60, 80), (60, 120)):
            assert frame.channel == CONFIRMED
            tag, several = unpack_from(">QB", frame.payload, 4)
            upto = self.sent[CONFIRMED][:tag]
            assert tag == len(upto)
            news = [one for one in (upto if several else upto[-1:]) if one.acked is None]
            assert news, "an answer that says nothing new"
            assert upto[-1] in news
            for one in news:
                one.acked = frame.id == (60, 80)
                if one.acked:
                    self.check(one)
        elif frame.whole == COMMIT_OK:
            assert self.committing is not None
            for one in self.committing:
                self.check(one)
            self.committing = None
        elif frame.id == CLOSE:
            assert (frame.channel, code_of(frame)) == (TRANSACTED, 541)
            assert self.committing is not None
            lost = [one for one in self.committing if one.body not in self.broker.stored and not one.returned]
            assert lost or self.broker.closed_ours
            self.closed = True
            self.unsent += method(TRANSACTED, 20, 41)
        else:
            assert frame.id == (20, 41)
            # Nothing of the channel may be on its way any more.
            self.stored_at_close = [one.body for one in self.sent[PLAIN] if one.body in self.broker.stored]

    def step(self, name: str) -> None:
        if name in ("to_proxy", "from_proxy"):
            getattr(self, name)(60)
        else:
            getattr(self, name)()

    def check(self, one: Sent) -> None:
        """Its client is about to be told that all is well."""
        places = [one.returned, one.body in self.broker.stored, one.body in self.broker.refused]
        assert places.count(True) == 1, "it is not there"

    def settle(self) -> None:
        """Until nobody has anything to say any more."""
        for _ in range(10_000):
            if isinstance(self.w.awaited, Stale):
                self.reread()
            elif self.unsent:
                self.to_proxy()
            elif any(self.broker.says.values()):
                self.say()
            elif any(self.broker.due.values()):
                self.answer()
            elif self.unread:
                self.from_proxy()
            else:
                return
        raise AssertionError("it never ends")


QUIET = {
    "publish": 30,
    "commit": 2,
    "to_proxy": 40,
    "from_proxy": 20,
    "say": 20,
    "answer": 20,
    "delete": 4,
    "reread": 6,
    "read_rings": 1,
}
WILD = QUIET | {"declare": 2, "delete_all": 0.5, "fill": 0.5, "close_ours": 1}
"""The events that may happen, and how often beside the others."""


def in_order(broker: Broker, sent: list[Sent]) -> None:
    """Check that each queue has the messages of a key in the order in which they were published."""
    found = dict(zip(broker.stored, broker.places, strict=True))
    last: dict[tuple[str, bytes], int] = {}
    at = {body: n for n, body in enumerate(broker.stored)}
    for one in sent:
        place = found[one.body], one.key
        assert last.get(place, -1) < at[one.body], f"{one.body!r} came before an earlier one of its key"
        last[place] = at[one.body]


@given(st.randoms(use_true_random=True), st.booleans())
@examples(150)
def test_each_publish_is_told_of_once_and_none_is_acked_that_no_queue_took(random: Random, wild: bool) -> None:
    scene = Scene(random)
    steps = WILD if wild else QUIET
    for name in random.choices(list(steps), list(steps.values()), k=random.randint(1, 500)):
        scene.step(name)
    scene.unsent += made(PLAIN, commands.Channel.Close(200, "", 0, 0))
    scene.settle()
    scene.commit()
    scene.settle()
    w, broker, sent = scene.w, scene.broker, scene.sent
    # Nothing is left over.
    assert w.c.republishing is None or not w.c.republishing.under_way
    assert (w.c.republishing.gathering, w.c.to_client.rest, w.c.to_broker.rest, scene.half) == (0, b"", b"", b"")
    assert all(not channel.unsettled_returns and not channel.deferred for channel in w.c.channels.values())
    assert list(w.c.channels) == ([CONFIRMED] if scene.closed else [CONFIRMED, TRANSACTED])
    # No message is there twice, in whatever order things went.
    assert all(count == 1 for count in Counter(broker.stored).values())
    assert scene.stored_at_close == [one.body for one in sent[PLAIN] if one.body in broker.stored]
    assert all(one.acked is not None for one in sent[CONFIRMED])
    for one in sent[PLAIN]:
        assert not (one.returned and one.body in broker.stored)
    if not scene.disturbed:
        assert len(broker.stored) == sum(map(len, sent.values()))
        in_order(broker, sent[CONFIRMED])
        assert all(one.acked for one in sent[CONFIRMED])
        assert not any(one.returned for ones in sent.values() for one in ones)
    # Each is counted once, by what its client was told.
    acked = sum(one.acked is True for one in sent[CONFIRMED])
    counters, passed = w.counters("x"), w.counters("x", PassReason.NO_BINDINGS)
    assert counters.published + broker.passed[CONFIRMED] == len(sent[CONFIRMED])
    # Where it gets again what its ring had before, that is a pass as well, and counts by what became of the first.
    assert passed.acked + passed.nacked == broker.passed[CONFIRMED] <= passed.published
    assert counters.acked + counters.nacked + counters.unroutable + counters.unknown == counters.published
    assert acked - sum(one.returned for one in sent[CONFIRMED]) <= counters.acked + passed.acked <= acked
    counters, passed = w.counters("y"), w.counters("y", PassReason.NO_BINDINGS)
    assert counters.sent + passed.sent == counters.published + broker.passed[PLAIN] == len(sent[PLAIN])
    counters = w.counters("z")
    assert counters.acked + counters.nacked + counters.unroutable + counters.unknown == counters.published
    rerouted = sum(w.counters(name).rerouted for name in "xyz")
    event(f"rerouted: {min(rerouted, 4)}, disturbed: {scene.disturbed}, closed: {scene.closed}")
