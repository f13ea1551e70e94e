"""Goals and tables as Markdown, and such tables read again."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.rounds import Spread


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
    """Return the median of the figures that are not None, as text; an empty text if all are None."""
    known = [figure for figure in figures if figure is not None]
    return f"{Spread.of(known).median:{form}}" if known else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return re.sub(r" +\|", " |", "\n".join("| " + " | ".join(line) + " |" for line in lines))


class Table(NamedTuple):
    """A table as it was read: the heads of its columns, and the cells of its rows."""

    heads: list[str]
    rows: list[list[str]]

    def spread(self, row: Sequence[str], head: str) -> Spread:
        """Return the median in a column and the range in the next one, of the row that begins with these cells."""
        at = self.heads.index(head)
        cells = self._row(row)
        least, most = cells[at + 1].split(" to ")
        return Spread(number(cells[at]), number(least), number(most))

    def number(self, row: Sequence[str], head: str) -> float:
        """Return the number at the beginning of a cell, of the row that begins with these cells."""
        return number(self._row(row)[self.heads.index(head)])

    def has(self, title: str) -> bool:
        """Return whether a row with numbers begins with this cell."""
        return any(row[0] == title and row[1][-1:].isdigit() for row in self.rows)

    def column(self, at: int) -> list[str]:
        """Return the different cells of a column, in their order."""
        return list(dict.fromkeys(row[at] for row in self.rows))

    def _row(self, begin: Sequence[str]) -> list[str]:
        return next(row for row in self.rows if row[: len(begin)] == list(begin))


def tables(text: str) -> list[Table]:
    """Return the tables of a Markdown text, in their order; a cell is what stands between two bars."""
    found = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.M):
        heads, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines())
        found.append(Table(heads, rows))
    return found


def number(cell: str) -> float:
    """Return the number that a cell begins with, such as 1234.5 of "1,234.5 (1,200 to 1,300)" and 9.7 of "9.7%"."""
    return float(cell.split()[0].replace(",", "").rstrip("%"))
