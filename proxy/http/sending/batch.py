"""Many messages in one request: sent as they are read, answered once the broker has answered for the last."""

# mypyc: compiled

import asyncio
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

from proxy.http.admission.limits import Limits
from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError
from proxy.http.sending.dispatch import Dispatch, ExchangeHandle, OrderingKey, Placement
from proxy.http.sending.receipts import is_gone, is_retryable, judged, receipt
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, UNROUTABLE, PublishResult
from proxy.republishes import MOST_REPUBLISHES
from proxy.routing.route import Route, Target

_UNSENT = frozenset({Outcome.INVALID, Outcome.REJECTED, Outcome.UNAVAILABLE, Outcome.UNROUTABLE})
_LONGEST_DETAIL = 300


class FieldNames(NamedTuple):
    """The names under which a request has its list of messages, and the routing key of each."""

    messages: str
    key: str


MESSAGES = FieldNames("messages", "key")


class _Entry:
    """One message of a batch, and what became of it."""

    __slots__ = (
        "came_back_with", "coming_back", "counted", "id", "message", "ordering_key", "placement", "result", "retryable",
        "tries",
    )  # fmt: skip

    def __init__(self, message_id: str | None, message: Message | None, ordering_key: OrderingKey = None) -> None:
        self.id, self.ordering_key = message_id, ordering_key
        self.message = message
        """The message; None once it is settled."""
        self.counted: int | None = None
        """The bytes that the limits count for the message.

        None before it is first sent or waits to be sent, and once it is settled.
        """
        self.tries = 0
        """How many times the message was sent again."""
        self.placement: Placement | None = None
        self.came_back_with = UNROUTABLE
        """The result with which the message came back last, if it has."""
        self.coming_back = False
        """Whether the message is counted in `Dispatch.coming_back`."""
        self.result: PublishResult | None = None
        self.retryable = True


class Batch:
    """The messages of one request, in their order. After a key's first failure no later message of the key is sent.

    No further message at all is sent once one could not be sent because an exchange, a ring or a broker was missing,
    or once the broker did not answer for one: each would wait as long.
    """

    def __init__(
        self, dispatch: Dispatch, limits: Limits, handle: ExchangeHandle, patience: float, words: FieldNames
    ) -> None:
        """Begin an empty batch; `patience` is how many seconds a message waits for room."""
        self._dispatch, self._limits, self._handle, self._patience = dispatch, limits, handle, patience
        self.words = words
        self._entries: list[_Entry] = []
        self._unsettled = 0
        self._digest = ""
        """The digest (`Route.digest`) of the route by which the unsettled messages went."""
        self._waits_for_others = False
        """Whether the message that waits now waits for the answers to those before it."""
        self._settled = asyncio.Event()
        self.is_confirmed = True
        """Whether every message is confirmed so far."""
        self._returned: list[int] = []
        """The indexes of messages that came back, and of later ones of their keys; sent once all others are settled."""
        self._waiting: set[OrderingKey] = set()
        """Ordering keys of the messages in `_returned`: further messages of these wait behind them."""
        self._abandoned = False
        self._room_wait: asyncio.Timeout | None = None
        """Ends the wait for room, of which a message that came back holds a part."""
        self._failed: set[OrderingKey] = set()
        """The ordering keys of which no further message is sent."""
        self._stopped = ""
        """Why no further message is sent; empty while messages are sent."""
        self._again = True
        """Whether a later try may help the messages that were not sent because the batch was stopped."""

    def __len__(self) -> int:
        """Return how many messages the batch has so far."""
        return len(self._entries)

    def add(self, message_id: str | None, message: Message) -> Coroutine[Any, Any, None] | None:
        """Send one more message, unless an earlier one has failed; return None, or what is to be awaited before more.

        Not a coroutine itself, for speed: almost always there is nothing to wait for.
        """
        index = len(self._entries)
        self._entries.append(_Entry(message_id, message))
        if not (self._limits.has_room or self._stopped):
            return self._add_late(self._room(), index, message)
        return self._start(index, message)

    def _start(self, index: int, message: Message) -> Coroutine[Any, Any, None] | None:
        step: Coroutine[Any, Any, None] | None = self._send(index, message, time.monotonic())
        return self._add_late(step, index, message) if step is not None else None

    async def _add_late(self, step: Coroutine[Any, Any, None], index: int, message: Message) -> None:
        """Await `step`, then send a message, and await again as long as the sending needs it."""
        due: Coroutine[Any, Any, None] | None = step
        since = time.monotonic()
        while due is not None:
            waits_for_others, self._waits_for_others = self._waits_for_others, False
            try:
                await due
            except ProblemError as problem:
                self._unsent(index, message, problem)
                return
            if waits_for_others:
                # The time limits of a look-up and of a connection begin anew: nothing of it has been waited for.
                since = time.monotonic()
            due = self._send(index, message, since)

    def _send(self, index: int, message: Message, since: float) -> Coroutine[Any, Any, None] | None:
        """Send a message or fail it, and return None; or return what must be awaited before the next try."""
        entry = self._entries[index]
        # Looked at after each wait: a message must not overtake one of its key that has failed meanwhile.
        if self._stopped:
            self._fail(entry, PublishResult(Outcome.REJECTED, self._stopped), self._again)
            return None
        if self._failed or self._waiting:
            order = self._dispatch.ordering_key_of(self._handle, message)
            if order in self._failed:
                self._fail(
                    entry,
                    PublishResult(Outcome.REJECTED, "not sent, because an earlier message of its key failed"),
                    True,
                )
                return None
            if order in self._waiting:
                entry.placement = None
                self._returned.append(index)
                self._count(entry, message)
                return None
        try:
            behind = self._digest if self._unsettled else None
            step = self._dispatch.attempt(self._handle, message, self, index, since, behind)
        except ProblemError as problem:
            self._unsent(index, message, problem)
            return None
        if step is None:
            # The ring has changed. One that comes back from the former ring has to go out before its key's next one.
            self._waits_for_others = True
            return self._all_settled()
        if not isinstance(step, Placement):
            return step
        self._digest = step.route.digest
        self._is_coming_back(entry, False)
        entry.placement, entry.ordering_key = step, step.ordering_key(message.key)
        self._count(entry, message)
        self._unsettled += 1
        return None

    def _count(self, entry: _Entry, message: Message) -> None:
        if entry.counted is None:
            entry.counted = message.size
            self._limits.take_batched(entry.counted)

    def _is_coming_back(self, entry: _Entry, is_coming: bool) -> None:
        """Note whether a message came back and is to be sent again."""
        if is_coming != entry.coming_back:
            entry.coming_back = is_coming
            self._dispatch.comes_back(self._handle, 1 if is_coming else -1)

    def _release(self, entry: _Entry) -> None:
        """Count a settled message out of the limits, and forget its body."""
        self._is_coming_back(entry, False)
        if entry.counted is not None:
            self._limits.give_batched(entry.counted)
        entry.counted, entry.message = None, None

    def _unsent(self, index: int, message: Message, problem: ProblemError) -> None:
        """Note that a message could not be sent, and stop the batch if no other message could be sent either."""
        entry = self._entries[index]
        entry.ordering_key = self._dispatch.ordering_key_of(self._handle, message)
        if problem.outcome is Outcome.UNAVAILABLE or problem.status in (403, 404):
            self._stop(problem.detail, problem.retryable)
        self._fail(entry, PublishResult(problem.outcome, self._in_words(problem, index)), problem.retryable)

    def _in_words(self, problem: ProblemError, index: int) -> str:
        """The detail of a message that was not sent, with its place in the request if the message is to blame."""
        if problem.kind == "no-routing-key":
            return f"{self.words.messages}[{index}].{self.words.key}: missing"
        return f"{self.words.messages}[{index}].{problem.detail}" if problem.status in (400, 413) else problem.detail

    def _stop(self, why: str, again: bool) -> None:
        if not self._stopped:
            self._stopped, self._again = f"not sent, because an earlier message failed: {why}"[:_LONGEST_DETAIL], again

    async def _room(self) -> None:
        """Wait for room, or stop the batch if there is none for too long.

        A message that came back keeps its room until it is settled, so it is sent again first, whenever it comes.
        """
        try:
            async with asyncio.timeout(self._patience):
                while not await self._room_before_return():
                    await self._answered()
                    await self._send_again()
        except TimeoutError:
            self._stopped = (
                f"not sent, because there was no room in max_in_flight or max_in_flight_bytes for {self._patience:g} s"
            )

    async def _room_before_return(self) -> bool:
        """Wait for room; return False once a message has come back instead."""
        if self._returned:
            return False
        try:
            async with asyncio.timeout(None) as self._room_wait:
                await self._limits.room()
        except TimeoutError:
            return False
        finally:
            self._room_wait = None
        return True

    def refuse(self, message_id: str | None, key: bytes | None, why: str, message: Message | None = None) -> None:
        """Add an entry for a message that is not sent, with the reason `why`.

        `key` is the routing key, or None if there is none or it cannot be read. `message` is given if it could be
        made: then the entry gets the message's ordering key, also if the ring hashes another value than the key.
        """
        entry = _Entry(
            message_id, None, key if message is None else self._dispatch.ordering_key_of(self._handle, message)
        )
        self._entries.append(entry)
        self._fail(entry, PublishResult(Outcome.INVALID, why), False)

    def settled(self, index: int, result: PublishResult) -> None:
        """Take the broker's answer for the message of this index.

        A message that came back is kept to be sent again, up to MOST_REPUBLISHES times. For every other outcome the
        message is done; a lost confirm also ends the whole batch.
        """
        entry = self._entries[index]
        if result is CONFIRMED:
            entry.result = result
            self._release(entry)
        elif self._came_back(entry, result) and entry.tries < MOST_REPUBLISHES and not self._abandoned:
            entry.came_back_with = result
            self._is_coming_back(entry, True)
            self._returned.append(index)
            self._waiting.add(entry.ordering_key)
            if self._room_wait is not None:
                self._room_wait.reschedule(0)
                self._room_wait = None
        else:
            if entry.placement is not None:
                result = judged(entry.placement, result)
            if result.outcome is Outcome.UNKNOWN:
                self._stop(result.detail, True)
            self._fail(entry, result, is_retryable(entry.placement, result))
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    def _came_back(self, entry: _Entry, result: PublishResult) -> bool:
        return entry.placement is not None and self._dispatch.came_back(entry.placement, result)

    def _fail(self, entry: _Entry, result: PublishResult, retryable: bool) -> None:
        """Note a message's outcome that is no confirm; the later messages of its key must not be sent any more."""
        if len(result.detail) > _LONGEST_DETAIL:
            # Here and not in the answer, or what clients make of it would be kept until then.
            result = result._replace(detail=result.detail[:_LONGEST_DETAIL])
        entry.result, entry.retryable = result, retryable
        self._release(entry)
        self.is_confirmed = False
        if entry.ordering_key is not None:
            self._failed.add(entry.ordering_key)

    async def done(self) -> None:
        """Return once the outcome of every message is known, and rings that proved stale have been read again."""
        await self._all_settled()
        gone = [entry for entry in self._entries if entry.result is not None and is_gone(entry.result)]
        await self._read_again(entry for entry in gone if not is_gone(entry.came_back_with))

    async def _all_settled(self) -> None:
        """Return once the outcome of every message is known that was sent, or waits to be sent again."""
        await self._answered()
        while self._returned:
            await self._send_again()
            await self._answered()

    async def _answered(self) -> None:
        """Return once the broker has answered for all that was sent."""
        while self._unsettled:
            self._settled.clear()
            await self._settled.wait()

    async def _send_again(self) -> None:
        """Read the rings again, then send the messages that came back and those behind them, in order."""
        again, since = deque(sorted(self._returned)), time.monotonic()
        self._returned, self._waiting = [], set()
        try:
            await self._read_again(self._entries[index] for index in again)
            while again:
                await self._send_one_again(again[0], since)
                again.popleft()
        finally:
            self._returned += again

    async def _send_one_again(self, index: int, since: float) -> None:
        """Send a message that came back once more, or that waited behind one; note its failure if that is no use."""
        entry = self._entries[index]
        message, before = entry.message, entry.placement
        assert message is not None
        if before is not None and not self._dispatch.goes_again(self._handle, message, before, since):
            result = judged(before, entry.came_back_with)
            self._fail(entry, result, is_retryable(entry.placement, result))
            return
        entry.tries += before is not None
        if (step := self._start(index, message)) is not None:
            await step
        if before is not None and entry.placement is not None and entry.message is not None:
            self._dispatch.count_rerouted(before)

    def abandon(self) -> None:
        """End the batch early: what waits to be sent again, or will come back, gives its place in the limits back."""
        self._abandoned = True
        while self._returned:
            self._release(self._entries[self._returned.pop()])

    async def _read_again(self, entries: Iterable[_Entry]) -> None:
        """Read again, once each, the rings that chose the destinations of the given messages."""
        stale: dict[tuple[Route, Target | None], Placement] = {}
        for entry in entries:
            if entry.placement is not None:
                choice = entry.placement.choice
                stale[entry.placement.route, choice.target if choice else None] = entry.placement
        why = "messages of a batch did not reach it"
        await asyncio.gather(*(self._dispatch.read_again(placement, why) for placement in stale.values()))

    def unsent(self) -> Counter[Outcome]:
        """Return how many messages the broker never took, or gave back, by outcome: the publisher counts the others."""
        outcomes = (entry.result.outcome for entry in self._entries if entry.result is not None)
        return Counter(o for o in outcomes if o in _UNSENT)

    def summary(self) -> dict[str, Any]:
        """Return the answer's members for a batch that is confirmed."""
        passed = sum(entry.placement is not None and entry.placement.reason is not None for entry in self._entries)
        count = len(self._entries)
        return {"outcome": Outcome.CONFIRMED, "messages": count, "confirmed": count - passed, "passed": passed}

    def results(self) -> list[dict[str, Any]]:
        """Return a result for each message, in the order of the request."""
        return [_result(entry) for entry in self._entries]

    def problem(self) -> ProblemError:
        """Return the problem of a batch of which some message failed."""
        results = [entry.result for entry in self._entries if entry.result is not None]
        outcomes = {result.outcome for result in results}
        failures = [entry for entry in self._entries if entry.result is not CONFIRMED]
        first = _result(failures[0])["detail"]
        again = any(entry.retryable for entry in failures)
        return ProblemError(
            503 if again else 422,
            "batch-failed",
            f"{len(failures)} of {len(self._entries)} messages are not confirmed; the first: {first}"[:500],
            outcomes.pop() if len(outcomes) == 1 else Outcome.UNKNOWN,
            retryable=again,
            more={"results": self.results()},
        )


def _result(entry: _Entry) -> dict[str, Any]:
    """Return one message's entry in the answer: its receipt, or its outcome and why."""
    named = {} if entry.id is None else {"id": entry.id}
    if entry.result is CONFIRMED and entry.placement is not None:
        return named | receipt(entry.placement)
    result = entry.result or PublishResult(Outcome.UNKNOWN)
    return {
        **named,
        "outcome": result.outcome,
        "detail": result.detail,
        "retryable": entry.retryable,
    }
