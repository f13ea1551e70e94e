"""The messages that every contender publishes, and the HTTP requests that carry them.

All are of 128 bytes and, where not said otherwise, persistent, their keys spread over the ring.
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, urlsplit

from bench.direct import SIZE
from bench.wire import post
from bench.world import EXCHANGE

BATCH = 500
SMALL_BATCH = 10

KEYS = [f"key-{number * 2654435761 % 2**32:08x}" for number in range(1000)]
"""Multiplied by a number without a common divisor with 2^32: all differ, and look it."""

_PAYLOADS = [(f"{key} " * SIZE)[:SIZE] for key in KEYS]

_JSON = {"Content-Type": "application/json"}
_PUBLISH = f"/v1/exchanges/{EXCHANGE}/publish"


def singles(path: str = _PUBLISH) -> list[bytes]:
    """One request a message."""
    return _singles(path, {})


def transient_singles() -> list[bytes]:
    """One request a message that the broker need not keep on disk."""
    return _singles(_PUBLISH, {"Amqp-Delivery-Mode": "1"})


def management(url: str) -> list[bytes]:
    """One request a message to the management API at `url`, with the URL's credentials."""
    parts = urlsplit(url)
    credentials = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    headers = _JSON | {"Authorization": f"Basic {credentials}"}
    common = {"properties": {"delivery_mode": 2}, "payload_encoding": "string"}
    bodies = [common | {"routing_key": k, "payload": p} for k, p in zip(KEYS, _PAYLOADS, strict=True)]
    path = f"/api/exchanges/{quote('/', safe='')}/{EXCHANGE}/publish"
    return [post(path, json.dumps(body).encode(), headers) for body in bodies]


def json_batches() -> list[bytes]:
    """Batches as one JSON object."""
    return _batches(_JSON, _json)


def transient_batches() -> list[bytes]:
    """Batches as one JSON object, of messages that the broker need not keep on disk."""
    transient = {"delivery_mode": 1}
    return _batches(_JSON, lambda items: _json([{**item, "properties": transient} for item in items]))


def small_batches(mode: int) -> list[bytes]:
    """Batches of SMALL_BATCH messages of that delivery mode."""
    properties = {"delivery_mode": mode}
    return _batches(_JSON, lambda items: _json([{**item, "properties": properties} for item in items]), SMALL_BATCH)


def gzip_batches() -> list[bytes]:
    """Batches as one JSON object, compressed."""
    return _batches(_JSON | {"Content-Encoding": "gzip"}, lambda items: gzip.compress(_json(items)))


def ndjson_batches() -> list[bytes]:
    """Batches as lines of JSON."""
    return _batches(
        {"Content-Type": "application/x-ndjson"}, lambda items: b"".join(_dumped(item) + b"\n" for item in items)
    )


def _singles(path: str, more: Mapping[str, str]) -> list[bytes]:
    headers = {"Content-Type": "text/plain", **more}
    return [post(path, p.encode(), headers | {"Routing-Key": k}) for k, p in zip(KEYS, _PAYLOADS, strict=True)]


_Items = Sequence[Mapping[str, object]]


def _batches(headers: Mapping[str, str], body: Callable[[_Items], bytes], size: int = BATCH) -> list[bytes]:
    """Batches that each begin elsewhere among the keys."""
    items = [{"key": key, "payload": payload} for key, payload in zip(KEYS, _PAYLOADS, strict=True)]
    starts = range(0, len(items), 100)
    batches = [[items[(start + number) % len(items)] for number in range(size)] for start in starts]
    return [post(f"{_PUBLISH}/batch", body(batch), headers) for batch in batches]


def _json(items: _Items) -> bytes:
    return _dumped({"messages": items})


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
