"""docs/performance.md tells the figures of the files of results, and shows their plots."""

import re

import pytest

from bench.amqp import COMPILED
from bench.plots import PLOTS
from bench.results import ROOT, Result, newest

DOCUMENT = ROOT / "docs" / "performance.md"
LINK = re.compile(r"\[[^]]*\]\(([^)]*)\)")
BLOCKS = [block for block in re.split(r"\n(?=\n|- |\|)", DOCUMENT.read_text()) if "bench/results/" in block]
"""The rows, items and paragraphs that name files of results."""


@pytest.mark.parametrize("block", BLOCKS)
def test_each_figure_is_in_a_file_that_is_named_beside_it(block: str) -> None:
    told = "".join((DOCUMENT.parent / link).read_text() for link in LINK.findall(block) if "bench/results/" in link)
    numbers = re.findall(r"\d[\d.,]*\d", LINK.sub("", block))  # of two digits at least: queues may be "8"
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", told)]
    assert not missing


def test_the_page_is_short_and_shows_every_plot_but_the_start_pages() -> None:
    text = DOCUMENT.read_text()
    assert len(text.splitlines()) < 135
    assert set(re.findall(r"\(images/([\w-]+)\.svg\)", text)) == set(PLOTS) - {"keys-that-move"}
    assert len(BLOCKS) > 10


@pytest.mark.parametrize(
    ("part", "head", "scene"), [("queues", "queues", "2,000"), ("weights", "weights, in turn", "10,000")]
)
def test_the_readmes_ratios_are_the_measured_ones(part: str, head: str, scene: str) -> None:
    ratio = Result(newest(part)).table(head).number([scene, COMPILED], "÷ native")
    assert f" {ratio:.0f} times as many" in (ROOT / "README.md").read_text()
