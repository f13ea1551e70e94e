"""The counting of the rows of a link's table, by what a sidecar's log says."""

import logging
import time

import pytest

from proxy.groups.model import TABLE, Link, LinkEvent, LinkState, Member
from proxy.process.logs import TextFormatter
from tests.chaos.groups.rows import CLOSED, ORDINARY, missed, taken, times


def log_of(records: list[logging.LogRecord]) -> str:
    return "".join(f"{TextFormatter().format(record)}\n" for record in records)


def test_rows_are_counted_by_the_lines_that_links_log(caplog: pytest.LogCaptureFixture) -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    member.client = "10.0.0.9:40118 billing\n: LOST in OPEN"
    with caplog.at_level(logging.DEBUG, "proxy.groups.model"):
        for _ in range(2):
            link = member.links["s"] = Link(member, "s")
            for event in (LinkEvent.WANT, LinkEvent.CONSUMING, LinkEvent.LET_GO, LinkEvent.SETTLED, LinkEvent.CLOSED):
                link.enter(event, 0.0)
    log = log_of(caplog.records)
    counts = taken([log, log])
    assert counts.keys() == TABLE.keys()
    assert set(counts.values()) == {0, 4}
    assert counts[LinkState.OPEN, LinkEvent.LET_GO] == 4
    assert missed(counts) == [(LinkState.OPEN, LinkEvent.LOST)]


def test_a_run_without_links_misses_each_row_of_their_ordinary_life() -> None:
    assert set(missed(taken([""]))) == ORDINARY


def test_the_times_of_events_are_read_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    member.client = "10.0.0.9:40118 pika-70"
    with caplog.at_level(logging.DEBUG, "proxy.groups.model"):
        for shard, events in {
            "orders.1": (LinkEvent.WANT, LinkEvent.CONSUMING, LinkEvent.GIVE_UP, LinkEvent.CLOSED),
            "orders.2": (LinkEvent.WANT, LinkEvent.REFUSED),
            "orders.3": (LinkEvent.WANT, LinkEvent.LOST),
            "orders.4": (LinkEvent.WANT, LinkEvent.CONSUMING, LinkEvent.LET_GO),
        }.items():
            link = member.links[shard] = Link(member, shard)
            for event in events:
                link.enter(event, 0.0)
    logs, epoch = [log_of(caplog.records)], time.monotonic() - time.time()
    found = times(logs, epoch, CLOSED)
    assert set(found) == {("pika-70", "orders.1"), ("pika-70", "orders.2"), ("pika-70", "orders.3")}
    assert all(abs(time.monotonic() - at) < 60 for each in found.values() for at in each)
    assert set(times(logs, epoch, {LinkEvent.GIVE_UP})) == {("pika-70", "orders.1")}
