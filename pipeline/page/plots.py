"""Plots of reports: their common size, colours and legend, and axes that write numbers as the tables of a report do."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from pipeline.page.formats import duration, shortened
from pipeline.stats.sampling import Estimate

mpl.use("svg")
from matplotlib.axis import XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    Formatter,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

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

    A label that matplotlib finds by itself is left out if it begins with "_"; labels that are handed over are all
    shown.
    """
    if not handles:
        handles, names = axes.get_legend_handles_labels()
    told = [shortened(name) for name in names]
    room = _LEGEND * axes.get_position().width
    columns = max(1, min(len(told), int(room / (max(map(len, told)) + 6))))
    axes.legend(handles, told, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False)


def intervals(axes: "Axes", places: Sequence[Any], estimates: Sequence[Estimate], *, across: bool = False) -> None:
    """Draw the interval of each estimate, all of which have ends, at its place, on bars that go up, or `across`."""
    values = [one.value for one in estimates]
    ends = [[one.value - one.low for one in estimates], [one.high - one.value for one in estimates]]
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
        # Half a plot has room for three labels beside each other.
        most = 3 if isinstance(axis, XAxis) else 5
        axis.set_major_locator(LogLocator(10, subs=(1.0, 3.0) if _decades(axis) < 2 else (1.0,), numticks=most))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda micros, _: duration(micros)))


def times(axes: "Axes", first: datetime, until: datetime) -> None:
    """Write the time, UTC, along an x axis that ends where the data does, be that one short window."""
    axes.set_xlim(first, until)  # type: ignore[arg-type]
    axes.xaxis.set_major_locator(_Times(axes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_TimeLabels(axes))
    axes.set_xlabel(f"UTC, {first:%Y}" if first.year == until.year else f"UTC, {first:%Y} to {until:%Y}")


def by_window(axes: "Axes", points: Sequence[tuple[datetime, float]], width: timedelta, label: str) -> None:
    """Draw the figures of windows, given with their starts in order, in the middles of the windows.

    A line joins those of windows that follow each other, and no others: between them nothing is known.
    """
    times: list[datetime] = []
    values: list[float] = []
    for start, value in points:
        if times and start - times[-1] > width:
            times.append(times[-1] + width)
            values.append(math.nan)
        times.append(start)
        values.append(value)
    middles: Any = [time + width / 2 for time in times]
    axes.plot(middles, values, "o-", markersize=4, label=label)


_SECONDS = (1, 2, 5, 10, 15, 30)
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *_SECONDS,
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 4, 7, 14)),
)
"""The seconds between two ticks of time; above them come months."""

_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120)

_LABEL = 50.0
"""Points that the longest label of a time takes, such as "17:00:30" or "21 Nov", with a space beside it."""


def _step(axes: "Axes") -> tuple[int, int]:
    """Return the seconds, or else the months, between two ticks of an x axis of days since 1970, with room for labels.

    The other of the two is 0.
    """
    low, high = axes.get_xlim()
    points = axes.bbox.width / axes.get_figure(root=True).dpi * 72  # type: ignore[union-attr]
    least = (high - low) * _DAY * _LABEL / points
    for seconds in _STEPS:
        if seconds >= least:
            return seconds, 0
    return 0, next((n for n in _MONTHS if n * 28 * _DAY >= least), math.ceil(least / (366 * _DAY)) * 12)


class _Times(Locator):
    """Ticks at whole times of the clock or the calendar, UTC, as close to each other as their labels have room."""

    def __init__(self, axes: "Axes") -> None:
        self._axes = axes

    def __call__(self) -> list[float]:
        """Return the ticks, in days since 1970."""
        low, high = self._axes.get_xlim()
        seconds, months = _step(self._axes)
        if seconds:
            first, last = math.ceil(low * _DAY / seconds), math.floor(high * _DAY / seconds)
            return [n * seconds / _DAY for n in range(first, last + 1)]
        at, until = _moment(low), _moment(high)
        first, last = (12 * time.year + time.month - 1 for time in (at, until))
        starts = (datetime(n // 12, n % 12 + 1, 1, tzinfo=UTC) for n in range(first, last + 1) if n % months == 0)
        return [start.timestamp() / _DAY for start in starts if at <= start]


class _TimeLabels(Formatter):
    """The labels of `_Times`: times with the day under the first and each new one, days, or months with the year."""

    def __init__(self, axes: "Axes") -> None:
        self._axes = axes

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        seconds, _ = _step(self._axes)
        ticks = [_moment(value) for value in values]
        if seconds >= _DAY:
            return [f"{tick.day} {tick:%b}" for tick in ticks]
        if not seconds:
            return _under(ticks, "{0:%b}", "{0:%Y}")
        return _under(ticks, "{0:%H:%M}" if seconds >= _MINUTE else "{0:%H:%M:%S}", "{0.day} {0:%b}")


def _under(ticks: Sequence[datetime], form: str, below: str) -> list[str]:
    """Return labels, with a second line under the first one and each in which that line differs."""
    lines = [below.format(tick) for tick in ticks]
    return [
        form.format(tick) + (f"\n{line}" if n == 0 or line != lines[n - 1] else "")
        for n, (tick, line) in enumerate(zip(ticks, lines, strict=True))
    ]


def _moment(days: float) -> datetime:
    """Return the time that a place on an axis of days since 1970 stands for, to the second."""
    return datetime.fromtimestamp(round(days * _DAY), UTC)


def names(axes: "Axes", told: Sequence[str]) -> None:
    """Write names along a y axis, one to each whole number from 0 on, the first one at the top."""
    axes.set_yticks(range(len(told)), [shortened(name) for name in told])
    axes.set_ylim(len(told) - 0.4, -0.6)


def _decades(axis: "Axis") -> float:
    low, high = axis.get_view_interval()
    return math.log10(high / low)
