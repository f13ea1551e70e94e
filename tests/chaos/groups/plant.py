"""Plants each fault of work in series in what a run found: the judge must see each in that run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tests.chaos.groups.history import Begin, DeadLetter, Delivery, History, Holder, How, Settlement
from tests.chaos.groups.judge import Limits, judge

PLANTED = 20
"""How often each fault is planted."""
JUST = 1e-6
"""Seconds by which one thing is behind another."""


class Done(NamedTuple):
    """A try that a member completed, by its parts."""

    delivery: Delivery
    begin: Begin
    ack: Settlement


def unseen(history: History, limits: Limits) -> list[str]:
    """Return which faults the judge does not find that are planted in a run where nothing is wrong."""
    pairs = _pairs(history)
    if not pairs:
        return ["no member completed two messages of one key, so this says nothing"]
    # One of them may be at a time when what is planted is no fault, as when a member does not ack in time.
    chosen = pairs[:: max(2, len(pairs) // PLANTED)]
    told = []
    for words, plant in PLANTS.items():
        changed = history
        for first, second in chosen:
            changed = plant(changed, first, second)
        faults = judge(changed, limits).faults
        if not any(words in fault for fault in faults):
            told.append(f"'{words}' was planted {len(chosen)} times, and the judge found only {faults[:3]}")
    return told


def _pairs(history: History) -> list[tuple[Done, Done]]:
    """Return the messages of one key that one member completed one after the other, each at its first try."""
    begins = {(begin.holder, begin.tag): begin for begin in history.begins}
    acks = {(ack.holder, ack.tag): ack for ack in history.settlements if ack.how is How.ACK}
    times: dict[tuple[str, int], int] = {}
    for delivery in history.deliveries:
        identity = (delivery.publisher, delivery.number)
        times[identity] = times.get(identity, 0) + 1
    last: dict[tuple[Holder, str], Done] = {}
    pairs = []
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        tag, place = (delivery.holder, delivery.tag), (delivery.holder, delivery.key)
        if tag not in begins or tag not in acks or times[delivery.publisher, delivery.number] > 1:
            last.pop(place, None)
            continue
        done = Done(delivery, begins[tag], acks[tag])
        if place in last:
            pairs.append((last[place], done))
        last[place] = done
    return pairs


def _acked_later(history: History, ack: Settlement, at: float) -> History:
    changed = [one for one in history.settlements if one is not ack]
    return replace(history, settlements=[*changed, ack._replace(at=at)])


def _both_at_once(history: History, first: Done, second: Done) -> History:
    return _acked_later(history, first.ack, second.begin.at + JUST)


def _out_of_order(history: History, first: Done, second: Done) -> History:
    return _acked_later(history, first.ack, second.ack.at + JUST)


def _lost(history: History, first: Done, _: Done) -> History:
    return replace(history, settlements=[one for one in history.settlements if one is not first.ack])


def _given_up(history: History, first: Done, _: Done) -> History:
    delivery = first.delivery
    letter = DeadLetter(delivery.publisher, delivery.number, delivery.key, 1)
    return replace(history, dead_letters=[*history.dead_letters, letter])


def _tried_early(history: History, first: Done, _: Done) -> History:
    changed = [one._replace(attempt=2) if one is first.begin else one for one in history.begins]
    return replace(history, begins=changed)


PLANTS: Mapping[str, Callable[[History, Done, Done], History]] = {
    " of the same key since ": _both_at_once,
    ", behind ": _out_of_order,
    "neither completed nor dead-lettered": _lost,
    "was dead-lettered, and members had failed it 0 times": _given_up,
    "as try 2, and members had failed it 0 times": _tried_early,
}
"""The plants, by words of the fault that the judge must find."""
