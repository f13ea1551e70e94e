"""Every publish is counted once and told of once, whatever the broker's answers look like."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.session.publishing.confirms import Answer, Confirms, Settlement
from tests.properties import examples

LOST, KNOWN = Settlement(Outcome.UNROUTABLE, False), Settlement(Outcome.UNROUTABLE, True)
"""Came back and failed; came back as its client knows."""
PLACED, REFUSED = Settlement(Outcome.CONFIRMED, True), Settlement(Outcome.NACKED, False)
"""Went out again, and was confirmed; and was nacked."""


def outcomes(counters: Counters) -> tuple[int, ...]:
    return counters.acked, counters.nacked, counters.unroutable, counters.unknown


def publish(confirms: Confirms, counters: Counters, count: int = 1) -> None:
    for _ in range(count):
        confirms.publish(counters)


def begun() -> Confirms:
    confirms = Confirms()
    confirms.start()
    return confirms


@dataclass
class Model:
    """One entry a publish: its counters, and what became of it."""

    confirms: Confirms
    counter_table: list[Counters]
    of: list[int] = field(default_factory=list)
    fate: list[str | None] = field(default_factory=list)
    returned: dict[int, Settlement] = field(default_factory=dict)

    def publish(self, which: int) -> None:
        publish(self.confirms, self.counter_table[which])
        self.of.append(which)
        self.fate.append(None)

    def come_back(self, number: int, tell: bool) -> None:
        if number <= len(self.fate) and self.fate[number - 1] is None:
            self.returned[number] = LOST if tell else KNOWN
            self.confirms.came_back(number, self.returned[number])

    def settle(self, number: int, multiple: bool, acked: bool) -> None:
        self.confirms.settle(number, multiple, acked)
        if not 1 <= number <= len(self.fate):
            return
        for n in range(1, number + 1) if multiple else (number,):
            if self.fate[n - 1] is None:
                self.fate[n - 1] = "unroutable" if n in self.returned else "acked" if acked else "nacked"

    def check(self) -> None:
        for which, counters in enumerate(self.counter_table):
            fates = [fate for fate, of in zip(self.fate, self.of, strict=True) if of == which]
            assert counters.published == len(fates)
            expected = tuple(fates.count(name) for name in ("acked", "nacked", "unroutable", "unknown"))
            assert outcomes(counters) == expected
        assert self.confirms.unsettled == self.fate.count(None)
        counted = sum(sum(outcomes(counters)) for counters in self.counter_table)
        assert counted + self.confirms.unsettled == len(self.fate)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 2), st.booleans(), st.booleans()),
        st.tuples(st.just("settle"), st.integers(0, 30), st.booleans(), st.booleans()),
        st.tuples(st.just("return"), st.integers(1, 30), st.booleans(), st.booleans()),
    ),
    max_size=60,
)


@given(steps, st.booleans())
@examples(400)
def test_every_publish_is_counted_once(steps: list[tuple[str, int, bool, bool]], abandoned: bool) -> None:
    model = Model(begun(), [Counters() for _ in range(3)])
    for step, number, one, other in steps:
        match step:
            case "publish":
                model.publish(number)
            case "settle":
                model.settle(number, one, other)
            case _:
                model.come_back(number, one)
        model.check()
    if abandoned:
        model.confirms.abandon()
        model.fate = [fate or "unknown" for fate in model.fate]
        model.check()
        model.confirms.abandon()
        model.check()
        assert model.confirms.unsettled == 0


class Client:
    """The state of a client that is as strict about the answers it gets as any library is."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.acked: set[int] = set()
        self.nacked: set[int] = set()

    def hear(self, told: list[Answer]) -> None:
        for number, multiple, ack in told:
            # aiormq drops an answer whose own tag it does not wait for, and the others with it.
            assert number in self.waiting, f"{number} was told before"
            numbers = {n for n in self.waiting if n <= number} if multiple else {number}
            self.waiting -= numbers
            (self.acked if ack else self.nacked).update(numbers)


@given(st.data())
@examples(400)
def test_each_publish_is_told_once_and_none_that_failed_is_acked(data: st.DataObject) -> None:
    """The rule holds for publishes that come back and are on their way again for a while, too."""
    confirms, counters, client = begun(), Counters(), Client()
    failed: set[int] = set()
    back: set[int] = set()
    away: set[int] = set()
    answered: set[int] = set()

    def decide(number: int) -> None:
        fate = data.draw(st.sampled_from([LOST, KNOWN, PLACED, REFUSED]))
        away.discard(number)
        failed.update(set() if fate.acked else {number})
        client.hear(confirms.decide(number, fate))

    for _ in range(data.draw(st.integers(1, 5))):
        count = data.draw(st.integers(1, 6))
        client.waiting |= set(range(confirms.number + 1, confirms.number + count + 1))
        publish(confirms, counters, count)
        open_ = sorted(set(range(1, confirms.number + 1)) - client.acked - client.nacked)
        for number in data.draw(st.lists(st.sampled_from(open_), unique=True)):
            if number not in back | answered:
                fate = data.draw(st.sampled_from([LOST, KNOWN, None, None]))
                confirms.came_back(number, fate)
                back.add(number)
                away |= {number} if fate is None else set()
                failed |= {number} if fate is LOST else set()
        for _ in range(data.draw(st.integers(0, 4))):
            if bool(away) and data.draw(st.booleans()):
                decide(data.draw(st.sampled_from(sorted(away))))
            if not (unanswered := sorted(set(range(1, confirms.number + 1)) - answered)):
                break
            # The broker names a tag that it has not answered yet.
            number = data.draw(st.sampled_from(unanswered))
            multiple = data.draw(st.booleans())
            answered |= {n for n in unanswered if n <= number} if multiple else {number}
            client.hear(confirms.acked(number, multiple))
            assert not (client.acked | client.nacked) & away
            assert not client.acked & failed
            assert client.acked | client.nacked <= answered
    for number in sorted(set(range(1, confirms.number + 1)) - answered):
        client.hear(confirms.acked(number, False))
    for number in sorted(away):
        decide(number)
    assert not client.waiting
    assert client.nacked == failed
    assert (confirms.unsettled, confirms.returned, confirms.waiting, confirms.due) == (0, {}, set(), 0)
    assert sum(outcomes(counters)) == counters.published


def test_answers_that_need_no_change_are_as_they_came() -> None:
    confirms = begun()
    publish(confirms, Counters(), 5)
    confirms.came_back(2, KNOWN)
    for number, multiple in ((1, False), (2, False), (5, True)):
        assert confirms.acked(number, multiple) == [(number, multiple, True)]


def test_a_multiple_ack_is_split_around_what_failed() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 9)
    for number, fate in {1: LOST, 4: LOST, 5: LOST, 7: KNOWN, 9: LOST}.items():
        confirms.came_back(number, fate)
    assert confirms.acked(9, True) == [
        (1, False, False),
        (3, True, True),
        (4, False, False),
        (5, False, False),
        (8, True, True),
        (9, False, False),
    ]
    assert (outcomes(counters), confirms.returned) == ((4, 0, 5, 0), {})


def test_a_split_names_no_tag_that_was_told_before() -> None:
    confirms = begun()
    publish(confirms, Counters(), 6)
    for number in (3, 4):
        confirms.settle(number, multiple=False, acked=True)
    confirms.came_back(5, LOST)
    assert confirms.acked(6, True) == [(2, True, True), (5, False, False), (6, True, True)]
    assert confirms.unsettled == 0


@pytest.mark.parametrize(("number", "multiple"), [(0, True), (0, False), (3, False), (99, True), (99, False)])
def test_answers_to_nothing_change_nothing(number: int, multiple: bool) -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 5)
    confirms.settle(3, multiple=True, acked=True)
    confirms.came_back(5, LOST)
    assert confirms.acked(number, multiple) == [(number, multiple, True)]
    assert (outcomes(counters), confirms.unsettled) == ((3, 0, 0, 0), 2)


def test_publishes_before_confirm_select_are_sent_and_no_tag_counts_them() -> None:
    confirms, early, late = Confirms(), Counters(), Counters()
    publish(confirms, early, 3)
    assert confirms.unsettled == 0
    confirms.start()
    assert confirms.base == 3
    publish(confirms, early)
    publish(confirms, late)
    assert confirms.unsettled == 2
    confirms.settle(3, multiple=True, acked=True)
    assert outcomes(early) == (0, 0, 0, 0)
    confirms.start()
    confirms.settle(5, multiple=True, acked=True)
    assert (early.sent, outcomes(early)) == (3, (1, 0, 0, 0))
    assert (late.sent, outcomes(late)) == (0, (1, 0, 0, 0))


def test_without_confirms_nothing_is_unsettled_or_unknown() -> None:
    confirms, counters = Confirms(), Counters()
    publish(confirms, counters, 3)
    confirms.abandon()
    assert (confirms.unsettled, outcomes(counters), counters.sent) == (0, (0, 0, 0, 0), 3)


def test_what_was_rolled_back_never_was() -> None:
    confirms, one, other = begun(), Counters(), Counters()
    publish(confirms, one, 2)
    publish(confirms, other, 2)
    for number, fate in {1: LOST, 4: LOST}.items():
        confirms.came_back(number, fate)
    confirms.forget(3)
    assert (confirms.unsettled, confirms.returned) == (1, {4: LOST})
    confirms.forget(2)
    assert confirms.unsettled == 1
    confirms.settle(4, multiple=True, acked=True)
    assert (outcomes(one), outcomes(other)) == ((0, 0, 0, 0), (0, 0, 1, 0))


@pytest.mark.parametrize("stuck", [1, 2, 700])
def test_one_that_is_never_confirmed_makes_nothing_of_the_others_stay(stuck: int) -> None:
    """The publishes behind it take no more memory or work than those that have nothing before them."""
    confirms, counter_table = begun(), [Counters(), Counters()]
    for number in range(1, 20_001):
        publish(confirms, counter_table[number % 2])
        if number != stuck:
            confirms.settle(number, multiple=False, acked=True)
    assert (confirms.unsettled, confirms.low, confirms.open.pages) == (1, stuck - 1, 2)
    confirms.settle(stuck, multiple=False, acked=True)
    assert (confirms.unsettled, confirms.low, confirms.open.pages) == (0, 20_000, 1)
    assert [outcomes(counters)[0] for counters in counter_table] == [10_000, 10_000]


def test_acks_wait_for_what_is_on_its_way_again() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 9)
    for number, fate in {3: None, 6: None}.items():
        confirms.came_back(number, fate)
    assert confirms.acked(3, False) == []
    # One ack of many becomes an ack for each behind the first that is on its way.
    assert confirms.acked(8, True) == [(2, True, True), *((n, False, True) for n in (4, 5, 7, 8))]
    assert confirms.acked(9, False) == [(9, False, True)]
    assert confirms.decide(6, REFUSED) == [(6, False, False)]
    assert confirms.unsettled == 1
    assert confirms.decide(3, PLACED) == [(3, False, True)]
    assert confirms.decide(3, REFUSED) == []
    assert (outcomes(counters), confirms.unsettled, confirms.returned) == ((8, 1, 0, 0), 0, {})


def test_an_answer_to_what_is_on_its_way_again_may_come_after_it() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 3)
    for number, fate in {2: None}.items():
        confirms.came_back(number, fate)
    assert confirms.decide(2, PLACED) == []
    assert confirms.acked(3, True) == [(3, True, True)]
    assert (outcomes(counters), confirms.unsettled) == ((3, 0, 0, 0), 0)


def test_a_nack_ends_the_wait() -> None:
    """LavinMQ answers a mandatory publish to a full queue with a return and a nack."""
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 3)
    for number, fate in {1: None}.items():
        confirms.came_back(number, fate)
    assert confirms.nacked(1, False) == [(1, False, False)]
    assert confirms.decide(1, PLACED) == []
    assert confirms.acked(3, True) == [(3, True, True)]
    assert (outcomes(counters), confirms.unsettled) == ((2, 1, 0, 0), 0)


def test_a_multiple_nack_is_not_for_what_was_acked_before() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 7)
    for number in (2, 5):
        confirms.came_back(number, None)
    assert confirms.acked(3, True) == [(1, True, True), (3, False, True)]
    assert confirms.acked(5, False) == []
    assert confirms.nacked(7, True) == [(4, False, False), (6, False, False), (7, False, False)]
    assert confirms.decide(5, PLACED) == [(5, False, True)]
    assert confirms.decide(2, REFUSED) == [(2, False, False)]
    assert (outcomes(counters), confirms.unsettled) == ((3, 4, 0, 0), 0)


def test_a_channel_that_is_gone_decides_nothing() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 3)
    for number, fate in {1: None}.items():
        confirms.came_back(number, fate)
    confirms.acked(3, True)
    confirms.abandon()
    assert confirms.decide(1, PLACED) == []
    assert outcomes(counters) == (2, 0, 0, 1)


def test_many_acks_behind_one_that_is_on_its_way_are_each_told_once() -> None:
    confirms, counters = begun(), Counters()
    publish(confirms, counters, 1000)
    confirms.came_back(1, None)
    told = [each for upto in range(10, 1001, 10) for each in confirms.acked(upto, True)]
    assert told == [(n, False, True) for n in range(2, 1001)]
    assert confirms.decide(1, PLACED) == [(1, True, True)]
    assert (outcomes(counters), confirms.unsettled) == ((1000, 0, 0, 0), 0)
