"""The brokers that the testbed starts: where they listen, and that nothing of them is left."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testbed import SetupError
from testbed.broker import installation
from testbed.node import Node, private_node
from tests.integration.broker_api import wait_until
from tests.integration.own_node import BROKER, private_only
from tests.processes import has_ended, take_interrupts

pytestmark = private_only


def descendants(pid: int) -> dict[int, str]:
    """The processes below `pid`, by pid, each with its name."""
    found: dict[int, str] = {}
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= descendants(child)
                found[child] = Path(f"/proc/{child}/comm").read_text().strip()
    return found


def listening_addresses(pids: set[int]) -> set[tuple[str, int]]:
    """The addresses those processes listen on, as the kernel tells them."""
    sockets = set()
    for pid in pids:
        with suppress(FileNotFoundError):  # as may the process
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # it may be closed meanwhile
                    sockets.add(os.readlink(file))
    addresses = set()
    for table in "/proc/net/tcp", "/proc/net/tcp6":
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                host, port = local.split(":")
                words = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
                family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
                addresses.add((socket.inet_ntop(family, words), int(port, 16)))
    return addresses


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[str]]:
    """A process that holds a broker of its own."""
    command = [sys.executable, "-m", "testbed"]
    env = os.environ | {"DOCKER_HOST": "unix:///no/docker.sock"}  # its first choice, but a private node is wanted
    installation(BROKER)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, preexec_fn=take_interrupts) as process:
        yield process
        process.kill()


@pytest.fixture
def node() -> Iterator[Node]:
    with private_node(installation(BROKER)) as found:
        yield found


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_nothing_of_the_node_outlives_its_starter(starter: subprocess.Popen[str], number: signal.Signals) -> None:
    assert starter.stdout
    lines = [starter.stdout.readline() for _ in range(4)]
    assert re.fullmatch(r"RabbitMQ \d+\.\d+\.\d+ \(.*\)\n", lines[0])
    urls = [urlsplit(line.split()[1]) for line in lines[1:3]]
    below = descendants(starter.pid)
    assert {"beam.smp", "epmd", "erl_child_setup"} <= set(below.values())

    addresses = listening_addresses(set(below))
    assert {("127.0.0.1", url.port) for url in urls} < addresses
    assert {host for host, _ in addresses} <= {"127.0.0.1", "::1"}
    assert 4369 not in {port for _, port in addresses}

    (beam,) = (pid for pid, name in below.items() if name == "beam.smp")
    folder = Path(next(re.finditer(r"HOME=([^\0]*)", Path(f"/proc/{beam}/environ").read_text()))[1])
    assert folder.is_dir()
    starter.send_signal(number)
    wait_until("its end", lambda: all(map(has_ended, below)) and not folder.exists())
    # A Debian suite's mounts include one of a file in this folder; others' mounts are none of this test's business.
    assert folder.name not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.long
def test_a_killed_node_starts_again_with_its_ports_and_data(node: Node) -> None:
    version = node.start()
    request(node, "PUT", "/api/queues/%2F/kept", {"durable": True})
    # One that is killed forgets what was declared within the last second or so (observed on 3.10.8).
    node.stop()
    node.start()
    first = node.pid
    assert Path(f"/proc/{first}/comm").read_text() == "beam.smp\n"
    node.kill()
    assert has_ended(first)
    with pytest.raises(OSError, match="refused"):
        request(node, "GET", "/api/overview")
    assert node.start() == version
    assert node.pid != first
    assert request(node, "GET", "/api/queues/%2F/kept")["durable"]
    node.stop()
    assert has_ended(node.pid)


def test_the_node_has_what_the_project_needs(node: Node) -> None:
    node.start()
    overview = request(node, "GET", "/api/overview")
    assert {"x-consistent-hash", "x-modulus-hash"} <= {kind["name"] for kind in overview["exchange_types"]}
    assert "amq.rabbitmq.event" in {exchange["name"] for exchange in request(node, "GET", "/api/exchanges/%2F")}


def test_nodes_have_a_cookie_before_the_first_of_them_starts(node: Node) -> None:
    """Nodes that start at the same time would each make one, and could end up with different ones."""
    file = node.folder.parent / ".erlang.cookie"
    cookie = file.read_text()
    assert (file.stat().st_mode & 0o777, len(cookie)) == (0o400, 32)

    node.start()

    node.control("eval", "erlang:get_cookie().")
    assert cookie in (node.folder / "rabbitmqctl.log").read_text()
    assert file.read_text() == cookie


def test_a_node_that_ends_while_starting_shows_its_log(node: Node) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", urlsplit(node.management_url).port))
        with pytest.raises(SetupError, match=r"ended while starting(?s:.*)(eaddrinuse|already in use)"):
            node.start()


def request(node: Node, method: str, path: str, body: dict[str, object] | None = None) -> Any:
    url = urlsplit(node.management_url)
    with closing(http.client.HTTPConnection("127.0.0.1", url.port, timeout=10)) as connection:
        credentials = base64.b64encode(b"guest:guest").decode()
        connection.request(method, path, json.dumps(body), {"Authorization": f"Basic {credentials}"})
        response = connection.getresponse()
        assert response.status < 300, response.reason
        return json.loads(response.read() or b"null")
