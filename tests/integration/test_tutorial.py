"""The tutorial, as a reader goes through it: each block of commands in one shell, and the output that it shows."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.debian import ensure_installed
from testbed.node import PLUGINS, Node
from tests.integration.broker_api import BrokerApi
from tests.integration.documents import ROOT
from tests.integration.own_node import own_node, private_only
from tests.integration.reader import Reader, steps

pytestmark = private_only

INSTALL_SECONDS = 600.0

SUDO = '#!/bin/sh\necho "$*" >> asked-as-root\n'
"""A stand-in for sudo, which keeps what it is asked: the test bed's own broker runs in place of the machine's."""

STAND_INS = {"rabbitmq-server", "python3-venv"}
"""Packages in whose place there are the test bed's broker and the virtual environment that the tests run in."""


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
        constraints = "constraints-runtime.txt", "constraints-build.txt"
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", *constraints):
            shutil.copy(ROOT / name, tmp_path)
    at_work = Reader(tmp_path, node)
    yield at_work
    at_work.close()


def test_each_step_shows_what_the_tutorial_says(reader: Reader, node: Node, tmp_path: Path) -> None:
    asked, install, *others = steps("docs/tutorial.md")

    # The packages that the machine's administrator is asked for are there, or can be had.
    reader.takes(asked)
    packages, plugins = (tmp_path / "asked-as-root").read_text().splitlines()
    for package in set(packages.split()[2:]) - STAND_INS:
        if not package.startswith("-"):
            ensure_installed(package)
    assert set(plugins.removeprefix("rabbitmq-plugins enable ").split()) <= set(PLUGINS)

    if not (tmp_path / "venv").exists():
        reader.takes(install, INSTALL_SECONDS)
    for step in others:
        reader.takes(step)

    # The clean-up leaves nothing behind.
    assert reader.does("jobs -rp").strip() == ""
    api = BrokerApi(node.management_url)
    assert api.ask("GET", "queues") == []
    assert not [each for each in api.ask("GET", "exchanges") if each["name"] == "orders"]
    assert api.ask("GET", "policies") == []
    left = {path.name for path in tmp_path.iterdir()}
    assert not left & set(re.findall(r"[\w.-]+", others[-1].commands.partition("rm -r")[2]))
