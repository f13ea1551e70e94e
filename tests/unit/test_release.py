"""The check before a release, and the workflows that call this project's commands."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.release import NotReleasableError, notes_of

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CHANGELOG = """# Changelog

## 1.2.3, 2026-12-01

Nothing to do.

### Routing

- One thing.

## 1.2.2, 2026-11-01

- Another.
"""


def test_the_notes_of_a_release_are_the_newest_section() -> None:
    assert notes_of("v1.2.3", "1.2.3", CHANGELOG) == "Nothing to do.\n\n### Routing\n\n- One thing."


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "why"),
    [
        ("v1.2.4", "1.2.3", CHANGELOG, "the tag is v1.2.4, and the version of pyproject.toml has the tag v1.2.3"),
        ("1.2.3", "1.2.3", CHANGELOG, "the tag is 1.2.3"),
        ("v1.2.4", "1.2.4", CHANGELOG, "is of 1.2.3, not of 1.2.4"),
        ("v1.2.3", "1.2.3", "# Changelog\n", "is of none, not of 1.2.3"),
        ("v1.2.3", "1.2.3", CHANGELOG.replace("2026-12-01", "unreleased"), "has no day (YYYY-MM-DD) but 'unreleased'"),
    ],
)
def test_what_does_not_agree_is_not_released(tag: str, version: str, changelog: str, why: str) -> None:
    with pytest.raises(NotReleasableError, match=re.escape(why)):
        notes_of(tag, version, changelog)


def test_the_changelog_has_a_section_of_the_present_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    unreleased = (ROOT / "CHANGELOG.md").read_text().replace(", unreleased", ", 2026-12-01", 1)
    assert notes_of(f"v{version}", version, unreleased)


def commands(workflow: dict[str, Any]) -> list[str]:
    """Every command of a workflow's jobs, with each value of its matrix."""
    found = []
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        targets = matrix.get("target", [row.get("target", "") for row in matrix.get("include", [])]) or [""]
        runs = [step["run"] for step in job["steps"] if "run" in step]
        found += [run.replace("${{ matrix.target }}", target) for run in runs for target in targets]
    return found


def test_hosted_ci_runs_all_that_the_local_one_does() -> None:
    hosted = commands(yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text()))
    targets = {word for run in hosted if run.startswith("make ") for word in run.split()[1:]}
    local = set(re.findall(r'"make ([a-z-]+)"', (ROOT / ".ci/run").read_text()))
    assert local - {"test"} <= targets  # which is `unit` and `integration`
    assert {"check", "unit", "integration"} <= targets
    known = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets <= set(re.findall(r"^  make (\S+)", known, flags=re.MULTILINE))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_job_of_a_workflow_needs_jobs_that_are_there_and_may_only_read_by_default(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= set(workflow["jobs"])


def test_a_release_publishes_nothing_before_all_else_is_built() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    steps = {name: {step.get("uses", "").partition("@")[0] for step in job["steps"]} for name, job in jobs.items()}
    built = {name for name, actions in steps.items() if "actions/upload-artifact" in actions}
    assert built == {"wheels", "debian", "chart"}
    publish = {"pypa/gh-action-pypi-publish", "docker/build-push-action"}
    published = {name for name, actions in steps.items() if actions & publish}
    assert published == {"packages", "image"}
    assert all(built <= set(jobs[name]["needs"]) for name in published)
    assert published <= set(jobs["announce"]["needs"])


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("Add a thing\n", 0),
        ("Add a thing\n\nAnd why.\n", 0),
        ("Add a thing\n# a comment of git\n", 0),
        ("A" * 73 + "\n", 1),
        ("\n\nNo subject\n", 1),
        ("Add a thing\nwithout an empty line\n", 1),
    ],
)
def test_the_subject_of_a_commit_is_short(message: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "message").write_text(message)
    command = [ROOT / "testbed/commit-subject", tmp_path / "message"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, bool(done.stderr)) == (status, bool(status))
