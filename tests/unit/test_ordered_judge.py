"""The judge of an ordered load: a change of shards that puts keys out of order is seen, and how long it took."""

import pytest

from testbed.demo.growth import judge
from testbed.ordered_judge import Change, Figures, Key, Published, Taken, figures, lost, overtaken

CHANGE = Change(begun=10.0, switched=12.0)
A: Key = (0, 1)
B: Key = (0, 2)


def published(*times: float) -> list[Published]:
    """Messages published at these times, each confirmed a tenth of a second later."""
    return [Published(number, at, at + 0.1) for number, at in enumerate(times, 1)]


def taken(*numbers: int, begin: float = 20.0) -> list[Taken]:
    """Messages taken in this order, one a second."""
    return [Taken(number, begin + second) for second, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((1, 2, 3), []),
        ((1, 3, 2), [(3, 2)]),
        ((1, 3, 4, 2, 5), [(4, 2)]),
        ((1, 2, 1, 2, 3), []),
        ((2, 3), []),
        ((3, 1, 2, 3), [(3, 1)]),
    ],
    ids=["in order", "overtaken", "by two", "redelivered", "one lost", "again in order"],
)
def test_only_a_first_delivery_can_be_overtaken(numbers: tuple[int, ...], found: list[tuple[int, int]]) -> None:
    assert overtaken(taken(*numbers)) == found


def test_a_confirmed_message_that_nobody_got_is_lost_however_often_others_came() -> None:
    assert lost(published(1.0, 2.0, 3.0), taken(1, 3, 3)) == 1


def test_each_key_out_of_order_counts_once_and_is_told_from_the_others() -> None:
    sent = {A: published(9.0, 11.0, 13.0, 14.0), B: published(9.0, 13.0)}
    found = figures(sent, {A: taken(3, 1, 4, 2), B: taken(1, 2)}, CHANGE)
    assert (found.keys, found.out_of_order, found.lost) == (2, 1, 0)


def test_a_key_that_nobody_got_is_lost() -> None:
    assert figures({A: published(9.0, 13.0)}, {}, CHANGE).lost == 2


def test_a_change_ends_with_the_last_message_of_the_old_ring_or_the_first_of_the_new_one() -> None:
    sent = published(9.0, 11.0, 13.0, 14.0)
    assert figures({A: sent}, {A: taken(1, 2, 3, 4)}, CHANGE).ended == 12.0
    assert figures({A: sent}, {A: taken(3, 4, 1, 2)}, CHANGE).ended == 13.0
    again = [*taken(1, 2, 3, 4), *taken(1, begin=40.0)]
    assert figures({A: sent}, {A: again}, CHANGE).ended == 12.0


def test_the_slowest_confirm_is_that_of_a_publish_during_the_change() -> None:
    early, late = Published(1, 9.0, 10.5), Published(3, 30.0, 33.0)
    sent = {A: [early, Published(2, 11.0, 11.7), late]}
    assert figures(sent, {A: taken(1, 2, 3)}, CHANGE).slowest == pytest.approx(0.7)


def of(*, out_of_order: int = 0, lost: int = 0) -> Figures:
    return Figures(100, out_of_order, lost, 0.1, 10.0)


def test_the_demo_fails_if_ordered_is_not_or_plain_shows_nothing_or_a_message_is_lost() -> None:
    assert judge(of(), of(out_of_order=30)) == []
    assert judge(of(out_of_order=1), of(out_of_order=30)) == ["--ordered: 1 of 100 keys out of order"]
    assert judge(of(lost=2), of(out_of_order=30, lost=1)) == [
        "--ordered: 2 confirmed messages reached no consumer",
        "plain: 1 confirmed messages reached no consumer",
    ]
    (fault,) = judge(of(), of())
    assert "no key came out of order" in fault
