"""The demo's look at a report, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pipeline.page.report import Grade, Report
from testbed.browser import running_browser
from testbed.pipeline_demo.pages import looked_at


@pytest.fixture(scope="module")
def browser() -> Iterator[int]:
    """Its DevTools port."""
    with running_browser() as port:
        yield port


def report(path: Path, *, rows: int = 3, plotted: bool = True) -> Path:
    made = Report("A title", Grade.GOOD, "What was found.", {"Journal": "/j"})
    made.table(["queue", "messages"], [(f"q{n}", n) for n in range(rows)])
    if plotted:
        figure = Figure()
        figure.subplots().bar(["a", "b"], [1, 2])
        made.figure(figure, "Two bars")
    made.write(path)
    return path


async def test_a_report_that_is_all_there(browser: int, tmp_path: Path) -> None:
    assert await looked_at(browser, report(tmp_path / "r.html")) == ("✓ Good: 1 plots, 1 tables of 3 rows", [])


async def test_a_report_may_be_one_without_plots(browser: int, tmp_path: Path) -> None:
    shown = await looked_at(browser, report(tmp_path / "r.html", plotted=False), plotted=False)
    assert shown == ("✓ Good: 0 plots, 1 tables of 3 rows", [])


@pytest.mark.parametrize(
    ("rows", "plotted", "why"),
    [(0, True, "tables that are not filled: "), (3, False, "plots that are not drawn: []")],
)
async def test_what_is_not_there_is_a_fault(browser: int, tmp_path: Path, rows: int, plotted: bool, why: str) -> None:
    path = report(tmp_path / "r.html", rows=rows, plotted=plotted)
    _, (fault,) = await looked_at(browser, path)
    assert fault.startswith(f"{path}: {why}")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<style>", "<style>figure { display: none } ", "plots that are not drawn: "),
        ("<style>", "<style>table { display: none } ", "tables that are not filled: "),
        ("<h1>", "<p>", "there is no heading"),
        ("<body>", '<body><img src="http://192.0.2.1/x.png">', "the page asks for http://192.0.2.1/x.png"),
        ("<body>", '<body><img src="missing.png">', "the page asks for file://"),
        ("<body>", '<body><p style="width: 376px">wide</p>', "17 pixels are beyond a screen of 375"),
        (
            "</style>",
            "@media (min-width: 1000px) { h1 { width: 1500px } }</style>",
            "240 pixels are beyond a screen of 1400",
        ),
        ("<td>q0</td>", "<td>1.949e+04</td>", "scientific notation: 1.949e+04"),
        ("<td>q0</td>", "<td>27.8% (1e-05 to 30%)</td>", "scientific notation: 27.8% (1e-05 to 30%)"),
        ("<!-- 1.00 -->", "<!-- 1e6 -->", "scientific notation: 1e6"),
        ("<strong>✓ Good</strong>", "", "its head tells no grade"),
        ("<dd>/j</dd>", "", "its head tells no grade, or not what it is of: '✓ Good', []"),
    ],
)
async def test_what_a_browser_does_not_show_is_a_fault(
    browser: int, tmp_path: Path, old: str, new: str, why: str
) -> None:
    path = report(tmp_path / "r.html")
    path.write_text(path.read_text().replace(old, new, 1))
    _, faults = await looked_at(browser, path)
    assert any(fault.startswith(f"{path}: {why}") for fault in faults), faults
