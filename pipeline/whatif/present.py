"""The present ring: a file's, the one that the bindings make now, or the newest of those that records name."""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.live import MANAGEMENT, live_ring
from pipeline.rings import KnownRing, read_ring
from proxy.config import Settings
from proxy.values import ConfigError


@dataclass(frozen=True)
class Present:
    """The ring that a proposed one is compared with."""

    known: KnownRing
    source: str
    """Where it is from: `ring` (a file), `management` (the API) or `journal`."""
    said: str
    """A sentence for the report that says so."""


_SAY = "say --ring or --management-url"
"""What helps where a journal does not tell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which ring is the present one, all of which may be left out with a journal."""
    parser.add_argument("--ring", metavar="FILE", help="the present ring (default: the newest one in the journal)")
    for name, text in MANAGEMENT.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)


def given(options: argparse.Namespace) -> Present | None:
    """Return the present ring that the options name, read from its file or the management API; None where they do not.

    Raises PipelineError where it cannot be read, or options do not go together.
    """
    settings = {name: value for name in MANAGEMENT if (value := getattr(options, name)) is not None}
    if options.ring and settings:
        raise PipelineError(f"one of --ring and --{next(iter(settings)).replace('_', '-')}")
    if options.ring:
        return Present(read_ring(options.ring), "ring", f"The present ring is that of {options.ring}.")
    if not settings:
        return None
    if "management_url" not in settings:
        raise PipelineError(f"--{next(iter(settings)).replace('_', '-')}: with --management-url")
    if options.vhost is None or options.exchange is None:
        raise PipelineError("--management-url: with --vhost and --exchange")
    try:
        loaded = Settings.load(None, {}, settings)
    except ConfigError as error:
        raise PipelineError(f"option {error}") from None
    known = live_ring(loaded, options.vhost, options.exchange)
    return Present(known, "management", "The present ring is the one that the bindings made when this job began.")


def newest(records: DataFrame, names: Iterable[str], rings: Mapping[str, KnownRing], journal: str) -> Present:
    """Return the newest of the rings that an exchange's records name: those in `names`, which are some of `rings`.

    Clocks of sidecars differ, and each numbers its own records: so a ring is newer than another where a sidecar went
    from that one to it. The newest is the one that some sidecar's last record names and that no sidecar has left for
    another. Reads the records only where they name several rings.

    Raises PipelineError where no ring is so, or several are, or the file of the one that is is missing.
    """
    named = sorted(names)
    if len(named) == 1:
        return Present(_of(named[0], rings, journal), "journal", "The present ring is the only one that records name.")
    for name in named:
        behind = [d.name for d in rings[name].weights if d.kind == "exchange"] if name in rings else []
        if behind:
            raise PipelineError(
                f"{journal}: records name rings {', '.join(named)}: exchange {behind[0]!r} is a destination of {name},"
                f" and one of the others may be its own: {_SAY}"
            )
    ends = _ends(records).collect()
    left = {ring for end in ends for ring in end.rings if ring != end.last}
    newest = {end.last for end in ends} - left
    if len(newest) != 1:
        raise PipelineError(f"{journal}: which ring is the newest cannot be told: {_ended(ends)}: {_SAY}")
    (name,) = newest
    said = f"The present ring is {name}, which no sidecar has left for another one: {_ended(ends)}."
    return Present(_of(name, rings, journal), "journal", said)


def _ends(records: DataFrame) -> DataFrame:
    """Return how sidecars ended: `last`, the ring of a sidecar's last record, `rings`, all that its records name, and
    how many `sidecars` did so.
    """
    of_ring = records.groupBy("proxy", "ring").agg(F.max("seq").alias("seq"))
    of_proxy = of_ring.groupBy("proxy").agg(
        F.max_by("ring", "seq").alias("last"), F.sort_array(F.collect_set("ring")).alias("rings")
    )
    return of_proxy.groupBy("last", "rings").agg(F.count("*").alias("sidecars"))


def _ended(ends: Iterable[Row]) -> str:
    """Return in words how many sidecars ended with which ring."""
    counts: Counter[str] = Counter()
    for end in ends:
        counts[end.last] += end.sidecars
    return ", ".join(
        f"{n:,} {'sidecar' if n == 1 else 'sidecars'} ended with {name}" for name, n in sorted(counts.items())
    )


def _of(name: str, rings: Mapping[str, KnownRing], journal: str) -> KnownRing:
    if name not in rings:
        raise PipelineError(f"{journal}: its newest records are by ring {name}, and rings/{name}.json is missing")
    return rings[name]
