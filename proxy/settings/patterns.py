"""The patterns in the settings that say which exchanges a ring routes, which are watched and which are left alone."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote

from ring.share import slots_in


class Mode(StrEnum):
    """The three things that settings can say of publishes to a hash exchange."""

    ROUTE = "route"
    SHADOW = "shadow"
    """Passed natively, counting what a ring would have done."""
    PASS = "pass"


class Patterns:
    """The patterns of one setting.

    A pattern is NAME, for every virtual host, or VHOST/NAME; `*` and `?` are wildcards, and parts are percent-encoded
    as in the management API's paths, so the default virtual host is `%2F`.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        """Take the setting as it is."""
        self._patterns = [_compile(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        """Return whether there is any pattern."""
        return bool(self._patterns)

    def match(self, vhost: str, exchange: str) -> bool:
        """Return whether any pattern matches an exchange."""
        return any(p.vhost.fullmatch(vhost) and p.name.fullmatch(exchange) for p in self._patterns)


class Selection:
    """Modes by pattern: `pass` wins over `shadow`, `shadow` over `route`; what matches none is passed."""

    def __init__(
        self, route: Iterable[str], shadow: Iterable[str], pass_: Iterable[str], groups: Iterable[str] = ()
    ) -> None:
        """Take the four settings as they are."""
        self.take_share(100)
        self.take(route, shadow, pass_, groups)

    def take(
        self,
        route: Iterable[str],
        shadow: Iterable[str],
        pass_: Iterable[str],
        groups: Iterable[str],
        consumed: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Take the four settings anew; all parts of a sidecar share one selection.

        `consumed` are exchanges, each with its virtual host, that clients consume from whatever `groups` says now.
        """
        self._consumed, self._still_consumed = Patterns(groups), frozenset(consumed)
        names = [pattern.rpartition("/")[2] for patterns in (route, shadow, pass_) for pattern in patterns]
        self._names = {unquote(name) for name in names if not _WILDCARDS.keys() & set(name)}
        self._named_to_route = Patterns(p for p in route if not _WILDCARDS.keys() & set(p.rpartition("/")[2]))
        self._rules = [
            (mode, Patterns(patterns))
            for mode, patterns in ((Mode.PASS, pass_), (Mode.SHADOW, shadow), (Mode.ROUTE, route))
        ]

    def take_share(self, percent: float) -> None:
        """Take the setting `route_share`, without which rings have all slots."""
        self.routed_slots = slots_in(percent)
        """The number of slots that the ring of an exchange in `route` routes, those of the lowest ranks."""

    def names(self, exchange: str) -> bool:
        """Return whether a pattern has this exchange name without a wildcard: clients cannot choose such names."""
        return exchange in self._names

    def routes_by_name(self, vhost: str, exchange: str) -> bool:
        """Return whether an exchange is routed, and a pattern of `route` has its name without a wildcard.

        Only such an exchange may be an upstream exchange: `*` means hash exchanges.
        """
        return self._named_to_route.match(vhost, exchange) and self.mode(vhost, exchange) is Mode.ROUTE

    def has_ring(self, vhost: str, exchange: str) -> bool:
        """Return whether the ring of an exchange is of use: publishes may follow it, or clients consume by it."""
        if self.mode(vhost, exchange) is not Mode.PASS or self._consumed.match(vhost, exchange):
            return True
        return (vhost, exchange) in self._still_consumed

    def says(self, vhost: str, exchange: str) -> tuple[Mode, bool, bool]:
        """Return all that the settings say of an exchange: what differs has it read again."""
        return self.mode(vhost, exchange), self.routes_by_name(vhost, exchange), self.has_ring(vhost, exchange)

    def mode(self, vhost: str, exchange: str) -> Mode:
        """Return the mode of an exchange."""
        for mode, patterns in self._rules:
            if patterns.match(vhost, exchange):
                return mode
        return Mode.PASS


def named(patterns: Iterable[str], default_vhost: str) -> list[tuple[str, str]]:
    """The (virtual host, exchange) pairs that patterns without a wildcard name."""
    pairs = []
    for pattern in patterns:
        if not _WILDCARDS.keys() & set(pattern):
            vhost, slash, name = pattern.rpartition("/")
            pairs.append((unquote(vhost) if slash else default_vhost, unquote(name)))
    return pairs


class _Pattern(NamedTuple):
    vhost: re.Pattern[str]
    name: re.Pattern[str]


_WILDCARDS = {"*": ".*", "?": "."}


def _compile(pattern: str) -> _Pattern:
    vhost, slash, name = pattern.rpartition("/")
    return _Pattern(_compile_part(vhost if slash else "*"), _compile_part(name))


def _compile_part(part: str) -> re.Pattern[str]:
    # Split before it is decoded, so that `%2A` is a star and not a wildcard.
    pieces = re.split(r"([*?])", part)
    return re.compile("".join(_WILDCARDS.get(piece) or re.escape(unquote(piece)) for piece in pieces), re.DOTALL)
