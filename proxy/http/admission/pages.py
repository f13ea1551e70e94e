"""The defence against web pages: a page that is open in a browser can send requests to all that the browser reaches.

A browser says of which origin a page is that sends a request (Sec-Fetch-Site, or Origin where that is not sent). A page
can also make a name of its own lead to a listener's address (DNS rebinding), and is of the listener's origin then; but
the request's Host is that name, which is none of the listener's.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from aiohttp import web

from proxy.http.formats.problems import ProblemError
from proxy.outcome import Outcome
from proxy.settings.config import ANY_HOST, is_loopback
from proxy.settings.parse import Address

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]*)?")
"""A Host header: a name, or an address with IPv6's in brackets; and a port."""

_LONGEST_HOST = 255 + 6
"""Bytes of a name and a port."""

_MOST_KNOWN = 100
"""Spellings of names that are remembered."""

_CLUSTER = (".svc", ".svc.cluster.local")
"""Ends of the names of Kubernetes' Services, which nobody can register elsewhere."""


class HostNames:
    """The names that a listener goes by.

    On a loopback address those are loopback's own. Another listener is asked by address (Prometheus, the kubelet), by
    the machine's own name, by a name without a dot, or by that of a Kubernetes Service: a page of the internet is of no
    such origin, since it has a name with a dot that its owner has registered.
    """

    def __init__(self, listen: Address, more: Iterable[str] = ()) -> None:
        """`more` are further names, without a port; ANY_HOST among them stands for every name."""
        self._loopback = is_loopback(listen.host)
        self._more = {name.lower() for name in more} | ({socket.gethostname().lower()} if not self._loopback else set())
        self._known: set[str] = set()
        """Host headers that were found to be right."""

    def check(self, request: web.BaseRequest) -> None:
        """Check that the request's Host is a name of the listener. Raises ProblemError 421.

        A unix socket has no name, and HTTP/1.0 needs no Host.
        """
        host = request.headers.get("Host")
        if host is None or host in self._known:
            return
        if self._is_named(host):
            if len(self._known) < _MOST_KNOWN:
                self._known.add(host)
            return
        transport = request.transport
        if transport is not None and not isinstance(transport.get_extra_info("sockname"), tuple):
            return
        detail = f"Host: {host[:60]!r} is not a name of this listener; host_names adds names"
        raise ProblemError(421, "misdirected", detail, Outcome.INVALID)

    def _is_named(self, host: str) -> bool:
        """Return whether a Host header, with or without a port, names this listener."""
        if ANY_HOST in self._more:
            return True
        found = _HOST.fullmatch(host) if len(host) <= _LONGEST_HOST else None
        if found is None:
            return False
        name = found[1].lower().strip("[]").removesuffix(".")
        if name in self._more or is_loopback(name) or name.endswith(".localhost"):
            return True
        return not self._loopback and (_is_address(name) or "." not in name or name.endswith(_CLUSTER))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refuse_foreign(request: web.BaseRequest) -> None:
    """Return unless a page of another origin sends the request, also one of another port. Raises ProblemError 403."""
    headers = request.headers
    field = "Sec-Fetch-Site"
    value = headers.get(field)
    if value is None:
        field = "Origin"
        value = headers.get(field)
        # A client that is no browser sends neither field.
        if value is None or _is_own(value, headers.get("Host", "")):
            return
    elif value in ("same-origin", "none"):
        return
    detail = f"{field}: {value[:60]!r}: a web page of another origin may not send this"
    raise ProblemError(403, "forbidden", detail, Outcome.INVALID)


def _is_own(origin: str, host: str) -> bool:
    scheme, _, of = origin.partition("://")
    return scheme in ("http", "https") and bool(of) and of.lower() == host.lower()
