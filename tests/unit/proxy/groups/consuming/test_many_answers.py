"""A client that holds many deliveries and answers them in an unfortunate order: no answer takes longer for that.

Each case ran for minutes, or for tens of seconds, when an answer looked through what the client holds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack

import pytest
from pamqp import commands

from proxy.groups.consuming import settle
from proxy.groups.consuming.tags import MOST_OUT_OF_ORDER, Numbering, numbering_of
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, deliver
from tests.unit.proxy.session.wire import made, method, split

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the two links of a member."""

MANY = 30_000

LIMIT = 2.5
"""Seconds of CPU time that the answers of a case may take; those of each take less than 0.3 s, also as Python."""


@contextmanager
def in_little_time() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < LIMIT


def holding(*numbers: int) -> Grouping:
    """The client holds so many deliveries of these hidden channels, one channel after the other."""
    wire = Grouping()
    wire.join()
    for number in numbers:
        before, behind = deliver(number, 0, b"").split(pack(">Q", 0), 1)
        for tag in range(1, MANY + 1, 1000):
            wire.both(b"".join(before + pack(">Q", each) + behind for each in range(tag, tag + 1000)))
    return wire


def nack(tag: int) -> bytes:
    return method(1, 60, 120, pack(">QB", tag, 2))


def ack(tag: int, multiple: bool = False) -> bytes:
    return method(1, 60, 80, pack(">QB", tag, multiple))


def test_the_newer_half_is_returned_and_the_older_half_acked_one_by_one() -> None:
    wire = holding(A)
    data = b"".join(nack(tag) for tag in range(MANY // 2, MANY + 1)) + b"".join(ack(n) for n in range(2, MANY // 2))
    with in_little_time():
        assert len(split(wire.client(data))) == MANY // 2 - 2


def test_the_newest_is_returned_first_and_another_shards_deliveries_are_older() -> None:
    wire = holding(A, B)
    data = b"".join(nack(tag) for tag in range(2 * MANY, MANY, -1))
    with in_little_time():
        assert wire.client(data) == b""
        # The deliveries then go back in parts, between which other sessions have a turn.
        parts = []
        while wire.consuming.requeued:
            settle.hand_back(wire.consuming, wire.c.now, wire.c.now)
            parts.append(len(split(wire.to_broker())))
    assert (max(parts), sum(parts)) == (settle.MOST_AT_ONCE, MANY)


def test_an_answer_that_lets_many_go_back_sends_a_few() -> None:
    wire = holding(A)
    wire.client(b"".join(nack(tag) for tag in range(2, MANY + 1)))
    assert len(split(wire.client(ack(1)))) < 100
    back = 0
    while wire.consuming.requeued:
        settle.hand_back(wire.consuming, wire.c.now, wire.c.now)
        back += len(split(wire.to_broker()))
    assert back > MANY - 100


def test_each_of_many_acks_covers_one_delivery() -> None:
    """The gaps that single acks leave in front are not walked again."""
    wire = holding(A)
    singly = b"".join(ack(number) for number in range(1, MANY // 2))
    data = singly + b"".join(ack(number, True) for number in range(MANY // 2, MANY))
    with in_little_time():
        assert len(split(wire.client(data))) == MANY - 1


def test_many_methods_on_the_last_declared_queue_while_many_declarations_have_no_answer() -> None:
    wire = Grouping()
    declared = made(1, commands.Exchange.Declare(exchange="e", passive=True)) * (MANY // 2)
    data = made(1, commands.Basic.Consume(queue="", nowait=True)) * (MANY // 2)
    assert wire.client(declared) == declared
    with in_little_time():
        assert wire.client(data) == data


@pytest.mark.parametrize("number", [MANY, 0], ids=["up to the last", "all"])
def test_one_ack_of_many_is_taken_in_parts_between_which_others_have_a_turn(number: int) -> None:
    wire = holding(A)
    behind = made(1, commands.Basic.Qos(prefetch_count=1))
    before = wire.c.to_broker.frames
    sent = [wire.client(ack(number, True) + behind)]
    # A delivery that came meanwhile is not meant, and nothing overtakes the rest of the ack.
    wire.both(deliver(A, MANY + 1))
    while wire.c.to_broker.more:
        sent.append(wire.client(b""))
    most = settle.MOST_AT_ONCE
    tags = [*range(most, MANY, most), MANY]
    assert b"".join(sent) == b"".join(made(A, commands.Basic.Ack(tag, True)) for tag in tags) + behind
    assert len(sent) == len(tags)
    assert wire.c.to_broker.frames - before == 2
    assert list(numbering_of(wire.c.channels[1]).unacked) == [MANY + 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("started", [False, True], ids=["before a member comes", "with a member"])
def test_deliveries_of_ordinary_consumers_are_acked_out_of_order(started: bool) -> None:
    numbering = Numbering(1)
    number = MOST_OUT_OF_ORDER // 2
    for tag in range(1, 2 * number + 1):
        numbering.pass_delivery(tag, settled=False)
    if started:
        numbering.start()
    for tag in range(2 * number, number, -1):
        numbering.settle_own(tag)
    with in_little_time():
        for tag in range(1, number):
            if started:
                assert numbering.settle_all(numbering.add(numbering.own, 2 * number + tag, 0.0), 1, [])
            numbering.settle_all_own(tag)
    assert not numbering.unsure
