"""The management API: one method a request, every fault one of two errors. Knows nothing of rings."""

import asyncio
import json
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from proxy.credentials import Credentials, of_url
from proxy.topology import (
    Binding,
    Exchange,
    dead_letters_by_own_name,
    exchange_of,
    parse_bindings,
    parse_exchange,
    parse_names,
    parse_nodes,
)
from proxy.values import Address

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer that are read before it counts as rubbish; 10,000 bindings are about 1 MB."""

MAX_RETRY_AFTER = 60.0

_CONNECTIONS = 8

_TLS_CLOSES_WITHIN = 0.1
"""Seconds that uvloop may take to close a connection whose handshake was given up, of which nothing tells: of 300 loops
that ended at once 77 left one open, after 0.02 s 5, after 0.05 s none."""

_EXCHANGE_COLUMNS = ("name", "type", "internal", "arguments", "message_stats.publish_in")

_QUEUE_COLUMNS = ("name", "arguments", "policy", "effective_policy_definition")

_IN_WORDS = {
    401: ", a wrong user or password, no tag management, or no permission in that virtual host",
    403: ", the user may not see this",
}


_DOTS = frozenset({".", ".."})
"""Names that RabbitMQ takes for steps through the path of a URL, also percent-encoded: it answers for another page."""


class ManagementError(Exception):
    """A request that brought no usable answer; the message says which and why, without credentials."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds that the API asked to wait, up to MAX_RETRY_AFTER; 0 where it did not."""
        super().__init__(message)
        self.retry_after = retry_after


class NotAskableError(ManagementError):
    """A name for which the management API cannot be asked, whatever is tried."""


class Management:
    """A client of one management API, at most eight requests at a time. Use as an async context manager."""

    def __init__(
        self,
        url: URL,
        timeout: float,
        credentials: Credentials | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`timeout` in seconds limits one request, its body included.

        `credentials`, where not those in the URL, and `tls`, where not the system's, are asked for at each request.
        """
        self._base = url.with_user(None).with_password(None).with_query(None).with_fragment(None)
        self._credentials = credentials or (lambda: of_url(url))
        self._tls = tls
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Opens the session; nothing is requested yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
            headers={"Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            # Proxies in the environment are for the way out, not for the broker beside us.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the session."""
        if self._session is not None:
            await self._session.close()
            if self._base.scheme == "https":
                await asyncio.sleep(_TLS_CLOSES_WITHIN)

    async def cluster_name(self) -> str | None:
        """The name of the cluster that answers; None from an API without that page, which RabbitMQ's has."""
        answer = await self._get(["cluster-name"], ["name"])
        if answer is None:
            return None
        if not isinstance(answer, dict) or not isinstance(answer.get("name"), str):
            raise ManagementError(f"/api/cluster-name: {str(answer)[:60]!r} names no cluster")
        return str(answer["name"])

    async def vhosts(self) -> frozenset[str]:
        """The virtual hosts that the user may see."""
        return parse_names(await self._required(["vhosts"], ["name"]), "virtual host")

    async def nodes(self) -> frozenset[str]:
        """The cluster's nodes, as far as its virtual hosts tell: any management user may ask for those."""
        return parse_nodes(await self._required(["vhosts"], ["name", "cluster_state"]))

    async def exchange_names(self, vhost: str) -> frozenset[str] | None:
        """The exchanges of a virtual host; None where there is no such virtual host."""
        answer = await self._get(["exchanges", vhost], ["name"])
        return None if answer is None else parse_names(answer, "exchange")

    async def exchange(self, vhost: str, name: str) -> Exchange | None:
        """One exchange; None where the API says that it, or its virtual host, does not exist."""
        if name in _DOTS:
            return exchange_of(await self._get(["exchanges", vhost], _EXCHANGE_COLUMNS) or [], name)
        answer = await self._get(["exchanges", vhost, name], _EXCHANGE_COLUMNS)
        return None if answer is None else parse_exchange(answer)

    async def bindings(self, vhost: str, name: str) -> tuple[Binding, ...]:
        """The bindings whose source is one exchange. RabbitMQ answers an unknown exchange with an empty list too."""
        columns = ["destination", "destination_type", "routing_key"]
        return parse_bindings(await self._required(["exchanges", vhost, name, "bindings", "source"], columns))

    async def dead_letters_by_own_name(self, vhost: str, queue: str) -> str | None:
        """Return what makes a queue dead-letter without a routing key of its own; None where that does not show (yet).

        It is empty for a queue that does not do so.
        RabbitMQ 3.10 shows a policy's part of it only with a queue's next statistics, up to 5 s late (observed).
        """
        if queue in _DOTS:
            return None
        answer = await self._get(["queues", vhost, queue], _QUEUE_COLUMNS)
        return None if answer is None else dead_letters_by_own_name(answer)

    async def _required(self, path: Sequence[str], columns: Sequence[str]) -> object:
        answer = await self._get(path, columns)
        if answer is None:
            raise ManagementError(f"{_shown(path)}: 404")
        return answer

    async def _get(self, path: Sequence[str], columns: Sequence[str]) -> object | None:
        """The JSON of one answer, None for 404. Raises ManagementError."""
        if self._session is None:
            raise RuntimeError("the management client is not open")
        shown = _shown(path)
        if not _DOTS.isdisjoint(path):
            raise NotAskableError(f"{shown}: the management API cannot be asked for what is called '.' or '..'")
        url = URL(f"{str(self._base).rstrip('/')}{shown}?columns={','.join(columns)}", encoded=True)
        authorization = {"Authorization": aiohttp.encode_basic_auth(*self._credentials())}
        tls = self._tls() if self._tls is not None else True
        try:
            async with self._session.get(url, headers=authorization, ssl=tls, allow_redirects=False) as response:
                if response.status == 404:
                    return None
                if response.status != 200:
                    why = _IN_WORDS.get(response.status, "")
                    raise ManagementError(f"{shown}: {response.status}{why}", _retry_after(response.headers))
                return _decoded(await _limited(response))
        except TimeoutError:
            raise ManagementError(f"{shown}: no answer within {self._timeout:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise ManagementError(f"{shown}: {_not_connected(error)}") from None
        except (aiohttp.ClientError, OSError) as error:
            # Some of aiohttp's messages have several lines.
            raise ManagementError(f"{shown}: {' '.join(str(error).split()) or type(error).__name__}") from None
        except (ValueError, RecursionError) as error:
            raise ManagementError(f"{shown}: not an answer of the management API: {error}") from None


def _not_connected(error: aiohttp.ClientConnectorError) -> str:
    """Return why there is no connection, and what to do about it; aiohttp's own words say "ssl:default" in any case."""
    where, why = Address(error.host, error.port or 0), error.os_error
    if isinstance(why, ConnectionRefusedError):
        return (
            f"management_url: {where} refuses connections; is the management plugin on there? "
            "(rabbitmq-plugins enable rabbitmq_management)"
        )
    return f"management_url: no connection to {where}: {' '.join(str(why.strerror or why).split())}"


def _shown(path: Sequence[str]) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in path)


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise ValueError(f"longer than {MAX_ANSWER} bytes")
    return bytes(body)


def _decoded(body: bytes) -> object:
    decoded: object = json.loads(body)
    if decoded is None:
        raise ValueError("null")  # which is not the API's word for what does not exist
    return decoded


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of a Retry-After header; a date, or rubbish, counts as none."""
    try:
        seconds = float(headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
    return min(seconds, MAX_RETRY_AFTER) if math.isfinite(seconds) and seconds > 0 else 0.0
