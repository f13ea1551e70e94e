"""The Grafana dashboards: a real Prometheus that scrapes real sidecars under load has an answer to each query."""

import itertools
import json
import math
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from pamqp.commands import Basic

from tests.certificates import Authority
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import deliveries, numbered, publish, sharded
from tests.integration.load import meanwhile, publishing
from tests.integration.prometheus import Prometheus, prometheus
from tests.integration.sidecar import Sidecar
from tests.integration.test_groups_series import join
from tests.integration.wire_client import Client, Wire

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FOLDER.glob("*.json")}

OF_ANOTHER = {
    "In shadow, by destination": "shadowed",
    "Passed, by reason": "dead.ends",
    "Publishes that did not arrive": "nowhere",
    "annotation Alerts": "dead.ends",
}
"""Panels that orders does not fill, and the exchange that does."""

EXPECTED = {
    ("fleet", "Sidecars"): 3,
    ("fleet", "Not scraped"): 0,
    ("fleet", "Not routed"): 5,
    ("fleet", "Fleet disagrees"): 0,
    ("exchange", "Routed by"): 1,
    ("exchange", "Different rings"): 1,
    ("exchange", "Named, and absent"): 0,
    ("exchange", "Sidecars"): 2,
    ("exchange", "Destinations"): 3,
    ("group", "Members"): 2,
    ("group", "Do not hear others"): 0,
    ("group", "Shards to move"): 0,
    ("group", "Members and shards"): 2,
    ("group", "Keys stopped"): 0,
    ("group", "Keys that are held up"): 1,
    ("group", "Exact"): 1,
    ("group", "Prefetches"): 1,
}
"""Numbers that some panels must come to show."""

WITHIN = 120.0
"""Seconds in which all panels must have been filled: many times a scrape, a rule, and the broker's statistics."""


class Asked(NamedTuple):
    """A query of a panel, or of an annotation."""

    dashboard: str
    panel: str
    expression: str
    none: str

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel}: {self.expression}"


def queries(dashboard: str) -> Iterator[Asked]:
    page = DASHBOARDS[dashboard]
    for panel in page["panels"]:
        for target in panel.get("targets", ()):
            none = panel["fieldConfig"]["defaults"]["noValue"]
            yield Asked(dashboard, panel["title"], target["expr"], none)
    for annotation in page["annotations"]["list"]:
        yield Asked(dashboard, f"annotation {annotation['name']}", annotation["expr"], "")


def substituted(expression: str, **chosen: str) -> str:
    """Return an expression as Grafana sends it: with all namespaces, jobs and sidecars."""
    values = {"__rate_interval": "15s", "__range": "300s", "namespace": ".*", "job": ".*", "instance": ".*", **chosen}

    def value(found: re.Match[str]) -> str:
        return values[found[1]].replace("\\", "\\\\").replace('"', '\\"')

    return re.sub(r"\$(\w+)", value, expression)


def work(wire: Wire) -> None:
    """Get one message; ack it, or give it back where it is the one that always fails."""
    (got,) = deliveries(wire, 1, 1)
    answer = Basic.Nack(got.number, False, True) if got.body == b"fails" else Basic.Ack(got.number)
    wire.tell(1, answer)


def publish_slowly(sidecar: Sidecar, exchange: str, vhost: VirtualHost, numbers: Iterator[int]) -> None:
    """Publish over HTTP, some fifty messages a second."""
    sidecar.publish(exchange, f"key {next(numbers)}", b"x", vhost=vhost.name).receipt()
    time.sleep(0.02)


@pytest.fixture
def fleet(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, authority: Authority, tmp_path: Path
) -> Iterator[list[Sidecar]]:
    """Yield two sidecars with members of a group in series, of which a key fails, and one with all else, under load."""
    sharded(vhost)
    vhost.permit(USER, configure=r"^orders\.group", read=r"^orders\.group")
    for name in ("dead.ends", "shadowed"):
        vhost.ring(name, [f"{name}.1"])
    vhost.exchange("nowhere")
    # A queue that would dead-letter under its own name takes its exchange off the ring.
    vhost.policy("dead letters", r"^dead\.ends\.1$", "queues", **{"dead-letter-exchange": "amq.fanout"})
    mine = quote(vhost.name, safe="")
    settings = {"groups": f"{mine}/orders", "shadow": f"{mine}/shadowed", "groups_retry_delay": "0.2"}
    pair = authority.issue("sidecar")
    grouping = [start_sidecar(**settings) for _ in range(2)]
    files = {"tls_cert_file": str(pair.certificate), "tls_key_file": str(pair.key)}
    encrypted = start_sidecar(journal_dir=str(tmp_path / "journal"), **files)
    first, second = grouping
    publish(client, first.amqp_port, vhost, [("orders", "fails", b"fails")])
    # The management API may take seconds to tell of the policy.
    wait_until("the policy", lambda: first.admin(f"/rings/{mine}/dead.ends").json["passed"] == "dead_letter")
    publish(client, first.amqp_port, vhost, numbered(range(5), exchange="dead.ends"))
    first.publish("nowhere", "k", vhost=vhost.name).problem(422, "unroutable", "unroutable", retryable=False)
    with closing(socket.create_connection(("127.0.0.1", first.amqp_port), DEADLINE_SECONDS)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(100)
    numbers = itertools.count()
    with ExitStack() as stack:
        wires = [stack.enter_context(client.session(sidecar.amqp_port, vhost.name)) for sidecar in (*grouping, first)]
        for wire in wires[:2]:
            join(wire, 1)
        wires[2].channel(1)
        # Publishers end after workers, so that nobody waits for a message in vain.
        stack.enter_context(publishing(wires[2], "orders", "key {}"))
        for exchange in ("orders", "shadowed"):
            step = partial(publish_slowly, second, exchange, vhost, numbers)
            stack.enter_context(meanwhile(step))
        for wire in wires[:2]:
            stack.enter_context(meanwhile(partial(work, wire)))
        yield [*grouping, encrypted]


def test_every_query_of_every_panel_has_a_number(fleet: list[Sidecar], vhost: VirtualHost, tmp_path: Path) -> None:
    labels: list[Mapping[str, str]] = [{"namespace": "shop", "pod": "a"}, {"namespace": "shop", "pod": "b"}, {}]
    waiting = every = [asked for dashboard in DASHBOARDS for asked in queries(dashboard)]
    assert len(waiting) > 100
    with prometheus(tmp_path, list(zip(fleet, labels, strict=True))) as asked_of:

        def numbers(asked: Asked) -> list[float]:
            exchange = OF_ANOTHER.get(asked.panel, "orders")
            chosen = {"vhost": vhost.name, "exchange": exchange, "group": exchange}
            series = asked_of.query(substituted(asked.expression, **chosen))
            return [number for each in series if math.isfinite(number := float(each["value"][1]))]

        def shown() -> dict[tuple[str, str], float | None]:
            """Return what the panels of which it is known show now; of several lines, the first."""
            known = [asked for asked in every if (asked.dashboard, asked.panel) in EXPECTED]
            return {(asked.dashboard, asked.panel): next(iter(numbers(asked)), None) for asked in reversed(known)}

        deadline = time.monotonic() + WITHIN
        while waiting := [asked for asked in waiting if not numbers(asked)]:
            assert time.monotonic() < deadline, "\n".join(["no number from:", *map(str, waiting)])
            time.sleep(0.5)
        offered(asked_of, vhost)
        while (told := shown()) != EXPECTED:
            assert time.monotonic() < deadline, told
            time.sleep(0.5)


def offered(asked_of: Prometheus, vhost: VirtualHost) -> None:
    """Each variable offers what there was of late, also where a busy machine has missed a scrape."""
    expected = {
        "namespace": "shop",
        "job": "ringproxy",
        "vhost": vhost.name,
        "exchange": "orders",
        "group": "orders",
    }
    for name, dashboard in DASHBOARDS.items():
        variables = [each for each in dashboard["templating"]["list"] if each["type"] == "query"]
        assert variables
        for variable in variables:
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found, variable
            series = substituted(found[1], vhost=vhost.name)
            values = {
                each["metric"].get(found[2])
                for each in asked_of.query(f"group by ({found[2]}) (last_over_time({series}[1m]))")
            }
            assert variable["name"] == "instance" or expected[variable["name"]] in values, (name, variable)


def test_panels_on_groups_say_why_they_are_empty_where_there_are_no_groups(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", ["orders.1"])
    sidecar = start_sidecar()
    sidecar.publish("orders", "k", vhost=vhost.name).receipt()
    with prometheus(tmp_path, [(sidecar, {})]) as asked_of:
        wait_until("a scrape", lambda: asked_of.query('ringproxy_ring_routed{exchange="orders"}'))
        # Grafana has an empty text for a variable that has no values.
        chosen = {"vhost": vhost.name, "exchange": "orders", "group": ""}
        told = {
            asked: asked_of.query(substituted(asked.expression, **chosen))
            for dashboard in DASHBOARDS
            for asked in queries(dashboard)
        }
    for asked, series in told.items():
        assert series or asked.none or asked.panel.startswith("annotation"), asked
        if asked.dashboard == "group" and not asked.panel.startswith("annotation"):
            assert [each["value"][1] for each in series] == (["0"] if asked.panel == "Members" else []), asked
            assert "no sidecar has a member of this group" in asked.none
        if asked.dashboard == "fleet" and "ringproxy_group_" in asked.expression:
            assert not series, asked
            assert asked.none == "no sidecar has a member of a group"
