"""Sessions in series with random clients, operators and moves, before a model of the broker that keeps what is unacked.

Each run checks at each step: the broker gets an ack only of a message that the client has acked, an operator has
skipped or whose dead letter is confirmed; it gets no requeue; a key's next message is not passed before the one before
it is done; and the counts are those of the messages. Some messages end each client that gets them, and some clients are
lost for no reason: what was held at two such ends is held alone, and only what was alone at the last one, of three, is
given up for it. A message that is returned for too long becomes a dead letter, or nothing else of its shard is passed.
At the end all messages are done. Some are markers: no client gets one, the broker gets no answer to one, and the link
ends once all before it is done. A command takes most of them away then, and the next link meets the others.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from struct import pack
from typing import Final, NamedTuple

import pytest
from pamqp import commands

from proxy.groups.attempts import Attempts
from proxy.groups.consuming import crashes, links, settle
from proxy.groups.consuming.events import DeadLetterDue
from proxy.groups.consuming.hidden import Consumer, HiddenChannel
from proxy.groups.consuming.retries import CRASH, HELD
from proxy.groups.consuming.rules import Rules
from proxy.groups.consuming.series import Held, HeldState
from proxy.groups.model import LinkState
from proxy.groups.operators import Act, Order
from proxy.session import broker_loop, client_loop
from proxy.wire.content import MARKER
from proxy.wire.frames import BODY, HEADER, METHOD, U64
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, opened
from tests.unit.proxy.session.wire import Frame, ack, entry, headers, made, method, split

RUNS: Final = 100
STEPS: Final = 250
SHARDS: Final = ("q1", "q2")
KEYS: Final = 8
PASSED: Final = (HeldState.READY, HeldState.CLIENT)

OPEN, CLOSE, CONSUME = (20, 10), (20, 40), (60, 20)
DELIVER, ACK, REJECT, RECOVER, NACK = (60, 60), (60, 80), (60, 90), (60, 110), (60, 120)


class Message(NamedTuple):
    """One message, in the order of its publish."""

    number: int
    key: int

    @property
    def shard(self) -> str:
        return SHARDS[self.key % 2]

    @property
    def is_marker(self) -> bool:
        """Whether it is a marker, which has a key of its own for each shard."""
        return self.key >= KEYS

    @property
    def kills(self) -> bool:
        """Whether it ends each client that gets it."""
        return self.number % 30 == 7 and not self.is_marker


class Run(Grouping):
    """Sessions one after the other, each with a member of two shards and its client, and the model of their broker."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.r = random.Random(seed)
        limit, is_dead = self.r.choice((0, 1, 3)), self.r.random() < 0.5
        hold = self.r.choice((0.0, 2.0))
        spares = not is_dead and not limit and self.r.random() < 0.5
        self.rules = Rules(200, 0.1, 0.5, limit, dead_letters=is_dead, buries=True, hold=hold, spares=spares)
        self.room = self.r.choice((1, 3, 1000))
        """How many messages the client may hold."""
        self.returned: dict[Message, tuple[float, float]] = {}
        """When a message was returned first and last."""
        self.ordered: set[Message] = set()
        """The messages that an operator has had skipped or published as dead letters."""
        self.standing: dict[Message, int] = {}
        """The messages that were held for too long when the time last went on, and by which channel."""
        self.attempts = Attempts()
        self.crashes = crashes.Crashes()
        self.crashed: Counter[Message] = Counter()
        """How many clients were lost with a message."""
        self.alone: set[Message] = set()
        """The messages that were alone with the last of these."""
        self.queues: dict[str, list[tuple[Message, bool]]] = {shard: [] for shard in SHARDS}
        """The messages that are ready, and whether they come again."""
        self.unacked: dict[int, dict[int, Message]] = defaultdict(dict)
        """By hidden channel and the broker's delivery tag."""
        self.tags: dict[int, int] = {}
        """By hidden channel that is open, the last delivery tag."""
        self.with_client: dict[int, Message] = {}
        """The messages that the client holds, by its delivery tag."""
        self.outlived: set[int] = set()
        """Those delivery tags of links that have ended."""
        self.may_go: set[Message] = set()
        """Those that the client has acked, that an operator has skipped, or whose dead letter is confirmed."""
        self.rejected: set[Message] = set()
        self.done: set[Message] = set()
        self.moved: set[int] = set()
        """The hidden channels of links that were let go, or given up, or whose client is lost."""
        self.published: list[Message] = []
        self.letters: list[DeadLetterDue] = []
        self.begin_session()
        self.c.now = time.monotonic() - 3600.0  # so that what counts after a second counts as a link ends

    def begin_session(self) -> None:
        self.consuming.rules = self.rules
        self.client(made(1, commands.Basic.Qos(prefetch_count=self.room)))
        self.member = self.join(SHARDS, arguments={"x-ring-in-series": True})
        self.member.attempts = self.attempts
        self.tags = {link.channel: 0 for link in self.member.links.values()}

    # The broker

    def pump(self) -> None:
        """Have the broker take all that it gets, and the client read all that it gets, until nothing more comes."""
        while data := self.to_broker():
            answers = b"".join(self._taken(frame) for frame in split(data) if frame.kind == METHOD)
            broker_loop.from_broker(self.c, answers)
        self.read()
        letters = [event for event in self.told() if isinstance(event, DeadLetterDue)]
        for each in letters:
            if each.letter.reason == CRASH:
                message = self.unacked[each.held.window.number][each.held.tag]
                assert self.crashed[message] >= 3, f"{message} was with too few clients"
                assert message in self.alone, f"{message} was not alone"
            if each.letter.reason == HELD:
                message = self.unacked[each.held.window.number][each.held.tag]
                age = self.c.now - self.returned[message][0]
                assert age >= (self.rules.hold or 99), f"{message} was held for {age} s"
        self.letters += letters

    def _taken(self, frame: Frame) -> bytes:
        number = frame.channel
        if number < FIRST:
            return b""
        if frame.id == OPEN:
            self.tags[number] = 0
            return opened(number)
        if frame.id == CONSUME and b"flush-" in frame.payload:
            return made(number, commands.Basic.ConsumeOk(f"flush-{self.member.id}"))
        if frame.id == CLOSE:
            del self.tags[number]
            before = next(iter(self.unacked[number].values()), None)
            assert number in self.moved or (before is not None and before.is_marker), "the link ends for nothing"
            self.moved.discard(number)
            self.standing = {message: at for message, at in self.standing.items() if at != number}
            for message in self.unacked.pop(number, {}).values():
                self.queues[message.shard].append((message, True))
                self.outlived.update(tag for tag, each in self.with_client.items() if each == message)
            for queue in self.queues.values():
                queue.sort()
                self.command(queue)
            return closed(number)
        assert frame.id != RECOVER
        if frame.id in (ACK, REJECT, NACK):
            tag, bits = U64.unpack_from(frame.payload, 4)[0], frame.payload[12]
            self._settled(self.unacked[number], tag, frame.id, bits)
        return b""

    def command(self, queue: list[tuple[Message, bool]]) -> None:
        """Have the command that waits in the line of a shard take away the markers before all else, unless it is late.

        A link may be opened while it does so. Then the queue has its next consumer already.
        """
        while queue and queue[0][0].is_marker and self.r.random() < 0.7:
            self.done.add(queue.pop(0)[0])

    def _settled(self, unacked: dict[int, Message], tag: int, by: tuple[int, int], bits: int) -> None:
        assert tag in unacked, "the broker does not know the tag"
        if by != ACK:
            assert bits == 0, "the broker gets a requeue, or several at once"
        many = by == ACK and bits
        for each in [each for each in unacked if each <= tag] if many else [tag]:
            message = unacked.pop(each)
            assert not message.is_marker
            assert message in (self.may_go if by == ACK else self.rejected), (
                f"{message} is settled, and nobody did that"
            )
            self.done.add(message)

    def publish(self) -> None:
        for _ in range(self.r.randrange(8)):
            key = self.r.randrange(KEYS) if self.r.random() < 0.95 else KEYS + self.r.randrange(2)
            message = Message(len(self.published), key)
            self.published.append(message)
            self.queues[message.shard].append((message, False))

    def deliver(self) -> bytes:
        """Deliver some messages; return the bytes that have yet to come, perhaps from the middle of one on."""
        data = b""
        for shard, link in self.member.links.items():
            if link.channel not in self.tags or link.state not in (LinkState.OPEN, LinkState.LEAVING):
                continue
            for _ in range(min(self.r.randrange(6), len(self.queues[shard]))):
                message, again = self.queues[shard].pop(0)
                tag = self.tags[link.channel] = self.tags[link.channel] + 1
                self.unacked[link.channel][tag] = message
                if message.is_marker:
                    head = headers(link.channel, 0, entry(MARKER, b"l", pack(">q", 1)))
                    more = {"exchange": b"", "key": shard.encode(), "head": head, "redelivered": again}
                    data += deliver(link.channel, tag, b"", **more)  # type: ignore[arg-type]
                    continue
                body = b"%d,%d" % message
                data += deliver(link.channel, tag, body, key=b"k%d" % message.key, redelivered=again)
        cut = self.r.randrange(len(data) + 1) if self.r.random() < 0.5 else len(data)
        broker_loop.from_broker(self.c, data[:cut])
        return data[cut:]

    # The client

    def read(self) -> None:
        tag = 0
        for frame in split(self.to_client()):
            if frame.kind == METHOD:
                assert frame.id == DELIVER, "the client's channel is closed"
                tag = U64.unpack_from(frame.payload, 5 + frame.payload[4])[0]
            elif frame.kind == HEADER:
                assert MARKER not in frame.payload
            elif frame.kind == BODY:
                message = Message(*map(int, frame.payload.split(b",")))
                self.with_client[tag] = message
                held = [each for tag, each in self.with_client.items() if tag not in self.outlived]
                suspects = [each for each in held if self.crashed[each] >= 2]
                assert not suspects or len(held) == 1, f"{suspects[0]} is not alone"
                self.check_stands(message)
                before = [each for each in self.published[: message.number] if each.key == message.key]
                assert self.may_go.union(self.rejected).issuperset(before), f"{message} comes before one of its key"

    def answer(self) -> None:
        """Answer some messages in one read, or in two that part in the middle of a frame."""
        self.read()
        data = b"".join(self._an_answer() for _ in range(self.r.randrange(1, 6)) if self.with_client)
        cut = self.r.randrange(len(data) + 1)
        client_loop.from_client(self.c, data[:cut])
        client_loop.from_client(self.c, data[cut:])

    def _an_answer(self) -> bytes:
        tag = self.r.choice([tag for tag, each in self.with_client.items() if not each.kills] or [0])
        if not tag:
            return b""
        tags = [each for each in self.with_client if each <= tag]
        many = self.r.random() < 0.25 and not any(self.with_client[each].kills for each in tags)
        tags = tags if many else [tag]
        messages = [self.with_client.pop(each) for each in tags]
        what = self.r.choices(("ack", "reject", "requeue"), (6, 1, 3))[0]
        if what == "ack":
            self.may_go.update(messages)
            return ack(1, tag, many)
        if what == "reject":
            self.rejected.update(messages)
        if what == "requeue":
            takes = {link.channel for link in self.member.links.values() if link.state == LinkState.OPEN}
            held = {each for channel in takes for each in self.unacked[channel].values()}
            for message in held.intersection(messages):
                self.returned[message] = (self.returned.get(message, (self.c.now, 0.0))[0], self.c.now)
        return method(1, *NACK, pack(">QB", tag, many | (2 if what == "requeue" else 0)))

    def check_stands(self, message: Message) -> None:
        """See that no other message of the same shard was held for too long when one is passed."""
        for each, number in self.standing.items():
            is_held = each in self.unacked.get(number, {}).values() and each in self.returned
            if each.shard == message.shard and is_held and each not in self.may_go | self.rejected | self.ordered:
                is_overdue = message in self.returned and self.c.now - self.returned[message][0] >= (
                    self.rules.hold or 0
                )
                assert is_overdue, f"{message} is passed, though the shard stands for {each}"

    def crash(self) -> None:
        """Have the client be lost without a close, and another one come."""
        self.read()
        unacked = {each for messages in self.unacked.values() for each in messages.values()}
        held = unacked.intersection(self.with_client.values())
        self.crashed.update(held)
        self.alone.difference_update(held)
        if len(self.with_client) == 1:
            self.alone.update(held)
        self.crashes.note(self.consuming)
        links.lose_all(self.consuming)
        for message in unacked:
            self.queues[message.shard].append((message, True))
        for queue in self.queues.values():
            queue.sort()
        self.unacked.clear()
        self.with_client.clear()
        self.outlived.clear()
        self.letters.clear()
        now = self.c.now
        super().__init__()
        self.begin_session()
        self.c.now = now
        self.standing.clear()

    def recover(self) -> None:
        self.read()
        self.with_client.clear()
        client_loop.from_client(self.c, method(1, *RECOVER, b"\1"))

    # Time, operators, moves

    def wait(self, seconds: float) -> None:
        self.read()
        self.c.now += seconds
        settle.try_again(self.consuming)
        if self.rules.hold and not self.rules.dead_letters:
            latest = self.c.now - 1.5
            # A message that has its turn, or is on its way to the client, is looked at once it is returned.
            at = {number: self.messages(number) for number in self.unacked}
            ready = {self.unacked[n].get(each.tag) for n in at for each in at[n] if each.state in PASSED}
            self.standing = {
                message: number
                for number, messages in self.unacked.items()
                for message in messages.values()
                if message in self.returned
                and message not in self.ordered
                and self.returned[message][0] + self.rules.hold <= latest
                and self.returned[message][1] <= latest
                and message not in self.with_client.values()
                and message not in ready
            }

    def confirm(self, *, is_confirmed: bool) -> None:
        """Have a dead letter be confirmed or not."""
        if not self.letters:
            return
        held = self.letters.pop(self.r.randrange(len(self.letters))).held
        source = self.consuming.sources.get(held.window.number)
        if is_confirmed and isinstance(source, HiddenChannel) and source.window is held.window:
            message = self.unacked[source.number].get(held.tag)
            if message is not None and held.state == HeldState.DEAD:
                self.may_go.add(message)
        settle.dead_lettered(self.consuming, held, is_confirmed=is_confirmed)

    def order(self, act: Act, state: str = "") -> None:
        """Have an operator decide about a key that waits, of those in this state, if one is named."""
        for shard in SHARDS:
            keys = [key for key in self.actions.blocked_keys(self.member, shard) if state in key.state]
            if not keys:
                continue
            key, now = self.r.choice(keys), self.c.now
            number = self.member.links[shard].channel
            (tag,) = [each.tag for each in self.messages(number) if each.key.hex() == key.key_hash and is_first(each)]
            message = self.unacked[number].get(tag)
            why = self.actions.operate(self.member, Order(act, shard, key.key_hash, key.fingerprint))
            assert message is not None
            if act is Act.RELEASE and not why:
                self.returned.pop(message, None)
                self.standing.pop(message, None)
            elif not why:
                self.ordered.add(message)
            if act is Act.SKIP and not why:
                self.may_go.add(message)
            elif act is Act.RELEASE and not why:
                self.crashed[message] = 0
            self.c.now = now

    def move(self) -> None:
        shard, now = self.r.choice(SHARDS), self.c.now
        if shard not in self.member.links:
            self.actions.open(self.member, shard)
        else:
            self.moved.add(self.member.links[shard].channel)
            self.r.choice((self.actions.let_go, self.actions.give_up))(self.member, shard)
        self.c.now = now

    # The checks

    @property
    def consumer(self) -> Consumer:
        (consumer,) = self.consuming.consumers.values()
        return consumer

    def messages(self, number: int) -> list[Held]:
        source = self.consuming.sources.get(number)
        window = source.window if isinstance(source, HiddenChannel) else None
        return list(window.held.values()) if window is not None else []

    def check(self) -> None:
        series = self.consumer.series
        assert series is not None
        stopped = 0
        for hidden in self.consumer.hidden:
            held, window, link = self.messages(hidden.number), hidden.window, hidden.link
            assert window is not None
            assert link is not None
            assert not window.acked, "an ack was gathered, and has not gone out"
            assert window.waiting == sum(not is_first(each) for each in held)
            stopped += sum(each.state == HeldState.STOPPED for each in held)
            if link.state == LinkState.OPEN:
                assert not window.marker or held, "the link goes on though nothing is left"
                first = [each.key for each in held if is_first(each)]
                assert len(first) == len(set(first)), "a key has two first messages"
                with_others = (HeldState.CLIENT, HeldState.DEAD)
                assert link.unacked == sum(each.state in with_others for each in held)
        assert series.stopped == stopped
        states = [each.state for hidden in self.consumer.hidden for each in self.messages(hidden.number)]
        assert self.consuming.hands.with_client == states.count(HeldState.CLIENT)
        assert all(each.state in PASSED for each in self.consuming.hands.suspects)
        assert series.room == self.room - len(self.with_client)

    def step(self) -> None:
        rest = b""
        if any(each.kills for each in self.with_client.values()) and self.r.random() < 0.4:
            self.crash()
        what = self.r.choices(
            ("publish", "deliver", "answer", "recover", "wait", "confirm", "order", "move", "crash"),
            (20, 25, 28, 2, 10, 5, 6, 4, 1),
        )[0]
        if what == "deliver":
            rest = self.deliver()
        elif what == "wait":
            self.wait(self.r.random())
        elif what == "confirm":
            self.confirm(is_confirmed=self.r.random() < 0.6)
        elif what == "order":
            self.order(self.r.choice(list(Act)))
        else:
            {
                "publish": self.publish, "answer": self.answer, "recover": self.recover, "move": self.move,
                "crash": self.crash,
            }[what]()  # fmt: skip
        if rest:
            self.answer()
            broker_loop.from_broker(self.c, rest)
        self.pump()
        self.check()

    def finish(self) -> None:
        """Have the clients ack all but what ends them, until all is done."""
        for _ in range(400):
            if len(self.done) == len(self.published):
                return
            for shard in SHARDS:
                if shard not in self.member.links:
                    now = self.c.now
                    self.actions.open(self.member, shard)
                    self.c.now = now
                    self.pump()
            broker_loop.from_broker(self.c, self.deliver())
            self.pump()
            if any(each.kills for each in self.with_client.values()):
                self.crash()
                continue
            while self.with_client:
                tag, message = self.with_client.popitem()
                self.may_go.add(message)
                client_loop.from_client(self.c, ack(1, tag))
            while self.letters:
                self.confirm(is_confirmed=True)
            self.order(Act.SKIP if self.r.random() < 0.5 else Act.RELEASE, "stopped")
            if self.rules.spares:
                self.order(Act.SKIP, "tried again")
            self.wait(1.0)
            self.pump()
        raise AssertionError(f"{len(self.published) - len(self.done)} messages are not done")


def is_first(held: Held) -> bool:
    return held.state != HeldState.WAITING


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Have time go on as in the run that this list has, and clients that are lost one after the other count as such."""
    runs: list[Run] = []
    began = time.time()
    monkeypatch.setattr(crashes, "TOGETHER", 0.0)
    monkeypatch.setattr(time, "time", lambda: began + (runs[0].c.now if runs else 0.0))
    return runs


@pytest.mark.parametrize("seed", range(RUNS))
def test_nothing_is_acked_that_is_not_done_and_each_key_is_in_order(seed: int, clock: list[Run]) -> None:
    run = Run(seed)
    clock.append(run)
    for _ in range(STEPS):
        run.step()
    run.finish()
    series = run.consumer.series
    assert series is not None
    assert (series.room, run.consuming.hands.with_client) == (run.room, 0)
    assert (series.size, series.retried, series.stopped) == (0, {}, 0)
