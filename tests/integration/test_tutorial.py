"""The tutorial, as a reader goes through it: each block of commands in one shell, and the output that it shows."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import proxy
from testbed.debian import ensure_installed
from testbed.node import PLUGINS, Node, free_ports
from tests.integration.broker_api import BrokerApi
from tests.integration.documents import ROOT
from tests.integration.own_node import own_node, private_only

pytestmark = private_only

STEP_SECONDS = 90.0
INSTALL_SECONDS = 600.0
BROKER_PORT = 15672
SIDECAR_PORTS = {"AMQP": 5673, "HTTP": 15680, "ADMIN": 15681}
PROMETHEUS_PORT = 19090

VARIES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|read [\d.]+ s ago|@\[[\d.]+\]")
"""What differs from one run to the next: when a ring changed, how old a reading is, and when Prometheus was asked."""

SUDO = '#!/bin/sh\necho "$*" >> asked-as-root\n'
"""A stand-in for sudo, which keeps what it is asked: the test bed's own broker runs in place of the machine's."""

STAND_INS = {"rabbitmq-server", "python3-venv"}
"""Packages in whose place there are the test bed's broker and the virtual environment that the tests run in."""


@dataclass
class Step:
    """A block of commands, and what the tutorial shows of their output: nothing where it shows none."""

    heading: str
    commands: str
    shown: str = ""


def steps() -> list[Step]:
    """Return the tutorial's blocks of commands, each with the block of output that follows it."""
    found: list[Step] = []
    for section in re.split(r"^## ", (ROOT / "docs/tutorial.md").read_text(), flags=re.M):
        heading = section.partition("\n")[0]
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", section, flags=re.M | re.S):
            if language == "sh":
                found.append(Step(heading, text))
            elif language != "mermaid":
                assert language in ("text", "json"), language
                assert not found[-1].shown, f"two outputs of one block: {text}"
                found[-1].shown = text
    return found


class Reader:
    """A reader's shell in a folder. Free ports stand for those that the tutorial names, in its output too."""

    def __init__(self, folder: Path, node: Node) -> None:
        """Start the shell with settings that lead a sidecar to the node and to free ports."""
        self._folder = folder
        prometheus, *listeners = free_ports(4)
        self._ports = dict(zip(map(str, SIDECAR_PORTS.values()), map(str, listeners), strict=True))
        self._ports |= {str(PROMETHEUS_PORT): str(prometheus)}
        self._ports |= {str(BROKER_PORT): node.management_url.rpartition(":")[2]}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
        environment["PIP_QUIET"] = "1"  # one more: pip says nothing of where this machine has its packages from
        environment |= {"PATH": f"{folder / 'bin'}:{environment['PATH']}"}
        environment |= {"RINGPROXY_BROKER_URL": node.amqp_url, "RINGPROXY_MANAGEMENT_URL": node.management_url}
        for name, port in zip(SIDECAR_PORTS, listeners, strict=True):
            environment[f"RINGPROXY_{name}_LISTEN"] = f"127.0.0.1:{port}"
        if (folder / "venv").is_symlink():
            environment["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])  # the same modules that the tests import
        else:
            environment.pop("PYTHONPATH", None)
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def does(self, commands: str, seconds: float = STEP_SECONDS) -> str:
        """Return what the commands print, errors too; the test fails where they take longer, or the last one fails."""
        for named, free in self._ports.items():
            commands = re.sub(rf"\b{named}\b", free, commands)
        admin = self._ports[str(SIDECAR_PORTS["ADMIN"])]
        commands = re.sub(r"(ring-proxy explain \S+ [\w-]+)", rf"\1 --sidecar http://127.0.0.1:{admin}", commands)
        (self._folder / "bin" / "block").write_text(commands)
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write("source bin/block < /dev/null; printf '\\nended with status %s\\n' $?\n")
        self._shell.stdin.flush()
        late = threading.Timer(seconds, self.leave)
        late.start()
        told = ""
        while not (ended := re.search(r"\nended with status (\d+)\n\Z", told)):
            line = self._shell.stdout.readline()
            assert line, f"not done within {seconds} s: {commands}\n{told}"
            told += line
        late.cancel()
        told = told[: ended.start()]
        assert ended[1] == "0", (commands, told)
        for named, free in self._ports.items():
            told = re.sub(rf"\b{free}\b", named, told)
        return told

    def leave(self) -> None:
        """End the shell and all that it has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave, and wait for the end."""
        self.leave()
        self._shell.communicate()


def told(output: str) -> str:
    """Return an output without what varies, and without space at the ends of its lines."""
    return "\n".join(line.rstrip() for line in VARIES.sub("...", output).strip().splitlines())


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A broker that has just been installed: it has nothing but the user guest and the virtual host /."""
    with own_node("") as (running, _):
        yield running


@pytest.fixture(params=["installed", pytest.param("installs", marks=pytest.mark.long)])
def reader(request: pytest.FixtureRequest, node: Node, tmp_path: Path) -> Iterator[Reader]:
    """A reader in a clone who has installed ringproxy already, or who installs it as the tutorial says."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sudo").write_text(SUDO)
    (tmp_path / "bin" / "sudo").chmod(0o755)
    if request.param == "installed":
        (tmp_path / "venv").symlink_to(sys.prefix)
        (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    else:
        for name in ("ring", "proxy", "pipeline", "deploy"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in (
            "setup.py",
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "constraints-runtime.txt",
            "constraints-build.txt",
        ):
            shutil.copy(ROOT / name, tmp_path)
    at_work = Reader(tmp_path, node)
    yield at_work
    at_work.close()


def test_each_step_shows_what_the_tutorial_says(reader: Reader, node: Node, tmp_path: Path) -> None:
    asked, install, *others = steps()

    # What the machine's administrator is asked for is there, or can be had.
    assert told(reader.does(asked.commands)) == told(asked.shown) == ""
    packages, plugins = (tmp_path / "asked-as-root").read_text().splitlines()
    for package in set(packages.split()[1:]) - STAND_INS:
        if not package.startswith("-") and package != "install":
            ensure_installed(package)
    assert set(plugins.removeprefix("rabbitmq-plugins enable ").split()) <= set(PLUGINS)

    if not (tmp_path / "venv").exists():
        assert told(reader.does(install.commands, INSTALL_SECONDS)) == told(install.shown) == ""
    for step in others:
        assert told(reader.does(step.commands)) == told(step.shown), step.heading

    # The clean-up leaves nothing behind.
    assert told(reader.does("jobs -rp")) == ""
    api = BrokerApi(node.management_url)
    assert api.ask("GET", "queues") == []
    assert not [each for each in api.ask("GET", "exchanges") if each["name"] == "orders"]
    assert api.ask("GET", "policies") == []
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & set(re.findall(r"[\w.-]+", others[-1].commands.partition("rm -r")[2]))


def test_every_port_of_the_tutorial_is_known_here() -> None:
    """A port that is not mapped would be that of another program on this machine."""
    named = {int(port) for step in steps() for port in re.findall(r"127\.0\.0\.1[:\", ]+(\d+)", step.commands)}
    assert named == {BROKER_PORT, *SIDECAR_PORTS.values(), PROMETHEUS_PORT}
