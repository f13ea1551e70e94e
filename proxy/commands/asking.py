"""Questions to a running sidecar, over its admin listener."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

TIMEOUT = 10.0
"""Seconds that a sidecar has to answer."""

_MAX_ANSWER = 64 * 1024 * 1024

WHICH = "give the URL of a sidecar's admin listener (admin_listen)"
"""The end of each error about a sidecar's answer."""


class QuestionError(Exception):
    """A sidecar gave no usable answer; the message says which and why."""


def rings(sidecar: str) -> Mapping[str, Any]:
    """Return a sidecar's answer about all its rings, and its default virtual host. Raises QuestionError."""
    answer = ask(sidecar, "/rings")
    if not isinstance(answer, dict) or "default_vhost" not in answer:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({str(answer)[:60]!r}); {WHICH}")
    return answer


def ask(sidecar: str, path: str) -> Any:
    """Return the JSON that a sidecar's admin listener answers at a path. Raises QuestionError."""
    if not sidecar.startswith(("http://", "https://")):
        raise QuestionError(f"{sidecar!r} is not a URL such as http://127.0.0.1:15681; {WHICH}")
    try:
        # Straight to the sidecar: proxies in the environment are for the way out.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(sidecar.rstrip("/") + path, timeout=TIMEOUT) as response:
            return json.loads(response.read(_MAX_ANSWER))
    except urllib.error.HTTPError as error:
        raise QuestionError(f"{sidecar} answered {error.code}: {detail(error)}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise QuestionError(f"{sidecar}: no answer: {getattr(why, 'strerror', None) or why}; {WHICH}") from None


def detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_MAX_ANSWER))["detail"])
    except (ValueError, KeyError, TypeError):
        return f"that is no sidecar's answer; {WHICH}"
