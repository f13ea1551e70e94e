"""A management API and sidecars that answer as a test says: lies and gaps that no real broker shows to order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from proxy.topology.management import Management

Pages = dict[str, Any]
"""The JSON of each page by its path after `/api/`; a function is called for each request, None is a 404."""


@asynccontextmanager
async def served(pages: Pages) -> AsyncIterator[str]:
    """Serve pages by their whole paths, and give the server's URL."""

    async def answer(request: web.Request) -> web.Response:
        page = pages.get(unquote(request.rel_url.raw_path))
        value = page() if callable(page) else page
        if value is None:
            return web.json_response({"error": "Object Not Found", "reason": "Not Found"}, status=404)
        return value if isinstance(value, web.Response) else web.json_response(value)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


@asynccontextmanager
async def management(pages: Pages) -> AsyncIterator[Management]:
    """Give a client of an API that has these pages."""
    async with (
        served({f"/api/{path}": page for path, page in pages.items()}) as url,
        Management([URL(url)], 5.0) as api,
    ):
        yield api
