from collections import Counter

from proxy.outcome import Outcome
from proxy.routing.counters import NOWHERE, Tallies, Tally
from proxy.topology.table import PassReason

X = ("/", "x")


def test_a_tally_begins_with_nothing() -> None:
    tally = Tally()
    assert (tally.published, tally.value_missing, tally.shadowed) == (0, 0, Counter())
    assert set(tally.outcomes(Outcome.CONFIRMED).values()) == {0}


def test_each_count_is_one_outcome() -> None:
    tally = Tally()
    tally.acked, tally.nacked, tally.unroutable, tally.sent, tally.unknown, tally.unavailable = range(1, 7)
    others = {
        Outcome.NACKED: 2,
        Outcome.UNROUTABLE: 3,
        Outcome.SENT: 4,
        Outcome.UNKNOWN: 5,
        Outcome.UNAVAILABLE: 6,
    }
    assert tally.outcomes(Outcome.CONFIRMED) == {Outcome.CONFIRMED: 1, **others}
    assert tally.outcomes(Outcome.PASSED) == {Outcome.PASSED: 1, **others}


def test_tallies_have_one_for_each_exchange_and_way() -> None:
    tallies = Tallies()
    first = tallies.of(X, None)
    assert tallies.of(X, None) is first
    others = [tallies.of(X, PassReason.SHADOW), tallies.of(("v", "x"), None), tallies.of(NOWHERE, None)]
    assert len({id(tally) for tally in (first, *others)}) == 4
    assert tallies.by_way[X, None] is first
    assert len(tallies.by_way) == 4
    assert first.shadowed is not others[0].shadowed
