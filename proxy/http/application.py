"""The HTTP ingress as one aiohttp application: every endpoint that publishes, and what describes them."""

from aiohttp import web

from proxy.config import Settings
from proxy.http import docs
from proxy.http.batches import Batches
from proxy.http.compat import Compat
from proxy.http.dispatch import Dispatch
from proxy.http.events import Events
from proxy.http.gate import Gate
from proxy.http.ingest import Ingest
from proxy.http.problems import problem_middleware
from proxy.http.question import Question
from proxy.metrics import Counts
from proxy.router import Router
from proxy.sync import Sync


def application(
    settings: Settings,
    gate: Gate,
    dispatch: Dispatch,
    counts: Counts,
    router: Router,
    sync: Sync,
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
    events = Events(gate, single, batches, default_vhost=vhost, max_body=most, max_batch=settings.max_batch)
    compat = Compat(gate, dispatch, max_body=most)
    question = Question(gate, router, sync, default_vhost=vhost, lookup_timeout=settings.lookup_timeout)
    app = web.Application(middlewares=[problem_middleware])
    for part in (single, batches, events, compat, question):
        app.add_routes(part.routes())
    app.add_routes(docs.routes())
    return app
