"""The counting of the rows of a link's table, by what a sidecar's log says."""

import logging

import pytest

from proxy.groups.model import TABLE, Link, LinkEvent, LinkState, Member
from proxy.process.logs import TextFormatter
from tests.chaos.groups.rows import ORDINARY, missed, taken


def test_rows_are_counted_by_the_lines_that_links_log(caplog: pytest.LogCaptureFixture) -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    member.client = "10.0.0.9:40118 billing\n: LOST in OPEN"
    with caplog.at_level(logging.DEBUG, "proxy.groups.model"):
        for _ in range(2):
            link = member.links["s"] = Link(member, "s")
            for event in (LinkEvent.WANT, LinkEvent.CONSUMING, LinkEvent.LET_GO, LinkEvent.SETTLED, LinkEvent.CLOSED):
                link.enter(event, 0.0)
    log = "".join(f"{TextFormatter().format(record)}\n" for record in caplog.records)
    counts = taken([log, log])
    assert counts.keys() == TABLE.keys()
    assert set(counts.values()) == {0, 4}
    assert counts[LinkState.OPEN, LinkEvent.LET_GO] == 4
    assert missed(counts) == [(LinkState.OPEN, LinkEvent.LOST)]


def test_a_run_without_links_misses_each_row_of_their_ordinary_life() -> None:
    assert set(missed(taken([""]))) == ORDINARY
