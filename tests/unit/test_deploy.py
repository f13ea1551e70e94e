"""The Dockerfile, the packages pinned for it, and the manifests; for the image itself see the integration tests."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy.config import ENVIRONMENT_PREFIX, Settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MANIFESTS = sorted(file for file in (ROOT / "deploy").iterdir() if file.name != "alerts.yaml")
DOCUMENTS: list[dict[str, Any]] = [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())]
PROGRAMS = Path(sys.executable).parent


def the(kind: str) -> dict[str, Any]:
    (found,) = (document for document in DOCUMENTS if document["kind"] == kind)
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = the("Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (each for each in pod["initContainers"] if each["name"] == "ringproxy")
    return dict(found)


@pytest.fixture
def environment(sidecar: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in sidecar["env"]}


@pytest.fixture
def settings(environment: dict[str, str], tmp_path: Path) -> Settings:
    """The manifest's settings as the proxy reads them, with files in place of the mounted ones."""
    secret = tmp_path / "secret"
    secret.write_text("from-a-file\n")
    files = {name: str(secret) for name in environment if name.endswith("_FILE")}
    return Settings.load(None, environment | files, {})


def output(program: str, *arguments: str) -> str:
    run = subprocess.run([PROGRAMS / program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    return run.stdout


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    assert output("hadolint", "--failure-threshold", "style", "Dockerfile") == ""


def pins(file: str) -> dict[str, str]:
    """The hashes of every `name==version` in a file that `make lock` made."""
    pattern = re.compile(r"^(\S+==\S+)(?: ;.*)?((?: \\\n +--hash=\S+)+)$", re.MULTILINE)
    return dict(pattern.findall((ROOT / file).read_text()))


def test_the_image_gets_the_packages_that_are_tested_and_none_for_development() -> None:
    tested, shipped = pins("constraints.txt"), pins("constraints-runtime.txt")
    assert shipped.items() <= tested.items()
    needed = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert needed <= {pin.partition("==")[0] for pin in shipped}
    assert any(pin.startswith("pytest==") for pin in tested.keys() - shipped.keys())


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("1.29", id="the first with native sidecars switched on"),
        pytest.param("1.37", id="the newest whose schemas are at hand"),
    ],
)
def test_the_manifests_are_valid(version: str) -> None:
    """All but the PodMonitor, which is the Prometheus operator's: no schema of it is at hand."""
    files = [str(file.relative_to(ROOT)) for file in MANIFESTS]
    said = output("kubernetes-validate", "--strict", "--kubernetes-version", version, *files).splitlines()
    assert said == [
        "WARN deploy/podmonitor.yaml Couldn't find schema for kind PodMonitor"
        f" with api version monitoring.coreos.com/v1 for kubernetes version {version}",
        f"INFO deploy/sidecar.yaml passed for resource secret/orders-ringproxy against version {version}",
        f"INFO deploy/sidecar.yaml passed for resource deployment/orders against version {version}",
    ]


def test_the_proxy_is_a_native_sidecar_of_this_version(sidecar: dict[str, Any]) -> None:
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["image"] == f"ringproxy:{PROJECT['version']}"


def test_the_proxy_has_the_probes_that_never_look_at_the_broker_and_no_other(
    sidecar: dict[str, Any], settings: Settings
) -> None:
    assert "readinessProbe" not in sidecar
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    for probe, path in (("startupProbe", "/startupz"), ("livenessProbe", "/livez")):
        request = sidecar[probe]["httpGet"]
        assert request["path"] == path
        assert ports[request["port"]] == settings.admin_listen.port


def test_the_admin_port_is_open_to_the_kubelet_and_the_ingress_to_the_pod_only(settings: Settings) -> None:
    assert settings.admin_listen.host == "0.0.0.0"
    assert settings.http_listen.host == "127.0.0.1"


def test_every_setting_is_one_the_proxy_knows(environment: dict[str, str], settings: Settings) -> None:
    """The fixture fails at an unknown name or a bad value that has the prefix; here, that all have it."""
    assert [name for name in environment if not name.startswith(ENVIRONMENT_PREFIX)] == []
    assert settings.default_vhost == "shop"


def test_every_setting_of_the_manifest_is_explained(environment: dict[str, str]) -> None:
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/deploy.md").read_text(), re.MULTILINE)
    assert explained == list(environment)


def test_the_passwords_are_the_mounted_files_of_the_secret(
    pod: dict[str, Any], sidecar: dict[str, Any], environment: dict[str, str], settings: Settings
) -> None:
    assert settings.broker_url.password == settings.management_url.password == "from-a-file"
    (mount,) = sidecar["volumeMounts"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert mount["readOnly"]
    assert volume["secret"]["secretName"] == the("Secret")["metadata"]["name"]
    files = {value for name, value in environment.items() if name.endswith("_FILE")}
    assert files == {f"{mount['mountPath']}/{key}" for key in the("Secret")["stringData"]}


def test_every_container_is_confined(pod: dict[str, Any]) -> None:
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in [*pod["initContainers"], *pod["containers"]]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_the_pod_waits_longer_than_the_proxy_drains(pod: dict[str, Any], settings: Settings) -> None:
    assert pod["terminationGracePeriodSeconds"] > settings.drain_time


def test_the_application_publishes_where_the_proxy_listens(pod: dict[str, Any], settings: Settings) -> None:
    (application,) = pod["containers"]
    assert f"http://{settings.http_listen}/v1/exchanges/orders/publish" in application["args"][0]


def test_prometheus_finds_the_metrics_either_way(sidecar: dict[str, Any], settings: Settings) -> None:
    template = the("Deployment")["spec"]["template"]["metadata"]
    assert template["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(settings.admin_listen.port),
        "prometheus.io/path": "/metrics",
    }
    monitor = the("PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"].items() <= template["labels"].items()
    assert endpoint == {"port": sidecar["ports"][0]["name"], "path": "/metrics"}
