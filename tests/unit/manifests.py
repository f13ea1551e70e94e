"""The manifests of deploy/, as kubectl and helm render them."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from testbed.debian import ensure_package
from testbed.kubernetes import kubernetes_tools
from tests.integration.node_packages import kept_folder

ROOT = Path(__file__).parents[2]
CHART, COMPONENT, EXAMPLE = (ROOT / "deploy" / name for name in ("chart", "component", "example"))

OPERATORS = Path(__file__).parent / "operators"
"""A script of Node, and the packages that it has the schemas of."""

Manifest = dict[str, Any]

VERSIONS = "1.29", "1.33", "1.37"
"""The first Kubernetes with native sidecars switched on, one between, and the newest whose schemas are at hand."""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm or kubectl, which find no cluster and no configuration."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "HELM_CACHE_HOME": "/nonexistent"}
    command = [str(kubernetes_tools() / program), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def output(program: str, *arguments: str | Path) -> str:
    done = run(program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each]


@cache
def example() -> tuple[Manifest, ...]:
    """The example's manifests; not to be changed."""
    return tuple(documents(output("kubectl", "kustomize", EXAMPLE)))


def one(manifests: list[Manifest] | tuple[Manifest, ...], kind: str, name: str | None = None) -> Manifest:
    """The one of that kind, or of those the one of that name."""
    (found,) = (each for each in manifests if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found


def check(manifest: Manifest, version: str) -> None:
    """Hold a manifest to the schema of a version of Kubernetes, which allows no unknown field."""
    kubernetes_validate.validate(manifest, version, strict=True)


def check_operators(manifests: Iterable[Manifest]) -> list[str]:
    """Hold manifests to the schemas of the Prometheus operator and of KEDA, and return what is wrong."""
    files = sorted(OPERATORS.iterdir())

    def install(folder: Path) -> None:
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"npm could not install what package-lock.json names: {done.stderr[-4000:]}"

    node, _ = (ensure_package(*package) for package in (("nodejs", "node"), ("npm", "npm")))
    contents = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    folder = kept_folder(f"operators-{contents[:16]}", install)
    command = [node, folder / "check.mjs"]
    done = subprocess.run(command, input=json.dumps(list(manifests)), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
