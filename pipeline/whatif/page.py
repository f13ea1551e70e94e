"""The report of `whatif`."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline.report import Report
from pipeline.whatif.findings import Findings

_MOST_BARS = 30


def sentence(found: Findings) -> str:
    """The answer in one."""
    return (
        f"{found.moved.of_messages:.1%} of the messages would go elsewhere, {found.native.of_messages:.1%} by"
        f" RabbitMQ's own {found.present.exchange_type}; the busiest destination would get"
        f" {found.after.over_mean:.2f} times the mean, now {found.before.over_mean:.2f}"
    )


def report(found: Findings, told: dict[str, Any], moved: Sequence[Row], heaviest: Row, *, of_journal: bool) -> Report:
    """The HTML file's content; `told` is the verdict, `moved` the first of the keys that move."""
    page = Report("What if", f"{sentence(found)}.")
    page.text(_limits(told))
    if told["sample"] < 1:
        page.text(f"The journal is a sample of {told['sample']:.2%} of the keys; all figures are of those.")
    for name, reason in (
        ("hashed", "they hash another value than the present ring"),
        ("ring", "their ring is missing"),
    ):
        if told["left_out"][name]:
            page.text(f"{told['left_out'][name]:,} records are left out: {reason}.")
    if of_journal:
        page.text("Records that are missing from the journal are not looked for here: usage tells how many.")
    page.heading("What moves")
    page.figure(_moves(found), "Share of the messages that change their destination")
    page.text(
        "The exchange itself is taken to have its bindings in the order of the ring's file, what is bound anew last:"
        " the earlier a removed one stands, the more it moves."
    )
    page.heading("What each destination gets")
    page.figure(_loads(found), "Messages of each destination, now and then")
    columns = ["destination", "weight", "messages", "share", "new weight", "new messages", "new share", "per weight"]
    page.table(columns, [_destination(row, found) for row in found.rows()])
    page.heading("Weights")
    _weights(page, found, heaviest)
    page.heading("Keys that move")
    if any(row.key is None for row in moved):
        page.text("The journal does not name these keys: a row is a slot, whose keys move together.")
    page.table(
        ["key", "slot", "from", "to", "messages", "bytes"],
        [(as_text(row.key), row.slot, row.destination, row.new_destination, row.messages, row.bytes) for row in moved],
    )
    page.text(f"The {len(moved):,} with the most messages; all are in the folder moved.")
    return page


def as_text(key: bytes | None) -> str:
    """A key as people read it: text where it is, else hexadecimal."""
    if key is None:
        return "not journalled"
    text = bytes(key).decode(errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else bytes(key).hex()


def _limits(told: dict[str, Any]) -> str:
    limits = {"max_moved": "that may move", "max_over_mean": "by the mean"}
    given = [f"{value:g} {limits[name]}" for name, value in told["limits"].items() if value is not None]
    if not given:
        return "No limits were given."
    over = " and ".join(told["over"]).replace("_", " ")
    return f"Over the limit: {over}." if over else f"Within the limits: at most {', '.join(given)}."


def _destination(row: tuple[Any, ...], found: Findings) -> Sequence[object]:
    kind, name, w0, m0, _, s0, w1, m1, _, s1, *_ = row
    even = found.messages / sum(found.proposed.weights.values())
    per_weight = f"{m1 / w1 / even:.2f}" if w1 else "-"
    return (
        name if kind == "queue" else f"exchange {name}",
        *("-" if w0 is None else w0, m0, f"{s0:.1%}"),
        *("-" if w1 is None else w1, m1, f"{s1:.1%}"),
        per_weight,
    )


def _weights(page: Report, found: Findings, heaviest: Row) -> None:
    least, advised = found.least_over_mean, found.advice.load.over_mean
    if found.weights_help:
        page.text(
            f"With these weights the busiest destination gets {advised:.2f} times the mean in place of"
            f" {found.after.over_mean:.2f}; {found.advised_moves.of_messages:.1%} of the messages would go elsewhere"
            " than now."
        )
        page.table(
            ["destination", "proposed", "advised"],
            [(d.name, found.proposed.weights[d], weight) for d, weight in found.advice.known.weights.items()],
        )
    else:
        page.text("The proposed weights stay: none were found that even the load better.")
    if heaviest.messages > found.after.messages.mean():
        page.text(
            f"One key outweighs what a destination gets in the mean, and no weights change that:"
            f" {as_text(heaviest.key)}, slot {heaviest.slot}, with {heaviest.messages:,} messages,"
            f" {heaviest.messages / found.messages:.1%} of all. Whoever has it gets {least:.2f} times"
            " the mean at least."
        )


def _moves(found: Findings) -> Figure:
    figure = Figure(figsize=(9, 1.8))
    axes = figure.subplots()
    shares = [100 * found.native.of_messages, 100 * found.moved.of_messages]
    bars = axes.barh([found.present.exchange_type, "this ring"], shares, color=["#b0b7bf", "#2a78d6"], height=0.6)
    axes.bar_label(bars, labels=[f"{value:.1f}%" for value in shares], padding=4)
    axes.set_xlim(0, 109)
    axes.set_xlabel("% of messages that move")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _loads(found: Findings) -> Figure:
    rows = sorted(found.rows(), key=lambda row: -max(row[3], row[7]))[:_MOST_BARS][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.36 * len(rows)))
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh([n + 0.2 for n in places], [row[3] for row in rows], 0.38, color="#b0b7bf", label="now")
    axes.barh([n - 0.2 for n in places], [row[7] for row in rows], 0.38, color="#2a78d6", label="proposed")
    mean = found.messages / len(found.proposed.weights)
    axes.axvline(mean, color="#1b1f24", linewidth=1, linestyle="--", label="mean, proposed")
    axes.set_yticks(list(places), [row[1] for row in rows])
    axes.set_xlabel("messages")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure
