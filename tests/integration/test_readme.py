"""The commands of the README's installation, as they stand there but for the addresses, and the answer to the last."""

import json
import re
from urllib.parse import quote, urlsplit

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login, StartSidecar
from tests.integration.documents import ROOT, Document, Shell, variables

INSTALL, PUBLISH = Document("README.md")["Install and run"]
(RECEIPT,) = Document("README.md", "json")["Install and run"]


def test_what_is_installed_is_there_and_the_flags_are_taken() -> None:
    """The other lines of the block make a virtual environment and install packages, as the test bed does itself."""
    for file in re.findall(r" -r (\S+)", INSTALL):
        assert (ROOT / file).exists()
    (flags,) = re.findall(r"^venv/bin/ring-proxy run (.+)$", INSTALL, flags=re.M)
    defaults = Shell({})("ring-proxy config").replace("localhost", "127.0.0.1")
    assert Shell({})(f"ring-proxy config {flags}") == defaults


def test_the_publish_gives_the_receipt(
    vhost: VirtualHost, broker: Broker, login: Login, start_sidecar: StartSidecar
) -> None:
    vhost.ring("orders", ["orders.1", "orders.2", "orders.3"])
    sidecar = start_sidecar(
        broker_url=urlsplit(login.broker_url)._replace(path="/" + quote(vhost.name, safe="")).geturl()
    )
    here = PUBLISH.replace("http://127.0.0.1:15680", variables(broker, sidecar)["PUBLISH"])
    assert here != PUBLISH

    receipt = json.loads(Shell({})(here))

    assert receipt == json.loads(RECEIPT)
    assert [m.body for m in vhost.drain(receipt["destination"]["name"])] == [b"first"]
