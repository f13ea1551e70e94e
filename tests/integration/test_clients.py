"""Real clients, unchanged: each sees through the sidecar what it sees on the broker, but for what a ring changes.

The programs in `clients/` all do the same. They declare a hash exchange with three queues, and a queue at amq.direct;
publish 300 messages with confirms, an empty one and one of many frames among them, every other one with headers;
publish to amq.direct, and with mandatory to a queue that is not there; get, and consume, all with acks; make two
mistakes that cost a channel; delete what they made, and close. They print what they saw, as JSON.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testbed.broker import Broker
from testbed.debian import ensure_installed, ensure_package
from tests.integration.broker_api import Delivered, VirtualHost
from tests.integration.node_packages import node_modules
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of

FOLDER = Path(__file__).parent / "clients"
QUEUES = ["orders.1", "orders.2", "orders.3"]
COUNT = 300
DEADLINE_SECONDS = 60.0

Seen = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """One client: its program, what runs it, and Debian's packages for both."""

    file: str
    interpreter: str
    packages: tuple[str, ...] = ()
    exact_ids: bool = True
    """It has integers of 64 bits; node's clients round them to 53."""


# Debian's libraries belong to Debian's interpreters, whichever others come first on the PATH.
PROGRAMS = {
    "pika": Program("python/with_pika.py", sys.executable),
    "aio-pika": Program("python/with_aio_pika.py", sys.executable),
    "amqplib": Program("node/with_amqplib.js", "node", exact_ids=False),
    "rabbitmq-client": Program("node/with_rabbitmq_client.js", "node", exact_ids=False),
    "bunny": Program("ruby/with_bunny.rb", "/usr/bin/ruby", ("ruby-bunny",)),
    "php-amqplib": Program("php/with_php_amqplib.php", "/usr/bin/php", ("php-cli", "php-amqplib")),
    "AnyEvent::RabbitMQ": Program("perl/with_anyevent.pl", "/usr/bin/perl", ("libanyevent-rabbitmq-perl",)),
}
WHY_NOT = {
    "AnyEvent::RabbitMQ": "Net::AMQP knows no integers of 64 bits, as x-ring-id is, and ends over a message with one",
}


def marked(name: str) -> Any:
    """The parameter, with the reason why the test of that client is known to fail."""
    if name not in WHY_NOT:
        return pytest.param(name, id=name)
    # To install it takes long, too, and what comes of it is known.
    xfail = pytest.mark.xfail(reason=WHY_NOT[name], raises=ClientFailed, strict=True)
    return pytest.param(name, id=name, marks=[xfail, pytest.mark.long])


class ClientFailed(Exception):  # noqa: N818
    """A program did not get to its end, or complained."""


@dataclass(frozen=True)
class Runner:
    """A program with all that it needs."""

    program: Program
    additions: Mapping[str, str]
    """To its environment."""

    def run(self, host: str, port: int, client: Client, vhost: str) -> Seen:
        """Run the program; return what it sees there."""
        command = [self.program.interpreter, str(FOLDER / self.program.file)]
        command += [host, str(port), client.user, client.password, vhost]
        environment = os.environ | self.additions
        ended = subprocess.run(command, capture_output=True, timeout=DEADLINE_SECONDS, env=environment)
        if ended.returncode or ended.stderr:
            raise ClientFailed(f"status {ended.returncode}: {ended.stderr.decode()[-4000:]}")
        seen: Seen = json.loads(ended.stdout)
        for message in seen["messages"]:
            if len(message["body"]) > 100:
                message["body"] = hashlib.sha256(message["body"].encode()).hexdigest()
        return seen


@pytest.fixture(scope="module", params=[marked(name) for name in PROGRAMS])
def runner(request: pytest.FixtureRequest) -> Runner:
    """Fails where the machine has not what the client needs, and cannot get it."""
    program = PROGRAMS[request.param]
    for package in program.packages:
        ensure_installed(package)
    additions = {"LC_ALL": "C.UTF-8"}
    if program.interpreter == "node":
        additions["NODE_PATH"] = str(node_modules())
    return Runner(program, additions)


def unmarked(message: Seen) -> Seen:
    """A message routed by the ring as it would be without: all that differs is said here."""
    assert (message["exchange"], message["routing_key"]) == ("", message["queue"])
    headers = dict(message["headers"])
    assert type(headers.pop("x-ring-id")) is int
    exchange, key = headers.pop("x-ring-exchange"), headers.pop("x-ring-routing-key")
    return message | {"exchange": exchange, "routing_key": key, "headers": headers}


def by_number(messages: Sequence[Seen]) -> list[Seen]:
    """In the order that they were published in, without their queues."""
    without = [{name: value for name, value in message.items() if name != "queue"} for message in messages]
    return sorted(without, key=lambda message: int(message["routing_key"].removeprefix("customer-")))


def in_order(messages: Sequence[Seen]) -> bool:
    """Whether each queue kept the order of publishing."""
    ids = {q: [int(m["properties"]["message_id"][3:]) for m in messages if m["queue"] == q] for q in QUEUES}
    return all(numbers == sorted(numbers) for numbers in ids.values())


def test_a_client_sees_what_it_sees_without_the_sidecar(
    runner: Runner, broker: Broker, sidecar: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    direct = runner.run(*address_of(broker), client, vhost.name)
    assert vhost.queues() == []
    through = runner.run("127.0.0.1", sidecar.amqp_port, client, vhost.name)
    assert vhost.queues() == []

    natively, routed = direct.pop("messages"), through.pop("messages")
    assert through == direct
    (returned,) = direct["returned"]
    assert (returned["exchange"], returned["routing_key"]) == ("", "no such queue")
    assert not any(direct["deleted"].values())
    assert len(natively) == COUNT
    assert by_number([unmarked(message) for message in routed]) == by_number(natively)
    assert in_order(natively)
    assert in_order(routed)
    for message in routed:
        assert message["queue"] == owner(QUEUES, message["headers"]["x-ring-routing-key"])
    if runner.program.exact_ids:
        assert len({message["headers"]["x-ring-id"] for message in routed}) == COUNT


def address_of(broker: Broker) -> tuple[str, int]:
    return urlsplit(broker.amqp_url).hostname or "localhost", port_of(broker.amqp_url)


KEYS = [f"customer {n}" for n in range(40)]


class Tools:
    """The commands of amqp-tools; each has a connection of its own, and none has confirms."""

    def __init__(self, host: str, port: int, client: Client, vhost: str) -> None:
        ensure_package("amqp-tools", "amqp-publish")
        self._login = [f"--server={host}", f"--port={port}", f"--vhost={vhost}"]
        self._login += [f"--username={client.user}", f"--password={client.password}"]
        self.said: list[tuple[str, int, str, str]] = []
        """Command, status, output and complaint of all that told of no message."""

    def do(self, command: str, *arguments: str) -> None:
        status, output, complaint = self._run(command, *arguments)
        self.said.append((command, status, output, complaint))

    def get_all(self, queue: str) -> list[str]:
        """With amqp-get, until the queue is empty: the bodies, a line each."""
        bodies = []
        while (taken := self._run("amqp-get", "-q", queue))[0] == 0:
            bodies += taken[1].splitlines()
        self.said.append(("amqp-get", *taken))
        return bodies

    def consume(self, queue: str, count: int) -> list[str]:
        """With amqp-consume, which acks: the bodies, a line each."""
        taken = self._run("amqp-consume", "-q", queue, "-p", "3", "-c", str(count), "cat")
        self.said.append(("amqp-consume", taken[0], "", taken[2]))
        return taken[1].splitlines()

    def _run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        whole = [command, *self._login, *arguments]
        run = subprocess.run(whole, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        return run.returncode, run.stdout, run.stderr


def use(tools: Tools, vhost: VirtualHost) -> tuple[dict[str, list[str]], list[Delivered]]:
    """Each queue's bodies, and what was in the last queue as it was."""
    vhost.exchange("orders")
    for queue in QUEUES:
        tools.do("amqp-declare-queue", "-d", "-q", queue)
        vhost.bind("orders", queue)
    for key in KEYS:
        tools.do("amqp-publish", "-e", "orders", "-r", key, "-b", f"{key}\n", "-p", "-C", "text/x", "-H", "number: one")
    tools.do("amqp-publish", "-e", "no such exchange", "-r", "k", "-b", "lost")
    tools.do("amqp-publish", "-r", "no such queue", "-b", "lost")
    first, second, third = QUEUES
    got, drained = tools.get_all(first), vhost.drain(third)
    consumed = tools.consume(second, len(KEYS) - len(got) - len(drained))
    for queue in QUEUES:
        tools.do("amqp-delete-queue", "-q", queue)
    vhost.delete_exchange("orders")
    return {first: got, second: consumed, third: [message.body.decode().rstrip() for message in drained]}, drained


def test_amqp_tools(broker: Broker, sidecar: Sidecar, vhost: VirtualHost, client: Client) -> None:
    direct = Tools(*address_of(broker), client, vhost.name)
    natively, as_sent = use(direct, vhost)
    through = Tools("127.0.0.1", sidecar.amqp_port, client, vhost.name)
    routed, marked = use(through, vhost)

    assert through.said == direct.said
    assert [command for command, status, *_ in direct.said if status] == ["amqp-publish", "amqp-get"]
    assert sorted(key for keys in natively.values() for key in keys) == sorted(KEYS)
    assert routed == {queue: [key for key in KEYS if owner(QUEUES, key) == queue] for queue in QUEUES}
    assert as_sent
    for message in as_sent:
        assert (message.exchange, message.routing_key) == ("orders", message.body.decode().rstrip())
        assert message.headers == {"number": "one"}
    properties = {name: value for name, value in as_sent[0].properties.items() if name != "headers"}
    for message in marked:
        assert (message.exchange, message.routing_key) == ("", QUEUES[-1])
        marks = {"x-ring-exchange": "orders", "x-ring-routing-key": message.body.decode().rstrip()}
        assert message.headers == {"number": "one", "x-ring-id": message.headers["x-ring-id"]} | marks
        assert {name: value for name, value in message.properties.items() if name != "headers"} == properties
