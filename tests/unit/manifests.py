"""The manifests of deploy/, as kubectl and helm render them."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from testbed.kubernetes import kubernetes_tools

ROOT = Path(__file__).parents[2]
CHART, COMPONENT, EXAMPLE = (ROOT / "deploy" / name for name in ("chart", "component", "example"))

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
