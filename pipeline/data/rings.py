"""Rings as files have them: docs/reference/journal.md, "A ring". The owner of a slot is `ring.ring`'s to say."""

import functools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import PipelineError
from pipeline.data.schema import VERSION
from ring.destination import MAX_WEIGHT, Destination
from ring.hashing import RING_FORMAT
from ring.ring import Ring, fingerprint


@dataclass(frozen=True)
class RingSpec:
    """A ring as the journal describes it: weighted destinations, the exchange's type, and the hashed value."""

    exchange_type: str
    hashed: str
    """The part of a message that the exchange hashes, such as ``routing_key`` or ``header:customer``."""
    weights: dict[Destination, int]
    lanes: dict[str, str] = field(default_factory=dict, compare=False)
    """By queue, the lane that publishes to the queue go through; without the queues that have none.

    Lanes choose no queue, so rings that differ in their lanes alone are equal.
    """

    fair: dict[Destination, int] = field(default_factory=dict, compare=False)
    """The weights that say which shares are fair, where those are not its own; of the same destinations."""
    queues: dict[str, str] = field(default_factory=dict)
    """By place, the queue behind it where that has another name, as in a later generation of the shards."""

    def queue_behind(self, place: str) -> str:
        """Return the queue into which messages for a queue of `weights` go."""
        return self.queues.get(place, place)

    @property
    def wanted(self) -> dict[Destination, int]:
        """The weights that say which share of the messages each destination ought to get."""
        return self.fair or self.weights

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the ring: rings with equal ones route equally, and to the same queues."""
        return fingerprint(self.weights, self.exchange_type, self.hashed, self.queues)

    @functools.cached_property
    def ring(self) -> Ring:
        """The ring itself, built at first use and kept."""
        return Ring.build(self.weights)


_PLAIN = RingSpec("x-consistent-hash", "routing_key", {})
"""The exchange that a ring's file is taken for where it does not name type and hashed value."""


def parse_ring(text: str | bytes, where: str, like: RingSpec = _PLAIN) -> RingSpec:
    """Return the ring of a JSON text, which a sidecar's journal or a person wrote.

    Only `destinations` must be there; exchange type and hashed value are those of `like` where they are not. Raises
    PipelineError that begins with `where` and names the field.
    """
    try:
        told = json.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise PipelineError(f"{where}: cannot be read: {error}") from None
    except ValueError as error:
        raise PipelineError(f"{where}: not JSON: {error}") from None
    if not isinstance(told, dict):
        raise PipelineError(f"{where}: not a JSON object")
    if (version := told.get("v", VERSION)) != VERSION:
        raise PipelineError(f"{where}: schema version {version!r}, known is {VERSION}")
    if (ring_format := told.get("ring_format", RING_FORMAT)) != RING_FORMAT:
        raise PipelineError(f"{where}: ring_format {ring_format!r}, known is {RING_FORMAT}")
    exchange_type = _text(told, "exchange_type", like.exchange_type, where)
    hashed, lanes = _text(told, "hashed", like.hashed, where), told.get("lanes", {})
    if not isinstance(lanes, dict) or not all(isinstance(lane, str) and lane for lane in lanes.values()):
        raise PipelineError(f"{where}: lanes: {lanes!r} is not an object of queues and their lanes")
    weights = _weights(told, "destinations", where)
    fair = _weights(told, "fair", where) if "fair" in told else {}
    if fair and fair.keys() != weights.keys():
        amiss = min(fair.keys() ^ weights.keys())
        raise PipelineError(f"{where}: fair: {amiss} is not in both fair and destinations: list the same ones in both")
    spec = RingSpec(exchange_type, hashed, weights, lanes, fair, _queues(told, weights, where))
    if told.get("fingerprint", spec.fingerprint) != spec.fingerprint:
        raise PipelineError(f"{where}: fingerprint: {told['fingerprint']!r}, of what it says it is {spec.fingerprint}")
    return spec


def read_ring(path: str, like: RingSpec = _PLAIN) -> RingSpec:
    """Return the ring of a JSON file on this machine, as `parse_ring` does.

    Raises PipelineError that begins with the path.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_ring(text, path, like)


def to_json(spec: RingSpec) -> str:
    """Return a ring as the JSON that `parse_ring` reads."""
    told = {
        "v": VERSION,
        "fingerprint": spec.fingerprint,
        "ring_format": RING_FORMAT,
        "exchange_type": spec.exchange_type,
        "hashed": spec.hashed,
        "destinations": [[d.kind, d.name, weight] for d, weight in sorted(spec.weights.items())],
        **({"lanes": spec.lanes} if spec.lanes else {}),
        **({"queues": spec.queues} if spec.queues else {}),
        **({"fair": [[d.kind, d.name, weight] for d, weight in sorted(spec.fair.items())]} if spec.fair else {}),
    }
    return json.dumps(told, ensure_ascii=False)


def _text(told: dict[str, Any], field: str, default: str, where: str) -> str:
    value = told.get(field, default)
    if not isinstance(value, str) or not value:
        raise PipelineError(f"{where}: {field}: {value!r} is not a text")
    return value


def _queues(told: dict[str, Any], weights: Mapping[Destination, int], where: str) -> dict[str, str]:
    queues = told.get("queues", {})
    if not isinstance(queues, dict) or not all(isinstance(queue, str) and queue for queue in queues.values()):
        raise PipelineError(f"{where}: queues: {queues!r} is not an object of places and the queues behind them")
    for place in queues:
        if Destination("queue", place) not in weights:
            raise PipelineError(f"{where}: queues: {place!r} is no queue of destinations: leave it out")
    if twice := [queue for queue, count in Counter(queues.values()).items() if count > 1]:
        raise PipelineError(f"{where}: queues: {twice[0]!r} is behind several places: name one queue for each")
    return queues


def _weights(told: dict[str, Any], field: str, where: str) -> dict[Destination, int]:
    given = told.get(field)
    if not isinstance(given, list) or not given:
        raise PipelineError(f"{where}: {field}: {given!r} is not a list of [kind, name, weight]")
    weights: dict[Destination, int] = {}
    for n, one in enumerate(given):
        match one:
            case ["queue" | "exchange" as kind, str(name), int(weight)] if not isinstance(weight, bool):
                destination = Destination(kind, name)
            case _:
                raise PipelineError(f"{where}: {field}[{n}]: {one!r} is not [kind, name, weight]")
        if not 1 <= weight <= MAX_WEIGHT:
            raise PipelineError(f"{where}: {field}[{n}]: weight {weight} is outside 1 to {MAX_WEIGHT}")
        if destination in weights:
            raise PipelineError(f"{where}: {field}[{n}]: {destination} is there twice")
        weights[destination] = weight
    return weights
