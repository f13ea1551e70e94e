"""Where a key would go: asked of the same table that routes publishes, and nothing is published."""

from typing import Any

from aiohttp import web

from proxy.http.admission.gate import Gate, head_of
from proxy.http.formats.answers import json_answer, named
from proxy.http.formats.parsing import name_of, query_of, short
from proxy.http.formats.problems import ProblemError, refused
from proxy.http.sending.dispatch import Dispatch
from proxy.http.sending.receipts import place
from proxy.outcome import Outcome
from proxy.topology.table import Name, Passed, Routed, Router


class Question:
    """``GET /v1/exchanges/{exchange}/route``."""

    def __init__(self, gate: Gate, router: Router, dispatch: Dispatch, *, default_vhost: str) -> None:
        """`default_vhost` is taken where a request names none."""
        self._gate, self._router, self._dispatch = gate, router, dispatch
        self._default_vhost = default_vhost

    def routes(self) -> list[web.RouteDef]:
        """What it answers."""
        return [web.get("/v1/exchanges/{exchange:[^/]+}/route", self.route, allow_head=False)]

    async def route(self, request: web.Request) -> web.Response:
        """Where ``?key=`` goes."""
        query = query_of(request, {"vhost", "key"})
        if "key" not in query:
            raise ProblemError(400, "no-routing-key", "key: missing in the query", Outcome.INVALID)
        key = short("key", query["key"].encode("utf-8", "surrogateescape"))
        name = name_of(request, query, self._default_vhost)
        self._gate.check(request, name)
        # A look-up may take as long as a publish; but it is none.
        with self._gate.admitted(counted=True) as admitted:
            self._gate.take(admitted, head_of(request))
            decision = await self._decide(name, key)
        answer: dict[str, Any] = {"vhost": name[0], "exchange": name[1], "key": query["key"]}
        if isinstance(decision, Passed):
            answer |= {"outcome": Outcome.PASSED, "reason": decision.reason}
            if decision.shadow is not None:
                answer["would_be"] = _place(decision.shadow)
        else:
            runner_up = decision.by.ring.runner_up(decision.slot)
            answer |= _place(decision)
            answer["runner_up"] = named(runner_up) if runner_up else None
            answer["hashed"] = str(decision.by.hashed)
        return json_answer(answer)

    async def _decide(self, name: Name, key: bytes) -> Routed | Passed:
        """The router's decision, after looking up what it does not know. Raises ProblemError."""
        asked = self._router.clock()
        while not isinstance(decision := self._router.decide(name, key, asked), Routed | Passed):
            if decision.refused:
                raise refused(decision.exchange, decision.why)
            await self._dispatch.look_up(name, decision.exchange, asked)
        return decision


def _place(routed: Routed) -> dict[str, Any]:
    return place(routed.destination, routed.slot, routed.by.fingerprint)
