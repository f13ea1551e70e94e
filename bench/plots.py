"""The plots of the documents, drawn from the files of results: the same results give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from bench.amqp import COMPILED, CONSISTENT, MODULUS, RATES, RELAYED, STRAIGHT
from bench.contenders import CONNECTIONS, DIRECT, JSON, MANAGEMENT, ONE_BY_ONE, SINGLE
from bench.keys import RING
from bench.results import ROOT, Result, newest
from bench.rounds import Spread
from bench.tables import number

mpl.use("svg")
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = ROOT / "docs" / "images"

INK, QUIET, PAPER = "#1b1f24", "#8b96a1", "#ffffff"
"""The colours of text, of what is only for comparison, and of the ground, which makes a plot readable on any page."""
BLUE, ORANGE = "#2a78d6", "#d97706"
"""The colours of ringproxy and of the exchange types of RabbitMQ."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ringproxy",
    "figure.facecolor": PAPER,
    "font.size": 11,
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}

_NAMES = {
    STRAIGHT: "straight to the queues",
    CONSISTENT: "x-consistent-hash",
    MODULUS: "x-modulus-hash",
    RELAYED: "HAProxy",
    COMPILED: "ringproxy",
    RING: "ringproxy",
}
"""The names of contenders in plots."""

_COLOURS = {CONSISTENT: ORANGE, MODULUS: ORANGE, COMPILED: BLUE, RING: BLUE}


def draw(results: Path, folder: Path) -> None:
    """Draw every plot from a folder of results into another folder."""
    folder.mkdir(exist_ok=True)
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever this machine's, or another module's, settings are
        mpl.rcParams.update(_STYLE)
        for name, (plot, parts) in PLOTS.items():
            paths = [newest(part, results) for part in parts]
            figure = plot(*map(Result, paths))
            releases = dict.fromkeys(path.stem.rpartition("-")[2] for path in paths)
            figure.text(0.99, 0.015, f"RabbitMQ {', '.join(releases)}", ha="right", fontsize=8, color=QUIET)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def keys_that_move(keys: Result) -> Figure:
    """Draw the share of the keys that change their queue when one of ten queues is removed, and when one is added."""
    table = keys.table("keys that move")
    ways = table.column(0)
    figure = _figure(2.9)
    removed, added = figure.subplots(1, 2, sharey=True)
    for axes, title, head, fewest in (
        (removed, "Remove 1 of 10 queues", table.heads[1], 100 / 10),
        (added, "Add 1 queue to 10", "add 1", 100 / 11),
    ):
        axes.set_title(title)
        shares = [table.number([way], head) for way in ways]
        axes.barh([_NAMES[way] for way in ways], shares, color=[_colour(way) for way in ways], height=0.6)
        axes.axvline(fewest, color=INK, linestyle=":", linewidth=1)
        for at, (way, share) in enumerate(zip(ways, shares, strict=True)):
            label = f"{share:.0f}%"
            if head != "add 1" and (spread := table.spread([way], head)).most > 1.5 * share:
                label += f" on average,\n{spread.least:.0f}% to {spread.most:.0f}%"
            axes.text(share + 2, at, label, va="center", fontweight="bold", color=_colour(way))
        axes.set_xlim(0, 115)
        axes.set_xticks([0, 10, 50, 100], ["0", "10%", "50%", "100%"])
        axes.tick_params(length=0)
    removed.invert_yaxis()
    removed.set_xlabel("keys that change their queue")
    added.set_xlabel("dotted: as few as can be")
    return figure


def amqp_throughput(amqp: Result) -> Figure:
    """Draw the rate of each way of a publish by AMQP beside that of a publisher straight to the queues."""
    table = amqp.table("AMQP at full rate")
    ways = [way for way in (RELAYED, COMPILED, MODULUS, CONSISTENT) if table.has(way)]
    figure = _figure(2.9)
    axes = figure.subplots()
    for at, way in enumerate(ways):
        ratio = table.spread([way], "÷ straight")
        axes.barh(at, ratio.median, color=_colour(way), height=0.6)
        axes.plot([ratio.least, ratio.most], [at, at], color=INK, linewidth=1)
        axes.text(0.01, at, f"{ratio.median:.2f}", va="center", fontweight="bold", color=PAPER)
    axes.axvline(1, color=INK, linestyle=":", linewidth=1)
    axes.set_yticks(range(len(ways)), [_NAMES[way] for way in ways])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xlim(0)
    axes.set_xlabel("messages/s ÷ messages/s of a publisher straight to the queues (dotted)\nline: least to most")
    return figure


def queues_and_weights(queues: Result, weights: Result) -> Figure:
    """Draw the rates over the number of queues, and over their weight, on axes of the same scale."""
    figure = _figure(3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, result, head, title in (
        (panels[0], queues, "queues", "queues of weight 1"),
        (panels[1], weights, "weights, in turn", "weight of each of 8 queues"),
    ):
        table = result.table(head)
        scenes = [scene for scene in table.column(0) if ", " not in scene]
        for way in (STRAIGHT, COMPILED, CONSISTENT):
            rates = [table.spread([scene, way], "messages/s") for scene in scenes]
            _line(axes, [number(scene) for scene in scenes], rates, way)
        axes.set_xscale("log")
        axes.set_xticks([number(scene) for scene in scenes], scenes)
        axes.minorticks_off()
        axes.set_xlabel(title)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("messages/s")
    panels[0].yaxis.set_major_formatter("{x:,.0f}")
    panels[0].legend(frameon=False, loc="lower left")
    return figure


def confirm_latency(amqp: Result) -> Figure:
    """Draw the median and the 99th percentile of a confirm's time at two rates, by way of the publish."""
    figure = _figure(3.2)
    panels = figure.subplots(1, len(RATES), sharey=True)
    for axes, rate in zip(panels, RATES, strict=True):
        table = amqp.table(f"confirms at {rate:,} messages/s")
        ways = [way for way in (STRAIGHT, RELAYED, COMPILED, MODULUS, CONSISTENT) if table.has(way)]
        for at, way in enumerate(ways):
            p50, p99 = (table.spread([way], f"{name}, ms") for name in ("p50", "p99"))
            axes.plot([p50.median, p99.median], [at, at], color=QUIET, linewidth=1, zorder=1)
            axes.scatter(p50.median, at, color=_colour(way), s=60)
            axes.scatter(p99.median, at, color=_colour(way), s=60, marker="|")
            axes.text(p99.median * 1.3, at, f"{p50.median:.2f}, {p99.median:.1f}", va="center", fontsize=9)
        axes.axvline(table.spread([STRAIGHT], "p50, ms").median, color=INK, linestyle=":", linewidth=1)
        axes.set_title(f"{rate:,} messages/s")
        axes.set_xlabel("ms until the confirm; dot p50, tick p99")
        axes.set_xscale("log")
        axes.set_xlim(0.1, 100)
        axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axes.minorticks_off()
        axes.set_yticks(range(len(ways)), [_NAMES[way] for way in ways])
        axes.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    return figure


def http_throughput(http: Result) -> Figure:
    """Draw the rates of publishes by HTTP, of one message a request and of many, beside AMQP and the management API."""
    table = http.table("messages/s", 1)
    shown = {
        DIRECT: "AMQP, straight to the queues",
        JSON: "ringproxy, batches of 500",
        ONE_BY_ONE: f"AMQP, {CONNECTIONS} messages under way",
        SINGLE: f"ringproxy, {CONNECTIONS} connections",
        MANAGEMENT: f"management API, {CONNECTIONS} connections",
    }
    figure = _figure(2.9)
    axes = figure.subplots()
    for at, (way, name) in enumerate(shown.items()):
        rate = table.spread([way], "messages/s")
        axes.barh(at, rate.median, color=BLUE if "ringproxy" in name else QUIET, height=0.6)
        axes.plot([rate.least, rate.most], [at, at], color=INK, linewidth=1)
        axes.text(rate.most * 1.08, at, f"{rate.median:,.0f}", va="center", fontweight="bold")
    axes.set_yticks(range(len(shown)), shown.values())
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(100, 200_000)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("persistent messages/s, confirmed; line: least to most")
    return figure


def sessions(result: Result) -> Figure:
    """Draw the rates of many sessions that publish at once, straight to the broker and through the sidecar."""
    table = result.table("sessions")
    counts = table.column(0)
    figure = _figure(3)
    axes = figure.subplots()
    for way in (STRAIGHT, COMPILED):
        _line(axes, [number(count) for count in counts], [table.spread([c, way], "messages/s") for c in counts], way)
    axes.set_xscale("log")
    axes.set_xticks([number(count) for count in counts], counts)
    axes.minorticks_off()
    axes.set_ylim(0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("sessions that publish at once")
    axes.set_ylabel("messages/s of all")
    axes.legend(frameon=False, loc="lower left")
    return figure


def _figure(height: float) -> Figure:
    """Return an empty figure of this height in inches, with room at its lower edge for the broker's release."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, rect=(0, 0.05, 1, 0.95))
    return Figure(figsize=(8, height), layout=layout)


def _line(axes: "Axes", at: Sequence[float], rates: Sequence[Spread], way: str) -> None:
    """Draw the medians of a way as a line, in a band from the least to the most."""
    axes.plot(at, [rate.median for rate in rates], marker="o", color=_colour(way), label=_NAMES[way])
    axes.fill_between(
        at, [rate.least for rate in rates], [rate.most for rate in rates], color=_colour(way), alpha=0.15, linewidth=0
    )


def _colour(way: str) -> str:
    return _COLOURS.get(way, QUIET)


Plot = Callable[..., Figure]

PLOTS: Mapping[str, tuple[Plot, Sequence[str]]] = {
    "keys-that-move": (keys_that_move, ["keys"]),
    "amqp-throughput": (amqp_throughput, ["amqp"]),
    "queues-and-weights": (queues_and_weights, ["queues", "weights"]),
    "sessions": (sessions, ["sessions"]),
    "confirm-latency": (confirm_latency, ["amqp"]),
    "http-throughput": (http_throughput, ["http"]),
}
"""The plots by the name of their file: how they are drawn, and the parts whose results they show."""
