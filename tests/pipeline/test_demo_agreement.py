"""The demo's comparison of a sample with the whole: which figures it compares, and when they agree."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.pipeline_demo.agreement import Figure, hottest, of_skew, of_usage, of_whatif


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")


@pytest.mark.parametrize(("whole", "agrees"), [(0.9, False), (1, True), (2, True), (3, True), (3.1, False)])
def test_a_figure_agrees_within_its_interval(whole: float, agrees: bool) -> None:
    assert Figure("share", whole, 2, 1, 3).agrees is agrees


def usage(folder: Path, *messages: float) -> None:
    rows = [
        {
            "exchange": exchange,
            "destination": destination,
            "messages_scaled": count,
            "messages_low": count - 1,
            "messages_high": count + 2,
        }
        for exchange, destination, count in zip("aab", "qqq", messages, strict=True)
    ]
    write(folder / "usage" / "dt=2026-11-21", rows)


def test_usage_is_compared_by_destination_over_all_windows(tmp_path: Path) -> None:
    usage(tmp_path / "whole", 10.0, 5.0, 99.0)
    usage(tmp_path / "sample", 8.0, 4.0, 1.0)
    assert list(of_usage(tmp_path / "whole", tmp_path / "sample", "a")) == [
        Figure("usage: messages of q", 15, 12, 10, 16)
    ]


def skew(folder: Path, ratio: float) -> None:
    """With values that are such a part of those of the whole; the rows of one ring are ten times those of all."""
    scopes: list[dict[str, Any]] = [
        {"exchange": "a", "ring": None},
        {"exchange": "a", "ring": "one"},
        {"exchange": "b", "ring": None},
    ]

    def rows(names: dict[str, float], more: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            scope
            | more
            | {f"{name}{end}": value * ratio * 10**n * by for name, value in names.items() for end, by in ends}
            for n, scope in enumerate(scopes)
        ]

    ends = [("", 1.0), ("_low", 0.5), ("_high", 2.0)]
    write(folder / "rings", rows({"published": 1000.0, "max_over_fair": 2.0, "top_key": 0.25}, {}))
    write(folder / "destinations", rows({"over_fair": 1.0}, {"destination": "q"}))
    hot, cold = ({"key": key, "messages": count} for key, count in ((b"hot", 9), (b"cold", 1)))
    write(folder / "keys", [*rows({"share": 0.125}, cold), *rows({"share": 0.25}, hot)])


def test_skew_is_compared_across_the_exchange_s_rings(tmp_path: Path) -> None:
    skew(tmp_path / "whole", 1)
    skew(tmp_path / "sample", 0.5)
    assert list(of_skew(tmp_path / "whole", tmp_path / "sample", "a")) == [
        Figure("skew: published", 1000, 500, 250, 1000),
        Figure("skew: max_over_fair", 2, 1, 0.5, 2),
        Figure("skew: top_key", 0.25, 0.125, 0.0625, 0.25),
        Figure("skew: over_fair of q", 1, 0.5, 0.25, 1),
        Figure("skew: share of hot", 0.25, 0.125, 0.0625, 0.25),
    ]
    assert hottest(tmp_path / "sample", "a")["key"] == b"hot"


def test_whatif_is_compared_by_its_verdicts(tmp_path: Path) -> None:
    told = {"messages": 10, "max_over_fair": {"present": 1.5, "proposed": 1.25}, "moved": {"of_messages": 0.5}}
    intervals = {
        "messages": [9, 11],
        "max_over_fair": {"present": [1, 2], "proposed": [1, 1.2]},
        "moved": {"of_messages": [0.4, 0.6]},
    }
    for name in ("whole", "sample"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "verdict.json").write_text(json.dumps(told | {"intervals": intervals}))
    found = list(of_whatif(tmp_path / "whole", tmp_path / "sample"))
    assert found[2] == Figure("whatif: max_over_fair proposed", 1.25, 1.25, 1, 1.2)
    assert [figure.agrees for figure in found] == [True, True, False, True]
