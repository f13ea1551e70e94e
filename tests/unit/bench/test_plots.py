"""The plots in the documents are those that the files of results draw."""

import re
from pathlib import Path

import pytest

from bench.plots import FOLDER, PLOTS, draw
from bench.results import FOLDER as RESULTS


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    draw(RESULTS, folder)
    return folder


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_the_one_that_the_results_draw(drawn: Path, name: str) -> None:
    stored = FOLDER / f"{name}.svg"
    assert stored.read_bytes() == (drawn / stored.name).read_bytes(), "draw it again: .venv/bin/python -m bench plots"


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_small_and_has_text_that_can_be_searched(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text()
    assert len(text) < 40_000
    assert re.search(">ringproxy.*</text>", text)
