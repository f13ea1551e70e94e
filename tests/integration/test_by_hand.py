"""The program of the comparison of groups that needs no sidecar: each of its copies has its own queues, and a spare."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote, urlsplit

import pika
import pytest

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import with_login
from tests.integration.documents import Document

pytestmark = pytest.mark.versions

QUEUES = range(1, 13)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    page = Document("docs/explanation/groups-compared.md", 'python title="by_hand.py"')
    (text,) = page["Single active consumer by hand"]
    assert "COPIES = 3" in text
    (tmp_path / "by_hand.py").write_text(text)
    return tmp_path / "by_hand.py"


@contextmanager
def copy(program: Path, name: str, url: str, printed: Path) -> Iterator[None]:
    """Run one copy, which adds to a file; it is killed at the end."""
    environment = os.environ | {"HOSTNAME": name, "BROKER_URL": url}
    with printed.open("ab") as output:
        running = subprocess.Popen([sys.executable, program], stdout=output, env=environment)
    try:
        yield
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_each_copy_has_its_own_queues_and_its_spare_takes_over(
    broker: Broker, vhost: VirtualHost, program: Path, tmp_path: Path, kind: str
) -> None:
    for number in QUEUES:
        vhost.queue(f"orders.{number}", x_queue_type=kind, x_single_active_consumer=True)
    parts = urlsplit(broker.amqp_url)
    url = with_login(broker.amqp_url, parts.username or "", parts.password or "", f"/{quote(vhost.name, safe='')}")
    names = ["orders-0", "orders-1", "orders-2", "spare-2"]
    files = [tmp_path / f"{name}.txt" for name in names]
    numbers = count(1)

    with ExitStack() as stack:
        connection = stack.enter_context(pika.BlockingConnection(pika.URLParameters(url)))
        channel = connection.channel()
        channel.confirm_delivery()

        def got(message: int) -> list[list[int]]:
            """Return the queues of which each copy has got this message."""
            told = [file.read_text().splitlines() if file.exists() else [] for file in files]
            return [[n for n in QUEUES if f"{n} {message}" in lines] for lines in told]

        def shares() -> list[list[int]]:
            """Publish a message to each queue; return the queues of which each copy gets it."""
            message = next(numbers)
            for number in QUEUES:
                channel.basic_publish("", f"orders.{number}", str(message).encode())
            wait_until("all messages", lambda: sum(map(len, got(message))) >= len(QUEUES))
            return got(message)

        def consumers(number: int) -> int:
            """Return how many consumers a queue has, also those that wait."""
            shown = vhost.api.ask("GET", "queues", vhost.name, f"orders.{number}")
            return len(shown["consumer_details"])

        for name, file in zip(names[:2], files[:2], strict=True):
            stack.enter_context(copy(program, name, url, file))
        own = [[n for n in QUEUES if n % 3 == number] for number in range(3)]
        with copy(program, "orders-2", url, files[2]):
            assert shares() == [*own, []]
            stack.enter_context(copy(program, "spare-2", url, files[3]))
            wait_until("the spare", lambda: all(consumers(number) == 2 for number in own[2]))
            assert shares() == [*own, []]
        assert shares() == [own[0], own[1], [], own[2]]
        with copy(program, "orders-2", url, files[2]):
            wait_until("it waits", lambda: all(consumers(number) == 2 for number in own[2]))
            assert shares() == [own[0], own[1], [], own[2]]

    for file in files:
        told = [line.split() for line in file.read_text().splitlines()]
        for number in QUEUES:
            of_queue = [int(body) for queue, body in told if int(queue) == number]
            assert of_queue == sorted(of_queue)
