"""Clients that publish all the time, each over one connection that it keeps, and remember what they were told."""

import http.client
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from tests.integration.broker_api import DEADLINE_SECONDS
from tests.integration.sidecar import Answer, Sidecar, publish_path
from tests.integration.wire_client import Wire


@dataclass(frozen=True)
class Confirmed:
    """A confirmed publish: when it was sent and confirmed (monotonic seconds), and the queue of its receipt."""

    sent: float
    confirmed: float
    queue: str


class Load:
    """Publishes numbered messages, whose bodies are their keys."""

    def __init__(self, sidecar: Sidecar, exchange: str, vhost: str, *, workers: int, limit: int = 1 << 30) -> None:
        """End by itself after `limit` messages; a worker ends where nobody listens any more."""
        self._sidecar, self._path, self._limit = sidecar, publish_path(exchange, vhost), limit
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        self.receipts: dict[str, Confirmed] = {}
        self.refused: list[Answer] = []
        self.unanswered: list[str] = []
        """Keys whose connection ended before an answer."""
        self.cut: list[str] = []
        """Those of them that went out on a connection on which a request had been answered before."""

    @property
    def confirmed(self) -> list[str]:
        """The keys."""
        return list(self.receipts)

    @contextmanager
    def running(self) -> Iterator[None]:
        """At the end of the block the clients finish what they have begun."""
        for thread in self._threads:
            thread.start()
        try:
            yield
            if self._limit < 1 << 30:
                for thread in self._threads:
                    thread.join(DEADLINE_SECONDS)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._sidecar.port, timeout=DEADLINE_SECONDS)
        try:
            while not self._stop.is_set() and (number := next(self._numbers)) < self._limit:
                if not self._publish(connection, f"key {number}"):
                    return
        finally:
            connection.close()

    def _publish(self, connection: http.client.HTTPConnection, key: str) -> bool:
        kept = connection.sock is not None
        try:
            if not kept:
                connection.connect()
        except OSError:
            return False
        sent = time.monotonic()
        try:
            connection.request("POST", self._path, key.encode(), {"Routing-Key": key})
            response = connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException):
            self.unanswered.append(key)
            if kept:
                self.cut.append(key)
            connection.close()
            return True
        if answer.status == 200:
            self.receipts[key] = Confirmed(sent, time.monotonic(), answer.queue())
        else:
            self.refused.append(answer)
        return True


@contextmanager
def meanwhile(step: Callable[[], None]) -> Iterator[None]:
    """Do a step again and again in a thread, until the block ends; its error ends the test."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            step()

    with ThreadPoolExecutor(1) as pool:
        repeating = pool.submit(repeat)
        try:
            yield
        finally:
            over.set()
        repeating.result()


@contextmanager
def publishing(wire: Wire, exchange: str, key: str) -> Iterator[list[int]]:
    """Publish numbers on channel 1 until the block ends, one at a time; give those that were confirmed.

    Each has the key that `key` makes of its number. A message that comes back is an error.
    """
    confirmed: list[int] = []

    def publish() -> None:
        number = len(confirmed)
        wire.publish(1, exchange, key.format(number), b"%d" % number, mandatory=True)
        wire.confirm(1, number + 1, number)
        confirmed.append(number)

    with meanwhile(publish):
        yield confirmed
