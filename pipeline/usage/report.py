"""The report of `usage`."""

import datetime
from collections.abc import Sequence

from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline import plots
from pipeline.about import About
from pipeline.formats import count, duration, estimate, moment, percent, size
from pipeline.period import ALWAYS, Period
from pipeline.report import Grade, Report
from pipeline.schema import OUTCOMES
from pipeline.usage import latency
from pipeline.usage.findings import MOST_LINES, Findings


def report(found: Findings, about: About, within: Period = ALWAYS) -> Report:
    """The HTML file's content; `within` is the time in which missing records were looked for, `about` its head."""
    whole, first = found.whole, found.destinations[0]
    share = first.messages_scaled / whole.messages_scaled
    among = f" among records {within}" if within.is_limited else ""
    lead = (
        f"{_messages(whole)} messages from {_at(found.windows[0].window):%Y-%m-%d %H:%M} UTC on, in "
        f"{len(found.windows)} windows of {_minutes(found)}. {found.names[0]} took the most: {percent(share)}. "
        + _answers(whole)
        + (
            f"{found.missing:,} records are missing{among}."
            if found.missing
            else f"No record is missing{among or ' among those read'}."
        )
    )
    bad = [name for name in OUTCOMES if name not in ("confirmed", "passed", "sent") and whole[name]]
    made = Report("Usage", Grade.LOOK if found.missing or bad else Grade.GOOD, lead, about)
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
    other = [name for name in OUTCOMES if name not in ("confirmed", "passed") and whole[name]]
    columns = ["destination", "messages", "share", "size", "keys, about", "p50", "p99", *other]
    made.table(
        columns,
        [_destination(name, row, whole, other) for name, row in zip(found.names, found.destinations, strict=True)],
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


def _answers(whole: Row) -> str:
    if not whole.p99:
        return ""
    return f"Half of the answers came within {duration(whole.p50)}, 99% within {duration(whole.p99)}. "


def _messages(of: Row) -> str:
    """As many as there were; what a sample is scaled to is an estimate."""
    return count(of.messages) if of.messages == of.messages_scaled else estimate(of.messages_scaled)


def _destination(name: str, row: Row, whole: Row, outcomes: Sequence[str]) -> Sequence[object]:
    return (
        name,
        _messages(row),
        percent(row.messages_scaled / whole.messages_scaled),
        size(row.bytes_scaled),
        "not journalled" if row.keys_scaled is None else estimate(row.keys_scaled),
        *(None if value is None else duration(value) for value in (row.p50, row.p99)),
        *(round(row[f"{outcome}_scaled"]) for outcome in outcomes),
    )


def _timeline(found: Findings) -> Figure:
    times = [_at(row.window) for row in found.windows]
    lines: list[tuple[int | None, str]] = list(enumerate(found.names[:MOST_LINES]))
    if any(row.line is None for row in found.busy):
        lines.append((None, "others"))
    counts = {(_at(row.window), row.line): row.messages_scaled for row in found.busy}
    figure, axes = plots.new(3.4)
    below = [0.0] * len(times)
    bars = []
    for line, _ in lines:
        heights = [counts.get((time, line), 0.0) for time in times]
        bars.append(axes.bar(times, heights, _width(found), bottom=below, align="edge"))  # type: ignore[arg-type]
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axes.set_ylabel(f"messages in {_minutes(found)}")
    plots.counts(axes.yaxis)
    plots.times(axes, times[0], times[-1] + _width(found))
    plots.legend(axes, bars, [name for _, name in lines])
    return figure


def _latencies(found: Findings) -> Figure:
    figure = Figure(figsize=(plots.WIDTH, 3.2))
    over_time, spread = figure.subplots(1, 2, width_ratios=(3, 2))
    told_windows = [row for row in found.windows if row.p99]
    # A window's figure stands in its middle.
    times = [_at(row.window) + _width(found) / 2 for row in told_windows]
    for name, label in (("p99", "99%"), ("p50", "median")):
        over_time.plot(times, [row[name] for row in told_windows], "o-", markersize=4, label=label)
    over_time.set_ylim(bottom=0)
    plots.durations(over_time.yaxis)
    plots.times(over_time, _at(found.windows[0].window), _at(found.windows[-1].window) + _width(found))
    plots.legend(over_time)
    counts = found.whole.latency
    used = [n for n, count in enumerate(counts) if count]
    edges = [latency.BOUNDS[0] / 2**0.25, *latency.BOUNDS, latency.BOUNDS[-1] * 2**0.25]
    shown = range(used[0], used[-1] + 1)
    spread.bar(
        [edges[n] for n in shown],
        [counts[n] for n in shown],
        [(edges[n + 1] - edges[n]) for n in shown],
        align="edge",
    )
    spread.set_xscale("log")
    plots.durations(spread.xaxis, log=True)
    plots.counts(spread.yaxis)
    spread.set_xlabel("latency")
    spread.set_ylabel("records")
    figure.tight_layout()
    return figure


def _width(found: Findings) -> datetime.timedelta:
    return datetime.timedelta(minutes=found.minutes)


def _minutes(found: Findings) -> str:
    return f"{found.minutes} minutes" if found.minutes <= 60 else f"{found.minutes // 60} hours"


def _at(micros: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)


def _time(micros: int | None) -> str:
    return "its start" if micros is None else moment(micros)
