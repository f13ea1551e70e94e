"""The report of `whatif`: the answer in sentences, and the HTML page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pyspark.sql import Row

from pipeline.findings import Finding
from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import (
    Number,
    about,
    busiest,
    count,
    estimate,
    interval,
    key_text,
    natural,
    percent,
    shortened,
    size,
)
from pipeline.page.report import Report, grade
from pipeline.stats.sampling import Estimate
from pipeline.whatif.findings import Findings
from pipeline.whatif.peak import DAYS
from pipeline.whatif.prediction import Load
from ring.destination import Destination


def answer(found: Findings) -> list[str]:
    """Return the answer in sentences: what would move, and which queue is the busiest now and then."""
    over_fair = found.max_over_fair
    return [
        f"{interval(*found.moved.of_messages)} of the messages would move to another queue"
        f" ({percent(found.native.of_messages.value)} with RabbitMQ's own {found.present.exchange_type}).",
        f"Busiest now: {_busiest(found.before, found.got_before, over_fair.present)}.",
        f"Busiest then: {_busiest(found.after, found.got_after, over_fair.proposed)}.",
    ]


def enough_for(told: Mapping[str, Any]) -> list[str]:
    """Return in sentences how many shards are enough, and which keys none can hold; none if that was not asked for."""
    if (of := told["shards"]) is None:
        return []
    peak, grown = told["peak"], max(1.0, of["growth"] or 1.0)  # fewer messages are not counted on
    said = [f"{_shards(of['now'])} enough for the busiest hour, {peak['hour']} with {peak['messages']:,} messages."]
    if of["growth"] is None:
        said.append("The journal has less than two weeks, so growth is not told; say it by --growth.")
    else:
        said.append(f"{_shards(of['in_90_days'])} enough in {DAYS} days, with {grown:.2f} times the messages.")
    then = f", and {grown:.2f} times as many in {DAYS} days" if grown > 1 else ""
    return said + [
        f"No shard can hold key {shortened(one['key'])}, with {one['messages']:,} messages in that hour{then}: split it"
        f" into {one['parts']} parts."
        for one in of["hot"]
    ]


def _shards(n: int) -> str:
    return "1 shard is" if n == 1 else f"{n:,} shards are"


def limits(told: Mapping[str, Any]) -> str:
    """Return in words which limits were given, which are passed, and which the sample leaves open."""
    forms: dict[str, Callable[[float], str]] = {
        "max_moved": lambda share: f"{percent(share)} of the messages may move",
        "max_over_fair": lambda times: f"the busiest queue may get {times:g} times its fair share",
        "max_per_hour": lambda most: f"a queue may get {most:,.10g} messages an hour, times its weight",
    }
    words = {name: forms[name](limit) for name, limit in told["limits"].items() if limit is not None}
    if not words:
        return "No limits were given."
    over, uncertain = (" and ".join(words[name] for name in told[which]) for which in ("over", "uncertain"))
    judged = f"Over the limit: {over}." if over else f"Within the limits: {' and '.join(words.values())}."
    if uncertain:
        judged += f" Messages outside the sample may decide otherwise, since the interval spans the limit: {uncertain}."
    return judged


def report(
    found: Findings,
    told: Mapping[str, Any],
    findings: Sequence[Finding],
    moved: Sequence[Row],
    heaviest: Row,
    present: str,
    head: About,
) -> Report:
    """Return the HTML file's content.

    `told` is the verdict, `findings` what asks for a look, `moved` the first of the keys that move, `present` says
    where the present ring is from, and `head` is the page's head.
    """
    doubts = [finding.sentence for finding in findings if finding.kind == "vague"]
    lead = " ".join([*answer(found), *enough_for(told), *doubts])
    page = Report("What if: what would the change move?", grade(findings), lead, head)
    page.text(limits(told))
    page.text(present)
    if told["sample"] < 1:
        page.text(
            f"The journal is a sample, {percent(told['sample'])} of all slots, in which"
            f" {count(told['counted']['messages'])} messages were counted. The keys that move are listed as they were"
            " counted. All else is an estimate of everything published: what was counted, and for each slot outside"
            " the sample the mean of the slots inside, without the few that are much heavier than all others. The 95%"
            " interval is in parentheses. It holds if slots outside the sample are like those inside. A key hotter"
            " than all keys in the sample may be outside, and is in no figure."
        )
    for name, reason in (
        ("hashed", "they hash another value than the present ring"),
        ("ring", "their ring is missing"),
    ):
        if told["left_out"][name]:
            page.text(f"{told['left_out'][name]:,} records are left out: {reason}.")
    if "Journal" in head:
        page.text("This job does not look for missing records. The job usage does.")
    page.heading("How many messages would move?")
    page.figure(_moves(found), "Share of the messages that change their queue")
    page.text(
        "For RabbitMQ's own exchange, the order of the bindings is taken from the ring's file, with new bindings last."
        " The earlier a removed binding stands in it, the more it moves."
    )
    page.heading("What would each queue get?")
    page.figure(_loads(found), "Messages of each queue, now and then")
    page.text(
        "A queue's fair share is its weight's share of all weights. In an even load each queue gets 1 fair share."
    )
    each = ["weight", "messages", "share", "in fair shares"]
    columns = ["queue", *each, *(f"new {name}" for name in each)]
    page.table(columns, [_destination(found, row) for row in _rows(found)])
    page.heading("Would other weights be better?")
    _weights(page, found, heaviest)
    page.heading("Which keys would move?")
    if not moved:
        page.text("None.")
        return page
    if any(row.key is None for row in moved):
        page.text("The journal does not name these keys. A row is a slot: its keys move together.")
    page.table(
        ["key", "slot", "from", "to", "messages", "size"],
        [
            (key_text(row.key), Number(row.slot), row.destination, row.new_destination, row.messages, size(row.bytes))
            for row in moved
        ],
    )
    page.text(f"The table has the {len(moved):,} with the most messages. The folder moved has all keys that move.")
    return page


def _busiest(load: Load, got: Mapping[Destination, Estimate], over_fair: Estimate) -> str:
    """Return the busiest queue by name, with its share of the messages and its load in fair shares."""
    busiest = load.destinations[int(np.argmax(load.over_fair))]
    share = interval(*_part(got[busiest], load.messages.sum()))
    return f"{busiest} with {share} of the messages, {_times(over_fair)} times its fair share"


def _part(of: Estimate, whole: float) -> Estimate:
    return Estimate(*(float(end / whole) for end in of))


def _times(told: Estimate) -> str:
    return interval(*told, form="{:.2f}".format)


def _destination(found: Findings, row: tuple[Any, ...]) -> Sequence[object]:
    which, now, then = Destination(*row[:2]), row[2:4], row[7:9]
    cells = _cells(which, found.before, found.got_before, *now), _cells(which, found.after, found.got_after, *then)
    return (_name(*which), *cells[0], *cells[1])


def _name(kind: str, name: str) -> str:
    return name if kind == "queue" else f"exchange {name}"


def _cells(
    which: Destination, load: Load, got: Mapping[Destination, Estimate], weight: int | None, messages: int
) -> Sequence[object]:
    """Return the table's cells for one destination in one ring; the ring may lack the destination."""
    if which not in got:
        return weight, count(messages), percent(0), None
    share = _part(got[which], load.messages.sum())
    over_fair = _part(share, load.fair[load.destinations.index(which)])
    told = count(messages) if share.low == share.high else interval(*got[which], about)
    return weight, told, interval(*share), interval(*over_fair, estimate)


def _rows(found: Findings) -> list[tuple[Any, ...]]:
    return sorted(found.rows(), key=lambda row: (natural(row[1]), row[0]))


def _weights(page: Report, found: Findings, heaviest: Row) -> None:
    over_fair = found.max_over_fair
    page.text(
        "The proposed weights, or those that the proposed file names as fair, say which share of the messages each"
        " queue should get: here this is its fair share."
    )
    if found.weights_help:
        page.text(
            f"Yes: with the advised weights the busiest queue would get {_times(over_fair.advised)} times its fair"
            f" share, instead of {_times(over_fair.proposed)} times."
            f" {interval(*found.advised_moves.of_messages)} of the messages would move from where they go now."
        )
        page.table(
            ["queue", "proposed weight", "advised weight", "messages", "share", "in fair shares"],
            [_advised(found, row) for row in _rows(found) if row[12] is not None],
        )
        page.text(
            "The table has what each queue would get. To check the weights, give the file advised.json beside this page"
            " as --proposed: it says, too, which shares are fair. By --weight the job would take the weights for the"
            " shares that you want."
        )
    else:
        page.text("No: the job found no weights that bring the load nearer to the fair shares.")
    if over_fair.least.value > 1:
        share = interval(*found.published.heaviest_share())
        page.text(
            f"One key alone exceeds every queue's fair share: {shortened(key_text(heaviest.key))}, slot"
            f" {heaviest.slot}, with {heaviest.messages:,} messages, {share} of all. With any weights its queue gets at"
            f" least {_times(over_fair.least)} times its fair share. A new queue or other weights only take other keys"
            " away from that queue. To relieve it further, split the key in the publisher."
        )


def _advised(found: Findings, row: tuple[Any, ...]) -> Sequence[object]:
    """Return the table's cells for one queue of the advised ring."""
    which, advised = Destination(*row[:2]), row[12:14]
    return (_name(*which), row[7], *_cells(which, found.advice.load, found.got_advised, *advised))


def _moves(found: Findings) -> Figure:
    figure, axes = plots.new(1.6)
    shares = [100 * found.native.of_messages.value, 100 * found.moved.of_messages.value]
    bars = axes.barh([found.present.exchange_type, "this ring"], shares, color=[plots.QUIET, plots.BLUE], height=0.6)
    axes.bar_label(bars, labels=[percent(value / 100) for value in shares], padding=4)
    if found.published.messages.sample.unseen:
        moves = Estimate(*(100 * part for part in found.moved.of_messages))
        plots.intervals(axes, [1], [moves], across=True)
    axes.set_xlim(0, 109)
    axes.set_xlabel("% of the messages that move")
    return figure


def _loads(found: Findings) -> Figure:
    rows = busiest(found.rows(), lambda row: max(row[3], row[8]), lambda row: row[1], plots.MOST_BARS)
    figure, axes = plots.new(1.2 + 0.36 * len(rows))
    places = range(len(rows))
    axes.barh([n - 0.2 for n in places], [row[3] for row in rows], 0.38, color=plots.QUIET, label="now")
    axes.barh([n + 0.2 for n in places], [row[8] for row in rows], 0.38, color=plots.BLUE, label="proposed")
    if found.published.messages.sample.unseen:
        for down, intervals in ((-0.2, found.got_before), (0.2, found.got_after)):
            its = [intervals.get(Destination(*row[:2])) for row in rows]
            drawn = [(place + down, one) for place, one in zip(places, its, strict=True) if one is not None]
            plots.intervals(axes, [place for place, _ in drawn], [one for _, one in drawn], across=True)
    wanted = dict(zip(found.after.destinations, found.after.fair.tolist(), strict=True))
    fair = [found.published.messages.total * wanted.get(Destination(*row[:2]), 0.0) for row in rows]
    above, below = [n - 0.02 for n in places], [n + 0.42 for n in places]
    axes.vlines(fair, above, below, color=plots.INK, linewidth=2, label="its fair share")
    plots.names(axes, [row[1] for row in rows])
    plots.counts(axes.xaxis)
    axes.set_xlabel("messages")
    plots.legend(axes)
    return figure
