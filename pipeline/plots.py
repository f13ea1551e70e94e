"""Plots of reports: their common size, colours and legend, and axes that write numbers as the tables of a report do."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from pipeline.formats import duration
from pipeline.names import shortened
from pipeline.sampling import Estimate

mpl.use("svg")
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

INK = "#1b1f24"
"""The colour of text and lines, in place of which a page puts its own, light or dark."""

QUIET, BLUE, RED = "#8b96a1", "#2a78d6", "#d62728"
"""Colours that can be seen on a light and on a dark page: what is only for comparison, what is told, what is wrong."""

MOST_BARS = 30
"""Destinations that a plot shows."""

WIDTH = 7.0
"""Inches: a wide page has room for more, but a phone could not show it."""

_LEGEND = 100
"""Characters of a line of the legend, were its axes as wide as the figure."""

# Names are clients': a queue's may have a dollar sign.
mpl.rcParams["text.parse_math"] = False
mpl.rcParams |= {"text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": INK}
mpl.rcParams |= {"axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False}


def new(height: float) -> tuple[Figure, "Axes"]:
    """Return an empty figure so many inches high, and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots()


def legend(axes: "Axes", handles: Sequence[Any] = (), names: Sequence[str] = ()) -> None:
    """Set the legend above the plot, where it covers nothing and a narrow page has room for it.

    Of labels that it finds by itself it leaves out those that begin with "_"; those that are handed over are all shown.
    """
    if not handles:
        handles, names = axes.get_legend_handles_labels()
    told = [shortened(name) for name in names]
    room = _LEGEND * axes.get_position().width
    columns = max(1, min(len(told), int(room / (max(map(len, told)) + 6))))
    axes.legend(handles, told, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False)


def intervals(axes: "Axes", places: Sequence[Any], estimates: Sequence[Estimate], *, across: bool = False) -> None:
    """Draw the interval of each estimate at its place, on bars that go up, or `across` the page.

    An interval without end reaches beyond the plot, whose axis it does not stretch.
    """
    values = [one.value for one in estimates]
    most = 2 * max((one.high for one in estimates if math.isfinite(one.high)), default=1.0)
    ends = [[one.value - one.low for one in estimates], [min(one.high, most) - one.value for one in estimates]]
    x, y = (values, places) if across else (places, values)
    how: Any = {"xerr" if across else "yerr": ends}
    axes.errorbar(x, y, **how, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)


def counts(axis: "Axis") -> None:
    """Write counts along an axis, such as 200, 15k or 1.5M, at whole numbers only."""
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(EngFormatter(sep=""))


def durations(axis: "Axis", *, log: bool = False) -> None:
    """Write times, in microseconds, along an axis with their units."""
    if log:
        axis.set_major_locator(LogLocator(10, subs=(1.0, 3.0) if _decades(axis) < 2 else (1.0,), numticks=5))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda micros, _: duration(micros)))


def times(axes: "Axes", first: datetime, until: datetime) -> None:
    """Write the time of day, UTC, along an x axis that ends where the data does, be that one short window."""
    axes.set_xlim(first, until)  # type: ignore[arg-type]
    locator = AutoDateLocator(maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("UTC")


def names(axes: "Axes", told: Sequence[str]) -> None:
    """Write names along a y axis, one to each whole number from 0 on, the first one at the top."""
    axes.set_yticks(range(len(told)), [shortened(name) for name in told])
    axes.set_ylim(len(told) - 0.4, -0.6)


def _decades(axis: "Axis") -> float:
    low, high = axis.get_view_interval()
    return math.log10(high / low)
