"""The growth of counts over ten minutes, and percentiles of latencies."""

from collections import Counter

import pytest

from proxy.http.admin.console.history import LIVE, MOST_COUNTED, STEPS, History, Totals, quantile
from proxy.routing.counters import LATENCY_BOUNDS, Latency

A = ("publish", "/", "orders", "confirmed")
B = ("publish", "/", "orders", "nacked")


class Counted:
    """Counts that a test sets."""

    def __init__(self) -> None:
        self.at, self.counts, self.latency = 0.0, Counter({A: 100}), Latency()

    def totals(self) -> Totals:
        return Totals(self.at, self.counts.copy(), {"http": self.latency.counts()})


def test_rates_are_of_the_last_seconds_and_growth_is_of_all_steps() -> None:
    it = Counted()
    history = History(it.totals)
    for _ in range(3):
        it.at += 15
        it.counts[A] += 30
        history.end_step()
    it.at += 5
    it.counts.update({A: 10, B: 1})
    look = history.look()
    assert look.rates("publish", "/", "orders") == {"confirmed": 2.0, "nacked": 0.2}
    assert (look.late[A], look.late[B], look.total[A]) == (100, 1, 200)
    assert look.rates("publish", "/", "other") == {}


def test_a_rate_forgets_what_is_older_than_its_seconds() -> None:
    it = Counted()
    history = History(it.totals)
    it.counts[A] += 1000
    for _ in range(int(LIVE) + 2):
        it.at += 1
        look = history.look()
    assert look.rates("publish", "/", "orders") == {}
    assert look.late[A] == 1000
    assert len(history._recent) <= LIVE + 2


def test_a_step_that_ends_leaves_the_rate_as_it_is_and_the_first_look_has_one_of_now() -> None:
    it = Counted()
    history = History(it.totals)
    for _ in range(5):
        it.at += 1
        it.counts[A] += 10
        history.look()
    history.end_step()
    it.at += 0.1
    assert history.look().rates("publish", "/", "orders") == {"confirmed": 9.8}
    it.at += 300
    history.end_step()
    it.at += 5
    it.counts[A] += 20
    assert history.look().rates("publish", "/", "orders") == {"confirmed": 4.0}


def test_steps_and_the_counts_of_each_are_bounded() -> None:
    it = Counted()
    history = History(it.totals)
    for step in range(STEPS + 5):
        it.at += 15
        it.counts.update({("publish", "/", f"x{n}", "confirmed"): 1 for n in range(MOST_COUNTED)})
        it.counts[A] += 1000 + step
        history.end_step()
    assert len(history.steps) == STEPS
    assert {len(step.grown) for step in history.steps} == {MOST_COUNTED}
    assert [step.grown[A] for step in history.steps] == [1000 + step for step in range(5, STEPS + 5)]
    assert {step.seconds for step in history.steps} == {15}


def test_the_counts_of_an_exchange_that_is_gone_are_no_growth() -> None:
    it = Counted()
    history = History(it.totals)
    del it.counts[A]
    it.at += 15
    history.end_step()
    assert history.steps[-1].grown == Counter()


def test_latencies_of_a_step_are_its_own() -> None:
    it = Counted()
    it.latency.add(1.5)
    history = History(it.totals)
    it.latency.add(0.0015)
    it.at += 15
    history.end_step()
    assert 0.001 <= (quantile(history.steps[-1].latencies["http"], 0.99) or 0) <= 0.002


@pytest.mark.parametrize(
    ("times", "share", "low", "high"),
    [
        ([0.0003] * 100, 0.5, 0.0, 0.0005),
        ([0.0003] * 98 + [0.3, 0.3], 0.5, 0.0, 0.0005),
        ([0.0003] * 98 + [0.3, 0.3], 0.99, 0.2, 0.5),
        ([60.0], 0.5, LATENCY_BOUNDS[-1], LATENCY_BOUNDS[-1]),
    ],
)
def test_a_quantile_is_within_its_bucket(times: list[float], share: float, low: float, high: float) -> None:
    latency = Latency()
    for each in times:
        latency.add(each)
    assert low <= (quantile(latency.counts(), share) or 0) <= high


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile(Latency().counts(), 0.5) is None
