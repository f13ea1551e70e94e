"""JSON that the answers of several endpoints share."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from ring.destination import Destination


def json_answer(answer: Mapping[str, Any]) -> web.Response:
    """Return a 200 with this JSON object."""
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def named(destination: Destination) -> dict[str, str]:
    """Return a destination as every answer names it."""
    return {"type": destination.kind, "name": destination.name}
