"""The plots of the documents, drawn from the files of results: the same results give the same bytes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

from bench.amqp import COMPILED, CONSISTENT, MODULUS, RELAYED, STRAIGHT
from bench.keys import RING
from bench.results import ROOT, Result, newest

mpl.use("svg")
from matplotlib.figure import Figure

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
    with mpl.rc_context(_STYLE):
        for name, (part, plot) in PLOTS.items():
            figure = plot(Result(newest(part, results)))
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def keys_that_move(result: Result) -> Figure:
    """Draw the share of the keys that change their queue when one of ten queues is removed, and when one is added."""
    table = result.table("keys that move")
    ways = table.column(0)
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    removed, added = figure.subplots(1, 2, sharey=True)
    for axes, title, head in ((removed, "Remove 1 of 10 queues", table.heads[1]), (added, "Add 1 queue", "add 1")):
        axes.set_title(title)
        shares = [table.number([way], head) for way in ways]
        axes.barh([_NAMES[way] for way in ways], shares, color=[_COLOURS[way] for way in ways], height=0.6)
        axes.axvline(10, color=INK, linestyle=":", linewidth=1)
        for at, (way, share) in enumerate(zip(ways, shares, strict=True)):
            label = f"{share:.0f}%"
            if head != "add 1" and (spread := table.spread([way], head)).most > 1.5 * share:
                label += f" on average,\n{spread.least:.0f}% to {spread.most:.0f}%"
            axes.text(share + 2, at, label, va="center", fontweight="bold", color=_COLOURS[way])
        axes.set_xlim(0, 115)
        axes.set_xticks([0, 10, 50, 100], ["0", "10%", "50%", "100%"])
        axes.tick_params(length=0)
    removed.invert_yaxis()
    figure.supxlabel("keys that change their queue; dotted: as few as can be", fontsize=11)
    return figure


PLOTS: Mapping[str, tuple[str, Callable[[Result], Figure]]] = {
    "keys-that-move": ("keys", keys_that_move),
}
"""The plots by the name of their file: the part whose results they show, and how they are drawn."""
