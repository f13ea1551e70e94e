"""Ask the management API over HTTP: one method for each kind of request. Knows nothing of rings."""

import asyncio
import functools
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from proxy.settings.connection_faults import in_words, not_http
from proxy.settings.credentials import Authorization, basic, of_url
from proxy.settings.http_client import limited, session
from proxy.settings.parse import Address
from proxy.topology.answers import REFUSAL, Body, decode_answer, decode_whole
from proxy.topology.bindings import (
    Binding,
    Exchange,
    TopologyError,
    dead_letters_by_own_name,
    find_exchange,
    parse_alternate_policies,
    parse_applied_policies,
    parse_bindings,
    parse_bindings_with_arguments,
    parse_cluster_name,
    parse_exchange,
    parse_names,
    parse_nodes,
)
from proxy.topology.nodes import Node, Nodes

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ANSWER = 16 * 1024 * 1024
"""The most bytes of one answer; a longer one counts as malformed. 10,000 bindings take about 1 MB."""

MAX_PAGE, MAX_PAGE_VALUES = 4 * MAX_ANSWER, 4_000_000
"""The most bytes, and JSON values, of an answer to `page`. Commands ask for lists of all queues of a virtual host."""

_AT_ONCE = 32 * 1024
"""The most bytes of an answer that is decoded in the event loop, which takes 0.2 ms; a longer one goes to a thread."""

MAX_RETRY_AFTER = 60.0
"""The most seconds that a Retry-After header of the API can delay the next request."""

_ASK_AGAIN_AFTER = (0.05, 0.1, 0.2)
"""Seconds before each further try of a page that a node answers with status 500.

RabbitMQ answers so for the page of a queue that is being declared or deleted, for up to 0.035 s (measured: 110 to 160
of some 25,000 answers about a quorum queue that was deleted and declared again 110 times, on 3.10.8, 4.0.5 and 4.3.6).
"""

_ASK_AGAIN_WITHIN = 1.0
"""Seconds after the first try from which on a node that answers so is not asked again before the next node."""

_CONNECTIONS = 8
"""The most connections to the management API, and so the most requests at a time."""

_TLS_CLOSES_WITHIN = 0.1
"""Seconds that uvloop may take to close a connection whose TLS handshake was abandoned; it does not report when it is
done. A connection stayed open after 77 of 300 event loops that ended at once, after 5 that ended 0.02 s later, and
after none that ended 0.05 s later (measured)."""

_EXCHANGE_COLUMNS = ("name", "type", "internal", "auto_delete", "arguments", "policy", "message_stats.publish_in")

_QUEUE_COLUMNS = ("name", "arguments", "policy", "effective_policy_definition")

_CLUSTER_NAME = ("cluster-name",)
_VHOSTS = ("vhosts",)
_NODE_COLUMNS = ("name", "cluster_state")

_IN_WORDS = {
    401: ", a wrong user or password, no tag management, or no permission in that virtual host",
    403: ", the user may not see this",
}


_DOTS = frozenset({".", ".."})
"""Names that cannot stand in a URL's path: even percent-encoded, RabbitMQ resolves them and answers for another
page."""


class ManagementError(Exception):
    """A request to the management API failed; the message names its path and says why, without credentials."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """`retry_after` is how many seconds the API asked to wait, up to MAX_RETRY_AFTER; 0 if it did not ask."""
        super().__init__(message)
        self.retry_after = retry_after


class UnansweredError(ManagementError):
    """One node of the management API refused the connection, timed out or sent a 5xx status; another may answer."""

    def __init__(self, shown: str, why: str, retry_after: float = 0.0) -> None:
        """Take the path of the request and why it failed. `retry_after` is the seconds that the node asked to wait."""
        super().__init__(f"{shown}: {why}", retry_after)
        self.why = why


class _PageError(UnansweredError):
    """A node answered with status 500: it could not make the page, and may be able to a moment later."""


class RefusedError(ManagementError):
    """The broker refused a change; `reason` is in its own words, and `status` is the answer's."""

    def __init__(self, shown: str, status: int, reason: str) -> None:
        """Take the path of the request, and the status and reason of the answer."""
        super().__init__(f"{shown}: {status} {reason}")
        self.status, self.reason = status, reason


class NotAskableError(ManagementError):
    """The management API cannot be asked for a virtual host, exchange or queue of this name, `.` or `..`."""


class Management:
    """A client of one cluster's management API, with at most eight requests at a time. Used as an async context
    manager.

    If there are several URLs, a request that one node does not answer goes to the next. Before another node's answers
    count, `why_foreign` must say that it belongs to the same cluster.
    """

    def __init__(
        self,
        urls: Sequence[URL],
        timeout: float,
        authorization: Authorization | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Take the URLs of the cluster's nodes, at least one, and the seconds that a node may take for a request and
        its body.

        `authorization` and `tls` are called for each request. Without them, the credentials of the first URL and the
        system's certificates are used. `refused` is told each authorization that was answered with 401.
        """
        self._nodes = Nodes(urls)
        self.why_foreign: Callable[[str | None, frozenset[str]], str] = lambda cluster, nodes: ""
        """A function that says why a cluster with this name and these nodes is not the one asked before; empty if it
        is."""
        self._authorization = authorization or basic(lambda: of_url(urls[0]))
        self._tls, self._refused = tls, refused
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._decoding = asyncio.Lock()
        """Held while a thread decodes a long answer, so that the memory of only one is needed."""

    async def __aenter__(self) -> Self:
        """Open the HTTP session; nothing is requested yet."""
        self._session = session(self._timeout, _CONNECTIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the HTTP session and its connections."""
        if self._session is not None:
            await self._session.close()
            if any(node.base.scheme == "https" for node in self._nodes.all):
                await asyncio.sleep(_TLS_CLOSES_WITHIN)

    @property
    def switches(self) -> int:
        """The number of times that another node became the one that is asked."""
        return self._nodes.switches

    async def cluster_name(self) -> str | None:
        """Return the name of the cluster; None if the API has no such page, as RabbitMQ's has. Raises
        ManagementError.
        """
        return await self._get(_CLUSTER_NAME, ["name"], parse_cluster_name)

    async def vhosts(self) -> frozenset[str]:
        """Return the virtual hosts that the management user may see."""
        return await self._required(_VHOSTS, ["name"], _parse_vhosts)

    async def nodes(self) -> frozenset[str]:
        """Return the cluster's nodes, as its virtual hosts list them, which every management user may read."""
        return await self._required(_VHOSTS, _NODE_COLUMNS, parse_nodes)

    async def exchange_names(self, vhost: str) -> frozenset[str] | None:
        """Return the names of a virtual host's exchanges; None if the virtual host does not exist."""
        return await self._get(["exchanges", vhost], ["name"], _parse_exchange_names)

    async def exchange(self, vhost: str, name: str) -> Exchange | None:
        """Return one exchange; None if the API answers that it, or its virtual host, does not exist."""
        if name in _DOTS:
            return await self._get(["exchanges", vhost], _EXCHANGE_COLUMNS, lambda body: find_exchange(body, name))
        return await self._get(["exchanges", vhost, name], _EXCHANGE_COLUMNS, parse_exchange)

    async def bindings(self, vhost: str, name: str) -> tuple[Binding, ...]:
        """Return the bindings whose source is this exchange. For an unknown exchange RabbitMQ sends an
        empty list, too.
        """
        columns = ["destination", "destination_type", "routing_key", "arguments"]
        return await self._required(["exchanges", vhost, name, "bindings", "source"], columns, parse_bindings)

    async def bindings_with_arguments(self, vhost: str, name: str) -> tuple[Binding, ...]:
        """Return the bindings whose source is this exchange that have arguments."""
        columns = ["destination", "destination_type", "routing_key", "arguments"]
        path = ["exchanges", vhost, name, "bindings", "source"]
        return await self._required(path, columns, parse_bindings_with_arguments)

    async def alternate_policies(self, vhost: str) -> frozenset[str]:
        """Return the names of a virtual host's policies that give exchanges an alternate exchange.

        A user with the tag management may read this list, though not the page of a single policy (observed on 3.10.8
        and 4.3.6).
        """
        return await self._required(["policies", vhost], ["name", "definition"], parse_alternate_policies)

    async def policies_of_exchanges(self, vhost: str) -> Mapping[str, str]:
        """Return the name of the policy of each exchange of a virtual host that has one, by the exchange's name."""
        return await self._required(["exchanges", vhost], ["name", "policy"], parse_applied_policies)

    async def dead_letters_by_own_name(self, vhost: str, queue: str) -> str | None:
        """Return what makes a queue dead-letter without a routing key of its own; empty if it does not do so.

        The result is None if the queue does not exist or its policies do not show yet. RabbitMQ 3.10 shows a policy
        only with a queue's next statistics, up to 5 s late (observed).
        """
        if queue in _DOTS:
            return None
        return await self._get(["queues", vhost, queue], _QUEUE_COLUMNS, dead_letters_by_own_name)

    async def page(self, path: Sequence[str], columns: Sequence[str], most: int = MAX_PAGE) -> object | None:
        """Return the JSON of any page; None for 404. Raises ManagementError.

        `path` has the parts of the page's path after `/api`, `columns` the fields to answer with, and `most` is the
        most bytes of the answer.
        """
        return await self._get(path, columns, _parse_page, most)

    async def change(
        self, method: str, path: Sequence[str], body: Mapping[str, object] | None = None, query: str = ""
    ) -> None:
        """Have the broker declare, bind, unbind or delete. The request must be one that may be sent twice.

        `query` is the percent-encoded part of the URL from the question mark on, such as ``?if-empty=true``.
        Raises RefusedError if the broker refuses, with status 404 also for what does not exist, and UnansweredError if
        no node answered: then the change may have been made.
        """
        await self._first_answer(path, _Request(method, query, body))

    async def _required(self, path: Sequence[str], columns: Sequence[str], parse: Callable[[Body], T]) -> T:
        """Return what an answer says. Raises ManagementError, also for 404, or TopologyError."""
        answer = await self._get(path, columns, parse)
        if answer is None:
            raise ManagementError(f"{_shown(path)}: 404")
        return answer

    async def _get(
        self, path: Sequence[str], columns: Sequence[str], parse: Callable[[Body], T], most: int | None = None
    ) -> T | None:
        """Return what the first node says that answers; None for 404. Raises ManagementError or TopologyError.

        `parse` makes the result of the answer's body, and `most` is the most bytes of that.
        """
        body = await self._first_answer(path, _reading(columns, MAX_ANSWER if most is None else most))
        return None if body is None else await self._parsed(path, body, parse)

    async def _parsed(self, path: Sequence[str], body: bytearray, parse: Callable[[Body], T]) -> T:
        """Return what a body says, and empty it. Raises ManagementError if it is no answer of the API, or
        TopologyError.
        """
        try:
            if len(body) <= _AT_ONCE:
                return parse(body)
            async with self._decoding:
                return await asyncio.to_thread(parse, body)
        except TopologyError as error:
            raise TopologyError(f"{_shown(path)}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise ManagementError(f"{_shown(path)}: not an answer of the management API: {error}") from None
        finally:
            # Faults are kept with the frames of their tracebacks. A cancelled request's thread may still use it.
            with suppress(BufferError):
                body.clear()

    async def _first_answer(self, path: Sequence[str], request: "_Request") -> bytearray | None:
        """Return the body of the first node that answers; None for 404. Raises ManagementError."""
        if not _DOTS.isdisjoint(path):
            raise NotAskableError(f"{_shown(path)}: the management API cannot be asked for what is called '.' or '..'")
        faults: dict[Node, UnansweredError] = {}
        for node in self._nodes.in_turn():
            try:
                if self._nodes.is_other(node):
                    await self._admit(node, faults)
                answer = await self._ask(node, path, request)
            except UnansweredError as error:
                self._nodes.failed(node)
                faults[node] = error
            except ManagementError:
                self._nodes.answered(node)
                raise
            else:
                self._nodes.answered(node)
                return answer
        raise _together(_shown(path), [(node, faults[node]) for node in self._nodes.all])

    async def _admit(self, node: Node, faults: Mapping[Node, ManagementError]) -> None:
        """Make a node the one that is asked, if it belongs to the same cluster as before. Raises UnansweredError if
        not.
        """
        try:
            cluster, nodes = None, frozenset[str]()
            name = await self._ask(node, _CLUSTER_NAME, _reading(["name"], MAX_ANSWER))
            if name is not None:
                cluster = await self._parsed(_CLUSTER_NAME, name, parse_cluster_name)
                listed = await self._ask(node, _VHOSTS, _reading(_NODE_COLUMNS, MAX_ANSWER))
                if listed is None:
                    raise ManagementError(f"{_shown(_VHOSTS)}: 404")
                nodes = await self._parsed(_VHOSTS, listed, parse_nodes)
        except UnansweredError:
            raise
        except (ManagementError, TopologyError) as error:
            raise UnansweredError(_shown(_CLUSTER_NAME), f"the name of its cluster cannot be read: {error}") from None
        if why := self.why_foreign(cluster, nodes):
            if why != node.why_foreign:
                log.error("management_url: %s is not asked: %s", node, why)
            node.why_foreign = why
            raise UnansweredError(_shown(_CLUSTER_NAME), why)
        node.why_foreign = ""
        if self._nodes.is_other(node):
            told = "".join(f"; {other}: {fault}" for other, fault in faults.items() if other is self._nodes.current)
            log.warning("management_url: %s is asked from now on%s", node, told)
            self._nodes.switch(node)

    async def _ask(self, node: Node, path: Sequence[str], request: "_Request") -> bytearray | None:
        """Return the body of one node's answer; None for 404, and for a change that was made.

        Raises UnansweredError if another node may answer, and else ManagementError.
        """
        asked, pauses = time.monotonic(), list(_ASK_AGAIN_AFTER if request.method == "GET" else ())
        while True:
            try:
                return await self._ask_once(node, path, request)
            except _PageError:
                if not pauses or time.monotonic() - asked > _ASK_AGAIN_WITHIN:
                    raise
            await asyncio.sleep(pauses.pop(0))

    async def _ask_once(self, node: Node, path: Sequence[str], request: "_Request") -> bytearray | None:
        """Return what `_ask` returns; raise what it raises, or _PageError if it is worth asking the same node again."""
        if self._session is None:
            raise RuntimeError("the management client is not open")
        shown = _shown(path)
        url = URL(f"{str(node.base).rstrip('/')}{shown}{request.query}", encoded=True)
        try:
            authorization = self._authorization()
        except OSError as error:
            raise ManagementError(f"{shown}: {error}") from None
        tls = self._tls() if self._tls is not None else True
        try:
            async with self._session.request(
                request.method,
                url,
                headers={"Authorization": authorization},
                ssl=tls,
                allow_redirects=False,
                json=request.body,
            ) as response:
                if response.status == 401 and self._refused is not None:
                    self._refused(authorization)
                return await _body(shown, response, request)
        except TimeoutError:
            raise UnansweredError(shown, f"no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnansweredError(shown, _unanswered(node, error)) from None
        except ValueError as error:
            raise ManagementError(f"{shown}: not an answer of the management API: {error}") from None


class _Request(NamedTuple):
    """The kind of a request: its method, its query, the JSON of its body, and the most bytes of an answer to it."""

    method: str
    query: str
    body: Mapping[str, object] | None
    most: int = 0


def _reading(columns: Sequence[str], most: int) -> _Request:
    return _Request("GET", f"?columns={','.join(columns)}", None, most)


_parse_vhosts = functools.partial(parse_names, what="virtual hosts")
_parse_exchange_names = functools.partial(parse_names, what="exchanges")


def _parse_page(body: Body) -> object:
    """Return the JSON value of a page. Raises ValueError or RecursionError, also for null, which stands for 404."""
    page = decode_whole(body, MAX_PAGE_VALUES)
    if page is None:
        raise ValueError("null")
    return page


async def _body(shown: str, response: aiohttp.ClientResponse, request: _Request) -> bytearray | None:
    """Return the body of an answer; None for 404, and for a change that was made.

    Raises _PageError, UnansweredError or ManagementError by its status, and ValueError if it is too long.
    """
    if request.method != "GET" and response.status < 500:
        await _check_changed(shown, response)
        return None
    if response.status == 404:
        return None
    if response.status >= 500:
        retry_after = _retry_after(response.headers)
        fault = _PageError if response.status == 500 and not retry_after else UnansweredError
        raise fault(shown, str(response.status), retry_after)
    if response.status != 200:
        why = _IN_WORDS.get(response.status, "")
        raise ManagementError(f"{shown}: {response.status}{why}", _retry_after(response.headers))
    return await limited(response, request.most)


async def _check_changed(shown: str, response: aiohttp.ClientResponse) -> None:
    """Raise RefusedError, with the broker's reason, unless the answer says that the broker made the change."""
    if response.status in (201, 204):
        return
    try:
        reason = decode_answer(REFUSAL, await limited(response, _AT_ONCE), shown).reason
    except (ValueError, RecursionError):
        reason = ""
    raise RefusedError(shown, response.status, reason or _IN_WORDS.get(response.status, ""))


def _together(shown: str, faults: Sequence[tuple[Node, UnansweredError]]) -> UnansweredError:
    """Return the error of a request that no node answered, with each node's fault."""
    if len(faults) == 1:
        return faults[0][1]
    why = "; ".join(f"{node}: {fault.why}" for node, fault in faults)
    return UnansweredError(
        shown, f"none of {len(faults)} nodes answers: {why}", min(fault.retry_after for _, fault in faults)
    )


def _unanswered(node: Node, error: aiohttp.ClientError | OSError) -> str:
    """Return why a node gave no answer, and what to do about it."""
    if isinstance(error, aiohttp.ClientResponseError):
        return not_http(node, error.message)
    if not isinstance(error, aiohttp.ClientConnectorError):
        return f"management_url: {node}: {in_words(error)}"
    # aiohttp's own message says "ssl:default" even without TLS.
    where, why = Address(error.host, error.port or 0), error.os_error
    if isinstance(why, ConnectionRefusedError):
        return (
            f"management_url: {where} refuses connections; is the management plugin on there? "
            "(rabbitmq-plugins enable rabbitmq_management)"
        )
    return f"management_url: no connection to {where}: {in_words(why)}"


def _shown(path: Sequence[str]) -> str:
    """Return the percent-encoded path of a request, for its URL and for messages."""
    return "/api/" + "/".join(quote(part, safe="") for part in path)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header; 0 if it is absent, a date or malformed."""
    try:
        seconds = float(headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
    return min(seconds, MAX_RETRY_AFTER) if math.isfinite(seconds) and seconds > 0 else 0.0
