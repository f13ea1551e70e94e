"""The answers to messages that the broker has answered for: receipts and problems."""

import json
from functools import lru_cache
from typing import Any

from aiohttp import web

from proxy.http.formats.answers import json_answer, named
from proxy.http.formats.problems import ProblemError, too_large, unknown_exchange
from proxy.http.sending.dispatch import Dispatch, Placement
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult
from proxy.topology.table import PassReason
from proxy.wire.frames import ACCESS_REFUSED, CONTENT_TOO_LARGE, NOT_FOUND
from ring.destination import Destination


def minimal() -> web.Response:
    """Return the 204 for a client that prefers ``return=minimal`` (RFC 7240)."""
    return web.Response(status=204, headers={"Preference-Applied": "return=minimal"})


def receipt(placement: Placement) -> dict[str, Any]:
    """Return the receipt of a message that is confirmed."""
    if placement.choice is None or placement.reason is not None:
        return {"outcome": Outcome.PASSED, "exchange": placement.route.name[1], "reason": placement.reason}
    choice = placement.choice
    return {"outcome": Outcome.CONFIRMED, **place(choice.target.destination, choice.slot, choice.by.fingerprint)}


def place(destination: Destination, slot: int, fingerprint: str) -> dict[str, Any]:
    """Return the members that say where a ring sends a message."""
    return {"destination": named(destination), "ring": fingerprint, "slot": slot}


def receipt_answer(placement: Placement) -> web.Response:
    """Return the receipt as a 200, most of it prepared: the JSON up to the slot is cached."""
    if placement.choice is None or placement.reason is not None:
        return json_answer(receipt(placement))
    choice = placement.choice
    start = _start(choice.target.destination, choice.by.fingerprint)
    return web.Response(body=start + b"%d}" % choice.slot, headers=_JSON)


_JSON = {"Content-Type": "application/json"}


@lru_cache(maxsize=10_000)
def _start(destination: Destination, fingerprint: str) -> bytes:
    whole = {"outcome": Outcome.CONFIRMED, **place(destination, 0, fingerprint)}
    return json.dumps(whole).encode().removesuffix(b"0}")


_RETRYABLE = frozenset({Outcome.NACKED, Outcome.UNROUTABLE, Outcome.UNAVAILABLE, Outcome.UNKNOWN})

_DEFAULT_EXCHANGE = ""
"""The default exchange, which reaches one queue: `CC` and `BCC`, which ask for copies, are not taken."""


def judged(placement: Placement, result: PublishResult) -> PublishResult:
    """Return the result of a message that is not confirmed, with the outcome and detail that fit where it was sent."""
    routed = placement.choice is not None and placement.reason is None
    if result.outcome is Outcome.INVALID and result.code == NOT_FOUND and routed:
        # The exchange that its ring chose is gone, which another try does not meet again.
        return result._replace(outcome=Outcome.UNAVAILABLE)
    if result.outcome not in (Outcome.UNROUTABLE, Outcome.NACKED):
        return result
    destination = placement.choice.target.destination if placement.choice is not None and routed else None
    to_queue = destination is not None and destination.kind == "queue"
    name = destination.name if destination is not None else placement.route.name[1]
    if has_no_bindings(placement, result):
        why = (
            f"exchange {name!r} has no binding that takes the message; bind a queue to it, with a weight as binding key"
        )
        return result._replace(detail=why)
    if result.outcome is Outcome.UNROUTABLE:
        what = f"there is no queue {name!r}" if to_queue else f"exchange {name!r} has no queue for the message"
        return result._replace(detail=what)
    if placement.choice is not None and placement.choice.target.copied and to_queue:
        why = f"a queue of a group of shard {name!r} refused the message; the other groups' queues may have it"
        return result._replace(outcome=Outcome.UNKNOWN, detail=why)
    if to_queue or name == _DEFAULT_EXCHANGE:
        return result
    why = f"a queue behind exchange {name!r} refused the message; another queue may have it"
    return result._replace(outcome=Outcome.UNKNOWN, detail=why)


def has_no_bindings(placement: Placement, result: PublishResult) -> bool:
    """Return whether a message came back because nobody has bound its exchange: to send it again does not help."""
    return result.outcome is Outcome.UNROUTABLE and placement.reason is PassReason.NO_BINDINGS


def is_retryable(placement: Placement | None, result: PublishResult) -> bool:
    """Return whether a message that was not confirmed may be sent again, in the hope of another result."""
    if placement is not None and has_no_bindings(placement, result):
        return False
    return result.outcome in _RETRYABLE


def is_gone(result: PublishResult) -> bool:
    """Return whether a result shows that an exchange is gone, so that its ring must be read again."""
    return result.code == NOT_FOUND


async def failure(dispatch: Dispatch, placement: Placement, result: PublishResult) -> ProblemError:
    """Return the problem that answers a message which was sent and not confirmed.

    If its destination is gone, its ring is read again first.
    """
    result = judged(placement, result)
    outcome, detail = result.outcome, result.detail
    if is_gone(result):
        await dispatch.read_again(placement, "a message did not reach it")
    if has_no_bindings(placement, result):
        return ProblemError(422, "unroutable", detail, outcome)
    if outcome is not Outcome.INVALID:
        return ProblemError(504 if outcome is Outcome.UNKNOWN else 503, outcome.value, detail, outcome, retryable=True)
    # The broker refused this one message, and nothing else was in flight beside it.
    if result.code == ACCESS_REFUSED:
        return ProblemError(403, "forbidden", detail, outcome)
    if result.code == NOT_FOUND:
        return unknown_exchange(f"exchange: {detail}")
    if result.code == CONTENT_TOO_LARGE:
        return too_large(f"body: {detail}", outcome)
    return ProblemError(400, "bad-request", f"message: {detail}", outcome)
