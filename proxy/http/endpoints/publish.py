"""``POST /v1/exchanges/{exchange}/publish``: one message, answered 2xx only once the broker has confirmed it."""

import time

from aiohttp import web

from proxy.http.admission.gate import Admitted, Gate
from proxy.http.formats.message import Message
from proxy.http.formats.parsing import key_and_properties, name_of, prefers, query_of
from proxy.http.sending.dispatch import Dispatch
from proxy.http.sending.receipts import failure, minimal, receipt_answer
from proxy.http.sending.single import Single
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED
from proxy.routing.counters import Counts
from proxy.settings.config import Settings
from proxy.topology.table import Name
from proxy.wire.properties import Header


class PublishEndpoint:
    """The publish endpoint; it also publishes the single messages of other endpoints, such as CloudEvents."""

    def __init__(self, gate: Gate, dispatch: Dispatch, counts: Counts, settings: Settings) -> None:
        self._gate, self._dispatch, self._counts, self._settings = gate, dispatch, counts, settings

    async def answer(self, request: web.Request) -> web.Response:
        """Publish the request's body as the payload of one message, and return the answer."""
        with self._gate.admitted() as admitted:
            query = query_of(request, _QUERY)
            name = name_of(request, query, self._settings.default_vhost)
            self._gate.authorize(request, name, admitted)
            key, properties = key_and_properties(request, query)
            body = await self._gate.body(request, admitted, self._gate.sizes.max_body)
            return await self.confirmed(request, admitted, name, Message(key, Header.of(properties), body))

    async def confirmed(self, request: web.Request, admitted: Admitted, name: Name, message: Message) -> web.Response:
        """Publish one message; return its answer once the broker has confirmed it. Raises ProblemError otherwise."""
        # Headers may be longer as they are published than as they came.
        self._gate.hold(admitted, message.size)
        handle = await self._dispatch.exchange_handle(name)
        single = Single(self._dispatch, handle, message, self._gate.loop)
        await single.send()
        admitted.name = name
        started = time.monotonic()
        result = await single.result()
        if result.outcome is not Outcome.UNKNOWN:
            self._counts.http_latency.add(time.monotonic() - started)
        if result is not CONFIRMED:
            # The publisher counts all that the broker took and kept.
            admitted.counted = result.outcome not in (Outcome.INVALID, Outcome.UNROUTABLE)
            raise await failure(self._dispatch, single.placement, result)
        return minimal() if prefers(request, "minimal") else receipt_answer(single.placement)


_QUERY = {"vhost", "key"}
