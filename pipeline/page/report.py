"""One HTML file of a verdict, sentences, tables and plots, with all in it: it opens without a network."""

import html
import io
import os
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.findings import KINDS, Finding
from pipeline.page import plots
from pipeline.page.about import About
from pipeline.page.formats import Number, count, estimate, shortened

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


def grade(findings: Iterable[Finding]) -> Grade:
    """Return how these findings are to be taken: the worst of their kinds counts."""
    kinds = [KINDS[finding.kind] for finding in findings]
    if any(kind.is_bad for kind in kinds):
        return Grade.BAD
    return Grade.LOOK if kinds else Grade.GOOD


class Report:
    """The page on which a job tells people what it has found."""

    def __init__(self, title: str, grade: Grade, lead: str, about: About) -> None:
        """Begin a page with its head.

        `lead` is the answer in a sentence or two, which stands under the grade at the top. `about` says what the page
        is of, such as the journal, its period and the parameters: `pipeline.page.about` makes it.
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

        A cell is text, or a number: an int is written as a count, a float as an estimate, and what `page.formats`
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


STYLE = """
:root {
  color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --paper: #fff; --line: #d0d7de; --stripe: #f6f8fa;
  --good: #1a7f37; --good-paper: #e6f4ea; --look: #8a5a00; --look-paper: #fff6d6; --bad: #b3261e; --bad-paper: #fdeceb;
  --on-colour: #fff
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8ea; --quiet: #a4acb4; --paper: #14171a; --line: #3a4046; --stripe: #1c2024;
    --good: #56d364; --good-paper: #12261a; --look: #e3b341; --look-paper: #2a2312;
    --bad: #ff7b72; --bad-paper: #331618; --on-colour: #14171a
  }
}
* { box-sizing: border-box }
body {
  font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere
}
p { max-width: 52rem } h1 { font-size: 1.6rem; margin: 0 0 1rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem }
.verdict { border-left: .4rem solid; border-radius: .3rem; padding: .8rem 1rem; font-size: 1.1rem }
.verdict p { margin: .4rem 0 0 }
.verdict strong { border-radius: 1rem; padding: .1rem .8rem; color: var(--on-colour); white-space: nowrap }
.good { border-color: var(--good); background: var(--good-paper) } .good strong { background: var(--good) }
.look { border-color: var(--look); background: var(--look-paper) } .look strong { background: var(--look) }
.bad { border-color: var(--bad); background: var(--bad-paper) } .bad strong { background: var(--bad) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0 1.5rem }
dt { color: var(--quiet) } dd { margin: 0 } dd span { display: inline-block }
.box { overflow-x: auto; margin: 1rem 0 }
table { overflow-wrap: normal; border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th { vertical-align: bottom } td { white-space: nowrap }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 16rem } summary { cursor: pointer }
tr:nth-child(even) td { background: var(--stripe) }
td.number, th.number { text-align: right }
figure { margin: 1rem 0 } figcaption { color: var(--quiet); font-size: .9rem }
svg { display: block; max-width: 100%; min-width: 34rem; height: auto }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .5rem } }
"""
