"""The page on clients: each of its programs outlives its sidecar, and ends politely while it is at work.

All programs run at the same time, each in a virtual host of its own, at one sidecar that is restarted for all of them.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import pytest

from testbed.broker import Broker
from testbed.debian import ensure_installed, ensure_package
from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.celery_packages import celery_folder
from tests.integration.conftest import USER, StartSidecar
from tests.integration.documents import ROOT, Document, Shell, tried
from tests.integration.groups import sharded
from tests.integration.node_packages import node_modules
from tests.integration.sidecar import Sidecar

PATH = "docs/how-to/use-from.md"
FILES = {path.name: path.read_text() for path in (ROOT / "examples/consume").iterdir()}
SETTINGS = Document(PATH, "toml")
SINK_SETTINGS = Document(PATH, 'properties title="application.properties"')
WORKER = Document(PATH, "bash")
POST = Document(PATH, "sh")

SHARDS = ["orders.1", "orders.2"]
FIRST, SECOND = "customer-1", "customer-2"

SHOPS = {
    "shop.py": """
import os, time

failures = {("customer-1", "2"): 2}

def charge(customer, order):
    note(customer, order, "begun")
    while os.path.exists(f"hold.{order}"):
        time.sleep(0.01)
    failed = failures.get((customer, order), 0) > 0
    note(customer, order, "failed" if failed else "done")
    if failed:
        failures[customer, order] -= 1
        raise ValueError("not now")

def note(customer, order, what):
    with open("charged.txt", "a") as charged:
        charged.write(f"{os.getpid()} {customer} {order} {what}\\n")
""",
    "shop.js": """
const fs = require("fs");
let failures = 2;

exports.charge = async (customer, order) => {
  note(customer, order, "begun");
  while (fs.existsSync(`hold.${order}`)) await new Promise((done) => { setTimeout(done, 10); });
  const failed = customer === "customer-1" && order === "2" && failures > 0;
  note(customer, order, failed ? "failed" : "done");
  if (failed) {
    failures -= 1;
    throw new Error("not now");
  }
};

function note(customer, order, what) {
  fs.appendFileSync("charged.txt", `${process.pid} ${customer} ${order} ${what}\\n`);
}
""",
    "Shop.java": """
import java.nio.file.*;

class Shop {
    static int failures = 2;

    static boolean charge(String customer, String order) throws Exception {
        note(customer, order, "begun");
        while (Files.exists(Path.of("hold." + order))) Thread.sleep(10);
        boolean failed = customer.equals("customer-1") && order.equals("2") && failures > 0;
        note(customer, order, failed ? "failed" : "done");
        if (failed) failures--;
        return !failed;
    }

    static void note(String customer, String order, String what) throws Exception {
        String line = ProcessHandle.current().pid() + " " + customer + " " + order + " " + what + "\\n";
        Files.writeString(Path.of("charged.txt"), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}
""",
    "shop.go": """
package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

var failures = 2

func charge(customer string, order string) error {
	note(customer, order, "begun")
	for _, err := os.Stat("hold." + order); err == nil; _, err = os.Stat("hold." + order) {
		time.Sleep(10 * time.Millisecond)
	}
	if customer == "customer-1" && order == "2" && failures > 0 {
		failures--
		note(customer, order, "failed")
		return errors.New("not now")
	}
	note(customer, order, "done")
	return nil
}

func note(customer string, order string, what string) {
	charged, _ := os.OpenFile("charged.txt", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fmt.Fprintf(charged, "%d %s %s %s\\n", os.Getpid(), customer, order, what)
	charged.Close()
}
""",
}
"""The work of the programs: it notes what it does, and waits while a file holds the order. One order fails twice."""

PAYER = """
import sys

program = open("pay.py").read()
assert program.count('("1", "2", "3")') == 1
for orders in sys.stdin:
    exec(program.replace('("1", "2", "3")', orders.strip()))
    print("paid", flush=True)
"""
"""Runs the page's program that publishes again and again, each time with the orders of a line of the input."""

SINK = ROOT / "tests/integration/clients/java/Sink.java"
JARS = "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar"


def with_python(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(folder)}


def with_celery(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{celery_folder()}:{folder}"}


def with_node(folder: Path) -> dict[str, str]:
    return {"NODE_PATH": str(node_modules())}


def with_java(folder: Path) -> dict[str, str]:
    additions = java(folder)
    made(folder, additions, "javac", "WithJava.java", "Shop.java")
    return additions


def java(folder: Path) -> dict[str, str]:
    """Install what Java programs need; return the environment of those in a folder."""
    ensure_package("default-jdk-headless", "javac")
    ensure_installed("librabbitmq-client-java")
    return {"CLASSPATH": f"{JARS}:{folder}"}


def with_go(folder: Path) -> dict[str, str]:
    ensure_package("golang-go", "go")
    ensure_installed("golang-github-rabbitmq-amqp091-go-dev")
    additions = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(folder / "cache")}
    made(folder, additions, "go", "build", "-o", "with_go", "with_go.go", "shop.go")
    return {}


def made(folder: Path, additions: dict[str, str], *command: str) -> None:
    run = subprocess.run(command, cwd=folder, env=os.environ | additions, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@dataclass(frozen=True)
class Client:
    """How one program of the page is made and run."""

    title: str
    shop: str
    make: Callable[[Path], dict[str, str]]
    """Gets what the program needs, compiles it, and returns additions to its environment."""
    command: str
    status: int = 0
    """The exit status after SIGTERM."""


(CELERY,) = WORKER["Celery"]

CLIENTS = {
    "pika": Client("with_pika.py", "shop.py", with_python, f"{sys.executable} with_pika.py"),
    "aio-pika": Client("with_aio_pika.py", "shop.py", with_python, f"{sys.executable} with_aio_pika.py"),
    "rabbitmq-client": Client("with_rabbitmq_client.js", "shop.js", with_node, "node with_rabbitmq_client.js"),
    "amqplib": Client("with_amqplib.js", "shop.js", with_node, "node with_amqplib.js"),
    "Java": Client("WithJava.java", "Shop.java", with_java, "java WithJava", 128 + signal.SIGTERM),
    "Go": Client("with_go.go", "shop.go", with_go, "./with_go"),
    "Celery": Client("with_celery.py", "shop.py", with_celery, f"{sys.executable} -m {CELERY}"),
}


def test_every_program_and_command_is_tried_here() -> None:
    assert set(FILES) == {client.title for client in CLIENTS.values()} | {"pay.py"}
    assert tried(SETTINGS, "SETTINGS", __file__)
    assert tried(WORKER, "WORKER", __file__)
    assert tried(POST, "POST", __file__)


@dataclass
class Shop:
    """A virtual host with shards, and the copies of one program that consume them."""

    name: str
    client: Client
    vhost: VirtualHost
    folder: Path
    publisher: Sidecar
    broker_url: str
    environment: dict[str, str] = field(default_factory=dict)
    copies: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    payer: "subprocess.Popen[str] | None" = None

    def build(self, port: int) -> None:
        """Save the program, for a sidecar at this port, and compile it."""
        self.folder.mkdir()
        for name in (self.client.title, "pay.py"):
            (self.folder / name).write_text(self._here(FILES[name], f"127.0.0.1:{port}"))
        (self.folder / self.client.shop).write_text(SHOPS[self.client.shop])
        self.environment = os.environ | self.client.make(self.folder)

    def _here(self, program: str, where: str) -> str:
        return program.replace("localhost:5673/shop", f"{where}/{self.vhost.name}")

    def start(self) -> "subprocess.Popen[bytes]":
        """Start one more copy."""
        with (self.folder / "output.txt").open("ab") as output:
            command = shlex.split(self.client.command)
            copy = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output)
        self.copies.append(copy)
        return copy

    def publish(self, *orders: str) -> None:
        """Publish orders of both customers, in order: as tasks, where the client is Celery."""
        if self.name == "Celery":
            self._pay(orders)
            return
        for order in orders:
            for customer in (FIRST, SECOND):
                answer = self.publisher.publish("orders", customer, vhost=self.vhost.name, body=order.encode())
                assert answer.status == 200, answer

    def _pay(self, orders: tuple[str, ...]) -> None:
        """Have the page's program that publishes run with these orders, as an administrator."""
        if self.payer is None:
            folder = self.folder / "publisher"
            folder.mkdir()
            at = f"127.0.0.1:{self.publisher.amqp_port}"
            program = self._here(FILES["with_celery.py"], at)
            user, password = login_of(self.broker_url)
            (folder / "with_celery.py").write_text(program.replace("billing:PASSWORD", f"{user}:{password}"))
            (folder / "shop.py").write_text(SHOPS["shop.py"])
            (folder / "pay.py").write_text(FILES["pay.py"])
            environment = os.environ | {"PYTHONPATH": f"{celery_folder()}:{folder}"}
            command = [sys.executable, "-c", PAYER]
            self.payer = subprocess.Popen(command, cwd=folder, env=environment, stdin=PIPE, stdout=PIPE, text=True)
        assert self.payer.stdin
        assert self.payer.stdout
        print(repr(orders), file=self.payer.stdin, flush=True)
        assert self.payer.stdout.readline() == "paid\n"

    def waits_until_begun(self, order: str) -> None:
        self._waits(f"work on {order}", lambda: any(line.endswith(f" {order} begun") for line in self.notes()))

    def waits_until_done(self, order: str) -> None:
        """Wait until both customers have this order done."""
        done = f"{order} done"
        self._waits(done, lambda: all(done in self.told(customer) for customer in (FIRST, SECOND)))

    def waits_for_members(self, count: int, at: Sidecar) -> None:
        """Wait until a sidecar tells that so many copies are members of the group."""
        path = f"/groups/{self.vhost.name}/orders"
        self._waits(f"{count} members", lambda: len(at.admin(path).json["members"]) == count)

    def _waits(self, what: str, look: Callable[[], bool]) -> None:
        """Wait; the failure tells what the program has printed and done."""
        try:
            wait_until(f"{self.name}: {what}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.notes()}\n{self.output()}") from None

    def output(self) -> str:
        """Return the end of what the copies have printed."""
        return (self.folder / "output.txt").read_text()[-4000:]

    def notes(self, customer: str = "") -> list[str]:
        """Return what the work has noted of one customer, or of all: pid, customer, order, and what became of it."""
        file = self.folder / "charged.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if f" {customer}" in line]

    def forget(self) -> None:
        """Begin the notes anew."""
        (self.folder / "charged.txt").unlink()

    def told(self, customer: str) -> list[str]:
        """Return what the work has noted of a customer, without the pids: order, and what became of it."""
        return [line.partition(f" {customer} ")[2] for line in self.notes(customer)]

    def hold(self, order: str) -> None:
        """Have the work on an order wait, once it has begun."""
        (self.folder / f"hold.{order}").touch()

    def release(self, order: str) -> None:
        (self.folder / f"hold.{order}").unlink()

    def pid_of(self, customer: str, order: str) -> int:
        """Return the process that has done an order."""
        (line,) = (line for line in self.notes(customer) if line.endswith(f" {order} done"))
        return int(line.partition(" ")[0])

    def close(self) -> None:
        for copy in self.copies:
            copy.kill()
            copy.wait()
        if self.payer is not None:
            self.payer.kill()
            self.payer.communicate()


def login_of(url: str) -> tuple[str, str]:
    """Return the name and the password of the broker's administrator."""
    parts = urlsplit(url)
    return parts.username or "guest", parts.password or "guest"


@contextmanager
def shop(name: str, api: BrokerApi, broker: Broker, publisher: Sidecar, folder: Path) -> Iterator[Shop]:
    vhost = VirtualHost(api, fresh_name("use"), [])
    for user in (USER, login_of(broker.amqp_url)[0]):
        vhost.permit(user, ".*", ".*", ".*")
    vhost.permit("billing", "^$", "^$", r"^orders(\.[0-9]+)?$")
    sharded(vhost, SHARDS, lanes=True)
    made = Shop(name, CLIENTS[name], vhost, folder / name, publisher, broker.amqp_url)
    try:
        yield made
    finally:
        made.close()
        vhost.delete()


def done_in_order(*orders: str) -> list[str]:
    return [f"{order} {what}" for order in orders for what in ("begun", "done")]


@pytest.fixture
def billing(api: BrokerApi) -> Iterator[None]:
    """Make the programs' user."""
    api.ask("PUT", "users", "billing", body={"password": "PASSWORD", "tags": ""})
    yield
    api.ask("DELETE", "users", "billing")


@pytest.mark.parametrize("names", [pytest.param(tuple(CLIENTS), id="all")])
def test_each_program_outlives_its_sidecar_and_ends_politely(
    names: tuple[str, ...],
    api: BrokerApi,
    broker: Broker,
    billing: None,
    sidecar: Sidecar,
    start_sidecar: StartSidecar,
    tmp_path: Path,
) -> None:
    (settings,) = SETTINGS["Before you begin"]
    (tmp_path / "ringproxy.toml").write_text(settings.replace("shop/", "use-*/"))
    consumed = {"config": str(tmp_path / "ringproxy.toml"), "groups_retry_delay": "0.5"}
    with ExitStack() as stack:
        shops = [stack.enter_context(shop(name, api, broker, sidecar, tmp_path)) for name in names]
        at = start_sidecar(**consumed)
        for each in shops:
            each.build(at.amqp_port)
            each.start()
        an_order_comes_again(shops)
        at_its_port = {"amqp_listen": f"127.0.0.1:{at.amqp_port}"}
        restarted = while_the_sidecar_restarts(shops, at, lambda: start_sidecar(**consumed, **at_its_port))
        again = after_the_sidecar_is_killed(shops, restarted, lambda: start_sidecar(**consumed, **at_its_port))
        one_copy_ends_politely(shops, again)
        one_copy_ends_behind_its_sidecar(shops, again)


def an_order_comes_again(shops: list[Shop]) -> None:
    """The first customer's second order fails twice. The third one waits for it, and the second customer does not."""
    for each in shops:
        each.publish("1", "2", "3")
    for each in shops:
        each.waits_until_done("3")
        failed = ["2 begun", "2 failed"]
        assert each.told(FIRST) == [*done_in_order("1"), *failed, *failed, *done_in_order("2", "3")], each.name
        assert each.told(SECOND) == done_in_order("1", "2", "3"), each.name
        assert each.notes(SECOND)[-1] in each.notes()[: each.notes().index(each.notes(FIRST)[-3])], each.name


def while_the_sidecar_restarts(shops: list[Shop], at: Sidecar, start: Callable[[], Sidecar]) -> Sidecar:
    """The programs have an order at work when their sidecar begins to drain, and further ones come behind it."""
    for each in shops:
        each.forget()
        each.hold("4")
        each.publish("4", "5")
    for each in shops:
        each.waits_until_begun("4")
    at.signal(signal.SIGTERM)
    wait_until("the sidecar to drain", lambda: at.admin("/readyz").status == 503)
    for each in shops:
        each.release("4")
    assert at.process.wait(30) == 0, at.log()
    again = start()
    for each in shops:
        each.waits_until_done("5")
        for customer in (FIRST, SECOND):
            assert each.told(customer) == done_in_order("4", "5"), (each.name, each.notes())
    return again


def after_the_sidecar_is_killed(shops: list[Shop], at: Sidecar, start: Callable[[], Sidecar]) -> Sidecar:
    """An order at work may be done twice, and never after the one behind it has begun."""
    for each in shops:
        each.forget()
        each.hold("6")
        each.publish("6", "7")
    for each in shops:
        each.waits_until_begun("6")
    at.kill()
    again = start()
    for each in shops:
        each.release("6")
    for each in shops:
        each.waits_until_done("7")
        for customer in (FIRST, SECOND):
            begun = [line for line in each.told(customer) if line.endswith("begun")]
            assert begun in (["6 begun", "7 begun"], ["6 begun", "6 begun", "7 begun"]), each.name
    return again


def one_copy_ends_politely(shops: list[Shop], at: Sidecar) -> None:
    """It has an order at work when it is told to end, and another copy waits; this one does the further orders."""
    for each in shops:
        each.forget()
        each.hold("8")
        each.publish("8", "9", "10")
    for each in shops:
        each.waits_until_begun("8")
        each.start()
    for each in shops:
        each.waits_for_members(2, at)
        first, _ = each.copies
        assert first.poll() is None, each.name
        first.send_signal(signal.SIGTERM)
        each.release("8")
    for each in shops:
        first, _ = each.copies
        each.waits_until_done("10")
        assert first.wait(30) == each.client.status, each.name
        each.publish("11")
    for each in shops:
        each.waits_until_done("11")
        first, second = each.copies
        for customer in (FIRST, SECOND):
            assert each.told(customer) == done_in_order("8", "9", "10", "11"), (each.name, each.notes())
            workers = [each.pid_of(customer, order) for order in ("8", "9", "10", "11")]
            assert workers == sorted(workers, key=[first.pid, second.pid].index), each.name
            assert workers[-1] == second.pid, each.name
        assert first.pid in {each.pid_of(customer, "8") for customer in (FIRST, SECOND)}, each.name


def one_copy_ends_behind_its_sidecar(shops: list[Shop], at: Sidecar) -> None:
    """It is told to end when the sidecar has ended, as where both are stopped at the same time."""
    at.stop()
    for each in shops:
        each.copies[-1].send_signal(signal.SIGTERM)
    for each in shops:
        try:
            assert each.copies[-1].wait(30) == each.client.status, (each.name, each.output())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{each.name} does not end: {each.output()}") from None


@pytest.fixture
def orders(api: BrokerApi, broker: Broker) -> Iterator[VirtualHost]:
    """Yield a virtual host with the exchange `orders` and its queues."""
    vhost = VirtualHost(api, fresh_name("use"), [USER])
    vhost.permit(login_of(broker.amqp_url)[0], ".*", ".*", ".*")
    vhost.exchange("orders")
    vhost.lanes("orders", SHARDS)
    yield vhost
    vhost.delete()


def test_an_event_is_posted(orders: VirtualHost, sidecar: Sidecar) -> None:
    ensure_package("curl", "curl")
    (command,) = POST["HTTP, in place of Dapr"]
    assert command.count("127.0.0.1:15680") == command.count("vhost=shop") == 1
    here = command.replace(":15680", f":{sidecar.port}").replace("vhost=shop", f"vhost={orders.name}")
    assert json.loads(Shell({})(here))["outcome"] == "confirmed"
    (messages,) = orders.drain_all().values()
    assert [(message.routing_key, json.loads(message.body)) for message in messages] == [(FIRST, {"order": 7})]


def test_what_debezium_publishes_is_ordered_by_its_keys(
    orders: VirtualHost, api: BrokerApi, broker: Broker, sidecar: Sidecar, tmp_path: Path
) -> None:
    """Debezium cannot be installed here: a program with its client publishes as its sink does."""
    (properties,) = SINK_SETTINGS["Debezium Server"]
    at = {"port=5673": f"port={sidecar.amqp_port}", "host=shop": f"host={orders.name}"}
    user, password = login_of(broker.amqp_url)
    at |= {"username=debezium": f"username={user}", "password=PASSWORD": f"password={password}"}
    for page, here in at.items():
        assert properties.count(page) == 1
        properties = properties.replace(page, here)
    (tmp_path / "application.properties").write_text(properties)
    environment = os.environ | java(tmp_path)
    made(tmp_path, environment, "javac", "-d", ".", str(SINK))
    keys = [f'{{"id":{number}}}' for number in range(6)]
    records = [word for change in ("created", "updated", "deleted") for key in keys for word in (key, change)]

    def publish() -> "subprocess.CompletedProcess[str]":
        command = ["java", "Sink", "application.properties", *records]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    run = publish()
    assert run.stdout == "confirmed\n", run.stderr
    shards = [[(m.routing_key, m.body.decode()) for m in messages] for messages in orders.drain_all().values()]
    assert len(shards) == len(SHARDS)
    for key in keys:
        (changes,) = ([change for of, change in shard if of == key] for shard in shards if key in dict(shard))
        assert changes == ["created", "updated", "deleted"]

    orders.policy("full", "^orders", "queues", max_length=0, overflow="reject-publish")
    assert publish().returncode == 1
