"""The first commands of the README, as they stand there but for the addresses, and their answers."""

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.conftest import USER, Login, StartSidecar
from tests.integration.documents import Document, Shell, variables

TITLE = "# ringproxy"
COMMANDS, ANSWERS = Document("README.md")[TITLE], Document("README.md", "json")[TITLE]


@pytest.fixture
def shop(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """A virtual host in place of `/`."""
    made = VirtualHost(api, "readme", [USER])
    yield made
    made.delete()


def test_the_commands_give_the_answers(
    shop: VirtualHost, broker: Broker, login: Login, start_sidecar: StartSidecar
) -> None:
    sidecar = start_sidecar(broker_url=urlsplit(login.broker_url)._replace(path=f"/{shop.name}").geturl())
    told = variables(broker, sidecar)
    shell = Shell({})
    here = {
        "http://127.0.0.1:15680": told["PUBLISH"],
        "http://guest:guest@127.0.0.1:15672": told["MANAGEMENT"].replace("://", f"://{told['ADMIN']}@"),
        "/%2F/": f"/{shop.name}/",
    }

    for commands, answer in zip(COMMANDS, ANSWERS, strict=True):
        for address, other in here.items():
            commands = commands.replace(address, other)
        assert json.loads(shell(commands)) == json.loads(answer)

    landed = [m.body for messages in shop.drain_all().values() for m in messages]
    assert sorted(landed) == [b"first", b"second", b'{"order": 7}', b'{"total":3}']
