"""The report of `usage`."""

import datetime
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.data.period import ALWAYS, Period
from pipeline.data.schema import OUTCOMES
from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import Number, about, count, duration, interval, moment, percent, size
from pipeline.page.report import Report, grade
from pipeline.stats.sampling import VAGUE
from pipeline.usage import latency, scaling
from pipeline.usage.findings import MOST_LINES, MOST_ROWS, Findings
from pipeline.usage.verdict import judged

_MOST_LINEAR = 10
"""The highest percentile over the lowest, above which a linear axis would show the lowest as a flat line at 0."""

_OPEN = (0, latency.BUCKETS - 1)
"""The buckets of latencies that have no bound at one end."""


def report(
    found: Findings,
    head: About,
    within: Period = ALWAYS,
    kept: Sequence[Row] = (),
    aside: Aside = NOTHING_ASIDE,
) -> Report:
    """Return the page: `head` is its head, `within` the time that was asked for, `kept` the hours of Written.kept.

    `aside` counts what landing could not read.
    """
    whole, first = found.whole, found.destinations[0]
    windows = {row.window for row in found.windows}
    among = f" among records {within}" if within.is_limited else ""
    lead = (
        f"{found.names[0]}{_where(found)} took the most: {_share(first, whole)} of {_messages(whole, whole)} messages"
        f"{_of_all(found)} from {_at(found.windows[0].window):%Y-%m-%d %H:%M} UTC on, in "
        f"{count(len(windows))} {'window' if len(windows) == 1 else 'windows'} of {_minutes(found)}. "
        + _answers(found)
        + (
            f"{found.missing.records:,} records are missing{among}."
            if found.missing.records
            else f"No record is missing{among or ' among those read'}{' now' if kept and not among else ''}."
        )
    )
    findings = judged(found, aside)
    in_doubt = "".join(finding.sentence for finding in findings if finding.kind == "vague")
    made = Report("Usage: which queue is hot, and when?", grade(findings), f"{lead} {in_doubt}".strip(), head)
    if _is_sample(whole):
        made.text(
            f"The journal is a sample: {whole.messages:,} records. Messages, shares, sizes and keys are estimates of "
            "everything published, with 95% intervals. Latencies and outcomes are of the records in the sample. The "
            "sample has all messages of a key, or none. A key that is hotter than all keys in the sample is in no "
            "figure and in no interval."
        )
    made.heading("Which queue is hot, and when?")
    made.figure(_timeline(found), "Messages by queue and window")
    if found.minutes != whole.minutes:
        made.text(f"The plots put windows together; the table has all, of {whole.minutes} minutes.")
    made.heading("How soon did the broker answer?")
    if whole.p99:
        made.figure(_latencies(found), "Latency: median and 99th percentile by window, and how all are spread")
        made.table(
            ["ingress", "messages", "share", "p50", "p99"],
            [
                (row.ingress.upper(), _messages(row, whole), _share(row, whole), *_percentiles(row))
                for row in found.ingresses
            ],
        )
        made.text(
            f"Percentiles are upper bounds: at most 25% too high, for latencies of {latency.BOUNDS[0]} µs or more. "
            "They count answers only: a message whose fate is unknown, or that was sent without a confirm, has none."
        )
        if told := _of_open_buckets(found):
            made.text(told)
    else:
        made.text("No record has a latency.")
    made.heading("What did each queue get?")
    other = [name for name in OUTCOMES if name not in ("confirmed", "passed") and whole[name]]
    headings = [f"{name}, in the sample" if _is_sample(whole) else name for name in other]
    of = [f"{row.ingress.upper()} " for row in found.ingresses] if len(found.ingresses) > 1 else [""]
    percentiles = [f"{name}{share}" for name in of for share in ("p50", "p99")]
    made.table(
        ["exchange > queue", "messages", "share of all", "size", "keys, about", *percentiles, *headings],
        [_destination(found, n, other) for n in range(len(found.destinations))],
    )
    made.heading("Are records missing?")
    if found.gaps:
        made.table(
            ["sidecar", "first number", "last number", "missing records", "after (UTC)", "before (UTC)"],
            [(r.proxy, r["first"], r["last"], r.missing, _since(r), moment(r.until)) for r in found.gaps],
        )
        made.text(
            "A sidecar drops records if they come faster than it can write them, or if the disk is full. A sidecar "
            "that is killed loses its last file."
        )
        if within.since is not None and any(row.since is None for row in found.gaps):
            made.text(
                "If no record was read before the missing ones, some of them may have been dropped before that time: "
                "the name of a file that follows a full folder counts all records since the folder was full."
            )
    else:
        numbers = (
            "from its oldest kept to its last" if within.since is None else "from its first to its last in that time"
        )
        made.text(
            f"No: each sidecar's record numbers are complete {numbers}. Records that it lost later cannot be seen."
        )
    if before := str(found.missing):
        made.text(before)
    if kept:
        made.heading("Which hours were kept as an earlier run wrote them?")
        made.text(
            "An earlier run read more records of these hours, or of windows in them, than the journal has now. The "
            "hours are as that run wrote them, here and in the table. Missing records are of what was read now."
        )
        made.table(
            ["hour (UTC)", "records written earlier", "records read now"],
            [(moment(row.hour), row.written, row.read) for row in kept[:MOST_ROWS]],
        )
    return made


def _where(found: Findings) -> str:
    """Return the virtual host of the busiest destination in parentheses; empty if its name has the virtual host."""
    row = found.destinations[0]
    where = f"virtual host {row.vhost})"
    return "" if found.names[0].endswith(f", {where}") else f" ({where}"


def _of_all(found: Findings) -> str:
    """Return in words that the messages are those of several exchanges; empty if there is one exchange."""
    return " of all exchanges" if len({(row.vhost, row.exchange) for row in found.destinations}) > 1 else ""


def _answers(found: Findings) -> str:
    """Return a sentence on how soon the broker answered; empty if no record says."""
    told = [row for row in found.ingresses if row.p99]
    if len(found.ingresses) > 1:
        each = [f"over {row.ingress.upper()} within {_within(row)}" for row in told]
    else:
        each = [f"within {_within(row)}" for row in told]
    return f"Half of the answers came {'; '.join(each)}. " if each else ""


def _within(row: Row) -> str:
    return f"{duration(row.p50)}, 99% within {duration(row.p99)}"


def _is_sample(whole: Row) -> bool:
    return bool(whole.sample < 1 or whole.messages != whole.messages_scaled)


def _messages(of: Row, whole: Row) -> Number:
    """Return the number of messages of a row; for a sample the estimate with its interval."""
    return interval(*scaling.part(of, whole), about) if _is_sample(whole) else count(of.messages)


def _keys(of: Row) -> str:
    if of["keys"] is None:
        return "not journalled"
    if of.keys_scaled is None:
        return f"{about(of['keys'])} in the samples"
    return interval(of.keys_scaled, of.keys_low, of.keys_high, about) if _is_sample(of) else about(of.keys)


def _destination(found: Findings, n: int, outcomes: Sequence[str]) -> Sequence[object]:
    row = found.destinations[n]
    return (
        found.names[n],
        _messages(row, found.whole),
        _share(row, found.whole),
        interval(*scaling.part(row, found.whole, "bytes"), size),
        _keys(row),
        *(value for one in found.ingresses for value in _percentiles(found.answers.get((n, one.ingress)))),
        *(row[outcome] for outcome in outcomes),
    )


def _share(row: Row, whole: Row) -> Number:
    return interval(*scaling.share(row, whole), percent)


def _percentiles(row: Row | None) -> Sequence[object]:
    """Return the median and the 99th percentile; None for both where nothing was answered."""
    return (None, None) if row is None or row.p99 is None else (duration(row.p50), duration(row.p99))


def _timeline(found: Findings) -> Figure:
    times = [_at(window) for window in sorted({row.window for row in found.windows})]
    lines: list[tuple[int | None, str]] = list(enumerate(found.names[:MOST_LINES]))
    if any(bar.line is None for bar in found.busy):
        lines.append((None, "others"))
    counts = {(_at(bar.window), bar.line): bar.messages.value for bar in found.busy}
    figure, axes = plots.new(3.4)
    # As steps, not as bars: between many narrow bars a screen shows gaps. A window without records is at 0.
    ends = sorted({*times, *(time + _width(found) for time in times)})
    heights = [[counts.get((end, line), 0.0) for end in ends] for line, _ in lines]
    bars = axes.stackplot(ends, heights, step="post")  # type: ignore[arg-type]
    if _is_sample(found.whole):
        tops = [bar.messages for bar in found.tops]
        plots.intervals(axes, [_at(bar.window) + _width(found) / 2 for bar in found.tops], tops)
        # The whole of an interval that is vague would leave nothing to see of the bars.
        most, highest = max(top.value for top in tops), max(top.high for top in tops)
        axes.set_ylim(0, min(VAGUE * most, 1.05 * highest))
    axes.set_ylabel(f"messages in {_minutes(found)}")
    plots.counts(axes.yaxis)
    plots.times(axes, times[0], times[-1] + _width(found))
    plots.legend(axes, bars, [name for _, name in lines])
    return figure


def _latencies(found: Findings) -> Figure:
    figure = Figure(figsize=(plots.WIDTH, 3.2))
    over_time, spread = figure.subplots(1, 2, width_ratios=(3, 2))
    answered = [row for row in found.ingresses if row.p99]
    told = [row for row in found.windows if row.p99]
    for n, one in enumerate(answered):
        its = [row for row in told if row.ingress == one.ingress]
        for name, label in (("p99", "99%"), ("p50", "median")):
            points = [(_at(row.window), row[name]) for row in its]
            plots.by_window(over_time, points, _width(found), f"{one.ingress.upper()} {label}")
        _histogram(spread, one.latency, one.ingress.upper(), f"C{n}", 1 / len(answered) ** 0.5)
    lowest, highest = min(row.p50 for row in told), max(row.p99 for row in told)
    if highest > _MOST_LINEAR * lowest:
        over_time.set_yscale("log")
    else:
        over_time.set_ylim(bottom=0)
    plots.durations(over_time.yaxis, log=highest > _MOST_LINEAR * lowest)
    plots.times(over_time, _at(found.windows[0].window), _at(found.windows[-1].window) + _width(found))
    plots.legend(over_time)
    spread.set_xscale("log")
    plots.durations(spread.xaxis, log=True)
    plots.counts(spread.yaxis)
    spread.set_xlabel("latency")
    spread.set_ylabel("records")
    plots.legend(spread)
    figure.tight_layout()
    return figure


def _histogram(axes: Axes, counts: Sequence[int], label: str, colour: str, alpha: float) -> None:
    """Draw the counts of latency buckets as bars; those of a bucket without a bound at one end are hatched."""
    edges = [latency.BOUNDS[0] / 2**0.25, *latency.BOUNDS, latency.BOUNDS[-1] * 2**0.25]
    for is_open in (False, True):
        buckets = [n for n, count in enumerate(counts) if count and (n in _OPEN) == is_open]
        if buckets:
            heights, widths = [counts[n] for n in buckets], [edges[n + 1] - edges[n] for n in buckets]
            bars = axes.bar([edges[n] for n in buckets], heights, widths, align="edge", color=colour, alpha=alpha)
            if is_open:
                for bar in bars:
                    bar.set(fill=False, hatch="////", edgecolor=colour)
            if not is_open or not any(counts[1:-1]):
                bars.set_label(label)


def _of_open_buckets(found: Findings) -> str:
    """Return a sentence on the hatched bars of `_histogram`; empty if there are none."""
    counts = [sum(row.latency[n] for row in found.ingresses) for n in _OPEN]
    limits = (f"below {duration(latency.BOUNDS[0])}", f"of {duration(latency.BOUNDS[-1])} or more")
    told = [f"{count} {limit}" for count, limit in zip(map(count, counts), limits, strict=True) if count != "0"]
    return f"The hatched bars have all latencies beyond the buckets: {' and '.join(told)}." if told else ""


def _width(found: Findings) -> datetime.timedelta:
    return datetime.timedelta(minutes=found.minutes)


def _minutes(found: Findings) -> str:
    return f"{found.minutes} minutes" if found.minutes <= 60 else f"{found.minutes // 60} hours"


def _at(micros: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)


def _since(gap: Row) -> str:
    """Return, in words, the time of the record right before a gap, or why it is not known."""
    if gap.since is not None:
        return moment(gap.since)
    return "its start" if gap["first"] == 1 else "not read"
