"""The stand-ins between a sidecar and its broker in the tests of faults: a TCP relay, and a lying management API."""

import http.client
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

_LOOK = 0.1


class Relay:
    """Forwards TCP until told otherwise. The port stays the same throughout."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._flowing, self._answering, self._ending = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._flowing.set()
        self._answering.set()
        self._ending.set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()

    def open(self) -> None:
        """Accept connections, again where it had been cut."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._listener.settimeout(_LOOK)
        self._start(self._accept, self._listener)

    def freeze(self) -> None:
        """Hold every byte back, both ways; connections stay up."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def hold_answers(self) -> None:
        """Hold back what the target sends on; what is sent to it still goes through."""
        self._answering.clear()

    def drop_answers(self) -> None:
        """End every connection with what is held back, and accept new ones."""
        self.cut()
        self._answering.set()
        self.open()

    def hold_ends(self) -> None:
        """Forward bytes, but no end of file, until `pass_ends`."""
        self._ending.clear()

    def pass_ends(self) -> None:
        self._ending.set()

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            pairs, self._pairs = self._pairs, []
        if listener:
            # A close alone would leave it listening for as long as the thread that accepts waits on it.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it for good, and wait until its threads have ended."""
        self._flowing.set()
        self._answering.set()
        self._ending.set()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            client.settimeout(None)
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                cut = self._listener is not listener
                if not cut:
                    self._pairs.append((client, server))
            if cut:  # since it was accepted: nothing else would end this connection
                client.close()
                server.close()
                return
            ends = threading.Barrier(2)
            self._start(self._forward, client, server, ends, self._flowing)
            self._start(self._forward, server, client, ends, self._answering)

    def _forward(
        self, source: socket.socket, sink: socket.socket, ends: threading.Barrier, passing: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                passing.wait()
                sink.sendall(data)
        self._ending.wait()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if ends.wait() == 0:
            source.close()
            sink.close()


@contextmanager
def relay(url: str) -> Iterator[tuple[Relay, str]]:
    """Yield a relay to a URL's host, and the URL with the relay's address instead."""
    parts = urlsplit(url)
    made = Relay((parts.hostname or "localhost", parts.port or {"amqp": 5672, "http": 15672}[parts.scheme]))
    try:
        yield made, at_port(url, made.port)
    finally:
        made.close()


def at_port(url: str, port: int) -> str:
    """Return the URL with the same credentials, on a port of this machine."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))


class ManagementFront:
    """Hands requests on to a management API, except those whose path it was told to answer itself."""

    def __init__(self, url: str) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        """By a part of the path, `""` being part of every path: the status and body to answer with."""
        self.asked: list[str] = []
        target = urlsplit(url)
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                front.asked.append(self.path)
                canned = next((answer for part, answer in front.answers.items() if part in self.path), None)
                status, body = canned or front._forwarded(
                    target.hostname or "", target.port or 0, self.path, self.headers
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = at_port(url, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,))
        self._thread.start()

    def answer(self, part: str, status: int, answer: object = None) -> None:
        """From now on, for paths with that part in them."""
        self.answers[part] = status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _forwarded(self, host: str, port: int, path: str, headers: object) -> tuple[int, bytes]:
        assert isinstance(headers, http.client.HTTPMessage)
        with closing(http.client.HTTPConnection(host, port)) as connection:
            connection.request("GET", path, headers={"Authorization": headers["Authorization"]})
            response = connection.getresponse()
            return response.status, response.read()


@contextmanager
def management_front(url: str) -> Iterator[ManagementFront]:
    """Yield a front that is always closed."""
    front = ManagementFront(url)
    try:
        yield front
    finally:
        front.close()
