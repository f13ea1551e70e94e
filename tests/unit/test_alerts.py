"""The Prometheus alerts: each fires on what it should and on nothing else, and has its section in the runbook."""

import functools
import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.debian import ensure_package
from tests.integration.broker_api import wait_until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts.yaml"
ALERTMANAGER = ROOT / "deploy" / "alertmanager.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")
(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: list[dict[str, Any]] = [rule for rule in GROUP["rules"] if "alert" in rule]


def promtool(*arguments: str | Path) -> str:
    """Run promtool, which must find nothing wrong; return its output."""
    command = [ensure_package("prometheus", "promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def cases() -> list[dict[str, Any]]:
    return [case for group in yaml.safe_load(CASES.read_text())["tests"] for case in group["alert_rule_test"]]


def named(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    assert f"SUCCESS: {len(GROUP['rules'])} rules found" in promtool(
        "check", "rules", "--lint=all", "--lint-fatal", RULES
    )


def test_promtool_can_read_every_expression_of_the_runbook(tmp_path: Path) -> None:
    """The expressions are those of the sidecars behind an alert, in second cells."""
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    listed = re.findall(
        r"^\| (?:\[`\w+`\]\(#[\w-]+\)|[^`|]+) \| `([^`]*(?:ringproxy_|process_|up ==)[^`]*)` \|", page, flags=re.M
    )
    assert len(listed) == 18
    rules = [{"record": f"page:{n}", "expr": expression} for n, expression in enumerate(listed)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "pages", "rules": rules}]}))
    assert "SUCCESS: 18 rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def test_the_rule_of_the_runbook_on_rabbitmqs_own_metrics_fires_as_it_should(tmp_path: Path) -> None:
    """It fires for the shard with messages and no consumer, and for no other queue."""
    (rule,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/how-to/troubleshoot.md").read_text(), flags=re.M | re.S)
    (tmp_path / "rules.yaml").write_text(rule)
    ready = 'rabbitmq_detailed_queue_messages_ready{vhost="shop", instance="1", queue="%s"}'
    consumers = 'rabbitmq_detailed_queue_consumers{vhost="shop", instance="1", queue="%s"}'
    values = {
        ready % "orders.1": "5x30",
        consumers % "orders.1": "0x30",
        ready % "orders.2": "5x30",
        consumers % "orders.2": "2x30",
        ready % "orders.3": "0x30",
        consumers % "orders.3": "0x30",
        ready % "other": "5x30",
        consumers % "other": "0x30",
    }
    fired = {
        "exp_labels": {"severity": "warning", "vhost": "shop", "queue": "orders.1"},
        "exp_annotations": {"summary": "Nobody consumes orders.1 in shop"},
    }
    case = {
        "interval": "1m",
        "input_series": [{"series": series, "values": told} for series, told in values.items()],
        "alert_rule_test": [
            {"alertname": "ShardWithoutConsumer", "eval_time": "4m", "exp_alerts": []},
            {"alertname": "ShardWithoutConsumer", "eval_time": "7m", "exp_alerts": [fired]},
        ],
    }
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(tests))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "cases.yaml")


def test_the_adapters_queries_count_a_shard_once_of_which_two_sidecars_tell(tmp_path: Path) -> None:
    config, _ = yaml.safe_load_all((ROOT / "deploy/hpa.yaml").read_text())
    rules = yaml.safe_load(config["data"]["config.yaml"])["externalRules"]
    waits, comes_in = (
        rule["metricsQuery"].replace("<<.LabelMatchers>>", 'vhost="shop",exchange="orders"') for rule in rules
    )
    series = 'ringproxy_group_shard_%s{instance="%s", vhost="shop", exchange="%s", shard="orders.%s"}'
    told = [("a", "orders", 1), ("b", "orders", 1), ("b", "orders", 2), ("a", "other", 3)]
    case = {
        "interval": "1m",
        "input_series": [
            {"series": series % (what, *where), "values": values}
            for what, values in (("ready", "70x5"), ("unacked", "3x5"), ("publish_rate", "8x5"))
            for where in told
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": value}]}
            for query, value in ((waits, 146), (comes_in, 16))
        ],
    }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "cases.yaml")


def test_the_alerts_fire_as_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES)


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_every_alert_is_tried_where_it_fires_and_where_it_does_not(alert: dict[str, Any]) -> None:
    assert {bool(case["exp_alerts"]) for case in cases() if case["alertname"] == alert["alert"]} == {True, False}


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_every_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    annotations = alert["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning")
    document, anchor = annotations["runbook_url"].split("#")
    headings = re.findall(r"^## (.+)$", (ROOT / document).read_text(), flags=re.M)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    assert f"`{alert['alert']}`" in (ROOT / document).read_text()


def test_the_list_of_alerts_is_whole_and_has_their_sections() -> None:
    text = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    listed = re.findall(r"^\| \[`(Ringproxy\w+)`\]\(#([\w-]+)\) \|", text, flags=re.M)
    sections = [alert["annotations"]["runbook_url"].partition("#")[2] for alert in ALERTS]
    assert sorted(listed) == sorted(zip(map(named, ALERTS), sections, strict=True))


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_no_alert_is_one_for_each_sidecar(alert: dict[str, Any]) -> None:
    """An outage that all the sidecars of a job see is one alert of it, whatever else tells alerts apart."""
    fired = [one for case in cases() if case["alertname"] == alert["alert"] for one in case["exp_alerts"]]
    assert fired
    for one in fired:
        assert "instance" not in one["exp_labels"]


def test_amtool_has_nothing_to_say_about_the_example_of_alertmanager() -> None:
    amtool = ensure_package("prometheus-alertmanager", "amtool")
    command = [str(amtool), "check-config", str(ALERTMANAGER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inhibit rules" in done.stdout


def test_the_inhibitions_are_of_alerts_that_there_are() -> None:
    rules = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    matchers = [m for rule in rules for m in (*rule["source_matchers"], *rule["target_matchers"])]
    patterns = [re.fullmatch(r'alertname (?:=|=~) "?([^"]+)"?', matcher) for matcher in matchers]
    known = [alert["alert"] for alert in ALERTS]
    for found in patterns:
        assert found is not None
        names = [name for name in known if re.fullmatch(found[1], name)]
        assert len(names) == found[1].count("|") + 1, found[1]


def test_an_outage_of_the_broker_is_one_alert_of_each_job(tmp_path: Path) -> None:
    """The alerts that fire meanwhile are given to a real Alertmanager with the example's configuration."""
    here, elsewhere = {"job": "s", "namespace": "n"}, {"job": "s", "namespace": "elsewhere"}
    orders = {"vhost": "shop", "exchange": "orders"}
    led_to = [
        "ManagementUnreadable",
        "RingStale",
        "BrokerBlocked",
        "PublishesFail",
        "AllPublishesFail",
        "UnknownOutcomes",
    ]
    alerts = [
        {"alertname": "RingproxyBrokerDisconnected", **here},
        *({"alertname": f"Ringproxy{name}", **here, **orders} for name in led_to),
        {"alertname": "RingproxyPublishesFail", **here, **orders, "exchange": "other"},
        {"alertname": "RingproxyJournalLoses", **here},
        {"alertname": "RingproxyPublishesFail", **elsewhere, **orders},
        # These sidecars have no namespace.
        {"alertname": "RingproxyBrokerBlocked", "job": "t"},
        {"alertname": "RingproxyUnknownOutcomes", "job": "t", **orders},
        {"alertname": "RingproxyNotRouted", "job": "v", **orders, "reason": "dead_letter"},
        {"alertname": "RingproxyFleetDisagrees", **orders},
        {"alertname": "RingproxyFleetDisagrees", **orders, "exchange": "other"},
    ]
    expected = [
        alerts[0],
        {"alertname": "RingproxyJournalLoses", **here},
        {"alertname": "RingproxyPublishesFail", **elsewhere, **orders},
        {"alertname": "RingproxyBrokerBlocked", "job": "t"},
        {"alertname": "RingproxyNotRouted", "job": "v", **orders, "reason": "dead_letter"},
        {"alertname": "RingproxyFleetDisagrees", **orders, "exchange": "other"},
    ]
    with alertmanager(tmp_path) as ask:
        ask("POST", "/api/v2/alerts", [{"labels": labels} for labels in alerts])
        # It works out later what an alert silences, on a busy machine some seconds.
        deadline = time.monotonic() + 30
        while sorted(active := active_of(ask, len(alerts)), key=str) != sorted(expected, key=str):
            assert time.monotonic() < deadline, active
            time.sleep(0.2)


def active_of(ask: Callable[..., Any], count: int) -> list[Any]:
    """Return the labels of the alerts that nothing silences; there must be so many in all."""
    told = ask("GET", "/api/v2/alerts")
    assert len(told) == count
    return [alert["labels"] for alert in told if alert["status"]["state"] == "active"]


@contextmanager
def alertmanager(folder: Path) -> Iterator[Callable[..., Any]]:
    """An Alertmanager with the example's configuration; what it gives asks its API and returns the JSON."""
    program = ensure_package("prometheus-alertmanager", "prometheus-alertmanager")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(program),
        f"--config.file={ALERTMANAGER}",
        f"--storage.path={folder}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--cluster.listen-address="], stdout=log, stderr=log)

    def ask(method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(address, timeout=30)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, content
        return json.loads(content or "null")

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(ask("GET", "/api/v2/status"))
        except ConnectionError:
            return False

    try:
        wait_until("Alertmanager answers", answers)
        yield ask
    finally:
        process.kill()
        process.wait()


def test_the_rules_look_at_metrics_that_exist() -> None:
    pages = "".join((ROOT / f"docs/reference/{page}.md").read_text() for page in ("metrics", "topology", "pipeline"))
    documented = set(re.findall(r"^\| `(ringproxy_\w+)`", pages, flags=re.M))
    named_in_rules = set(re.findall(r"\bringproxy_\w+", " ".join(rule["expr"] for rule in GROUP["rules"])))
    assert named_in_rules <= documented
