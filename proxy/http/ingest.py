"""The HTTP ingress: one message a POST, answered 2xx only once the broker has confirmed it."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from proxy.http.parsing import body_of, message_of, name_of, query_of, short
from proxy.http.problems import ProblemError, invalid, problem_middleware
from proxy.metrics import Counts
from proxy.outcome import Outcome
from proxy.publisher import STAMPS, HeaderTooLargeError, Publish, Publisher, Unavailable, Verdict
from proxy.router import Message, Name, Passed, Routed, Router
from proxy.sync import Absent, NotReadable, Sync
from proxy.tally import NOWHERE

INGRESS = "http"


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
            name = name_of(request, query_of(request, {"vhost"}), self._default_vhost)
            if name in self._router.entries:
                counted = name
            message = message_of(request)
            body = await body_of(request)
            decision = await self._decide(name, message, "Routing-Key" in request.headers)
            counted = name
            self._refuse_internal(name)
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
        query = query_of(request, {"vhost", "key"})
        if "key" not in query:
            raise ProblemError(400, "no-routing-key", "key: missing in the query", Outcome.INVALID)
        key = query["key"].encode("utf-8", "surrogateescape")
        name = name_of(request, query, self._default_vhost)
        decision = await self._decide(name, Message(short("key", key), key=key))
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
        asked, deadline = self._router.clock(), time.monotonic() + self._lookup_timeout
        while True:
            decision = self._router.decide(name, message, asked)
            if not isinstance(decision, Routed | Passed):
                if time.monotonic() >= deadline:
                    raise _unavailable(f"exchange {name[1]!r} could not be read in time")
                await self._look_up(name, decision.exchange, max(deadline - time.monotonic(), 0.001))
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

    def _refuse_internal(self, name: Name) -> None:
        entry = self._router.entries.get(name)
        if entry is not None and entry.internal:
            detail = f"exchange: {name[1]!r} is internal, and takes messages from other exchanges only"
            raise ProblemError(403, "internal-exchange", detail, Outcome.INVALID)

    async def _send(
        self, name: Name, decision: Routed | Passed, message: Message, request: web.Request, body: bytes
    ) -> Verdict:
        vhost, exchange = name
        routing_key = message.routing_key.decode()
        headers = {header: value for header, value in message.headers.items() if header not in STAMPS}
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
            self._counts.http_latency.add(time.monotonic() - started)
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


def _place(routed: Routed) -> dict[str, Any]:
    destination = {"type": routed.destination.kind, "name": routed.destination.name}
    return {"destination": destination, "slot": routed.slot, "ring": routed.by.fingerprint}


def _json(answer: Mapping[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def _unavailable(detail: str) -> ProblemError:
    return ProblemError(503, "unavailable", detail, Outcome.UNAVAILABLE, retryable=True)


def _text(properties: Mapping[str, object], name: str) -> str | None:
    value = properties.get(name)
    return value if isinstance(value, str) else None


def _number(properties: Mapping[str, object], name: str) -> int | None:
    value = properties.get(name)
    return value if isinstance(value, int) else None
