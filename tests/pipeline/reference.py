"""The sections and tables of docs/reference/pipeline.md."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/reference/pipeline.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under a heading, up to the next one of the same level or a higher one."""
    (found,) = re.finditer(rf"^(#+) {re.escape(title)}$", PAGE, flags=re.M)
    return re.split(rf"^#{{1,{len(found[1])}}} ", PAGE[found.end() :], maxsplit=1, flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables' rows in a text whose first cell begins with a backtick."""
    lines = re.findall(r"^\| (`.*) \|$", text, flags=re.M)
    return [[cell.strip() for cell in line.split(" |")] for line in lines]


def names(cell: str) -> list[str]:
    """Return what stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)
