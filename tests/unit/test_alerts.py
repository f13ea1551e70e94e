"""The Prometheus alerts: each fires on what it should and on nothing else, and has its section in the runbook."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.debian import ensure_package

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")
(GROUP,) = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: list[dict[str, Any]] = [rule for rule in GROUP["rules"] if "alert" in rule]


def promtool(*arguments: str | Path) -> str:
    """What it says of rules that it finds nothing wrong with."""
    command = [ensure_package("prometheus", "promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def named(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    assert f"SUCCESS: {len(GROUP['rules'])} rules found" in promtool(
        "check", "rules", "--lint=all", "--lint-fatal", RULES
    )


def test_the_alerts_fire_as_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES)


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_every_alert_is_tried_where_it_fires_and_where_it_does_not(alert: dict[str, Any]) -> None:
    cases = [case for group in yaml.safe_load(CASES.read_text())["tests"] for case in group["alert_rule_test"]]
    assert {bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert["alert"]} == {True, False}


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_every_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    annotations = alert["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning")
    document, anchor = annotations["runbook_url"].split("#")
    headings = re.findall(r"^## (.+)$", (ROOT / document).read_text(), flags=re.M)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    assert f"`{alert['alert']}`" in (ROOT / document).read_text()


def test_the_rules_look_at_metrics_that_exist() -> None:
    documented = set(re.findall(r"^\| `(ringproxy_\w+)`", (ROOT / "docs/reference.md").read_text(), flags=re.M))
    named_in_rules = set(re.findall(r"\bringproxy_\w+", " ".join(rule["expr"] for rule in GROUP["rules"])))
    assert named_in_rules <= documented
