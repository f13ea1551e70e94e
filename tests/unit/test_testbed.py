"""The testbed: which RabbitMQ it chooses, what it installs, and that nothing it starts outlives it."""

import base64
import http.server
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed import SetupError, broker, container, debian, second, suite
from testbed.installation import Installation
from testbed.node import free_ports
from testbed.supervisor import Supervisor
from tests.integration.broker_api import DEADLINE_SECONDS, wait_until
from tests.processes import has_ended, take_interrupts


class Overview(http.server.BaseHTTPRequestHandler):
    """The management API of a broker: version 9.8.7 for the user `guest`, `guest`."""

    body = json.dumps({"rabbitmq_version": "9.8.7"}).encode()

    def do_GET(self) -> None:
        welcome = self.headers["Authorization"] == "Basic " + base64.b64encode(b"guest:guest").decode()
        self.send_response(200 if welcome and self.path == "/api/overview" else 401)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class OtherService(Overview):
    body = b"<html>"


@contextmanager
def serving(handler: type[Overview]) -> Iterator[str]:
    """A broker with that management API, as an AMQP URL; its management URL is in BROKER_MANAGEMENT_URL."""
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server, socket.create_server(("127.0.0.1", 0)) as amqp:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BROKER_MANAGEMENT_URL", f"http://guest:guest@127.0.0.1:{server.server_port}")
            yield f"amqp://guest:guest@127.0.0.1:{amqp.getsockname()[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No Docker engine, no RabbitMQ, not root."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(broker, "MACHINE", Installation(tmp_path, "nothing"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    broker.suites_newest.cache_clear()
    yield
    broker.suites_newest.cache_clear()


def enter(choice: str | None) -> broker.Broker:
    with broker.running_broker(choice) as found:
        return found


def test_a_named_broker_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Overview) as amqp_url:
        expected = broker.Broker(amqp_url, os.environ["BROKER_MANAGEMENT_URL"], "9.8.7", "named by BROKER")
        assert enter(amqp_url) == expected
        monkeypatch.setenv("BROKER", amqp_url)
        assert enter(None) == expected


def test_a_named_broker_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.delenv("BROKER_MANAGEMENT_URL", raising=False)
    with pytest.raises(SetupError, match=f"amqp://127.0.0.1:{port}/ .*does not answer.*refused"):
        enter(f"amqp://127.0.0.1:{port}/")


def test_a_named_broker_must_be_rabbitmq() -> None:
    with serving(OtherService) as amqp_url, pytest.raises(SetupError, match="is not RabbitMQ's management API"):
        enter(amqp_url)


def test_a_named_broker_must_accept_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Overview) as amqp_url:
        monkeypatch.setenv("BROKER_MANAGEMENT_URL", os.environ["BROKER_MANAGEMENT_URL"].replace(":guest", ":wrong"))
        with pytest.raises(SetupError, match="answers 401"):
            enter(amqp_url)


@pytest.mark.parametrize(
    ("amqp_url", "management_url"),
    [
        ("amqp://guest:guest@127.0.0.1:5672/", "http://guest:guest@127.0.0.1:15672"),
        ("amqp://some%40one:p%2F@rabbit.example/vhost", "http://some%40one:p%2F@rabbit.example:15672"),
        ("amqp://rabbit", "http://rabbit:15672"),
        ("amqp://a:b@[::1]:1", "http://a:b@[::1]:15672"),
    ],
)
def test_the_management_api_is_looked_for_on_the_same_host(amqp_url: str, management_url: str) -> None:
    assert broker.default_management_url(amqp_url) == management_url


@pytest.mark.parametrize("choice", ["", "docker:9-management"])
def test_docker_is_used_where_an_engine_answers(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    @contextmanager
    def rabbitmq(tag: str) -> Iterator[tuple[str, str, str]]:
        yield "amqp://contained", "http://contained", tag

    monkeypatch.setattr(container, "engine_answers", lambda: True)
    monkeypatch.setattr(container, "rabbitmq", rabbitmq)
    tag = choice.removeprefix("docker:") or container.DEFAULT_TAG
    assert enter(choice) == broker.Broker("amqp://contained", "http://contained", tag, f"Docker image rabbitmq:{tag}")


def test_no_docker_engine_answers_on_a_dead_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/docker.sock")
    assert not container.engine_answers()


def test_no_docker_engine_answers_on_a_port_nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    assert not container.engine_answers()


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("", "no Docker engine answers, and rabbitmq-server is missing, and only root can install it: .*BROKER=amqp"),
        ("installed", "rabbitmq-server is missing, and only root can install it: sudo apt-get install"),
        ("docker:4", "needs a Docker engine, and none answers"),
        ("sid", "Debian sid needs root"),
        ("localhost:5672", "is not amqp://..., docker:TAG, installed, or the name of a Debian suite"),
    ],
)
def test_a_choice_that_cannot_be_had_says_why(choice: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        enter(choice)


@pytest.fixture
def machine_with(bare_machine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Installation]:
    """Installs that version of RabbitMQ, as Debian packages it, on a machine that has nothing else."""

    def installed(version: str) -> Installation:
        server = tmp_path / f"machine/usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin/rabbitmq-server"
        server.parent.mkdir(parents=True)
        server.touch()
        machine = Installation(tmp_path / "machine", "installed rabbitmq-server")
        monkeypatch.setattr(broker, "MACHINE", machine)
        return machine

    return installed


def test_an_installed_rabbitmq_4_comes_before_debian_sids(
    machine_with: Callable[[str], Installation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "installation", lambda suite: pytest.fail("no Debian sid is wanted"))
    machine = machine_with("4.0.5")
    assert broker.installation("") == machine


def test_debian_sids_rabbitmq_comes_before_an_older_installed_one(
    machine_with: Callable[[str], Installation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine_with("3.10.8")
    sid = Installation(tmp_path / "sid", "Debian sid")
    monkeypatch.setattr(suite, "installation", lambda name: {"sid": sid}[name])
    assert broker.installation("") == sid


def test_an_older_installed_one_is_used_where_debian_sid_cannot_be_had_and_the_reason_is_told_once(
    machine_with: Callable[[str], Installation], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = machine_with("3.10.8")
    assert broker.installation("") == broker.installation("") == machine
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no RabbitMQ 4, so what is installed is used: Debian sid needs root")


@pytest.mark.parametrize(
    ("version", "sid_can_be_had", "reason"),
    [("3.10.8", True, ""), ("3.10.8", False, "that of this machine was the first"), ("4.0.5", True, "a RabbitMQ 4")],
)
def test_the_second_rabbitmq_is_the_machines_own_where_that_is_older_than_the_first(
    machine_with: Callable[[str], Installation],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    sid_can_be_had: bool,
    reason: str,
) -> None:
    machine_with(version)
    if sid_can_be_had:
        monkeypatch.setattr(suite, "installation", lambda suite: Installation(tmp_path / "sid", "Debian sid"))
    assert second.why_none().endswith(reason)
    assert bool(second.why_none()) == bool(reason)


def test_a_second_rabbitmq_that_cannot_be_had_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Installation:
        raise SetupError("only root can install it")

    monkeypatch.setattr(second, "machines_own", missing)
    monkeypatch.setattr(sys, "argv", ["second", "--", "true"])
    with pytest.raises(SystemExit, match="no second RabbitMQ: only root can install it"):
        second.main()


@pytest.mark.parametrize(
    ("uri", "mirror"),
    [
        ("https://mirror.example/debian/", "https://mirror.example/debian/"),
        ("mirror+file:{folder}/mirrors", "https://first.example/debian"),
    ],
)
def test_the_mirror_is_that_of_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str, mirror: str) -> None:
    (tmp_path / "mirrors").write_text("https://first.example/debian\nhttps://second.example/debian\n")
    security = "Debian|Debian-Security|https://mirror.example/debian-security/"
    fake(monkeypatch, tmp_path, "apt-get", f"{security}\nDebian|Debian|{uri.format(folder=tmp_path)}")
    assert suite.debian_mirror() == mirror


def test_another_distributions_mirror_does_not_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, "apt-get", "Ubuntu|Ubuntu|https://mirror.example/ubuntu/")
    with pytest.raises(SetupError, match="no mirror of Debian"):
        suite.debian_mirror()


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str, says: str) -> None:
    """Make that program one that says this and no more."""
    (folder / program).write_text(f"#!/bin/sh\nprintf %s {shlex.quote(says)}\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_package_is_not_installed_when_its_binary_is_there() -> None:
    assert debian.ensure_package("no-such-package", "sh").name == "sh"


def test_a_package_without_a_binary_is_not_installed_when_it_is_there(
    bare_machine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(monkeypatch, tmp_path, "dpkg-query", "installed")
    debian.ensure_installed("such-a-package")


def test_a_package_without_a_binary_is_installed_when_it_is_missing(bare_machine: None) -> None:
    with pytest.raises(SetupError, match="no-such-package is missing"):
        debian.ensure_installed("no-such-package")


def test_the_command_runs_with_the_broker_and_its_status_is_passed_on() -> None:
    with serving(Overview) as amqp_url:
        script = 'echo "$BROKER $BROKER_MANAGEMENT_URL"; exit 7'
        run = subprocess.run(
            [sys.executable, "-m", "testbed", "--", "sh", "-c", script],
            env=os.environ | {"BROKER": amqp_url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.stdout, run.stderr) == (f"{amqp_url} {os.environ['BROKER_MANAGEMENT_URL']}\n", "")
        assert run.returncode == 7


def test_a_supervised_process_is_killed_and_the_folder_removed_at_the_end(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        process = supervisor.spawn(["sh", "-c", "echo $greeting; exec sleep 600"], {"greeting": "hi"}, tmp_path / "log")
        wait_until("its output", lambda: (tmp_path / "log").read_text() == "hi\n")
        assert supervisor.folder.is_dir()
        assert not process.wait(0)
    assert process.wait(0)
    assert not supervisor.folder.exists()


def test_a_supervised_process_may_end_at_once(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        for _ in range(20):
            process = supervisor.spawn(["true"], os.environ, tmp_path / "log")
            assert process.wait(DEADLINE_SECONDS)
            process.send_signal(signal.SIGTERM)  # nothing to do, and no other process to reach


def test_threads_that_start_processes_each_get_their_own(tmp_path: Path) -> None:
    def spawned(supervisor: Supervisor, n: int) -> bool:
        log = tmp_path / f"log{n}"
        process = supervisor.spawn(["sh", "-c", "echo $$"], {}, log)
        assert process.wait(DEADLINE_SECONDS)
        return log.read_text() == f"{process.pid}\n"

    with Supervisor() as supervisor, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda n: spawned(supervisor, n), range(200)))


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with Supervisor() as supervisor, pytest.raises(OSError, match="no-such-command"):
        supervisor.spawn(["/no-such-command"], {}, tmp_path / "log")


# The starter leaves a daemon in a session of its own whose parent has ended, a stopped process, and a child of the
# starter itself that holds all its files open.
STARTER = '''
import os, sys, time
from pathlib import Path
from testbed.supervisor import Supervisor

folder = Path(sys.argv[1])
supervisor = Supervisor()
daemon = """setsid sh -c 'echo $$ >"$0/daemon"; exec sleep 600' "$0" &"""
supervisor.spawn(["sh", "-c", daemon, str(folder)], os.environ, folder / "log")
supervisor.spawn(["sh", "-c", 'echo $$ >"$0/stopped"; kill -STOP $$', str(folder)], os.environ, folder / "log")
if os.fork() == 0:
    time.sleep(600)
print(supervisor.folder, flush=True)
time.sleep(600)
'''


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_starter(tmp_path: Path, number: signal.Signals) -> None:
    with started([sys.executable, "-c", STARTER, str(tmp_path)]) as starter:
        assert starter.stdout
        folder = Path(starter.stdout.readline().strip())
        pids = [first_line(tmp_path / "daemon"), first_line(tmp_path / "stopped")]
        forked = int(Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()[-1])
        try:
            starter.send_signal(number)
            wait_until("their end", lambda: all(has_ended(int(pid)) for pid in pids) and not folder.exists())
        finally:
            os.kill(forked, signal.SIGKILL)


@contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that takes interrupts and is killed at the end if it still runs."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=take_interrupts
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(path: Path) -> str:
    wait_until(f"a line in {path.name}", lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().strip()
