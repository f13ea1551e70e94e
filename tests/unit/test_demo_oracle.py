"""The demo's judge: which messages are where they should be."""

import functools
from dataclasses import replace

import pytest

from testbed.demo.oracle import Era, History, Sent, chi_squared, judge, moved

BEFORE = {"q1": 1, "q2": 1}
AFTER = {"q2": 1, "q3": 1}


@functools.cache
def history() -> tuple[Era, ...]:
    made = History(BEFORE, grace=2.0)
    made.changed(AFTER, begun=100.0, done=101.0)
    return tuple(made.eras())


def messages(at: float, era: int) -> list[Sent]:
    """Messages sent at a time and placed as the ring of an era says."""
    ring = history()[era].ring
    keys = [f"k{n}" for n in range(200)]
    return [Sent(n, key, at, at + 0.1, ring.owner_of(key.encode()).name) for n, key in enumerate(keys)]


def found(sent: list[Sent]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {"q1": [], "q2": [], "q3": []}
    for message in sent:
        places[message.queue].append(message.number)
    return places


@pytest.mark.parametrize(("at", "era"), [(50.0, 0), (102.0, 0), (102.0, 1), (100.0, 1), (104.0, 1)])
def test_messages_placed_by_a_ring_in_force_are_right(at: float, era: int) -> None:
    sent = messages(at, era)
    verdict = judge(sent, found(sent), history())
    assert verdict.faults == []
    assert verdict.judged == 200
    assert (verdict.by_one_ring == 200) == (at in (50.0, 104.0))


@pytest.mark.parametrize(("at", "era"), [(103.5, 0), (99.0, 1)])
def test_a_ring_that_is_not_in_force_any_more_or_yet_is_a_fault(at: float, era: int) -> None:
    sent = messages(at, era)
    faults = judge(sent, found(sent), history()).faults
    differing = sum(
        history()[0].ring.owner_of(m.key.encode()) != history()[1].ring.owner_of(m.key.encode()) for m in sent
    )
    assert len(faults) == differing > 50


def test_a_planted_loss_a_double_a_stray_and_a_lying_receipt_are_faults() -> None:
    sent = messages(50.0, 0)
    places = found(sent)
    lost = places["q1"].pop()
    places["q2"].append(places["q1"][0])
    moved_away = places["q1"].pop()
    places["q3"].append(moved_away)
    places["q2"].append(999)
    sent[5] = replace(sent[5], queue="q1" if sent[5].queue == "q2" else "q2")
    faults = judge(sent, places, history()).faults
    assert len(faults) == 5
    assert any(f"message {lost} was confirmed and is in 0 queues" in fault for fault in faults)
    assert any("in 2 queues" in fault for fault in faults)
    assert any(f"message {moved_away}," in fault and "is in q3" in fault for fault in faults)
    assert any("message 999" in fault and "never confirmed" in fault for fault in faults)
    assert any("its receipt says" in fault for fault in faults)


def test_chi_squared_and_moved() -> None:
    assert chi_squared({"a": 60, "b": 40}, {"a": 1, "b": 1}) == pytest.approx(4.0)
    assert chi_squared({"a": 50}, {"a": 1, "b": 1}) == pytest.approx(50.0)
    assert moved({"x": "a", "y": "a", "only": "a"}, {"x": "a", "y": "b"}) == 0.5
