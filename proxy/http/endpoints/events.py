"""``POST /v1/exchanges/{exchange}/events``: CloudEvents 1.0, one or a batch of them."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from aiohttp import web

from proxy.http.admission.gate import Admitted, Gate
from proxy.http.endpoints.batch import BatchEndpoint
from proxy.http.endpoints.publish import PublishEndpoint
from proxy.http.formats.cloudevents import Form, binary, form_of, identity_of, message_of, structured
from proxy.http.formats.fields import ItemError
from proxy.http.formats.message import Message
from proxy.http.formats.parsing import key_of, name_of, query_of, refuse_message_headers
from proxy.http.formats.problems import ProblemError, no_routing_key, too_large, unsupported
from proxy.http.formats.scanning import Framing, Item
from proxy.http.sending.batch import Batch, FieldNames
from proxy.outcome import Outcome
from proxy.settings.config import Settings

_WORDS = FieldNames("events", "partitionkey")

_INSTEAD = "the routing key is the attribute partitionkey or ?key=, and attributes become message headers"


class EventsEndpoint:
    """The CloudEvents endpoint: one event is published as a message, several as a batch."""

    def __init__(self, gate: Gate, single: PublishEndpoint, batches: BatchEndpoint, settings: Settings) -> None:
        self._gate, self._single, self._batches, self._settings = gate, single, batches, settings

    async def answer(self, request: web.Request) -> web.Response:
        """Publish one event as a single message, or several as a batch, and return the answer. Raises ProblemError."""
        with self._gate.admitted() as admitted:
            query = query_of(request, {"vhost", "key"})
            name = name_of(request, query, self._settings.default_vhost)
            self._gate.authorize(request, name, admitted)
            refuse_message_headers(request, _INSTEAD)
            key, form = key_of(None, query), _form(request)
            if form is Form.BATCHED:
                sizes = self._gate.sizes
                add = partial(self._add, set(), key, sizes.max_body)
                return await self._batches.sent(request, admitted, name, Framing.LIST, sizes, add, words=_WORDS)
            message = await self._message(request, admitted, form)
            try:
                return await self._single.confirmed(request, admitted, name, _keyed(message, key))
            except ProblemError as problem:
                if problem.kind != "no-routing-key":
                    raise
                field = "ce-partitionkey" if form is Form.BINARY else "partitionkey"
                raise no_routing_key(field, "in this attribute or as ?key=") from None

    async def _message(self, request: web.Request, admitted: Admitted, form: Form) -> Message:
        """Return the message of one event. Raises ProblemError.

        This is a function of its own so that the body and the parsed event are freed before the answer is waited for.
        """
        body = await self._gate.body(request, admitted, self._gate.sizes.max_body)
        try:
            raw = request.raw_headers
            return binary(raw, body) if form is Form.BINARY else structured(body, raw)
        except ItemError as error:
            if error.too_large:
                raise too_large(str(error)) from None
            raise ProblemError(400, "bad-request", str(error), Outcome.INVALID) from None

    def _add(
        self, known: set[bytes], default: bytes | None, most: int, batch: Batch, event: Item
    ) -> Coroutine[Any, Any, None] | None:
        """Add one event to the batch; return what must be awaited before the next, None if nothing must.

        The identities before it are `known`, which grows, and `default` is the key if it has none. An event with a
        mistake, or with more than `most` bytes of data, is refused in the batch, which goes on.
        """
        index = len(batch)
        try:
            event_id, message = message_of(event)
        except ItemError as error:
            batch.refuse(error.id, default if error.key == b"" else error.key, f"events[{index}].{error}")
            return None
        message, identity = _keyed(message, default), identity_of(event)
        if identity in known:
            detail = f"events[{index}].id: given twice by one source: {event['id'][:60]!r}"
            batch.refuse(event_id, None, detail, message)
            return None
        known.add(identity)
        if len(message.body) > most:
            detail = f"events[{index}].data: more than {most} bytes (max_body)"
            batch.refuse(event_id, None, detail, message)
            return None
        return batch.add(event_id, message)


def _form(request: web.Request) -> Form:
    """Return the content mode in which the request carries events. Raises ProblemError 415."""
    try:
        form = form_of(request.headers.get("Content-Type", ""))
    except ValueError as error:
        raise unsupported(str(error)) from None
    if form is not Form.BINARY and request.headers.get("Content-Encoding", "identity") != "identity":
        raise unsupported(f"Content-Encoding: not taken with {form.value}")
    return form


def _keyed(message: Message, default: bytes | None) -> Message:
    """Return the message with `default` as its routing key, if the event has no `partitionkey`."""
    return message if message.key is not None else message._replace(key=default)
