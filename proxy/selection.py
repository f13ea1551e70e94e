"""Which exchanges a ring routes, which are only watched and which are left alone, by patterns in the settings."""

import fnmatch
import re
from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import quote, unquote


class Mode(StrEnum):
    """What happens to publishes to a hash exchange."""

    ROUTE = "route"
    SHADOW = "shadow"
    """Passed natively, counting what a ring would have done."""
    PASS = "pass"


class Selection:
    """Modes by pattern: `pass` wins over `shadow`, `shadow` over `route`; what matches none is passed.

    A pattern is NAME, for every virtual host, or VHOST/NAME; `*` and `?` are wildcards, and parts are percent-encoded
    as in the management API's paths, so the default virtual host is `%2F`.
    """

    def __init__(self, route: Iterable[str], shadow: Iterable[str], pass_: Iterable[str]) -> None:
        """Takes the three settings as they are."""
        self._rules = [
            (mode, [_compile(pattern) for pattern in patterns])
            for mode, patterns in ((Mode.PASS, pass_), (Mode.SHADOW, shadow), (Mode.ROUTE, route))
        ]

    def mode(self, vhost: str, exchange: str) -> Mode:
        """The mode of an exchange."""
        path = f"{quote(vhost, safe='')}/{quote(exchange, safe='')}"
        for mode, patterns in self._rules:
            if any(pattern.fullmatch(path) for pattern in patterns):
                return mode
        return Mode.PASS


def named(patterns: Iterable[str], default_vhost: str) -> list[tuple[str, str]]:
    """The (virtual host, exchange) pairs that patterns without a wildcard name."""
    pairs = []
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            vhost, slash, name = pattern.rpartition("/")
            pairs.append((unquote(vhost) if slash else default_vhost, unquote(name)))
    return pairs


def _compile(pattern: str) -> re.Pattern[str]:
    vhost, slash, name = pattern.rpartition("/")
    parts = [vhost if slash else "*", name]
    # Decoded and encoded again, so that `%2f` matches `%2F` and a plain `é` its encoded form.
    encoded = (quote(unquote(part), safe="*?") for part in parts)
    return re.compile("/".join(fnmatch.translate(part).removesuffix(r"\Z") for part in encoded))
