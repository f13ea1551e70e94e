"""The frame of every report: its head, its tables and its plots."""

import html
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from pipeline.data.period import ALWAYS, Period
from pipeline.page import about, plots
from pipeline.page.formats import percent
from pipeline.page.report import Grade, Report

HOUR = datetime(2026, 11, 21, 17, tzinfo=UTC)
MICROS = int(HOUR.timestamp()) * 1_000_000


def page(grade: Grade = Grade.GOOD) -> Report:
    return Report("Title <1>", grade, "The answer & more.", {"Journal": "/j", "Parameters": ["--a 1", "--b <"]})


@pytest.mark.parametrize(("grade", "words"), [(Grade.GOOD, "Good"), (Grade.LOOK, "To look at"), (Grade.BAD, "Bad")])
def test_the_head_has_the_grade_in_words_the_answer_and_what_it_is_of(grade: Grade, words: str) -> None:
    text = page(grade).html()
    grade_at, lead_at, about_at = (text.index(part) for part in (f" {words}</strong>", "answer &amp; more.", "<dd>/j"))
    assert grade_at < lead_at < about_at
    assert "Title &lt;1&gt;" in text
    assert "<dd><span>--a 1</span>, <span>--b &lt;</span></dd>" in text


def test_the_head_of_a_journal_has_both_periods_and_the_parameters() -> None:
    found = (MICROS, MICROS + 90_000_000)
    head = about.of_journal(
        "/j", Period(HOUR, None), found, {"--top": 20, "--add": ["a=1", "b=2"], "--stream": True, "--rate": 0}
    )
    assert head == {
        "Journal": "/j",
        "Period asked for": "from 2026-11-21 17:00:00 UTC",
        "Period found": "2026-11-21 17:00:00 to 2026-11-21 17:01:30 UTC",
        "Parameters": ["--top 20", "--add a=1 b=2", "--stream", "--rate 0"],
    }
    not_given: dict[str, object] = {"--top": None, "--add": [], "--stream": False}
    assert about.of_journal("/j", ALWAYS, None, not_given) == {"Journal": "/j", "Period asked for": "all that there is"}


def test_a_table_scrolls_by_itself_and_sets_numbers_to_the_right() -> None:
    made = page()
    made.table(["name", "n", "share", "time"], [("a", 19490, percent(0.5), None), ("b", 1.949e4, None, "none")])
    text = made.html()
    assert '<div class="box" tabindex="0"><table><tr><th>name</th><th class="number">n</th>' in text
    assert '<td>a</td><td class="number">19,490</td><td class="number">50.0%</td><td>-</td>' in text
    assert '<td>b</td><td class="number">19,500</td><td class="number">-</td><td>none</td>' in text


def test_a_key_of_some_kilobytes_is_cut_and_is_all_there_when_it_is_opened() -> None:
    made, key = page(), "<k>" * 1400
    made.table(["key", "queue"], [(key, "orders.1"), ("k" * 100, "orders.2")])
    text = made.html()
    (summary,) = re.findall(r"<summary>(.*?)</summary>", text)
    assert html.unescape(summary) == f"{'<k>' * 8}…{'k><' * 7}k> (4,200 characters)"
    assert f"</summary>{html.escape(key)}</details></td>" in text
    assert f'<td class="long">{"k" * 100}</td>' in text, "what fits into two lines is shown"


def test_a_plot_takes_the_page_s_colours() -> None:
    figure, axes = plots.new(2)
    axes.barh([0, 1], [1, 2])
    plots.names(axes, ["orders.1", "$x" * 30])
    plots.counts(axes.xaxis)
    made = page()
    made.figure(figure, "Two bars")
    text = made.html()
    svg = text[text.index("<svg") :]
    assert plots.INK not in svg
    assert "currentColor" in svg
    assert "<!-- orders.1 -->" in svg
    assert f"<!-- {'$x' * 12}…x{'$x' * 11} -->" in svg


def test_the_axis_of_one_window_is_as_long_as_the_window() -> None:
    figure, axes = plots.new(2)
    until = HOUR + timedelta(minutes=5)
    plots.by_window(axes, [(HOUR, 1)], timedelta(minutes=5), "one")
    plots.times(axes, HOUR, until)
    figure.canvas.draw()
    assert axes.get_xlim() == (date2num(HOUR), date2num(until))  # type: ignore[no-untyped-call]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown == ["17:00\n21 Nov", "17:01", "17:02", "17:03", "17:04", "17:05"]
    assert axes.get_xlabel() == "UTC, 2026"


FORMS = ("%H:%M:%S", "%H:%M", "%d %b", "%b")


@pytest.mark.parametrize("start", [HOUR, datetime(2026, 12, 28, 23, 59, 13, tzinfo=UTC)], ids=["November", "New Year"])
@pytest.mark.parametrize(
    "span",
    [
        timedelta(**{unit: n})
        for unit, n in (
            ("seconds", 20),
            ("minutes", 1),
            ("minutes", 7),
            ("minutes", 55),
            ("hours", 3),
            ("hours", 19),
            ("hours", 25),
            ("days", 3),
            ("days", 11),
            ("days", 33),
            ("days", 75),
            ("days", 300),
            ("days", 3000),
            ("days", 40_000),
        )
    ],
    ids=str,
)
def test_labels_of_times_stand_apart_and_are_true(start: datetime, span: timedelta) -> None:
    figure = Figure(figsize=(plots.WIDTH, 3.2))
    narrow, wide = figure.subplots(1, 2, width_ratios=(1, 3))
    for axes in (narrow, wide):
        plots.times(axes, start, start + span)
    figure.tight_layout()
    figure.canvas.draw()
    for axes in (narrow, wide):
        labels = axes.get_xticklabels()
        boxes = [label.get_window_extent() for label in labels]
        assert all(one.x1 + 3 < other.x0 for one, other in pairwise(boxes))
        assert len(labels) >= (1 if axes is narrow else 3)
        for label, tick in zip(labels, axes.get_xticks(), strict=True):
            at = datetime.fromtimestamp(round(float(tick) * 86_400), UTC)
            first, _, below = label.get_text().partition("\n")
            assert first in [f"{at:{form}}".removeprefix("0" if "%d" in form else "") for form in FORMS]
            assert below in ("", f"{at.day} {at:%b}", f"{at:%Y}")
        assert not axes.get_xaxis().get_offset_text().get_text()


def test_a_line_ends_where_windows_have_no_figure() -> None:
    _, axes = plots.new(2)
    day = timedelta(days=1)
    plots.by_window(axes, [(HOUR + n * day, n) for n in (0, 1, 5, 6, 9)], day, "p99")
    (line,) = axes.lines
    values: Any = line.get_ydata()
    assert [None if np.isnan(value) else value for value in values] == [0, 1, None, 5, 6, None, 9]
    middles: Any = line.get_xdata()
    assert list(middles) == [HOUR + (n + 0.5) * day for n in (0, 1, 2, 5, 6, 7, 9)]


def test_a_legend_is_as_wide_as_its_axes() -> None:
    figure = Figure(figsize=(plots.WIDTH, 3))
    narrow, wide = figure.subplots(1, 2, width_ratios=(1, 3))
    figure.tight_layout()
    for axes in (narrow, wide):
        for name in ("a label", "another label", "one more"):
            axes.plot([0, 1], [0, 1], label=name)
        plots.legend(axes)
    figure.canvas.draw()
    first, second = (axes.get_legend().get_window_extent() for axes in (narrow, wide))
    assert not first.overlaps(second)
    assert first.height > second.height


@pytest.mark.parametrize("most", [3, 20_000, 5_000_000])
def test_counts_along_an_axis_have_no_exponent(most: int) -> None:
    figure, axes = plots.new(2)
    axes.barh([0], [most])
    plots.counts(axes.xaxis)
    figure.canvas.draw()
    assert axes.xaxis.get_offset_text().get_text() == ""
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert {3: "1", 20_000: "4k", 5_000_000: "1M"}[most] == shown[1].removesuffix(".0")


@pytest.mark.parametrize("longest", [400, 1500, 15_000, 120_000, 60_000_000])
def test_times_along_a_short_logarithmic_axis_stand_apart(longest: int) -> None:
    figure = Figure(figsize=(plots.WIDTH, 3.2))
    _, axes = figure.subplots(1, 2, width_ratios=(3, 2))
    axes.set_xscale("log")
    axes.plot([100, longest], [1, 1])
    plots.durations(axes.xaxis, log=True)
    figure.tight_layout()
    figure.canvas.draw()
    low, high = axes.get_xlim()
    shown = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [label.get_window_extent() for label in shown]
    assert shown
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
