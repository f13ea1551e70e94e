"""``GET /v1/exchanges/{exchange}/route``: the destination of a key, by the table that routes publishes."""

from typing import Any

from aiohttp import web

from proxy.http.admission.gate import Gate, head_of
from proxy.http.formats.answers import json_answer, named
from proxy.http.formats.parsing import name_of, query_of, short
from proxy.http.formats.problems import no_routing_key
from proxy.http.sending.dispatch import Dispatch
from proxy.http.sending.receipts import place
from proxy.outcome import Outcome
from proxy.routing.route import Choice
from proxy.settings.config import Settings


class RouteEndpoint:
    """The endpoint that says where a key would go, and publishes nothing."""

    def __init__(self, gate: Gate, dispatch: Dispatch, settings: Settings) -> None:
        self._gate, self._dispatch, self._settings = gate, dispatch, settings

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the destination of a message with the routing key ``?key=``, or with the reason to pass it.

        Raises ProblemError, as without a key.
        """
        query = query_of(request, {"vhost", "key"})
        if "key" not in query:
            raise no_routing_key("key", "as ?key=")
        key = short("key", query["key"].encode("utf-8", "surrogateescape"))
        name = name_of(request, query, self._settings.default_vhost)
        self._gate.authorize(request, name)
        # A look-up may take as long as a publish; but it is none.
        with self._gate.admitted(counted=True) as admitted:
            self._gate.take(admitted, head_of(request))
            choice, reason = await self._dispatch.choose(name, key)
        answer: dict[str, Any] = {"vhost": name[0], "exchange": name[1], "key": query["key"]}
        if reason is not None:
            answer |= {"outcome": Outcome.PASSED, "reason": reason}
            if choice is not None:
                answer["would_be"] = _place(choice)
        else:
            assert choice is not None  # a ring's
            known = choice.by.known
            assert known is not None
            runner_up = known.ring.runner_up(choice.slot)
            answer |= _place(choice)
            answer["runner_up"] = named(runner_up) if runner_up else None
            answer["hashed"] = str(known.hashed)
        return json_answer(answer)


def _place(choice: Choice) -> dict[str, Any]:
    return place(choice.target.destination, choice.slot, choice.by.fingerprint)
