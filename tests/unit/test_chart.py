"""The Helm chart, and the kustomize component: as helm and kubectl render them, against schemas of three Kubernetes."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import textwrap
import tomllib
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml

from proxy.cli import parser
from proxy.process import memory
from proxy.settings.config import Settings
from proxy.settings.sources import load_settings
from proxy.shards.document import load
from tests.unit.manifests import (
    CHART,
    COMPONENT,
    ROOT,
    VERSIONS,
    Manifest,
    check,
    check_operators,
    documents,
    example,
    one,
    output,
    run,
)

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

OF_THE_CONTAINER = {"admin_listen", "ring_cache_dir"}
"""Settings that belong to the sidecar's container, with its probes and its mounts, and to no file."""


def schema_of(annotation: Any, positive: bool) -> dict[str, Any]:
    """The JSON schema of one setting, as a value that TOML has for its type."""
    if get_origin(annotation) is types.UnionType:
        (annotation,) = (each for each in get_args(annotation) if each is not types.NoneType)
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    if get_origin(annotation) is tuple:
        return {"type": "array", "items": schema_of(get_args(annotation)[0], False)}
    plain: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "minimum": 1},
        float: {"type": "number", "exclusiveMinimum" if positive else "minimum": 0},
    }
    return plain.get(annotation, {"type": "string"})


def schema_of_settings() -> dict[str, Any]:
    hints = get_type_hints(Settings)
    properties = {
        field.name.rstrip("_"): schema_of(hints[field.name], field.metadata["positive"])
        for field in dataclasses.fields(Settings)
        if field.name not in OF_THE_CONTAINER
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def test_the_schema_of_the_values_has_every_setting_with_its_type() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["$defs"]["settings"] == schema_of_settings()


VALUES: dict[str, Any] = {
    "settings": {
        "broker_url": "amqp://orders@rabbitmq.messaging.svc:5672/shop",
        "management_url": ["http://orders-reader@rabbitmq.messaging.svc:15672"],
        "route": ["orders", "events.*", "%2F/audit"],
        "groups": ["shop/orders"],
        "groups_in_series": ["shop/orders"],
        "groups_retry_limit": 5,
        "groups_retry_delay": 0.5,
        "groups_dead_letter": "orders.dead",
        "groups_operators": ["anna"],
        "max_in_flight_bytes": 67108864,
        "tokens_file": "/etc/ringproxy/secrets/tokens.toml",
    },
    "secrets": {"broker-password": "one", "management-password": "two", "tokens.toml": "tokens = []"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "otherPorts": "closed", "adminFrom": ["monitoring", "keda"]},
    "prometheusRule": {"enabled": True, "repository": "https://git.example.com/ringproxy/"},
    "podDisruptionBudgets": {
        "billing": {"matchLabels": {"app.kubernetes.io/name": "billing"}, "maxUnavailable": 1},
        "audit": {"matchLabels": {"app.kubernetes.io/name": "audit"}, "maxUnavailable": "25%"},
    },
    "topology": {
        "kind": "Deployment",
        "file": '[[exchange]]\nname = "orders"\nvhost = "shop"\nshards_per_node = 2\n',
        "settings": {
            "broker_url": "amqp://topology@rabbitmq.messaging.svc:5672/shop",
            "management_url": ["http://topology@rabbitmq.messaging.svc:15672"],
        },
        "secrets": {"password": "three"},
    },
}
"""All that the chart can make."""


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The values with others that win over them, at every depth."""
    both = {key: merged(values[key], more[key]) for key in values.keys() & more.keys() if isinstance(more[key], dict)}
    return values | more | both


@pytest.fixture
def values(tmp_path: Path) -> Path:
    return tmp_path / "values.yaml"


def template(values: Path, given: dict[str, Any], *arguments: str) -> list[Manifest]:
    values.write_text(yaml.safe_dump(given))
    return documents(output("helm", "template", "ringproxy", CHART, "--values", values, *arguments))


def notes(values: Path, given: dict[str, Any]) -> str:
    values.write_text(yaml.safe_dump(given))
    shown = output("helm", "install", "ringproxy", CHART, "--values", values, "--dry-run=client")
    return shown.split("\nNOTES:\n", 1)[1]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def loaded(config: Manifest, container: dict[str, Any], folder: Path) -> Settings:
    """The settings of a ConfigMap's file and a container, with the passwords that stand in the mounted files."""
    file = folder / "ringproxy.toml"
    file.write_text(config["data"][file.name])
    return load_settings(file, environment_of(container), {}, secrets=False)


def test_helm_has_nothing_to_say_about_the_chart() -> None:
    assert "[WARNING]" not in output("helm", "lint", "--strict", CHART)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "Job"])
@pytest.mark.parametrize("ports", ["open", "closed"])
def test_all_that_the_chart_makes_is_valid(kind: str, ports: str, version: str, values: Path) -> None:
    """All but the Prometheus operator's kinds, which do not depend on the version of Kubernetes."""
    given = merged(VALUES, {"topology": {"kind": kind}, "networkPolicy": {"otherPorts": ports}})
    made = template(values, given, "--kube-version", version)
    kinds = sorted(each["kind"] for each in made)
    assert kinds == sorted(
        [
            *["ConfigMap", "ConfigMap", "Secret", "Secret", "NetworkPolicy", kind],
            *["PodDisruptionBudget", "PodDisruptionBudget", "PodMonitor", "PrometheusRule"],
        ]
    )
    for manifest in made:
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            check(manifest, version)


def test_what_is_for_the_prometheus_operator_is_valid(values: Path) -> None:
    made = [each for each in template(values, VALUES) if each["apiVersion"].startswith("monitoring.coreos.com/")]
    assert sorted(each["kind"] for each in made) == ["PodMonitor", "PrometheusRule"]
    assert check_operators(made) == []
    one(made, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] = 15681
    assert check_operators(made) == ["PodMonitor: data/spec/podMetricsEndpoints/0/port must be string"]


def test_a_kubernetes_without_native_sidecars_is_refused(values: Path) -> None:
    values.write_text(yaml.safe_dump(VALUES))
    done = run("helm", "template", "ringproxy", CHART, "--values", values, "--kube-version", "1.28")
    assert "chart requires kubeVersion: >=1.29.0-0" in done.stderr


def test_a_packaged_chart_has_the_files_that_are_links_here(values: Path, tmp_path: Path) -> None:
    output("helm", "package", CHART, "--destination", tmp_path)
    values.write_text(yaml.safe_dump(VALUES))
    packaged = output("helm", "template", "ringproxy", tmp_path / f"ringproxy-{VERSION}.tgz", "--values", values)
    assert documents(packaged) == template(values, VALUES)


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_settings_come_to_the_sidecar_as_they_were_given(values: Path, tmp_path: Path) -> None:
    settings = loaded(one(template(values, VALUES), "ConfigMap", "ringproxy"), {"env": []}, tmp_path)
    assert settings.route == ("orders", "events.*", "%2F/audit")
    assert settings.groups_retry_delay == 0.5
    assert settings.max_in_flight_bytes == 67_108_864
    assert str(settings.management_url[0]) == VALUES["settings"]["management_url"][0]


def test_without_any_limit_given_a_sidecar_fits_the_memory_of_its_container(values: Path, tmp_path: Path) -> None:
    settings = loaded(one(template(values, VALUES), "ConfigMap", "ringproxy"), {"env": []}, tmp_path)
    (container,) = one(example(), "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert container["resources"]["limits"]["memory"] == "256Mi"
    assert sum(size for _, size in memory.reckoned(settings)) < 256 * memory.MIB


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"settings": {"max_sesions": 3}}, "at '/settings': additional properties 'max_sesions' not allowed"),
        ({"settings": {"max_sessions": "many"}}, "at '/settings/max_sessions': got string, want integer"),
        ({"settings": {"max_sessions": 1.5}}, "at '/settings/max_sessions': got number, want integer"),
        ({"settings": {"route": "orders"}}, "at '/settings/route': got string, want array"),
        ({"settings": {"on_stale": "wait"}}, "at '/settings/on_stale': value must be one of 'serve', 'refuse'"),
        ({"settings": {"admin_listen": "0.0.0.0:1"}}, "additional properties 'admin_listen' not allowed"),
        ({"podMonitor": {"enabled": "yes"}}, "at '/podMonitor/enabled': got string, want boolean"),
        ({"secrets": {"broker-password": 1234}}, "at '/secrets/broker-password': got number, want string"),
        ({"podMonitors": {}}, "additional properties 'podMonitors' not allowed"),
        ({"topology": {"kind": "CronJob"}}, "at '/topology/kind': value must be one of '', 'Job', 'Deployment'"),
        ({"sidecar": {"env": {"RINGPROXY_MAX_SESSIONS": 5}}}, "RINGPROXY_MAX_SESSIONS': got number, want string"),
        ({"networkPolicy": {"adminFrom": []}}, "at '/networkPolicy/adminFrom': minItems: got 0, want 1"),
        (
            {"podDisruptionBudgets": {"all": {"matchLabels": {}, "maxUnavailable": 1}}},
            "at '/podDisruptionBudgets/all/matchLabels': minProperties: got 0, want 1",
        ),
        ({"networkPolicy": {"otherPorts": ""}}, "networkPolicy.otherPorts: choose closed, and other policies open"),
        ({"settings": {"broker_url": ""}}, "settings.broker_url: is needed, as in amqp://USER@HOST:5672/VHOST"),
        (
            {"settings": {"broker_url": "amqp://a:SECRET@b"}},
            "settings.broker_url: has a password, and a ConfigMap is no",
        ),
        ({"settings": {"management_url": ["http://a:SECRET@b"]}}, "settings.management_url: has a password"),
        ({"settings": {"ca_file": "/etc/ringproxy/secrets/ca.crt"}}, "secrets: has no ca.crt, which settings.ca_file"),
        ({"existingSecret": "of-mine"}, "secrets: the chart makes no Secret where existingSecret names one"),
        ({"topology": {"file": ""}}, "topology.file: is empty; give the topology file's text"),
        (
            {"topology": {"secrets": {"pass": "x"}, "settings": {"broker_password_file": "/etc/ringproxy/secrets/p"}}},
            "topology.secrets: has no p, which topology.settings.broker_password_file names",
        ),
    ],
)
def test_a_mistake_in_the_values_is_refused_by_its_name(more: dict[str, Any], words: str, values: Path) -> None:
    values.write_text(yaml.safe_dump(merged(VALUES, more)))
    done = run("helm", "template", "ringproxy", CHART, "--values", values)
    assert done.returncode == 1
    assert words in done.stderr
    assert "SECRET" not in done.stderr


def test_what_exists_already_is_not_made(values: Path) -> None:
    assert template(values, {"existingConfigMap": "ringproxy", "existingSecret": "ringproxy"}) == []


def test_the_policy_lets_only_the_named_namespaces_reach_the_admin_port(values: Path) -> None:
    closed, opened = (
        one(template(values, merged(VALUES, {"networkPolicy": {"otherPorts": ports}})), "NetworkPolicy")["spec"]
        for ports in ("closed", "open")
    )
    labels = one(example(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert closed["podSelector"] == opened["podSelector"]
    (chosen,) = closed["podSelector"]["matchExpressions"]
    assert chosen["operator"] == "Exists"
    assert chosen["key"] in labels
    assert closed["policyTypes"] == opened["policyTypes"] == ["Ingress"]
    (rule,) = closed["ingress"]
    port = loaded_port()
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    (source,) = rule["from"]
    assert source["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring", "keda"]}
    ]
    same, others = opened["ingress"]
    assert same == rule
    assert others.keys() == {"ports"}
    for protocol, missing in (("TCP", {port}), ("UDP", set()), ("SCTP", set())):
        ranges = [range(p["port"], p["endPort"] + 1) for p in others["ports"] if p["protocol"] == protocol]
        assert set(range(1, 65536)) - {port for each in ranges for port in each} == missing


def loaded_port() -> int:
    """The admin port of the component's sidecar."""
    (container,) = one(example(), "Deployment")["spec"]["template"]["spec"]["initContainers"]
    return int(environment_of(container)["RINGPROXY_ADMIN_LISTEN"].rpartition(":")[2])


def test_the_monitor_scrapes_both_kinds_of_pods(values: Path) -> None:
    made = template(values, VALUES)
    monitor = one(made, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"] == one(made, "NetworkPolicy")["spec"]["podSelector"]
    deployments = [one(example(), "Deployment"), one(made, "Deployment")]
    ports = []
    for template_ in (each["spec"]["template"] for each in deployments):
        assert "ringproxy" in template_["metadata"]["labels"]
        (container,) = template_["spec"].get("initContainers", template_["spec"]["containers"])
        ports += [port["name"] for port in container["ports"]]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ports
    assert {each["path"] for each in monitor["spec"]["podMetricsEndpoints"]} == {"/metrics"}


def test_the_rule_is_the_file_of_alerts_with_links_that_can_be_opened(values: Path) -> None:
    """promtool looks at the file itself."""
    alerts = (ROOT / "deploy/alerts.yaml").read_text()
    linked = alerts.replace("runbook_url: ", "runbook_url: https://git.example.com/ringproxy/")
    assert linked != alerts
    assert one(template(values, VALUES), "PrometheusRule")["spec"] == yaml.safe_load(linked)
    bare = template(values, merged(VALUES, {"prometheusRule": {"repository": ""}}))
    assert one(bare, "PrometheusRule")["spec"] == yaml.safe_load(alerts)


def test_no_password_is_outside_the_secrets(values: Path) -> None:
    passwords = {**VALUES["secrets"], **VALUES["topology"]["secrets"]}
    made = template(values, VALUES)
    assert one(made, "Secret", "ringproxy")["stringData"] == VALUES["secrets"]
    assert one(made, "Secret", "ringproxy-topology")["stringData"] == VALUES["topology"]["secrets"]
    others = [each for each in made if each["kind"] != "Secret"]
    assert not any(
        re.search(rf"\b{re.escape(word)}\b", yaml.safe_dump(each["data"]))
        for word in passwords.values()
        for each in others
        if each["kind"] == "ConfigMap"
    )


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_topology_runs_in_one_confined_pod_with_a_command_a_file_and_settings_that_it_knows(
    kind: str, values: Path, tmp_path: Path
) -> None:
    made = template(values, merged(VALUES, {"topology": {"kind": kind}}))
    workload, config = one(made, kind), one(made, "ConfigMap", "ringproxy-topology")
    spec = workload["spec"]["template"]["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = spec["containers"]
    assert container["image"] == f"ringproxy:{VERSION}"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"].keys() == {"memory"}

    options = parser().parse_args(container["args"])
    watches = kind == "Deployment"
    assert options.watch == watches
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert options.file.parent == mounts["config"]
    file = tmp_path / options.file.name
    file.write_text(config["data"][file.name])
    (exchange,) = load(file)
    assert exchange.per_node == 2

    settings = loaded(config, container, tmp_path)
    assert settings.default_vhost == exchange.vhost
    assert settings.broker_password_file == mounts["secrets"] / "password" == settings.management_password_file
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["secrets"]["secret"]["secretName"] == volumes["config"]["configMap"]["name"] == "ringproxy-topology"
    if watches:
        assert workload["spec"]["replicas"] == 1
        selector = workload["spec"]["selector"]["matchLabels"]
        assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert ports[container[probe]["httpGet"]["port"]] == settings.admin_listen.port


def test_a_job_that_differs_has_another_name(values: Path) -> None:
    """Kubernetes refuses to change a Job's pod. A new password is in the Secret only."""

    def job(**more: Any) -> Manifest:
        return one(template(values, merged(VALUES, {"topology": {"kind": "Job"} | more})), "Job")

    jobs = [
        job(),
        job(secrets={"password": "four"}),
        job(file='[[exchange]]\nname = "audit"\n'),
        job(resources={"limits": {"memory": "1Gi"}}),
    ]
    first, renewed, *others = (each["metadata"].pop("name") for each in jobs)
    assert first == renewed
    assert jobs[0] == jobs[1]
    assert len({first, *others}) == 3
    assert re.fullmatch(r"ringproxy-topology-[0-9a-f]{8}", first)


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_names_for_the_longest_name_of_a_release_fit_a_label(kind: str, values: Path) -> None:
    values.write_text(yaml.safe_dump(merged(VALUES, {"topology": {"kind": kind}})))
    release = "r" * 44 + "-" + "s" * 8
    made = documents(output("helm", "template", release, CHART, "--values", values))
    names = {each["metadata"]["name"] for each in made}
    assert max(map(len, names)) <= 63
    name = one(made, kind)["metadata"]["name"]
    assert re.fullmatch("r{44}-topology" + "-[0-9a-f]{8}" * (kind == "Job"), name)
    for each in (each for each in made if not each["apiVersion"].startswith("monitoring.coreos.com/")):
        check(each, VERSIONS[-1])


def test_the_notes_print_the_rights_that_each_user_needs(values: Path) -> None:
    said = notes(values, VALUES)
    commands = re.findall(r"^  (rabbitmqctl .*|ring-proxy .*)$", said, re.MULTILINE)
    shop, root = "rabbitmqctl set_permissions -p shop", "rabbitmqctl set_permissions -p /"
    publish = r"amq\.default|orders|orders\.lane\..*|events\..*|events\..*\.lane\..*"
    assert commands == [
        "rabbitmqctl set_user_tags orders-reader management",
        rf"{shop} orders '^orders\.group(\..*)?$' '^({publish}|orders\.group(\..*)?|orders\.dead)$'"
        r" '^orders\.group(\..*)?$'",
        f"{shop} orders-reader '^$' '^$' '^$'",
        f"{shop} PUBLISHER '^$' '^({publish})$' '^$'",
        rf"{shop} CONSUMER '^$' '^$' '^orders(\.[0-9]+)?$'",
        rf"{shop} anna '^$' '^orders\.group\.(operators|pauses)$' '^$'",
        rf"{root} orders '^$' '^({publish}|audit|audit\.lane\..*)$' '^$'",
        f"{root} orders-reader '^$' '^$' '^$'",
        rf"{root} PUBLISHER '^$' '^({publish}|audit|audit\.lane\..*)$' '^$'",
        "ring-proxy topology plan topology.toml",
    ]
    assert "settings.route is *" not in said


def test_names_in_the_notes_are_those_behind_the_encoding_of_urls_and_fit_a_shell(values: Path) -> None:
    settings = {
        "broker_url": "amqp://o%27brien@rabbit/a%20b",
        "management_url": ["http://r%2Fo@rabbit:15672"],
        "route": ["c%2Fd", "e.?"],
    }
    said = notes(values, {"settings": settings, "secrets": VALUES["secrets"]})
    writer, reader, publisher = (shlex.split(each)[2:] for each in re.findall("rabbitmqctl set_perm.*", said))
    write = r"^(amq\.default|c/d|c/d\.lane\..*|e\..|e\..\.lane\..*)$"
    assert writer == ["-p", "a b", "o'brien", "^$", write, "^$"]
    assert reader == ["-p", "a b", "r/o", "^$", "^$", "^$"]
    assert publisher == ["-p", "a b", "PUBLISHER", "^$", write, "^$"]


@pytest.mark.parametrize("wild", ["*/x*", "sh?p/x*"])
def test_a_pattern_of_many_virtual_hosts_counts_in_those_that_the_notes_name(wild: str, values: Path) -> None:
    settings = {"route": ["orders", "%2F/audit"], "groups": ["shop/orders", wild]}
    said = notes(values, {"settings": VALUES["settings"] | settings, "secrets": VALUES["secrets"]})
    rights = [shlex.split(each)[3:] for each in re.findall("rabbitmqctl set_permissions.*", said)]
    assert {vhost for vhost, *_ in rights} == {"shop", "/"}
    configure = {vhost: right for vhost, user, right, *_ in rights if user == "orders"}
    assert configure == {"shop": r"^(orders\.group(\..*)?|x.*\.group(\..*)?)$", "/": r"^x.*\.group(\..*)?$"}
    assert f"for each other virtual host, too, that a pattern matches: {wild}.\n" in said
    assert "each other virtual host" not in notes(values, VALUES)


def test_if_every_pattern_has_a_wildcard_for_its_virtual_host_the_notes_name_the_one_of_the_url(values: Path) -> None:
    settings = {"route": ["*/orders"], "groups": []}
    said = notes(values, {"settings": VALUES["settings"] | settings, "secrets": VALUES["secrets"]})
    publisher = r"PUBLISHER '^$' '^(amq\.default|orders|orders\.lane\..*)$' '^$'"
    assert re.findall("set_permissions -p (.* PUBLISHER .*)", said) == [f"shop {publisher}"]
    assert "that a pattern matches: */orders.\n" in said


@pytest.mark.parametrize("user", ["", "guest@"])
def test_the_notes_take_no_right_and_no_tag_from_guest(user: str, values: Path) -> None:
    settings = {
        "broker_url": f"amqp://{user}rabbit/shop",
        "management_url": [f"http://{user}rabbit:15672"],
        "groups": ["orders"],
        "groups_operators": ["guest", "anna"],
    }
    said = notes(values, {"settings": settings, "secrets": VALUES["secrets"]})
    assert re.findall("rabbitmqctl set_user_tags (.*)", said) == ["READER management"]
    users = re.findall(r"set_permissions -p shop (\S+)", said)
    assert users == ["WRITER", "READER", "PUBLISHER", "CONSUMER", "anna"]
    assert "Name a user other than guest" in said
    assert "Name a user other than guest" not in notes(values, VALUES)


def test_the_notes_have_one_line_for_a_user_with_several_tasks(values: Path) -> None:
    settings = {"groups_operators": ["orders", "orders-reader", "anna"]}
    said = notes(values, merged(VALUES, {"settings": settings}))
    rights = dict(re.findall(r"set_permissions -p shop (\S+) (.*)", said))
    assert list(rights) == re.findall(r"set_permissions -p shop (\S+)", said)
    assert list(rights) == ["orders", "orders-reader", "PUBLISHER", "CONSUMER", "anna"]
    assert rights["orders-reader"] == rights["anna"] == r"'^$' '^orders\.group\.(operators|pauses)$' '^$'"
    write = shlex.split(rights["orders"])[1]
    assert all(re.search(write, f"orders.group.{name}") for name in ("operators", "pauses"))
    assert "set_permissions -p / orders-reader '^$' '^$' '^$'\n" in said


def test_the_notes_advise_against_rights_on_every_exchange(values: Path) -> None:
    settings = {key: VALUES["settings"][key] for key in ("broker_url", "management_url")}
    said = notes(values, {"settings": settings, "secrets": VALUES["secrets"]})
    assert "settings.route is *" in said
    assert r"PUBLISHER '^$' '^(amq\.default|.*|.*\.lane\..*)$' '^$'" in said


def test_the_notes_of_a_release_of_another_name_say_what_the_component_needs(values: Path) -> None:
    values.write_text(yaml.safe_dump(VALUES))
    shown = output("helm", "install", "shop", CHART, "--values", values, "--dry-run=client")
    assert "name: shop-ringproxy\n" in shown
    assert "name them so, or patch the volumes" in shown
    assert "name them so" not in notes(values, VALUES)


# The component.


WORKLOADS = 200


def workload(number: int) -> Manifest:
    """One of a fleet: every fourth without the label, some StatefulSets, some with lists already."""
    name = f"app-{number:03}"
    labels = {"app": name} | ({"ringproxy": "true"} if number % 4 else {})
    pod: dict[str, Any] = {"containers": [{"name": "app", "image": "registry.example.com/app:1"}]}
    if number % 3 == 0:
        pod["initContainers"] = [{"name": "migrate", "image": "registry.example.com/migrate:1"}]
    if number % 5 == 0:
        pod["volumes"] = [{"name": "scratch", "emptyDir": {}}]
        pod["terminationGracePeriodSeconds"] = 300
    stateful = number % 10 == 9
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet" if stateful else "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        }
        | ({"serviceName": name} if stateful else {}),
    }


def kustomized(folder: Path, **kustomization: Any) -> list[str]:
    """The manifests of a kustomization as text, one by one."""
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return output("kubectl", "kustomize", folder).split("---\n")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The manifests of 200 workloads without and with the component."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(workload(number) for number in range(WORKLOADS)))
    component = os.path.relpath(COMPONENT, folder)
    image = [{"name": "ringproxy", "newName": "registry.example.com/ringproxy", "newTag": "9"}]
    before = kustomized(folder, resources=["fleet.yaml"])
    return before, kustomized(folder, resources=["fleet.yaml"], components=[component], images=image)


def test_of_200_workloads_those_with_the_label_get_the_sidecar_first(fleet: tuple[list[str], list[str]]) -> None:
    before, after = ([yaml.safe_load(each) for each in texts] for texts in fleet)
    assert len(before) == len(after) == WORKLOADS
    labelled = [pair for pair in zip(before, after, strict=True) if "ringproxy" in pair[0]["metadata"]["labels"]]
    assert len(labelled) == 150
    (expected,) = one(example(), "Deployment")["spec"]["template"]["spec"]["initContainers"]
    for was, now in labelled:
        old, new = was["spec"]["template"], now["spec"]["template"]
        sidecar, *others = new["spec"].pop("initContainers")
        assert sidecar == expected | {"image": "registry.example.com/ringproxy:9"}
        assert sidecar["restartPolicy"] == "Always"
        assert others == old["spec"].pop("initContainers", [])
        volumes = new["spec"].pop("volumes")
        assert volumes[3:] == old["spec"].pop("volumes", [])
        assert [volume["name"] for volume in volumes[:3]] == [mount["name"] for mount in sidecar["volumeMounts"]]
        assert new["metadata"]["labels"].pop("ringproxy") == "true"
        assert was == now


def test_workloads_without_the_label_stay_byte_for_byte(fleet: tuple[list[str], list[str]]) -> None:
    before, after = fleet
    others = [pair for pair in zip(before, after, strict=True) if "ringproxy" not in pair[0]]
    assert len(others) == 50
    assert all(was == now for was, now in others)


@pytest.mark.parametrize("version", VERSIONS)
def test_workloads_with_the_sidecar_are_valid(version: str, fleet: tuple[list[str], list[str]]) -> None:
    for text in fleet[1][:20]:
        check(yaml.safe_load(text), version)


def test_a_component_that_is_named_twice_adds_one_sidecar(tmp_path: Path) -> None:
    base, overlay = tmp_path / "base", tmp_path / "overlay"
    component = os.path.relpath(COMPONENT, base)
    base.mkdir()
    (base / "app.yaml").write_text(yaml.safe_dump(workload(1)))
    once = kustomized(base, resources=["app.yaml"], components=[component])
    assert kustomized(overlay, resources=["../base"], components=[component]) == once


def test_a_patch_of_a_team_wins_over_the_component(tmp_path: Path) -> None:
    """Both stand in the same kustomization."""
    (tmp_path / "app.yaml").write_text(yaml.safe_dump(workload(1)))
    env = [{"name": "RINGPROXY_ROUTE", "value": "orders"}]
    own = {"initContainers": [{"name": "ringproxy", "env": env, "resources": {"limits": {"memory": "1Gi"}}}]}
    patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app-001"}}
    (tmp_path / "patch.yaml").write_text(yaml.safe_dump(patch | {"spec": {"template": {"spec": own}}}))
    component = os.path.relpath(COMPONENT, tmp_path)
    (made,) = kustomized(tmp_path, resources=["app.yaml"], components=[component], patches=[{"path": "patch.yaml"}])
    (sidecar,) = yaml.safe_load(made)["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}
    assert environment_of(sidecar)["RINGPROXY_ROUTE"] == "orders"
    assert "RINGPROXY_CONFIG" in environment_of(sidecar)


# The page docs/how-to/deploy.md, and its templates for charts of applications.


@cache
def blocks() -> dict[str, str]:
    """The code blocks of the page that have a title, by it."""
    page = (ROOT / "docs/how-to/deploy.md").read_text()
    found = re.findall(r'^ *```yaml title="(\S+)"\n(.*?)^ *```$', page, re.MULTILINE | re.DOTALL)
    return {title: textwrap.dedent(block) for title, block in found}


def test_the_values_and_the_kustomization_of_the_page_are_taken(tmp_path: Path) -> None:
    (tmp_path / "ringproxy.yaml").write_text(blocks()["ringproxy.yaml"])
    made = documents(output("helm", "template", "ringproxy", CHART, "--values", tmp_path / "ringproxy.yaml"))
    assert [each["kind"] for each in made] == ["ConfigMap", "PodMonitor"]
    shutil.copytree(COMPONENT, tmp_path / "ringproxy/deploy/component")
    (tmp_path / "deployments.yaml").write_text(yaml.safe_dump_all(workload(number) for number in (0, 1)))
    without, added = kustomized(tmp_path, **yaml.safe_load(blocks()["kustomization.yaml"]))
    assert "ringproxy" not in without
    assert f"image: registry.example.com/ringproxy:{VERSION}" in added


DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: orders
spec:
  selector:
    matchLabels:
      ringproxy: "true"
"""
"""The beginning of an application's template."""


@pytest.fixture
def chart_of_an_application(tmp_path: Path) -> Path:
    """The folder of a chart with the page's lines in it."""
    shutil.copytree(CHART, tmp_path / "ringproxy")
    chart = tmp_path / "orders"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: orders\nversion: 1.0.0\n" + blocks()["Chart.yaml"])
    (chart / "values.yaml").write_text(blocks()["values.yaml"])
    own = '      containers:\n        - {name: orders, image: "registry.example.com/orders:1"}\n'
    template_ = textwrap.indent(blocks()["templates/deployment.yaml"], "  ")
    (chart / "templates/deployment.yaml").write_text(
        DEPLOYMENT + template_.replace("      volumes:\n", f"{own}      volumes:\n")
    )
    output("helm", "dependency", "update", chart)
    return chart


def test_a_chart_that_includes_the_templates_has_the_sidecar_of_the_component(chart_of_an_application: Path) -> None:
    (made,) = documents(output("helm", "template", "orders", chart_of_an_application))
    template_ = made["spec"]["template"]
    (sidecar,) = template_["spec"]["initContainers"]
    expected = one(example(), "Deployment")["spec"]["template"]
    (plain,) = expected["spec"]["initContainers"]
    assert environment_of(sidecar) == environment_of(plain) | {"RINGPROXY_ROUTE": "orders"}
    changed = {"env", "image", "imagePullPolicy"}
    assert {key: sidecar[key] for key in sidecar.keys() - changed} == {
        key: plain[key] for key in plain.keys() - changed
    }
    assert sidecar["image"] == f"registry.example.com/ringproxy:{VERSION}"
    assert template_["metadata"]["labels"] == {"ringproxy": "true"}
    config, secrets, rings = template_["spec"]["volumes"]
    assert config == {"name": "ringproxy-config", "configMap": {"name": "ringproxy"}}
    assert secrets == {"name": "ringproxy-secrets", "secret": {"secretName": "ringproxy"}}
    assert rings == expected["spec"]["volumes"][2]
    for version in VERSIONS:
        check(made, version)


def test_what_differs_for_one_chart_is_said_in_its_values(chart_of_an_application: Path, values: Path) -> None:
    more = {"sidecar": {"openshift": True, "resources": {"limits": {"memory": "1Gi"}}}, "ipv6": True}
    values.write_text(yaml.safe_dump({"ringproxy": more}))
    (made,) = documents(output("helm", "template", "orders", chart_of_an_application, "--values", values))
    (sidecar,) = made["spec"]["template"]["spec"]["initContainers"]
    assert "runAsUser" not in sidecar["securityContext"]
    assert sidecar["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}
    assert environment_of(sidecar)["RINGPROXY_ADMIN_LISTEN"] == "[::]:15681"


def test_a_wrong_value_below_another_chart_is_refused_by_its_name(chart_of_an_application: Path, values: Path) -> None:
    values.write_text(yaml.safe_dump({"ringproxy": {"settings": {"max_sessions": "many"}}}))
    done = run("helm", "template", "orders", chart_of_an_application, "--values", values)
    assert done.returncode == 1
    assert "at '/settings/max_sessions': got string, want integer" in done.stderr
