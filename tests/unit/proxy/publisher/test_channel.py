"""Every publish of a client is told of once, and never too well: random lives, beside a model and beside a broker."""

from collections import Counter
from struct import pack, unpack_from
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from proxy.outcome import Outcome
from proxy.publisher.protocol import Full
from proxy.routing.route import PUBLISH
from proxy.wire.frames import shorted
from tests.properties import examples
from tests.unit.proxy.publisher.client_wire import Wire, come_back
from tests.unit.proxy.session.wire import (
    ack,
    chunks,
    close_channel,
    frame,
    method,
    nack,
    returned,
    short_strings,
    split,
)

EXCHANGES = (b"", b"a", b"b")
COUNTED = {
    Outcome.CONFIRMED: "acked",
    Outcome.NACKED: "nacked",
    Outcome.UNKNOWN: "unknown",
}
"""Not what came back: its receiver may send it again."""


def check(w: Wire) -> None:
    """None is told of twice, and every count agrees."""
    outcomes = Counter(w.results.outcomes.values())
    assert w.client.in_flight == w.published - outcomes.total()
    assert w.counters.published == w.published
    assert {outcome: getattr(w.counters, name) for outcome, name in COUNTED.items()} == {
        outcome: outcomes[outcome] for outcome in COUNTED
    }
    assert w.counters.unroutable == 0


class Sent(NamedTuple):
    """One publish of the model."""

    publish: int
    ring_id: int


class Model:
    """The expected outcome of each publish, of whatever the broker may say."""

    def __init__(self, cuts: list[int]) -> None:
        self.wire, self.cuts = Wire(), cuts
        self.sent: dict[bytes, list[Sent]] = {}
        """By exchange: those of its channel's present life."""
        self.fate: dict[int, Outcome] = {}
        self.returned: set[int] = set()
        self.answered: set[int] = set()
        """By the broker, in time."""
        self.marks: list[tuple[bytes, list[Sent]]] = []

    def id(self, to: bytes) -> int:
        return self.wire.channel(to).id

    def untold(self, to: bytes, most: int) -> list[Sent]:
        return [one for one in self.sent[to][:most] if one.publish not in self.fate]

    def settle(self, one: Sent, outcome: Outcome) -> None:
        self.fate[one.publish] = Outcome.UNROUTABLE if one.publish in self.returned else outcome

    def feed(self, data: bytes) -> None:
        for chunk in chunks(data, self.cuts):
            self.wire.client.feed(chunk)

    def publish(self, to: bytes, _: int, __: bool) -> None:
        index = self.wire.publish(to)
        (ring_id,) = self.wire.ids()
        self.sent.setdefault(to, []).append(Sent(index, ring_id))

    def answer(self, to: bytes, number: int, multiple: bool, outcome: Outcome) -> None:
        number = min(number, len(self.sent[to]))
        for one in self.untold(to, number) if multiple else self.untold(to, number)[-1:]:
            if multiple or one is self.sent[to][number - 1]:
                self.settle(one, outcome)
                self.answered.add(one.publish)
        self.feed((ack if outcome is Outcome.CONFIRMED else nack)(self.id(to), number, multiple))

    def ack(self, to: bytes, number: int, multiple: bool) -> None:
        self.answer(to, number, multiple, Outcome.CONFIRMED)

    def nack(self, to: bytes, number: int, multiple: bool) -> None:
        self.answer(to, number, multiple, Outcome.NACKED)

    def come_back(self, to: bytes, number: int, _: bool) -> None:
        one = self.sent[to][min(number, len(self.sent[to])) - 1]
        if one.publish not in self.fate:
            self.returned.add(one.publish)
        self.feed(come_back(self.id(to), one.ring_id, number))

    def mark(self, *_: object) -> None:
        self.wire_marks = self.wire.client.marks()
        self.marks = [(channel.exchange, self.sent[channel.exchange]) for channel, _ in self.wire_marks]
        self.at = [number for _, number in self.wire_marks]

    def give_up(self, *_: object) -> None:
        if not self.marks:
            return
        for (to, life), number in zip(self.marks, self.at, strict=True):
            if self.sent.get(to) is life:
                for one in self.untold(to, number):
                    self.settle(one, Outcome.UNKNOWN)
        for channel, number in self.wire_marks:
            self.wire.client.give_up(channel, number, "too late")

    def close(self, to: bytes, number: int, blames: bool) -> None:
        life, channel = self.sent[to], self.id(to)
        left = self.untold(to, len(life))
        before = life[-2] if len(life) > 1 else None
        known = before is None or before.publish in self.answered | self.returned
        blamed = blames and left == life[-1:] and known
        for one in left:
            self.settle(one, Outcome.INVALID if blamed else Outcome.UNKNOWN)
        del self.sent[to]
        self.feed(close_channel(channel, 404, b"gone", (60, 40) if blames else (60, number)))

    def lose(self, *_: object) -> None:
        for to in self.sent:
            for one in self.untold(to, len(self.sent[to])):
                self.settle(one, Outcome.UNKNOWN)
        self.wire.client.lost("gone")


steps = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "publish", "ack", "nack", "come_back", "mark", "give_up", "close"]),
        st.sampled_from(EXCHANGES),
        st.integers(1, 8),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps, st.lists(st.integers(0, 60), max_size=5))
@examples(500)
def test_every_publish_has_the_fate_that_a_naive_model_gives_it(
    steps: list[tuple[str, bytes, int, bool]], cuts: list[int]
) -> None:
    model = Model(cuts)
    for name, to, number, flag in [*steps, ("lose", b"", 1, False)]:
        if name not in ("ack", "nack", "come_back", "close") or to in model.sent:
            getattr(model, name)(to, number, flag)
            assert model.wire.results.outcomes == dict(sorted(model.fate.items()))
            check(model.wire)
    assert model.fate.keys() == set(range(model.wire.published))


class Life:
    """One life of a channel, as the broker has it."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        """The publishes' indices."""
        self.unanswered: list[int] = []
        """Their numbers."""
        self.closing = False


class Broker:
    """Takes publishes in turn, as RabbitMQ does, and answers when it is told to."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lives: dict[int, Life] = {}
        self.queue: set[int] = set()
        """The publishes, by index, that a queue has."""
        self.blamed: set[int] = set()
        """Those that it closed a channel for."""
        self.says: list[bytes] = []
        self._header = b""
        self._kind = b""

    def read(self, data: bytes) -> None:
        for one in split(data):
            if one.kind == 1:
                self._on_method(one.channel, one.id, one.payload[4:])
            elif one.kind == 2:
                self._header = one.payload
            else:
                self._on_message(one.channel, unpack_from(">I", one.payload)[0])

    def _on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        match which:
            case (20, 10):
                assert channel not in self.lives
                assert 1 <= channel <= self.most
                assert len(self.lives) < self.most
                self.lives[channel] = Life()
                self.says.append(method(channel, 20, 11, pack(">I", 0)))
            case (85, 10):
                self.says.append(method(channel, 85, 11))
            case (20, 40):
                if not self.lives[channel].closing:
                    del self.lives[channel]
                self.says.append(method(channel, 20, 41))
            case (20, 41):
                assert self.lives.pop(channel).closing
            case _:
                assert which == (60, 40)
                (_, self._kind), _ = short_strings(arguments, 2, 2)

    def _on_message(self, channel: int, index: int) -> None:
        life = self.lives[channel]
        if life.closing:
            return
        life.taken.append(index)
        number = len(life.taken)
        match self._kind:
            case b"refused":
                life.closing = True
                self.blamed.add(index)
                self.says.append(close_channel(channel, 406, b"refused"))
                return
            case b"lost":
                # With the headers only, without the delivery mode behind them.
                head = frame(2, channel, pack(">HHQH", 60, 0, 4, 1 << 13) + self._header[14:-1])
                self.says += [returned(channel, b"", b"lost"), head, frame(3, channel, bytes(4))]
            case b"kept":
                self.queue.add(index)
        life.unanswered.append(number)

    def answer(self, at: int, multiple: bool, kept: bool) -> None:
        """Confirms some, and with `kept` False refuses to keep them after all."""
        lives = [(n, life) for n, life in self.lives.items() if life.unanswered and not life.closing]
        if not lives:
            return
        channel, life = lives[at % len(lives)]
        number = life.unanswered[at % len(life.unanswered)]
        numbers = [n for n in life.unanswered if n <= number] if multiple else [number]
        life.unanswered = [n for n in life.unanswered if n not in numbers]
        if not kept:
            self.queue -= {life.taken[n - 1] for n in numbers}
        self.says.append((ack if kept else nack)(channel, number, multiple))


KINDS = {kind: PUBLISH + shorted(b"") + shorted(kind) for kind in (b"kept", b"lost", b"refused")}

beside_a_broker = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 5), st.sampled_from([b"kept", b"kept", b"lost", b"refused"])),
        st.tuples(st.just("broker reads"), st.integers(1, 12), st.none()),
        st.tuples(st.just("broker answers"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("broker drops"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("client reads"), st.integers(1, 200), st.none()),
        st.tuples(st.sampled_from(["mark", "give up"]), st.none(), st.none()),
    ),
    max_size=60,
)


class Beside:
    """A client and a broker, with what is on the way between them."""

    def __init__(self, channel_max: int) -> None:
        self.wire, self.broker = Wire(channel_max=channel_max), Broker(channel_max)
        self.there, self.back = b"", b""
        self.full = 0
        self.marks = self.wire.client.marks()

    def step(self, what: str, number: int, flag: bytes | bool | None) -> None:
        match what, flag:
            case "publish", bytes(kind):
                self.publish(b"%d" % number if number else b"", kind)
            case "broker reads", _:
                frames = [one.whole for one in split(self.there)]
                # A message is taken as a whole.
                self.there = b"".join(frames[number:])
                self.broker.read(b"".join(frames[:number]))
            case (("broker answers" | "broker drops"), bool(multiple)):
                self.broker.answer(number, multiple, what == "broker answers")
            case "client reads", _:
                self.wire.client.feed(self.back[:number])
                self.back = self.back[number:]
            case "mark", _:
                self.marks = self.wire.client.marks()
            case _:
                for channel, last in self.marks:
                    self.wire.client.give_up(channel, last, "too late")
        self.there += self.wire.sent()
        self.back += b"".join(self.broker.says)
        self.broker.says.clear()

    def publish(self, to: bytes, kind: bytes) -> None:
        try:
            self.wire.publish(to, pack(">I", self.wire.published), KINDS[kind])
        except Full:
            self.full += 1


@given(beside_a_broker, st.sampled_from([2, 4, 2047]))
@examples(700)
def test_no_publish_is_told_to_be_better_off_than_it_is(
    steps: list[tuple[str, int, bytes | bool | None]], channel_max: int
) -> None:
    beside = Beside(channel_max)
    for step in steps:
        beside.step(*step)
        check(beside.wire)
    beside.wire.client.lost("gone")
    check(beside.wire)
    assert beside.wire.client.in_flight == 0
    for index, outcome in beside.wire.results.outcomes.items():
        if outcome is not Outcome.UNKNOWN:
            assert (index in beside.broker.queue) == (outcome is Outcome.CONFIRMED), (index, outcome)
        if outcome is Outcome.INVALID:
            assert index in beside.broker.blamed
