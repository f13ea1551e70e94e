"""The log's lines on a ring that has changed."""

import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH, Behind, Bindings, IgnoredBinding, Leads
from proxy.topology.changes import changed, difference, log_change, log_missing, lost, title
from proxy.topology.table import Entry, KnownRing, PassReason
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

NAME = ("/", "orders")
ROUTING_KEY = HashedValue()
HERE = "exchange 'orders' in virtual host '/'"
A, B, C = (Destination("queue", name) for name in "abc")


def known(
    weights: dict[Destination, int], hashed: HashedValue = ROUTING_KEY, exchange_type: str = CONSISTENT_HASH
) -> KnownRing:
    return KnownRing.of(Ring.build(weights), hashed, exchange_type)


ONE = known({A: 1, B: 2})


def entry(
    ring: KnownRing | None = ONE, passed: PassReason | None = None, bindings: Bindings | None = None, **fields: Any
) -> Entry:
    return Entry(Mode.ROUTE, CONSISTENT_HASH, ring, passed, bindings or Bindings(), 0.0, **fields)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "proxy.topology.changes")
    return caplog


def test_differences_in_words() -> None:
    assert difference(ONE, known({A: 1, B: 2, C: 3})) == "+queue 'c' weight 3"
    assert difference(ONE, known({B: 2})) == "-queue 'a' weight 1"
    assert difference(ONE, known({A: 4, B: 2})) == "queue 'a' weight 1 to 4"
    assert difference(ONE, known({B: 3, C: 1})) == "+queue 'c' weight 1, -queue 'a' weight 1, queue 'b' weight 2 to 3"
    assert difference(ONE, known({A: 1, B: 2}, HashedValue("header", "h"))) == "hashes header:h instead of routing_key"
    assert difference(ONE, known({A: 1, B: 2}, exchange_type=MODULUS_HASH)) == (
        "type x-modulus-hash instead of x-consistent-hash"
    )


def test_what_is_missing_is_told_once(said: pytest.LogCaptureFixture) -> None:
    log_missing(NAME, {}, {A: 0.0})
    log_missing(NAME, {A: 0.0}, {A: 1.0})
    log_missing(NAME, {A: 1.0}, {A: 1.5, B: 0.0})
    log_missing(NAME, {A: 1.5, B: 0.0}, {})
    start, rest = f"{HERE}: the management API does not show queue", "any more; their keys stay for settle_time"
    assert said.messages == [f"{start} 'a' {rest}", f"{start} 'b' {rest}"]


def test_many_differences_are_cut() -> None:
    six = known({Destination("queue", f"q{i}"): 1 for i in range(6)} | {A: 1, B: 2})
    text = difference(ONE, six)
    assert text.count("+queue") == 5
    assert text.endswith("weight 1 and 1 more")
    five = known({Destination("queue", f"q{i}"): 1 for i in range(5)} | {A: 1, B: 2})
    assert difference(ONE, five).count("+queue") == 5
    assert "more" not in difference(ONE, five)


def test_a_change_says_when_why_what_and_how_much() -> None:
    before = time.time()
    after = known({B: 2})
    change = changed(ONE, after, "sync")
    assert before <= change.at <= time.time()
    assert (change.why, change.what, change.fingerprint) == ("sync", "-queue 'a' weight 1", after.fingerprint)
    assert change.moved == after.ring.moved_from(ONE.ring)
    assert 0.3 < change.moved < 0.4


def test_a_first_ring_moves_nothing_and_a_lost_one_everything() -> None:
    first = changed(None, ONE, "first use")
    assert (first.what, first.moved, first.fingerprint) == ("ring of 2 destinations", 0.0, ONE.fingerprint)
    gone = lost(ONE, "sync")
    assert gone is not None
    assert (gone.why, gone.moved, gone.fingerprint) == ("sync", 1.0, "")
    assert lost(None, "sync") is None


def test_one_line_for_a_change(said: pytest.LogCaptureFixture) -> None:
    after = entry(known({B: 2}))
    assert after.known is not None
    log_change(NAME, entry(), after, changed(ONE, after.known, "a message was returned"))
    (line,) = said.messages
    assert line.startswith(f"{HERE}: -queue 'a' weight 1 (a message was returned); 33.")
    assert line.endswith("% of the slots moved")
    assert said.records[0].levelno == logging.INFO


def test_nothing_new_is_not_told(said: pytest.LogCaptureFixture) -> None:
    ignored = Bindings({A: 1}, (IgnoredBinding(B, "abc", "not a whole number"),), (A,))
    for passed in (None, *PassReason):
        same = entry(passed=passed, bindings=ignored)
        log_change(NAME, same, replace(same, read_at=9.0), None)
    assert said.messages == []


def test_what_happens_to_publishes_is_told_when_it_changes(said: pytest.LogCaptureFixture) -> None:
    log_change(NAME, None, entry(), None)
    assert said.messages == [f"{HERE}: publishes are routed by the ring"]
    said.clear()
    for reason in PassReason:
        after = replace(entry(passed=reason), queues={"q1": "policy 'p'", "ok": "", "q2": "an argument"})
        log_change(NAME, entry(), after, None)
        (record,) = said.records
        loud = reason in (PassReason.DEAD_LETTER, PassReason.INTERNAL_DESTINATION, PassReason.NOT_A_LANE)
        assert record.levelno == (logging.WARNING if loud else logging.INFO), reason
        assert record.getMessage().startswith(f"{HERE}: p")
        if reason is PassReason.DEAD_LETTER:
            assert "'q1' (policy 'p'), 'q2' (an argument);" in record.getMessage()
            assert "on_dead_letter = rewrite" in record.getMessage()
        said.clear()
        log_change(NAME, after, entry(), None)
        assert said.messages == [f"{HERE}: publishes are routed by the ring"]
        said.clear()


def test_ignored_and_doubled_bindings_are_told_once(said: pytest.LogCaptureFixture) -> None:
    one = entry(bindings=Bindings({A: 1}, (IgnoredBinding(B, "abc", "not a whole number"),), (A,)))
    log_change(NAME, entry(), one, None)
    assert said.messages == [
        f"{HERE}: the binding to queue 'b' with the key 'abc' is ignored and gets no messages: not a whole number",
        f"{HERE}: queue 'a' is bound more than once; its largest weight counts",
    ]
    assert {record.levelno for record in said.records} == {logging.WARNING}
    said.clear()
    more = entry(bindings=Bindings({A: 1}, (*one.bindings.ignored, IgnoredBinding(C, "0", "outside")), (A, B)))
    log_change(NAME, one, more, None)
    assert len(said.messages) == 2
    assert "queue 'c'" in said.messages[0]
    assert "queue 'b'" in said.messages[1]
    said.clear()
    log_change(NAME, None, more, None)
    assert len(said.messages) == 5


def test_lanes_are_told_when_they_change(said: pytest.LogCaptureFixture) -> None:
    laned = entry(bindings=Bindings({A: 1}), lanes={A: "lane.a"})
    log_change(NAME, entry(), laned, None)
    assert said.messages == [f"{HERE}: publishes go through lanes: 'lane.a' to queue 'a'"]
    said.clear()
    log_change(NAME, laned, laned, None)
    assert said.messages == []
    log_change(NAME, laned, entry(bindings=Bindings({A: 1})), None)
    assert said.messages == [f"{HERE}: publishes go through no lane any more to queue 'a'"]
    said.clear()
    aside = {"fan": Behind(Leads.ASIDE, why="it has 2 bindings"), "lane": Behind(Leads.TO_QUEUE, "a")}
    log_change(NAME, entry(), entry(passed=PassReason.NOT_A_LANE, behind=aside), None)
    (line,) = said.messages
    assert "no lanes: 'fan' (it has 2 bindings);" in line


def test_a_destination_too_light_is_told_with_the_change(said: pytest.LogCaptureFixture) -> None:
    light = known({A: 1, B: 10_000, C: 10_000})
    log_change(NAME, entry(), entry(light), changed(ONE, light, "sync"))
    assert [m for m in said.messages if "small a weight" in m] == [
        f"{HERE}: queue 'a' has so small a weight that it expects fewer than 100 slots, so its share is uneven"
    ]


def test_names_cannot_forge_a_line(said: pytest.LogCaptureFixture) -> None:
    name = ("v\nERROR", "x\nERROR")
    nasty = Destination("queue", "q\nERROR")
    after = known({nasty: 1, A: 1})
    bindings = Bindings({nasty: 1}, (IgnoredBinding(nasty, "k\nERROR", "not a whole number"),), (nasty,))
    new = replace(entry(after, PassReason.DEAD_LETTER, bindings), queues={"q\nERROR": "an argument"})
    log_change(name, None, new, changed(ONE, after, "sync"))
    assert len(said.messages) == 4
    assert all("\n" not in message for message in said.messages)
    assert "\n" not in title(name)
