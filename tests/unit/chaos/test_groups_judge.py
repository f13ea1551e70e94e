"""The judge of groups is shown each kind of wrong, planted in a run where all else is right, and each exemption."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.chaos.groups.history import Calm, Delivery, End, History, Holder, How, Life, Settlement, Stall, Trouble
from tests.chaos.groups.judge import Limits, Verdict, judge
from tests.chaos.oracle import Note, Told

SHARDS = ("orders.1", "orders.2")
ACK_TIMEOUT = 5.0
A, B = Holder("a", 1), Holder("b", 1)
FOREVER = float("inf")


def shard_of(key: str) -> str:
    return SHARDS[int(key.removeprefix("key ")) % 2]


LIMITS = Limits(SHARDS, shard_of, "orders", ACK_TIMEOUT)


def note(number: int, outcome: Told = Told.CONFIRMED, channel: str = "1") -> Note:
    """Every other message is for the shard of A, which is the second, and every other one for that of B."""
    return Note("p", channel, number, f"key {number % 4}", 100 + number / 10, 100.05 + number / 10, outcome)


def got(number: int, holder: Holder | None = None, after: float = 0.1, redelivered: bool = False) -> Delivery:
    """The delivery of a message, to the holder of its shard unless told to whom, some time after its publish."""
    sent = note(number)
    owner = holder or (A if number % 2 else B)
    tag = 10 * number + round(after * 10)
    return Delivery(sent.sent + after, owner, tag, redelivered, "orders", sent.key, "p", number)


def acked(delivery: Delivery, after: float = 0.1, how: How = How.ACK) -> Settlement:
    return Settlement(delivery.at + after, delivery.holder, delivery.tag, how)


NOTES = [note(number) for number in range(200)]
"""From 100 s to 120 s."""
DELIVERIES = [got(number) for number in range(200)]


def good() -> History:
    """Two members that have a shard each, get all of its messages, and ack them."""
    return History(
        notes=list(NOTES),
        deliveries=list(DELIVERIES),
        settlements=[acked(delivery) for delivery in DELIVERIES],
        lives=[Life(holder, 99.0, FOREVER, None) for holder in (A, B)],
        calms=[Calm(100.0, 121.0, frozenset("ab"))],
    )


def judged(history: History, limits: Limits = LIMITS) -> Verdict:
    return judge(history, limits)


def the_fault(history: History, limits: Limits = LIMITS) -> str:
    (fault,) = judged(history, limits).faults
    return fault


def without(history: History, numbers: Iterable[int]) -> History:
    """The history without what became of these messages."""
    gone = {delivery.tag for delivery in history.deliveries if delivery.number in numbers}
    return replace(
        history,
        deliveries=[one for one in history.deliveries if one.tag not in gone],
        settlements=[one for one in history.settlements if one.tag not in gone],
    )


def unacked(history: History, number: int) -> History:
    """The history in which a message was never settled."""
    tags = {delivery.tag for delivery in history.deliveries if delivery.number == number}
    return replace(history, settlements=[one for one in history.settlements if one.tag not in tags])


def moved(history: History, first: int, later: float = 0.0) -> History:
    """The shard of A belongs to B from message `first` on, whose deliveries come so much later."""
    numbers = [number for number in range(first, 200) if number % 2]
    history = without(history, numbers)
    for number in numbers:
        delivery = got(number, B, 0.1 + later)
        history.deliveries.append(delivery)
        history.settlements.append(acked(delivery))
    return replace(history, calms=[])


def test_a_run_without_a_fault() -> None:
    verdict = judged(good())
    assert verdict.faults == []
    assert (verdict.delivered, verdict.in_order) == ({Told.CONFIRMED: 200}, 200 - 4)
    assert (verdict.redelivered, verdict.takeovers, verdict.unseen) == ({}, 0, 0)


@pytest.mark.parametrize("number", [0, 101, 199])
def test_a_planted_loss(number: int) -> None:
    fault = the_fault(without(good(), [number]))
    assert fault.startswith(f"p {number} (")
    assert fault.endswith("was confirmed and never delivered")


def test_what_was_not_confirmed_may_be_missing() -> None:
    history = without(good(), [7])
    history.notes = [note(number, Told.UNKNOWN if number == 7 else Told.CONFIRMED) for number in range(200)]
    assert judged(history).faults == []


def test_a_planted_message_of_nobody() -> None:
    history = good()
    history.deliveries.append(got(201))
    assert the_fault(history) == "p 201 reached a (connection 1), and nobody published it"


@pytest.mark.parametrize(("exchange", "key"), [("orders.lane.1", "key 2"), ("orders", "another")])
def test_a_planted_delivery_that_shows_another_exchange_or_key(exchange: str, key: str) -> None:
    history = replace(good(), calms=[])
    history.deliveries[50] = history.deliveries[50]._replace(exchange=exchange, key=key)
    assert "with exchange and key (" in the_fault(history)
    assert judged(history, replace(LIMITS, exchange=None)).faults == []


def test_planted_first_deliveries_out_of_order() -> None:
    history = without(good(), [101])
    late = got(101, after=0.45)  # message 105 of the same key came after 0.1 s of its own, 0.4 s later
    late = late._replace(at=got(105).at + 0.01)
    history.deliveries.append(late)
    history.settlements.append(acked(late, 0.01))
    fault = the_fault(history)
    assert fault.startswith("p 101 (")
    assert "was delivered for the first time to a (connection 1)" in fault
    assert "behind p 105 (" in fault


def test_the_order_is_of_one_channel() -> None:
    history = without(good(), [101])
    history.notes = [note(number, channel="2" if number == 101 else "1") for number in range(200)]
    late = got(101, after=0.45)._replace(at=got(105).at + 0.01)
    history.deliveries.append(late)
    history.settlements.append(acked(late, 0.01))
    assert judged(history).faults == []


def test_a_shard_that_moves_once_all_is_acked() -> None:
    verdict = judged(moved(good(), 101))
    assert verdict.faults == []
    assert verdict.takeovers == 1


def test_planted_two_holders() -> None:
    fault = the_fault(moved(unacked(good(), 99), 101))
    assert fault.startswith("p 101 (")
    assert "was delivered to b (connection 1) at 110.200 while a (connection 1) held 1 of orders.2" in fault


@pytest.mark.parametrize(
    "how", [End.CLOSED, End.KILLED]
)  # a lost connection needs a fault that explains it: another test
def test_who_leaves_holds_nothing_more(how: End) -> None:
    history = moved(unacked(good(), 99), 101, later=1.0)
    history.lives[0] = Life(A, 99.0, 110.5, how)
    again = got(99, B, 1.05, redelivered=True)
    history.deliveries.append(again)
    history.settlements.append(acked(again, 0.01))
    verdict = judged(history)
    assert verdict.faults == []
    assert verdict.redelivered == {"connection ended": 1}


def test_planted_two_holders_before_the_first_one_leaves() -> None:
    history = moved(unacked(good(), 99), 101)
    history.lives[0] = Life(A, 99.0, 110.5, End.CLOSED)
    assert "while a (connection 1) held 1 of orders.2" in the_fault(history)


def test_a_planted_redelivery() -> None:
    history = good()
    history.deliveries.append(got(99, after=0.3, redelivered=True))
    fault = the_fault(history)
    assert fault.startswith("p 99 (")
    assert "was delivered again to a (connection 1) at 110.200: a (connection 1) got it at 110.000" in fault
    assert fault.endswith("and acked it at 110.100")


def test_a_planted_second_delivery_that_is_not_marked() -> None:
    history = good()
    history.deliveries.append(got(99, after=0.3))
    assert "p 99 (" in the_fault(history)
    history.notes = [note(number, Told.UNKNOWN if number == 99 else Told.CONFIRMED) for number in range(200)]
    assert judged(history).redelivered == {"published twice by a publisher that was told nothing": 1}
    history.deliveries[-1] = history.deliveries[-1]._replace(redelivered=True)
    assert "p 99 (" in the_fault(history)


def test_the_flag_alone_is_harmless() -> None:
    history = good()
    history.deliveries[99] = history.deliveries[99]._replace(redelivered=True)
    verdict = judged(history)
    assert (verdict.faults, verdict.unseen) == ([], 1)


def test_what_was_nacked_comes_again() -> None:
    history = unacked(good(), 99)
    first, again = got(99), got(99, after=0.3, redelivered=True)
    history.deliveries.append(again)
    history.settlements += [acked(first, how=How.NACK), acked(again)]
    verdict = judged(history)
    assert (verdict.faults, verdict.redelivered) == ([], {"nacked": 1})


def test_an_ack_of_several_settles_them_all() -> None:
    history = unacked(unacked(unacked(good(), 95), 97), 99)
    history.settlements.append(acked(got(99), how=How.MULTIPLE))
    assert judged(moved(history, 101)).faults == []
    history.settlements[-1] = acked(got(97), 0.3, how=How.MULTIPLE)
    assert "while a (connection 1) held 1 of orders.2" in the_fault(moved(history, 101))


def test_an_ack_just_before_a_connection_is_lost_may_be_lost_with_it() -> None:
    history = good()
    again = got(99, B, 2.0, redelivered=True)
    history = moved(history, 101, later=2.5)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.lives[0] = Life(A, 99.0, 110.5, End.LOST)
    history.troubles.append(Trouble(110.4, 110.4, frozenset("a")))
    assert judged(history).faults == []
    history.troubles[0] = Trouble(110.4, 110.4, frozenset("b"))
    assert "a (connection 1) lost its connection at 110.500, and nothing had been done to it" in the_fault(history)


def test_an_ack_just_before_a_close_in_good_order_is_lost_only_with_a_fault() -> None:
    again = got(99, B, 2.0, redelivered=True)
    history = moved(good(), 101, later=2.5)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.lives[0] = Life(A, 99.0, 110.5, End.CLOSED)
    fault = the_fault(history)
    assert fault.startswith("p 99 (")
    assert "was delivered again to b (connection 1)" in fault
    history.troubles.append(Trouble(109.0, 111.0, frozenset("a")))
    assert judged(history).faults == []


def test_a_planted_redelivery_of_what_was_acked_long_before_the_connection_was_lost() -> None:
    history = moved(good(), 131, later=1.0)
    again = got(51, B, 8.6, redelivered=True)
    history.deliveries.append(again)
    history.settlements.append(acked(again, 0.01))
    history.lives[0] = Life(A, 99.0, 113.5, End.LOST)
    history.troubles.append(Trouble(113.4, 113.4, frozenset("a")))
    fault = the_fault(history)
    assert fault.startswith("p 51 (")
    assert "acked it at 105.300" in fault


@pytest.mark.parametrize(
    ("killed", "holder", "is_marked", "is_fault"),
    [
        (111.05, B, True, False),
        (111.15, B, True, True),
        (105.15, B, True, False),
        (105.05, B, True, True),
        (110.2, A, True, True),
        (110.2, Holder("a", 2), True, True),
        (110.2, B, False, True),
    ],
)
def test_an_ack_as_a_node_is_killed_may_be_lost_if_the_shard_moves(
    killed: float, holder: Holder, is_marked: bool, is_fault: bool
) -> None:
    """The message was acked at 110.1, and comes again to another member, or to the same one."""
    history = moved(good(), 101, later=2.5) if holder == B else good()
    again = got(99, holder, 2.0, redelivered=is_marked)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.kills.append(killed)
    verdict = judged(history)
    assert bool(verdict.faults) == is_fault
    assert verdict.redelivered == ({} if is_fault else {"acked as the leader was lost": 1})


@pytest.mark.parametrize(("closed", "is_fault"), [(110.05, True), (110.15, False), (111.85, False), (111.95, True)])
def test_such_a_message_comes_to_the_same_member_only_if_its_channel_was_closed_meanwhile(
    closed: float, is_fault: bool
) -> None:
    """The message was acked at 110.1, and comes again at 111.9."""
    history = good()
    again = got(99, A, 2.0, redelivered=True)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.kills.append(110.2)
    history.closed = {("a", SHARDS[0]): [111.0], ("b", SHARDS[1]): [111.0], ("a", SHARDS[1]): [closed]}
    assert bool(judged(history).faults) == is_fault


@pytest.mark.parametrize(
    ("given_up", "is_marked", "is_fault"),
    [
        (109.95, True, True),
        (110.05, True, False),
        (110.55, True, False),
        (110.65, True, True),
        (110.55, False, True),
    ],
)
def test_an_ack_may_cross_the_end_of_a_link(given_up: float, is_marked: bool, is_fault: bool) -> None:
    """The message was delivered at 110.0 and acked at 110.1, and comes again at 111.9."""
    history = good()
    again = got(99, A, 2.0, redelivered=is_marked)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.given_up = {("a", SHARDS[0]): [110.2], ("b", SHARDS[1]): [110.2], ("a", SHARDS[1]): [given_up]}
    verdict = judged(history)
    assert bool(verdict.faults) == is_fault
    assert verdict.redelivered == ({} if is_fault else {"acked as the shard was taken from its member": 1})


@pytest.mark.parametrize(("after", "faults"), [(14.0, 0), (16.0, 1)])
def test_such_a_message_comes_again_soon(after: float, faults: int) -> None:
    history = moved(good(), 101, later=30.0)
    again = got(99, B, 0.2 + after, redelivered=True)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    history.kills.append(110.1)
    assert len(judged(history).faults) == faults


def test_what_is_lost_over_time_may_be_taken_from_its_beginning_on() -> None:
    """A half-open connection holds nothing from its beginning on; a drained one holds until shortly before its end."""
    history = moved(unacked(good(), 99), 101)
    history.lives[0] = Life(A, 99.0, 114.0, End.LOST)
    history.troubles.append(Trouble(110.1, 113.9, frozenset("a")))
    assert judged(history).faults == []
    history.troubles[0] = history.troubles[0]._replace(abrupt=False)
    assert "while a (connection 1) held 1 of orders.2" in the_fault(history)


def test_what_is_not_acked_in_time_may_go_to_another() -> None:
    history = unacked(good(), 99)
    again = got(99, B, 4.2, redelivered=True)
    history = moved(history, 101, later=4.5)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    verdict = judged(history)
    assert (verdict.faults, verdict.redelivered) == ([], {"not acked in time": 1})
    patient = replace(LIMITS, ack_timeout=10.0)
    faults = judged(history, patient).faults
    assert any("was delivered again" in fault and "has not acked it" in fault for fault in faults)
    assert any("while a (connection 1) held" in fault for fault in faults)


def test_the_time_for_acks_begins_when_a_delivery_was_sent_and_not_when_a_stalled_leg_let_it_through() -> None:
    history = unacked(good(), 99)
    again = got(99, B, 4.2, redelivered=True)
    history = moved(history, 101, later=4.5)
    history.deliveries.append(again)
    history.settlements.append(acked(again))
    read = next(each.at for each in history.deliveries if each.number == 99)
    limits = replace(LIMITS, ack_timeout=6.0)
    for member, end, allowed in (("a", read - 0.1, True), ("b", read - 0.1, False), ("a", read - 0.9, False)):
        history.troubles[:] = [Trouble(read - 1.0, end, frozenset(member), abrupt=False)]
        assert (not judged(history, limits).faults) == allowed, (member, end)


def test_what_a_member_reads_once_it_wakes_is_no_redelivery() -> None:
    history = moved(good(), 101)
    asleep = got(101, A, 5.0)  # sent to it before its shard went to the other one
    history.deliveries.append(asleep)
    history.settlements.append(acked(asleep))
    assert "was delivered again to a" in judged(history).faults[0]
    history.stalls.append(Stall("a", 110.15, 115.0))
    assert judged(history).faults == []
    history.stalls[0] = Stall("a", 113.0, 115.0)
    assert "was delivered again to a" in judged(history).faults[0]


def test_planted_imbalance() -> None:
    history = replace(moved(good(), 101), calms=[Calm(105.0, 120.0, frozenset("ab"))])
    assert judged(history).faults == [
        "10 s after the faults ended at 105.000 a had 0 of 2 shards among 2",
        "10 s after the faults ended at 105.000 b had 2 of 2 shards among 2",
    ]
    assert judged(history, replace(LIMITS, balanced=False)).faults == []


def test_what_a_sidecar_shows_is_what_is() -> None:
    history = good()
    (calm,) = history.calms
    right = {"orders.1": "b", "orders.2": "a"}
    history.calms[0] = calm._replace(shown=[right, right])
    assert judged(history).faults == []


@pytest.mark.parametrize("shown", [{"orders.1": "b", "orders.2": "b"}, {"orders.1": "b"}])
def test_a_planted_sidecar_that_shows_another_holder(shown: dict[str, str | None]) -> None:
    history = good()
    (calm,) = history.calms
    history.calms[0] = calm._replace(shown=[shown])
    assert "a sidecar showed" in the_fault(history)


@pytest.mark.parametrize("count", [0, 2])
def test_a_planted_shard_without_exactly_one_consumer(count: int) -> None:
    """RabbitMQ 4.3 may keep one that is gone. Where that gets messages, they are never delivered."""
    history = good()
    (calm,) = history.calms
    history.calms[0] = calm._replace(consumers={"orders.1": 1, "orders.2": count})
    assert the_fault(history) == f"at 121.000 orders.2 had {count} consumers"
    assert judged(history, replace(LIMITS, exchange=None)).faults == []


def test_the_time_without_a_holder_is_measured_by_how_the_last_one_ended() -> None:
    """A gets the messages of its shard until 109.4 s, and B from 109.6 s on."""
    for how, end, name, seconds in ((None, FOREVER, "gave it up", 0.2), (End.KILLED, 109.45, "killed", 0.15)):
        history = moved(good(), 95)
        history.lives = [Life(A, 99.0, end, how), Life(B, 99.0, FOREVER, None)]
        gaps = judged(history).gaps
        found = [(how, round(gap.seconds, 3), gap.shard, gap.until) for how, its in gaps.items() for gap in its]
        assert found == [(name, seconds, SHARDS[1], got(95).at)]


def test_balance_that_takes_a_while() -> None:
    history = replace(moved(good(), 95), calms=[Calm(100.0, 120.0, frozenset("b"))])
    verdict = judged(history)
    assert verdict.faults == []
    assert verdict.slowest_balance == pytest.approx(got(93).at - 100.0)
    history.calms[0] = Calm(99.0, 120.0, frozenset("b"))
    assert "10 s after the faults ended at 99.000 orders.2 was consumed by ['a', 'b']" in judged(history).faults


def test_a_planted_shard_without_a_member() -> None:
    history = without(good(), range(91, 200, 2))
    history.notes = [one for one in history.notes if one.number < 91 or one.number % 2 == 0]
    assert judged(history).faults == [
        "10 s after the faults ended at 100.000 orders.2 was consumed by nobody",
        "10 s after the faults ended at 100.000 a had 0 of 2 shards among 2",
    ]


@pytest.mark.parametrize(("before", "faults"), [(0.05, 0), (0.5, 1)])
def test_an_ack_that_a_member_was_stopped_in_the_midst_of_may_not_have_been_sent(before: float, faults: int) -> None:
    first = got(0, A)
    again = got(0, B, after=5.5, redelivered=True)
    lives = [Life(holder, 99.0, FOREVER, None) for holder in (A, B)]
    settled = acked(first, 0.01)
    stall = Stall("a", settled.at + before, settled.at + before + 7.0)
    history = History([note(0)], [first, again], [settled, acked(again)], lives, stalls=[stall])
    assert len(judged(history).faults) == faults


LINES = """j 1.0 1
d 1.5 1 1 0 orders key-1 p 1
d 1.6 1 2 1 orders key-1 p 2
m 1.7 1 2
l 1.8 1
j 2.0 2
d 2.5 2 1 0 orders key-1 p 3
n 2.6 2 1
c 2.7 2
l 2.8 2
j 3.0 3
d 3.1 3 1 0 ord"""


def test_what_a_member_wrote_is_read() -> None:
    history = History()
    history.read("x", LINES.splitlines(keepends=True), killed=3.2)
    first, second, third = (Holder("x", connection) for connection in (1, 2, 3))
    assert history.deliveries == [
        Delivery(1.5, first, 1, False, "orders", "key-1", "p", 1),
        Delivery(1.6, first, 2, True, "orders", "key-1", "p", 2),
        Delivery(2.5, second, 1, False, "orders", "key-1", "p", 3),
    ]
    assert history.settlements == [Settlement(1.7, first, 2, How.MULTIPLE), Settlement(2.6, second, 1, How.NACK)]
    assert history.lives == [
        Life(first, 1.0, 1.8, End.LOST),
        Life(second, 2.0, 2.7, End.CLOSED),
        Life(third, 3.0, 3.2, End.KILLED),
    ]
    history = History()
    history.read("x", LINES.splitlines(keepends=True), killed=None)
    assert history.lives[-1] == Life(third, 3.0, FOREVER, None)
