"""What a client is told of a message that the broker has answered for."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aiohttp import web

from proxy.amqp.client import Verdict
from proxy.amqp.frames import ACCESS_REFUSED, NOT_FOUND
from proxy.http.dispatch import Dispatch, Placed
from proxy.http.problems import ProblemError, unavailable
from proxy.outcome import Outcome
from ring.destination import Destination


def json_answer(answer: Mapping[str, Any]) -> web.Response:
    """A 200."""
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def minimal() -> web.Response:
    """The 204 of a client that prefers ``return=minimal`` (RFC 7240)."""
    return web.Response(status=204, headers={"Preference-Applied": "return=minimal"})


def receipt(placed: Placed) -> dict[str, Any]:
    """Of a message that is confirmed."""
    if placed.choice is None or placed.reason is not None:
        return {"outcome": Outcome.PASSED, "exchange": placed.route.name[1], "reason": placed.reason}
    return {"outcome": Outcome.CONFIRMED, **place(placed)}


def place(placed: Placed) -> dict[str, Any]:
    """Where a ring sent a message."""
    assert placed.choice is not None
    target, by, slot = placed.choice
    destination = {"type": target.destination.kind, "name": target.destination.name}
    return {"destination": destination, "slot": slot, "ring": by.fingerprint}


def receipt_answer(placed: Placed) -> web.Response:
    """The same as a 200, made fast."""
    if placed.choice is None or placed.reason is not None:
        return json_answer(receipt(placed))
    target, by, slot = placed.choice
    return web.Response(body=_start(target.destination, by.fingerprint) + b"%d}" % slot, headers=_JSON)


_JSON = {"Content-Type": "application/json; charset=utf-8"}


@lru_cache(maxsize=10_000)
def _start(destination: Destination, fingerprint: str) -> bytes:
    where = {"type": destination.kind, "name": destination.name}
    whole = {"outcome": Outcome.CONFIRMED, "destination": where, "ring": fingerprint, "slot": 0}
    return json.dumps(whole).encode().removesuffix(b"0}")


def in_words(placed: Placed, verdict: Verdict) -> str:
    """Why a message that was sent is not confirmed."""
    if verdict.outcome is not Outcome.UNROUTABLE:
        return verdict.detail
    if placed.choice is None or placed.reason is not None:
        return f"exchange {placed.route.name[1]!r} has no queue for it"
    destination = placed.choice.target.destination
    if destination.kind == "queue":
        return f"there is no queue {destination.name!r}"
    return f"exchange {destination.name!r} has no queue for it"


async def failure(dispatch: Dispatch, placed: Placed, verdict: Verdict) -> ProblemError:
    """The problem of a message that was sent and is not confirmed, once its ring was read again where that may help."""
    outcome, detail = verdict.outcome, in_words(placed, verdict)
    if outcome is Outcome.UNROUTABLE:
        await dispatch.refresh(placed, "a message was returned")
    elif verdict.code == NOT_FOUND:
        await dispatch.refresh(placed, "an exchange that was published to is gone")
    if outcome is not Outcome.INVALID:
        return ProblemError(504 if outcome is Outcome.UNKNOWN else 503, outcome.value, detail, outcome, retryable=True)
    # The broker refused this one message, and nothing else was in flight beside it.
    if verdict.code == ACCESS_REFUSED:
        return ProblemError(403, "forbidden", detail, outcome)
    if verdict.code != NOT_FOUND:
        return ProblemError(400, "bad-request", f"message: {detail}", outcome)
    if placed.choice is not None and placed.reason is None:
        return unavailable(detail)
    return ProblemError(404, "unknown-exchange", f"exchange: {detail}", outcome)
