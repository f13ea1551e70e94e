"""The report of `usage`."""

import datetime
from collections.abc import Sequence

from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline.period import ALWAYS, Period
from pipeline.report import Report
from pipeline.schema import OUTCOMES
from pipeline.usage import latency
from pipeline.usage.findings import MOST_LINES, Findings


def report(found: Findings, within: Period = ALWAYS) -> Report:
    """The HTML file's content; `within` is the time in which missing records were looked for."""
    whole, first = found.whole, found.destinations[0]
    share = first.messages_scaled / whole.messages_scaled
    among = f" among records {within}" if within.is_limited else ""
    lead = (
        f"{_count(whole.messages_scaled)} messages from {_at(found.windows[0].window):%Y-%m-%d %H:%M} UTC on, in "
        f"{len(found.windows)} windows of {_minutes(found)}. {found.names[0]} took the most: {share:.1%}. "
        + (f"Half of the answers came within {_ms(whole.p50)}, 99% within {_ms(whole.p99)}. " if whole.p99 else "")
        + (
            f"{found.missing:,} records are missing{among}."
            if found.missing
            else f"No record is missing{among or ' among those read'}."
        )
    )
    made = Report("Usage", lead)
    if whole.sample < 1 or whole.messages != whole.messages_scaled:
        made.text(
            f"The journal is a sample: {whole.messages:,} records. Messages, bytes and outcomes are scaled to "
            "the whole, as 1 / sample for each record. A sample has some keys whole and others not at all, so figures "
            "shift with whether a hot key is in it."
        )
    made.heading("Messages")
    made.figure(_timeline(found), "Messages by destination and window")
    if found.minutes != whole.minutes:
        made.text(f"Windows are put together here; the table has all, of {whole.minutes} minutes.")
    made.heading("Latency")
    if whole.p99:
        made.figure(_latencies(found), "Latency: median and 99th percentile by window, and how all are spread")
        made.text(
            "Percentiles are the upper bound of their bucket: at most 25% too high, "
            f"of latencies from {latency.BOUNDS[0]} µs on. They are of what was answered: what is unknown, or was sent "
            "without a confirm, has none."
        )
    else:
        made.text("No record tells of an answer.")
    made.heading("Destinations")
    bad = [name for name in OUTCOMES if name not in ("confirmed", "passed") and whole[name]]
    columns = ["destination", "messages", "share", "bytes", "keys, about", "p50 ms", "p99 ms", *bad]
    made.table(
        columns,
        [_destination(name, row, whole, bad) for name, row in zip(found.names, found.destinations, strict=True)],
    )
    made.heading("Missing records")
    if within.is_limited:
        made.text(f"Missing records were looked for {within} only; the table may have other hours too.")
    if found.gaps:
        made.table(
            ["proxy", "first", "last", "missing", "after", "before"],
            [(r.proxy, r["first"], r["last"], r.missing, _time(r.since), _time(r.until)) for r in found.gaps],
        )
        made.text(
            "A sidecar drops records where they come faster than they can be written, and loses its last file when it "
            "is killed. What is missing from a proxy's start may have been in files that are no longer there."
        )
    else:
        numbers = "from 1 to its last" if within.since is None else "from its first to its last in that time"
        made.text(f"None in between: each proxy's numbers are there {numbers}. What was after that cannot be seen.")
    return made


def _destination(name: str, row: Row, whole: Row, outcomes: Sequence[str]) -> Sequence[object]:
    return (
        name,
        round(row.messages_scaled),
        f"{row.messages_scaled / whole.messages_scaled:.1%}",
        round(row.bytes_scaled),
        "not journalled" if row.keys_scaled is None else round(row.keys_scaled),
        *("" if value is None else value / 1000 for value in (row.p50, row.p99)),
        *(round(row[f"{outcome}_scaled"]) for outcome in outcomes),
    )


def _timeline(found: Findings) -> Figure:
    times = [_at(row.window) for row in found.windows]
    lines: list[tuple[int | None, str]] = list(enumerate(found.names[:MOST_LINES]))
    if any(row.line is None for row in found.busy):
        lines.append((None, "others"))
    counts = {(_at(row.window), row.line): row.messages_scaled for row in found.busy}
    figure = Figure(figsize=(9, 3.6))
    axes = figure.subplots()
    below = [0.0] * len(times)
    bars = []
    for line, _ in lines:
        heights = [counts.get((time, line), 0.0) for time in times]
        bars.append(axes.bar(times, heights, _width(found), bottom=below, align="edge"))  # type: ignore[arg-type]
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axes.set_ylabel(f"messages in {_minutes(found)}")
    axes.spines[["top", "right"]].set_visible(False)
    # Handed over: of labels that it finds by itself it leaves out those that begin with "_".
    axes.legend(bars, [name for _, name in lines], loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _latencies(found: Findings) -> Figure:
    figure = Figure(figsize=(9, 3.2))
    over_time, spread = figure.subplots(1, 2, width_ratios=(3, 2))
    told_windows = [row for row in found.windows if row.p99]
    for name, label in (("p99", "99%"), ("p50", "median")):
        values = [row[name] / 1000 for row in told_windows]
        over_time.plot([_at(row.window) for row in told_windows], values, ".-", label=label)
    over_time.set_ylim(bottom=0)
    over_time.set_ylabel("ms")
    over_time.legend(frameon=False)
    over_time.spines[["top", "right"]].set_visible(False)
    counts = found.whole.latency
    used = [n for n, count in enumerate(counts) if count]
    edges = [latency.BOUNDS[0] / 2**0.25, *latency.BOUNDS, latency.BOUNDS[-1] * 2**0.25]
    shown = range(used[0], used[-1] + 1)
    spread.bar(
        [edges[n] / 1000 for n in shown],
        [counts[n] for n in shown],
        [(edges[n + 1] - edges[n]) / 1000 for n in shown],
        align="edge",
    )
    spread.set_xscale("log")
    spread.xaxis.set_major_formatter("{x:g}")
    spread.spines[["top", "right"]].set_visible(False)
    spread.set_xlabel("ms")
    spread.set_ylabel("records")
    figure.tight_layout()
    return figure


def _width(found: Findings) -> datetime.timedelta:
    return datetime.timedelta(minutes=found.minutes)


def _minutes(found: Findings) -> str:
    return f"{found.minutes} minutes" if found.minutes <= 60 else f"{found.minutes // 60} hours"


def _count(scaled: float) -> str:
    return f"{round(scaled):,}"


def _at(micros: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)


def _time(micros: int | None) -> str:
    return "its start" if micros is None else f"{_at(micros):%Y-%m-%d %H:%M:%S}"


def _ms(micros: int) -> str:
    return f"{micros / 1000:,.3g} ms"
