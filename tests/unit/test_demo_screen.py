"""The screen of the demo, in a terminal and in a pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.demo import screen

PROGRAM = """
import time
from testbed.demo.screen import bar, rows
with bar("messages", 10) as advance:
    for done in range(1, 11):
        time.sleep(0.05)
        advance(done)
with rows(["", "A", "B", "balanced"]) as table:
    table.now(["1.0 s  A consumes", "1 2", "-", "not yet"])
    table.done(["1.0 s  A consumes", "1 2 3", "-", "after 0.5 s"])
    table.done(["2.0 s  B joins", "1 2", "3", "after 1.5 s"])
"""


def test_in_a_pipe_a_bar_is_two_lines_and_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.bar("messages", 1000) as advance:
        for done in range(1001):
            advance(done)
        advance(2000)
    assert capsys.readouterr().out.splitlines() == ["  messages: 500 of 1,000", "  messages: 1,000 of 1,000"]
    with screen.rows(["", "A", "B", "balanced"]) as table:
        for shards in ("1", "1 2", "1 2 3"):
            table.now(["A consumes", shards, "-", "not yet"])
        table.done(["A consumes", "1 2 3", "-", "after 0.5 s"])
        table.done(["B joins", "1 2", "3", "after 1.5 s"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["A", "B", "balanced"]
    assert [line.split() for line in lines] == [
        ["A", "consumes", "1", "2", "3", "-", "after", "0.5", "s"],
        ["B", "joins", "1", "2", "3", "after", "1.5", "s"],
    ]
    assert head.index("balanced") == lines[0].index("after") == lines[1].index("after")


def test_in_a_terminal_there_is_a_bar_with_total_and_time_left_and_a_table_that_changes() -> None:
    """The terminal is a real one, whose bytes are read."""
    master, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    program = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(program, stdout=terminal, env=environment, cwd=Path(__file__).parents[2]) as process:
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # the terminal's other end is closed
            pass
        os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in text
    assert "10/10" in text
    assert "left" in text
    assert "0:00:0" in text
    assert "not yet" in text
    assert text.rindex("after 1.5 s") > text.rindex("after 0.5 s") > text.rindex("not yet")
