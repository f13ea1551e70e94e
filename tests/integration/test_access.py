"""Who may publish over HTTP: tokens that change, a unix socket, and addresses that open no door by mistake."""

import hashlib
import http.client
import os
import signal
import socket
import stat
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, Login, StartSidecar
from tests.integration.sidecar import COMMAND, Answer, Sidecar, bearer, publish_path

TOKEN, OTHER, NEW = "orders-s3cret", "all-s3cret", "new-s3cret"


def written(file: Path, *tokens: tuple[str, str, str]) -> str:
    """The path of a file with tokens of this name, value and patterns."""
    file.write_text("".join(f"[[tokens]]\nname = '{n}'\n{value}\npublish = [{p}]\n" for n, value, p in tokens))
    return str(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "tokens.toml"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    written(made, ("orders", f"token = '{TOKEN}'", "'orders*'"), ("all", f"sha256 = '{digest}'", "'*'"))
    return made


def test_a_token_publishes_where_its_patterns_say(start_sidecar: StartSidecar, vhost: VirtualHost, file: Path) -> None:
    for exchange in ("orders", "orders.eu", "invoices"):
        vhost.exchange(exchange)
        vhost.queue(f"q-{exchange}")
        vhost.bind(exchange, f"q-{exchange}")
    sidecar = start_sidecar(tokens_file=str(file))

    def publish(exchange: str, headers: dict[str, str]) -> Answer:
        return sidecar.publish(exchange, "k", b"", vhost=vhost.name, headers=headers)

    for exchange in ("orders", "orders.eu"):
        assert publish(exchange, bearer(TOKEN)).queue() == f"q-{exchange}"
    assert publish("invoices", bearer(OTHER)).queue() == "q-invoices"
    # The answer is the same where nothing of that name exists: that is not for this client to learn.
    for exchange in ("invoices", "no such exchange"):
        detail = publish(exchange, bearer(TOKEN)).problem(403, "forbidden", "invalid", retryable=False)
        assert repr(exchange) in detail
        assert "'orders'" in detail
    for headers in ({}, bearer("wrong"), {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}):
        answer = publish("orders", headers)
        answer.problem(401, "unauthorized", "invalid", retryable=False)
        assert answer.headers["www-authenticate"] == "Bearer"
    batch = publish_path("orders", vhost.name).replace("/publish", "/publish/batch")
    item = b'{"messages": [{"key": "k", "payload": "x"}]}'
    json = {"Content-Type": "application/json"}
    assert sidecar.ask("POST", batch, item, json).status == 401
    assert sidecar.ask("POST", batch, item, json | bearer(TOKEN)).status == 200
    assert sidecar.route("orders", "k", vhost=vhost.name).status == 401
    assert sum(len(messages) for messages in vhost.drain_all().values()) == 4
    assert "s3cret" not in sidecar.log()


def test_tokens_are_read_again(start_sidecar: StartSidecar, vhost: VirtualHost, file: Path) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(tokens_file=str(file))

    def status(token: str) -> int:
        return sidecar.publish("orders", "k", b"", vhost=vhost.name, headers=bearer(token)).status

    assert (status(TOKEN), status(NEW)) == (200, 401)
    written(file, ("new", f"token = '{NEW}'", "'orders'"))
    wait_until("the new token is known", lambda: status(NEW) == 200)
    assert status(TOKEN) == 401
    written(file, ("new", "token = 'broken s3cret'", "'orders'"))
    wait_until("the mistake is told", lambda: "token 'new': token: " in sidecar.log())
    assert (status(TOKEN), status(NEW)) == (401, 200)
    assert "s3cret" not in sidecar.log()


def ask_socket(path: Path, target: str, headers: dict[str, str]) -> int:
    """The status of a publish through a unix socket."""
    with (
        socket.socket(socket.AF_UNIX) as connected,
        closing(http.client.HTTPConnection("localhost", timeout=DEADLINE_SECONDS)) as connection,
    ):
        connected.connect(str(path))
        connection.sock = connected
        connection.request("POST", target, b"through a socket", {"Routing-Key": "k", **headers})
        return connection.getresponse().status


def test_a_unix_socket(start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path, file: Path) -> None:
    vhost.ring("orders", ["q"])
    path, target = tmp_path / "http", publish_path("orders", vhost.name)
    first = start_sidecar(http_socket=str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert ask_socket(path, target, {}) == 200
    assert first.publish("orders", "k", vhost=vhost.name).status == 200
    assert "another process listens" in refused(http_socket=str(path))
    first.signal(signal.SIGKILL)
    first.process.wait()
    assert path.is_socket()
    second = start_sidecar(http_socket=str(path), tokens_file=str(file))
    assert ask_socket(path, target, {}) == 401
    assert ask_socket(path, target, bearer(TOKEN)) == 200
    second.stop()
    assert not path.exists()


def refused(**settings: str) -> str:
    """The one line with which a sidecar of these settings does not start."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    clean |= {f"RINGPROXY_{what}_LISTEN": "127.0.0.1:0" for what in ("AMQP", "HTTP", "ADMIN")}
    given = {f"RINGPROXY_{name.upper()}": value for name, value in settings.items()}
    ended = subprocess.run(
        [COMMAND, "run"], env=clean | given, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert ended.returncode == 2, ended
    # The warnings until then, as of a management API that is not there, are another matter.
    (line,) = [line for line in ended.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert line.startswith("ring-proxy: ")
    return line


@pytest.mark.long
def test_an_open_door_is_refused(tmp_path: Path) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
        line = refused(http_listen=address)
        assert f"http_listen: {address} is not a loopback address, so anyone who reaches it could publish" in line
        assert "tokens_file" in line
    assert "tokens_file: " in refused(tokens_file=str(tmp_path / "nowhere"))
    (tmp_path / "tokens").write_text("[[tokens]]\nname = 'a'\ntoken = 's3cret!'\npublish = '*'")
    line = refused(tokens_file=str(tmp_path / "tokens"), http_listen="0.0.0.0:0")
    assert "token 'a': token: " in line
    assert "s3cret" not in line
    key, certificate = str(tmp_path / "key"), str(tmp_path / "certificate")
    assert "tls_cert_file: " in refused(tls_cert_file=certificate, tls_key_file=key)


def warnings(sidecar: Sidecar) -> list[str]:
    return [line for line in sidecar.log().splitlines() if " WARNING proxy.app" in line]


def test_what_is_open_or_in_the_clear_is_told_at_the_start(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, file: Path
) -> None:
    vhost.ring("orders", ["q"])
    insecure = start_sidecar(http_listen="0.0.0.0:0", insecure="true")
    (line,) = warnings(insecure)
    assert "ANYONE who reaches 0.0.0.0:0 may publish" in line
    assert insecure.publish("orders", "k", vhost=vhost.name).status == 200
    clear = start_sidecar(http_listen="0.0.0.0:0", tokens_file=str(file))
    (line,) = warnings(clear)
    assert "unencrypted" in line
    assert clear.publish("orders", "k", vhost=vhost.name).status == 401
    assert not warnings(start_sidecar(tokens_file=str(file), insecure="true"))


def connections_of(vhost: VirtualHost, user: str) -> list[str]:
    found = vhost.api.ask("GET", "connections", query="columns=name,user")
    return [connection["name"] for connection in found if connection.get("user") == user]


def test_a_password_that_is_replaced_counts_for_new_connections(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, tmp_path: Path
) -> None:
    """Both users get new passwords: closed connections and the management API's answer make the sidecar use them."""
    vhost.ring("orders", ["q"])
    api, user = vhost.api, "rotated"
    api.ask("PUT", "users", user, body={"password": PASSWORD, "tags": "management"})
    vhost.permit(user)
    try:
        password = tmp_path / "password"
        password.write_text(f"{PASSWORD}\n")
        hosts = {name: getattr(login, name).rpartition("@")[2] for name in ("broker_url", "management_url")}
        sidecar = start_sidecar(
            broker_url=f"amqp://{user}@{hosts['broker_url'].partition('/')[0]}/" + quote(vhost.name, safe=""),
            management_url=f"http://{user}@{hosts['management_url']}",
            broker_password_file=str(password),
            management_password_file=str(password),
        )
        sidecar.wait_ready()
        assert sidecar.publish("orders", "k").status == 200
        api.ask("PUT", "users", user, body={"password": "second", "tags": "management"})
        wait_until("the old password is refused", lambda: "401" in sidecar.log())
        for connection in wait_until("the broker lists it", lambda: connections_of(vhost, user)):
            api.ask("DELETE", "connections", connection)
        wait_until("the loss is seen", lambda: sidecar.metric("ringproxy_broker_connected") == 0)
        password.write_text("second\n")
        wait_until("it works again", lambda: sidecar.publish("orders", "k").status == 200)
        sidecar.wait_ready()
    finally:
        api.ask("DELETE", "users", user)
