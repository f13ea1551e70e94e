"""docs/performance.md tells the figures of the files of results, and shows their plots."""

import re
from pathlib import Path

import pytest

from bench.amqp import COMPILED
from bench.plots import PLOTS
from bench.results import ROOT, Result, newest

DOCUMENT = ROOT / "docs" / "performance.md"
ROWS = re.findall(r"^\| (.*) \| \[[^]]*\]\((.*bench/results/.*)\) \|$", DOCUMENT.read_text(), flags=re.M)


@pytest.mark.parametrize(("cells", "link"), ROWS)
def test_each_figure_is_in_the_file_that_its_row_names(cells: str, link: str) -> None:
    _, *figures = cells.split(" | ")
    told = (DOCUMENT.parent / link).read_text()
    numbers = re.findall(r"[\d.,]*\d", " ".join(figures))
    assert numbers
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", told)]
    assert not missing, Path(link).name


def test_the_page_is_short_and_shows_every_plot() -> None:
    text = DOCUMENT.read_text()
    assert len(text.splitlines()) < 120
    assert set(re.findall(r"\(images/([\w-]+)\.svg\)", text)) == set(PLOTS)
    assert len(ROWS) > 10


@pytest.mark.parametrize(
    ("part", "head", "scene"), [("queues", "queues", "2,000"), ("weights", "weights, in turn", "10,000")]
)
def test_the_readmes_ratios_are_the_measured_ones(part: str, head: str, scene: str) -> None:
    ratio = Result(newest(part)).table(head).number([scene, COMPILED], "÷ native")
    assert f" {ratio:.0f} times as many" in (ROOT / "README.md").read_text()
