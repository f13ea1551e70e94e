"""Whether what the jobs say of a sample holds of the whole: each figure must lie within its estimate's interval."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from testbed.pipeline_demo.jobs import table, verdict_of


class Figure(NamedTuple):
    """A figure that a job tells of the whole journal, and of the sample with the ends of the interval."""

    what: str
    whole: float
    estimate: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """Whether the whole journal's figure is within the interval."""
        return self.low <= self.whole <= self.high

    def __str__(self) -> str:
        """Return the figure as one line of a table."""
        whole, estimate, low, high = (f"{n:,.0f}" if n >= 1000 else f"{n:.3f}" for n in self[1:])
        return f"{self.what:<44} {whole:>8}   {estimate:>10} ({low} to {high})"


def of_usage(whole: Path, sample: Path, exchange: str) -> Iterator[Figure]:
    """Yield the messages of each destination, from the two folders that `usage` wrote.

    The ends of several windows are added up, which makes the interval wider than that of their sum.
    """
    names = ("messages_scaled", "messages_low", "messages_high")
    found = [_sums(table(folder / "usage").to_pylist(), exchange, names) for folder in (whole, sample)]
    for destination in sorted(found[0]):
        yield Figure(f"usage: messages of {destination}", found[0][destination][0], *found[1][destination])


def of_skew(whole: Path, sample: Path, exchange: str) -> Iterator[Figure]:
    """Yield what `skew` says of the exchange across its rings, of each destination and of the hottest key."""
    rings = [_across(folder / "rings", exchange)[0] for folder in (whole, sample)]
    for name in ("published", "max_over_fair", "top_key"):
        yield _figure(f"skew: {name}", name, *rings)
    loads = [
        {row["destination"]: row for row in _across(folder / "destinations", exchange)} for folder in (whole, sample)
    ]
    for destination in sorted(loads[0]):
        yield _figure(f"skew: over_fair of {destination}", "over_fair", *(load[destination] for load in loads))
    keys = [hottest(folder, exchange) for folder in (whole, sample)]
    yield _figure(f"skew: share of {keys[0]['key'].decode()}", "share", *keys)


def hottest(skew: Path, exchange: str) -> Mapping[str, Any]:
    """Return the row of an exchange's hottest key, from the folder that `skew` wrote."""
    return max(_across(skew / "keys", exchange), key=lambda row: row["messages"])


def of_whatif(whole: Path, sample: Path) -> Iterator[Figure]:
    """Yield what `whatif` says of the present and the proposed ring, from its two verdicts."""
    told, estimated = verdict_of(whole), verdict_of(sample)
    for path in (("messages",), ("max_over_fair", "present"), ("max_over_fair", "proposed"), ("moved", "of_messages")):
        whole_one, estimate = _at(told, path), _at(estimated, path)
        yield Figure(f"whatif: {' '.join(path)}", whole_one, estimate, *_at(estimated["intervals"], path))


def _sums(rows: list[Any], exchange: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["exchange"] == exchange:
            before = found.get(row["destination"], [0.0] * len(names))
            found[row["destination"]] = [count + row[name] for count, name in zip(before, names, strict=True)]
    return found


def _across(folder: Path, exchange: str) -> list[Any]:
    """Return the rows that are of an exchange across its rings."""
    return [row for row in table(folder).to_pylist() if row["exchange"] == exchange and row["ring"] is None]


def _figure(what: str, name: str, whole: Mapping[str, Any], sample: Mapping[str, Any]) -> Figure:
    return Figure(what, whole[name], sample[name], sample[f"{name}_low"], sample[f"{name}_high"])


def _at(told: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        told = told[name]
    return told
