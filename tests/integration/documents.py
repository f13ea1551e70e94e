"""The commands of a document, as its readers run them."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import unquote, urlsplit

import proxy
from testbed.broker import Broker
from testbed.node import Node
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost
from tests.integration.conftest import PASSWORD, USER
from tests.integration.sidecar import COMMAND, Sidecar

ROOT = Path(__file__).parents[2]


class Document:
    """Its fenced blocks of one language, by the heading that they stand under."""

    def __init__(self, path: str, language: str = "sh") -> None:
        self._sections: dict[str, list[str]] = {}
        for section in re.split(r"^## ", (ROOT / path).read_text(), flags=re.M):
            title = section.partition("\n")[0]
            # Blocks of a numbered list are indented.
            if blocks := re.findall(rf"^( *)```{language}\n(.*?)^\1```$", section, flags=re.M | re.S):
                self._sections[title] = [dedent(block) for _, block in blocks]

    def __iter__(self) -> Iterator[str]:
        """Return the headings."""
        return iter(self._sections)

    def __getitem__(self, title: str) -> list[str]:
        """Return the blocks under a heading, to be unpacked into as many names as there are, so that none is left
        out.
        """
        return self._sections[title]


def tried(document: Document, name: str, test: str) -> bool:
    """Return whether a test's source takes the blocks of every section of the document."""
    return set(document) == set(re.findall(rf'\b{name}\["(.+?)"\]', Path(test).read_text()))


@contextmanager
def shop_of(api: BrokerApi, grants: Iterable[str], *own: str) -> Iterator[VirtualHost]:
    """Yield the virtual host `shop`, and the users of a guide's lines with `rabbitmqctl`, with the rights that they
    grant and no others. `own` are the rights of the tests' user.
    """
    lines = [shlex.split(line) for line in grants]
    made = VirtualHost(api, "shop", [])
    made.permit(USER, *own)
    for *command, user, configure, write, read in lines:
        assert command == ["rabbitmqctl", "set_permissions", "-p", "shop"]
        tag = "monitoring" if user == "topology" else ""
        api.ask("PUT", "users", user, body={"password": "PASSWORD", "tags": tag})
        made.permit(user, configure, write, read)
    yield made
    made.delete()
    for *_, user, _, _, _ in lines:
        api.ask("DELETE", "users", user)


class Shell:
    """A shell with the variables that a document asks for, and `ring-proxy` where it looks for commands."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
        self._environment["PATH"] = f"{Path(COMMAND).parent}:{self._environment['PATH']}"
        # The same modules that the tests import.
        self._environment["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])
        self._environment |= variables

    def __call__(self, commands: str, status: int = 0, seconds: float = DEADLINE_SECONDS) -> str:
        """Return what they print; the test fails unless they end with that status within so many seconds."""
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == status, (commands, done.stdout, done.stderr)
        return done.stdout


def variables(broker: Broker | Node, sidecar: Sidecar, other: Sidecar | None = None) -> dict[str, str]:
    """Return what the runbook's commands take from the environment."""
    url = urlsplit(broker.management_url)
    return {
        "MANAGEMENT": f"http://{url.hostname}:{url.port}",
        "ADMIN": f"{unquote(url.username or 'guest')}:{unquote(url.password or 'guest')}",
        "SIDECAR": sidecar.admin_url,
        "PUBLISH": f"http://127.0.0.1:{sidecar.port}",
        "OTHER": (other or sidecar).admin_url,
        "READER": f"{USER}:{PASSWORD}",
    }


def parsed(told: str) -> list[Any]:
    """Return the JSON values of several answers, one behind the other."""
    values, decoder = [], json.JSONDecoder()
    while told := told.strip():
        value, end = decoder.raw_decode(told)
        values.append(value)
        told = told[end:]
    return values
