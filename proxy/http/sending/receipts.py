"""What a client is told of a message that the broker has answered for."""

import json
from functools import lru_cache
from typing import Any

from aiohttp import web

from proxy.http.formats.answers import json_answer, named
from proxy.http.formats.problems import ProblemError
from proxy.http.sending.dispatch import Dispatch, Placed
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult
from proxy.wire.frames import ACCESS_REFUSED, CONTENT_TOO_LARGE, NOT_FOUND
from ring.destination import Destination


def minimal() -> web.Response:
    """The 204 of a client that prefers ``return=minimal`` (RFC 7240)."""
    return web.Response(status=204, headers={"Preference-Applied": "return=minimal"})


def receipt(placed: Placed) -> dict[str, Any]:
    """Of a message that is confirmed."""
    if placed.choice is None or placed.reason is not None:
        return {"outcome": Outcome.PASSED, "exchange": placed.route.name[1], "reason": placed.reason}
    choice = placed.choice
    return {"outcome": Outcome.CONFIRMED, **place(choice.target.destination, choice.slot, choice.by.fingerprint)}


def place(destination: Destination, slot: int, fingerprint: str) -> dict[str, Any]:
    """Where a ring sends a message."""
    return {"destination": named(destination), "ring": fingerprint, "slot": slot}


def receipt_answer(placed: Placed) -> web.Response:
    """The same as a 200, made fast."""
    if placed.choice is None or placed.reason is not None:
        return json_answer(receipt(placed))
    choice = placed.choice
    start = _start(choice.target.destination, choice.by.fingerprint)
    return web.Response(body=start + b"%d}" % choice.slot, headers=_JSON)


_JSON = {"Content-Type": "application/json"}


@lru_cache(maxsize=10_000)
def _start(destination: Destination, fingerprint: str) -> bytes:
    whole = {"outcome": Outcome.CONFIRMED, **place(destination, 0, fingerprint)}
    return json.dumps(whole).encode().removesuffix(b"0}")


_DEFAULT_EXCHANGE = ""
"""It reaches one queue, whose name is the routing key: headers that ask for copies are not taken."""


def judged(placed: Placed, verdict: PublishResult) -> PublishResult:
    """The verdict on a message that is not confirmed, with what is known of where it went."""
    routed = placed.choice is not None and placed.reason is None
    if verdict.outcome is Outcome.INVALID and verdict.code == NOT_FOUND and routed:
        # The exchange that its ring chose is gone, which another try does not meet again.
        return verdict._replace(outcome=Outcome.UNAVAILABLE)
    if verdict.outcome not in (Outcome.UNROUTABLE, Outcome.NACKED):
        return verdict
    destination = placed.choice.target.destination if placed.choice is not None and routed else None
    to_queue = destination is not None and destination.kind == "queue"
    name = destination.name if destination is not None else placed.route.name[1]
    if verdict.outcome is Outcome.UNROUTABLE:
        what = f"there is no queue {name!r}" if to_queue else f"exchange {name!r} has no queue for it"
        return verdict._replace(detail=what)
    if to_queue or name == _DEFAULT_EXCHANGE:
        return verdict
    why = f"a queue behind exchange {name!r} refused it; another may have taken it"
    return verdict._replace(outcome=Outcome.UNKNOWN, detail=why)


def is_gone(verdict: PublishResult) -> bool:
    """Whether a verdict shows that an exchange is gone. (Where a message came back, its ring has been read again.)"""
    return verdict.code == NOT_FOUND


async def failure(dispatch: Dispatch, placed: Placed, verdict: PublishResult) -> ProblemError:
    """The problem of a message that was sent and is not confirmed, once its ring was read again where that may help."""
    verdict = judged(placed, verdict)
    outcome, detail = verdict.outcome, verdict.detail
    if is_gone(verdict):
        await dispatch.refresh(placed, "a message did not reach it")
    if outcome is not Outcome.INVALID:
        return ProblemError(504 if outcome is Outcome.UNKNOWN else 503, outcome.value, detail, outcome, retryable=True)
    # The broker refused this one message, and nothing else was in flight beside it.
    if verdict.code == ACCESS_REFUSED:
        return ProblemError(403, "forbidden", detail, outcome)
    if verdict.code == NOT_FOUND:
        return ProblemError(404, "unknown-exchange", f"exchange: {detail}", outcome)
    if verdict.code == CONTENT_TOO_LARGE:
        return ProblemError(413, "too-large", f"body: {detail}", outcome)
    return ProblemError(400, "bad-request", f"message: {detail}", outcome)
