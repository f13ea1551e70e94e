"""Whether a broker answers."""

import base64
import http.client
import json
import socket
import urllib.request
from contextlib import closing
from urllib.parse import unquote, urlsplit

# The function `answering_version` raises these for a broker that is not up, or not yet wholly up.
NOT_READY = (OSError, http.client.HTTPException)

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs of what runs here, whichever web proxy the environment names."""


def answering_version(amqp_url: str, management_url: str, timeout: float = 5) -> str:
    """Return the broker's version once both its AMQP port and its management API answer; else raise `NOT_READY`."""
    amqp = urlsplit(amqp_url)
    socket.create_connection((amqp.hostname or "localhost", amqp.port or 5672), timeout).close()
    try:
        return str(json.loads(_overview(management_url, timeout))["rabbitmq_version"])
    except (ValueError, KeyError) as error:
        raise ConnectionError(f"{management_url} is not RabbitMQ's management API") from error


def _overview(management_url: str, timeout: float) -> bytes:
    url = urlsplit(management_url)
    connection_class = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    credentials = f"{unquote(url.username or 'guest')}:{unquote(url.password or 'guest')}".encode()
    with closing(connection_class(url.hostname or "localhost", url.port, timeout=timeout)) as connection:
        authorization = {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}
        connection.request("GET", url.path.rstrip("/") + "/api/overview", headers=authorization)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ConnectionError(f"the management API answers {response.status} {response.reason}")
        return response.read()
