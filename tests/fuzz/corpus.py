"""The inputs that are kept, one in base64 a line; libFuzzer's own corpus, a file for each, is not."""

import base64
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

HARNESSES = ("session", "client", "content", "items", "messages", "management", "settings")

FOLDER = Path(__file__).parent / "corpus"
GROWN = Path("build/fuzz")


def inputs(name: str) -> list[bytes]:
    """Return a harness's seeds, and what is kept of its corpus."""
    seeds: list[bytes] = importlib.import_module(f"tests.fuzz.{name}").seeds()
    return seeds + kept(name)


def kept(name: str) -> list[bytes]:
    """Return what is kept of a harness's corpus."""
    file = FOLDER / f"{name}.txt"
    return [base64.b64decode(line) for line in file.read_text().splitlines()] if file.exists() else []


def pack(name: str) -> int:
    """Keep the least of a grown corpus that takes as many branches, the shortest first; how many inputs that is."""
    check = importlib.import_module(f"tests.fuzz.{name}").check
    seen: set[_Branch] = set()
    for data in inputs(name):
        seen |= _branches(check, data)
    lines = []
    for data in sorted((file.read_bytes() for file in (GROWN / name).iterdir()), key=lambda data: (len(data), data)):
        if new := _branches(check, data) - seen:
            seen |= new
            lines.append(base64.b64encode(data).decode())
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(lines)


_Branch = tuple[str, int, int]
"""A file, a line, and the line after it."""


def _branches(check: Callable[[bytes], None], data: bytes) -> set[_Branch]:
    """Return what of the proxy an input goes through."""
    found: set[_Branch] = set()

    def called(frame: FrameType, event: str, _: object) -> Any:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if "/proxy/" not in file or "/tests/" in file:
            return None

        def went(frame: FrameType, event: str, _: object) -> Any:
            nonlocal line
            found.add((file, line, frame.f_lineno))
            line = frame.f_lineno
            return went

        return went

    sys.settrace(called)
    try:
        check(data)
    finally:
        sys.settrace(None)
    return found
