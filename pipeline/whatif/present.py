"""The present ring: a file's, the one that the bindings make now, or the newest of those that records name."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.live import MANAGEMENT, live_ring
from pipeline.data.rings import RingSpec, read_ring
from proxy.settings.parse import ConfigError
from proxy.settings.sources import load_settings


@dataclass(frozen=True)
class Present:
    """The ring that a proposed one is compared with."""

    spec: RingSpec
    source: str
    """The source of the ring: `ring` (a file), `management` (the API) or `journal`."""
    said: str
    """The sentence of the report that names the source."""


_SAY = "say --ring or --management-url"
"""The advice for a journal that does not show the present ring."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which ring is the present one, all of which may be left out with a journal."""
    parser.add_argument("--ring", metavar="FILE", help="file of the present ring (default: the newest in the journal)")
    for name, text in MANAGEMENT.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def given(options: argparse.Namespace) -> Present | None:
    """Return the present ring that the options name, read from its file or the management API; None if they name none.

    Raises PipelineError if it cannot be read, or options do not go together.
    """
    settings = {name: value for name in MANAGEMENT if (value := getattr(options, name)) is not None}
    if options.ring and settings:
        raise PipelineError(f"give either --ring or --{next(iter(settings)).replace('_', '-')}")
    if options.ring:
        return Present(read_ring(options.ring), "ring", f"The present ring is that of {options.ring}.")
    if not settings:
        return None
    if "management_url" not in settings:
        raise PipelineError(f"--{next(iter(settings)).replace('_', '-')} needs --management-url")
    if options.vhost is None or options.exchange is None:
        raise PipelineError("--management-url needs --vhost and --exchange")
    try:
        loaded = load_settings(None, {}, settings)
    except ConfigError as error:
        raise PipelineError(f"option {error}") from None
    spec = live_ring(loaded, options.vhost, options.exchange)
    return Present(spec, "management", "The present ring is the one that the bindings made when this job began.")


def newest(records: DataFrame, names: Iterable[str], rings: Mapping[str, RingSpec], journal: str) -> Present:
    """Return the newest of the rings that an exchange's records name: those in `names`, which are some of `rings`.

    Clocks of sidecars differ, so times of different sidecars are not compared: a ring is newer than another if a
    sidecar went from the other ring to it. The newest is the ring that some sidecar ended with and that no sidecar has
    left for another. If it cannot be told which ring a sidecar ended with, it may have left each ring that it names.
    The records are read only if they name several rings.

    Raises PipelineError if no ring is the newest, or several are, or the newest ring's file is missing.
    """
    named = sorted(names)
    if len(named) == 1:
        said = "All records name the same ring, so the job takes it for the present one."
        return Present(_of(named[0], rings, journal), "journal", said)
    for name in named:
        behind = [d.name for d in rings[name].weights if d.kind == "exchange"] if name in rings else []
        if behind:
            raise PipelineError(
                f"{journal}: records name rings {', '.join(named)}: exchange {behind[0]!r} is a destination of {name},"
                f" and one of the others may be its own: {_SAY}"
            )
    ends: Counter[str | None] = Counter()
    left: set[str] = set()
    for traces in _traces(records):
        last = ended_with(traces)
        ends[last] += 1
        left |= {trace.ring for trace in traces} - {last}
    newest = {last for last in ends if last is not None} - left
    if len(newest) != 1:
        raise PipelineError(f"{journal}: which ring is the newest cannot be told: {_ended(ends)}: {_SAY}")
    (name,) = newest
    said = f"The present ring is {name}, which no sidecar has left for another one: {_ended(ends)}."
    return Present(_of(name, rings, journal), "journal", said)


class Trace(NamedTuple):
    """The times at which one sidecar published by one ring, from its records; in microseconds since 1970."""

    ring: str
    first: int
    """The least `seq`."""
    last: int
    """The greatest `seq`."""
    published: int
    """When the last publish by the ring was made, by the sidecar's clock."""
    latest: int
    """The greatest `time`: when the last of their fates was known."""
    time_of_last: int
    """The `time` of the record with the greatest `seq`."""


def ended_with(traces: Sequence[Trace]) -> str | None:
    """Return the ring by which a sidecar published last, of a Trace for each of its rings; None if that is unclear.

    A record is numbered when its fate is known, so an old ring's record may come behind a new ring's: the ring is that
    of the last publish. But a publish that came back goes by a new ring with the time of its first try. Either the
    other ring must have begun before, or all that became of its publishes must have been known before the last publish.
    Where the sidecar's clock was set back, times say nothing, and all numbers must be behind the other's.
    """
    end = max(traces, key=lambda trace: trace.last)
    set_back = end.time_of_last < max(trace.latest for trace in traces)

    def is_newer(one: Trace, other: Trace) -> bool:
        if set_back:
            return one.first > other.last
        return one.published > other.published and (one.first > other.first or one.published > other.latest)

    found = [one.ring for one in traces if all(is_newer(one, other) for other in traces if other is not one)]
    return found[0] if found else None


def _traces(records: DataFrame) -> Iterator[list[Trace]]:
    """Yield each sidecar's traces: the driver gets a row for each sidecar and ring."""
    of_ring = records.groupBy("proxy", "ring").agg(
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
        F.max(F.col("time") - F.coalesce("latency", F.lit(0))).alias("published"),
        F.max("time").alias("latest"),
        F.max_by("time", "seq").alias("time_of_last"),
    )
    rows = sorted(of_ring.collect(), key=lambda row: (row.proxy, row.ring))
    for _, its in groupby(rows, key=lambda row: row.proxy):
        yield [Trace(*row[1:]) for row in its]


def _ended(ends: Mapping[str | None, int]) -> str:
    """Return in words how many sidecars ended with which ring."""

    def sidecars(n: int) -> str:
        return f"{n:,} {'sidecar' if n == 1 else 'sidecars'}"

    named = sorted((name, n) for name, n in ends.items() if name is not None)
    told = [f"{sidecars(n)} ended with {name}" for name, n in named]
    if unclear := ends.get(None):
        told.append(f"of {sidecars(unclear)} that went through several it is unclear which came last")
    return ", ".join(told)


def _of(name: str, rings: Mapping[str, RingSpec], journal: str) -> RingSpec:
    if name not in rings:
        raise PipelineError(f"{journal}: its newest records are by ring {name}, and rings/{name}.json is missing")
    return rings[name]
