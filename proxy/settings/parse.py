"""The values of settings: parsers from TOML's values or strings, each mistake told in one line."""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args

from yarl import URL

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class ConfigError(ValueError):
    """A mistake in the settings; the message is one line that names the setting, the value and the reason."""


class Address(NamedTuple):
    """A listener's host and port; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the address as it is written: ``127.0.0.1:15680``, ``[::1]:15680``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the known word nearest to an unknown one; empty if none is near."""
    near = get_close_matches(written, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def check_text(value: str) -> None:
    """Raise ConfigError for what is no Unicode text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError("not UTF-8") from None


def _shown(value: Any) -> str:
    return repr(value) if not isinstance(value, bool) else str(value).lower()


def parse_number(value: Any) -> float:
    """Return a number from 0 to 1e9. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{_shown(value)} is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{value!r} is not a number") from None
    if not 0 <= number < 1e9:
        raise ConfigError(f"{value!r} is outside 0 to 1e9")
    return number


def parse_integer(value: Any) -> int:
    """Return a whole number from 0 up. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{_shown(value)} is not a whole number")
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"{value!r} is not a whole number from 0 up")
    return int(text)


def parse_bool(value: Any) -> bool:
    """Return a switch: ``true`` or ``false``, TOML's own or the words. Raises ConfigError."""
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if value not in words:
        raise ConfigError(f"{_shown(value)} is not true or false")
    return words[value]


def parse_address(value: Any) -> Address:
    """Return the address that ``HOST:PORT`` names. Raises ConfigError."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not (_PORT.fullmatch(port) and int(port) < 65536):
        raise ConfigError(f"{value!r} is not HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{value!r} is not HOST:PORT (an IPv6 address goes in brackets)")
    if not _is_host(host):
        raise ConfigError(f"{value!r} is not HOST:PORT: no name or address of a host")
    return Address(host, int(port))


def parse_host(value: Any) -> str:
    """Return a host's name or address, without port and brackets. Raises ConfigError."""
    if not isinstance(value, str) or not _is_host(value) or (":" in value and value.count(":") == 1):
        raise ConfigError(f"{_shown(value)} is not a host's name without a port")
    if "*" in value:
        raise ConfigError(f"{_shown(value)} has a wildcard: list each name, or '*' alone for any")
    return value


def _is_host(host: str) -> bool:
    """Return whether a text may be a host name or an IP address."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    # Empty would mean every interface; that is written 0.0.0.0 or [::].
    return bool(host) and host.isprintable() and not set(" /@[]") & set(host)


def parse_url(value: Any) -> URL:
    """Return a server's URL, which may have credentials and a path, and nothing more. Raises ConfigError.

    Its scheme may be any: `Settings` checks that.
    """
    # The value may hold a password, so it is not repeated.
    try:
        url = URL(str(value))
        port = url.port
    except (ValueError, IndexError):  # an empty host is an IndexError of yarl's
        raise ConfigError("not a URL; write a '/', '?', '#' or '@' in a password percent-encoded") from None
    if not url.host or port == 0:
        raise ConfigError("not a URL like amqp://user:password@host:5672/ or http://user:password@host:15672")
    if url.query_string or url.fragment:
        raise ConfigError("a URL's part after '?' or '#' would be ignored; leave it out")
    return url


# A comma may be part of a password, so that only one before the next URL's scheme ends a URL.
_BETWEEN_URLS = re.compile(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")


def parse_urls(value: Any) -> tuple[URL, ...]:
    """Return one URL or several, of a list or a string with commas. Raises ConfigError with the place."""
    items = value if isinstance(value, list) else _BETWEEN_URLS.split(str(value).strip())
    if not items:
        raise ConfigError("has no URL")
    urls = []
    for number, item in enumerate(items, 1):
        try:
            url = parse_url(item)
            if "," in (url.host or ""):
                raise ConfigError("has a comma in its host name; each URL of a list begins with http:// or https://")
        except ConfigError as error:
            raise ConfigError(f"{place_of(number, len(items))}{error}") from None
        urls.append(url)
    return tuple(urls)


def place_of(number: int, count: int) -> str:
    """Return what tells one item of several in a message, by its number from 1; empty if it is the only one."""
    return f"URL {number} of {count}: " if count > 1 else ""


def parse_path(value: Any) -> Path:
    """Return a file's path. Raises ConfigError, also for an empty one."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{_shown(value)} is not a file's path")
    return Path(value)


def parse_name(value: Any) -> str:
    """Return a name, such as a queue's. Raises ConfigError, also for an empty one."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{_shown(value)} is not a name")
    return value


def parse_patterns(value: Any) -> tuple[str, ...]:
    """Return patterns of exchanges, of a list or a string with commas, for `Selection`. Raises ConfigError."""
    items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ConfigError(f"{_shown(value)} is not a list of patterns")
    for item in items:
        if item.count("/") > 1 or not all(item.split("/")):
            raise ConfigError(f"{item!r} is not NAME or VHOST/NAME: a '/' in a name is written %2F")
    return tuple(items)


def listed(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a parser of a list, or of a string with commas between its items."""

    def parse_all(value: Any) -> tuple[Any, ...]:
        items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ConfigError(f"{_shown(value)} is not a list")
        return tuple(map(parse, items))

    return parse_all


def choice(expected: Any) -> Callable[[Any], Any]:
    """Return a parser of one of the strings of a Literal type."""

    def parse(value: Any) -> Any:
        if value not in get_args(expected):
            raise ConfigError(f"{_shown(value)} is not one of {', '.join(get_args(expected))}")
        return value

    return parse


def first_line(content: bytes) -> str:
    """Return the secret in a file: its first line as it is, spaces included. Raises ValueError."""
    line = content.decode().partition("\n")[0].removesuffix("\r")
    if not line:
        raise ValueError("has an empty first line")
    return line
