"""Two groups of one exchange are judged each for itself: a planted fault of one is told of it alone."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.chaos.groups.history import Begin, Calm, DeadLetter, Delivery, History, Holder, How, Life, Settlement
from tests.chaos.groups.judge import Limits
from tests.chaos.groups.several import judge_each, named
from tests.chaos.oracle import Note, Told

OWN, AUDIT = named("orders", 2, 2)
GROUPS = {"a": OWN.name, "b": OWN.name, "c": AUDIT.name, "d": AUDIT.name}
"""The members of each group: the first of each has its first shard."""
COUNT = 200


def place(key: str) -> int:
    return int(key.removeprefix("key ")) % 2


LIMITS = {each.name: Limits(each.shards, each.shard_of(place), "orders", 5.0) for each in (OWN, AUDIT)}


def note(number: int) -> Note:
    return Note("p", "1", number, f"key {number % 4}", 100 + number / 10, 100.05 + number / 10, Told.CONFIRMED)


def got(number: int, member: str, after: float = 0.1) -> Delivery:
    sent = note(number)
    return Delivery(sent.sent + after, Holder(member, 1), number + 1, False, "orders", sent.key, "p", number)


def acked(delivery: Delivery) -> Settlement:
    return Settlement(delivery.at + 0.01, delivery.holder, delivery.tag, How.ACK)


def calms() -> Iterable[Calm]:
    for group, members in ((OWN, "ab"), (AUDIT, "cd")):
        shown = dict(zip(group.shards, members, strict=True))
        consumers = dict.fromkeys(group.shards, 1)
        yield Calm(100.0, 121.0, frozenset(members), [shown], consumers, group.name)


def good() -> History:
    """Each message comes to a member of each group, of the same shard, and is acked."""
    deliveries = [got(number, pair[number % 2]) for number in range(COUNT) for pair in ("ab", "cd")]
    return History(
        notes=list(map(note, range(COUNT))),
        deliveries=deliveries,
        settlements=list(map(acked, deliveries)),
        lives=[Life(Holder(member, 1), 99.0, float("inf"), None) for member in GROUPS],
        calms=list(calms()),
        groups=GROUPS,
    )


def told(history: History) -> list[str]:
    return [fault for verdict in judge_each(history, LIMITS).values() for fault in verdict.faults]


def the_fault(history: History) -> str:
    (fault,) = told(history)
    return fault


def without(history: History, number: int, member: str) -> History:
    """The history in which a member did not get a message that its group should have."""
    holder, tag = Holder(member, 1), number + 1
    return replace(
        history,
        deliveries=[one for one in history.deliveries if (one.holder, one.tag) != (holder, tag)],
        settlements=[one for one in history.settlements if (one.holder, one.tag) != (holder, tag)],
    )


def test_groups_and_their_queues() -> None:
    assert named("orders", 1, 2) == (OWN,)
    assert (OWN.name, OWN.shards) == ("orders", ("orders.1", "orders.2"))
    assert (AUDIT.name, AUDIT.shards) == ("orders/audit", ("orders.audit.1", "orders.audit.2"))
    assert [each.shard_of(place)("key 1") for each in (OWN, AUDIT)] == ["orders.2", "orders.audit.2"]


def test_a_run_without_a_fault() -> None:
    verdicts = judge_each(good(), LIMITS)
    assert [verdict.faults for verdict in verdicts.values()] == [[], []]
    assert [verdict.delivered for verdict in verdicts.values()] == [{Told.CONFIRMED: COUNT}] * 2
    assert [verdict.in_order for verdict in verdicts.values()] == [COUNT - 4] * 2


@pytest.mark.parametrize(("member", "group"), [("b", "orders"), ("d", "orders/audit")])
def test_a_planted_loss_in_one_of_two_groups(member: str, group: str) -> None:
    fault = the_fault(without(good(), 101, member))
    assert fault.startswith(f"{group}: p 101 (")
    assert fault.endswith("was confirmed and never delivered")


@pytest.mark.parametrize(("member", "group"), [("b", "orders"), ("d", "orders/audit")])
def test_planted_first_deliveries_out_of_order_in_one_of_two_groups(member: str, group: str) -> None:
    history = without(good(), 101, member)
    late = got(101, member, 0.51)  # message 105 of the same key is there after 0.5 s
    history.deliveries.append(late)
    history.settlements.append(acked(late))
    fault = the_fault(history)
    assert fault.startswith(f"{group}: p 101 (")
    assert "behind p 105 (" in fault


def test_a_planted_copy_of_the_other_group() -> None:
    """A member gets what is the other group's: its own group has the message twice, and the other one never."""
    history = without(good(), 101, "d")
    copy = got(101, "b", 0.3)._replace(tag=COUNT + 1)
    history.deliveries.append(copy)
    history.settlements.append(acked(copy))
    own, audit = told(history)
    assert own.startswith("orders: p 101 (")
    assert "was delivered again to b (connection 1)" in own
    assert audit.startswith("orders/audit: p 101 (")
    assert audit.endswith("was confirmed and never delivered")


@pytest.mark.parametrize(("at", "shard"), [(0, "orders.2"), (1, "orders.audit.2")])
@pytest.mark.parametrize("count", [0, 2])
def test_a_planted_shard_of_one_of_two_groups_without_exactly_one_consumer(at: int, shard: str, count: int) -> None:
    history = good()
    calm = history.calms[at]
    history.calms[at] = calm._replace(consumers={**calm.consumers, shard: count})
    assert the_fault(history) == f"{calm.group}: at 121.000 {shard} had {count} consumers"


def test_planted_imbalance_in_one_of_two_groups() -> None:
    history = good()
    history.deliveries = [
        one._replace(holder=Holder("c", 1), tag=one.tag + COUNT) if one.holder.member == "d" else one
        for one in history.deliveries
    ]
    history.settlements = list(map(acked, history.deliveries))
    history.calms = [calm._replace(shown=[]) for calm in history.calms]
    assert told(history) == [
        "orders/audit: 10 s after the faults ended at 100.000 c had 2 of 2 shards among 2",
        "orders/audit: 10 s after the faults ended at 100.000 d had 0 of 2 shards among 2",
    ]


def test_a_planted_sidecar_that_shows_one_of_two_groups_otherwise() -> None:
    history = good()
    history.calms[1] = history.calms[1]._replace(shown=[dict(zip(AUDIT.shards, "dc", strict=True))])
    assert the_fault(history).startswith("orders/audit: 10 s after the faults ended at 100.000 a sidecar showed ")


def worked(group: str) -> History:
    """Each group gets one message in series: the own group completes it, and the other one gives it up at once.

    `group` is the group that its dead letter tells.
    """
    deliveries = [got(0, "a"), got(0, "c")]
    hows = (How.ACK, How.NACK)
    return History(
        notes=[note(0)],
        deliveries=deliveries,
        settlements=[acked(one)._replace(how=how) for one, how in zip(deliveries, hows, strict=True)],
        lives=[Life(Holder(member, 1), 99.0, float("inf"), None) for member in GROUPS],
        begins=[Begin(one.at + 0.001, one.holder, one.tag, 1) for one in deliveries],
        dead_letters=[DeadLetter("p", 0, "key 0", 1, group)],
        groups=GROUPS,
    )


def test_a_dead_letter_is_of_the_group_that_it_names() -> None:
    limits = {name: replace(each, in_series=True, tries=1) for name, each in LIMITS.items()}
    right = judge_each(worked(AUDIT.name), limits)
    assert [(each.faults, each.worked.completed, each.worked.dead) for each in right.values()] == [
        ([], 1, 0),
        ([], 0, 1),
    ]
    own, audit = judge_each(worked(OWN.name), limits).values()
    assert [fault.partition(" (")[0] for fault in own.faults] == ["orders: p 0"]
    assert own.faults[0].endswith("was dead-lettered, and members had failed it 0 times")
    assert [fault.partition(" (")[0] for fault in audit.faults] == ["orders/audit: p 0"]
    assert audit.faults[0].endswith("was confirmed and neither completed nor dead-lettered")
