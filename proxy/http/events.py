"""``POST /v1/exchanges/{exchange}/events``: CloudEvents 1.0, one or a batch of them."""

import asyncio
from collections.abc import Mapping

from aiohttp import web

from proxy.http.batch import Batch, Words
from proxy.http.batches import Batches
from proxy.http.cloudevents import Form, batched, binary, form_of, identity_of, message_of, structured
from proxy.http.fields import ItemError
from proxy.http.gate import Gate
from proxy.http.ingest import Ingest
from proxy.http.message import Message
from proxy.http.parsing import key_of, name_of, query_of
from proxy.http.problems import ProblemError
from proxy.outcome import Outcome

_WORDS = Words("events", "partitionkey")

_YIELD_EVERY = 256
"""Events of a batch between turns of others."""


class Events:
    """Events, published as single messages and batches are."""

    def __init__(
        self,
        gate: Gate,
        single: Ingest,
        batches: Batches,
        *,
        default_vhost: str,
        max_body: int,
        max_batch: int,
    ) -> None:
        """`max_body` in bytes, of the request; `max_batch` events."""
        self._gate, self._single, self._batches = gate, single, batches
        self._default_vhost, self._max_body, self._max_batch = default_vhost, max_body, max_batch

    def routes(self) -> list[web.RouteDef]:
        """What it answers."""
        return [web.post("/v1/exchanges/{exchange:[^/]+}/events", self.publish)]

    async def publish(self, request: web.Request) -> web.Response:
        """The answer to one event as to a message, to a batch of them as to a batch."""
        with self._gate.admitted() as admitted:
            query = query_of(request, {"vhost", "key"})
            name = name_of(request, query, self._default_vhost)
            self._gate.check(request, name, admitted)
            try:
                form = form_of(request.headers.get("Content-Type", ""))
            except ValueError as error:
                raise ProblemError(415, "media-type", str(error), Outcome.INVALID) from None
            if form is not Form.BINARY and request.headers.get("Content-Encoding", "identity") != "identity":
                detail = f"Content-Encoding: not taken with {form.value}"
                raise ProblemError(415, "media-type", detail, Outcome.INVALID)
            body = await self._gate.body(request, admitted, self._max_body)
            try:
                if form is Form.BATCHED:
                    events = batched(body)
                    return await self._batches.sent(
                        request, admitted, name, lambda batch: self._fill(batch, events, query), _WORDS
                    )
                message = binary(request.raw_headers, body) if form is Form.BINARY else structured(body)
            except ItemError as error:
                status, kind = (413, "too-large") if error.too_large else (400, "bad-request")
                raise ProblemError(status, kind, str(error), Outcome.INVALID) from None
            return await self._single.confirmed(request, admitted, name, _keyed(message, query))

    async def _fill(self, batch: Batch, events: list[object], query: Mapping[str, str]) -> None:
        if len(events) > self._max_batch:
            raise ProblemError(413, "too-large", f"body: more than {self._max_batch} events", Outcome.INVALID)
        known: set[tuple[str, str]] = set()
        for index, event in enumerate(events):
            try:
                event_id, message = message_of(event)
            except ItemError as error:
                key = key_of(None, query) if error.key == b"" else error.key
                batch.refuse(error.id, key, f"events[{index}].{error}")
            else:
                message, identity = _keyed(message, query), identity_of(event)
                if identity in known:
                    detail = f"events[{index}].id: given twice by one source: {identity[1][:60]!r}"
                    batch.refuse(event_id, message.key, detail)
                elif (step := batch.add(event_id, message)) is not None:
                    await step
                known.add(identity)
            if index % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)


def _keyed(message: Message, query: Mapping[str, str]) -> Message:
    """With the key of the query, where the event has no `partitionkey`."""
    return message if message.key is not None else message._replace(key=key_of(None, query))
