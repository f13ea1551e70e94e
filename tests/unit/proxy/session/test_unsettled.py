"""Publishes without an answer: what is there is told as a plain dict would tell it, and what is done with is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.counters import Counters
from proxy.session.publishing.unsettled import PAGE, Unsettled


def filled(first: int, count: int, counters: Counters | None = None) -> Unsettled:
    made, counters = Unsettled(), counters or Counters()
    for number in range(first, first + count):
        made.add(number, counters)
    return made


@given(st.data())
def test_it_is_a_dict_of_numbers(data: st.DataObject) -> None:
    first = data.draw(st.sampled_from([1, 2, PAGE - 1, PAGE, 5 * PAGE + 7, (1 << 62) - 3, (1 << 63) - 3]))
    made, model, counter_table = Unsettled(), dict[int, Counters](), [Counters(), Counters()]
    acked = nacked = 0
    number = first - 1
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["add", "add", "take", "take", "some"])):
            case "add":
                for _ in range(data.draw(st.integers(1, 2 * PAGE))):
                    number += 1
                    model[number] = counter_table[number % 2]
                    made.add(number, model[number])
            case "take":
                which = data.draw(st.integers(first - 1, number + 2))
                assert made.take(which) is model.pop(which, None)
            case _:
                low, high = sorted(data.draw(st.tuples(*[st.integers(first - 1, number + PAGE)] * 2)))
                gone = [n for n in model if low <= n <= high]
                assert made.within(low, high) == gone
                as_acked = data.draw(st.booleans())
                made.count_off(low, high, acked=as_acked)
                for n in gone:
                    del model[n]
                acked, nacked = acked + len(gone) * as_acked, nacked + len(gone) * (not as_acked)
        assert (made.count, made.within(first - 1, number)) == (len(model), list(model))
        assert [made.has(n) for n in (first - 1, number, number + 1)] == [
            n in model for n in (first - 1, number, number + 1)
        ]
        if model:
            assert made.first_beyond(min(model) - 1) == min(model)
        assert made.pages <= len({n // PAGE for n in model}) + 1
    assert (sum(t.acked for t in counter_table), sum(t.nacked for t in counter_table)) == (acked, nacked)


@pytest.mark.parametrize("far", [1, PAGE - 1, PAGE, 40 * PAGE, 5_000 * PAGE + 3])
def test_the_next_is_found_however_far_it_is(far: int) -> None:
    made = filled(1, far + 1)
    made.count_off(2, far, acked=True)
    assert made.first_beyond(0) == 1
    made.take(1)
    assert made.first_beyond(1) == far + 1


def test_a_page_that_is_done_with_is_dropped() -> None:
    made = filled(1, 1000 * PAGE)
    assert made.pages == 1001
    made.count_off(1, 1000 * PAGE - 1, acked=False)
    assert made.pages <= 2
    made.drop()
    assert (made.pages, made.count, made.within(1, 1000 * PAGE)) == (0, 0, [])
    made.add(7, Counters())
    assert made.within(1, 100) == [7]
