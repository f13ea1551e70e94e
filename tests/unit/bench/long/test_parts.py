"""Every long part has its place in the document."""

import re
from pathlib import Path

from bench.long.parts import LONG
from bench.report import replaced

DOCUMENT = (Path(__file__).parents[4] / "docs" / "performance.md").read_text()


def test_each_part_has_a_section_and_each_section_a_part() -> None:
    assert re.findall(r"<!-- (\w+): begin -->", DOCUMENT) == ["figures", *LONG]
    for part in LONG:
        assert f"\nmeasured: {part}\n" in replaced(DOCUMENT, part, f"measured: {part}")
