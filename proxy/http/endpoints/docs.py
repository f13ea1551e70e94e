"""`GET /openapi.json` and `GET /docs`: the interface for programs, and the same as a page for people."""

import base64
import functools
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy import __version__
from proxy.http.endpoints.page import STYLE, page


def openapi_document() -> dict[str, Any]:
    """Return the HTTP listener's OpenAPI 3.1 document: `openapi.json` of this folder, with this sidecar's version."""
    read: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    read["info"]["version"] = __version__
    return read


Handler = Callable[[web.Request], Awaitable[web.Response]]


def openapi() -> Handler:
    """Return what answers ``GET /openapi.json``."""
    return _serving(lambda: json.dumps(openapi_document(), indent=1, ensure_ascii=False), "application/json", {})


def docs() -> Handler:
    """Return what answers ``GET /docs``, under a policy that lets the page load nothing but its own style sheet."""
    style = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    return _serving(lambda: page(openapi_document()), "text/html", headers)


def _serving(text: Callable[[], str], content_type: str, headers: Mapping[str, str]) -> Handler:
    """Return a handler that serves the text, or a 304 to a client that has it (``Cache-Control: no-cache``).

    The text is made for the first request, in 7 ms: in most sidecars there is none.
    """

    @functools.cache
    def made() -> tuple[bytes, str]:
        body = text().encode()
        return body, hashlib.sha256(body).hexdigest()[:16]

    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", **headers}

    async def serve(request: web.Request) -> web.Response:
        body, tag = made()
        known = any(etag.value in (tag, "*") for etag in request.if_none_match or ())
        if known:
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)
        response.etag = tag
        return response

    return serve
