"""Publish over HTTP with requests: docs/how-to/publish-over-http.md."""

import os
import random
import time
import uuid

import requests
from urllib3.exceptions import NewConnectionError

SIDECAR = os.environ.get("SIDECAR_URL", "http://127.0.0.1:15680")
TIME_LIMIT = 20  # seconds, more than the sidecar's lookup_timeout and confirm_timeout together

session = requests.Session()  # one for each thread
if token := os.environ.get("SIDECAR_TOKEN"):
    session.headers["Authorization"] = f"Bearer {token}"


class PublishError(Exception):
    """A message is refused for good, or the last attempt failed. With outcome "unknown" it may be in a queue."""

    def __init__(self, outcome, detail):
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome


def publish(exchange, key, message, message_id=None, attempts=8):
    """Publish an object as JSON, and return the receipt."""
    url = f"{SIDECAR}/v1/exchanges/{requests.utils.quote(exchange, safe='')}/publish"
    headers = {"Amqp-Message-Id": message_id or str(uuid.uuid4())}  # the same id at each attempt
    may_be_there = False
    for attempt in range(1, attempts + 1):
        wait = 0
        try:
            response = session.post(url, params={"key": key}, json=message, headers=headers, timeout=TIME_LIMIT)
            answer = response.json()
            if response.ok:
                return answer
            wait = int(response.headers.get("Retry-After", 0))
        except requests.RequestException as error:
            cause = getattr(error.args[0] if error.args else None, "reason", None)
            outcome = (
                "unavailable" if isinstance(cause, NewConnectionError) else "unknown"
            )  # without one nothing was sent
            answer = {"outcome": outcome, "retryable": True, "detail": str(error)}
        may_be_there = may_be_there or answer["outcome"] == "unknown"
        if not answer["retryable"]:
            break
        if attempt < attempts:
            time.sleep(max(wait, min(30, 0.1 * 2**attempt)) * random.uniform(1, 1.5))
    raise PublishError("unknown" if may_be_there else answer["outcome"], answer["detail"])


if __name__ == "__main__":
    for order in (13, 14):
        print(publish("orders", "customer-4711", {"order": order}, f"order-{order}")["outcome"])
