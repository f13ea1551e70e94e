"""The addresses of one cluster's nodes, and how anything that speaks AMQP reaches one of them."""

import asyncio
import itertools
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
        faults = []
        for address in (*self._addresses[start:], *self._addresses[:start]):
            try:
                async with asyncio.timeout(self._timeout / len(self._addresses)):
                    tls = self._tls() if self._tls is not None else None
                    _, connected = await asyncio.get_running_loop().create_connection(
                        make, address.host, address.port, ssl=tls
                    )
                    return connected
            except TimeoutError:
                faults.append(f"{address}: no answer in time")
            except OSError as error:
                faults.append(f"{address}: {error.strerror or error}")
        raise OSError("; ".join(faults))
