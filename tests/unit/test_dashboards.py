"""The Grafana dashboards: their files are those that the generator makes, and their links, thresholds and sums hold."""

import json
import re
import subprocess
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.dashboards.__main__ import FOLDER, texts
from tests.integration.node_packages import node_modules

ROOT = Path(__file__).parents[2]
TEXTS = texts()
DASHBOARDS: dict[str, dict[str, Any]] = {Path(name).stem: json.loads(text) for name, text in TEXTS.items()}
PANELS: dict[str, dict[str, Any]] = {
    f"{name}: {panel['title']}": panel
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
}
each_panel = pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)

ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
WITHOUT_A_PANEL = {
    "RingproxyAllPublishesFail",
    "RingproxyPipelineFails",
    "RingproxyPipelineFindings",
    "RingproxyTopologyNotApplied",
}
"""Alerts that only the table of those that fire shows: one has a rule of its own, the others are not of sidecars."""

OF_THE_WHOLE_GROUP = "shards_moving|shards_paused|exact|prefetches|oldest_unacked_seconds|oldest_retried_seconds"
"""Metrics of groups that are the same at each sidecar, or ages: their sum over sidecars means nothing."""

OF_THE_WHOLE_FLEET = (
    "ring_routed|ring_destinations|ring_age_seconds|ring_changes_total|ring_moved_ratio_total|exchange_publish_in_total"
    "|ignored_bindings|duplicate_bindings|dead_letter_destinations|queues_without_copies|named_exchange_absent"
)
"""Metrics of exchanges, of which each sidecar tells the same."""


def alert_of(panel: dict[str, Any]) -> str:
    """Return the alert whose section a panel links to; none for a panel without."""
    return str(panel["links"][0]["title"].partition(":")[0]) if panel.get("links") else ""


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def addresses(found: object) -> Iterator[str]:
    """Yield each link that stands anywhere in a dashboard."""
    if isinstance(found, dict):
        if isinstance(found.get("url"), str):
            yield found["url"]
        for each in found.values():
            yield from addresses(each)
    elif isinstance(found, list):
        for each in found:
            yield from addresses(each)


def test_the_files_are_those_that_the_generator_makes() -> None:
    committed = {file.name: file.read_text() for file in FOLDER.glob("*")}
    assert committed == TEXTS, "run `make dashboards`"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_names_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles) > 10
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARDS[name]["panels"]}) == len(DASHBOARDS[name]["panels"])


@each_panel
def test_a_panel_says_what_it_shows_and_why_it_is_empty(panel: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.\n]\.", panel["description"])
    assert re.fullmatch(r"[a-z][^\n]*[^.\n]", panel["fieldConfig"]["defaults"]["noValue"])
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@each_panel
def test_a_panel_has_the_threshold_of_its_alert(panel: dict[str, Any]) -> None:
    """A tile of 1 counts whatever the alert is about, and is checked by what it counts."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    limits = [step["value"] for step in steps if step["value"] is not None]
    if not (alert := alert_of(panel)) or not limits:
        return
    (limit,) = limits
    expression = ALERTS[alert]["expr"]
    products = re.findall(r"[<>] (\d[\d.]*(?: \* \d+)*)", expression)
    known = {prod(map(float, product.split(" * "))) for product in products}
    shares = {1 / float(share) for share in re.findall(r"/ (\d+)", expression)}
    # A threshold colours from its value on, and an alert fires above it: of whole numbers, the next.
    assert limit in known | shares or limit - 1 in known or limit == 1, (limit, expression)
    severity = {"critical": "red", "warning": "orange"}[ALERTS[alert]["labels"]["severity"]]
    assert severity in [step["color"] for step in steps]


def test_each_alert_has_a_panel() -> None:
    assert {alert_of(panel) for panel in PANELS.values()} - {""} == ALERTS.keys() - WITHOUT_A_PANEL


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_lead_somewhere(name: str) -> None:
    found = [url for url in addresses(DASHBOARDS[name]) if url]
    assert found
    pages = {dashboard["uid"]: dashboard for dashboard in DASHBOARDS.values()}
    for url in found:
        if url.startswith("/d/"):
            uid, _, query = url.removeprefix("/d/").partition("?")
            variables = {each["name"] for each in pages[uid]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", query)) <= variables, url
            own = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
            assert set(re.findall(r"\$\{(\w+):queryparam\}", query)) <= variables & own, url
        else:
            document, anchor = url.removeprefix("${repository}/").split("#")
            headings = re.findall(r"^## (.+)$", (ROOT / document).read_text(), flags=re.M)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], url


@each_panel
def test_what_the_whole_fleet_shares_is_not_added_up(panel: dict[str, Any]) -> None:
    for expression in expressions(panel):
        shared = rf"ringproxy_(?:group_(?:{OF_THE_WHOLE_GROUP})|{OF_THE_WHOLE_FLEET})\b"
        assert not re.search(rf"sum(?: by \([^)]*\))? ?\((?:rate\(|increase\()?{shared}", expression), expression
        # While a shard moves, two sidecars may tell of it.
        for found in re.finditer(r"ringproxy_group_shard_\w+", expression):
            assert re.search(r"max by \((?:vhost, exchange, )?shard\) \($", expression[: found.start()]), expression


def test_the_queries_look_at_metrics_that_exist() -> None:
    documented = set(re.findall(r"^\| `(ringproxy_\w+)`", (ROOT / "docs/reference/metrics.md").read_text(), flags=re.M))
    for text in TEXTS.values():
        named = set(re.findall(r"\bringproxy_\w+", text))
        assert {re.sub(r"_bucket$", "", metric) for metric in named} <= documented


def test_the_dashboards_are_of_the_model_that_grafana_publishes(tmp_path: Path) -> None:
    """The types of a newer Grafana than the generator is for: of the dashboard, and of the options of each panel."""
    types = "./node_modules/@grafana/schema/dist/types/raw"
    kinds = sorted({panel["type"] for panel in PANELS.values()})
    program = [
        f"import type {{ Dashboard }} from '{types}/dashboard/x/types.gen';",
        *(f"import type * as {kind} from '{types}/composable/{kind}/panelcfg/x/types.gen';" for kind in kinds),
        "type Plain<T> = T extends string ? (string extends T ? string : `${T}`)"
        " : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;",
    ]
    for panel in PANELS.values():
        if options := panel.get("options"):
            program.append(f"({json.dumps(options)}) satisfies Plain<{panel['type']}.Options>;")
        if custom := panel["fieldConfig"]["defaults"].get("custom"):
            program.append(f"({json.dumps(custom)}) satisfies Plain<Partial<{panel['type']}.FieldConfig>>;")
    for dashboard in map(json.loads, TEXTS.values()):
        # The library writes fields of a variable of intervals into each; Grafana reads an annotation's query here, too.
        for variable in dashboard["templating"]["list"]:
            for field in "auto", "auto_min", "auto_count":
                variable.pop(field, None)
        for annotation in dashboard["annotations"]["list"]:
            assert annotation.pop("expr")
            assert annotation.pop("titleFormat")
        program.append(f"({json.dumps(dashboard)}) satisfies Plain<Dashboard>;")
    (tmp_path / "dashboards.ts").write_text("\n".join(program))
    (tmp_path / "node_modules").symlink_to(node_modules())
    command = ["node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck"]
    options = ["--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022", "dashboards.ts"]
    run = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[:3000]
