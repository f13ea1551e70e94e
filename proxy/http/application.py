"""The HTTP ingress as one aiohttp application, made of the table of endpoints."""

import re
from collections.abc import Awaitable

from aiohttp import HttpVersion11, web

from proxy.http.admission.gate import Gate
from proxy.http.endpoints.urls import PUBLISH_PATH, Handler, endpoints
from proxy.http.formats.problems import ProblemError, problem_middleware
from proxy.http.sending.dispatch import Dispatch
from proxy.http.server import FAST_PATH
from proxy.outcome import Outcome
from proxy.routing.counters import Counts
from proxy.settings.config import Settings


def application(
    settings: Settings,
    gate: Gate,
    dispatch: Dispatch,
    counts: Counts,
) -> web.Application:
    """Return the application that answers every endpoint, by the parts that are given."""
    app = web.Application(middlewares=[problem_middleware])
    table = endpoints(settings, gate, dispatch, counts)
    for method, path, handler in table:
        app.router.add_route(method, path, handler, expect_handler=_expect)
    publish = next(handler for _, path, handler in table if path == PUBLISH_PATH)
    app[FAST_PATH] = lambda request: _fast_path(publish, request)
    return app


def _fast_path(publish: Handler, request: web.BaseRequest) -> Awaitable[web.StreamResponse] | None:
    """Return the answer to the publish of a single message if the request is ordinary; None for any other request."""
    if request.method == "POST" and _is_publish(request.raw_path) and "Expect" not in request.headers:
        assert isinstance(request, web.Request)
        return problem_middleware(request, publish)
    return None


_is_publish = re.compile(r"/v1/exchanges/[^/?#]+/publish(?:\?[^#]*)?").fullmatch


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Let the body come (RFC 9110, section 10.1.1) and return None, or return a 417 if anything else is expected."""
    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None
    if expected.lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Or nothing else could be answered any more.
        request.writer.output_size = 0
        return None
    detail = f"Expect: {expected[:60]!r} is not 100-continue"
    response = ProblemError(417, "bad-request", detail, Outcome.INVALID).response()
    # The body may not come now, and what comes instead would be taken for it.
    response.force_close()
    return response
