"""``POST /v1/exchanges/{exchange}/publish/batch``: JSON or lines of it, gzip or not, of any length."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from aiohttp import web

from proxy.http.admission.gate import INGRESS, Admitted, Gate, head_of
from proxy.http.admission.sizes import Sizes
from proxy.http.formats.answers import json_answer
from proxy.http.formats.fields import ItemError, message_of
from proxy.http.formats.items import Items
from proxy.http.formats.parsing import name_of, prefers, query_of, refuse_message_headers
from proxy.http.formats.problems import ProblemError, more_than, too_large, unsupported
from proxy.http.formats.scanning import BodyError, Framing, Item
from proxy.http.sending.batch import MESSAGES, Batch, FieldNames
from proxy.http.sending.dispatch import Dispatch
from proxy.http.sending.receipts import minimal
from proxy.outcome import Outcome
from proxy.routing.counters import Counts
from proxy.settings.config import Settings
from proxy.topology.table import Name

_FRAMINGS = {
    "application/json": Framing.OBJECT,
    "application/x-ndjson": Framing.LINES,
    "application/ndjson": Framing.LINES,
    "application/jsonl": Framing.LINES,
}
"""The framing of a body's messages, by the media type of the body."""

_BUFFER = 1 << 17
"""The most bytes of a body that wait in aiohttp's buffer to be read."""

_ENTRY = 1 << 10
"""The bytes that a message counts until its batch is answered: for its id, the id's place in a set, its key and detail.

Usual messages take half as much; a message with the longest id, key and detail, in wide characters, twice as much.
"""

_JSON_SHARE = 3
"""The most characters of an item's JSON for a byte of payload. Text in which all but ASCII is escaped, as json.dumps
does it (6 for 2 bytes of Cyrillic), needs as many, and base64 needs fewer; only control characters need 6."""

_INSTEAD = "a message has its own `key`, `properties` and `headers`"

Add = Callable[[Batch, Item], Coroutine[Any, Any, None] | None]
"""Adds an item to a batch, and gives what must be awaited before the next, if anything; keeps nothing of the item."""

_Send = Callable[[Admitted, Batch, Iterator[Item]], Awaitable[None]]
"""Sends the items of a piece, and keeps nothing of them."""


class BatchEndpoint:
    """The batch endpoint, and the publishing of batches for others that take one (CloudEvents)."""

    def __init__(self, gate: Gate, dispatch: Dispatch, counts: Counts, settings: Settings) -> None:
        """A batch waits for `lookup_timeout` seconds for room for one more message."""
        self._gate, self._dispatch, self._counts, self._settings = gate, dispatch, counts, settings

    async def answer(self, request: web.Request) -> web.Response:
        """Publish the batch in the request's body, and return the answer.

        Raises ProblemError unless all is confirmed.
        """
        with self._gate.admitted(0) as admitted:
            name = name_of(request, query_of(request, {"vhost"}), self._settings.default_vhost)
            self._gate.authorize(request, name, admitted)
            refuse_message_headers(request, _INSTEAD)
            framing, gzip = _framed(request)
            sizes = self._gate.sizes
            add = partial(self._add, set(), sizes.max_body)
            return await self.sent(request, admitted, name, framing, sizes, add, gzip=gzip)

    async def sent(
        self,
        request: web.Request,
        admitted: Admitted,
        name: Name,
        framing: Framing,
        sizes: Sizes,
        add: Add,
        *,
        gzip: bool = False,
        words: FieldNames = MESSAGES,
    ) -> web.Response:
        """Publish the batch in a request's body, which must keep `sizes` to its end; return its answer.

        Raises ProblemError unless all is confirmed.
        """
        items = _items(request, framing, sizes, gzip)
        admitted.batch = True
        # One buffer may come while a look-up is waited for; a silent client takes the room of others no longer than
        # that.
        self._gate.take(admitted, head_of(request) + _BUFFER)
        handle = await self._dispatch.exchange_handle(name)
        await self._dispatch.check(handle)
        self._gate.give(admitted, _BUFFER)
        batch = Batch(self._dispatch, self._gate.limits, handle, self._settings.lookup_timeout, words)
        broken: ProblemError | None = None
        try:
            try:
                await self._read(request, admitted, items, batch, partial(self._send, sizes.max_batch, add))
            except ProblemError as problem:
                broken = problem
            started = time.monotonic()
            await batch.done()
        finally:
            batch.abandon()
        admitted.counted = bool(len(batch))
        for outcome, count in batch.unsent().items():
            self._counts.unsent[INGRESS, name, outcome] += count
        if broken is not None:
            broken.more = {"results": batch.results()}
            if len(batch):
                broken.outcome = Outcome.UNKNOWN
            raise broken
        if not batch.is_confirmed:
            raise batch.problem()
        self._counts.http_latency.add(time.monotonic() - started)
        if prefers(request, "minimal"):
            return minimal()
        answer = batch.summary()
        if prefers(request, "representation"):
            answer["results"] = batch.results()
        return json_answer(answer)

    async def _read(self, request: web.Request, admitted: Admitted, items: Items, batch: Batch, send: _Send) -> None:
        """Read the body, and send each message as it becomes whole. Raises ProblemError if reading fails."""
        head, came = admitted.size, 0
        try:
            async for part in self._gate.parts(request):
                came += len(part)
                # The room covers the bytes that are read, and as many that wait behind them.
                self._gate.hold(admitted, head + 2 * min(came, _BUFFER) + len(batch) * _ENTRY)
                for piece in items.pieces(part):
                    await send(admitted, batch, piece)
                    self._gate.hold(admitted, items.held + len(batch) * _ENTRY)
                    # Others take their turn between the pieces, also where the next one is there already.
                    await asyncio.sleep(0)
            await send(admitted, batch, items.end())
        except BodyError as error:
            if error.too_large:
                raise too_large(str(error)) from None
            raise ProblemError(400, "bad-request", str(error), Outcome.INVALID) from None

    async def _send(self, most: int, add: Add, admitted: Admitted, batch: Batch, piece: Iterator[Item]) -> None:
        """Send the items of a piece, up to `most` in the batch. Raises BodyError at the first one beyond it.

        Returns between pieces, so that no item is held while the next is awaited.
        """
        for item in piece:
            if len(batch) >= most:
                raise BodyError(len(batch), f"{batch.words.messages}: more than {most} (max_batch)", too_large=True)
            self._gate.take(admitted, _ENTRY)
            if (step := add(batch, item)) is not None:
                # A parsed item takes up to thirty times its text, and is not counted: it must not wait as well.
                item.clear()
                await step

    def _add(self, ids: set[str], most: int, batch: Batch, item: Item) -> Coroutine[Any, Any, None] | None:
        """Add one item to the batch, and return what must be awaited before the next; None if nothing must.

        An item with a mistake, an id in `ids` or a payload of more than `most` bytes is refused in the batch, which
        goes on. `ids` gets the item's id. `_send` has looked at `max_batch`.
        """
        index = len(batch)
        try:
            message_id, message = message_of(item)
        except ItemError as error:
            if error.id is not None:
                ids.add(error.id)
            batch.refuse(error.id, error.key, f"messages[{index}].{error}")
            return None
        if message_id is not None:
            if message_id in ids:
                batch.refuse(message_id, None, f"messages[{index}].id: given twice: {message_id!r}", message)
                return None
            ids.add(message_id)
        if len(message.body) > most:
            detail = f"messages[{index}].payload: more than {most} bytes (max_body)"
            batch.refuse(message_id, None, detail, message)
            return None
        return batch.add(message_id, message)


def _items(request: web.Request, framing: Framing, sizes: Sizes, gzip: bool) -> Items:
    """Return the reader of the body's items. Raises ProblemError 413 for a body that is announced as too long."""
    most = sizes.max_batch_body
    if (request.content_length or 0) > most:
        raise more_than(most, "max_batch_body")
    return Items(framing, gzip=gzip, most_bytes=most, most_item=sizes.max_body * _JSON_SHARE + _BUFFER)


def _framed(request: web.Request) -> tuple[Framing, bool]:
    """Return how the body's messages are framed, and whether the body is gzip. Raises ProblemError 415."""
    framing = _FRAMINGS.get(request.content_type)
    if framing is None:
        raise unsupported(f"Content-Type: {request.content_type!r} is not one of {', '.join(_FRAMINGS)}")
    if (charset := request.charset) is not None and charset.lower() != "utf-8":
        raise unsupported(f"Content-Type: {charset[:60]!r} is not utf-8, as all JSON is")
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("gzip", "identity"):
        raise unsupported(f"Content-Encoding: {coding[:60]!r} is neither gzip nor identity")
    return framing, coding == "gzip"
