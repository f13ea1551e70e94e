"""The report of `skew`."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pipeline.data.gaps import Missing
from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import busiest, count, estimate, interval, moment, p_value, percent
from pipeline.page.report import Report, grade
from pipeline.skew import measures, words
from pipeline.skew.findings import UNEVEN, Findings, HotKey
from pipeline.skew.verdict import judged
from pipeline.stats.sampling import Estimate

_MOST_KEYS = 50
"""The most keys of an exchange that the page lists; the Parquet table has all."""
_MOST_LOADS = 50
"""The most destinations of an exchange that the page lists; the Parquet table has all."""


def report(every: Sequence[Findings], missing: Missing, about: About, aside: Aside = NOTHING_ASIDE) -> Report:
    """Return the page, which has a part for each exchange, and in it a row for each of the exchange's rings.

    `every` has the findings of all exchanges and rings, `missing` says how many records are not in the journal,
    `about` is the page's head, and `aside` counts what landing could not read.
    """
    judgement = grade(judged(every, missing, aside))
    made = Report("Skew: which keys are hot, and is the load even?", judgement, words.of_all(every), about)
    exchanges = [found for found in every if found.scope.across]
    made.table(
        [
            "exchange",
            "rings",
            "records",
            "busiest queue",
            "its load, in fair shares",
            "share of the hottest key",
            "keys that no weight can fix",
            "keys that maybe no weight can fix",
        ],
        [_exchange(found) for found in exchanges],
    )
    made.text("A queue's fair share of the messages is its weight's share of all weights of the exchange.")
    made.text(words.of_missing(missing))
    for found in exchanges:
        rings = [one for one in every if not one.scope.across and _of(one) == _of(found)]
        _add(made, found, rings)
    return made


def _add(made: Report, found: Findings, rings: Sequence[Findings]) -> None:
    made.heading(f"What loads the queues of exchange {found.name}? {count(found.messages)} records")
    for text in (words.of_load(found), words.of_weights(found), *words.remedies(found), words.of_keys(found)):
        made.text(text)
    for text in words.caveats(found):
        made.text(text)
    hot = "estimated messages" if found.approximate else "messages"
    made.table(
        ["slot" if found.by_slot else "key", "queue", hot, "share", "fair share of its queue", "verdict"],
        [_row(found, key) for key in found.hot[:_MOST_KEYS]],
    )
    made.figure(_shares(found), "Each queue's keys and messages next to what its weight promises")
    made.table(
        ["queue", "weight", "fair share", "distinct " + _what(found), "messages", "share", "in fair shares"],
        [_load(found, n) for n in _busiest(found, _MOST_LOADS)],
    )
    made.figure(_lorenz(found), "How messages are spread over keys")
    for one in rings[:1] if len(rings) == 1 else [found]:
        made.text(words.of_ring(one))
    made.table(
        [
            "ring",
            "first record (UTC)",
            "last record (UTC)",
            "records",
            "is it even?",
            "busiest, in fair shares",
            "hottest key",
            "no weight can fix",
            "maybe",
        ],
        [_ring(one) for one in sorted(rings, key=lambda one: (one.scope.since, one.scope.ring))],
    )
    for text in words.of_uneven_rings(found, rings):
        made.text(text)


def _of(found: Findings) -> tuple[str, str]:
    return found.scope.vhost, found.scope.exchange


def _exchange(found: Findings) -> Sequence[object]:
    return (
        *(found.name, found.scope.rings, found.messages, found.busiest.destination.name),
        *(interval(*found.max_over_fair, estimate), interval(*found.top(1))),
        *(len(found.unfixable), len(found.maybe_unfixable)),
    )


def _ring(found: Findings) -> Sequence[object]:
    tested = found.chi_squared
    even = "too few keys" if tested is None else f"{'no' if tested.p < UNEVEN else 'yes'}, {p_value(tested.p)}"
    return (
        *(found.scope.ring, moment(found.scope.since), moment(found.scope.until), found.messages, even),
        *(interval(*found.max_over_fair, estimate), interval(*found.top(1))),
        *(len(found.unfixable), len(found.maybe_unfixable)),
    )


def _row(found: Findings, key: HotKey) -> Sequence[object]:
    told = ""
    if found.outweighs(key):
        told = "no weight can fix it"
    elif found.may_outweigh(key):
        told = "maybe no weight can fix it"
    share = interval(*found.share(key))
    return str(key), str(key.owner), count(key.messages), share, percent(key.fair), told


def _busiest(found: Findings, most: int) -> list[int]:
    """Return the indices of the busiest destinations for their weight, `most` at most, in the order of their names."""

    def over_fair(n: int) -> float:
        return float(found.shares.value[n] / found.loads[n].fair)

    return busiest(range(len(found.loads)), over_fair, lambda n: found.loads[n].destination.name, most)


def _load(found: Findings, n: int) -> Sequence[object]:
    """Return the table's cells for one destination."""
    load = found.loads[n]
    share = _share(found, n)
    over_fair = _in_fair_shares(share, load.fair)
    cells = (load.weight, percent(load.fair), load.keys, load.messages)
    return (str(load.destination), *cells, interval(*share), interval(*over_fair, estimate))


def _share(found: Findings, n: int) -> Estimate:
    return Estimate(*(float(part[n]) for part in found.shares))


def _in_fair_shares(share: Estimate, fair: float) -> Estimate:
    return Estimate(*(part / fair for part in share))


def _shares(found: Findings) -> Figure:
    """Three bars a destination, as parts of its fair share; the hottest key's part of its messages is marked."""
    order = _busiest(found, plots.MOST_BARS)
    shown = [found.loads[n] for n in order]
    counted = max(1, sum(load.keys for load in found.loads))
    keys = [load.keys / counted / load.fair for load in shown]
    messages = [found.shares.value[n] / found.loads[n].fair for n in order]
    hottest = []
    for load in shown:
        own = [found.share(key) for key in found.hot if key.owner == load.destination]
        hottest.append(_in_fair_shares(max(own, default=Estimate(0.0, 0.0, 0.0)), load.fair))
    figure, axes = plots.new(0.8 + 0.42 * len(shown))
    places = range(len(shown))
    upper, lower = [place - 0.2 for place in places], [place + 0.2 for place in places]
    axes.barh(upper, keys, 0.36, label="distinct " + _what(found), color=plots.QUIET)
    axes.barh(lower, messages, 0.36, label="messages", color=plots.BLUE)
    axes.barh(lower, [one.value for one in hottest], 0.36, label="of one hot " + _what(found)[:-1], color=plots.RED)
    if found.scope.least < 1:
        loads = [_in_fair_shares(_share(found, n), found.loads[n].fair) for n in order]
        plots.intervals(axes, lower, loads, across=True)
        # Beside the interval of all messages, of which the key's are a part.
        inside = [(place + 0.12, one) for place, one in zip(lower, hottest, strict=True) if one.value]
        plots.intervals(axes, [place for place, _ in inside], [one for _, one in inside], across=True)
    axes.axvline(1, color=plots.INK, linewidth=0.8)
    plots.names(axes, [load.destination.name for load in shown])
    axes.set_xlabel("fair shares (1 is what its weight promises)")
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
