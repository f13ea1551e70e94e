"""The report of `publish`: what went where, how fast, and what may be there twice."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pipeline.publish.commits import Write
from pipeline.report import Report

_BARS = 40
"""Queues of a plot, at most."""


def write_report(path: Path, exchange: str, writes: Sequence[Write], before: int) -> None:
    """Of all writes of a commit log, the first `before` of which are of earlier runs."""
    rows = Counter[str]()
    for write in writes:
        rows.update(write.rows)
    total, duplicates = sum(write.total for write in writes), sum(write.duplicates for write in writes)
    dry = any(write.dry_run for write in writes[before:])
    report = Report(f"Published to exchange {exchange!r}", _lead(total, duplicates, dry))
    if before:
        report.text(f"{before:,} of the {len(writes):,} batches were published by earlier runs.")
    if rows:
        report.heading("Queues")
        report.figure(_plot(rows), f"Rows by queue, the {min(len(rows), _BARS)} with the most of {len(rows)}.")
        report.table(["queue", "rows", "share"], [(queue, n, n / total) for queue, n in rows.most_common()])
    if writes:
        report.heading("Batches")
        report.table(
            ["batch", "ring", "rows", "seconds", "rows/s", "failed tasks", "failed tries", "duplicates at most"],
            [
                (
                    write.batch or "-",
                    write.fingerprint,
                    write.total,
                    write.seconds,
                    write.total / write.seconds if write.seconds else 0.0,
                    write.failed_attempts,
                    write.failed_tries,
                    write.duplicates,
                )
                for write in writes
            ],
        )
        report.text(
            "The seconds are of a batch's longest task. A row whose message came twice has the same message_id both"
            " times: consumers can tell."
        )
    report.write(path)


def _lead(total: int, duplicates: int, dry: bool) -> str:
    if dry:
        return f"A dry run: {total:,} rows would go out; nothing was published."
    if not duplicates:
        return f"{total:,} rows were published and confirmed, each once."
    return f"{total:,} rows were published and confirmed; up to {duplicates:,} messages may be there once more."


def _plot(rows: Counter[str]) -> Figure:
    queues = rows.most_common(_BARS)[::-1]
    figure = Figure(figsize=(8, 0.8 + 0.25 * len(queues)))
    axes = figure.subplots()
    axes.barh([queue for queue, _ in queues], [count for _, count in queues], color="#4477aa")
    axes.axvline(sum(rows.values()) / len(rows), color="#bbbbbb", linestyle="--", zorder=0)
    axes.set_xlabel("rows (dashed: the mean)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
