"""The topology file of an exchange: the one it was made with, and that of the proposed ring, for `apply --ordered`."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from proxy.settings.sources import as_toml
from proxy.shards.document import DocumentError, load
from proxy.shards.shard import Arguments, OwnTerms, Sharded
from proxy.topology.bindings import CONSISTENT_HASH
from ring.destination import Destination

NAME = "topology.toml"
"""The name of the file that is written."""


def read_topology(path: str, vhost: str, exchange: str) -> Sharded:
    """Return an exchange of a topology file. Raises PipelineError if it has none that can change in order."""
    try:
        every = load(Path(path))
    except DocumentError as error:
        raise PipelineError(f"--topology: {'; '.join(error.lines)}") from None
    found = [each for each in every if (each.vhost, each.name) == (vhost, exchange)]
    if not found:
        raise PipelineError(f"--topology {path}: it has no exchange {exchange!r} of virtual host {vhost!r}")
    (one,) = found
    for is_so, why in (
        (one.type != CONSISTENT_HASH, f"type: {one.type} has no weights"),
        (one.numbers is None, "shards_per_node: write shards = N"),
        (bool(one.retiring), "retiring: retire these shards first"),
        (not one.has_own_names, "lanes, [[exchange.shard]]: a shard has no lane, or a name of its own"),
    ):
        if is_so:
            raise PipelineError(f"--topology {path}: {one.place}: it cannot change in order: {why}")
    return one


def agree(exchange: Sharded, present: RingSpec) -> None:
    """Raise PipelineError unless a topology file has the shards and the weights of the present ring."""
    filed = {Destination("queue", shard.place): shard.weight for shard in exchange.shards((), 1)}
    for each in sorted(filed.keys() | present.weights.keys()):
        # The weight of an only shard is never changed.
        if (each in filed) != (each in present.weights) or (len(filed) > 1 and filed[each] != present.weights[each]):
            told = [f"weight {of[each]}" if each in of else "none" for of in (filed, present.weights)]
            raise PipelineError(
                f"--topology: {exchange.place}: of {each} it has {told[0]}, and the present ring {told[1]}: give the"
                " file that was applied last, or what `ring-proxy topology export` prints"
            )


def changed(exchange: Sharded, proposed: RingSpec) -> Sharded:
    """Return the exchange with the shards and weights of a ring. Raises PipelineError for a queue that is no shard."""
    weights: dict[int, int] = {}
    for each, weight in proposed.weights.items():
        number = exchange.number_of(each.name) if each.kind == "queue" else None
        if number is None:
            raise PipelineError(f"--topology: {each} is no shard of the file: a shard is {exchange.name}.NUMBER")
        weights[number] = weight
    own = {
        number: replace(exchange.own.get(number, OwnTerms()), weight=None if weight == 1 else weight)
        for number, weight in sorted(weights.items())
    }
    own = {number: terms for number, terms in own.items() if terms != OwnTerms()}
    return replace(exchange, numbers=tuple(sorted(weights)), own=own)


def after(exchange: Sharded, present: RingSpec, proposed: RingSpec) -> RingSpec:
    """Return the proposed ring with the queues that an ordered change to it makes, of the next generation.

    `exchange` is that of the proposed ring. Equal weights are no change, and keep the present queues.
    """
    if proposed.weights == present.weights:
        return replace(proposed, queues=present.queues)
    later = re.compile(rf"{re.escape(exchange.name)}\.g(\d+)\.\d+")
    found = [int(match[1]) for queue in present.queues.values() if (match := later.fullmatch(queue))]
    then = replace(exchange, generation=max(found, default=1) + 1, made_with=len(proposed.weights))
    return replace(proposed, queues={shard.place: shard.queue for shard in then.shards((), 1)})


def to_toml(exchange: Sharded) -> str:
    """Return a topology file with one exchange that can change in order."""
    numbers = list(exchange.numbers or ())
    count = len(numbers)
    lines = ["[[exchange]]", f"name = {as_toml(exchange.name)}", f"vhost = {as_toml(exchange.vhost)}"]
    lines.append(f"shards = {count if numbers == list(range(1, count + 1)) else numbers}")
    lines += [f"{name.replace('-', '_')} = {as_toml(value)}" for name, value in exchange.arguments.items()]
    if exchange.groups:
        lines.append(f"groups = {as_toml(exchange.groups)}")
    lines += _terms(exchange.queue_type if exchange.queue_type != "quorum" else None, exchange.queue_arguments or None)
    for number, own in sorted(exchange.own.items()):
        weight = [] if own.weight is None else [f"weight = {own.weight}"]
        lines += ["", "[[exchange.shard]]", f"number = {number}", *weight, *_terms(own.queue_type, own.arguments)]
    return "\n".join(lines) + "\n"


def _terms(queue_type: str | None, arguments: Arguments | None) -> Iterator[str]:
    """Yield the lines of a queue's type and arguments, where it has any of its own."""
    if queue_type is not None:
        yield f"queue_type = {as_toml(queue_type)}"
    if arguments is not None:
        yield f"arguments = {{ {', '.join(f'{as_toml(key)} = {as_toml(value)}' for key, value in arguments.items())} }}"
