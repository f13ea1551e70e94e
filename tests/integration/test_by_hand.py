"""The program of the comparison of groups that needs no sidecar: priorities spread the queues over its copies."""

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
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
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
def copy(program: Path, number: int, url: str, printed: Path) -> Iterator[None]:
    """Run one copy, which adds to a file; it is killed at the end."""
    environment = os.environ | {"HOSTNAME": f"orders-{number}", "BROKER_URL": url}
    with printed.open("ab") as output:
        running = subprocess.Popen([sys.executable, program], stdout=output, env=environment)
    try:
        yield
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_each_copy_has_its_own_queues_and_others_take_over(
    broker: Broker, api: BrokerApi, vhost: VirtualHost, program: Path, tmp_path: Path
) -> None:
    if int(str(api.ask("GET", "overview")["rabbitmq_version"]).partition(".")[0]) < 4:
        pytest.skip("no queue goes to a higher priority before RabbitMQ 4.0")
    for number in QUEUES:
        vhost.queue(f"orders.{number}", x_queue_type="quorum", x_single_active_consumer=True)
    parts = urlsplit(broker.amqp_url)
    url = with_login(broker.amqp_url, parts.username or "", parts.password or "", f"/{quote(vhost.name, safe='')}")
    files = [tmp_path / f"{number}.txt" for number in range(3)]
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

        for number, file in enumerate(files[:2]):
            stack.enter_context(copy(program, number, url, file))
        own = [[n for n in QUEUES if n % 3 == number] for number in range(3)]
        with copy(program, 2, url, files[2]):
            wait_until("its own queues for each", lambda: shares() == own)
        wait_until("others have its queues", lambda: not shares()[2])
        with copy(program, 2, url, files[2]):
            wait_until("it has them again", lambda: shares() == own)

    for file in files:
        told = [line.split() for line in file.read_text().splitlines()]
        for number in QUEUES:
            of_queue = [int(body) for queue, body in told if int(queue) == number]
            assert of_queue == sorted(of_queue)
