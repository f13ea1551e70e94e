"""The table of the HTTP listener's endpoints: method, path, and what answers. A new endpoint is a row here."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from proxy.http.admission.gate import Gate
from proxy.http.endpoints.batch import BatchEndpoint
from proxy.http.endpoints.docs import docs, openapi
from proxy.http.endpoints.events import EventsEndpoint
from proxy.http.endpoints.management import ManagementEndpoint
from proxy.http.endpoints.publish import PublishEndpoint
from proxy.http.endpoints.route import RouteEndpoint
from proxy.http.sending.dispatch import Dispatch
from proxy.routing.counters import Counts
from proxy.settings.config import Settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PUBLISH_PATH = "/v1/exchanges/{exchange:[^/]+}/publish"


def endpoints(settings: Settings, gate: Gate, dispatch: Dispatch, counts: Counts) -> list[tuple[str, str, Handler]]:
    """Return the method, path and handler of each endpoint; `openapi.json` of this folder describes them."""
    publish = PublishEndpoint(gate, dispatch, counts, settings)
    batch = BatchEndpoint(gate, dispatch, counts, settings)
    events = EventsEndpoint(gate, publish, batch, settings)
    management = ManagementEndpoint(gate, dispatch, settings)
    route = RouteEndpoint(gate, dispatch, settings)
    return [
        ("POST", PUBLISH_PATH, publish.answer),
        ("POST", "/v1/exchanges/{exchange:[^/]+}/publish/batch", batch.answer),
        ("POST", "/v1/exchanges/{exchange:[^/]+}/events", events.answer),
        ("POST", "/api/exchanges/{vhost:[^/]+}/{exchange:[^/]*}/publish", management.answer),
        # RabbitMQ's own takes a slash behind it.
        ("POST", "/api/exchanges/{vhost:[^/]+}/{exchange:[^/]*}/publish/", management.answer),
        ("GET", "/v1/exchanges/{exchange:[^/]+}/route", route.answer),
        ("GET", "/openapi.json", openapi()),
        ("GET", "/docs", docs()),
    ]
