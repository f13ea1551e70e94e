"""The guides for publishers: their commands and programs run as they stand there, on the broker of the tutorial."""

import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.debian import ensure_package
from testbed.node import Node
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost
from tests.integration.node_packages import node_modules
from tests.integration.own_node import home_of, own_node, private_only
from tests.integration.reader import Reader, Step, steps, told

pytestmark = private_only

EXAMPLES = "examples/publish"
QUEUES = "orders.1", "orders.2", "orders.3"
INSTALLED_HERE = "sudo ", "venv/bin/pip ", "npm "
"""How commands begin in whose place the tests have the packages of constraints.txt and package-lock.json."""


FAILED = re.compile(r"(?<=order-1[67] )\w+|(?<=later ones: )\w+")
"""The outcomes of the messages that fail for good."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A broker that has just been installed."""
    with own_node("") as (running, _):
        yield running


@pytest.fixture
def reader(node: Node, tmp_path: Path) -> Iterator[Reader]:
    """A reader who has done the tutorial's first three steps."""
    for package in ("curl", "jq"):
        ensure_package(package, package)
    (tmp_path / "venv").symlink_to(sys.prefix)
    (tmp_path / "node_modules").symlink_to(node_modules())
    at_work = Reader(tmp_path, node)
    try:
        at_work.has(EXAMPLES)
        start, make, *_ = (step for step in steps("docs/tutorial.md") if not step.heading.startswith("1."))
        at_work.takes(start)
        at_work.takes(make)
        yield at_work
    finally:
        at_work.close()
    home_of(node, QUEUES)  # with empty queues for the next one


def tried(guide: str) -> list[Step]:
    """Return the steps of a guide without what the tests have installed."""
    found = steps(f"docs/how-to/{guide}.md")
    for step in found:
        lines = step.commands.splitlines(keepends=True)
        step.commands = "".join(line for line in lines if not line.startswith(INSTALLED_HERE))
    return found


@pytest.mark.parametrize("guide", ["publish-over-http", "publish-over-amqp"])
def test_each_command_and_program_does_what_the_guide_says(reader: Reader, guide: str) -> None:
    for step in tried(guide):
        reader.takes(step)


AMONG_TEN = {
    "among_ten.mjs": (
        """
import { Publisher } from './amqp_publisher.mjs';
const publisher = new Publisher('amqp://orders-service:secret@127.0.0.1:5673/');
const publish = (exchange, n) => publisher.publish(exchange, `customer-${n}`, '{}', `order-${n}`, 1);
const numbers = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50];
const all = await Promise.allSettled(numbers.map((n) => publish(n === 45 ? 'amq.direct' : 'orders', n)));
console.log(all.map(({ reason }) => reason?.outcome ?? 'confirmed').join(' '));
await publisher.close();
""",
        "node",
    ),
    "among_ten.py": (
        """
import asyncio
from with_aio_pika import Publisher

async def main():
    publisher = Publisher("amqp://orders-service:secret@127.0.0.1:5673/")
    publishes = (
        publisher.publish("amq.direct" if n == 45 else "orders", f"customer-{n}", b"{}", f"order-{n}", 1)
        for n in range(40, 51)
    )
    all = await asyncio.gather(*publishes, return_exceptions=True)
    print(*("confirmed" if each is None else each.outcome for each in all))
    await publisher.connection.close()

asyncio.run(main())
""",
        "venv/bin/python",
    ),
}
"""Programs that publish eleven messages at once, one of them where it may not, by the publishers beside them."""


@pytest.mark.parametrize("name", AMONG_TEN)
def test_a_refused_message_among_ten_others_leaves_them_alone(reader: Reader, node: Node, name: str) -> None:
    (make_user, *_) = tried("publish-over-amqp")
    reader.takes(make_user)
    program, command = AMONG_TEN[name]
    reader.saves(Step("Among ten", "", {f"{EXAMPLES}/{name}": program}))

    output = reader.does(f"{command} {EXAMPLES}/{name}")

    assert output.split() == [*["confirmed"] * 5, "invalid", *["confirmed"] * 5]
    landed = VirtualHost(BrokerApi(node.management_url), "/", []).drain_all().values()
    ids = sorted(str(message.properties["message_id"]) for messages in landed for message in messages)
    assert ids == [f"order-{number}" for number in range(40, 51) if number != 45]


@pytest.mark.long
def test_each_program_publishes_in_the_end_whatever_happens_meanwhile(reader: Reader, node: Node) -> None:
    """The sidecar is away, the queues are full, and the sidecar is killed and started again; then all is well."""
    guided = (step for guide in ("publish-over-http", "publish-over-amqp") for step in tried(guide))
    programs = [step for step in guided if step.files or EXAMPLES in step.commands]
    assert len(programs) == 6
    (make_user, *_) = tried("publish-over-amqp")
    reader.takes(make_user)
    api = BrokerApi(node.management_url)
    start, *_ = (step for step in steps("docs/tutorial.md") if step.heading.startswith("2."))

    reader.does("kill -9 %1; wait")
    full = {
        "pattern": "^orders[.]",
        "apply-to": "queues",
        "definition": {"max-length": 0, "overflow": "reject-publish"},
    }
    api.ask("PUT", "policies", "/", "full", body=full)
    with away(reader.port(15680)) as tried_http, away(reader.port(5673)) as tried_amqp:
        for step in programs:
            reader.saves(step)
            reader.does(f"{{ {step.commands.strip()}; }} > '{step.heading}' 2> log & running+=($!)")
        # Each of them has found nobody, or has lost a connection.
        for _ in range(3):
            tried_http()
            tried_amqp()

    for again in (True, False):
        reader.does(start.commands)
        sidecar = reader.does("echo $!")
        for ingress in ("http", "amqp"):
            nacked = f'{{exchange="orders",ingress="{ingress}",outcome="nacked",vhost="/"}} [1-9]'
            reader.does(f"until curl -sS http://127.0.0.1:15681/metrics | grep '{nacked}'; do sleep 0.1; done")
        if again:
            reader.does(f"kill -9 {sidecar}")
    api.ask("DELETE", "policies", "/", "full")
    reader.does("wait ${running[@]} || true")
    for step in programs:
        # An attempt over HTTP without an answer may have published the message, for all that the program knows.
        output, shown = (
            FAILED.sub("failed", told(text)) for text in (reader.does(f"cat '{step.heading}'"), step.shown)
        )
        assert output == shown, step.heading
    landed = VirtualHost(api, "/", []).drain_all().values()
    orders = {f"order-{number}" for number in range(7, 16)}
    assert {message.properties["message_id"] for messages in landed for message in messages} == orders


@contextmanager
def away(port: int) -> Iterator[Callable[[], None]]:
    """A listener in place of a sidecar; what this yields waits for one connection, and closes it."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(DEADLINE_SECONDS)
        yield lambda: server.accept()[0].close()
