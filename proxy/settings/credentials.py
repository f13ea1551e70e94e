"""The user and password towards the broker and the management API, as they are at the time of each use."""

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from yarl import URL

from proxy.settings.contents import secret_content
from proxy.settings.parse import ConfigError, first_line
from proxy.settings.watched import Watched

Credentials = Callable[[], tuple[str, str]]

Authorization = Callable[[], str]
"""A function that gives the value of HTTP's header of this name. It raises OSError if there is none now."""


def of_url(url: URL) -> tuple[str, str]:
    """Return the user and password in a URL; without a user they are guest's, as in any amqp:// URL."""
    return url.user or "guest", url.password or ("" if url.user else "guest")


def credentials(setting: str, url: URL, file: Path | None) -> Credentials:
    """Return a function that gives the user and password of a URL, or with the password that a file has by then.

    `setting` names the file. Raises ConfigError if the file has no password now; later the last good one stays.
    """
    user, password = of_url(url)
    if file is None:
        return lambda: (user, password)
    return Watched(setting, [file], lambda: (user, secret(setting, file)))


def basic(login: Credentials) -> Authorization:
    """Return a function that gives the header for a user and password (RFC 7617); the user has no colon."""
    return lambda: f"Basic {b64encode(':'.join(login()).encode()).decode()}"


def secret(setting: str, file: Path) -> str:
    """Return the password in a file's first line. Raises ConfigError."""
    line = secret_content(setting, file)
    try:
        return first_line(line)
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {str(file)!r} is not UTF-8 text") from None
    except ValueError as error:
        raise ConfigError(f"{setting}: {str(file)!r} {error}") from None
