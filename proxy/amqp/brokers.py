"""The addresses of one cluster's nodes, and how anything that speaks AMQP reaches one of them."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeVar

from proxy.config import Address

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Brokers:
    """The addresses of one cluster's nodes, tried in turn, each connection from the next on."""

    def __init__(self, addresses: Sequence[Address], tls: Callable[[], ssl.SSLContext] | None, timeout: float) -> None:
        """`tls` is asked at each connect, None is plain TCP; `timeout` in seconds is for all tries together."""
        self._addresses, self._tls, self._timeout = tuple(addresses), tls, timeout
        self._turn = itertools.cycle(range(len(addresses)))

    async def dial(self, make: Callable[[], P]) -> P:
        """Connects a protocol to the first that takes it, names resolved anew. Raises OSError with what each said."""
        start = next(self._turn)
        faults: list[str] = []
        for address in (*self._addresses[start:], *self._addresses[:start]):
            connected = await self._dial(make, address, faults)
            if connected is not None:
                return connected
        raise OSError("; ".join(faults))

    async def _dial(self, make: Callable[[], P], address: Address, faults: list[str]) -> P | None:
        """Connects to the first of a host's IPs that takes it, or adds to `faults` what each said.

        Each gets its share of the host's time: the first may be one that drops packets. (uvloop tries no two at once.)
        """
        loop = asyncio.get_running_loop()
        until, hosts = loop.time() + self._timeout / len(self._addresses), [address.host]
        try:
            async with asyncio.timeout_at(until):
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            faults.append(f"{address}: {_in_words(error)}")
            return None
        if len(found) > 1:
            # (What is one IP stays as it is written: uvloop resolves `fe80::1%eth0` to one without its interface.)
            hosts = list(dict.fromkeys(str(where[0]) for *_, where in found))
        for left, host in zip(range(len(hosts), 0, -1), hosts, strict=True):
            try:
                async with asyncio.timeout((until - loop.time()) / left):
                    tls = self._tls() if self._tls is not None else None
                    name = address.host if tls is not None else None
                    _, connected = await loop.create_connection(
                        make, host, address.port, ssl=tls, server_hostname=name
                    )
                    return connected
            except (OSError, TimeoutError) as error:
                which = f"{address} ({host})" if len(hosts) > 1 else str(address)
                faults.append(f"{which}: {_in_words(error)}")
        return None


def _in_words(error: OSError) -> str:
    # asyncio's TimeoutError is an OSError, as the one of TCP itself is, which has words of its own.
    return error.strerror or str(error) or "no answer in time"
