"""The command line, as processes: mistakes, `config`, `explain` and `diff`."""

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

import proxy
from proxy.cli import main
from proxy.settings.sources import field_names
from ring.destination import Destination
from ring.hashing import slot_of
from ring.ring import Ring
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost
from tests.integration.conftest import SECRETS, Login, StartSidecar
from tests.integration.sidecar import COMMAND, Sidecar

NOBODY = "http://127.0.0.1:9"
"""A URL where nothing listens: the port of the discard service."""


def run(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    # The same modules that the tests import.
    clean["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])
    return subprocess.run(
        [COMMAND, *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def in_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which saves most of a second."""
    status = main(list(arguments))
    return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())


def mistake(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of a usage error."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    # Before it there may be a log: of a start, and of what the machine has too little of.
    (line,) = [line for line in result.stderr.splitlines() if not re.match(r"\S+Z (INFO|WARNING) ", line)]
    assert line.startswith("ring-proxy: ")
    return line


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--broker-url", "http://user:s3cret@h", "broker_url"),
        ("--broker-url", "amqp://user:s3cret@", "broker_url"),
        ("--management-url", "rubbish s3cret", "management_url"),
        ("--http-listen", "127.0.0.1:65536", "http_listen"),
        ("--http-listen", "127.0.0.1", "http_listen"),
        ("--admin-listen", "127.0.0.1:x", "admin_listen"),
        ("--sync-interval", "soon", "sync_interval"),
        ("--on-stale", "panic", "on_stale"),
        ("--max-body", "-1", "max_body"),
        ("--broker-password-file", "/no/such/file", "broker_password_file"),
        ("--config", "/no/such/file", "/no/such/file"),
    ],
)
def test_a_mistake_in_a_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, told: str
) -> None:
    line = mistake(in_here(capsys, "config", f"{flag}={value}"))

    assert told in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "the following arguments are required: COMMAND (see ring-proxy --help)"),
        (["runn"], "argument COMMAND: invalid choice: 'runn' (choose from "),
        (["explain", "orders"], "explain: the following arguments are required: KEY (see ring-proxy explain --help)"),
        (
            ["topology", "plan"],
            "plan: the following arguments are required: FILE (see ring-proxy topology plan --help)",
        ),
        (["run", "--broker-url"], "run: argument --broker-url: expected one argument (see ring-proxy run --help)"),
        (["config", "--check=s3cret"], "config: argument --check: takes no value (see ring-proxy config --help)"),
    ],
)
def test_a_usage_error_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    output, errors = capsys.readouterr()
    assert (output, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"ring-proxy: {told}")


def test_the_help_of_run_begins_with_the_usual_flags_and_has_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = capsys.readouterr().out
    flags = re.findall(r"^  (--[a-z-]+)", told, flags=re.M)
    assert flags[:3] == ["--config", "--broker-url", "--management-url"]
    assert len(flags) == len(set(flags)) == len(field_names()) + 1
    assert told.splitlines()[0] == "usage: ring-proxy run [-h] [--config FILE] [--SETTING VALUE ...]"
    words = " ".join(told.split())
    for default in ("amqp://guest:guest@localhost:5672/", "127.0.0.1:5673", "15.0", "*", "false"):
        assert f"(default: {default})" in words


@pytest.mark.parametrize("listen", ["256.0.0.1:0", pytest.param("192.0.2.1:0", marks=pytest.mark.long)])
def test_an_address_that_cannot_be_bound(listen: str) -> None:
    line = mistake(run("run", RINGPROXY_ADMIN_LISTEN=listen))

    assert f"admin_listen: {listen} cannot be bound: " in line


def test_unknown_settings(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("settings") / "ringproxy.toml"
    file.write_text('broker_urll = "amqp://h"\n')

    told = mistake(run("run", "--config", str(file)))
    assert told.endswith("unknown setting 'broker_urll'; did you mean broker_url?")
    told = mistake(run("run", RINGPROXY_BROKER_ULR="x"))
    assert told.endswith(": RINGPROXY_BROKER_ULR; did you mean RINGPROXY_BROKER_URL?")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--htpp-listen", "127.0.0.1:0"], "run: unknown flag --htpp-listen; did you mean --http-listen?"),
        (
            ["config", "--broker-urll=amqp://u:pw@h"],
            "config: unknown flag --broker-urll; did you mean --broker-url?",
        ),
        (["config", "--chekc"], "config: unknown flag --chekc; did you mean --check?"),
        (["explain", "orders", "k", "--sidecr=x"], "explain: unknown flag --sidecr; did you mean --sidecar?"),
        (["diff", "http://a", "http://b", "--vhost=x"], "diff: unknown flag --vhost"),
        (["run", "--zzz"], "run: unknown flag --zzz"),
        (["run", "amqp://u:pw@h"], "run: one argument too many"),
        (["diff", "http://a", "http://b", "http://c"], "diff: one argument too many"),
    ],
)
def test_an_argument_that_the_command_does_not_take(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    line = mistake(in_here(capsys, *arguments))

    assert line == f"ring-proxy: {told} (see ring-proxy {arguments[0]} --help)"


@pytest.mark.parametrize("setting", ["http_listen", pytest.param("admin_listen", marks=pytest.mark.long)])
def test_busy_port(login: Login, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        settings = {"http_listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"} | login.settings(**{setting: address})
        result = run("run", **{f"RINGPROXY_{name.upper()}": value for name, value in settings.items()})

    line = mistake(result)
    assert setting in line
    assert address in line


def test_config_hides_secrets(login: Login) -> None:
    settings = {f"RINGPROXY_{name.upper()}": value for name, value in login.settings(sync_interval="1").items()}

    shown = run("config", **settings)

    assert shown.returncode == 0
    assert re.search(r"^sync_interval = 1(\.0)?$", shown.stdout, re.MULTILINE)
    assert ":***@" in shown.stdout
    assert not [secret for secret in SECRETS if secret in shown.stdout + shown.stderr]


def test_explain(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders é", {"q1": 1, "q2": 3})
    sidecar = start_sidecar()
    ring = Ring.build({Destination("queue", "q1"): 1, Destination("queue", "q2"): 3})
    slot = slot_of(b"the key")

    result = run("explain", "orders é", "the key", "--vhost", vhost.name, "--sidecar", sidecar.admin_url)

    assert result.returncode == 0, result
    told = {name.strip(): value for name, value in re.findall(r"^(.{12}) (.*)$", result.stdout, re.MULTILINE)}
    assert told["slot"] == str(slot)
    assert told["owner"] == f"queue {ring.owner(slot).name}"
    runner_up = ring.runner_up(slot)
    assert runner_up is not None
    assert told["runner-up"] == f"queue {runner_up.name}"
    assert told["ring"].startswith(sidecar.ring(vhost.name, "orders é")["ring"])
    assert "ring of 2 destinations (first use)" in told["change"]


def test_explain_lists_queues_by_their_numbers(sidecar: Sidecar, vhost: VirtualHost) -> None:
    queues = [f"orders.{number}" for number in range(1, 12)]
    vhost.ring("orders", queues)
    said = run("explain", "orders", "k", "--vhost", vhost.name, "--sidecar", sidecar.admin_url).stdout
    assert re.findall(r"^destination  queue (\S+),", said, flags=re.M) == queues


def test_explain_a_key_that_is_not_text(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])

    result = run(
        "explain", "orders", b"caf\xe9", "--vhost", vhost.name, "--sidecar", sidecar.admin_url, PYTHONIOENCODING="utf-8"
    )

    assert result.returncode == 0, result
    assert f"slot         {slot_of(bytes([99, 97, 102, 0xE9]))}" in result.stdout


def test_explain_says_why_publishes_are_passed(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("plain", "topic")

    result = run("explain", "plain", "k", "--vhost", vhost.name, "--sidecar", sidecar.admin_url)

    assert result.returncode == 0
    assert "passed       publishes go to the exchange itself: it is not a hash exchange (type)" in result.stdout


def test_explain_names_lanes_and_what_is_none(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", {"q1": 3, "q2": 1})
    vhost.unbind("orders.lane.q2", "q2", "")
    vhost.exchange("fan", "fanout", alternate_exchange="amq.fanout")
    vhost.bind("orders", "fan", kind="e")
    lines = run("explain", "orders", "k", "--vhost", vhost.name, "--sidecar", sidecar.admin_url).stdout.splitlines()
    (through,) = [line for line in lines if "queue q1, weight" in line]
    assert through.startswith("destination  queue q1, weight 3, ")
    assert through.endswith(" of the slots, through lane orders.lane.q1")
    ignored = "ignored      binding to exchange orders.lane.q2 with the key '1': no queue is bound to this lane"
    assert ignored in lines
    assert "not a lane   exchange fan: its arguments name an alternate exchange" in lines
    assert "not_a_lane" in next(line for line in lines if line.startswith("passed"))


def test_explain_what_does_not_exist(sidecar: Sidecar, vhost: VirtualHost) -> None:
    result = run("explain", "nonesuch", "k", "--vhost", vhost.name, "--sidecar", sidecar.admin_url)

    assert "'nonesuch'" in mistake(result)


def test_diff(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", {"q1": 1, "q2": 1})
    vhost.ring("one's only", ["q3"])
    settled, fresh = start_sidecar(sync_interval="600"), start_sidecar(sync_interval="600")
    for sidecar in (settled, fresh):
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    assert settled.publish("one's only", "k", vhost=vhost.name).status == 200

    equal = run("diff", settled.admin_url, fresh.admin_url)
    assert equal.returncode == 0, equal
    assert "the sidecars agree" in equal.stdout
    assert f"one's only in {vhost.name}: not compared, read by {settled.admin_url} only" in equal.stdout

    vhost.queue("q4")
    vhost.bind("orders", "q4", "2")
    third = start_sidecar()
    third.wait_for_weights(vhost.name, "orders", {"q1": 1, "q2": 1, "q4": 2})
    differing = run("diff", settled.admin_url, third.admin_url)
    assert differing.returncode == 1, differing
    assert "the sidecars differ" in differing.stdout
    assert "queue 'q4': not on the ring / weight 2" in differing.stdout
    share = re.search(r"([0-9.]+)% of the slots have different owners", differing.stdout)
    assert share is not None
    assert 49 < float(share[1]) < 51


@pytest.mark.parametrize("url", [NOBODY, "rubbish", "ftp://h", "http://", "http://[::1", "http://127.0.0.1:port"])
def test_a_sidecar_that_cannot_be_asked(capsys: pytest.CaptureFixture[str], sidecar: Sidecar, url: str) -> None:
    assert url in mistake(in_here(capsys, "diff", sidecar.admin_url, url))
    assert url in mistake(in_here(capsys, "diff", url, sidecar.admin_url))
    assert url in mistake(in_here(capsys, "explain", "orders", "k", "--sidecar", url))


def test_a_sidecar_that_is_away(sidecar: Sidecar) -> None:
    assert NOBODY in mistake(run("diff", sidecar.admin_url, NOBODY))


def test_what_answers_is_no_sidecar(capsys: pytest.CaptureFixture[str], sidecar: Sidecar, login: Login) -> None:
    broker = f"http://{login.broker_url.rpartition('@')[2].partition('/')[0]}"
    management = f"http://{login.management_url.rpartition('@')[2]}"

    for url in (broker, management, f"http://127.0.0.1:{sidecar.port}"):
        assert url in mistake(in_here(capsys, "diff", sidecar.admin_url, url))


def test_output_that_nobody_reads() -> None:
    with subprocess.Popen([COMMAND, "config"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE_SECONDS) == 0


def test_version() -> None:
    assert re.fullmatch(r"ringproxy \S+, ring format 1, (compiled|python)\n", run("--version").stdout)
