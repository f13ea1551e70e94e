"""The Dockerfiles, the packages pinned for them, and the manifests; for the image itself see the integration tests."""

import argparse
import hashlib
import importlib
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp.test_utils import make_mocked_request
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from yarl import URL

from proxy.http.admission.pages import HostNames
from proxy.process import memory
from proxy.session.sockets import BUFFER
from proxy.settings.config import Settings
from proxy.settings.patterns import Patterns
from proxy.settings.sources import ENVIRONMENT_PREFIX, load_settings
from tests.unit.manifests import COMPONENT, VERSIONS, Manifest, check, check_operators, documents, example, one

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MANIFESTS = sorted(file for file in (ROOT / "deploy").glob("*.yaml") if "alert" not in file.name)
DOCUMENTS = [each for file in MANIFESTS for each in documents(file.read_text())]
PROGRAMS = Path(sys.executable).parent


def the(kind: str) -> Manifest:
    return one(DOCUMENTS, kind)


@pytest.fixture
def deployment() -> Manifest:
    """The example's, with the sidecar that the component adds."""
    return one(example(), "Deployment")


@pytest.fixture
def pod(deployment: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (each for each in pod["initContainers"] if each["name"] == "ringproxy")
    return dict(found)


@pytest.fixture
def environment(sidecar: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in sidecar["env"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of settings in the ConfigMap."""
    made = tmp_path / "ringproxy.toml"
    made.write_text(one(example(), "ConfigMap")["data"][made.name])
    return made


@pytest.fixture
def settings(environment: dict[str, str], file: Path, tmp_path: Path) -> Settings:
    """The manifest's settings as the proxy reads them, with files in place of the mounted ones."""
    secret = tmp_path / "secret"
    secret.write_text("from-a-file\n")
    files = {name: str(secret) for name in tomllib.loads(file.read_text()) if name.endswith("_file")}
    return load_settings(file, environment, files)


def output(program: str, *arguments: str) -> str:
    run = subprocess.run([PROGRAMS / program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    return run.stdout


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/spark.Dockerfile"])
def test_hadolint_has_nothing_to_say_about_the_dockerfile(file: str) -> None:
    assert output("hadolint", "--failure-threshold", "style", file) == ""


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, str]:
    """The environment of a command that finds a `docker` which knows the digests of all images but those of `gone`."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    # docker prints the digests of the platforms further down, indented.
    docker.write_text(
        """#!/bin/sh
[ "$*" = "buildx imagetools inspect $4" ] || exit 9
case $4 in gone:*) echo "ERROR: $4: not found" >&2; exit 1;; esac
digest=$(printf %s "$4" | sha256sum | cut -d ' ' -f 1)
printf 'Name:      docker.io/%s\\nDigest:    sha256:%s\\n\\nManifests:\\n  Digest: sha256:0\\n' "$4" "$digest"
"""
    )
    docker.chmod(0o755)
    return {"PATH": f"{docker.parent}:/usr/bin:/bin"}


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/spark.Dockerfile"])
def test_a_release_pins_each_base_image_by_its_digest(file: str, tmp_path: Path, registry: dict[str, str]) -> None:
    before = (ROOT / file).read_text()
    copy = tmp_path / "Dockerfile"
    copy.write_text(before)
    for _ in range(2):  # the second time with digests in it
        run = subprocess.run([ROOT / "deploy/pin-bases", copy], env=registry, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
        found = re.findall(r"^FROM (\S+)@sha256:([0-9a-f]{64})( AS \w+)?$", copy.read_text(), re.MULTILINE)
        assert len(found) == before.count("\nFROM ") >= 2
        assert all(hashlib.sha256(image.encode()).hexdigest() == digest for image, digest, _ in found)
    assert re.sub("@sha256:[0-9a-f]{64}", "", copy.read_text()) == re.sub("@sha256:[0-9a-f]{64}", "", before)


def test_no_base_is_pinned_where_one_has_no_digest(tmp_path: Path, registry: dict[str, str]) -> None:
    copy = tmp_path / "Dockerfile"
    copy.write_text("FROM python:3.13 AS build\nFROM gone:1\n")
    run = subprocess.run([ROOT / "deploy/pin-bases", copy], env=registry, capture_output=True, text=True)
    assert run.returncode == 1
    assert "no digest of gone:1" in run.stderr
    assert copy.read_text() == "FROM python:3.13 AS build\nFROM gone:1\n"


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


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    """All but the operators' own kinds: of SparkApplication no schema is at hand."""
    files = [str(file.relative_to(ROOT)) for file in MANIFESTS]
    said = output("kubernetes-validate", "--strict", "--kubernetes-version", version, *files).splitlines()
    assert said == [
        f"INFO deploy/hpa.yaml passed for resource configmap/adapter-config against version {version}",
        f"INFO deploy/hpa.yaml passed for resource horizontalpodautoscaler/billing against version {version}",
        f"INFO deploy/scaledobject.yaml passed for resource service/orders-ringproxy against version {version}",
        "WARN deploy/scaledobject.yaml Couldn't find schema for kind ScaledObject"
        f" with api version keda.sh/v1alpha1 for kubernetes version {version}",
        f"INFO deploy/spark-application.yaml passed for resource secret/ringproxy-usage against version {version}",
        "WARN deploy/spark-application.yaml Couldn't find schema for kind SparkApplication"
        f" with api version sparkoperator.k8s.io/v1beta2 for kubernetes version {version}",
        "WARN deploy/spark-night.yaml Couldn't find schema for kind ScheduledSparkApplication"
        f" with api version sparkoperator.k8s.io/v1beta2 for kubernetes version {version}",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_example_is_valid(version: str) -> None:
    for manifest in example():
        check(manifest, version)


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


def test_keda_asks_the_sidecars_that_publish_by_a_name_of_theirs(settings: Settings, deployment: Manifest) -> None:
    """The answer itself is tried with a broker, in the integration tests."""
    service, template = the("Service")["spec"], deployment["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["ports"]
    for asked in the("ScaledObject")["spec"]["triggers"]:
        url = URL(asked["metadata"]["url"])
        assert url.port == port["port"] == settings.admin_listen.port
        assert url.host == f"{the('Service')['metadata']['name']}.default.svc"
        HostNames(settings.admin_listen).check(make_mocked_request("GET", url.path, {"Host": url.host}))
        assert Patterns(settings.route).match(*url.path.split("/")[2:])
        assert all(isinstance(value, str) for value in asked["metadata"].values())


def test_what_is_for_keda_is_valid() -> None:
    assert check_operators([the("ScaledObject")]) == []


def test_both_scalers_have_the_same_program_and_limits() -> None:
    keda, hpa = the("ScaledObject")["spec"], the("HorizontalPodAutoscaler")["spec"]
    assert keda["scaleTargetRef"]["name"] == hpa["scaleTargetRef"]["name"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])
    rules = yaml.safe_load(the("ConfigMap")["data"]["config.yaml"])["externalRules"]
    metrics = [metric["external"] for metric in hpa["metrics"]]
    assert {rule["name"]["as"] for rule in rules} == {metric["metric"]["name"] for metric in metrics}
    targets = [trigger["metadata"]["targetValue"] for trigger in keda["triggers"]]
    assert [metric["target"]["averageValue"] for metric in metrics] == targets
    for behavior in (keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"], hpa["behavior"]):
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] > Settings().groups_leave_timeout


def test_every_setting_is_one_the_proxy_knows(environment: dict[str, str], settings: Settings) -> None:
    """The fixture fails at an unknown name or a bad value that has the prefix; here, that all have it."""
    assert [name for name in environment if not name.startswith(ENVIRONMENT_PREFIX)] == []
    assert settings.default_vhost == "shop"


def test_every_setting_of_the_example_is_explained(environment: dict[str, str], file: Path) -> None:
    """A comment stands above it, but for those that only say where the servers, files and passwords are."""
    lines = [*COMPONENT.joinpath("sidecar.yaml").read_text().splitlines(), *file.read_text().splitlines()]
    above = {line.split()[0 if " = " in line else -1]: above.strip() for above, line in pairwise(lines) if line}
    names = [*environment, *tomllib.loads(file.read_text())]
    plain = [name for name in names if not above[name].startswith("# ")]
    assert all(name.lower().endswith(("_url", "_password_file", "_config")) for name in plain)


def test_the_file_and_the_passwords_are_the_mounted_ones(
    pod: dict[str, Any], sidecar: dict[str, Any], environment: dict[str, str], settings: Settings, file: Path
) -> None:
    assert settings.broker_url.password == settings.management_url[0].password == "from-a-file"
    mounts = {mount["name"]: mount for mount in sidecar["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    config, secrets = mounts["ringproxy-config"], mounts["ringproxy-secrets"]
    assert config["readOnly"]
    assert secrets["readOnly"]
    made = one(example(), "ConfigMap")
    assert volumes["ringproxy-config"]["configMap"]["name"] == made["metadata"]["name"]
    assert environment["RINGPROXY_CONFIG"] == f"{config['mountPath']}/{file.name}"
    secret = one(example(), "Secret")
    assert volumes["ringproxy-secrets"]["secret"]["secretName"] == secret["metadata"]["name"] == "ringproxy"
    files = {value for name, value in tomllib.loads(file.read_text()).items() if name.endswith("_file")}
    assert files == {f"{secrets['mountPath']}/{key}" for key in secret["data"]}


def test_rings_are_kept_in_a_folder_of_their_own_that_outlives_the_container(
    pod: dict[str, Any], sidecar: dict[str, Any], settings: Settings
) -> None:
    """The sidecar makes the folder itself, for nobody else: the volume's own is anyone's."""
    (mount,) = (each for each in sidecar["volumeMounts"] if each["name"] == "ringproxy-rings")
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert "emptyDir" in volume
    assert "readOnly" not in mount
    assert settings.ring_cache_dir is not None
    assert settings.ring_cache_dir.parent == Path(mount["mountPath"])


def test_every_container_is_confined(pod: dict[str, Any]) -> None:
    """The sidecar by itself, whatever pod it is added to."""
    own = pod["initContainers"][0]["securityContext"]
    assert pod["securityContext"].items() < own.items()
    for container in [*pod["initContainers"], *pod["containers"]]:
        context = pod["securityContext"] | container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_the_pod_waits_longer_than_the_proxy_drains(pod: dict[str, Any], settings: Settings) -> None:
    assert pod["terminationGracePeriodSeconds"] > settings.drain_time


def test_what_all_may_take_at_once_fits_the_memory_limit(sidecar: dict[str, Any], settings: Settings) -> None:
    """As `ring-proxy config` adds it up, row by row of the table in docs/reference/memory.md."""
    assert sidecar["resources"]["limits"]["memory"] == "256Mi"
    rows = memory.reckoned(settings)
    together = sum(size for _, size in rows)
    assert together < 256 * memory.MIB
    document = (ROOT / "docs/reference/memory.md").read_text().split("The memory limit of 256 MiB")[1]
    table = re.findall(r"^\| (.+?) \| (\d+) MiB \|$", document, re.MULTILINE)
    assert [int(size) for _, size in table] == [round(size / memory.MIB) for size in (*dict(rows).values(), together)]
    assert table[3][0].startswith(f"{settings.max_sessions} AMQP sessions whose peers do not read")
    assert table[4][0].startswith(f"{settings.max_http_connections} HTTP connections")


def test_what_a_session_is_reckoned_at_is_what_it_may_hold() -> None:
    # On each side what waits, and one read more of as much, before the other side is held.
    assert memory.SESSION == 2 * 2 * BUFFER


def test_what_all_channels_of_a_session_take_is_said() -> None:
    document = " ".join((ROOT / "docs/reference/memory.md").read_text().split())
    (channel,) = re.findall(r"An open channel takes ([0-9.]+) KiB at most", document)
    together = 2046 * float(channel) / 1024
    assert f"all 2,046 channels that RabbitMQ offers by default takes {together:.1f} MiB" in document


KUBECTL = """#!/bin/sh
echo "$*" >> log
case "$1 $2" in
  "get pods") echo "orders-1 orders-2 " ;;
  "exec "*) [ ! -e unread ] ;;
  "rollout restart") [ ! -e breaks ] || touch unread ;;
  "rollout status") [ -e waited ] || { touch waited; exit 1; } ;;
esac
"""
"""A stand-in for a cluster's: with the file `breaks` the pods that a rollout makes cannot read their bindings."""


@pytest.mark.parametrize(
    ("files", "status", "told"),
    [
        pytest.param([], 0, ["restart"], id="all pods read their bindings"),
        pytest.param(["unread"], 1, [], id="none before the rollout"),
        pytest.param(["breaks"], 1, ["restart", "pause"], id="none that the rollout makes"),
    ],
)
def test_the_script_holds_a_rollout_back(tmp_path: Path, files: list[str], status: int, told: list[str]) -> None:
    script = (ROOT / "deploy/restart-held").read_text()
    for name, content in (("kubectl", KUBECTL), *((file, "") for file in files)):
        (tmp_path / name).write_text(content)
    (tmp_path / "kubectl").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["bash", "-uc", script.replace("sleep 10", "true")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=False)
    assert done.returncode == status
    commands = re.findall(r"^rollout (restart|pause) deployment/orders$", (tmp_path / "log").read_text(), re.MULTILINE)
    assert commands == told


def test_the_application_publishes_where_the_proxy_listens(pod: dict[str, Any], settings: Settings) -> None:
    (application,) = pod["containers"]
    assert f"http://{settings.http_listen}/v1/exchanges/orders/publish" in application["args"][0]


def test_a_prometheus_that_reads_annotations_finds_the_metrics(deployment: Manifest, settings: Settings) -> None:
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(settings.admin_listen.port),
        "prometheus.io/path": "/metrics",
    }


def test_the_spark_application_runs_a_command_that_the_pipeline_has() -> None:
    spec = the("SparkApplication")["spec"]
    job, *rest = spec["arguments"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    given = parser.parse_args(rest)
    assert given.journal.startswith("s3a://")
    assert given.out.startswith("s3a://")
    assert spec["sparkConf"]["spark.sql.adaptive.enabled"] == "true"


def test_the_spark_application_is_the_image_of_its_dockerfile() -> None:
    dockerfile, spec = (ROOT / "deploy/spark.Dockerfile").read_text(), the("SparkApplication")["spec"]
    assert spec["image"] == f"ringproxy-pipeline:{PROJECT['version']}"
    (packages,) = re.findall(r"SPARK_HOME=(\S+)/pyspark\b", dockerfile)
    assert spec["mainApplicationFile"] == f"local://{packages}/pipeline/__main__.py"
    bases, sidecars = (
        re.findall(r"^FROM python:(\S+?)-(?:slim-)?trixie\b", text, re.MULTILINE)
        for text in (dockerfile, (ROOT / "Dockerfile").read_text())
    )
    assert bases == sidecars
    assert {f"/opt/ringproxy/lib/python{version}/site-packages" for version in bases} == {packages}
    (user,) = re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)
    for part in (spec["driver"], spec["executor"]):
        assert part["securityContext"]["runAsUser"] == int(user)
        assert part["envFrom"] == [{"secretRef": {"name": the("Secret")["metadata"]["name"]}}]


def test_spark_and_hadoop_are_everywhere_of_the_pinned_version() -> None:
    spec = the("SparkApplication")["spec"]
    assert f"pyspark=={spec['sparkVersion']}" in pins("constraints-pipeline.txt")
    assert f"\nFROM apache/spark:{spec['sparkVersion']}-" in (ROOT / "deploy/spark.Dockerfile").read_text()
    jars = Path(importlib.import_module("pyspark").__file__ or "").parent / "jars"
    (hadoop,) = (jar.stem.removeprefix("hadoop-client-api-") for jar in jars.glob("hadoop-client-api-*.jar"))
    assert spec["deps"]["packages"] == [f"org.apache.hadoop:hadoop-aws:{hadoop}"]


def test_what_has_no_wheel_may_be_built_from_its_source() -> None:
    """A pin of one hash has one file; all others have wheels."""
    dockerfile = (ROOT / "deploy/spark.Dockerfile").read_text()
    (install,) = re.findall(r"install (.*(?:\\\n.*)*?-r constraints-pipeline\.txt)$", dockerfile, re.MULTILINE)
    alone = [
        pin.partition("==")[0]
        for pin, hashes in pins("constraints-pipeline.txt").items()
        if hashes.count("--hash") == 1
    ]
    assert "--only-binary :all:" in install
    assert re.findall(r"--no-binary (\S+)", install) == [",".join(alone)]


def test_what_the_dockerfiles_copy_is_sent_to_the_build() -> None:
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    texts = [(ROOT / file).read_text() for file in ("Dockerfile", "deploy/spark.Dockerfile")]
    copied = [re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for text in texts]
    assert {name for lines in copied for line in lines for name in line.split()} == set(sent)
