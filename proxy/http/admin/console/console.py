"""The endpoints of the console: the page and its files, its stream, and what a person asks for with a button."""

import asyncio
import contextlib
import hashlib
import logging
import platform
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from proxy import __version__
from proxy.http.admin.console.fleet import Fleet
from proxy.http.admin.console.history import STEP
from proxy.http.admin.console.snapshot import Parts, Snapshots, View
from proxy.http.admin.console.streams import Streams
from proxy.http.admission.pages import refuse_foreign
from proxy.http.formats.answers import json_answer
from proxy.http.formats.problems import invalid
from proxy.process.identity import process_id
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import describe
from proxy.topology.management import Management
from ring.compiled import kind
from ring.hashing import RING_FORMAT

log = logging.getLogger(__name__)

_STATIC: Final = Path(__file__).with_name("static")

FILES: Final = {
    "/": ("index.html", "text/html"),
    "/console/page.css": ("page.css", "text/css"),
    "/console/page.js": ("page.js", "text/javascript"),
    "/console/runbook.md": ("runbook.md", "text/markdown"),
}
"""By path, the file that is served there, and its type."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page's Content-Security-Policy: it may load its own files and ask this sidecar, and nothing else."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_KINDS: Final = ("exchange", "group")


class Console:
    """The console of this sidecar; lives as long as the process."""

    def __init__(self, in_force: SettingsInForce, parts: Parts, api: Management) -> None:
        """Read nothing yet: most sidecars are never looked at."""
        self._in_force = in_force
        self._snapshots = Snapshots(parts)
        self._fleet = Fleet(api)
        self._files: dict[str, bytes] = {}
        self.streams = Streams(self._snapshots.make)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the console's endpoints to a listener's."""
        for path in FILES:
            router.add_get(path, self._file)
        # Without HEAD, whose answer would never end.
        router.add_get("/console/events", self._events, allow_head=False)
        router.add_get("/console/search", self._search)
        router.add_get("/console/about", self._about)
        router.add_get("/console/fleet", self._ask_fleet)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count for the history as long as the context lasts, and end all streams with it."""
        task = asyncio.create_task(self._count())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.streams.aclose()

    async def _count(self) -> None:
        """End a step of the history every `STEP` seconds, for ever."""
        while True:
            await asyncio.sleep(STEP)
            try:
                await self._snapshots.end_step()
            except Exception:
                log.exception("unexpected error while the console's history was kept")

    async def _file(self, request: web.Request) -> web.Response:
        """Answer with a file of the page, or 304 to a browser that has it."""
        name, content_type = FILES[request.path]
        body = self._files.get(name)
        if body is None:
            body = self._files[name] = (_STATIC / name).read_bytes()
        tag = hashlib.sha256(body).hexdigest()[:16]
        if any(etag.value in (tag, "*") for etag in request.if_none_match or ()):
            response = web.Response(status=304, headers=_HEADERS)
        else:
            response = web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)
        response.etag = tag
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Answer with a stream of snapshots, with ``?kind=&vhost=&exchange=`` of one exchange or group too."""
        # A page of another origin cannot read a stream, but it could take the place of one.
        refuse_foreign(request)
        query = request.query
        view = View(query.get("kind", ""), query.get("vhost", ""), query.get("exchange", ""))
        if view.kind:
            _check_kind(view.kind)
        if bool(view.kind) != bool(view.exchange):
            raise invalid(
                "exchange" if view.kind else "kind", "missing; give kind, vhost and exchange, or none of them"
            )
        return await self.streams.serve(request, view)

    async def _search(self, request: web.Request) -> web.Response:
        """Answer with the exchanges or groups that have a text in their names: ``?kind=&contains=``."""
        refuse_foreign(request)
        kind = request.query.get("kind", "")
        _check_kind(kind)
        return json_answer(self._snapshots.search(kind, request.query.get("contains", "")))

    async def _about(self, request: web.Request) -> web.Response:
        """Answer with the versions that run, and with the settings in force, their passwords hidden."""
        refuse_foreign(request)
        about: dict[str, Any] = {
            "sidecar": process_id(),
            "host": platform.node(),
            "version": __version__,
            "ring_format": RING_FORMAT,
            "hot_loop": kind(),
            "python": platform.python_version(),
            "default_vhost": self._in_force.now.default_vhost,
            "settings": describe(self._in_force.now),
        }
        return json_answer(about)

    async def _ask_fleet(self, request: web.Request) -> web.Response:
        """Answer with the sidecars that are connected to the broker: somebody has pressed the button for it."""
        refuse_foreign(request)
        return json_answer(await self._fleet.ask())


def _check_kind(kind: str) -> None:
    """Return if there are views of such a kind. Raises ProblemError."""
    if kind not in _KINDS:
        raise invalid("kind", f"{kind[:60]!r} is not one of {', '.join(_KINDS)}")
