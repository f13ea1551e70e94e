"""A sidecar as a process of its own, and what clients ask it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import proxy
from ring.compiled import PURE
from tests.integration.broker_api import DEADLINE_SECONDS, wait_until
from tests.integration.prestart import Prestarted

COMMAND = str(Path(sys.executable).with_name("ring-proxy"))

Headers = Mapping[str, str] | None
Body = bytes | Iterable[bytes] | None
"""A body that is not bytes goes out in chunks."""

_NEVER_IN_A_LOG = (
    "Traceback",
    "Warning:",
    "unexpected error",
    "never retrieved",
    "never awaited",
    "was destroyed",
)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    def receipt(self) -> Any:
        """Return the JSON of a 200."""
        assert self.status == 200, self
        return self.json

    def queue(self) -> str:
        """Return the queue that the receipt of a confirmed publish, or the answer of `route`, names."""
        destination = self.receipt()["destination"]
        assert destination["type"] == "queue"
        return str(destination["name"])

    def problem(self, status: int, kind: str, outcome: str, *, retryable: bool) -> str:
        """Return the detail of a problem that has all of this."""
        assert self.headers.get("content-type") == "application/problem+json", self
        problem = self.json
        found = (self.status, problem["status"], problem["type"], problem["outcome"], problem["retryable"])
        assert found == (status, status, f"urn:ringproxy:problem:{kind}", outcome, retryable), self
        assert problem["title"]
        assert "\n" not in problem["detail"]
        return str(problem["detail"])


class Sidecar:
    """A running `ring-proxy run`."""

    running: ClassVar[list["Sidecar"]] = []
    """Those that were started and not stopped yet, by whatever test: the fleet of the broker."""

    def __init__(
        self,
        settings: Mapping[str, str],
        folder: Path,
        secrets: tuple[str, ...] = (),
        additions: Mapping[str, str] | None = None,
        before: str = ":",
    ) -> None:
        """Start it on free ports and wait until both listeners are bound. `secrets` may show nowhere.

        `additions` are to its environment; `before` are commands of a shell, which it then replaces.
        """
        self._log = folder / "log"
        self._secrets = secrets
        others = (name for name in os.environ if name == PURE or not name.startswith("RINGPROXY_"))
        environment = {name: os.environ[name] for name in others}
        environment |= {f"RINGPROXY_{what}_LISTEN": "127.0.0.1:0" for what in ("AMQP", "HTTP", "ADMIN")}
        environment |= {f"RINGPROXY_{name.upper()}": value for name, value in settings.items()}
        # The same modules, compiled or not, that the tests import.
        environment |= {"PYTHONPATH": str(Path(proxy.__file__).parents[1]), "PYTHONWARNINGS": "default"}
        environment |= additions or {}
        self.process = self._started(environment, before, exactly=before != ":" or bool(additions))
        try:
            self.amqp_port, self.port, self.admin_port = wait_until("the listeners", self._ports)
        except BaseException:
            self.kill()
            raise
        Sidecar.running.append(self)

    def _started(
        self, environment: Mapping[str, str], before: str, exactly: bool
    ) -> "subprocess.Popen[bytes] | Prestarted":
        """Return the process: where it matters exactly as a user starts it, else a fork that saves the imports."""
        if not exactly:
            return Prestarted(self._log, environment)
        command = ["sh", "-ec", f'{before}; exec "$0" "$@"', COMMAND, "run"]
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _ports(self) -> tuple[int, int, int] | None:
        assert self.process.poll() is None, self.log()
        log = self.log()
        # As text, or as JSON.
        found = [re.search(rf'[ "]{what} listens on .*:(\d+)(?:"}})?\n', log) for what in ("amqp", "http", "admin")]
        ports = [int(match[1]) for match in found if match]
        return (ports[0], ports[1], ports[2]) if len(ports) == len(found) else None

    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace")

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def id(self) -> str:
        """The id of its process, which it tells whoever asks its admin listener, and the broker."""
        return self.admin("/livez").headers["ringproxy-id"]

    def publish(
        self,
        exchange: str,
        key: str | None,
        body: bytes = b"",
        *,
        vhost: str | None = None,
        headers: Headers = None,
    ) -> Answer:
        """`key` None sends no Routing-Key."""
        all_headers = dict(headers or {})
        if key is not None:
            all_headers["Routing-Key"] = key
        return self.ask("POST", publish_path(exchange, vhost), body, all_headers)

    def batch(
        self,
        exchange: str,
        messages: Iterable[Mapping[str, Any]] | bytes,
        *,
        vhost: str | None = None,
        headers: Headers = None,
    ) -> Answer:
        """Items as JSON; bytes are a body as it is, JSON too unless `headers` say otherwise."""
        body = messages if isinstance(messages, bytes) else json.dumps({"messages": list(messages)}).encode()
        all_headers = {"Content-Type": "application/json"} | dict(headers or {})
        return self.ask("POST", publish_path(exchange, vhost, "publish/batch"), body, all_headers)

    def route(self, exchange: str, key: str, *, vhost: str | None = None) -> Answer:
        query = {"key": key} if vhost is None else {"key": key, "vhost": vhost}
        return self.ask("GET", f"/v1/exchanges/{quote(exchange, safe='')}/route?{urlencode(query)}")

    def ask(self, method: str, path: str, body: Body = None, headers: Headers = None) -> Answer:
        """Send a request to the listener that takes publishes, and return the answer."""
        return ask(self.port, method, path, body, headers)

    def admin(self, path: str, headers: Headers = None) -> Answer:
        """Send a request to the admin listener, and return the answer."""
        return ask(self.admin_port, "GET", path, None, headers)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        wanted = [f'{label}="{_escaped(value)}"' for label, value in labels.items()]
        total = 0.0
        for line in self.admin("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(label in sample for label in wanted):
                total += float(value)
        return total

    def memory(self, what: str = "VmRSS") -> int:
        """Return the bytes resident now; `VmHWM` for the most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found, status
        return int(found[1]) * 1024

    def ring(self, vhost: str, exchange: str) -> Any:
        """Return what it knows of an exchange."""
        return self.admin(f"/rings/{quote(vhost, safe='')}/{quote(exchange, safe='')}").receipt()

    def weights(self, vhost: str, exchange: str) -> dict[str, int]:
        """Return the weights of the ring in force, by the destination's name; empty where there is none."""
        return {d["name"]: d["weight"] for d in self.ring(vhost, exchange).get("destinations", ())}

    def wait_for_weights(self, vhost: str, exchange: str, weights: Mapping[str, int]) -> None:
        wait_until(f"a ring of {weights}", lambda: self.weights(vhost, exchange) == weights)

    def wait_ready(self) -> None:
        try:
            wait_until("readiness", lambda: self.admin("/readyz").status == 200)
        except AssertionError:
            raise AssertionError(self.admin("/readyz?verbose").text) from None

    def raw(self, *parts: bytes, answers: int = 1) -> list[Answer]:
        """Bytes sent as they are, each part once the one before is read; so many answers, fewer if it hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_SECONDS) as connection:
            data = b""
            for part in parts[:-1]:
                connection.sendall(part)
                data += connection.recv(65536)
            connection.sendall(parts[-1])
            while len(got := _answers(data)) < answers and (more := _received(connection)):
                data += more
        return got

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it with SIGTERM and check that it left in good order and told no secret."""
        try:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
            status = self.process.wait(DEADLINE_SECONDS)
        finally:
            self.kill()
        assert status == 0, self.log()
        self.check_log()

    def kill(self) -> None:
        """End it at once, where it still runs."""
        if self in Sidecar.running:
            Sidecar.running.remove(self)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def check_log(self) -> None:
        """Fail the test where the log has an unexpected error or a secret."""
        log = self.log()
        for words in _NEVER_IN_A_LOG:
            assert words not in log, log
        for secret in self._secrets:
            assert secret not in log, log


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')


def publish_path(exchange: str, vhost: str | None = None, what: str = "publish", **more: str) -> str:
    """`more` are other parameters of the query."""
    query = urlencode(more if vhost is None else {"vhost": vhost, **more})
    return f"/v1/exchanges/{quote(exchange, safe='')}/{what}{query and '?' + query}"


def bearer(token: str) -> dict[str, str]:
    """Return the header that has the token."""
    return {"Authorization": f"Bearer {token}"}


def ask(port: int, method: str, path: str, body: Body, headers: Headers) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)) as connection:
        encoded = {name: value.encode() for name, value in (headers or {}).items()}
        connection.request(method, path, body, encoded)
        return _answer(connection.getresponse())


def _answer(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        # It hung up on bytes that it did not want to read.
        return b""


def _answers(data: bytes) -> list[Answer]:
    """Return the whole answers among these bytes, each with its length; interim ones are left out."""
    answers = []
    while b"\r\n\r\n" in data:
        head, _, data = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(data) < length:
            break
        if not status.split()[1].startswith("1"):
            answers.append(Answer(int(status.split()[1]), headers, data[:length]))
        data = data[length:]
    return answers
