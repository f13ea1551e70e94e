"""Limits, and a broker that stalls: every answer comes in time, is true, and costs bounded memory."""

import base64
import http.client
import itertools
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testbed.node import Node
from tests.certificates import Authority
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.own_node import Control, home_of, own_node, private_only
from tests.integration.relay import relay
from tests.integration.sidecar import Answer, Sidecar, ask, publish_path

QUEUES = ["q1", "q2"]
NOT_PUBLISHED = {"invalid", "rejected", "unavailable"}

HANDSHAKES = 1100

MOST_OF_A_HANDSHAKE = 128 * 1024
"""Bytes, generously."""


class Told:
    """The outcomes that clients were told of each message; bodies begin with its number."""

    def __init__(self, sidecar: Sidecar, vhost: str) -> None:
        self._sidecar, self._vhost = sidecar, vhost
        self._numbers = itertools.count()
        self.outcomes: dict[int, str] = {}
        self.answers: list[tuple[float, Answer]] = []
        """How long each took, in seconds."""

    def single(self, size: int = 0) -> Answer:
        number = next(self._numbers)
        started = time.monotonic()
        answer = self._sidecar.publish("orders", f"{number}", _body(number, size), vhost=self._vhost)
        self.answers.append((time.monotonic() - started, answer))
        self.outcomes[number] = answer.json["outcome"]
        return answer

    def batch(self, count: int, size: int = 0) -> Answer:
        numbers = [next(self._numbers) for _ in range(count)]
        items = [{"key": f"{n}", "payload": _body(n, size).decode()} for n in numbers]
        started = time.monotonic()
        wanted = {"Prefer": "return=representation"}
        answer = self._sidecar.batch("orders", items, vhost=self._vhost, headers=wanted)
        self.answers.append((time.monotonic() - started, answer))
        results = answer.json.get("results") or [answer.json] * count
        for number, result in zip(numbers, results, strict=True):
            self.outcomes[number] = result["outcome"]
        return answer

    def check(self, vhost: VirtualHost) -> Counter[str]:
        """Assert that the queues have what clients were told; return how many there are of each outcome."""
        landed = Counter(int(m.body.split()[0]) for messages in vhost.drain_all().values() for m in messages)
        assert max(landed.values(), default=1) == 1
        for number, outcome in self.outcomes.items():
            if outcome == "confirmed":
                assert number in landed, number
            elif outcome in NOT_PUBLISHED:
                assert number not in landed, (number, outcome)
        return Counter(self.outcomes.values())


def _body(number: int, size: int) -> bytes:
    return b"%d " % number + b"x" * size


def in_flight(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_in_flight")


def too_many(answer: Answer, limit: str) -> None:
    assert limit in answer.problem(429, "too-many", "rejected", retryable=True)
    assert answer.headers["retry-after"] == "1"


def test_more_messages_than_may_be_in_flight(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(8) as pool:
        sidecar = start_sidecar(broker_url=broker_url, max_in_flight="5", lookup_timeout="30")
        told = Told(sidecar, vhost.name)
        assert told.single().status == 200
        link.freeze()
        held: list[Future[Answer]] = [pool.submit(told.single) for _ in range(5)]
        wait_until("all in flight", lambda: in_flight(sidecar) == 5)

        for _ in range(3):
            too_many(told.single(), "max_in_flight is 5")
        too_many(sidecar.route("orders", "k", vhost=vhost.name), "max_in_flight is 5")
        # A batch waits for room; one message of it always may go.
        waiting = pool.submit(told.batch, 3)
        wait_until("the first of it in flight", lambda: in_flight(sidecar) >= 6)

        link.thaw()
        assert [future.result().status for future in [*held, waiting]] == [200] * 6
        assert told.single().status == told.batch(20).status == 200
    assert told.check(vhost) == {"confirmed": 30, "rejected": 3}
    assert in_flight(sidecar) == 0


def test_more_bytes_than_may_be_in_flight(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(8) as pool:
        sidecar = start_sidecar(broker_url=broker_url, max_in_flight_bytes="100000")
        told = Told(sidecar, vhost.name)
        # One message always may, however large.
        assert told.single(300_000).status == 200
        link.freeze()
        held = [pool.submit(told.single, 45_000) for _ in range(2)]
        wait_until("both in flight", lambda: in_flight(sidecar) == 2)

        too_many(told.single(45_000), "max_in_flight_bytes is 100000")
        chunks = sidecar.ask("POST", publish_path("orders", vhost.name, key="k"), iter([b"9 ", b"x" * 45_000]))
        too_many(chunks, "max_in_flight_bytes is 100000")
        # Headers count too.
        long = {"Amqp-Header-long": "v" * 3000}
        too_many(
            sidecar.publish("orders", "k", b"x" * 8000, vhost=vhost.name, headers=long), "max_in_flight_bytes is 100000"
        )
        held.append(pool.submit(told.single, 1000))
        wait_until("a small one more", lambda: in_flight(sidecar) == 3)

        link.thaw()
        assert [future.result().status for future in held] == [200] * 3
    assert told.check(vhost) == {"confirmed": 4, "rejected": 1}


def test_a_batch_does_not_wait_for_each_confirm_that_never_comes(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", QUEUES)
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, max_in_flight="40", confirm_timeout="0.5", lookup_timeout="5")
        told = Told(sidecar, vhost.name)
        assert told.single().status == 200
        link.freeze()

        answer = told.batch(400)

        assert answer.problem(503, "batch-failed", "unknown", retryable=True)
        assert told.answers[-1][0] < 5
        link.thaw()
        wait_until("works again", lambda: told.single().status == 200)
        outcomes = told.check(vhost)
    assert 1 <= outcomes["unknown"] <= 40
    assert outcomes["rejected"] >= 360


def test_a_batch_does_not_wait_for_room_for_long(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    with relay(login.broker_url) as (link, broker_url):
        sidecar = start_sidecar(broker_url=broker_url, max_in_flight="2", confirm_timeout="2", lookup_timeout="0.5")
        told = Told(sidecar, vhost.name)
        wait_until("the first look-up", lambda: sidecar.route("orders", "key", vhost=vhost.name).status == 200)
        assert told.batch(5).status == 200
        link.freeze()

        answer = told.batch(3)

        answer.problem(503, "batch-failed", "unknown", retryable=True)
        assert (
            "not sent, because there was no room in max_in_flight or max_in_flight_bytes for 0.5 s"
            in answer.json["results"][1]["detail"]
        )
        link.thaw()
        wait_until("works again", lambda: told.single().status == 200)
    outcomes = told.check(vhost)
    assert (outcomes["unknown"], outcomes["rejected"]) == (1, 2)


STRUCTURE = 260_000
"""Characters of an event outside its strings: what may be decoded at once."""

MIB = 1 << 20


def test_batches_of_events_do_not_stay_parsed_while_the_broker_is_frozen(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    """Some are sent, some wait to be; parsed, each would take 20 MiB until its answer."""
    vhost.ring("orders", ["q"])
    count, events = 12, 3
    data = "[" + "{}," * (STRUCTURE // 3 - 100) + "1]"
    attributes = '"specversion":"1.0","source":"s","type":"t","partitionkey":"k"'
    made = [f'{{{attributes},"id":"{n}","data":{data}}}' for n in range(events)]
    body = f"[{','.join(made)}]".encode()
    path, kind = publish_path("orders", vhost.name, "events"), {"Content-Type": "application/cloudevents-batch+json"}
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(count) as pool:
        sidecar = start_sidecar(broker_url=broker_url, confirm_timeout="4", lookup_timeout="4")
        assert sidecar.ask("POST", path, body, kind).receipt()["confirmed"] == events
        before = sidecar.memory("VmHWM")
        link.freeze()

        answers = list(pool.map(lambda n: sidecar.ask("POST", path, body, kind), range(count)))

        grown = sidecar.memory("VmHWM") - before
        print(f"{grown / MIB:.0f} MiB more for {count * len(body) / MIB:.0f} MiB of bodies")
        for answer in answers:
            answer.problem(503, "batch-failed", answer.json["outcome"], retryable=True)
            assert len(answer.json["results"]) == events
        assert grown < 6 * count * len(body)
        link.thaw()
        told = Told(sidecar, vhost.name)
        wait_until("works again", lambda: told.single().status == 200)
    assert in_flight(sidecar) == 0


def test_connections_lost_under_load(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    stop = threading.Event()
    with relay(login.broker_url) as (link, broker_url), ThreadPoolExecutor(12) as pool:
        sidecar = start_sidecar(broker_url=broker_url, lookup_timeout="2")
        told = Told(sidecar, vhost.name)

        def load(ask: Callable[[], Answer]) -> None:
            while not stop.is_set():
                ask()

        workers = [pool.submit(load, told.single) for _ in range(8)]
        workers += [pool.submit(load, lambda: told.batch(300)) for _ in range(2)]
        try:
            for _ in range(3):
                before = len(told.outcomes)
                wait_until("more load", lambda before=before: len(told.outcomes) > before + 500)  # type: ignore[misc]
                link.cut()
                link.open()
                wait_until("works again", lambda: told.single().status == 200)
        finally:
            stop.set()
        for worker in workers:
            worker.result()
    outcomes = told.check(vhost)
    assert outcomes["confirmed"] > 1000
    assert set(outcomes) <= {"confirmed", "unknown", "unavailable", "rejected"}


LINE = 8190
"""Bytes of a request's first line, or of a header: aiohttp's limits, as the reference has them."""
HEADERS = 128


@pytest.mark.parametrize(
    ("sizes", "status"),
    [((0, 0, 0), 200), ((LINE + 1, 0, 0), 400), ((0, LINE + 1, 0), 400), ((0, 0, HEADERS + 1), 400)],
    ids=["within", "the line", "a header", "the number of headers"],
)
def test_the_head_of_a_request(sidecar: Sidecar, vhost: VirtualHost, sizes: tuple[int, int, int], status: int) -> None:
    """A head within the limits is taken, and none beyond them; the next connection is as welcome as ever."""
    vhost.ring("orders", QUEUES)
    line, field, count = sizes
    first = f"POST {publish_path('orders', vhost.name, key='k' * (line or 200))} HTTP/1.1"
    fields = ["Host: localhost", "Content-Length: 0", f"X-Long: {'v' * (field or LINE - len('X-Long: '))}"]
    fields += [f"X-{n}: v" for n in range((count or HEADERS) - len(fields))]

    (answer,) = sidecar.raw("\r\n".join([first, *fields, "", ""]).encode())

    assert answer.status == status, answer
    if status == 400:
        answer.problem(400, "bad-request", "invalid", retryable=False)
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    assert sum(map(len, vhost.drain_all().values())) == (2 if status == 200 else 1)


def test_tls_handshakes_that_are_never_finished_keep_nobody_out(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    """They count against no limit of connections. (The `body_timeout` that each may take is not waited for here.)"""
    vhost.ring("orders", QUEUES)
    authority = Authority(tmp_path)
    pair = authority.issue("sidecar")
    sidecar = start_sidecar(max_http_connections="50", tls_cert_file=f"{pair.certificate}", tls_key_file=f"{pair.key}")
    before = sidecar.memory()
    with ExitStack() as stack:
        for n in range(HANDSHAKES):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS))
            if n % 2:
                silent.sendall(bytes.fromhex("16030100c8010000c40303"))
        context = ssl.create_default_context(cafile=authority.certificate)
        asking = http.client.HTTPSConnection("localhost", sidecar.port, timeout=DEADLINE_SECONDS, context=context)
        with closing(asking):
            asking.request("POST", publish_path("orders", vhost.name, key="k"), b"over TLS")
            assert asking.getresponse().status == 200
        cost = (sidecar.memory() - before) / (HANDSHAKES)
        print(f"{cost / 1024:.1f} KiB a handshake")
        assert cost < MOST_OF_A_HANDSHAKE


def test_batches_of_which_nothing_has_come_keep_no_other_out(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(max_in_flight_bytes=str(1 << 20))
    # The ring is known: as long as one is looked up, what may come counts.
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    path = publish_path("orders", vhost.name, "publish/batch")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    head += "Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(20):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS))
            silent.sendall(head.encode())
            assert silent.recv(100).startswith(b"HTTP/1.1 100 ")
        items = [{"key": f"{n}", "payload": "x"} for n in range(200)]
        assert sidecar.batch("orders", items, vhost=vhost.name).status == 200


@pytest.mark.parametrize("length", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_slow_sender(start_sidecar: StartSidecar, vhost: VirtualHost, length: str) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(body_timeout="0.3")
    head = f"POST {publish_path('orders', vhost.name, key='k')} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"

    (answer,) = sidecar.raw(f"{head}5\r\nhello\r\n".encode())

    assert "0.3 s" in answer.problem(408, "timeout", "invalid", retryable=True)
    assert answer.headers["connection"] == "close"
    assert vhost.drain_all() == {}


def test_a_slow_sender_of_a_batch(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(body_timeout="0.3")
    head = f"POST {publish_path('orders', vhost.name, 'publish/batch')} HTTP/1.1\r\nHost: localhost\r\n"
    head += "Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n"

    (answer,) = sidecar.raw(f'{head}{{"key":"k","payload":"whole"}}\n{{"key":"k","pay'.encode())

    assert "0.3 s" in answer.problem(408, "timeout", "unknown", retryable=True)
    assert [result["outcome"] for result in answer.json["results"]] == ["confirmed"]
    assert [m.body for m in vhost.drain("q")] == [b"whole"]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Node, Control]]:
    """A node that takes no message over a million bytes."""
    with own_node("max_message_size = 1000000\n") as made:
        yield made


@pytest.fixture
def home(running: tuple[Node, Control]) -> VirtualHost:
    return home_of(running[0], QUEUES)


StartBeside = Callable[..., Sidecar]


@pytest.fixture
def start_beside(start_sidecar: StartSidecar, running: tuple[Node, Control]) -> StartBeside:
    """Starts sidecars of that node."""
    node = running[0]

    def start(**changes: str) -> Sidecar:
        return start_sidecar(broker_url=node.amqp_url, management_url=node.management_url, **changes)

    return start


@private_only
@pytest.mark.versions
def test_a_message_that_is_too_large_for_the_broker(start_beside: StartBeside, home: VirtualHost) -> None:
    sidecar = start_beside()
    told = Told(sidecar, "/")
    assert told.single(999_990).status == 200
    connects = sidecar.metric("ringproxy_broker_connects_total")
    with ThreadPoolExecutor(12) as pool:
        beside = [pool.submit(told.single) for _ in range(40)]
        large = [pool.submit(told.single, 1_000_000) for _ in range(3)]
        answers = [future.result() for future in large]
    small = {future.result().status for future in beside}

    # The broker's word costs it its channel, and whatever is in flight there; from then on it is known.
    assert small <= {200, 504}
    assert {answer.status for answer in answers} <= {400, 413, 504}
    last = told.single(1_000_000)
    assert "1000000" in last.problem(413, "too-large", "invalid", retryable=False)
    assert told.single().status == 200
    assert sidecar.metric("ringproxy_broker_connects_total") == connects
    told.check(home)


@private_only
@pytest.mark.versions
def test_the_first_message_that_is_too_large_is_told_so(start_beside: StartBeside, home: VirtualHost) -> None:
    sidecar = start_beside()
    told = Told(sidecar, "/")

    answer = told.single(1_000_000)

    assert answer.status in (400, 413)
    assert (answer.json["outcome"], answer.json["retryable"]) == ("invalid", False)
    assert "1000000" in answer.json["detail"]
    batch = told.batch(3, 1_000_000)
    assert batch.problem(422, "batch-failed", "invalid", retryable=False).startswith("3 of 3 messages")
    assert "messages[0].body: " in batch.json["results"][0]["detail"]
    told.check(home)


@private_only
@pytest.mark.versions
def test_a_message_that_is_too_large_for_the_broker_by_the_management_apis_publish(
    start_beside: StartBeside, running: tuple[Node, Control], home: VirtualHost
) -> None:
    """As it answers itself, also where the limit is known and the broker is not asked any more."""
    sidecar = start_beside()
    message = {"properties": {}, "routing_key": "k", "payload_encoding": "string"}
    body = json.dumps(message | {"payload": "x" * 1_000_001}).encode()
    login = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    path = "/api/exchanges/%2F/orders/publish"
    native = ask(urlsplit(running[0].management_url).port or 0, "POST", path, body, login)

    answers = [sidecar.ask("POST", path, body, login) for _ in range(2)]

    for answer in answers:
        assert (answer.status, answer.json) == (native.status, native.json | {"outcome": "invalid", "retryable": False})
    assert home.drain_all() == {}


@private_only
@pytest.mark.versions
def test_a_memory_alarm(start_beside: StartBeside, running: tuple[Node, Control], home: VirtualHost) -> None:
    sidecar = start_beside(confirm_timeout="1", lookup_timeout="0.5")
    told = Told(sidecar, "/")
    wait_until("the first look-up", lambda: sidecar.route("orders", "key", vhost="/").status == 200)
    assert told.single().status == 200
    ctl = running[1]
    ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        # The broker tells a connection that it is blocked once it publishes; what it publishes until then waits there.
        wait_until("blocked", lambda: told.single().status == 503)
        for _ in range(2):
            detail = told.single().problem(503, "unavailable", "unavailable", retryable=True)
            assert "low on memory" in detail
        batch = told.batch(50)
        assert batch.status == 503
        assert "low on memory" in batch.json["detail"]
    finally:
        ctl("set_vm_memory_high_watermark", "0.6")

    wait_until("works again", lambda: told.single().status == 200)
    assert told.batch(50).status == 200
    assert told.check(home)["unavailable"] >= 3


@private_only
def test_a_frozen_broker_under_load(
    start_beside: StartBeside, running: tuple[Node, Control], home: VirtualHost
) -> None:
    sidecar = start_beside(confirm_timeout="1", lookup_timeout="1", max_in_flight="300")
    told = Told(sidecar, "/")
    assert told.single().status == told.batch(10).status == 200
    frozen = threading.Event()
    stop = threading.Event()
    # The answers are those to requests while it is frozen.
    answers: list[tuple[float, Answer]] = []

    def load(ask: Callable[[], Answer]) -> None:
        while not stop.is_set():
            was_frozen, started = frozen.is_set(), time.monotonic()
            answer = ask()
            if was_frozen and frozen.is_set():
                answers.append((time.monotonic() - started, answer))

    node = running[0]
    with ThreadPoolExecutor(40) as pool:
        workers = [pool.submit(load, lambda: told.single(4000)) for _ in range(32)]
        workers += [pool.submit(load, lambda: told.batch(200, 4000)) for _ in range(4)]
        try:
            wait_until("some load", lambda: len(told.outcomes) > 1000)
            with node.frozen():
                frozen.set()
                try:
                    started = time.monotonic()
                    wait_until("five seconds", lambda: time.monotonic() - started > 5)
                    memory = sidecar.memory("VmHWM")
                    assert sidecar.admin("/livez").status == 200
                finally:
                    frozen.clear()
            wait_until("works again", lambda: told.single().status == 200)
        finally:
            stop.set()
        for worker in workers:
            worker.result()

    assert {answer.status for _, answer in answers} <= {429, 503, 504}
    assert len(answers) > 40
    # Both waits at the most, and what a busy machine takes beside them.
    assert max(seconds for seconds, _ in answers) < 2 + 2
    assert memory < 256 << 20
    wait_until("nothing is left", lambda: in_flight(sidecar) == 0)
    outcomes = told.check(home)
    assert outcomes["unknown"] > 0
    assert outcomes["confirmed"] > 1000
