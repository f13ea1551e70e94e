"""The guide to consuming with a group: its permissions, settings, program and report, as its reader has them."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, StartSidecar, with_login
from tests.integration.documents import Document, Shell, shop_of, tried
from tests.integration.sidecar import Sidecar

GUIDE = Document("docs/how-to/consume-with-a-group.md")
FILES = Document("docs/how-to/consume-with-a-group.md", "toml")
OPERATOR = Document("docs/how-to/consume-with-a-group.md", 'toml title="anna.toml"')
REDRIVE = Document("docs/how-to/consume-with-a-group.md", 'toml title="redrive.toml"')
PROGRAM = Document("docs/how-to/consume-with-a-group.md", 'python title="billing.py"')
SERIES = Document("docs/how-to/consume-with-a-group.md", "python")
SHOWN = Document("docs/how-to/consume-with-a-group.md", "text")

VARIES = r"127\.0\.0\.1:\d+|(?<= by )\S+(?=, since)|\S+Z(?=,)|[\d.]+ s(?=,)"
"""The texts that differ from one run to the next: the client's port, the machine, and times."""


DIRECT = """
import signal, sys
import pika

def work(channel, method, properties, body):
    print(f"{method.routing_key} {body.decode()}", flush=True)
    channel.basic_ack(method.delivery_tag)

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.basic_qos(prefetch_count=20)
for number in range(1, 5):
    channel.basic_consume(f"orders.{number}", work)
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    channel.start_consuming()
except KeyboardInterrupt:
    connection.close()
"""
"""A program that consumes the guide's shards themselves, and cancels its consumers when it stops."""


def test_every_block_is_tried_here() -> None:
    assert tried(GUIDE, "GUIDE", __file__)
    assert tried(FILES, "FILES", __file__)
    assert tried(REDRIVE, "REDRIVE", __file__)
    assert tried(PROGRAM, "PROGRAM", __file__)
    assert tried(SERIES, "SERIES", __file__)
    assert tried(SHOWN, "SHOWN", __file__)


@pytest.fixture
def shop(api: BrokerApi) -> Iterator[VirtualHost]:
    """The guide's virtual host and users, with the permissions that it grants and no others."""
    (grant,) = GUIDE["Turn it on"]
    (redriver, _) = GUIDE["Publish dead letters again"]
    (operator, _) = GUIDE["Pause a shard or a group"]
    with shop_of(api, [*grant.splitlines(), redriver, operator]) as made:
        yield made


SetUp = Callable[..., Sidecar]
"""Starts a sidecar with a file of settings and further settings, whose own user has the rights of the guide."""


@pytest.fixture
def set_up(broker: Broker, shop: VirtualHost, start_sidecar: StartSidecar, tmp_path: Path) -> SetUp:
    numbers = count()

    def start(setting: str, **further: str) -> Sidecar:
        settings = tmp_path / f"ringproxy{next(numbers)}.toml"
        settings.write_text(setting)
        return start_sidecar(
            config=str(settings),
            broker_url=with_login(broker.amqp_url, "orders", "PASSWORD", "/shop"),
            management_url=with_login(broker.management_url, USER, PASSWORD),
            **further,
        )

    return start


@pytest.fixture
def sidecar(broker: Broker, shop: VirtualHost, set_up: SetUp, tmp_path: Path) -> Sidecar:
    """A sidecar with the guide's setting, beside its shards."""
    topology = tmp_path / "topology.toml"
    (shards,), (setting,) = FILES["Before you begin"], FILES["Turn it on"]
    topology.write_text(shards)
    urls = f"--broker-url={broker.amqp_url} --management-url={broker.management_url}"
    shop.permit(urlsplit(broker.amqp_url).username or "guest", ".*", ".*", ".*")
    assert "steps done" in Shell({})(f"ring-proxy topology apply {urls} {topology}")
    return set_up(setting)


@pytest.fixture
def program(sidecar: Sidecar, tmp_path: Path) -> Path:
    """The guide's program, at the sidecar's port."""
    (program,) = PROGRAM["Turn it on"]
    assert "localhost:5673" in program
    (tmp_path / "billing.py").write_text(program.replace("localhost:5673", f"127.0.0.1:{sidecar.amqp_port}"))
    return tmp_path / "billing.py"


@contextmanager
def at_work(program: Path, printed: Path, *arguments: str) -> Iterator[None]:
    """Run a program that prints to a file, and let it stop at the end."""
    with printed.open("wb") as output:
        running = subprocess.Popen([sys.executable, program, *arguments], stdout=output)
    try:
        yield
        assert running.poll() is None
        running.terminate()
        running.wait(timeout=20)
    finally:
        running.kill()
        running.wait()


def test_the_program_consumes_and_the_report_shows_it(sidecar: Sidecar, program: Path, tmp_path: Path) -> None:
    with at_work(program, tmp_path / "billing.txt"):
        consumes(sidecar, tmp_path / "billing.txt")


def consumes(sidecar: Sidecar, billing: Path) -> None:
    """Check the report of the guide's program, and what it prints to the file."""
    (ask,), (shown,) = GUIDE["See who has what"], SHOWN["See who has what"]
    shell = Shell({})

    def report() -> str:
        return shell(f"{ask.strip()} --sidecar {sidecar.admin_url}")

    def alike(text: str) -> str:
        return re.sub(VARIES, "...", text).strip()

    def settled() -> str | None:
        """Return the report once no shard moves and RabbitMQ has told each shard's type and figures."""
        told = report()
        is_settled = "has 4 shards" in told and not re.search(r"^moving|not known|\?", told, flags=re.M)
        return told if is_settled else None

    wait_until("a member", lambda: '"id"' in sidecar.admin("/groups/shop/orders").text)
    told = wait_until("four shards at rest", settled)
    assert alike(told) == alike(shown)
    assert "not balanced" not in told

    keys = [f"customer-{number}" for number in range(20)]
    for number, key in enumerate(keys):
        assert sidecar.publish("orders", key, vhost="shop", body=str(number).encode()).status == 200
    wait_until("all messages", lambda: len(billing.read_text().splitlines()) == len(keys))
    assert sorted(billing.read_text().splitlines()) == sorted(f"{key} {n}" for n, key in enumerate(keys))


@pytest.mark.versions
def test_consumers_of_the_shards_make_way_and_come_back_in_order(
    broker: Broker, api: BrokerApi, sidecar: Sidecar, program: Path, tmp_path: Path
) -> None:
    """They run while the group takes over, and are there again when it ends. Each key is consumed in order."""
    if int(str(api.ask("GET", "overview")["rabbitmq_version"]).partition(".")[0]) < 4:
        pytest.skip("no shard goes to a higher priority before RabbitMQ 4.0")
    (tmp_path / "direct.py").write_text(DIRECT)
    address = with_login(broker.amqp_url, *login_of(broker), "/shop")
    files = [tmp_path / name for name in ("before.txt", "billing.txt", "after.txt")]
    before, billing, after = files
    keys = [f"customer-{number}" for number in range(12)]
    (ask,) = GUIDE["See who has what"]
    shell, numbers = Shell({}), count(1)

    def report() -> str:
        return shell(f"{ask.strip()} --sidecar {sidecar.admin_url}")

    def publish(to: Path) -> bool:
        """Publish one more message of each key; return whether all of them come to this program."""
        number = next(numbers)
        for key in keys:
            assert sidecar.publish("orders", key, vhost="shop", body=str(number).encode()).status == 200
        mine = {f"{key} {number}" for key in keys}
        wait_until("all messages", lambda: mine <= {line for file in files for line in lines(file)})
        return mine <= set(lines(to))

    with ExitStack() as old:
        old.enter_context(at_work(tmp_path / "direct.py", before, address))
        wait_until("its consumers", lambda: publish(before))
        with at_work(program, billing):
            began = time.monotonic()
            wait_until("the group takes over", lambda: publish(billing))
            print(f"the group had all shards after {time.monotonic() - began:.1f} s")
            # RabbitMQ tells about consumers a few seconds after they have begun.
            wait_until("it to be told", lambda: "consumers that are not of the group" in report())
            old.close()
            assert publish(billing)
            wait_until("an exact group", lambda: ", exact" in report())

            old.enter_context(at_work(tmp_path / "direct.py", after, address))
            wait_until("its consumers", lambda: "consumers that are not of the group" in report())
            assert publish(billing)
        wait_until("the shards come back", lambda: publish(after))

    published = next(numbers)
    first = dict.fromkeys(line for file in files for line in lines(file))
    for key in keys:
        assert [int(line.split()[1]) for line in first if line.startswith(f"{key} ")] == list(range(1, published))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def url_of(broker: Broker, sidecar: Sidecar) -> str:
    """Return the URL by which the broker's administrator is a client of a sidecar."""
    user, password = login_of(broker)
    return f"amqp://{user}:{password}@127.0.0.1:{sidecar.amqp_port}/shop"


def login_of(broker: Broker) -> tuple[str, str]:
    """Return the name and the password of the broker's administrator."""
    url = urlsplit(broker.amqp_url)
    return url.username or "guest", url.password or "guest"


def test_in_series_a_requeued_message_comes_again_before_the_next_of_its_key(
    broker: Broker, sidecar: Sidecar, set_up: SetUp
) -> None:
    (setting,) = FILES["Work on one message of a key at a time"]
    (lines,) = SERIES["Work on one message of a key at a time"]
    came = list[tuple[str, bool, object]]()

    def work(channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> None:
        came.append((body.decode(), bool(method.redelivered), (properties.headers or {}).get("x-ring-attempt")))
        if len(came) == 1:
            channel.basic_nack(method.delivery_tag or 0)
        else:
            channel.basic_ack(method.delivery_tag or 0)

    with pika.BlockingConnection(pika.URLParameters(url_of(broker, set_up(setting)))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("orders", "customer-1", str(number).encode())
        exec(lines, {"channel": channel, "work": work})
        end = time.monotonic() + 20
        while len(came) < 4 and time.monotonic() < end:
            connection.process_data_events(0.1)
    assert came == [("0", False, None), ("0", True, 2), ("1", False, None), ("2", False, None)]


def test_a_message_that_was_tried_five_times_is_a_dead_letter(
    broker: Broker, shop: VirtualHost, sidecar: Sidecar, set_up: SetUp
) -> None:
    (setting,) = FILES["Give up on a message after some tries"]
    (grant,) = GUIDE["Give up on a message after some tries"]
    *_, rights_of, configure, write, read = shlex.split(grant)
    shop.permit(rights_of, configure, write, read)
    limited = set_up(setting, groups_retry_delay="0.05", groups_retry_delay_max="0.05")
    tries = list[object]()

    def work(channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> None:
        tries.append((properties.headers or {}).get("x-ring-attempt", 1))
        channel.basic_nack(method.delivery_tag or 0)

    with pika.BlockingConnection(pika.URLParameters(url_of(broker, limited))) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders.dead", "fanout", durable=True)
        channel.queue_declare("orders.dead", durable=True)
        channel.queue_bind("orders.dead", "orders.dead")
        channel.confirm_delivery()
        channel.basic_publish("orders", "customer-1", b"never")
        channel.basic_consume("orders", work)
        end, letter = time.monotonic() + 20, None
        while letter is None and time.monotonic() < end:
            connection.process_data_events(0.1)
            method, properties, _ = channel.basic_get("orders.dead", auto_ack=True)
            letter = properties if method is not None else None
    assert letter is not None
    assert tries == [1, 2, 3, 4, 5]
    headers = dict(letter.headers or {})
    told = re.findall(r"^\| `(x-ring-\w+)` \|", Path("docs/how-to/consume-with-a-group.md").read_text(), re.MULTILINE)
    assert headers.keys() - {"x-ring-id"} == set(told)
    assert str(headers.pop("x-ring-shard")).startswith("orders.")
    assert [headers[name] for name in ("x-ring-group", "x-ring-attempt", "x-ring-reason")] == [
        "orders",
        5,
        "retry-limit",
    ]


def test_a_shard_is_paused_and_resumed(
    broker: Broker, shop: VirtualHost, set_up: SetUp, sidecar: Sidecar, tmp_path: Path
) -> None:
    (setting,) = FILES["Pause a shard or a group"]
    (told,), (_, commands) = OPERATOR["Pause a shard or a group"], GUIDE["Pause a shard or a group"]
    port = urlsplit(broker.amqp_url).port
    (tmp_path / "anna.toml").write_text(told.replace("127.0.0.1:5672", f"127.0.0.1:{port}"))
    sidecar.stop()
    paused = set_up(setting)
    with pika.BlockingConnection(pika.URLParameters(url_of(broker, paused))) as connection:
        connection.channel().basic_consume("orders", lambda *_: None)
        wait_until(
            "it has all", lambda: paused.metric("ringproxy_group_shards_held", vhost="shop", exchange="orders") == 4
        )
        printed = Shell({})(f"cd {tmp_path}; {commands}").splitlines()
    assert [line.partition(" ")[2].strip() for line in printed] == [
        "kept in virtual host shop: shard orders.3 of the group orders",
        "paused: orders.3",
        "kept in virtual host shop: all shards of the group orders",
        "paused: none",
    ]


def test_dead_letters_are_published_again(
    broker: Broker, shop: VirtualHost, set_up: SetUp, sidecar: Sidecar, tmp_path: Path
) -> None:
    (told,), (_, commands) = REDRIVE["Publish dead letters again"], GUIDE["Publish dead letters again"]
    assert told.count("127.0.0.1:5673") == 1
    (tmp_path / "redrive.toml").write_text(told.replace("127.0.0.1:5673", f"127.0.0.1:{sidecar.amqp_port}"))
    headers: Any = {
        "x-ring-group": "orders",
        "x-ring-shard": "orders.1",
        "x-ring-attempt": 5,
        "x-ring-reason": "retry-limit",
    }
    came = list[tuple[str, object]]()

    def work(channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, body: bytes) -> None:
        came.append((body.decode(), (properties.headers or {}).get("x-ring-attempt")))
        channel.basic_ack(method.delivery_tag or 0)

    with pika.BlockingConnection(pika.URLParameters(url_of(broker, sidecar))) as connection:
        channel = connection.channel()
        channel.queue_declare("orders.dead", durable=True)
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "orders.dead", str(number).encode(), pika.BasicProperties(headers=headers))
        printed = Shell({})(f"cd {tmp_path}; {commands}")
        where = r"orders in virtual host shop: {} ready in orders\.dead\. .+"
        summary = r"{} published again{}; left in the queue: none of those read"
        # A run that ends early may leave letters behind that it was sent: the next one marks them.
        marked = r"( \([12] marked x-ring-maybe-twice\))?"
        expected = where.format(3), summary.format(1, ""), where.format(2), summary.format(2, marked)
        for pattern, line in zip(expected, printed.splitlines(), strict=True):
            assert re.fullmatch(pattern, line), line
        assert channel.queue_declare("orders.dead", passive=True).method.message_count == 0
        channel.basic_consume("orders", work)
        end = time.monotonic() + 20
        while len(came) < 3 and time.monotonic() < end:
            connection.process_data_events(0.1)
    assert sorted(came) == [("0", None), ("1", None), ("2", None)]
