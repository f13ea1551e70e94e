"""The count of publishes that went by an earlier ring and are unsettled, over AMQP and HTTP."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pamqp import commands

from proxy.http.admin import unsettled as unsettled_module
from proxy.http.admin.unsettled import Unsettled, UnsettledCount
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, ConfirmChannel, PublishResult
from proxy.routing.counters import Counters, CounterTable
from proxy.routing.routes import RouteTables
from proxy.session.publishing.order import MOST_EXCHANGES
from proxy.topology.generations import OtherGeneration, OtherShard
from proxy.topology.table import Entry, PassReason, Unread
from ring.destination import Destination
from tests.unit.proxy.session.republishing import KEPT, LEFT, LOST, OURS, connected
from tests.unit.proxy.session.wire import QUEUES, VHOST, Wire, ack, back, known, laned, made, message, upstream

X = (VHOST, "x")
OLD = OtherGeneration(1, 0, {Destination("exchange", "lane.q1"): OtherShard("q1")})


def later(ring: Any = LEFT) -> Entry:
    """The exchange with lanes of generation 2."""
    entry = laned(ring)
    lanes = {queue: f"{lane}.g2" for queue, lane in entry.lanes.items()}
    return replace(entry, lanes=lanes, generation=2, others=(OLD,))


class Around:
    """A count of what wires have published, and of what is on the channels of HTTP."""

    def __init__(self, *wires: Wire) -> None:
        w = wires[0]
        self.counter_table = CounterTable()
        self.tables = RouteTables(w.router, w.tables.selection, self.counter_table, lambda _: "", lambda _: None)
        self.channels: list[ConfirmChannel] = []
        self.coming_back: Counter[tuple[str, str]] = Counter()
        listener = SimpleNamespace(sessions=[SimpleNamespace(connection=each.c) for each in wires])
        publisher = SimpleNamespace(unsettled=lambda vhost: self.channels)
        self.count = UnsettledCount(w.router, cast(Any, listener), cast(Any, publisher), cast(Any, self), self.tables)

    def of(self, exchange: str = "x") -> Unsettled | None:
        return asyncio.run(self.count.of((VHOST, exchange)))

    def published(self, lane: str, number: int, exchange: str = "x") -> ConfirmChannel:
        """HTTP publishes to an exchange that went to a lane."""
        channel = ConfirmChannel(len(self.channels) + 1, lane.encode())
        for n in range(1, number + 1):
            channel.number = n
            channel.pending[n] = (Receiver(), n, self.counters(exchange))
        self.channels.append(channel)
        return channel

    def counters(self, exchange: str) -> Counters:
        return self.counter_table.of((VHOST, exchange), None)


class Receiver:
    def settled(self, index: int, verdict: PublishResult) -> None:
        """Take any result."""


def before(w: Wire, exchange: str = "x") -> int:
    found = Around(w).of(exchange)
    assert found is not None
    return found.before


def switch(w: Wire, entry: Entry | None = None) -> None:
    w.router.put(X, entry or later())


# Over AMQP


def test_what_went_by_an_earlier_ring_counts_until_it_is_answered() -> None:
    w = connected(x=laned())
    for key in KEPT[:3]:
        w.client(message(1, b"x", key))
    assert before(w) == 0
    switch(w)
    assert before(w) == 3
    w.broker(ack(1, 2, True))
    assert before(w) == 1
    # This channel's next publish waits, and another channel's went by the present ring.
    assert w.client(message(1, b"x", KEPT[0])) == b""
    w.client(message(2, b"x", KEPT[0]))
    assert before(w) == 1
    w.broker(ack(1, 3))
    w.client(b"")
    assert before(w) == 0
    assert w.c.channels[1].confirms.unsettled == 1


def test_publishes_to_other_exchanges_do_not_count() -> None:
    w = connected(x=laned())
    w.client(message(1, b"x", KEPT[0]) + message(1, b"same", b"k") + message(1, b"t", b"k"))
    switch(w)
    w.broker(ack(1, 1))
    assert w.c.channels[1].confirms.unsettled == 2
    assert before(w) == 0


def test_what_comes_back_counts_until_its_second_way_has_ended() -> None:
    w = connected(x=laned())
    sent = w.client(message(1, b"x", LOST[0]))
    w.both(back(sent) + ack(1, 1))
    assert before(w) == 0
    w.reread({"x": later()})
    assert w.c.republishing.under_way
    assert before(w) == 1
    w.both(ack(OURS, 1))
    assert before(w) == 0


def test_what_is_parked_counts() -> None:
    w = connected(x=laned())
    w.both(back(w.client(message(1, b"x", LOST[0]))))
    assert w.c.republishing.parking
    switch(w, replace(later(), read_at=0.0))
    assert before(w) == 1


def test_what_later_ones_do_not_wait_for_any_more_still_counts() -> None:
    w = connected(x=laned())
    w.client(message(1, b"x", KEPT[0]))
    switch(w)
    w.client(message(1, b"x", KEPT[0]))
    channel = w.c.channels[1]
    channel.order.give_up(channel.confirms.number)
    assert w.client(b"") != b""
    assert channel.confirms.unsettled == 2
    assert before(w) == 1
    w.broker(ack(1, 1))
    assert before(w) == 0


def test_a_transaction_counts_what_it_has_published_before() -> None:
    w = connected(x=laned(), confirming=False)
    w.client(made(1, commands.Tx.Select()))
    w.client(message(1, b"x", KEPT[0]) + message(1, b"x", KEPT[1]))
    assert before(w) == 0
    switch(w)
    assert before(w) == 2
    w.client(message(1, b"x", KEPT[0]))
    assert before(w) == 2
    w.client(made(1, commands.Tx.Commit()))
    w.broker(made(1, commands.Tx.SelectOk()) + made(1, commands.Tx.CommitOk()))
    assert before(w) == 0
    w.client(message(1, b"x", KEPT[0]))
    assert before(w) == 0


def test_channels_without_confirms_are_told() -> None:
    w = connected(x=laned(), confirming=False)
    w.client(message(1, b"x", KEPT[0]) + message(2, b"same", b"k") + message(3, b"t", b"k"))
    assert Around(w).of() == Unsettled(0, 1)
    assert Around(w).of("same") == Unsettled(0, 1)
    switch(w)
    assert Around(w).of() == Unsettled(0, 1)


def test_a_channel_without_confirms_and_with_many_exchanges_counts_for_each() -> None:
    w = connected(confirming=False)
    order, confirms = w.c.channels[1].order, w.c.channels[1].confirms
    for number in range(MOST_EXCHANGES):
        assert order.may_take(b"e%d" % number, f"ring {number}", confirms, False)
    assert not order.has_published(b"x")
    assert order.may_take(b"one more", "ring", confirms, False)
    assert order.has_published(b"x")


def test_what_a_channel_without_confirms_gets_back_counts_while_it_is_parked() -> None:
    w = connected(x=laned(), confirming=False)
    w.both(back(w.client(message(1, b"x", LOST[0]))))
    assert w.c.republishing.parking
    assert Around(w).of() == Unsettled(1, 1)
    w.reread({"x": later()})
    assert Around(w).of() == Unsettled(0, 1), "it is under way by the present ring"


def test_confirms_that_are_asked_for_later_order_what_comes_after() -> None:
    w = connected(x=laned(), confirming=False)
    w.client(message(1, b"x", KEPT[0]) + made(1, commands.Confirm.Select()))
    w.broker(made(1, commands.Confirm.SelectOk()))
    w.client(message(1, b"x", KEPT[0]))
    switch(w)
    assert before(w) == 1
    assert w.client(message(1, b"x", KEPT[0])) == b"", "it waits"


def test_publishes_to_an_upstream_exchange_count_for_the_ring_behind_it() -> None:
    w = Wire({"x": laned(), "same": laned(LEFT), "up": upstream({"#": "x"})}, confirming=True)
    w.client(message(1, b"up", KEPT[0]))
    assert before(w) == 0
    switch(w)
    assert before(w) == 1
    assert before(w, "same") == 0
    w.broker(ack(1, 1))
    assert before(w) == 0


def test_while_the_exchange_is_to_be_read_all_counts() -> None:
    w = connected(x=laned())
    w.client(message(1, b"x", KEPT[0]))
    w.router.mark_declared(X, w.router.clock(), certain=True)
    assert isinstance(w.tables.table(VHOST, None).find(b"x"), Unread)
    assert before(w) == 1


def test_another_virtual_host_does_not_count() -> None:
    w = connected(x=laned())
    w.client(message(1, b"x", KEPT[0]))
    switch(w)
    w.c.handshake.vhost = "another"
    assert before(w) == 0


def test_nobody_knows_if_the_ring_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsettled_module, "AT_ONCE", 1)
    w = connected(x=laned())
    w.client(message(1, b"x", KEPT[0]))

    async def count() -> Unsettled | None:
        asking = asyncio.create_task(Around(w).count.of(X))
        changed = asyncio.get_running_loop().call_soon
        for _ in range(6):
            await asyncio.sleep(0)
        changed(switch, w)
        return await asking

    assert asyncio.run(count()) is None
    assert before(w) == 1


# Over HTTP


def test_http_publishes_to_lanes_that_the_ring_does_not_have() -> None:
    w = Wire({"x": laned(), "same": laned(LEFT)})
    around = Around(w)
    old = around.published("lane.q1", 3)
    around.published("lane.q3", 2, "same")
    assert around.of() == Unsettled(0, 0)
    switch(w)
    around.published("lane.q1.g2", 5)
    assert around.of() == Unsettled(3, 0)
    old.settle(2, True, CONFIRMED)
    assert around.of() == Unsettled(1, 0)
    old.settle(3, False, CONFIRMED)
    assert around.of() == Unsettled(0, 0)


@pytest.mark.parametrize(
    ("answers", "left"),
    [([(1, False)], 2), ([(1, False), (2, False), (3, False)], 0), ([(3, True)], 0), ([(2, True), (3, True)], 0)],
)
def test_what_was_given_up_counts_until_the_broker_answers(answers: list[tuple[int, bool]], left: int) -> None:
    w = Wire({"x": laned()})
    around = Around(w)
    old = around.published("lane.q1", 3)
    switch(w)
    old.settle(3, True, PublishResult(Outcome.UNKNOWN, "too late"))
    assert around.of() == Unsettled(3, 0)
    for number, multiple in answers:
        old.settle(number, multiple, CONFIRMED)
    assert around.of() == Unsettled(left, 0)


def test_what_came_back_over_http_counts() -> None:
    w = Wire({"x": laned()})
    around = Around(w)
    around.coming_back[X] += 2
    assert around.of() == Unsettled(2, 0)


def test_http_publishes_that_pass_do_not_count() -> None:
    w = Wire({"x": known(QUEUES, PassReason.NOT_A_LANE)})
    around = Around(w)
    channel = around.published("x", 0)
    channel.pending[1] = (Receiver(), 1, around.counter_table.of(X, PassReason.NOT_A_LANE))
    assert around.of() == Unsettled(0, 0)
