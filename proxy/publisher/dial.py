"""Connections to the first node of a cluster that takes one, for everything that speaks AMQP."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from proxy.settings.connection_faults import in_words
from proxy.settings.parse import Address

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Brokers:
    """The addresses of one cluster's nodes; each connection tries them in turn, beginning one further than the last."""

    def __init__(self, addresses: Sequence[Address], tls: Callable[[], ssl.SSLContext] | None, timeout: float) -> None:
        """Take the nodes' addresses. `timeout`, in seconds, limits all tries of one `dial` together.

        `tls` gives the context of each new connection, since certificates may change; if it is None, TCP is plain.
        """
        self._addresses, self._tls, self._timeout = tuple(addresses), tls, timeout
        self._turn = itertools.cycle(range(len(addresses)))

    async def dial(self, make: Callable[[], P]) -> P:
        """Connect a protocol to the first node that takes it, and return it; host names are resolved anew.

        Raises OSError, with the reason of each node, if no node takes it.
        """
        start = next(self._turn)
        faults: list[str] = []
        for address in (*self._addresses[start:], *self._addresses[:start]):
            connected = await self._dial(make, address, faults)
            if connected is not None:
                return connected
        raise OSError("; ".join(faults))

    async def _dial(self, make: Callable[[], P], address: Address, faults: list[str]) -> P | None:
        """Connect to the first of a host's IPs that takes it, and return the protocol; None if no IP does.

        Each failure is added to `faults`. Each IP gets its share of the host's time, since one may never answer, and
        uvloop does not try two at once.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout / len(self._addresses)
        try:
            async with asyncio.timeout_at(until):
                hosts = await _hosts(address)
        except OSError as error:
            faults.append(f"{address}: {in_words(error)}")
            return None
        for tried, host in enumerate(hosts):
            try:
                async with asyncio.timeout((until - loop.time()) / (len(hosts) - tried)):
                    tls = self._tls() if self._tls is not None else None
                    name = address.host if tls is not None else None
                    _, connected = await loop.create_connection(make, host, address.port, ssl=tls, server_hostname=name)
                    return connected
            except OSError as error:
                which = f"{address} ({host})" if len(hosts) > 1 else str(address)
                faults.append(f"{which}: {in_words(error)}")
        return None


async def _hosts(address: Address) -> list[str]:
    """Return the IPs of a host, in the resolver's order. Raises OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    ips = list(dict.fromkeys(str(where[0]) for *_, where in found))
    # One IP stays as it is written: uvloop would give `fe80::1%eth0` back without its interface.
    return ips if len(ips) > 1 else [address.host]
