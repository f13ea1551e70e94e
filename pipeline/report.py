"""One HTML file of headings, sentences, tables and plots, with all in it: it opens without a network."""

import html
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("svg")
# Names are clients': a queue's may have a dollar sign.
mpl.rcParams["text.parse_math"] = False
mpl.rcParams["date.converter"] = "concise"

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #d8dee4; text-align: left }
td.number, th.number { text-align: right }
figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
.lead { font-size: 1.1rem }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #e6e8ea }
  th, td { border-color: #3a4046 }
  figure { background: #fff; color: #1b1f24; padding: .5rem }
}
"""


class Report:
    """What a job has found, for people."""

    def __init__(self, title: str, lead: str) -> None:
        """`lead` is the answer in a sentence or two."""
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="lead">{html.escape(lead)}</p>']

    def heading(self, text: str) -> None:
        """Begins a part."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table; whole numbers and shares stand to the right."""
        body = [[_cell("td", value) for value in row] for row in rows]
        numeric = [bool(body) and all("number" in row[n] for row in body) for n in range(len(columns))]
        head = [_cell("th", name, right) for name, right in zip(columns, numeric, strict=True)]
        lines = "".join(f"<tr>{''.join(row)}</tr>" for row in [head, *body])
        self._parts.append(f"<table>{lines}</table>")

    def figure(self, figure: "Figure", caption: str) -> None:
        """A plot, as vectors; the caption is what a reader without it would be told."""
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
        svg = drawn.getvalue()
        svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}"', 1)
        self._parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def html(self) -> str:
        """The file's text."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
            f"<style>{_STYLE}</style></head><body>{''.join(self._parts)}</body></html>\n"
        )

    def write(self, path: Path) -> None:
        """Writes the file on this machine, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(self.html(), encoding="utf-8")
        unfinished.replace(path)


def _cell(tag: str, value: object, right: bool = False) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = f"{value:,}" if isinstance(value, int) and number else f"{value:,.4g}" if number else str(value)
    kind = ' class="number"' if number or right else ""
    return f"<{tag}{kind}>{html.escape(shown)}</{tag}>"
