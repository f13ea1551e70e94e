"""The HTTP ingress as one aiohttp application: every endpoint that publishes, and what describes them."""

import re
from collections.abc import Awaitable

from aiohttp import HttpVersion11, web

from proxy.http.admission.gate import Gate
from proxy.http.endpoints import docs
from proxy.http.endpoints.batch import Batches
from proxy.http.endpoints.events import Events
from proxy.http.endpoints.management import Compat
from proxy.http.endpoints.publish import Ingest
from proxy.http.endpoints.route import Question
from proxy.http.formats.problems import ProblemError, problem_middleware
from proxy.http.sending.dispatch import Dispatch
from proxy.http.server import HOT
from proxy.outcome import Outcome
from proxy.routing.counts import Counts
from proxy.settings.config import Settings


def application(
    settings: Settings,
    gate: Gate,
    dispatch: Dispatch,
    counts: Counts,
) -> web.Application:
    """All of it, on the parts that answer."""
    vhost, most = settings.default_vhost, settings.max_body
    single = Ingest(gate, dispatch, counts, default_vhost=vhost, max_body=most)
    batches = Batches(
        gate,
        dispatch,
        counts,
        default_vhost=vhost,
        max_body=most,
        max_batch=settings.max_batch,
        max_batch_body=settings.max_batch_body,
        patience=settings.lookup_timeout,
    )
    events = Events(gate, single, batches, default_vhost=vhost, max_body=most)
    compat = Compat(gate, dispatch, is_on=settings.takes_management_publish, max_body=most)
    question = Question(gate, dispatch, default_vhost=vhost)
    app = web.Application(middlewares=[problem_middleware])
    for part in (single, batches, events, compat, question, docs):
        for route in part.routes():
            kwargs = {**route.kwargs, "expect_handler": _expect}
            app.add_routes([web.RouteDef(route.method, route.path, route.handler, kwargs)])
    app[HOT] = lambda request: _hot(single, request)
    return app


def _hot(single: Ingest, request: web.BaseRequest) -> Awaitable[web.StreamResponse] | None:
    """The answer to the publish of a single message, where nothing about the request is out of the ordinary."""
    if request.method == "POST" and _is_single(request.raw_path) and "Expect" not in request.headers:
        assert isinstance(request, web.Request)
        return problem_middleware(request, single.publish)
    return None


_is_single = re.compile(r"/v1/exchanges/[^/?#]+/publish(?:\?[^#]*)?").fullmatch


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Lets the body come (RFC 9110, section 10.1.1); an answer to what else is expected."""
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
