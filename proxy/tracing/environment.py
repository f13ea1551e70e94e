"""The variables OTEL_* that the SDK reads, as far as it would ignore a wrong value, or notice it only when it sends."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from yarl import URL

from proxy.settings.parse import ConfigError

_OTLP = "OTEL_EXPORTER_OTLP_"
_PROTOCOLS = ("http/protobuf",)
_COMPRESSIONS = ("none", "gzip", "deflate")
_HEADER = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
"""A header as the SDK takes it. It would log any other whole and leave it out, and that may be a token."""


@dataclass(frozen=True)
class Environment:
    """The checked values of those variables that are used by name."""

    endpoint: str
    """The URL of the receiver for the log, without a password or a query, which may have a key."""
    queue: int
    """The most spans that wait to be sent."""
    batch: int
    """The most spans of one request."""
    delay: int
    """Milliseconds after which spans are sent although they are fewer."""

    @classmethod
    def read(cls) -> "Environment":
        """Check all variables. Raises ConfigError, which names one."""
        _one_of("PROTOCOL", _PROTOCOLS)
        _one_of("COMPRESSION", _COMPRESSIONS)
        _check_timeout()
        _check_headers()
        for kind in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
            name, file = _variable(kind)
            if file and not Path(file).is_file():
                raise ConfigError(f"{name}: {file!r} is not a file")
        queue = _number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        batch = _number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
        if batch > queue:
            raise ConfigError(f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE: {batch} is more than OTEL_BSP_MAX_QUEUE_SIZE, {queue}")
        return cls(_endpoint(), queue, batch, _number("OTEL_BSP_SCHEDULE_DELAY", 5000))


def is_disabled() -> bool:
    """Return whether the environment switches OpenTelemetry off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _variable(kind: str) -> tuple[str, str]:
    """Return the name and value of a variable of the exporter: that for traces, or else that for all signals."""
    name = f"{_OTLP}TRACES_{kind}"
    if not os.environ.get(name):
        name = _OTLP + kind
    return name, os.environ.get(name, "")


def _one_of(kind: str, allowed: tuple[str, ...]) -> None:
    name, value = _variable(kind)
    if value and value not in allowed:
        raise ConfigError(f"{name}: {value!r} is not supported, only {', '.join(allowed)}")


def _check_timeout() -> None:
    name, value = _variable("TIMEOUT")
    try:
        is_good = not value or 0 < float(value) < float("inf")
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"{name}: {value!r} is not a number of seconds above 0")


def _check_headers() -> None:
    name, value = _variable("HEADERS")
    for number, header in enumerate(value.split(","), 1):
        if header.strip() and not _HEADER.fullmatch(header.strip()):
            raise ConfigError(
                f"{name}: its entry {number} is not NAME=VALUE in ASCII without quotation marks, semicolons and"
                " backslashes; percent-encode these"
            )


def _endpoint() -> str:
    name, value = _variable("ENDPOINT")
    try:
        url = URL(value or "http://localhost:4318")
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"{name}: not a URL such as http://collector:4318")
    return str(url.with_user(None).with_query(None))


def _number(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not (value.isascii() and value.isdecimal() and len(value) <= 9 and int(value)):
        raise ConfigError(f"{name}: {value!r} is not a whole number above 0")
    return int(value)
