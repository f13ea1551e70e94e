"""The measurements as Markdown: what was reached of each goal, and the figures behind it."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from bench import amqp_report, contenders
from bench.amqp import Measured
from bench.contenders import (
    BARE,
    DIRECT,
    DIRECT_TRANSIENT,
    JSON,
    JSON_TRANSIENT,
    MANAGEMENT,
    ONE_BY_ONE,
    ONE_BY_ONE_TRANSIENT,
    SINGLE,
    SINGLE_TRANSIENT,
)
from bench.freeze import ALLOWED, LIMIT, Frozen
from bench.latency import RATE, Latency
from bench.messages import BATCH
from bench.rounds import Spread, Throughput
from bench.tables import Goal, at_least, chart, goal_table, median, shown, table

MOST_MEMORY = 256 << 20

_SINGLES = frozenset({SINGLE, SINGLE_TRANSIENT, ONE_BY_ONE, ONE_BY_ONE_TRANSIENT, BARE, MANAGEMENT})


@dataclass
class Results:
    """The results of the usual parts; a part that was left out is empty."""

    amqp: Measured | None = None
    throughput: Mapping[str, Sequence[Throughput]] = field(default_factory=dict)
    batch_connections: int = 0
    resident: Mapping[str, int] = field(default_factory=dict)
    """The resident bytes, at the end, of the process that took the requests, by title."""
    latency: Mapping[str, Sequence[Latency]] = field(default_factory=dict)
    frozen: Frozen | None = None


def commit(folder: Path) -> str:
    """Return the commit of a folder as `git describe` names it; empty where it is not under git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def measured_by(command: str, described: str) -> str:
    """Return the command that measures, the day, and the commit as far as there is one."""
    return f"`{command}`, {date.today().isoformat()}" + (described and f", commit {described}")


def markdown(results: Results, conditions: Sequence[str]) -> str:
    """Return the whole report; `conditions` are told before the tables, one a line."""
    parts = ["\n".join(f"- {line}" for line in conditions), goal_table(goals(results))]
    if results.amqp:
        parts.append(amqp_report.markdown(results.amqp))
    if results.throughput:
        parts.append(_throughput(results))
    if results.latency:
        parts.append(_latency(results.latency))
    if results.frozen:
        parts.append(_frozen(results.frozen))
    return "\n\n".join(parts)


def replaced(document: str, section: str, text: str) -> str:
    """Return the document with the text between the two markers of a section, in place of what was there."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, found, rest = document.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"no {begin} followed by {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def goals(results: Results) -> list[Goal]:
    """Return the goals of the parts that were measured, with what was reached."""
    found = amqp_report.goals(results.amqp) if results.amqp else []
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
            found.append(at_least(title, least, Spread.of([a.rate / b.rate for a, b in pairs])))
    if results.latency:
        for index, most in ((0, 1.0), (1, 3.0)):
            for single, which in ((SINGLE, ""), (SINGLE_TRANSIENT, ", transient messages")):
                both = zip(results.latency[single], results.latency[BARE], strict=True)
                more = Spread.of([a[index] - b[index] for a, b in both])
                title = f"{('p50', 'p99')[index]} above the bare handler's, {RATE:,} requests/s{which}, ms"
                found.append(Goal(title, f"under {most:g}", *shown(more, ".2f"), more.median < most))
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


def _throughput(results: Results) -> str:
    rows = []
    for title, rounds in results.throughput.items():
        rates = shown(Spread.of([r.rate for r in rounds]), ",.0f")
        cpu = [median([r.broker for r in rounds]), median([r.server for r in rounds])]
        rows.append([title, *rates, *cpu, f"{results.resident[title] / 2**20:.0f}"])
    heads = ["", "messages/s", "least to most", "broker CPU, µs a message", "sidecar CPU, µs a message", "memory, MiB"]
    tried = ", ".join(map(str, contenders.BATCH_CONNECTIONS))
    note = f"Connections of the batches: {results.batch_connections}, the best of {tried}."
    note += " In the bare handler's row it is its own CPU time, not the sidecar's. Memory is what was resident at the"
    note += " end of what takes the requests: the sidecar, the bare handler or the broker."
    # Apart: beside batches, bars of single messages would all be as short.
    singles = {title: rounds for title, rounds in results.throughput.items() if title in _SINGLES}
    many = {title: rounds for title, rounds in results.throughput.items() if title not in _SINGLES}
    charts = [
        chart("messages/s, single", singles, lambda r: r.rate, ",.0f"),
        chart("messages/s, AMQP and batches", many, lambda r: r.rate, ",.0f"),
        chart("broker CPU, µs a message", results.throughput, lambda r: r.broker, ".1f"),
        chart("sidecar CPU, µs a message", results.throughput, lambda r: r.server, ".1f"),
    ]
    return "\n\n".join([table(heads, rows), note, _without_http(results.throughput), *charts])


def _without_http(throughput: Mapping[str, Sequence[Throughput]]) -> str:
    """How far single messages could get at all: as many under way by AMQP, which is all that the broker can confirm."""
    rows = []
    for one, single in ((ONE_BY_ONE, SINGLE), (ONE_BY_ONE_TRANSIENT, SINGLE_TRANSIENT)):
        for above, below in ((one, BARE), (one, MANAGEMENT), (single, one)):
            if one in throughput:
                pairs = zip(throughput[above], throughput[below], strict=True)
                rows.append([f"{above} ÷ {below}", *shown(Spread.of([a.rate / b.rate for a, b in pairs]), ".2f")])
    return table(["without HTTP", "ratio", "least to most"], rows)


def _latency(latency: Mapping[str, Sequence[Latency]]) -> str:
    rows = []
    for title, rounds in latency.items():
        p50, p99 = (shown(Spread.of(figures), ".2f") for figures in zip(*rounds, strict=True))
        rows.append([title, *p50, *p99])
    heads = [f"at {RATE:,} requests/s", "p50, ms", "least to most", "p99, ms", "least to most"]
    charts = [
        chart(f"{name} at {RATE:,} requests/s, ms", latency, figure, ".2f")
        for name, figure in (("p50", lambda one: one.p50), ("p99", lambda one: one.p99))
    ]
    return "\n\n".join([table(heads, rows), *charts])


def _frozen(frozen: Frozen) -> str:
    rows = [[str(status or "no answer"), f"{count:,}"] for status, count in sorted(frozen.statuses.items())]
    before = f"{frozen.peak_before / 2**20:.0f} MiB before the freeze, {frozen.peak / 2**20:.0f} MiB at the end"
    return f"{table(['status, from the freeze on', 'answers'], rows)}\n\nMost memory of the sidecar: {before}."
