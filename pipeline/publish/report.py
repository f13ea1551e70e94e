"""The report of `publish`: what went where, how fast, and what may be there twice."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pipeline.publish.commits import Write
from pipeline.report import Report

_BARS = 40
"""Queues of a plot, at most."""


def write_report(
    path: Path, exchange: str, writes: Sequence[Write], before: int, open_tries: int, *, failed: bool
) -> None:
    """Of all writes of a commit log, the first `before` of earlier runs; and of `open_tries` that led to no commit.

    `failed`: the last run.
    """
    rows = Counter[str]()
    for write in writes:
        rows.update(write.rows)
    total, duplicates = sum(write.total for write in writes), sum(write.duplicates for write in writes)
    dry = any(write.dry_run for write in writes[before:])
    report = Report(f"Published to exchange {exchange!r}", _lead(total, duplicates, dry, open_tries, failed))
    if open_tries:
        report.text(
            f"{open_tries:,} tries at batches led to no commit yet: some of their rows, or all, may be in the queues as"
            " well."
        )
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


def _lead(total: int, duplicates: int, dry: bool, open_tries: int, failed: bool) -> str:
    if dry and not failed:
        return f"A dry run: {total:,} rows would go out; nothing was published."
    told = f"{total:,} rows were published and confirmed"
    if duplicates:
        told += f"; up to {duplicates:,} messages may be there once more"
    elif not open_tries:
        told += ", each once"
    return f"The last run failed, so this is not all: {told}." if failed else f"{told}."


def _plot(rows: Counter[str]) -> Figure:
    queues = rows.most_common(_BARS)[::-1]
    figure = Figure(figsize=(8, 0.8 + 0.25 * len(queues)))
    axes = figure.subplots()
    axes.barh([queue for queue, _ in queues], [count for _, count in queues], color="#4477aa")
    axes.axvline(sum(rows.values()) / len(rows), color="#bbbbbb", linestyle="--", zorder=0)
    axes.set_xlabel("rows (dashed: the mean)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
