"""How the log is written: no text that comes from outside makes a line of its own, or steers a terminal."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.process.logs import JsonFormatter, TextFormatter, catch_all, escaped

FORGED = "2026-11-23T00:00:00.000Z CRITICAL proxy.app: forged"
SEPARATORS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
STEERING = ["\0", "\b", "\x1b[2K", "\x7f", "\x9b1A", "\u061c", "\u200f", "\u202e", "\u2066", "\ufeff", "\ud800"]


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("proxy.x", logging.WARNING, __file__, 1, message, arguments, info)
    made.created = 1763870645.0896
    return made


def raised(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_line_has_its_time_with_its_zone() -> None:
    line = TextFormatter().format(record("%d of %s", 5, "é ü 名"))
    assert line == "2025-11-23T04:04:05.089Z WARNING proxy.x: 5 of é ü 名"
    assert datetime.fromisoformat(line.split()[0]).utcoffset() == timedelta(0)


@pytest.mark.parametrize("separator", [*SEPARATORS, *STEERING], ids=ascii)
def test_what_could_look_like_another_line_is_escaped(separator: str) -> None:
    line = TextFormatter().format(record("exchange %s", f"x{separator}{FORGED}"))
    assert line.isprintable()
    assert line.startswith("2025-11-23T04:04:05.089Z WARNING proxy.x: exchange x\\")
    assert line.endswith(FORGED)


def test_escapes_are_those_that_people_know() -> None:
    assert escaped("a\nb\r\t\x1b\x85\u202e\U000e0001") == r"a\nb\r\t\x1b\x85\u202e\U000e0001"
    assert escaped("\\ 'é' 名 🐇") == "\\ 'é' 名 🐇"


@given(st.text())
def test_any_text_is_one_line_of_printable_characters(text: str) -> None:
    assert escaped(text).isprintable()
    assert (escaped(text) == text) is text.isprintable()


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_the_lines_of_a_traceback_cannot_be_taken_for_a_record(separator: str) -> None:
    head, *trace = TextFormatter().format(record("failed", error=raised(f"x{separator}{FORGED}"))).splitlines()
    assert head == "2025-11-23T04:04:05.089Z WARNING proxy.x: failed"
    assert trace[0] == "    Traceback (most recent call last):"
    assert "forged" in trace[-1]
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


@pytest.mark.parametrize("separator", [*SEPARATORS, *STEERING], ids=ascii)
def test_json_is_one_object_a_line_and_says_what_was_meant(separator: str) -> None:
    message = f"x{separator}{FORGED}"
    line = JsonFormatter().format(record("%s", message, error=raised(message)))
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    assert told.pop("exception").endswith(f"ValueError: {message}")
    assert told == {
        "time": "2025-11-23T04:04:05.089Z",
        "level": "WARNING",
        "logger": "proxy.x",
        "message": message,
    }
    assert "exception" not in json.loads(JsonFormatter().format(record("fine")))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own hooks, put back afterwards."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    logging.captureWarnings(False)


@pytest.mark.usefixtures("hooks")
def test_what_python_would_print_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    catch_all()
    error = raised("of the main thread")
    sys.excepthook(type(error), error, error.__traceback__)

    def fail() -> None:
        raise ValueError("of a thread")

    thread = threading.Thread(target=fail, name="journal")
    thread.start()
    thread.join()

    class Defective:
        def __del__(self) -> None:
            raise ValueError("of a finalizer")

    Defective()
    assert [(r.message.partition(":")[0], str((r.exc_info or (None, None))[1])) for r in caplog.records] == [
        ("unexpected error; it ends this process", "of the main thread"),
        ("unexpected error; it ended thread 'journal'", "of a thread"),
        ("unexpected error in code that cannot raise it", "of a finalizer"),
    ]
