"""The HTTP ingress: one message a POST, answered 2xx only once the broker has confirmed it."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.http.problems import ProblemError, invalid, problem_middleware
from proxy.metrics import NOWHERE, Counts
from proxy.outcome import Outcome
from proxy.publisher import HeaderTooLargeError, Publish, Publisher, Unavailable, Verdict
from proxy.router import Message, Name, Passed, Routed, Router
from proxy.sync import Absent, NotReadable, Sync

INGRESS = "http"

SHORT_STRING = 255
"""Bytes of a routing key or a name, at most: an AMQP 0-9-1 short string (section 4.2.5.3)."""

HEADER_NAME = 128
"""Bytes of a header's name, at most (section 4.2.5.5)."""

_HEADER_PREFIX = "amqp-header-"

_PROPERTIES = {
    "content_type": "Content-Type",
    "content_encoding": "Content-Encoding",
    "message_id": "Amqp-Message-Id",
    "correlation_id": "Amqp-Correlation-Id",
}


class Ingest:
    """The ingress's requests, on the parts that answer them."""

    def __init__(
        self,
        router: Router,
        sync: Sync,
        publisher: Publisher,
        counts: Counts,
        *,
        default_vhost: str,
        lookup_timeout: float,
    ) -> None:
        """`default_vhost` is taken where a request names none; `lookup_timeout` in seconds."""
        self._router, self._sync, self._publisher, self._counts = router, sync, publisher, counts
        self._default_vhost, self._lookup_timeout = default_vhost, lookup_timeout
        self.draining = False
        self.active = 0
        """Publishes that are not answered yet."""
        self.idle = asyncio.Event()
        self.idle.set()

    def application(self, max_body: int) -> web.Application:
        """The ingress as an aiohttp application; `max_body` in bytes."""
        app = web.Application(client_max_size=max_body, middlewares=[problem_middleware])
        app.router.add_post("/v1/exchanges/{exchange:[^/]+}/publish", self.publish)
        app.router.add_get("/v1/exchanges/{exchange:[^/]+}/route", self.route, allow_head=False)
        return app

    async def publish(self, request: web.Request) -> web.Response:
        """``POST /v1/exchanges/{exchange}/publish?vhost=``: the body is the payload, `Routing-Key` its key."""
        self.active += 1
        self.idle.clear()
        counted = NOWHERE
        try:
            if self.draining:
                raise ProblemError(
                    503, "draining", "send it to another sidecar, or again later", Outcome.REJECTED, retryable=True
                )
            name = self._name(request, _query(request, {"vhost"}))
            message = _message(request)
            body = await _body(request)
            decision = await self._decide(name, message, "Routing-Key" in request.headers)
            counted = name
            verdict = await self._send(name, decision, message, request, body)
            receipt = await self._receipt(name, decision, verdict)
            outcome = Outcome.PASSED if isinstance(decision, Passed) else Outcome.CONFIRMED
            self._counts.publishes[INGRESS, counted, outcome] += 1
            return receipt
        except (ProblemError, web.HTTPException) as problem:
            outcome = problem.outcome if isinstance(problem, ProblemError) else Outcome.INVALID
            self._counts.publishes[INGRESS, counted, outcome] += 1
            raise
        finally:
            self.active -= 1
            if not self.active:
                self.idle.set()

    async def route(self, request: web.Request) -> web.Response:
        """``GET /v1/exchanges/{exchange}/route?key=&vhost=``: where a key goes; publishes nothing."""
        query = _query(request, {"vhost", "key"})
        if "key" not in query:
            raise ProblemError(400, "no-routing-key", "key: missing in the query", Outcome.INVALID)
        key = query["key"].encode("utf-8", "surrogateescape")
        name = self._name(request, query)
        decision = await self._decide(name, Message(_short("key", key), key=key))
        answer: dict[str, Any] = {"vhost": name[0], "exchange": name[1], "key": query["key"]}
        if isinstance(decision, Passed):
            answer |= {"outcome": Outcome.PASSED, "reason": decision.reason}
            if decision.shadow is not None:
                answer["would_be"] = _place(decision.shadow)
        else:
            runner_up = decision.by.ring.runner_up(decision.slot)
            answer |= _place(decision)
            answer["runner_up"] = {"type": runner_up.kind, "name": runner_up.name} if runner_up else None
            answer["hashed"] = str(decision.by.hashed)
        return _json(answer)

    async def _decide(self, name: Name, message: Message, has_routing_key: bool = True) -> Routed | Passed:
        """The router's decision, after looking up what it does not know. Raises ProblemError."""
        deadline = time.monotonic() + self._lookup_timeout
        while True:
            decision = self._router.decide(name, message)
            if not isinstance(decision, Routed | Passed):
                await self._look_up(name, decision.exchange, max(deadline - time.monotonic(), 0.001))
                if time.monotonic() >= deadline:
                    raise _unavailable(f"exchange {name[1]!r} could not be read in time")
                continue
            by_routing_key = isinstance(decision, Passed) or decision.by.hashed.source == "routing_key"
            if by_routing_key and not has_routing_key:
                raise ProblemError(400, "no-routing-key", "Routing-Key: the header is missing", Outcome.INVALID)
            return decision

    async def _look_up(self, name: Name, wanted: Name, within: float) -> None:
        try:
            await self._sync.look_up(wanted, within)
        except Absent as absent:
            if wanted == name:
                raise ProblemError(404, "unknown-exchange", f"exchange: {absent}", Outcome.INVALID) from None
            await self._sync.refresh(name, "an exchange behind it is gone")
            raise _unavailable(str(absent)) from None
        except NotReadable as error:
            raise _unavailable(f"exchange {wanted[1]!r} cannot be read: {error}") from None

    async def _send(
        self, name: Name, decision: Routed | Passed, message: Message, request: web.Request, body: bytes
    ) -> Verdict:
        vhost, exchange = name
        routing_key = message.routing_key.decode()
        headers = dict(message.headers)
        target = exchange
        if isinstance(decision, Routed):
            headers |= {"x-ring-exchange": exchange, "x-ring-routing-key": routing_key}
            target = decision.destination.name
            if decision.destination.kind == "queue":
                target, routing_key = "", decision.destination.name
        publish = Publish(
            target,
            routing_key,
            body,
            headers,
            _text(message.properties, "content_type"),
            _text(message.properties, "content_encoding"),
            _text(message.properties, "message_id"),
            _text(message.properties, "correlation_id"),
            _number(message.properties, "timestamp"),
        )
        try:
            await self._publisher.connected(vhost)
            self._check_cluster(vhost)
            started = time.monotonic()
            verdict = await self._publisher.publish(vhost, publish)
        except Unavailable as error:
            raise _unavailable(str(error)) from None
        except HeaderTooLargeError as error:
            raise invalid("Amqp-Header-*", str(error)) from None
        if verdict.outcome is not Outcome.UNKNOWN:
            self._counts.confirmed(time.monotonic() - started)
        self._counts.decided(name, decision)
        return verdict

    def _check_cluster(self, vhost: str) -> None:
        broker, management = self._publisher.cluster(vhost), self._sync.cluster
        if broker is not None and management is not None and broker != management:
            raise _unavailable(f"broker_url reaches cluster {broker!r}, management_url cluster {management!r}")

    async def _receipt(self, name: Name, decision: Routed | Passed, verdict: Verdict) -> web.Response:
        """200 for a confirm; for anything else a problem, once the exchange was read again where that may help."""
        if verdict.outcome is Outcome.CONFIRMED:
            if isinstance(decision, Passed):
                return _json({"outcome": Outcome.PASSED, "exchange": name[1], "reason": decision.reason})
            return _json({"outcome": Outcome.CONFIRMED, **_place(decision)})
        if verdict.outcome is Outcome.UNROUTABLE:
            await self._refresh(name, decision, "a message was returned")
        elif verdict.exchange_gone:
            await self._refresh(name, decision, "an exchange that was published to is gone")
        status = 504 if verdict.outcome is Outcome.UNKNOWN else 503
        raise ProblemError(status, verdict.outcome.value, verdict.detail, verdict.outcome, retryable=True)

    async def _refresh(self, name: Name, decision: Routed | Passed, why: str) -> None:
        """So that the client's next try finds the new ring; not for longer than a look-up may take."""
        gone = {decision.destination} if isinstance(decision, Routed) else set()
        names = {name}
        if isinstance(decision, Routed):
            # With rings behind rings, the one that chose.
            names |= {n for n, entry in self._router.entries.items() if entry.known is decision.by}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lookup_timeout):
                await asyncio.gather(*(self._sync.refresh(n, why, gone) for n in names))

    def _name(self, request: web.Request, query: Mapping[str, str]) -> Name:
        vhost = _short("vhost", query.get("vhost", self._default_vhost).encode("utf-8", "surrogateescape"))
        # Of the raw path: aiohttp's own decoding leaves bytes that are not UTF-8 as they stand, `%FF`.
        exchange = _short("exchange", unquote_to_bytes(request.rel_url.raw_path.split("/")[3]))
        return _utf8("vhost", vhost), _utf8("exchange", exchange)


def _place(routed: Routed) -> dict[str, Any]:
    destination = {"type": routed.destination.kind, "name": routed.destination.name}
    return {"destination": destination, "slot": routed.slot, "ring": routed.by.fingerprint}


def _json(answer: Mapping[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def _unavailable(detail: str) -> ProblemError:
    return ProblemError(503, "unavailable", detail, Outcome.UNAVAILABLE, retryable=True)


def _query(request: web.Request, allowed: set[str]) -> dict[str, str]:
    """The query's parameters, any bytes kept as surrogates; each at most once and none but those allowed."""
    pairs = parse_qsl(
        request.rel_url.raw_query_string, keep_blank_values=True, encoding="utf-8", errors="surrogateescape"
    )
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise invalid(f"query parameter {name[:60]!r}", f"not one of {', '.join(sorted(allowed))}")
        if name in query:
            raise invalid(f"query parameter {name!r}", "given twice")
        query[name] = value
    return query


def _message(request: web.Request) -> Message:
    """What can be hashed, from the headers `Routing-Key`, `Amqp-Header-*`, `Amqp-Message-Id` and their like."""
    headers: dict[str, object] = {}
    for raw_name, raw_value in request.raw_headers:
        name = raw_name.decode("ascii", "replace")
        if name.lower().startswith(_HEADER_PREFIX):
            headers[_header_name(name)] = _utf8(name, raw_value)
    properties: dict[str, object] = {}
    for field, header in _PROPERTIES.items():
        if (value := _header(request, header)) is not None:
            properties[field] = _utf8(header, _short(header, value))
    if (value := _header(request, "Amqp-Timestamp")) is not None:
        if not (value.isdigit() and len(value) <= 11):
            raise invalid("Amqp-Timestamp", f"{value[:40]!r} is not a number of seconds since 1970")
        properties["timestamp"] = int(value)
    routing_key = _short("Routing-Key", _header(request, "Routing-Key") or b"")
    _utf8("Routing-Key", routing_key)
    return Message(routing_key, headers, properties)


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except (ConnectionError, HttpProcessingError, web.RequestPayloadError) as error:
        # Nobody may be there any more to read this, but no more did this sidecar do wrong.
        raise invalid("body", f"it ended before it was whole: {error}") from None


def _header_name(name: str) -> str:
    amqp_name = name[len(_HEADER_PREFIX) :]
    if not 0 < len(amqp_name) <= HEADER_NAME:
        raise invalid(name[:60], f"the header's own name has {len(amqp_name)} bytes, not 1 to {HEADER_NAME}")
    return amqp_name


def _header(request: web.Request, name: str) -> bytes | None:
    """A header's bytes; None where it is missing."""
    values = request.headers.getall(name, [])
    if len(values) > 1:
        raise invalid(name, "given twice")
    return values[0].encode("utf-8", "surrogateescape") if values else None


def _short(field: str, value: bytes) -> bytes:
    if len(value) > SHORT_STRING:
        shown = value[:40].decode("utf-8", "backslashreplace")
        raise invalid(field, f"{shown!r}... has {len(value)} bytes, {SHORT_STRING} are the most")
    return value


def _utf8(field: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(field, f"{value[:40]!r} is not UTF-8") from None


def _text(properties: Mapping[str, object], name: str) -> str | None:
    value = properties.get(name)
    return value if isinstance(value, str) else None


def _number(properties: Mapping[str, object], name: str) -> int | None:
    value = properties.get(name)
    return value if isinstance(value, int) else None
