"""One HTML file of a verdict, sentences, tables and plots, with all in it: it opens without a network."""

import html
import io
import os
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import plots
from pipeline.about import About
from pipeline.formats import Number, count, estimate
from pipeline.names import shortened
from pipeline.style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONG = 40
"""Characters from which on the text of a table's cell is broken into lines."""


_LONGEST = 120
"""Characters from which on only the beginning and the end of a cell's text are shown until a reader opens it."""


class Grade(Enum):
    """How good or bad a report's findings are: the CSS class, the sign and the words that the page shows."""

    GOOD = ("good", "✓", "Good")
    LOOK = ("look", "!", "To look at")
    BAD = ("bad", "✕", "Bad")


class Report:
    """The page on which a job tells people what it has found."""

    def __init__(self, title: str, grade: Grade, lead: str, about: About) -> None:
        """Begin a page with its head.

        `lead` is the answer in a sentence or two, which stands under the grade at the top. `about` says what the page
        is of, such as the journal, its period and the parameters: `pipeline.about` makes it.
        """
        self._title = title
        style, sign, words = grade.value
        self._parts = [
            f'<h1>{html.escape(title)}</h1><div class="verdict {style}"><strong>{sign} {words}</strong>'
            f'<p class="lead">{html.escape(lead)}</p></div>'
        ]
        if about:
            told = (f"<dt>{html.escape(name)}</dt><dd>{_told(value)}</dd>" for name, value in about.items())
            self._parts.append(f"<dl>{''.join(told)}</dl>")

    def heading(self, text: str) -> None:
        """Begin a part of the page."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table, in a box of its own that scrolls where the screen is narrower.

        A cell is text, or a number: an int is written as a count, a float as an estimate, and what `pipeline.formats`
        has written as it is. None is a dash. Columns of numbers stand to the right. A text of more than _LONGEST
        characters is cut, and can be opened.
        """
        listed = [list(row) for row in rows]
        numeric = [
            any(_is_number(row[n]) for row in listed) and all(row[n] is None or _is_number(row[n]) for row in listed)
            for n in range(len(columns))
        ]
        lines = [[_cell("th", name, right) for name, right in zip(columns, numeric, strict=True)]]
        lines += [[_cell("td", value, right) for value, right in zip(row, numeric, strict=True)] for row in listed]
        body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
        self._parts.append(f'<div class="box" tabindex="0"><table>{body}</table></div>')

    def figure(self, figure: "Figure", caption: str) -> None:
        """Add a plot as vectors, in the page's colours; the caption is what a reader without it would be told."""
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
        svg = drawn.getvalue()
        svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
        svg = svg.replace(plots.INK, "currentColor")
        shown = f'<div class="box" tabindex="0">{svg}</div><figcaption>{html.escape(caption)}</figcaption>'
        self._parts.append(f"<figure>{shown}</figure>")

    def html(self) -> str:
        """Return the file's text."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self._title)}</title><style>{STYLE}</style></head>"
            f"<body>{''.join(self._parts)}</body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the file on this machine, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(self.html(), encoding="utf-8")
        unfinished.replace(path)


def _told(value: str | Sequence[str]) -> str:
    """Return one value, or several with commas, as HTML; none of several is broken where it fits into a line."""
    if isinstance(value, str):
        return html.escape(value)
    return ", ".join(f"<span>{html.escape(one)}</span>" for one in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Number) and not isinstance(value, bool)


def _cell(tag: str, value: object, right: bool) -> str:
    match value:
        case None:
            shown = "-"
        case bool():
            shown = "yes" if value else "no"
        case int():
            shown = count(value)
        case float():
            shown = estimate(value)
        case _:
            shown = str(value)
    style = "number" if right or _is_number(value) else "long" if tag == "td" and len(shown) > _LONG else ""
    named = f' class="{style}"' if style else ""
    return (
        f"<{tag}{named}>{_opened(shown) if style == 'long' and len(shown) > _LONGEST else html.escape(shown)}</{tag}>"
    )


def _opened(text: str) -> str:
    """Return a long text, such as a key of 4 kB, as HTML: its beginning and its end, and all of it when opened."""
    told = f"{html.escape(shortened(text))} ({count(len(text))} characters)"
    return f"<details><summary>{told}</summary>{html.escape(text)}</details>"
