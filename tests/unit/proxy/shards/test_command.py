"""The output and the exit status of each part of `ring-proxy topology`."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.settings.config import Settings
from proxy.shards import command
from proxy.shards.apply import StoppedError
from proxy.shards.command import FAILED, PARTS, Part, run
from proxy.shards.document import parse
from proxy.shards.plan import Plan, make_plan
from tests.unit.proxy.shards.model import EMPTY

PLAN = next(part for part in PARTS if part.name == "plan")
FORGED = "o\u2028nothing to do\x85  rabbitmqctl set_permissions -p / WRITER '.*' '.*' '.*'"
"""The name of an exchange that would be three lines to whoever splits lines as Python does."""


def test_a_name_forges_no_line_of_a_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def read(*_: Any) -> Plan:
        return make_plan(parse({"exchange": [{"name": FORGED, "shards": 1}]}), {"/": EMPTY})

    monkeypatch.setattr(command, "_read", read)

    assert run(PLAN, Settings(), Namespace(file=Path("x"), json=False, journal=None)) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines.count("nothing to do") == 0
    assert sum(line.startswith("  rabbitmqctl") for line in lines) == 5
    assert lines[-1] == "5 steps to do"


def part(fail: Callable[[], None]) -> Part:
    async def do(*_: Any) -> int:
        fail()
        return 0

    return Part("x", do, lambda _: None, "", {})


def test_what_was_stopped_is_told_in_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise StoppedError(["step 1 of 2, declare queue a\nb: refused", "done: nothing"])

    assert run(part(fail), Settings(), Namespace()) == FAILED
    assert capsys.readouterr().err == (
        "ring-proxy: step 1 of 2, declare queue a\\nb: refused\nring-proxy: done: nothing\n"
    )


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    def fail() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run(part(fail), Settings(), Namespace())
