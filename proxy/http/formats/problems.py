"""Errors as RFC 9457 problems, each with what became of the message and whether sending it again may help."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from proxy.outcome import Outcome
from proxy.topology.table import Name

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"

_RETRY_AFTER = "1"

_TITLES = {
    "bad-request": "The request is malformed",
    "no-routing-key": "The message has no routing key",
    "unauthorized": "The request has no valid credentials",
    "forbidden": "Publishing to this exchange is not permitted",
    "internal-exchange": "The exchange is internal",
    "misdirected": "The request names a host that is not this listener's",
    "unknown-exchange": "The exchange does not exist",
    "not-found": "The endpoint does not exist",
    "method-not-allowed": "The endpoint does not take this method",
    "timeout": "The body came too slowly",
    "too-large": "The request is too large",
    "media-type": "The endpoint does not take a body of this type",
    "batch-failed": "Not every message of the batch was confirmed",
    "too-many": "A limit is reached",
    "unroutable": "The broker returned the message",
    "nacked": "The broker refused the message",
    "unavailable": "The message was not sent",
    "draining": "This sidecar is shutting down",
    "unknown": "It is not known whether the message arrived",
    "internal": "Unexpected error of this sidecar",
}


class ProblemError(Exception):
    """A problem to answer with. `kind` is the stable last part of the answer's `type`."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        outcome: Outcome,
        *,
        retryable: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a `detail` for people, which names the field and the value if the request is at fault.

        `more` are members of the answer beside the members that all problems have.
        """
        super().__init__(detail)
        self.status, self.kind, self.detail, self.outcome, self.retryable = status, kind, detail, outcome, retryable
        self.more = more or {}
        self.delay = 0.0
        """Seconds that the answer is held back, which slows whoever guesses credentials; 0 for most."""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed behind the answer.

        While this sidecar drains, the client should connect to another one. After a timeout, the rest of the body
        would be taken for a request.
        """
        return self.kind in ("draining", "timeout")

    def response(self) -> web.Response:
        """Return the answer, as `application/problem+json`."""
        body = {
            "type": f"urn:ringproxy:problem:{self.kind}",
            "title": _TITLES[self.kind],
            "status": self.status,
            "detail": self.detail,
            "outcome": self.outcome,
            "retryable": self.retryable,
            **self.more,
        }
        headers = {"Retry-After": _RETRY_AFTER} if self.status in (429, 503) else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        response = web.Response(
            body=json.dumps(body).encode(), status=self.status, content_type=CONTENT_TYPE, headers=headers
        )
        if self.closes:
            response.force_close()
        return response


def invalid(field: str, problem: str) -> ProblemError:
    """Return a 400 that names the field: ``invalid("Routing-Key", "'...' has 256 bytes, 255 are the most")``."""
    return ProblemError(400, "bad-request", f"{field}: {problem}", Outcome.INVALID)


def no_routing_key(field: str, remedy: str) -> ProblemError:
    """Return a 400 for a message without the routing key that its exchange hashes: where to give it is in `remedy`."""
    return ProblemError(400, "no-routing-key", f"{field}: missing; give the routing key {remedy}", Outcome.INVALID)


def unsupported(detail: str) -> ProblemError:
    """Return a 415 for a body of a type that the endpoint does not take."""
    return ProblemError(415, "media-type", detail, Outcome.INVALID)


def too_large(detail: str, outcome: Outcome = Outcome.INVALID) -> ProblemError:
    """Return a 413 for a message, a batch or a body that is larger than the sidecar or the broker takes."""
    return ProblemError(413, "too-large", detail, outcome)


def more_than(most: int, setting: str) -> ProblemError:
    """Return a 413 for a body that has more than the `most` bytes that the setting of this name allows."""
    return too_large(f"body: more than {most} bytes ({setting})")


def unknown_exchange(detail: str) -> ProblemError:
    """Return a 404 for an exchange, or a virtual host, that does not exist."""
    return ProblemError(404, "unknown-exchange", detail, Outcome.INVALID)


def unavailable(detail: str) -> ProblemError:
    """Return a 503 for a message that was not sent."""
    return ProblemError(503, "unavailable", detail, Outcome.UNAVAILABLE, retryable=True)


def refused(exchange: Name, why: str) -> ProblemError:
    """Return a 503 for a message to an exchange that takes no publishes for now."""
    return unavailable(f"exchange {exchange[1]!r} takes no publishes: {why}")


@web.middleware
async def problem_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn every error of a handler, and of aiohttp's routing to one, into a problem."""
    try:
        return await handler(request)
    except ProblemError as problem:
        if problem.delay:
            await asyncio.sleep(problem.delay)
        return problem.response()
    except web.HTTPRequestEntityTooLarge as error:
        return too_large(f"body: {error.text}").response()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"method: {error.method} is not one of {allowed}"
        response = ProblemError(405, "method-not-allowed", detail, Outcome.INVALID).response()
        response.headers["Allow"] = allowed
        return response
    except web.HTTPNotFound:
        return ProblemError(
            404, "not-found", f"path: there is no endpoint {request.raw_path[:200]!r}", Outcome.INVALID
        ).response()
    except web.HTTPException as error:
        return ProblemError(error.status, "bad-request", error.reason, Outcome.INVALID).response()
    except Exception:
        log.exception("unexpected error while answering %s %s", request.method, request.path)
        return ProblemError(
            500, "internal", "the sidecar's log has the traceback", Outcome.UNKNOWN, retryable=True
        ).response()
