"""The connection that publishes for HTTP: what a broker sends it, with publishes in between.

It raises only `Fault`. Every publish is settled once. Messages to one queue go in their order.
"""

from collections import Counter
from contextlib import suppress
from random import Random
from struct import pack, unpack_from
from unittest.mock import patch

from proxy.outcome import Outcome
from proxy.publisher.protocol import Full
from proxy.wire.frames import BODY, HEADER, METHOD, Fault
from tests.fuzz.contents import contents, whole_frames
from tests.fuzz.steps import Step, chance, pieces, steps, written
from tests.unit.proxy.publisher.client_wire import OPEN_OK, TO_Q, Wire, blocked, come_back, queue_named, start, tune
from tests.unit.proxy.session.wire import (
    CONNECTION_CLOSE_OK,
    ack,
    close_channel,
    close_connection,
    frame,
    method,
    nack,
    published,
)

BROKER_METHOD, BROKER_HEADER, BROKER_BODY, BROKER_FRAME, BROKER_RAW, PUBLISH, RETURN, GIVE_UP, CLOSE = range(9)
_OPS = 9

_KINDS = (METHOD, HEADER, BODY)
_CHANNELS = 4
_EXCHANGES = (b"", b"one", b"two", b"three")

_OTHER, _WAITS = 8, 16
"""Bits of a publish's channel: it goes to the other queue; it is not packed before the next step."""

OTHER = queue_named("other")

_FEW_CHANNELS, _SMALL = 1, 2
"""Bits of the first byte: the broker takes two channels, or the least frame_max."""


class Run:
    """One run of an input, its bytes whole or in pieces."""

    def __init__(self, flags: int, rng: Random | None) -> None:
        self.wire = Wire(2 if flags & _FEW_CHANNELS else 2047, 4096 if flags & _SMALL else 131072)
        self._rng = rng
        self.sent: list[bytes] = []
        self.fault, self.ids = "", [0]

    def take(self, step: Step) -> None:
        """Do one step."""
        op, wire = step.op % _OPS, self.wire
        if op <= BROKER_RAW:
            self._feed(_frame(op, step))
        elif op == PUBLISH and wire.client.stage.name == "OPEN":
            with suppress(Full, ValueError):
                method = OTHER if step.channel & _OTHER else TO_Q
                data = pack(">I", wire.published) + step.data
                wire.publish(_EXCHANGES[step.channel % len(_EXCHANGES)], data, method)
        elif op == RETURN:
            self._feed(come_back(step.channel % _CHANNELS, self.ids[step.op // _OPS % len(self.ids)], len(step.data)))
        elif op == GIVE_UP:
            wire.give_up("no answer in time")
        elif op == CLOSE:
            wire.client.close()
        if op != PUBLISH or not step.channel & _WAITS:
            self._take_out()

    def check_order(self) -> None:
        """Messages to one queue on one channel went in the order in which they were published."""
        went: dict[tuple[int, bytes], list[int]] = {}
        for sent in published(b"".join(self.sent)):
            went.setdefault((sent.channel, sent.key), []).append(unpack_from(">I", sent.body)[0])
        assert all(numbers == sorted(numbers) for numbers in went.values())

    def _feed(self, data: bytes) -> None:
        try:
            for part in pieces(data, self._rng):
                self.wire.client.feed(part)
        except Fault as fault:
            self.fault = str(fault)

    def _take_out(self) -> None:
        data = self.wire.sent()
        self.sent.append(data)
        for one in whole_frames(data)[0]:
            if one.kind == HEADER:
                at = one.payload.find(b"x-ring-idl")
                self.ids.append(unpack_from(">q", one.payload, at + 10)[0])


def _frame(op: int, step: Step) -> bytes:
    channel = step.channel % _CHANNELS
    if op < len(_KINDS):
        return frame(_KINDS[op], channel, step.data)
    if op == BROKER_FRAME:
        return frame(step.data[0] if step.data else 8, channel, step.data[1:])
    return step.data


def run(data: bytes, rng: Random | None = None) -> Run:
    """One run of an input, up to the fault that ends it."""
    with patch("proxy.publisher.channel.secrets.randbits", lambda bits: 0x1234567):
        one = Run(data[0] if data else 0, rng)
        for step in steps(data[1:]):
            one.take(step)
            if one.fault:
                break
    return one


def check(data: bytes) -> None:
    """Only Fault is raised; chunking makes no difference; each publish is settled once; a queue's are in order."""
    whole, cut = run(data), run(data, chance(data))
    assert bool(whole.fault) == bool(cut.fault)
    if not whole.fault:
        assert (whole.sent, whole.wire.results.outcomes) == (cut.sent, cut.wire.results.outcomes)
    for one in (whole, cut):
        client, results = one.wire.client, one.wire.results
        assert client.in_flight == one.wire.published - len(results.verdicts)
        client.lost("the connection is gone")
        assert client.in_flight == 0
        assert sorted(results.verdicts) == list(range(one.wire.published))
        assert all(len(verdicts) == 1 for verdicts in results.verdicts.values())
        known = Counter(verdicts[0].outcome for verdicts in results.verdicts.values())
        assert known.keys() <= {Outcome.CONFIRMED, Outcome.NACKED, Outcome.UNROUTABLE, Outcome.UNKNOWN, Outcome.INVALID}
        frames, rest = whole_frames(b"".join(one.sent))
        assert not rest
        contents(frames, set())
        one.check_order()


# Seeds.


def _steps(*frames: bytes) -> list[Step]:
    split = whole_frames(b"".join(frames))[0]
    return [Step(_KINDS.index(one.kind), one.channel, one.payload) for one in split if one.kind in _KINDS]


def _publishes(number: int, to: int = 0, size: int = 5) -> list[Step]:
    return [Step(PUBLISH, to, b"x" * size)] * number


def seeds() -> list[bytes]:
    """Return what a broker says, to begin with."""
    refused = close_channel(1, 403, b"ACCESS_REFUSED - write access to exchange 'one' refused")
    large = close_channel(1, 406, b"PRECONDITION_FAILED - message size 9 is larger than configured max size 8")
    scripts: list[tuple[int, list[Step]]] = [
        (0, [*_publishes(3), *_steps(method(1, 20, 11, b"\0" * 4), method(1, 85, 11), ack(1, 1), ack(1, 3, True))]),
        (0, [*_publishes(4), Step(RETURN + _OPS, 1, b"xy"), *_steps(ack(1, 1), nack(1, 3), ack(1, 4, True))]),
        (0, [*_publishes(2, 1), *_steps(refused), *_publishes(1, 1), *_steps(ack(1, 1))]),
        (0, [*_publishes(1, 2), *_steps(large), *_publishes(1), Step(GIVE_UP, 0, b""), *_steps(ack(2, 1))]),
        (_FEW_CHANNELS, [*_publishes(1), *_publishes(1, 1), *_steps(ack(1, 1), ack(2, 1)), *_publishes(1, 2)]),
        (_FEW_CHANNELS, [*_publishes(1), *_steps(ack(1, 1)), *_publishes(1, 1), *_steps(method(1, 20, 41))]),
        (
            _SMALL,
            [*_publishes(2, 0, 6000), *_steps(ack(1, 2, True)), Step(CLOSE, 0, b""), *_steps(CONNECTION_CLOSE_OK)],
        ),
        (
            0,
            [
                *_steps(blocked("low on memory"), method(0, 10, 61)),
                *_publishes(1),
                *_steps(close_connection(320, b"x")),
            ],
        ),
        (0, [*_steps(start({"cluster_name": "rabbit@fuzz"}), tune(), OPEN_OK)]),
        (
            0,
            [
                *_publishes(2, _WAITS),
                *_publishes(2, _WAITS | _OTHER),
                *_publishes(2),
                *_steps(ack(1, 4, True)),
                *_publishes(1, _WAITS),
                *_steps(refused),
            ],
        ),
        (0, [*_publishes(1), Step(BROKER_RAW, 0, ack(1, 1)[:9]), Step(BROKER_RAW, 0, ack(1, 1)[9:])]),
    ]
    return [bytes((flags,)) + written(script) for flags, script in scripts]
