"""The part of an exchange's messages that went by each of its rings, by which figures across rings are means."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.stats.sampling import Sample


class Drawn(NamedTuple):
    """The messages of one ring in the drawn slots."""

    messages: float
    alone: float
    """The messages in drawn slots that stand for no other slots (`Sample.alone`)."""
    expected: float
    """How many messages the ring's records, also of larger samples, let expect in the drawn slots; more than 0."""


class Volume(NamedTuple):
    """The shares that one ring has of the exchange's messages."""

    published: float
    """The ring's share of everything published; more than 0."""
    unseen: float
    """The ring's share of what is expected in the slots that were not drawn."""


def volumes(sample: Sample, rings: Sequence[Drawn]) -> list[Volume]:
    """Return of each of an exchange's rings what went by it; `sample` is of all of them together.

    A hot key in the sample counts once, by the rings by which it went, as it does in the exchange's total. A ring that
    has records, but none in the drawn slots, has as many as those make one expect.
    """
    light = [one.messages - one.alone if one.messages else one.expected for one in rings]
    unseen = [count / sum(light) for count in light]
    others = sample.total().value - sample.seen
    published = [one.messages + others * part for one, part in zip(rings, unseen, strict=True)]
    if not any(published):
        published = light
    return [Volume(count / sum(published), part) for count, part in zip(published, unseen, strict=True)]
