"""The commands of docs/how-to/measure.md: the scrape, the rule for the operator, and the load on a sidecar."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testbed.broker import Broker
from testbed.debian import ensure_package
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.conftest import PASSWORD, USER, Login, StartSidecar, with_login
from tests.integration.documents import ROOT, Document, Shell, tried, variables

MEASURE = Document("docs/how-to/measure.md")
PROGRAMS = "examples/load"
QUEUES = ["orders.1", "orders.2", "orders.3"]
ADMIN = "load-tester", "pw-load-tester"
"""With the tags and permissions that the page asks for, and no others."""


def test_every_command_is_tried_here() -> None:
    assert tried(MEASURE, "MEASURE", __file__)


@pytest.fixture
def shop(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield the virtual host that the page's commands are for."""
    made = VirtualHost(api, "shop", [USER])
    made.ring("orders", QUEUES)
    yield made
    made.delete()
    api.ask("DELETE", "users", ADMIN[0])


def test_the_dashboards_become_config_maps(tmp_path: Path) -> None:
    (make,) = MEASURE["Import the dashboards"]
    shutil.copytree(ROOT / "deploy/grafana", tmp_path / "deploy/grafana")
    make = make.replace("repository=https://git.example.com/ringproxy", "repository=https://code.example.org/r")
    kubectl = ensure_package("kubernetes-client", "kubectl").parent
    Shell({"PATH": f"{kubectl}:/usr/bin:/bin"})(f"cd {tmp_path}\n{make}")
    made = [each for each in yaml.safe_load_all((tmp_path / "dashboards.yaml").read_text()) if each]
    assert [each["metadata"]["name"] for each in made] == [
        f"ringproxy-{name}" for name in ("fleet", "exchange", "group")
    ]
    for each in made:
        assert (each["kind"], each["metadata"]["labels"]) == ("ConfigMap", {"grafana_dashboard": "1"})
        ((name, text),) = each["data"].items()
        original = (ROOT / "deploy/grafana" / name.removeprefix("ringproxy-")).read_text()
        assert json.loads(text) == json.loads(original.replace("git.example.com/ringproxy", "code.example.org/r"))
        # `kubectl apply` keeps the whole object in an annotation, which may have 256 KiB.
        assert len(json.dumps(each)) < 200_000


def test_the_load(start_sidecar: StartSidecar, broker: Broker, login: Login, shop: VirtualHost, tmp_path: Path) -> None:
    """Every publish of both programs is confirmed, over AMQP past the sidecar, too."""
    (scrape,) = MEASURE["Scrape the sidecar"]
    bound, over_amqp, over_http, clean = MEASURE["Load-test on your own broker"]
    (tmp_path / PROGRAMS).mkdir(parents=True)
    for path in (ROOT / PROGRAMS).iterdir():
        (tmp_path / PROGRAMS / path.name).write_text(path.read_text().replace("20_000", "2_000"))
    sidecar = start_sidecar()
    native = with_login(login.broker_url, USER, PASSWORD, "/shop")
    urls = {
        "NATIVE": native,
        "THROUGH": re.sub(r":\d+/shop$", f":{sidecar.amqp_port}/shop", native),
        "PATH": f"{ROOT}/.venv/bin:{ensure_package('wrk', 'wrk').parent}:/usr/bin:/bin",
    }
    user, password = ADMIN
    shop.api.ask("PUT", "users", user, body={"password": password, "tags": "monitoring,policymaker"})
    shop.permit(user, configure=".*", write=".*", read=".*")
    shell = Shell(variables(broker, sidecar) | urls | {"ADMIN": f"{user}:{password}"})
    shell(bound)
    told = shell(f"cd {tmp_path}\n{over_amqp}")
    assert len(re.findall(r"^[\d,]+ confirmed a second, 99% within \d+ ms$", told, re.M)) == 2
    confirmed = sidecar.metric("ringproxy_publishes_total", ingress="amqp", outcome="confirmed")
    assert confirmed == 2_000
    told = shell(f"cd {tmp_path}\n{over_http}".replace("--duration 20s", "--duration 1s"))
    assert "Requests/sec" in told
    assert "Non-2xx" not in told
    assert re.search(r'exchange="orders",ingress="http",outcome="confirmed",vhost="shop"} ', shell(scrape))
    shell(clean)
    assert shop.drain_all() == {}
