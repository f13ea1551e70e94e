"""The report of `skew`."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pipeline import plots
from pipeline.about import About
from pipeline.formats import count, percent
from pipeline.gaps import Missing
from pipeline.names import natural
from pipeline.report import Grade, Report
from pipeline.skew import measures, words
from pipeline.skew.findings import Findings, HotKey

_MOST_KEYS = 50


def report(every: Sequence[Findings], missing: Missing, about: About) -> Report:
    """The HTML file's content; `missing` says how many records are not in the journal, `about` is its head."""
    lead = " ".join(f"{found.scope.exchange}: {words.of_load(found)} {words.of_weights(found)}" for found in every[:3])
    made = Report("Skew", _grade(every, missing), lead or "The journal has no records.", about)
    made.text(words.of_missing(missing))
    for found in every:
        made.heading(f"Exchange {found.name}: {found.messages:,} records")
        for text in (words.of_ring(found), words.of_keys(found), words.of_load(found), words.of_weights(found)):
            made.text(text)
        for text in words.caveats(found):
            made.text(text)
        made.figure(_shares(found), "Each destination's keys and messages next to what its weight promises")
        made.figure(_lorenz(found), "How messages are spread over keys")
        made.table(
            [
                "slot" if found.by_slot else "key",
                "destination",
                "messages",
                "share",
                "fair share of its destination",
                "",
            ],
            [_row(found, key) for key in found.hot[:_MOST_KEYS]],
        )
    return made


def _grade(every: Sequence[Findings], missing: Missing) -> Grade:
    if any(found.unfixable for found in every):
        return Grade.BAD
    return Grade.LOOK if missing.records or any(found.max_over_mean > words.EVEN for found in every) else Grade.GOOD


def _row(found: Findings, key: HotKey) -> Sequence[object]:
    verdict = "no weight can fix it" if found.outweighs(key) else ""
    fair = found.fair_share(key.owner)
    return str(key), str(key.owner), count(key.messages), percent(found.share(key)), percent(fair), verdict


def _shares(found: Findings) -> Figure:
    """Three bars a destination, as parts of its fair share; the hottest key's part of its messages is marked."""
    shown = sorted(found.loads, key=lambda load: -load.messages / load.weight)[: plots.MOST_BARS]
    shown.sort(key=lambda load: natural(load.destination.name))
    fair = [found.fair_share(load.destination) for load in shown]
    keys = [load.keys / max(found.keys, 1) / share for load, share in zip(shown, fair, strict=True)]
    messages = [load.messages / found.messages / share for load, share in zip(shown, fair, strict=True)]
    hottest = []
    for load, share in zip(shown, fair, strict=True):
        own = [key.messages / found.messages for key in found.hot if key.owner == load.destination]
        hottest.append(max(own, default=0.0) / share)
    figure, axes = plots.new(0.8 + 0.42 * len(shown))
    places = range(len(shown))
    axes.barh([place - 0.2 for place in places], keys, 0.36, label="distinct " + _what(found), color=plots.QUIET)
    axes.barh([place + 0.2 for place in places], messages, 0.36, label="messages", color=plots.BLUE)
    axes.barh(
        [place + 0.2 for place in places], hottest, 0.36, label="of one hot " + _what(found)[:-1], color=plots.RED
    )
    axes.axvline(1, color=plots.INK, linewidth=0.8)
    plots.names(axes, [load.destination.name for load in shown])
    axes.set_xlabel("times what its weight promises")
    plots.legend(axes)
    return figure


def _lorenz(found: Findings) -> Figure:
    figure, axes = plots.new(3.2)
    axes.plot(*measures.lorenz(found.spread), label=f"these {_what(found)}, Gini {found.gini:.2f}")
    axes.plot([0, 1], [0, 1], color=plots.QUIET, linewidth=0.8, label="all alike")
    axes.set_xlabel(f"share of {_what(found)}, the coldest first")
    axes.set_ylabel("share of messages")
    plots.legend(axes)
    return figure


def _what(found: Findings) -> str:
    return "slots" if found.by_slot else "keys"
