"""The format of the log: a line, or a JSON object, for each record, in which nobody can forge another record.

Names of exchanges, queues and virtual hosts are the clients' choice, and so is the text of many faults. Every character
that a terminal or a collector could take for anything else than a character is escaped (`escaped`), here and nowhere
else, so that no call of a logger needs to think of it.
"""

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from proxy.settings.config import LogFormat, LogLevel

_CONTINUED = "    "
"""The beginning of a line that belongs to the record above it; a record's own line begins with its time."""


def escaped(text: str) -> str:
    r"""Return a text as one line of printable characters, with escapes like ``\n``, ``\x1b`` and ``\u202e`` in it.

    Escaped is what Python calls not printable: line and paragraph separators, the control characters of C0 and C1, DEL,
    what turns the direction of writing, what has no width, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextFormatter(logging.Formatter):
    """Writes time, level, logger and message in a line, and a traceback in further lines that begin with spaces."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and behind it, if the record has an exception, the lines of its traceback."""
        head = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        trace = _trace(self, record)
        # Not splitlines(): what else it takes for the end of a line is escaped.
        return "\n".join([head, *(_CONTINUED + escaped(line) for line in trace.split("\n") if line)])


class JsonFormatter(logging.Formatter):
    """Writes one JSON object a line, all in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object with the keys time, level, logger, message, and exception if the record has one."""
        fields = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(self, record):
            fields["exception"] = trace
        return json.dumps(fields)


_FORMATTERS: Mapping[LogFormat, Callable[[], logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def install(level: str, form: LogFormat) -> None:
    """Let this module write to standard error what any logger says, of libraries too, from `level` up.

    Where the root logger has handlers already, say a test's, these stay the only ones.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It tells of what clients do in its own words; the answer says it.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)


def set_level(level: LogLevel) -> None:
    """Write what any logger says from `level` up, in place of the level before."""
    logging.getLogger().setLevel(level.upper())


def catch_all() -> None:
    """Let the log tell what Python would print to standard error itself: warnings, exceptions that nobody handles."""
    logging.captureWarnings(True)
    log = logging.getLogger(__name__)

    def of_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.critical("unexpected error; it ends this process", exc_info=(kind, error, trace))

    def of_thread(it: threading.ExceptHookArgs) -> None:
        if it.exc_value is not None:
            name = it.thread.name if it.thread else "?"
            log.error("unexpected error; it ended thread %r", name, exc_info=it.exc_value)

    def unraisable(it: Any) -> None:
        log.error(
            "unexpected error in code that cannot raise it: %s", it.err_msg or repr(it.object), exc_info=it.exc_value
        )

    sys.excepthook, threading.excepthook, sys.unraisablehook = of_main, of_thread, unraisable


def _time(record: logging.LogRecord) -> str:
    """Return the time of a record by ISO 8601, in UTC and milliseconds: ``2026-11-23T04:05:06.789Z``."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""
