"""Counters of publishes: one outcome for each, by exchange and by way."""

from collections import Counter

from proxy.outcome import Outcome
from proxy.routing.counters import NOWHERE, Counters, CounterTable
from proxy.topology.table import PassReason

X = ("/", "x")


def test_counters_begin_with_nothing() -> None:
    counters = Counters()
    assert (counters.published, counters.value_missing, counters.shadowed) == (0, 0, Counter())
    assert set(counters.outcomes(Outcome.CONFIRMED).values()) == {0}


def test_each_count_is_one_outcome() -> None:
    counters = Counters()
    counters.acked, counters.nacked, counters.unroutable, counters.sent, counters.unknown, counters.unavailable = range(
        1, 7
    )
    others = {
        Outcome.NACKED: 2,
        Outcome.UNROUTABLE: 3,
        Outcome.SENT: 4,
        Outcome.UNKNOWN: 5,
        Outcome.UNAVAILABLE: 6,
    }
    assert counters.outcomes(Outcome.CONFIRMED) == {Outcome.CONFIRMED: 1, **others}
    assert counters.outcomes(Outcome.PASSED) == {Outcome.PASSED: 1, **others}


def test_tallies_have_one_for_each_exchange_and_way() -> None:
    counter_table = CounterTable()
    first = counter_table.of(X, None)
    assert counter_table.of(X, None) is first
    others = [
        counter_table.of(X, PassReason.SHADOW),
        counter_table.of(("v", "x"), None),
        counter_table.of(NOWHERE, None),
    ]
    assert len({id(counters) for counters in (first, *others)}) == 4
    assert counter_table.by_way[X, None] is first
    assert len(counter_table.by_way) == 4
    assert first.shadowed is not others[0].shadowed
