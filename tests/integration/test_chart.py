"""The Helm chart's output at work: topology's Job, the rights of the notes, and a sidecar with the chart's file."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.conftest import with_login
from tests.integration.groups import consume, deliveries, numbered, publish
from tests.integration.sidecar import COMMAND, Sidecar
from tests.integration.wire_client import Client
from tests.unit.manifests import CHART, Manifest, documents, one, output

MOUNTED = "/etc/ringproxy/"
PASSWORDS = {name: f"pw-{name}" for name in ("chart-writer", "chart-reader", "PUBLISHER", "CONSUMER", "chart-topology")}
FILE = '[[exchange]]\nname = "orders"\nvhost = {vhost}\nshards = 3\n'


@pytest.fixture
def users(api: BrokerApi, vhost: VirtualHost) -> Iterator[None]:
    """Users without any right or tag, but for topology's."""
    for user, password in PASSWORDS.items():
        tags = "management" if user == "chart-topology" else ""
        api.ask("PUT", "users", user, body={"password": password, "tags": tags})
    vhost.permit("chart-topology", ".*", ".*", ".*")
    yield
    for user in PASSWORDS:
        api.ask("DELETE", "users", user)


def urls(broker: Broker, vhost: VirtualHost, writer: str, reader: str) -> dict[str, Any]:
    """The URLs of a broker as the chart takes them: with users, without passwords."""
    path = "/" + quote(vhost.name, safe="")
    amqp, management = with_login(broker.amqp_url, writer, "", path), with_login(broker.management_url, reader, "")
    return {"broker_url": amqp.replace(":@", "@"), "management_url": [management.replace(":@", "@")]}


def mounted(manifests: list[Manifest], name: str, folder: Path) -> Path:
    """Write the files of a ConfigMap and of the Secret of the same name, and return the path of the settings' file."""
    config, secrets = folder / "config", folder / "secrets"
    for path, files in (
        (config, one(manifests, "ConfigMap", name)["data"]),
        (secrets, one(manifests, "Secret", name)["stringData"]),
    ):
        path.mkdir(parents=True)
        for file, text in files.items():
            (path / file).write_text(text.replace(MOUNTED, f"{folder}/"))
    return config / "ringproxy.toml"


def grant(api: BrokerApi, commands: list[str]) -> None:
    """Do what rabbitmqctl does at these commands."""
    for _, command, *arguments in map(shlex.split, commands):
        if command == "set_user_tags":
            user, tags = arguments
            api.ask("PUT", "users", user, body={"password": PASSWORDS[user], "tags": tags})
        else:
            assert command == "set_permissions"
            _, vhost, user, configure, write, read = arguments
            rights = {"configure": configure, "write": write, "read": read}
            api.ask("PUT", "permissions", vhost, user, body=rights)


@pytest.mark.usefixtures("users")
def test_a_sidecar_of_the_chart_works_with_the_rights_that_its_notes_print(
    api: BrokerApi, broker: Broker, vhost: VirtualHost, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    given = {
        "settings": urls(broker, vhost, "chart-writer", "chart-reader")
        | {"route": ["orders"], "groups": ["orders"], "sync_interval": 0.5},
        "secrets": {"broker-password": PASSWORDS["chart-writer"], "management-password": PASSWORDS["chart-reader"]},
        "topology": {
            "kind": "Job",
            "file": FILE.format(vhost=json.dumps(vhost.name)),
            "settings": urls(broker, vhost, "chart-topology", "chart-topology"),
            "secrets": {"password": PASSWORDS["chart-topology"]},
        },
    }
    values.write_text(yaml.safe_dump(given))
    made = documents(output("helm", "template", "ringproxy", CHART, "--values", values))
    notes = output("helm", "install", "ringproxy", CHART, "--values", values, "--dry-run=client").split("\nNOTES:\n")[1]

    config = mounted(made, "ringproxy-topology", tmp_path / "topology")
    (job,) = one(made, "Job")["spec"]["template"]["spec"]["containers"]
    arguments = [each.replace(MOUNTED, f"{tmp_path}/topology/") for each in job["args"]]
    environment = {**os.environ, "RINGPROXY_CONFIG": str(config)}
    done = subprocess.run([COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

    grant(api, re.findall(r"^  (rabbitmqctl .*)$", notes, re.MULTILINE))
    folder = tmp_path / "sidecar"
    config = mounted(made, "ringproxy", folder)
    rings = {"RINGPROXY_RING_CACHE_DIR": str(folder / "rings")}
    sidecar = Sidecar({}, folder, tuple(PASSWORDS.values()), {"RINGPROXY_CONFIG": str(config)} | rings)
    try:
        sidecar.wait_ready()
        sent = {b"%d" % number for number in range(20)}
        assert sidecar.publish("orders", "key 0", b"0").queue() in {f"orders.{number}" for number in (1, 2, 3)}
        publisher, consumer = (Client(user, PASSWORDS[user]) for user in ("PUBLISHER", "CONSUMER"))
        publish(publisher, sidecar.amqp_port, vhost, numbered(range(1, 20)))
        with consumer.session(sidecar.amqp_port, vhost.name) as wire:
            wire.channel(1, confirm=False)
            consume(wire, 1)
            assert {each.body for each in deliveries(wire, 1, 20)} == sent
            wire.goodbye()
        assert "ACCESS_REFUSED" not in sidecar.log()
    finally:
        sidecar.stop()
    sidecar.check_log()
