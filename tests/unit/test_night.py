"""The ways to run the pipeline every night: a systemd timer, an Airflow DAG, and a ScheduledSparkApplication."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.node_packages import kept_folder
from tests.unit.manifests import documents, one
from tests.unit.test_service import analyze

ROOT = Path(__file__).parents[2]
NIGHT = ROOT / "deploy/night"
PROGRAM = "/opt/ringproxy-pipeline/bin/python"
AIRFLOW = "apache-airflow-core==3.3.2", "apache-airflow-providers-standard==1.21.0"


def taken(command: str) -> argparse.Namespace:
    """The options of a command of the job `day`."""
    program, *arguments = shlex.split(command)
    assert (program, arguments[:3]) == (PROGRAM, ["-m", "pipeline", "day"])
    return options(arguments[2:])


def options(arguments: list[str]) -> argparse.Namespace:
    job, *given = arguments
    parser = argparse.ArgumentParser(exit_on_error=False)
    importlib.import_module(f"pipeline.{job}.command").add_arguments(parser)
    return parser.parse_args(given)


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """The units, with a program that this machine has."""
    for name in ("ringproxy-night.service", "ringproxy-night.timer"):
        (tmp_path / name).write_text((NIGHT / name).read_text().replace(PROGRAM, sys.executable))
    return sorted(tmp_path.iterdir())


def test_systemd_has_nothing_to_say_about_the_units(units: list[Path]) -> None:
    done = analyze("verify", *units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_timer_is_one_of_every_night_in_utc() -> None:
    (when,) = re.findall(r"^OnCalendar=(.*)$", (NIGHT / "ringproxy-night.timer").read_text(), re.MULTILINE)
    said = analyze("calendar", "--iterations=2", "--base-time=2026-11-27 12:00:00 UTC", when).stdout
    assert re.findall(r"2026-11-\d\d 01:30:00 UTC", said) == ["2026-11-28 01:30:00 UTC", "2026-11-29 01:30:00 UTC"]


def test_the_service_runs_day_and_a_day_without_records_is_no_failure() -> None:
    unit = (NIGHT / "ringproxy-night.service").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    given = taken(command)
    assert given.textfile.suffix == ".prom"
    assert "\nSuccessExitStatus=3\n" in unit
    # It may write where its options say.
    assert f"\nReadWritePaths={given.textfile.parent}\n" in unit
    assert f"\nStateDirectory={Path(given.out).relative_to('/var/lib')}\n" in unit


def test_the_scheduled_application_differs_from_the_other_in_what_it_runs() -> None:
    (night,) = documents((ROOT / "deploy/spark-night.yaml").read_text())
    single = one(documents((ROOT / "deploy/spark-application.yaml").read_text()), "SparkApplication")
    assert (night["kind"], night["apiVersion"]) == ("ScheduledSparkApplication", single["apiVersion"])
    template, spec = night["spec"]["template"], single["spec"]
    assert {name for name in spec if template[name] != spec[name]} == {"arguments", "restartPolicy"}
    assert template.keys() == spec.keys()
    assert options(template["arguments"]).out == "s3a://messaging/nights"
    assert (night["spec"]["schedule"], night["spec"]["timeZone"]) == ("30 1 * * *", "Etc/UTC")


@pytest.fixture(scope="module")
def airflow() -> dict[str, str]:
    """The environment in which Python has Airflow."""

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *AIRFLOW]
        subprocess.run(command, check=True, timeout=600)

    # Per version of Python, as some packages are compiled.
    name = f"airflow-{'-'.join(AIRFLOW)}-{sys.version_info.major}.{sys.version_info.minor}"
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(kept_folder(name, install))}


@pytest.mark.long
def test_airflow_runs_the_day_before_and_skips_one_without_records(tmp_path: Path, airflow: dict[str, str]) -> None:
    """Airflow itself runs the DAG, with a program that notes its options in place of the pipeline."""
    program, status, noted = (tmp_path / name for name in ("python", "status", "noted"))
    program.write_text(f'#!/bin/sh\necho "$@" >> {noted}\nexit $(cat {status})\n')
    program.chmod(0o755)
    dag = tmp_path / "dags" / "night.py"
    dag.parent.mkdir()
    dag.write_text((NIGHT / "airflow_dag.py").read_text().replace(PROGRAM, str(program)))
    python = Path(sys.base_prefix) / "bin" / "python3"
    home = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[Any] = [python, "-m", "airflow", *arguments]
        return subprocess.run(command, env=airflow | home, capture_output=True, text=True, timeout=180)

    assert run("db", "migrate").returncode == 0
    for its, state in ((0, "success"), (3, "skipped"), (1, "failed"), (2, "failed")):
        status.write_text(str(its))
        done = run("dags", "test", "ringproxy_night", "2026-11-27T01:30:00+00:00", "--dagfile-path", str(dag))
        assert f"new_state={state} " in done.stdout + done.stderr
        assert (done.returncode == 0) == (its in (0, 3))
    (command,) = {*noted.read_text().splitlines()}
    assert f"{taken(f'{PROGRAM} {command}').day:%Y-%m-%d}" == "2026-11-26"
