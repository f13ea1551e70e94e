"""The handling of wrong credentials: counts, log lines, and answers that come later the more an address sends."""

import hashlib
import ipaddress
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

log = logging.getLogger(__name__)

Kind = Literal["token", "login"]
"""A bearer token, or a broker user's name and password."""

KINDS: tuple[Kind, ...] = ("token", "login")
RESULTS = ("wrong", "unchecked")
"""How refused credentials are counted: as wrong, or unchecked while too many of their address wait."""

FREE = 20
"""How many wrong credentials of one address are answered at once; further ones are answered with a delay."""

RATE = 5.0
"""Wrong credentials a second that are answered from then on."""

WAITING = 20
"""Wrong credentials of one address whose answer may wait; while as many do, new ones are not looked at."""

MOST_PEERS = 1000
"""Addresses that are remembered; beyond it the one is forgotten that has been quiet for longest."""

MOST_WORKED = 1000
"""Logins that are remembered, as digests, for having worked."""

LOG_EVERY = 10.0
"""Seconds between two lines of the log about wrong credentials."""

_LONGEST_NAME = 60
_NETWORK = 64
"""The leading bits of an IPv6 address that count: a client that has one address has all that share them."""


class Guesses:
    """The wrong credentials of late, by address. Nobody is kept out whose credentials have worked before."""

    def __init__(self, counts: Counter[tuple[str, str]], clock: Callable[[], float] = time.monotonic) -> None:
        """`counts` is added to by kind and result; `clock` gives seconds."""
        self._counts, self._clock = counts, clock
        self._peers: dict[str, tuple[float, float]] = {}
        """The weight of wrong credentials on each address, and the time of that weight; the latest come last."""
        self._worked: dict[bytes, None] = {}
        self._key = os.urandom(32)
        self._tell_from = -LOG_EVERY
        self._untold = 0

    def may_try(self, peer: str, kind: Kind) -> bool:
        """Return whether credentials of this address that have not worked before are looked at; count it if not."""
        if not self._peers or self._level(_network(peer)) < FREE + WAITING:
            return True
        self._counts[kind, "unchecked"] += 1
        return False

    def failed(self, peer: str, kind: Kind, who: str = "") -> float:
        """Count wrong credentials, of a user if there is a name; return for how many seconds the answer is to wait."""
        self._counts[kind, "wrong"] += 1
        self._tell(peer, kind, who)
        network = _network(peer)
        level = self._level(network) + 1
        self._peers.pop(network, None)
        if len(self._peers) >= MOST_PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[network] = level, self._clock()
        return min(max(level - FREE, 0), WAITING) / RATE

    def _level(self, network: str) -> float:
        level, at = self._peers.get(network, (0.0, 0.0))
        return max(level - (self._clock() - at) * RATE, 0.0)

    def _tell(self, peer: str, kind: Kind, who: str) -> None:
        """Log a wrong credential, once in LOG_EVERY at most; the others are counted, and told in the next line."""
        now = self._clock()
        if now < self._tell_from:
            self._untold += 1
            return
        what = (
            f"user {who[:_LONGEST_NAME]!r} was refused by the broker"
            if kind == "login"
            else "a bearer token is not in tokens_file"
        )
        more = f", and {self._untold} more wrong credentials since the last such line" if self._untold else ""
        log.warning("wrong credentials over HTTP: %s, from %s%s", what, peer, more)
        self._tell_from, self._untold = now + LOG_EVERY, 0

    def worked(self, login: tuple[str, str]) -> None:
        """Remember that the broker has let in this user with this password."""
        if len(self._worked) >= MOST_WORKED:
            del self._worked[next(iter(self._worked))]
        self._worked[self._digest(login)] = None

    def has_worked(self, login: tuple[str, str]) -> bool:
        """Return whether the broker has let in this user with this password before."""
        return self._digest(login) in self._worked

    def _digest(self, login: tuple[str, str]) -> bytes:
        return hashlib.blake2b("\0".join(login).encode(), key=self._key, digest_size=16).digest()


def _network(peer: str) -> str:
    """Return what counts as one address: IPv4 as it is, of IPv6 the network of 64 bits."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK), strict=False))
