"""`ring-proxy topology` as the tests run it: on one virtual host, in this process or in one to be killed."""

import itertools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

import proxy
from proxy.cli import main
from testbed.broker import Broker
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.sidecar import COMMAND, Sidecar


class Topology:
    """Runs the parts of the command on one virtual host, with one user."""

    def __init__(self, broker: Broker, vhost: VirtualHost, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """As the broker's administrator, until `login` names another user."""
        vhost.permit(URL(broker.management_url).user or "guest", ".*", ".*", ".*")
        self.vhost, self._capsys = vhost, capsys
        self.file = folder / "topology.toml"
        self._path = "/" + quote(vhost.name, safe="")
        self.amqp_url = broker.amqp_url.rpartition("/")[0] + self._path
        self.management_url = broker.management_url

    def login(self, user: str, password: str) -> None:
        """Run as this user from now on."""
        self.amqp_url, self.management_url = (
            str(URL(url, encoded=True).with_user(user).with_password(password))
            for url in (self.amqp_url, self.management_url)
        )

    def write(self, text: str) -> None:
        """Write the file; every `[[exchange]]` in it is of the test's virtual host."""
        vhost = json.dumps(self.vhost.name, ensure_ascii=False)
        self.file.write_text(text.replace("[[exchange]]\n", f"[[exchange]]\nvhost = {vhost}\n"))

    def flags(self) -> list[str]:
        return [f"--broker-url={self.amqp_url}", f"--management-url={self.management_url}"]

    def run(self, part: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a part of the command in this process, on the file where it takes one and none is given."""
        self._capsys.readouterr()
        given = arguments or (str(self.file),)
        status = main(["topology", part, *self.flags(), *given])
        return subprocess.CompletedProcess(given, status, *self._capsys.readouterr())

    def did(self, part: str, *arguments: str) -> str:
        """Run a part that must end with 0, and return what it printed."""
        result = self.run(part, *arguments)
        assert result.returncode == 0, result
        assert result.stderr == ""
        return result.stdout

    def plan(self) -> Mapping[str, Any]:
        """Return the plan as JSON has it."""
        return dict(json.loads(self.run("plan", "--json", str(self.file)).stdout))

    def killed(self, part: str, lines: int, *flags: str) -> int:
        """Run a part in a process that is killed once it has printed so many lines; return how many it printed."""
        return killed(["topology", part, *self.flags(), *flags, str(self.file)], lines)

    def unread(self, part: str) -> tuple[int, str]:
        """Run a part in a process whose output nobody reads; return its exit status and what it told as an error."""
        arguments = [COMMAND, "topology", part, *self.flags(), str(self.file)]
        with subprocess.Popen(arguments, env=_clean(), stdout=PIPE, stderr=PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            return process.wait(DEADLINE_SECONDS), process.stderr.read()

    def made(self) -> Mapping[str, Any]:
        """Return what exists in the virtual host, but for what every virtual host has."""
        ask, name = self.vhost.api.ask, self.vhost.name
        exchanges = ask("GET", "exchanges", name, query="columns=name,type,durable,auto_delete,internal,arguments")
        queues = ask("GET", "queues", name, query="columns=name,type,durable,arguments")
        bindings = ask("GET", "bindings", name, query="columns=source,destination,destination_type,routing_key")
        return {
            "exchanges": sorted((e for e in exchanges if e["name"][:4] not in ("", "amq.")), key=str),
            "queues": sorted(queues, key=str),
            "bindings": sorted((b for b in bindings if b["source"]), key=str),
        }


def between_looks(broker: Broker) -> float:
    """Return the seconds between two looks, of which the second sees what the broker counted after the first one.

    Private nodes count each second, and others every 5 s.
    """
    return 6.0 if broker.source.startswith(("named", "Docker")) else 2.5


def fleet_flags(api: BrokerApi) -> list[str]:
    """Return the flags by which retire finds each sidecar that runs, once the broker lists no other one any more."""
    ids = {sidecar.id for sidecar in Sidecar.running}

    def listed() -> set[str]:
        connections = api.ask("GET", "connections", query="columns=client_properties")
        return {each["client_properties"].get("ringproxy_id", "") for each in connections} - {""}

    wait_until("the end of connections of sidecars that were stopped", lambda: listed() <= ids)
    return [f"--sidecar={sidecar.admin_url}" for sidecar in Sidecar.running]


def killed(arguments: Sequence[str], lines: int) -> int:
    """Run `ring-proxy` in a process that is killed once it has printed so many lines; return how many it printed."""
    with subprocess.Popen([COMMAND, *arguments], env=_clean(), stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        seen = sum(1 for _ in itertools.takewhile(bool, (process.stdout.readline() for _ in range(lines))))
        process.kill()
        process.wait(DEADLINE_SECONDS)
    return seen


def _clean() -> dict[str, str]:
    """Return the environment of this process without settings, in which its own modules are found."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    return {**clean, "PYTHONPATH": str(Path(proxy.__file__).parents[1])}
