"""The measurements as Markdown: what was reached of each goal, and the figures behind it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench import contenders
from bench.contenders import (
    BARE,
    DIRECT,
    DIRECT_TRANSIENT,
    JSON,
    JSON_TRANSIENT,
    MANAGEMENT,
    SINGLE,
    SINGLE_TRANSIENT,
)
from bench.freeze import ALLOWED, LIMIT, Frozen
from bench.latency import RATE, Latency
from bench.messages import BATCH
from bench.rounds import Spread, Throughput

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

MOST_MEMORY = 256 << 20


@dataclass
class Results:
    """All that was measured; a part that was left out is empty."""

    throughput: Mapping[str, Sequence[Throughput]] = field(default_factory=dict)
    batch_connections: int = 0
    latency: Mapping[str, Sequence[Latency]] = field(default_factory=dict)
    frozen: Frozen | None = None


class Goal(NamedTuple):
    """A goal and what was reached."""

    title: str
    wanted: str
    reached: str
    spread: str
    met: bool


def markdown(results: Results, conditions: Sequence[str]) -> str:
    """The whole report; `conditions` are told before the tables, one a line."""
    parts = ["\n".join(f"- {line}" for line in conditions), _goals(results)]
    if results.throughput:
        parts.append(_throughput(results))
    if results.latency:
        parts.append(_latency(results.latency))
    if results.frozen:
        parts.append(_frozen(results.frozen))
    return "\n\n".join(parts)


def replaced(document: str, report: str) -> str:
    """The document with the report between its two markers, in place of what was there."""
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n\n{report}\n\n{END}{after}"


def goals(results: Results) -> list[Goal]:
    """Every goal whose part was measured."""
    found = []
    if results.throughput:
        for least, title, one, other in (
            (0.7, f"batches of {BATCH} messages ÷ AMQP, straight to the queues", JSON, DIRECT),
            (0.7, f"batches of {BATCH} transient messages ÷ the same of AMQP", JSON_TRANSIENT, DIRECT_TRANSIENT),
            (0.4, f"single messages, {contenders.CONNECTIONS} connections ÷ bare handler", SINGLE, BARE),
            (
                0.4,
                f"single transient messages, {contenders.CONNECTIONS} connections ÷ bare handler",
                SINGLE_TRANSIENT,
                BARE,
            ),
            (6.0, f"single messages, {contenders.CONNECTIONS} connections ÷ management API", SINGLE, MANAGEMENT),
        ):
            pairs = zip(results.throughput[one], results.throughput[other], strict=True)
            ratio = Spread.of([a.rate / b.rate for a, b in pairs])
            found.append(Goal(title, f"at least {least:g}", *_shown(ratio, ".2f"), ratio.median >= least))
    if results.latency:
        for index, most in ((0, 1.0), (1, 3.0)):
            for single, which in ((SINGLE, ""), (SINGLE_TRANSIENT, ", transient messages")):
                both = zip(results.latency[single], results.latency[BARE], strict=True)
                more = Spread.of([a[index] - b[index] for a, b in both])
                title = f"{('p50', 'p99')[index]} above the bare handler's, {RATE:,} requests/s{which}, ms"
                found.append(Goal(title, f"under {most:g}", *_shown(more, ".2f"), more.median < most))
    return found + (_frozen_goals(results.frozen) if results.frozen else [])


def _frozen_goals(frozen: Frozen) -> list[Goal]:
    others = {status for status in frozen.statuses if status // 100 != 2 and status not in ALLOWED}
    recovery = "no" if frozen.recovery is None else f"after {frozen.recovery:.1f} s"
    mebibytes = f"{frozen.peak / 2**20:.0f}"
    statuses = ", ".join(map(str, sorted(others))) or "none"
    when = f"broker frozen for {frozen.seconds:g} s"
    return [
        Goal(f"{when}: most memory, MiB", f"under {MOST_MEMORY >> 20}", mebibytes, "", frozen.peak < MOST_MEMORY),
        Goal(f"{when}: answers other than 2xx, 429, 503, 504", "none", statuses, "", not others),
        Goal(f"{when}: slowest answer, s", f"at most {LIMIT:g}", f"{frozen.slowest:.1f}", "", frozen.slowest <= LIMIT),
        Goal(f"{when}: recovers by itself", "yes", recovery, "", frozen.recovery is not None),
    ]


def _goals(results: Results) -> str:
    rows = [[g.title, g.wanted, g.reached, g.spread, "yes" if g.met else "**no**"] for g in goals(results)]
    return _table(["", "goal", "reached", "least to most", "met"], rows)


def _throughput(results: Results) -> str:
    rows = []
    for title, rounds in results.throughput.items():
        rates = _shown(Spread.of([r.rate for r in rounds]), ",.0f")
        rows.append([title, *rates, _median([r.broker for r in rounds]), _median([r.server for r in rounds])])
    heads = ["", "messages/s", "least to most", "broker CPU, µs a message", "sidecar CPU, µs a message"]
    tried = ", ".join(map(str, contenders.BATCH_CONNECTIONS))
    note = f"Connections of the batches: {results.batch_connections}, the best of {tried}."
    return f"{_table(heads, rows)}\n\n{note} In the bare handler's row it is its own CPU time, not the sidecar's."


def _median(figures: Sequence[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{Spread.of(known).median:.1f}" if known else ""


def _latency(latency: Mapping[str, Sequence[Latency]]) -> str:
    rows = []
    for title, rounds in latency.items():
        p50, p99 = (_shown(Spread.of(figures), ".2f") for figures in zip(*rounds, strict=True))
        rows.append([title, *p50, *p99])
    return _table([f"at {RATE:,} requests/s", "p50, ms", "least to most", "p99, ms", "least to most"], rows)


def _frozen(frozen: Frozen) -> str:
    rows = [[str(status or "no answer"), f"{count:,}"] for status, count in sorted(frozen.statuses.items())]
    before = f"{frozen.peak_before / 2**20:.0f} MiB before the freeze, {frozen.peak / 2**20:.0f} MiB at the end"
    return f"{_table(['status, from the freeze on', 'answers'], rows)}\n\nMost memory of the sidecar: {before}."


def _shown(spread: Spread, form: str) -> tuple[str, str]:
    return f"{spread.median:{form}}", f"{spread.least:{form}} to {spread.most:{form}}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return re.sub(r" +\|", " |", "\n".join("| " + " | ".join(line) + " |" for line in lines))
