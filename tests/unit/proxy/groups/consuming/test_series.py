"""Deliveries in series: the table of their states under random events, and what both peers of a session get."""

import random
from collections import defaultdict
from dataclasses import replace
from struct import pack
from typing import Any

import pytest
from mmh3 import hash_bytes
from pamqp import commands

from proxy.groups.consuming import settle
from proxy.groups.consuming.deliver import MOST_PASSED
from proxy.groups.consuming.events import LinkRefused
from proxy.groups.consuming.letters import Letter, header_of
from proxy.groups.consuming.retries import fingerprint
from proxy.groups.consuming.rules import Rules
from proxy.groups.consuming.series import MOST_BYTES, Held, HeldState, Series, Window
from proxy.groups.consuming.tags import MOST_UNACKED
from proxy.session import broker_loop, client_loop
from proxy.settings.tries import LONGEST_SPREAD
from proxy.wire.frames import U64, Fault
from ring.hashed import HashedValue
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, is_close, seen
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    VHOST,
    ack,
    chunkings,
    entry,
    headers,
    long_string,
    made,
    method,
    split,
)

A, B = FIRST + 1, FIRST + 2
SERIAL: dict[str, Any] = {"arguments": {"x-ring-in-series": True}}
ACTIVE = (HeldState.READY, HeldState.CLIENT, HeldState.RETRY)


def message(window: Window, tag: int, key: bytes, at: float) -> Held:
    return Held(window, tag, key, b"method" + b"header" + b"body", 6, 12, at)


class Played:
    """A series under random events, and what must be true of it after each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.room = self.chance.choice([0, 1, 3])
        self.series = Series(Rules(200, 1.0, 8.0), self.room)
        self.now, self.tag = 100.0, 0
        self.windows = [Window(self.series, 1), Window(self.series, 2)]
        self.alive = {1, 2}
        self.all: list[Held] = []
        self.passed: dict[bytes, list[int]] = defaultdict(list)

    def arrives(self) -> None:
        window = self.chance.choice(self.windows)
        self.tag += 1
        key = b"%d%d" % (window.number, self.chance.randrange(3)) if self.chance.random() < 0.9 else b""
        held = message(window, self.tag, key, self.now)
        self.all.append(held)
        self.series.arrive(held)

    def held(self) -> list[Held]:
        return [held for held in self.all if held.state == HeldState.CLIENT]

    def goes_on(self) -> None:
        while (held := self.series.pass_on()) is not None:
            self.passed[held.key].append(held.tag)

    def step(self) -> None:
        event = self.chance.random()
        if event < 0.4:
            self.arrives()
        elif event < 0.9 and (held := self.held()):
            one = self.chance.choice(held)
            if self.chance.random() < 0.7:
                self.series.settle(one)
            else:
                self.series.give_back(one, self.now)
        elif event < 0.93:
            # A link ends, and another one begins in its place.
            at = self.chance.randrange(2)
            self.series.drop(self.windows[at])
            self.windows[at] = Window(self.series, self.windows[at].number + 2)
        else:
            self.now += self.chance.random() * 4
            self.series.release(self.now, 2)
        self.goes_on()

    def check(self) -> None:
        by_key: dict[bytes, list[Held]] = defaultdict(list)
        for held in self.all:
            if held.key and held.state in ACTIVE and held.window in self.windows:
                by_key[held.key].append(held)
        assert all(len(active) == 1 for active in by_key.values())
        assert self.series.hands.with_client == len(self.held())
        assert not self.room or self.series.room == self.room - len(self.held()) >= 0
        assert self.series.size == sum(held.size for held in self.all if held.state != HeldState.GONE)
        for key, tags in self.passed.items():
            assert not key or tags == sorted(tags), "a key was passed out of order"


@pytest.mark.parametrize("seed", range(60))
def test_a_key_has_one_message_at_work_and_its_messages_are_passed_in_order(seed: int) -> None:
    played = Played(seed)
    for _ in range(400):
        played.step()
        played.check()
    # In the end all that came and was not dropped is settled.
    for _ in range(10_000):
        if not any(held.state != HeldState.GONE for held in played.all):
            break
        for held in played.held():
            played.series.settle(held)
        played.now += 10
        played.series.release(played.now, 100)
        played.goes_on()
        played.check()
    assert played.series.size == 0
    assert not any(window.held or window.last for window in played.windows)


def test_links_that_end_under_a_client_that_takes_nothing_leave_nothing_behind() -> None:
    series = Series(Rules(), 1)
    for number in range(1000):
        window = Window(series, number)
        for tag in range(5):
            series.arrive(message(window, tag, b"%d" % tag, 0.0))
        if not number:
            assert series.pass_on() is not None
        assert series.pass_on() is None
        series.drop(window)
        assert len(series._ready) <= 11
    assert (series.room, series.hands.with_client) == (0, 1)


def test_the_delay_doubles_up_to_the_longest() -> None:
    series = Series(Rules(200, 1.0, 5.0), 0)
    held = message(Window(series, 1), 1, b"\0k", 0.0)
    series.arrive(held)
    delays = []
    for _ in range(5):
        assert series.pass_on() is held
        series.give_back(held, 100.0)
        assert series.due is not None
        delays.append(series.due - 100.0)
        series.release(series.due - 0.001, 10)
        assert series.pass_on() is None
        series.release(series.due, 10)
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("dead_letters", [True, False])
def test_the_limit_is_judged_when_the_delay_is_over(dead_letters: bool) -> None:
    series = Series(Rules(200, 1.0, 1.0, 2, dead_letters), 0)
    window = Window(series, 1)
    first, second = (message(window, tag, b"\0k", 0.0) for tag in (1, 2))
    series.arrive(first)
    series.arrive(second)
    for now in (10.0, 20.0):
        assert series.pass_on() is first
        series.give_back(first, now)
        assert first.state == HeldState.RETRY
        count, dead = series.release(now + 1.0, 10)
        assert count == 1
    assert series.pass_on() is None
    assert first.state == (HeldState.DEAD if dead_letters else HeldState.STOPPED)
    assert dead == [first]
    assert series.due is None
    if dead_letters:
        series.settle(first)
        series.settle(first)
        assert series.pass_on() is second
        assert series.hands.with_client == 1


def test_a_dead_letter_that_is_not_confirmed_is_published_again_and_not_tried() -> None:
    series = Series(Rules(200, 1.0, 5.0, 1, dead_letters=True), 0)
    held = message(Window(series, 1), 1, b"\0k", 0.0)
    series.arrive(held)
    series.pass_on()
    series.give_back(held, 10.0)
    assert series.release(11.0, 10) == (1, [held])
    series.fail(held, 12.0)
    assert series.release(16.9, 10) == (0, [])
    assert series.release(17.0, 10) == (1, [held])


def test_a_shard_goes_on_once_what_it_stands_for_is_settled_though_no_try_is_known_of_it() -> None:
    """Another sidecar told when it was first returned, and nothing else."""
    series = Series(Rules(hold=5.0), 10)
    window = Window(series, 1)
    overdue, other = (message(window, tag, key, 10.0) for tag, key in ((1, b"\0a"), (2, b"\0b")))
    overdue.since, overdue.returned_at = 1.0, 2.0
    series.arrive(overdue, 10.0)
    assert series.release(10.0, 10) == (1, [overdue])
    series.arrive(other)
    assert [series.pass_on(), series.pass_on()] == [overdue, None]
    series.settle(overdue)
    assert series.pass_on() is other


def test_a_dead_letter_outlives_its_window_until_it_is_confirmed() -> None:
    """Its link does not end before; nothing else of the window stays."""
    series = Series(Rules(200, 1.0, 5.0, 1, dead_letters=True), 0)
    window = Window(series, 1)
    dead, other = (message(window, tag, key, 0.0) for tag, key in ((1, b"\0a"), (2, b"\0b")))
    for held in (dead, other):
        series.arrive(held)
    assert series.pass_on() is dead
    series.give_back(dead, 10.0)
    series.release(11.0, 10)
    series.drop(window)
    assert (dead.state, other.state) == (HeldState.DEAD, HeldState.GONE)
    series.settle(dead)
    assert series.size == 0
    assert not window.held


def test_keys_that_failed_together_are_not_tried_again_together() -> None:
    series = Series(Rules(0, 1.0, 5.0), 0)
    window = Window(series, 1)
    for number in range(1_000):
        series.arrive(message(window, number + 1, hash_bytes(b"key-%d" % number), 0.0))
    while (held := series.pass_on()) is not None:
        series.give_back(held, 100.0)
    tried = [series.release(100.0 + at / 20, 1_000)[0] for at in range(19, 26)]
    assert tried[0] == 0
    assert sum(tried) == 1_000, "a delay is longer by a quarter at the most"
    assert max(tried) < 300


def test_a_message_that_comes_before_its_next_try_is_due_waits_for_it_with_its_key() -> None:
    series = Series(Rules(), 0)
    window = Window(series, 1)
    first, second = (message(window, tag, b"k", 100.0) for tag in (1, 2))
    series.arrive(first, 107.0)
    series.arrive(second)
    assert series.pass_on() is None
    assert series.due == 107.0
    series.release(107.0, 10)
    assert series.pass_on() is first


def test_a_message_that_comes_with_all_its_tries_behind_it_is_not_tried_again() -> None:
    series = Series(Rules(200, 1.0, 5.0, 3, dead_letters=True), 0)
    held = message(Window(series, 1), 1, b"k", 100.0)
    held.tries = 3
    series.arrive(held, 100.0)
    assert series.pass_on() is None
    assert series.release(100.0, 10) == (1, [held])


@pytest.mark.parametrize("extra", [b"", entry(b"x-delivery-count", b"l", U64.pack(3))])
def test_two_deliveries_of_a_message_have_one_fingerprint(extra: bytes) -> None:
    """The broker adds its counts to the headers, also where there were none."""
    own = entry(b"a", b"t", b"\1")
    assert fingerprint(b"k", headers(1, 5, own + extra), b"hello") == fingerprint(b"k", headers(1, 5, own), b"hello")
    assert fingerprint(b"k", headers(1, 5, extra), b"hello") == fingerprint(b"k", headers(1, 5, b""), b"hello")
    others = {
        fingerprint(b"j", headers(1, 5, own), b"hello"),
        fingerprint(b"k", headers(1, 5, entry(b"a", b"t", b"\0")), b"hello"),
        fingerprint(b"k", headers(1, 5, own), b"hallo"),
        fingerprint(b"k", headers(1, 5, own), b"hello"),
    }
    assert len(others) == 4


def test_a_header_that_cannot_be_read_has_a_fingerprint_and_no_dead_letter() -> None:
    broken = headers(1, 0, b"\5ab")
    assert fingerprint(b"k", broken, b"") != fingerprint(b"k", headers(1, 0, b"\5ac"), b"")
    with pytest.raises(Fault):
        header_of(Letter("/", "x", "q", b"k", broken, b"", 3, "retry-limit"))


# The frames that both peers get


def joined(shards: tuple[str, ...] = ("q1", "q2")) -> Grouping:
    wire = Grouping()
    wire.join(shards, **SERIAL)
    return wire


def said(wire: Grouping, data: bytes) -> tuple[bytes, bytes]:
    """Feed bytes of the client; return what goes to the broker, and what to the client."""
    client_loop.from_client(wire.c, data)
    return wire.to_broker(), wire.to_client()


def again(tag: int) -> bytes:
    """The client's basic.nack with requeue."""
    return method(1, 60, 120, pack(">QB", tag, 2))


def test_a_message_waits_for_the_one_before_it_of_its_key_in_any_chunking() -> None:
    came = deliver(A, 1, b"one") + deliver(A, 2, b"two" * 20, piece=7) + deliver(A, 3, b"", key=b"other") + HEARTBEAT
    for chunking in chunkings(came):
        wire = joined()
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert wire.to_client() == seen(1, b"one") + seen(2, b"", key=b"other") + HEARTBEAT
        assert wire.c.republishing.gathering == 0
        assert said(wire, ack(1, 1)) == (ack(A, 1), seen(3, b"two" * 20, piece=7))


def test_the_window_is_the_prefetch_of_a_link_and_the_argument_stays_here() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(prefetch_count=7)))
    wire.begin(("q1",), **SERIAL)
    sent = b"".join(frame.payload for frame in wire.frames())
    assert pack(">HHIHB", 60, 10, 0, 200, 0) in sent
    assert b"x-ring-in-series" not in sent


def test_the_client_holds_no_more_than_its_own_prefetch_and_what_it_returned_does_not_count() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(prefetch_count=2)))
    wire.join(("q1",), **SERIAL)
    number = next(iter(wire.consuming.consumers)).links["q1"].channel
    came = b"".join(deliver(number, n, key=b"%d" % n) for n in range(1, 6))
    assert wire.broker(came) == seen(1, key=b"1") + seen(2, key=b"2")
    assert said(wire, again(1)) == (b"", seen(3, key=b"3"))
    assert said(wire, ack(1, 2)) == (ack(number, 2), seen(4, key=b"4"))


FIRST_TRY = entry(b"x-ring-attempt", b"l", pack(">q", 1))
STAMPS_OF_NO_KEY = long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"")
ATTEMPT = entry(b"x-ring-attempt", b"l", pack(">q", 2))


def test_a_returned_message_comes_again_with_the_number_of_the_try() -> None:
    wire = joined(("q1",))
    publisher_s = entry(b"x-ring-attempt", b"l", pack(">q", 99)) + entry(b"a", b"t", b"\1")
    wire.broker(deliver(A, 1, head=headers(A, 5, publisher_s)))
    assert said(wire, again(1)) == (b"", b""), "the broker would deliver it behind later ones"
    (consumer,) = wire.consuming.retrying
    assert consumer.series is not None
    assert consumer.series.due is not None
    assert 1.0 <= consumer.series.due - wire.c.now <= LONGEST_SPREAD
    wire.c.now += 0.9
    settle.try_again(wire.consuming)
    assert wire.to_client() == b""
    wire.c.now += 0.4
    settle.try_again(wire.consuming)
    head = headers(1, 5, ATTEMPT + entry(b"a", b"t", b"\1"))
    assert wire.to_client() == seen(2, redelivered=True, head=head)
    assert not wire.consuming.retrying
    assert wire.client(ack(1, 2)) == ack(A, 1)


def test_an_ack_of_all_up_to_a_number_takes_in_nothing_that_waits() -> None:
    wire = joined()
    wire.broker(b"".join(deliver(A, n, key=b"%d" % n) for n in (1, 2, 3)) + deliver(A, 4, key=b"1") + deliver(B, 1))
    assert said(wire, ack(1, 4, True)) == (ack(A, 3, True) + ack(B, 1), seen(5, key=b"1"))


def test_acks_of_one_read_go_to_the_broker_together_and_none_takes_in_what_is_here() -> None:
    wire = joined(("q1",))
    wire.broker(b"".join(deliver(A, n, key=b"%d" % n) for n in range(1, 8)))
    assert said(wire, ack(1, 2) + ack(1, 4))[0] == ack(A, 2) + ack(A, 4)
    assert said(wire, ack(1, 1) + ack(1, 6) + ack(1, 3))[0] == ack(A, 3, True) + ack(A, 6), "5 is with the client"
    assert said(wire, again(5) + ack(1, 7))[0] == ack(A, 7), "5 waits for its next try"
    wire.c.now += 2
    settle.try_again(wire.consuming)
    wire.to_client()
    assert said(wire, ack(1, 8))[0] == ack(A, 5)


@pytest.mark.parametrize("goodbye", [commands.Channel.Close(200, "", 0, 0), commands.Connection.Close(200, "", 0, 0)])
def test_acks_go_out_before_a_close_behind_them(goodbye: Any) -> None:
    wire = joined(("q1",))
    wire.broker(deliver(A, 1, key=b"1") + deliver(A, 2, key=b"2"))
    number = 0 if isinstance(goodbye, commands.Connection.Close) else 1
    to_broker, _ = said(wire, ack(1, 1) + made(number, goodbye))
    frames = [each.whole for each in split(to_broker) if each.channel in (number and A, A)]
    assert frames[0] == ack(A, 1)
    assert len(frames) == 2, "the acks, and the close of the link or of the connection"


def test_acks_go_out_before_a_fault_behind_them() -> None:
    wire = joined(("q1",))
    wire.broker(deliver(A, 1))
    assert said(wire, ack(1, 1) + b"\x09" + bytes(7))[0].startswith(ack(A, 1))


def test_as_a_link_leaves_no_ack_takes_in_what_has_gone_back() -> None:
    """The acks stand before the cancel in one read: what waited is not here any more when they go out."""
    wire = joined(("q1",))
    wire.broker(b"".join(deliver(A, n, key=b"%d" % (n % 2)) for n in range(1, 6)))
    to_broker, _ = said(wire, ack(1, 1) + made(1, commands.Basic.Cancel("c")) + ack(1, 2))
    assert to_broker.startswith(ack(A, 1) + ack(A, 2))
    assert is_close(split(to_broker)[2])


def test_recover_frees_the_room_of_what_goes_with_its_link() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(prefetch_count=2)))
    member = wire.join(("q1", "q2"), **SERIAL)
    first, second = (member.links[shard].channel for shard in ("q1", "q2"))
    wire.broker(deliver(first, 1) + deliver(second, 1) + deliver(second, 2))
    wire.actions.give_up(member, "q1")
    wire.to_broker()
    wire.broker(closed(first))
    recover = made(1, commands.Basic.Recover(True))
    (consumer,) = wire.consuming.consumers.values()
    assert said(wire, recover) == (recover, b"")
    assert said(wire, recover) == (recover, b""), "once more changes nothing"
    settle.try_again(wire.consuming)
    assert wire.to_client() == seen(3, redelivered=True, head=headers(1, 5, FIRST_TRY))
    assert consumer.series is not None
    assert consumer.series.room == 1
    assert said(wire, ack(1, 3)) == (ack(second, 1), seen(4))


def test_what_there_was_no_turn_for_follows_by_the_timer() -> None:
    wire, count = joined(("q1",)), MOST_PASSED + 7
    for n in range(1, count + 1):
        wire.broker(deliver(A, n, key=b"%d" % n))
    recover = made(1, commands.Basic.Recover(True))
    assert said(wire, recover)[1] == b""
    told = []
    while wire.consuming.retrying:
        settle.try_again(wire.consuming)
        told.append(len([each for each in split(wire.to_client()) if each.kind == 1]))
    assert told == [MOST_PASSED, 7]


def test_the_timer_rests_while_the_client_holds_as_many_as_a_channel_may() -> None:
    """A message of which nothing can be sent must not be looked at again and again."""
    wire = joined(("q1",))
    wire.broker(deliver(A, 1, key=b"1") + deliver(A, 2, key=b"2"))
    (consumer,) = wire.consuming.consumers.values()
    numbering, series = consumer.numbering, consumer.series
    assert series is not None
    held = dict(numbering.unacked)
    numbering.unacked.update(dict.fromkeys(range(-MOST_UNACKED, 0), held[1]))
    assert said(wire, again(1)) == (b"", b"")
    numbering.unacked.update(dict.fromkeys(range(-MOST_UNACKED - 1, 0), held[1]))
    wire.c.now += 2
    settle.try_again(wire.consuming)
    assert wire.to_client() == b""
    assert not wire.consuming.retrying
    assert (series.is_ready, series.wakes_at(wire.c.now, takes=not numbering.full)) == (True, None)
    numbering.unacked.clear()
    numbering.unacked[2] = held[2]
    to_broker, to_client = said(wire, ack(1, 2))
    assert to_broker == ack(A, 2)
    assert to_client == seen(3, key=b"1", redelivered=True, head=headers(1, 5, ATTEMPT))


def test_a_link_that_delivers_too_many_bytes_ends_and_is_told_of() -> None:
    wire = joined()
    (consumer,) = wire.consuming.consumers.values()
    assert consumer.series is not None
    wire.broker(deliver(A, 1) + deliver(B, 1))
    wire.forget()
    consumer.series.size += MOST_BYTES
    to_broker, to_client = wire.both(deliver(A, 2))
    assert to_client == b""
    (close,) = split(to_broker)
    assert is_close(close)
    assert close.channel == A
    (refused,) = wire.told()
    assert isinstance(refused, LinkRefused)
    assert (refused.shard, refused.code) == ("q1", 506)
    assert "choose a smaller groups_window" in refused.text
    # A message that is too large by itself is passed all the same.
    assert said(wire, ack(1, 2)) == (ack(B, 1), b"")
    assert wire.broker(deliver(B, 2)) == seen(3)


STAMPED = headers(A, 5, long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"k"))
OTHERS = headers(A, 5, long_string(b"x-ring-exchange", b"other") + long_string(b"x-ring-routing-key", b"z"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(deliver(A, 1), deliver(A, 2, exchange=b"", key=b"q1", head=STAMPED), id="by a lane, and directly"),
        pytest.param(deliver(A, 1), deliver(A, 2, head=OTHERS), id="with the stamps of another ring"),
        pytest.param(
            deliver(A, 1, key=b""),
            deliver(A, 2, exchange=b"", key=b"q1", head=headers(A, 5, STAMPS_OF_NO_KEY)),
            id="an empty key",
        ),
    ],
)
def test_what_the_exchange_hashed_alike_is_one_key(first: bytes, second: bytes) -> None:
    wire = joined(("q1",))
    wire.broker(first + second)
    assert wire.consuming.hands.with_client == 1


def with_customer(tag: int, value: bytes | None, key: bytes) -> bytes:
    fields = long_string(b"customer", value) if value is not None else b""
    return deliver(A, tag, key=key, head=headers(A, 5, fields))


def test_by_a_header_it_is_the_header_and_who_lacks_it_waits_for_nobody() -> None:
    wire = joined(("q1",))
    entry_ = wire.router.entries[VHOST, "x"]
    assert entry_.known is not None
    hashed = replace(entry_.known, hashed=HashedValue("header", "customer"))
    wire.router.put((VHOST, "x"), replace(entry_, known=hashed))
    came = [(1, b"a", b"1"), (2, b"a", b"2"), (3, b"b", b"1"), (4, None, b"1"), (5, None, b"1")]
    wire.broker(b"".join(with_customer(*each) for each in came))
    assert wire.consuming.hands.with_client == 4, "all but the second one of a"


def test_as_long_as_nobody_knows_what_is_hashed_a_shard_has_one_message_at_work() -> None:
    wire = joined()
    wire.router.drop((VHOST, "x"))
    wire.broker(deliver(A, 1, key=b"1") + deliver(A, 2, key=b"2") + deliver(B, 1, key=b"3"))
    assert wire.consuming.hands.with_client == 2


@pytest.mark.parametrize("cut", range(len(deliver(A, 1, b"abcdef", piece=3)) + 1))
def test_delivery_tags_rise_beside_a_member_that_is_not_in_series(cut: int) -> None:
    """Wherever the socket's read has split a content of the other member: an ack of all up to a tag must be one."""
    wire = Grouping()
    wire.join(("q1",), **SERIAL)
    other = wire.join(("q2",), tag="d")
    number = other.links["q2"].channel
    wire.broker(deliver(A, 1) + deliver(A, 2))
    came = deliver(number, 1, b"abcdef", piece=3, consumer="d")
    broker_loop.from_broker(wire.c, came[:cut])
    client_loop.from_client(wire.c, ack(1, 1))
    broker_loop.from_broker(wire.c, came[cut:])
    deliveries = [each for each in split(wire.to_client()) if each.kind == 1 and each.id == (60, 60)]
    tags = [U64.unpack_from(each.payload, 6)[0] for each in deliveries]
    assert tags == [2, 3]


def test_a_member_that_leaves_settles_what_it_holds_and_nothing_else_is_passed() -> None:
    wire = joined(("q1",))
    wire.broker(b"".join(deliver(A, n, key=b"%d" % (n % 3)) for n in range(1, 8)))
    said(wire, again(1))
    said(wire, made(1, commands.Basic.Cancel("c")))
    assert said(wire, again(2)) == (b"", b"")
    to_broker, to_client = said(wire, ack(1, 3))
    assert to_broker.startswith(ack(A, 3))
    assert is_close(split(to_broker)[1])
    assert to_client == b""
    wire.c.now += 100
    settle.try_again(wire.consuming)
    assert wire.both(closed(A)) == (b"", b"")
    assert not wire.consuming.retrying


def test_a_link_that_ends_under_the_client_is_not_answered_any_more_and_frees_its_room() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(prefetch_count=1)))
    member = wire.join(("q1", "q2"), **SERIAL)
    first, second = (member.links[shard].channel for shard in ("q1", "q2"))
    assert wire.broker(deliver(first, 1) + deliver(second, 1)) == seen(1)
    assert wire.actions.hangs_since(member) == 0.0
    got_at = wire.c.now
    wire.actions.give_up(member, "q1")
    wire.to_broker()
    wire.broker(closed(first))
    assert wire.actions.hangs_since(member) == got_at
    assert said(wire, ack(1, 1)) == (b"", seen(2))
    assert wire.actions.hangs_since(member) == 0.0, "it is with the client, and its link goes on"
    assert wire.client(ack(1, 2)) == ack(second, 1)
    assert wire.actions.hangs_since(member) == 0.0
