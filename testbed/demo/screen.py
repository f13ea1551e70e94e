"""The screen of the demo: lines, bars with the time left, and a table that changes; few lines without a terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

LINES = 2
"""The most lines that stand for a bar where there is no terminal."""

WIDEST = 100
"""Columns that the demo uses at most."""

Advance = Callable[[int], None]
"""A function that says how much is done in all."""


def say(text: str) -> None:
    """Print one line on what happens now."""
    print(text, flush=True)


@contextmanager
def bar(what: str, total: int) -> Iterator[Advance]:
    """Show how far something is: a bar with its total and the time left, or at most two lines where no terminal is."""
    if not sys.stdout.isatty():
        yield _lines(what, total)
        return
    columns = TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn()
    times = TextColumn("after"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Progress(*columns, *times, console=_console()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=min(done, total))


def _lines(what: str, total: int) -> Advance:
    told = 0

    def advance(done: int) -> None:
        nonlocal told
        if (parts := LINES * min(done, total) // total) > told:
            told = parts
            say(f"  {what}: {min(done, total):,} of {total:,}")

    return advance


class Rows:
    """A table that grows by a row at a time; in a terminal its last row changes until it is done."""

    def __init__(self, columns: Sequence[str], live: Live | None) -> None:
        """Take the titles of the columns; without `live` each row is printed once it is done."""
        self._columns, self._live = columns, live
        self._done: list[Sequence[str]] = []

    def now(self, row: Sequence[str]) -> None:
        """Show what the last row is at the moment."""
        if self._live is not None:
            self._live.update(self._table(row), refresh=True)

    def done(self, row: Sequence[str]) -> None:
        """Show a row as it stays."""
        self._done.append(row)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            return
        if len(self._done) == 1:
            say(_line(self._columns))
        say(_line(row))

    def _table(self, *last: Sequence[str]) -> Table:
        table = Table(*self._columns, box=None, pad_edge=True)
        for row in (*self._done, *last):
            table.add_row(*row)
        return table


@contextmanager
def rows(columns: Sequence[str]) -> Iterator[Rows]:
    """Give a table to fill."""
    if not sys.stdout.isatty():
        yield Rows(columns, None)
        return
    with Live(console=_console(), auto_refresh=False) as live:
        yield Rows(columns, live)


def _line(cells: Sequence[str]) -> str:
    first, *others = cells
    return f"  {first:<26}" + "".join(f"{cell:<14}" for cell in others).rstrip()


def _console() -> Console:
    found = Console(highlight=False)
    found.width = min(found.width, WIDEST)
    return found
