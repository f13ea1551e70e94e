"""The parts of the report: goals, tables, and charts of bars."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from bench.rounds import Spread

T = TypeVar("T")

_WIDTH = 40
"""The length of the longest bar, in characters."""


class Goal(NamedTuple):
    """A goal and what was reached."""

    title: str
    wanted: str
    reached: str
    spread: str
    met: bool


def goal_table(goals: Iterable[Goal]) -> str:
    """Return a table of goals, with those that are missed in bold."""
    rows = [[g.title, g.wanted, g.reached, g.spread, "yes" if g.met else "**no**"] for g in goals]
    return table(["", "goal", "reached", "least to most", "met"], rows)


def at_least(title: str, least: float, reached: Spread) -> Goal:
    """Return the goal that the median is at least this figure."""
    return Goal(title, f"at least {least:g}", *shown(reached, ".2f"), reached.median >= least)


def at_most(title: str, most: float, reached: Spread) -> Goal:
    """Return the goal that the median is at most this figure."""
    return Goal(title, f"at most {most:g}", *shown(reached, ".2f"), reached.median <= most)


def shown(spread: Spread, form: str) -> tuple[str, str]:
    """Return the median, and the range, in this format."""
    return f"{spread.median:{form}}", f"{spread.least:{form}} to {spread.most:{form}}"


def median(figures: Sequence[float | None], form: str = ".1f") -> str:
    """Of those that are known; nothing where none is."""
    known = [figure for figure in figures if figure is not None]
    return f"{Spread.of(known).median:{form}}" if known else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return re.sub(r" +\|", " |", "\n".join("| " + " | ".join(line) + " |" for line in lines))


def bars(title: str, spreads: Mapping[str, Spread], form: str) -> str:
    """A chart: a bar's dark part ends at the least figure, its light part at the most; the number is the median."""
    longest = max(spread.most for spread in spreads.values())
    margin = max(map(len, spreads))
    lines = [title]
    for name, spread in spreads.items():
        least, most = (round(figure / longest * _WIDTH) for figure in (spread.least, spread.most))
        lines.append(f"{name:{margin}}  {'█' * least}{'░' * (most - least)} {spread.median:{form}}")
    return "\n".join(["```text", *lines, "```"])


def chart(title: str, rounds: Mapping[str, Sequence[T]], figure: Callable[[T], float | None], form: str) -> str:
    """Bars of one figure of all rounds, for those of which it is known; it is for one at least."""
    found = {name: [known for one in each if (known := figure(one)) is not None] for name, each in rounds.items()}
    return bars(title, {name: Spread.of(figures) for name, figures in found.items() if figures}, form)
