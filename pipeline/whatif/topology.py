"""The proposed ring: a file's, or the present one with edits."""

from collections.abc import Iterable
from dataclasses import replace

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from ring.destination import Destination, WeightError, parse_weight

MODULUS = "x-modulus-hash"
"""The exchange type whose rings know no weights."""


def edited(present: RingSpec, add: Iterable[str], remove: Iterable[str], weight: Iterable[str]) -> RingSpec:
    """Return the present ring with these edits.

    Destinations are added and reweighted by ``queue:NAME=WEIGHT``, removed by ``queue:NAME``; raises PipelineError
    for an edit that does not fit.
    """
    weights = dict(present.weights)
    for text in remove:
        if weights.pop(_destination(text, "--remove"), None) is None:
            raise PipelineError(f"--remove {text}: the present ring has no such destination")
    for text in weight:
        destination, value = _weighted(text, "--weight")
        if destination not in weights:
            raise PipelineError(f"--weight {text}: the present ring has no such destination")
        weights[destination] = value
    for text in add:
        destination, value = _weighted(text, "--add")
        if destination in weights:
            raise PipelineError(f"--add {text}: the present ring has it already")
        weights[destination] = value
    queues = {place: queue for place, queue in present.queues.items() if Destination("queue", place) in weights}
    return replace(present, weights=weights, fair={}, queues=queues)


def checked(present: RingSpec, proposed: RingSpec) -> RingSpec:
    """Return the proposed ring. Raises PipelineError if it is invalid or its exchange type or hashed value
    differ.

    Keys are known only by the present hashed value, so the moves under another value cannot be told.
    """
    for what, now, then in (
        ("exchange_type", present.exchange_type, proposed.exchange_type),
        ("hashed", present.hashed, proposed.hashed),
    ):
        if then != now:
            raise PipelineError(f"--proposed: {what} is {then!r}, at present {now!r}: what would move cannot be told")
    if not proposed.weights:
        raise PipelineError("the proposed ring has no destination left")
    return proposed


def _weighted(text: str, option: str) -> tuple[Destination, int]:
    """Return the destination and the weight of an option KIND:NAME=WEIGHT. Raises PipelineError for any other text."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        raise PipelineError(f"{option} {text}: not KIND:NAME=WEIGHT")
    try:
        return _destination(name, option), parse_weight(weight)
    except WeightError as error:
        raise PipelineError(f"{option} {text}: weight {weight!r}: {error}") from None


def _destination(text: str, option: str) -> Destination:
    match text.split(":", 1):
        case ["queue" | "exchange" as kind, name] if name:
            return Destination(kind, name)
        case _:
            raise PipelineError(f"{option} {text}: not queue:NAME or exchange:NAME")
