"""SIGTERM: everything taken is answered, nothing answered 200 is lost, and the end comes in time with status 0."""

import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.load import Load
from tests.integration.relay import relay
from tests.integration.sidecar import Sidecar, publish_path

QUEUES = ["q1", "q2", "q3"]

BUSY = 5.0
"""Seconds beside the drain time: the last answers, which get one, and a busy machine."""


def ends_within(sidecar: Sidecar, seconds: float) -> None:
    """SIGTERM, and the end with status 0 no later than that and what a busy machine takes."""
    started = time.monotonic()
    sidecar.signal(signal.SIGTERM)
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0, sidecar.log()
    assert time.monotonic() - started < seconds + BUSY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(start_sidecar: StartSidecar, number: signal.Signals) -> None:
    sidecar = start_sidecar()
    sidecar.wait_ready()

    sidecar.signal(number)

    assert sidecar.process.wait(DEADLINE_SECONDS) == 0


def test_under_load(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(drain_time="2")
    load = Load(sidecar, "orders", vhost.name, workers=16)
    with load.running():
        wait_until("some load", lambda: len(load.confirmed) > 200)
        ends_within(sidecar, 2)

    landed = Counter(m.body.decode() for messages in vhost.drain_all().values() for m in messages)
    assert max(landed.values()) == 1
    assert set(load.confirmed) <= set(landed)
    # Every request on an open connection was answered.
    assert load.cut == []
    assert {answer.status for answer in load.refused} <= {503}
    for answer in load.refused:
        answer.problem(503, "draining", "rejected", retryable=True)
        assert answer.headers["connection"] == "close"
    # A connection that is made at the very end of listening may end unanswered; its request was not read.
    assert len(load.unanswered) <= 16
    assert not set(load.unanswered) & set(landed)
    assert "drain_time is over" not in sidecar.log()


def test_what_is_in_flight_is_answered_and_the_rest_refused(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url)
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", b"before", vhost=vhost.name).status == 200
        kept = _Connection(sidecar)
        assert kept.ask(_route(vhost)) == 200
        link.freeze()
        load = Load(sidecar, "orders", vhost.name, workers=5, limit=5)
        with load.running():
            wait_until("all in flight", lambda: sidecar.metric("ringproxy_in_flight") == 5)
            sidecar.signal(signal.SIGTERM)
            wait_until("draining", lambda: "FAIL not draining: " in sidecar.admin("/readyz?verbose").text)
            assert sidecar.admin("/readyz").status == 503
            assert sidecar.admin("/livez").status == 200
            late = sidecar.publish("orders", "k", b"late", vhost=vhost.name)
            late.problem(503, "draining", "rejected", retryable=True)
            assert late.headers["connection"] == "close"
            assert kept.ask(f"POST {publish_path('orders', vhost.name)}") == 503
            link.thaw()
        assert sidecar.process.wait(DEADLINE_SECONDS) == 0
        kept.close()

    assert len(load.confirmed) == 5
    assert sorted(m.body.decode() for m in vhost.drain("q")) == sorted(["before", *load.confirmed])


def test_what_still_comes_on_open_connections_is_answered(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """A client that has just read an answer sends its next request before it can know of the shutdown."""
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    sidecar.wait_ready()
    connections = [_Connection(sidecar) for _ in range(12)]
    for connection in connections:
        assert connection.ask(f"POST {publish_path('orders', vhost.name)}") == 200

    sidecar.signal(signal.SIGTERM)
    answers = [connection.ask(f"POST {publish_path('orders', vhost.name)}") for connection in connections]

    assert set(answers) <= {200, 503}
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0
    for connection in connections:
        connection.close()
    assert len(vhost.drain("q")) == 12 + answers.count(200)


def test_the_drain_time_limits_it(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, drain_time="0.5", confirm_timeout="600")
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        link.freeze()
        load = Load(sidecar, "orders", vhost.name, workers=2, limit=2)
        with load.running():
            wait_until("all in flight", lambda: sidecar.metric("ringproxy_in_flight") == 2)
            ends_within(sidecar, 0.5)

    assert load.confirmed == []
    assert "drain_time is over, and 2 HTTP requests still wait for a confirm: their outcome is unknown" in sidecar.log()
    # They may have been published, so they are told, not cut.
    assert len(load.refused) == 2
    for answer in load.refused:
        assert "ended before the confirm" in answer.problem(504, "unknown", "unknown", retryable=True)


def test_a_batch_that_is_being_sent_is_taken_to_its_end(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    sidecar.wait_ready()
    line = b'{"key":"k","payload":"p"}\n'
    path = publish_path("orders", vhost.name, "publish/batch")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: {len(line) * 20}\r\n\r\n".encode() + line * 10)
        wait_until("half of it", lambda: sidecar.metric("ringproxy_publishes_total", outcome="confirmed") == 10)
        sidecar.signal(signal.SIGTERM)
        wait_until("draining", lambda: sidecar.admin("/readyz").status == 503)
        connection.sendall(line * 10)
        answer = connection.recv(65536)
    assert sidecar.process.wait(DEADLINE_SECONDS) == 0

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"confirmed": 20' in answer
    assert len(vhost.drain("q")) == 20
    assert "drain_time is over" not in sidecar.log()


def test_a_batch_is_told_what_became_of_it_at_the_end_of_the_drain_time(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(1) as pool:
        sidecar = start_sidecar(broker_url=broker_url, drain_time="0.5", confirm_timeout="600")
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", b"before", vhost=vhost.name).status == 200
        link.freeze()
        items = [{"key": f"{n}", "payload": f"{n}"} for n in range(30)]
        waiting = pool.submit(sidecar.batch, "orders", items, vhost=vhost.name)
        wait_until("all in flight", lambda: sidecar.metric("ringproxy_in_flight") == 30)
        sidecar.signal(signal.SIGTERM)
        answer = waiting.result()
        assert sidecar.process.wait(DEADLINE_SECONDS) == 0

    assert "ended before the confirm" in answer.problem(503, "batch-failed", "unknown", retryable=True)
    assert [result["outcome"] for result in answer.json["results"]] == ["unknown"] * 30


def test_a_ring_being_built_does_not_delay_the_end(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """A thread that builds can't be cancelled, and the interpreter's own end would wait for it: 12 s were seen."""
    vhost.ring("orders", [f"q{n}" for n in range(300)])
    sidecar = start_sidecar(drain_time="0.1", lookup_timeout="0.1")
    sidecar.wait_ready()
    sidecar.publish("orders", "k", vhost=vhost.name)

    sidecar.signal(signal.SIGTERM)

    assert sidecar.process.wait(DEADLINE_SECONDS) == 0


def test_a_second_signal_ends_it_at_once(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, drain_time="600", confirm_timeout="600")
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        link.freeze()
        load = Load(sidecar, "orders", vhost.name, workers=1, limit=1)
        with load.running():
            wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 1)
            sidecar.signal(signal.SIGTERM)
            wait_until("draining", lambda: sidecar.admin("/readyz").status == 503)
            sidecar.signal(signal.SIGTERM)
            assert sidecar.process.wait(DEADLINE_SECONDS) == 1

    assert load.confirmed == []


def test_while_no_broker_answers(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, lookup_timeout="0.2")
        for freeze in (link.freeze, link.cut):
            freeze()
            answer = sidecar.publish("orders", "k", vhost=vhost.name)
            assert answer.status in (503, 504)
        started = time.monotonic()
        sidecar.signal(signal.SIGTERM)
        assert sidecar.process.wait(DEADLINE_SECONDS) == 0
        assert time.monotonic() - started < 15


def _route(vhost: VirtualHost) -> str:
    return f"GET {publish_path('orders', vhost.name).replace('/publish?', '/route?key=k&')}"


class _Connection:
    """A connection that stays open between requests, as clients' pools keep them."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._socket = socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS)

    def ask(self, what: str) -> int:
        """The status of the answer."""
        self._socket.sendall(
            f"{what} HTTP/1.1\r\nHost: localhost\r\nRouting-Key: k\r\nContent-Length: 0\r\n\r\n".encode()
        )
        return int(self._socket.recv(65536).split()[1])

    def close(self) -> None:
        self._socket.close()
