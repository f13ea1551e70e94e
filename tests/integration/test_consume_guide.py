"""The guide to consuming with a group: its permissions, settings, program and report, as its reader has them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, StartSidecar, with_login
from tests.integration.documents import Document, Shell, tried
from tests.integration.sidecar import Sidecar

pytestmark = pytest.mark.versions

GUIDE = Document("docs/how-to/consume-with-a-group.md")
FILES = Document("docs/how-to/consume-with-a-group.md", "toml")
PROGRAM = Document("docs/how-to/consume-with-a-group.md", 'python title="billing.py"')
SHOWN = Document("docs/how-to/consume-with-a-group.md", "text")

VARIES = r"127\.0\.0\.1:\d+|(?<= by )\S+(?=, since)|\S+Z(?=,)|[\d.]+ s(?=,)"
"""What differs from one run to the next: the client's port, the machine, and times."""


def test_every_block_is_tried_here() -> None:
    assert tried(GUIDE, "GUIDE", __file__)
    assert tried(FILES, "FILES", __file__)
    assert tried(PROGRAM, "PROGRAM", __file__)
    assert tried(SHOWN, "SHOWN", __file__)


@pytest.fixture
def shop(api: BrokerApi) -> Iterator[VirtualHost]:
    """The guide's virtual host and users, with the permissions that it grants and no others."""
    (grant,) = GUIDE["Turn it on"]
    lines = [shlex.split(line) for line in grant.splitlines()]
    made = VirtualHost(api, "shop", [])
    made.permit(USER)
    for *command, user, configure, write, read in lines:
        assert command == ["rabbitmqctl", "set_permissions", "-p", "shop"]
        api.ask("PUT", "users", user, body={"password": "PASSWORD", "tags": ""})
        made.permit(user, configure, write, read)
    yield made
    made.delete()
    for *_, user, _, _, _ in lines:
        api.ask("DELETE", "users", user)


@pytest.fixture
def sidecar(broker: Broker, shop: VirtualHost, start_sidecar: StartSidecar, tmp_path: Path) -> Sidecar:
    """A sidecar with the guide's setting, whose own user has the rights of the guide, beside its shards."""
    topology, settings = tmp_path / "topology.toml", tmp_path / "ringproxy.toml"
    (shards,), (setting,) = FILES["Before you begin"], FILES["Turn it on"]
    topology.write_text(shards)
    settings.write_text(setting)
    urls = f"--broker-url={broker.amqp_url} --management-url={broker.management_url}"
    shop.permit(urlsplit(broker.amqp_url).username or "guest", ".*", ".*", ".*")
    assert "steps done" in Shell({})(f"ring-proxy topology apply {urls} {topology}")
    return start_sidecar(
        config=str(settings),
        broker_url=with_login(broker.amqp_url, "orders", "PASSWORD", "/shop"),
        management_url=with_login(broker.management_url, USER, PASSWORD),
    )


@pytest.fixture
def billing(sidecar: Sidecar, tmp_path: Path) -> Iterator[Path]:
    """The guide's program at work, and the file that it prints to."""
    (program,) = PROGRAM["Turn it on"]
    assert "localhost:5673" in program
    (tmp_path / "billing.py").write_text(program.replace("localhost:5673", f"127.0.0.1:{sidecar.amqp_port}"))
    printed = tmp_path / "billing.txt"
    with printed.open("wb") as output:
        running = subprocess.Popen([sys.executable, tmp_path / "billing.py"], stdout=output)
    yield printed
    running.kill()
    running.wait()


def test_the_program_consumes_and_the_report_shows_it(sidecar: Sidecar, billing: Path, shop: VirtualHost) -> None:
    (ask,), (shown,) = GUIDE["See who has what"], SHOWN["See who has what"]
    shell = Shell({})

    def report() -> str:
        return shell(f"{ask.strip()} --sidecar {sidecar.admin_url}")

    def alike(text: str) -> str:
        return re.sub(VARIES, "...", text).strip()

    def settled() -> str | None:
        """Return the report once no shard moves and RabbitMQ has told each shard's type and figures."""
        told = report()
        is_settled = "has 4 shards" in told and not re.search(r"^moving|not known|\?", told, flags=re.M)
        return told if is_settled else None

    wait_until("a member", lambda: '"id"' in sidecar.admin("/groups/shop/orders").text)
    told = wait_until("four shards at rest", settled)
    if "before 4.0" not in told:
        assert alike(told) == alike(shown)
    assert "not balanced" not in told

    keys = [f"customer-{number}" for number in range(20)]
    for number, key in enumerate(keys):
        assert sidecar.publish("orders", key, vhost="shop", body=str(number).encode()).status == 200
    wait_until("all messages", lambda: len(billing.read_text().splitlines()) == len(keys))
    assert sorted(billing.read_text().splitlines()) == sorted(f"{key} {n}" for n, key in enumerate(keys))
