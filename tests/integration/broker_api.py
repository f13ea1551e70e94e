"""The changes that the tests make at the broker behind the sidecar's back, through the management API."""

import base64
import http.client
import itertools
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
"""For whatever must come to pass on a busy machine; never a figure that anything should take."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.2
"""Seconds between looks: each look of a long wait is a request that keeps a core from the other tests."""


def wait_until(what: str, look: Callable[[], T | Literal[False] | None], within: float = DEADLINE_SECONDS) -> T:
    """Return the first true result of `look`; fails the test where there is none in time, in seconds."""
    deadline, pause = time.monotonic() + within, _SHORTEST_PAUSE
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
    return found


@dataclass(frozen=True)
class Delivered:
    """A message as a consumer gets it."""

    body: bytes
    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]


class BrokerApi:
    """The management API with an administrator's credentials."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        user = f"{unquote(self._url.username or 'guest')}:{unquote(self._url.password or 'guest')}"
        self._headers = {
            "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
            "Content-Type": "application/json",
        }

    def ask(self, method: str, *path: str, body: object = None, query: str = "", missing: object = None) -> Any:
        """Return the JSON answered, `missing` for 404; the test fails for any other error."""
        target = "/api/" + "/".join(quote(part, safe="") for part in path) + (query and f"?{query}")
        host, port = self._url.hostname or "localhost", self._url.port
        with closing(http.client.HTTPConnection(host, port, timeout=DEADLINE_SECONDS)) as connection:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, self._url.path.rstrip("/") + target, data, self._headers)
            response = connection.getresponse()
            text = response.read()
        if response.status == 404:
            return missing
        assert response.status < 300, f"{method} {target}: {response.status} {text!r}"
        return json.loads(text) if text else None

    def abandon(self, method: str, *path: str, after: float) -> None:
        """Send a request, and reset its connection after some seconds without having read the answer."""
        target = "/api/" + "/".join(quote(part, safe="") for part in path)
        host, port = self._url.hostname or "localhost", self._url.port
        with closing(http.client.HTTPConnection(host, port, timeout=DEADLINE_SECONDS)) as connection:
            connection.request(method, self._url.path.rstrip("/") + target, headers=self._headers)
            time.sleep(after)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class VirtualHost:
    """A virtual host of one test's own."""

    def __init__(self, api: BrokerApi, name: str, users: Iterable[str]) -> None:
        """Create it; each of `users` may do everything in it."""
        self.api, self.name = api, name
        api.ask("PUT", "vhosts", name)
        for user in users:
            self.permit(user)

    def permit(self, user: str, configure: str = "", write: str = ".*", read: str = "") -> None:
        rights = {"configure": configure, "write": write, "read": read}
        self.api.ask("PUT", "permissions", self.name, user, body=rights)

    def delete(self) -> None:
        self.api.ask("DELETE", "vhosts", self.name)

    def exchange(self, name: str, kind: str = "x-consistent-hash", *, internal: bool = False, **arguments: Any) -> None:
        body = {"type": kind, "durable": True, "internal": internal, "arguments": _arguments(arguments)}
        self.api.ask("PUT", "exchanges", self.name, name, body=body)

    def queue(self, name: str, **arguments: Any) -> None:
        """Keyword arguments are written `x_max_length=1`."""
        self.api.ask("PUT", "queues", self.name, name, body={"durable": True, "arguments": _arguments(arguments)})

    def bind(self, exchange: str, destination: str, key: str = "1", *, kind: str = "q") -> None:
        self.api.ask("POST", "bindings", self.name, "e", exchange, kind, destination, body={"routing_key": key})

    def unbind(self, exchange: str, destination: str, key: str = "1", *, kind: str = "q") -> None:
        self.api.ask("DELETE", "bindings", self.name, "e", exchange, kind, destination, key or "~")

    def ring(
        self,
        exchange: str,
        weights: Mapping[str, int] | Iterable[str],
        kind: str = "x-consistent-hash",
        **arguments: Any,
    ) -> None:
        """A hash exchange with its queues, of weight 1 where none is given."""
        self.exchange(exchange, kind, **arguments)
        for queue, weight in (weights if isinstance(weights, Mapping) else dict.fromkeys(weights, 1)).items():
            self.queue(queue)
            self.bind(exchange, queue, str(weight))

    def lanes(self, exchange: str, weights: Mapping[str, int] | Iterable[str]) -> None:
        """Put a lane between a hash exchange and each of these queues; all but the exchange is made."""
        for queue, weight in (weights if isinstance(weights, Mapping) else dict.fromkeys(weights, 1)).items():
            self.queue(queue)
            self.exchange(f"{exchange}.lane.{queue}", "fanout")
            self.bind(f"{exchange}.lane.{queue}", queue, "")
            self.bind(exchange, f"{exchange}.lane.{queue}", str(weight), kind="e")

    def delete_queue(self, name: str) -> None:
        self.api.ask("DELETE", "queues", self.name, name)

    def delete_exchange(self, name: str) -> None:
        self.api.ask("DELETE", "exchanges", self.name, name)

    def policy(self, name: str, pattern: str, apply_to: str, **definition: Any) -> None:
        body = {"pattern": pattern, "apply-to": apply_to, "definition": _arguments(definition)}
        self.api.ask("PUT", "policies", self.name, name, body=body)

    def queues(self) -> list[str]:
        return [queue["name"] for queue in self.api.ask("GET", "queues", self.name, query="columns=name")]

    def drain(self, queue: str) -> list[Delivered]:
        """Take every message out of a queue."""
        taken: list[Delivered] = []
        while batch := self._get(queue, 5000):
            taken += batch
        return taken

    def drain_all(self) -> dict[str, list[Delivered]]:
        """Take every message out of every queue; queues without any are left out."""
        return {name: messages for name in self.queues() if (messages := self.drain(name))}

    def _get(self, queue: str, count: int) -> list[Delivered]:
        body = {"count": count, "ackmode": "ack_requeue_false", "encoding": "base64"}
        answer = self.api.ask("POST", "queues", self.name, queue, "get", body=body)
        assert answer is not None, f"there is no queue {queue!r}"
        return [
            Delivered(
                base64.b64decode(m["payload"]),
                m["exchange"],
                m["routing_key"],
                m["properties"] or {},
                dict(m["properties"]).get("headers") or {},
            )
            for m in answer
        ]


def landed(vhost: VirtualHost) -> dict[str, tuple[str, Delivered]]:
    """Take every message out of every queue; return by body the queue and the message. No body may be twice."""
    found = [(m.body.decode(), (queue, m)) for queue, messages in vhost.drain_all().items() for m in messages]
    assert len(dict(found)) == len(found), "a message is there twice"
    return dict(found)


def queues_of(vhost: VirtualHost) -> dict[str, str]:
    """Take every message out of every queue; return the queue of each by its body. No body may be twice."""
    return {body: queue for body, (queue, _) in landed(vhost).items()}


NAME_SHAPES = ("plain", "with space", "a/b", "/leading", "100%", "ünï-日本", "a&b=c?d#e+f;g", "q\"uo'te\\s", "..")
"""Names that virtual hosts, exchanges and queues may have."""

_numbers = itertools.count(1)


def fresh_name(shape: str | None = None) -> str:
    """Return a virtual host's name that no other test has, which begins with `shape`, or with each shape in turn."""
    number = next(_numbers)
    return f"{shape or NAME_SHAPES[number % (len(NAME_SHAPES) - 1)]}-{number}"


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in arguments.items()}
