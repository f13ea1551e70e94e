"""The judgement of messages in the benchmark of a fleet, and its tables."""

import pytest

from bench import BenchError
from bench.long import group_fleet
from bench.long.group_fleet import FLEETS, JOIN, START, Flow, Found, Phase, Rest, chosen, flow, markdown
from bench.tables import tables

BODIES = ["s1 0 100.0", "s2 1 100.5", "s1 2 101.0"]


def test_messages_that_came_once_and_in_order() -> None:
    got = [(100.1, BODIES[0], False), (100.6, BODIES[1], False), (103.0, BODIES[2], False)]
    assert flow(BODIES, got) == Flow(2.0, 0, 0)


def test_messages_of_an_earlier_traffic_count_for_nothing() -> None:
    got = [(99.0, "s1 7 98.0", False), *((102.0, body, False) for body in BODIES)]
    assert flow(BODIES, got) == Flow(2.0, 0, 0)


def test_what_comes_again_is_no_disorder_and_what_overtakes_is() -> None:
    got = [(101.5, BODIES[2], False), (101.6, BODIES[0], False), (101.7, BODIES[1], False), (101.8, BODIES[2], True)]
    found = flow(BODIES, got)
    assert (found.again, found.disorder) == (1, 1)


def test_what_has_not_come_is_no_figure() -> None:
    with pytest.raises(BenchError, match=r"1 of 3 messages did not come, such as s1 2 101\.0"):
        flow(BODIES, [(101.0, body, False) for body in BODIES[:2]])


def test_the_fleets_that_are_named_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEETS", raising=False)
    assert chosen() == FLEETS
    monkeypatch.setenv("FLEETS", "10x40,200x400")
    assert chosen() == [(10, 40), (200, 400)]


def test_the_tables_have_a_row_for_each_fleet_and_for_each_change_of_it() -> None:
    rest = Rest(0.05, 0.012, 0.006, 18.0, 500.0, 3.0, 20, 50, 50, 40 << 20)
    phase = Phase(1.5, 30, Flow(0.25, 0, 0))
    found = [Found(10, 1000, 1.0, 0.002, rest, {START: phase, JOIN: phase})]
    at_rest, changes = tables(markdown(found))
    # The sidecar that is a process of its own beats as often as the others.
    assert at_rest.rows[0][:8] == ["10", "1,000", "5.0", "1.2", "0.6", "20.0", "200", "500"]
    assert at_rest.rows[0][-2:] == ["40", "4,096"]
    assert [row[:5] for row in changes.rows] == [["10", "1,000", what, "1.50", "0.25"] for what in (START, JOIN)]
    assert group_fleet.THOUSAND == 1_000
