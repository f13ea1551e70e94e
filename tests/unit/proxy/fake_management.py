"""A management API that lies, stalls and breaks on command, which no real broker can be made to do."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from proxy.topology.bindings import CONSISTENT_HASH

Name = tuple[str, str]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def binding(name: str, key: str = "1", kind: str = "queue") -> dict[str, Any]:
    return {"destination": name, "destination_type": kind, "routing_key": key, "source": "ignored"}


class FakeManagement:
    """Answers like RabbitMQ 3.10: the bindings of an exchange that does not exist are an empty list."""

    def __init__(self) -> None:
        self.vhosts = {"/"}
        self.exchanges: dict[Name, dict[str, Any]] = {}
        self.bindings: dict[Name, list[dict[str, Any]]] = {}
        self.queues: dict[Name, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        """The definitions of policies by name, the same in each virtual host; what they apply to is not looked at."""
        self.faults: list[tuple[str, Fault]] = []
        """The answers to give in place of the usual ones: the first that is for a request's path is taken."""
        self.requests: list[str] = []
        """Paths as they came, without their queries."""
        self.authorizations: set[str | None] = set()
        self.transports: set[asyncio.Transport] = set()
        """Connections of requests that were made."""
        self.url = URL()

    def exchange(self, name: str, *bindings: dict[str, Any], vhost: str = "/", **fields: Any) -> None:
        """Declares an exchange, a hash exchange unless its type is given, and binds it."""
        self.vhosts.add(vhost)
        self.exchanges[vhost, name] = {
            "name": name,
            "type": CONSISTENT_HASH,
            "internal": False,
            "arguments": {},
        } | fields
        self.bindings[vhost, name] = list(bindings)

    def delete(self, name: str, vhost: str = "/") -> None:
        del self.exchanges[vhost, name]
        del self.bindings[vhost, name]

    def fail(self, fault: Fault, where: str = "/api/") -> None:
        """From now on, `fault` answers requests for the path `where`, or, with a slash at its end, below it."""
        self.faults.insert(0, (where, fault))

    def mend(self) -> None:
        self.faults.clear()

    def count(self, ending: str) -> int:
        return sum(path.endswith(ending) for path in self.requests)

    def counted(self) -> Counter[str]:
        return Counter(self.requests)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        self.requests.append(path)
        if request.transport is not None:
            self.transports.add(request.transport)
        self.authorizations.add(request.headers.get("Authorization"))
        for where, fault in self.faults:
            if path == where or (where.endswith("/") and path.startswith(where)):
                return await fault(request)
        answer = self.answer([unquote(part) for part in path.split("/")[2:]])
        if answer is None:
            return web.json_response({"error": "Object Not Found", "reason": "Not Found"}, status=404)
        return web.json_response(answer)

    def answer(self, path: list[str]) -> object:
        """The JSON of one request, None for 404."""
        match path:
            case ["cluster-name"]:
                return {"name": "rabbit@fake"}
            case ["vhosts"]:
                return [{"name": vhost} for vhost in sorted(self.vhosts)]
            case ["exchanges", vhost]:
                found = [{"name": name} for name in ("", "amq.topic")]
                found += [
                    {"name": name} | {k: value for k, value in fields.items() if k == "policy"}
                    for (v, name), fields in self.exchanges.items()
                    if v == vhost
                ]
                return found if vhost in self.vhosts else None
            case ["exchanges", vhost, name]:
                return self.exchanges.get((vhost, name))
            case ["exchanges", vhost, name, "bindings", "source"]:
                return self.bindings.get((vhost, name), [])
            case ["policies", vhost]:
                policies = self.policies.items()
                return [{"name": n, "definition": d} for n, d in policies] if vhost in self.vhosts else None
            case ["queues", vhost, name]:
                known = {"name": name, "arguments": {}, "effective_policy_definition": []}
                # A field that is `...` is missing.
                return {k: v for k, v in {**known, **self.queues.get((vhost, name), {})}.items() if v is not ...}
            case _:
                return None


@asynccontextmanager
async def serving(fake: FakeManagement) -> AsyncIterator[FakeManagement]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01, access_log=None)
    # By address: a name would be looked up.
    fake.url = URL.build(scheme="http", user="reader", password="hush", host="127.0.0.1", port=server.port)
    try:
        yield fake
    finally:
        await server.close()


def status(code: int, text: str = "", headers: dict[str, str] | None = None) -> Fault:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text, headers=headers)

    return answer


def body(content: bytes | object, headers: dict[str, str] | None = None) -> Fault:
    """200 with these bytes, or with this as JSON."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, headers={"Content-Type": "application/json", **(headers or {})})

    return answer


def raw(data: bytes) -> Fault:
    """These bytes instead of an answer, then the end of the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(data)
        request.transport.close()
        # The server finds the connection gone and writes nothing more.
        return web.Response()

    return answer


def truncated(data: bytes) -> Fault:
    """Half of the body that the header announces."""
    return raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data) * 2, data)
    )


async def silent(_: web.Request) -> web.StreamResponse:
    """No answer before the client gives up."""
    await asyncio.Event().wait()
    raise AssertionError("never")


class Gate:
    """A fault that answers nothing until it is opened, then as if it had not been there."""

    def __init__(self, fake: FakeManagement) -> None:
        self._fake = fake
        self._open = asyncio.Event()
        self.waiting = 0

    def open(self) -> None:
        self._open.set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.waiting += 1
        await self._open.wait()
        answer = self._fake.answer([unquote(part) for part in request.rel_url.raw_path.split("/")[2:]])
        return web.json_response(answer)
