"""The report of `publish`: the rows that each queue got, the speed, and the messages that may be there twice."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import busiest, count, duration, estimate, natural, percent
from pipeline.page.report import Grade, Report
from pipeline.publish.commits import Write


def write_report(
    path: Path, about: About, writes: Sequence[Write], before: int, open_tries: int, *, failed: bool
) -> None:
    """Write the report on all writes of a commit log and on `open_tries`, which led to no commit.

    The first `before` of the writes are of earlier runs. `about` is the head of the page, and `failed` says that the
    last run has failed.
    """
    rows = Counter[str]()
    for write in writes:
        rows.update(write.rows)
    total, duplicates = sum(write.total for write in writes), sum(write.duplicates for write in writes)
    dry = any(write.dry_run for write in writes[before:])
    grade = Grade.BAD if failed else Grade.LOOK if duplicates or open_tries else Grade.GOOD
    report = Report(
        "Publish: what was sent, and how often?", grade, _lead(total, duplicates, dry, open_tries, failed), about
    )
    if open_tries:
        report.text(
            f"{open_tries:,} tries at batches are not committed yet. Some or all of their rows may be in the queues."
        )
    if before:
        report.text(f"{before:,} of the {len(writes):,} batches were published by earlier runs.")
    if rows:
        report.heading("What did each queue get?")
        report.figure(
            _plot(rows), f"Rows by queue, the {min(len(rows), plots.MOST_BARS)} with the most of {len(rows)}."
        )
        report.table(
            ["queue", "rows", "share"],
            [(queue, count(rows[queue]), percent(rows[queue] / total)) for queue in sorted(rows, key=natural)],
        )
    if writes:
        report.heading("How did each batch go?")
        report.table(
            [
                "batch",
                "ring",
                "rows",
                "time",
                "rows/s",
                "rows sent again",
                "failed tasks",
                "failed tries",
                "duplicates at most",
            ],
            [
                (
                    write.batch or "-",
                    write.fingerprint,
                    count(write.total),
                    duration(1e6 * write.seconds),
                    estimate(write.total / write.seconds) if write.seconds else None,
                    count(write.again),
                    write.failed_attempts,
                    write.failed_tries,
                    write.duplicates,
                )
                for write in writes
            ],
        )
        report.text(
            "The time is that of a batch's longest task. Both copies of a row have the same message_id, so that"
            " consumers can drop one."
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
    queues = busiest(rows, rows.__getitem__, str, plots.MOST_BARS)
    figure, axes = plots.new(0.8 + 0.25 * len(queues))
    axes.barh(range(len(queues)), [rows[queue] for queue in queues], color=plots.BLUE)
    axes.axvline(sum(rows.values()) / len(rows), color=plots.INK, linestyle="--", linewidth=1)
    plots.names(axes, queues)
    plots.counts(axes.xaxis)
    axes.set_xlabel("rows (dashed: the mean)")
    return figure
