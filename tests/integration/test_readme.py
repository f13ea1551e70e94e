"""The first commands of the README, as they stand there but for the addresses, and their answers."""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from testbed.broker import Broker
from testbed.node import PLUGINS
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.conftest import USER, Login, StartSidecar
from tests.integration.documents import ROOT, Document, Shell, variables

TITLE = "# ringproxy"
PREPARE, *COMMANDS = Document("README.md")[TITLE]
ANSWERS = Document("README.md", "json")[TITLE]
(EXPLAINED,) = Document("README.md", "console")["Run it"]


@pytest.fixture
def shop(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """A virtual host in place of `/`."""
    made = VirtualHost(api, "readme", [USER])
    yield made
    made.delete()


def test_what_is_installed_first_is_there() -> None:
    """The rest of these lines are the test bed's own steps, on a machine of the reader's."""
    (plugins,) = re.findall(r"^sudo rabbitmq-plugins enable (.+)$", PREPARE, flags=re.M)
    assert set(plugins.split()) <= set(PLUGINS)
    for file in re.findall(r" -r (\S+)", PREPARE):
        assert (ROOT / file).exists()
    assert "venv/bin/ring-proxy run 2>" in PREPARE  # by default settings, of the ports that all the others name


def test_the_commands_give_the_answers(
    shop: VirtualHost, broker: Broker, login: Login, start_sidecar: StartSidecar
) -> None:
    sidecar = start_sidecar(broker_url=urlsplit(login.broker_url)._replace(path=f"/{shop.name}").geturl())
    here = variables(broker, sidecar)
    shell = Shell({})
    addresses = {
        "http://127.0.0.1:15680": here["PUBLISH"],
        "http://guest:guest@127.0.0.1:15672": here["MANAGEMENT"].replace("://", f"://{here['ADMIN']}@"),
        "/%2F/": f"/{shop.name}/",
    }

    for commands, answer in zip(COMMANDS, ANSWERS, strict=True):
        for address, other in addresses.items():
            commands = commands.replace(address, other)
        assert json.loads(shell(commands)) == json.loads(answer)

    # What they made outlives a restart of the broker.
    queues = shop.api.ask("GET", "queues", shop.name)
    assert {queue["name"]: queue["durable"] for queue in queues} == dict.fromkeys(shop.queues(), True)
    assert shop.api.ask("GET", "exchanges", shop.name, "orders")["durable"] is True

    asked, *lines = EXPLAINED.splitlines()
    told = shell(f"{asked.removeprefix('$ venv/bin/')} --sidecar {sidecar.admin_url}").splitlines()
    for line in lines[1:-1]:  # without the exchange's virtual host, and "..."
        assert line.partition(", read ")[0] in [each.partition(", read ")[0] for each in told]

    landed = [m.body for messages in shop.drain_all().values() for m in messages]
    assert sorted(landed) == [b"first", b"second", b'{"order": 7}', b'{"total":3}']
