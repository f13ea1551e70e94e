"""Jobs on a standalone cluster of two workers, whose Python has none of our packages but what --py-files brings."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import JOBS, main
from testbed.java import ensure_java
from testbed.node import free_ports
from testbed.supervisor import Process, Supervisor
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login
from tests.pipeline.publishing import Came, check_nothing_lost, options_of
from tests.pipeline.records import published, ring_of, write_journal

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
OURS = ("pipeline", "proxy", "ring")
ADAPTIVE = "spark.sql.adaptive.enabled"

RECORDS, HOT, ROWS = 4000, 2000, 400

HELP = """
from pipeline.__main__ import JOBS, main
for job in JOBS:
    try:
        main([job, "--help"])
    except SystemExit as ended:
        print(job, "ended with", ended.code)
"""

# A job as short as this does not repay Java's second compiler.
JAVA = "-XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Cluster:
    """A master, its workers, and what a user would submit with."""

    supervisor: Supervisor
    folder: Path
    environment: Mapping[str, str]
    master: str
    script: Path
    archive: Path

    def submit(self, *arguments: str, master: str | None = None, script: Path | None = None) -> Path:
        """Runs a job, which must succeed; what it said."""
        log = self.folder / "submitted.log"
        log.unlink(missing_ok=True)
        settings = {
            "spark.driver.extraJavaOptions": JAVA,
            "spark.executor.extraJavaOptions": JAVA,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            # No task before both are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self.folder / "events").as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        given += ["--master", master or self.master, "--driver-memory", "512m", "--executor-memory", "512m"]
        given += ["--py-files", str(self.archive), *arguments[: arguments.index("--")], str(script or self.script)]
        command = [str(SPARK / "bin" / "spark-submit"), *given, *arguments[arguments.index("--") + 1 :]]
        ended = self.folder / "status"
        told = ["sh", "-c", '"$@"; echo $? >"$0"', str(ended), *command]
        assert self.supervisor.spawn(told, self.environment, log).wait(500), log.read_text()[-4000:]
        assert ended.read_text() == "0\n", log.read_text()[-8000:]
        return log

    def events(self) -> list[dict[str, Any]]:
        """Spark's own account of the last job."""
        last = max((self.folder / "events").iterdir(), key=lambda file: file.stat().st_mtime)
        return [json.loads(line) for line in last.read_text().splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with a core each; nobody's folder or PYTHONPATH has our packages."""
    ensure_java()
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "events").mkdir()
    clone = cloned(folder / "clone")
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "PYSPARK_PYTHON": str(python_without_ours(folder / "python")),
    }
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    with Supervisor() as supervisor:

        def start(name: str, kind: str, *arguments: str) -> Process:
            command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
            return supervisor.spawn([*command, "--webui-port", "0", *arguments], environment, folder / f"{name}.log")

        wait_for(port, start("master", "master.Master", "--port", str(port)), folder / "master.log")
        for name in ("worker-1", "worker-2"):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name))
            start(name, "worker.Worker", *room, master)
        yield Cluster(supervisor, folder, environment, master, clone / "pipeline/__main__.py", archive_of(clone))


def cloned(folder: Path) -> Path:
    """Copy the package as a clone has it, since building writes there; return the folder."""
    for name in OURS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def archive_of(clone: Path) -> Path:
    """Makes the zip by the commands of docs/how-to/run-on-a-cluster.md; pip takes the build's packages from here."""
    text = (ROOT / "docs/how-to/run-on-a-cluster.md").read_text()
    (commands,) = re.findall(r"^```sh\n(pip wheel .*?)^```", text, re.MULTILINE | re.DOTALL)
    making = commands.partition("spark-submit")[0]
    # pip reads NO_ANYTHING=0 as: without it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PIP_NO_BUILD_ISOLATION": "0"}
    subprocess.run(["sh", "-euc", making], cwd=clone, env=environment, check=True, capture_output=True)
    return clone / "ringproxy.zip"


def python_without_ours(folder: Path) -> Path:
    """A Python with every package that there is here, and none of ours."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "ringproxy" not in package.name:
            (packages / package.name).symlink_to(package)
    look = f"import importlib.util as u; print([n for n in {OURS} if u.find_spec(n)])"
    found = subprocess.run([folder / "bin/python", "-c", look], cwd="/", check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"
    return folder / "bin" / "python"


def wait_for(port: int, process: Process, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert not process.wait(0.1), log.read_text()
            assert time.monotonic() < deadline, log.read_text()


def tasks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["Event"] == "SparkListenerTaskEnd"]


def workers(events: list[dict[str, Any]]) -> set[str]:
    """The executors, of which each worker has one, that ended a task well."""
    assert len([event for event in events if event["Event"] == "SparkListenerExecutorAdded"]) == 2
    return {
        event["Task Info"]["Executor ID"] for event in tasks(events) if event["Task End Reason"]["Reason"] == "Success"
    }


def usage_of(out: Path) -> list[dict[str, Any]]:
    table = pq.read_table(out / "usage").drop(["keys_sketch"])
    return sorted(table.to_pylist(), key=lambda row: (row["window"], row["destination"]))


def test_every_job_is_in_the_wheel(cluster: Cluster, tmp_path: Path) -> None:
    shutil.unpack_archive(cluster.archive, tmp_path)
    environment = {"PATH": cluster.environment["PATH"], "PYTHONPATH": str(tmp_path)}
    command = [cluster.environment["PYSPARK_PYTHON"], "-c", HELP]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if " ended with " in line]
    assert said == [f"{job} ended with 0" for job in JOBS], done.stderr


def test_usage_says_what_it_says_here_and_shuffles_no_record(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    known = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 2})
    keys = [b"customer-%d" % (n % 100) for n in range(RECORDS - HOT)] + [b"whale"] * HOT
    write_journal(tmp_path / "journal", published(known, keys, every=200_000), [known], per_file=500)
    of = ["usage", "--journal", str(tmp_path / "journal"), "--out"]
    said = cluster.submit("--", *of, str(tmp_path / "there")).read_text()
    assert f"{RECORDS:,} records, 0 missing: {tmp_path}/there/report.html" in said
    assert main([*of, str(tmp_path / "here")]) == 0
    rows = usage_of(tmp_path / "there")
    assert sum(row["messages"] for row in rows) == RECORDS
    assert rows == usage_of(tmp_path / "here")
    events = cluster.events()
    assert workers(events) == {"0", "1"}
    metrics = [event["Task Metrics"] for event in tasks(events)]
    scanning = [one for one in metrics if one["Input Metrics"]["Records Read"] >= RECORDS / 4]
    assert sum(one["Input Metrics"]["Records Read"] for one in scanning) == 2 * RECORDS
    assert 0 < max(one["Shuffle Write Metrics"]["Shuffle Records Written"] for one in scanning) < RECORDS / 10


def test_publish_sends_each_row_from_executors_that_have_us_from_the_zip_only(
    cluster: Cluster, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", {"q0": 1, "q1": 2})
    (tmp_path / "rows").mkdir()
    for odd in (0, 1):
        numbers = list(range(odd, ROWS, 2))
        texts = {"key": [f"k{n % 50}" for n in numbers], "body": [str(n) for n in numbers]}
        pq.write_table(pa.table({**texts, "n": numbers}), tmp_path / "rows" / f"{odd}.parquet")
    of = ["publish", "--input", str(tmp_path / "rows"), "--order", "n", "--connections", "2"]
    of += ["--checkpoint", str(tmp_path / "checkpoint"), "--out", str(tmp_path / "out")]
    connection = options_of(login, vhost, "orders")
    cluster.submit("--", *of, *(f"--{name.replace('_', '-')}={value}" for name, value in connection.items()))
    came = vhost.drain_all()
    check_nothing_lost(Came(came), ROWS, 0)
    known = ring_of({"q0": 1, "q1": 2}).ring
    for queue, messages in came.items():
        numbers = [int(message.body) for message in messages]
        assert numbers == sorted(n for n in range(ROWS) if known.owner_of(b"k%d" % (n % 50)).name == queue)
    assert workers(cluster.events()) == {"0", "1"}


def test_adaptive_execution_is_on_unless_who_submits_says_otherwise(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.conf.getAll[ADAPTIVE] == "true"  # Spark's own defaults are not in it.
    script = tmp_path / "script.py"
    script.write_text(
        "from pipeline.session import spark_session\n"
        'with spark_session("asked") as spark:\n'
        f'    print("adaptive:", spark.conf.get("{ADAPTIVE}"))\n'
    )
    said = cluster.submit("--conf", f"{ADAPTIVE}=false", "--", master="local[1]", script=script).read_text()
    assert "adaptive: false\n" in said
