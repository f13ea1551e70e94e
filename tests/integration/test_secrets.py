"""Faults of passwords, tokens and keys, for real: none of the secrets shows in a log, an answer or a metric."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from pamqp.commands import Connection
from pamqp.common import FieldTable

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, Login, StartSidecar, with_login
from tests.integration.relay import at_port, management_front
from tests.integration.sidecar import Sidecar, ask
from tests.integration.test_commands import mistake, run
from tests.integration.wire_client import PROTOCOL_HEADER, wire

WRONG = "wr/ong:p@ss%25 ü"
TOKEN = "3f1c0c4e5b0a4d0d8d9d5a7e5c1f7b2a"
NOBODY = 9
"""A port where nothing listens: the discard service's."""

ADMIN = ("/livez", "/startupz", "/readyz", "/readyz?verbose", "/metrics", "/rings", "/rings/%2F/orders", "/no/such")


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


FORMS = [
    form
    for secret in (PASSWORD, WRONG)
    for form in (
        *(secret, quote(secret, safe=""), quote(secret), secret[:5], quote(secret[:5], safe=""), repr(secret)[1:-1]),
        *(basic(USER, secret), base64.b64encode(f"\0{USER}\0{secret}".encode()).decode()),
    )
] + [TOKEN]


def shows_nothing(*texts: str) -> None:
    for text in texts:
        assert not [form for form in FORMS if form in text], text


def everything(sidecar: Sidecar) -> Iterator[str]:
    """All that a sidecar tells to whoever asks, and its log."""
    for path in ADMIN:
        yield sidecar.admin(path).text
    yield sidecar.publish("orders", "k").text
    yield sidecar.batch("orders", [{"key": "k", "payload": "x"}]).text
    yield sidecar.route("orders", "k").text
    yield sidecar.log()


@contextmanager
def management_of(name: str, login: Login) -> Iterator[str]:
    """The URL of a management API of some kind, with the right password unless that is what is wrong."""
    if name == "wrong password":
        yield with_login(login.management_url, USER, WRONG)
    elif name == "unreachable":
        yield at_port(login.management_url, NOBODY)
    elif name == "no such host":
        yield with_login("http://no-such-host.invalid:15672", USER, PASSWORD)
    elif name == "no TLS there":
        yield login.management_url.replace("http://", "https://")
    else:
        with management_front(login.management_url) as front:
            front.answer("", 401, {"error": "not_authorised", "reason": "Login failed"})
            yield front.url


@pytest.mark.parametrize("kind", ["wrong password", "unreachable", "no such host", "no TLS there", "answers 401"])
def test_a_management_api_that_cannot_be_read(start_sidecar: StartSidecar, login: Login, kind: str) -> None:
    with management_of(kind, login) as url:
        sidecar = start_sidecar(management_url=url, log_level="debug", lookup_timeout="1")
        wait_until("the fault", lambda: "FAIL management API" in sidecar.admin("/readyz?verbose").text)
        shows_nothing(*everything(sidecar))


@pytest.mark.parametrize("kind", ["wrong password", "unreachable", "no TLS there"])
def test_a_broker_that_cannot_be_logged_in_at(start_sidecar: StartSidecar, login: Login, kind: str) -> None:
    path = "/" + quote(login.vhost, safe="")
    url = {
        "wrong password": with_login(login.broker_url, USER, WRONG, path),
        "unreachable": at_port(login.broker_url, NOBODY),
        "no TLS there": login.broker_url.replace("amqp://", "amqps://"),
    }[kind]
    sidecar = start_sidecar(broker_url=url, log_level="debug", lookup_timeout="1")
    wait_until("the fault", lambda: "FAIL broker" in sidecar.admin("/readyz?verbose").text)
    shows_nothing(*everything(sidecar))


def test_clients_who_may_not_log_in(start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path) -> None:
    vhost.ring("orders", ["q"])
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\npublish = ["nothing"]\n')
    sidecar = start_sidecar(log_level="debug", tokens_file=f"{tokens}", management_publish="true")
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        peer.expect(0, Connection.Start)
        capabilities: FieldTable = {"capabilities": {"authentication_failure_close": True}}
        peer.tell(0, Connection.StartOk(capabilities, "PLAIN", f"\0{USER}\0{WRONG}"))
        assert peer.expect(0, Connection.Close).reply_code == 403
    path = "/v1/exchanges/orders/publish?key=k"
    answers = [
        sidecar.ask("POST", path, b"", {"Authorization": f"Bearer {TOKEN}"}),
        sidecar.ask("POST", path, b"", {"Authorization": f"Bearer {TOKEN[::-1]}"}),
        sidecar.ask("POST", path, b"", {"Authorization": f"Basic {basic(USER, WRONG)}"}),
        sidecar.ask(
            "POST",
            "/api/exchanges/%2F/orders/publish",
            b'{"routing_key": "k", "payload": "", "payload_encoding": "string", "properties": {}}',
            {"Authorization": f"Basic {basic(USER, WRONG)}"},
        ),
    ]
    assert [answer.status for answer in answers] == [403, 401, 401, 401]
    shows_nothing(*(answer.text for answer in answers), *everything(sidecar))
    assert TOKEN[::-1] not in "".join([*(answer.text for answer in answers), sidecar.log()])


FILES = {
    "not TOML": f"[[tokens]]\ntoken = {TOKEN}\n",
    "twice": f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ntoken = "{TOKEN}"\n',
    "no pattern": f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\npublish = ["a/b/c"]\n',
    "no text": f'[[tokens]]\nname = "a"\ntoken = "{TOKEN} \x7f"\n',
}


QUICK = "not TOML", "no pattern"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(content, id=what, marks=[] if what in QUICK else [pytest.mark.long])
        for what, content in FILES.items()
    ],
)
def test_files_with_secrets_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    tokens, settings, password = tmp_path / "tokens.toml", tmp_path / "settings.toml", tmp_path / "password"
    tokens.write_text(content)
    settings.write_text(f'broker_url = "amqp://me:{TOKEN}@rabbit"\n{content}')
    password.write_bytes(f"{TOKEN}\xff".encode("latin-1"))
    for arguments in (
        ["run", f"--tokens-file={tokens}"],
        ["run", f"--tls-cert-file={tokens}", f"--tls-key-file={tokens}"],
        ["config", f"--config={settings}"],
        ["config", f"--broker-password-file={password}"],
        ["config", f"--management-password-file={password}"],
    ):
        shows_nothing(mistake(run(*arguments)))


def test_config_hides_passwords_wherever_they_come_from(tmp_path: Path, broker: Broker) -> None:
    password = tmp_path / "password"
    password.write_text(WRONG)
    in_urls = {
        "RINGPROXY_BROKER_URL": with_login(broker.amqp_url, USER, PASSWORD),
        "RINGPROXY_MANAGEMENT_URL": with_login(broker.management_url, USER, PASSWORD),
    }
    file = tmp_path / "settings.toml"
    file.write_text("".join(f'{name[10:].lower()} = "{url}"\n' for name, url in in_urls.items()))
    flags = [f"--{name[10:].lower().replace('_', '-')}={url}" for name, url in in_urls.items()]
    files = [f"--broker-password-file={password}", f"--management-password-file={password}"]
    for shown in (run("config", **in_urls), run("config", *flags), run("config", "--config", f"{file}", *files)):
        assert shown.returncode == 0
        assert shown.stdout.count("***") == 2
        shows_nothing(shown.stdout, shown.stderr)


METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "LINK")


def test_the_admin_listener_takes_no_request_that_changes_anything(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar.publish("orders", "k", vhost=vhost.name)
    ring = f"/rings/{quote(vhost.name, safe='')}/orders"

    def state() -> object:
        # The exchanges are those of this test's own virtual host: those of earlier tests are gone, and leave the
        # sidecar at the next sync.
        exchanges = [shown for shown in sidecar.admin("/rings").receipt()["exchanges"] if shown["vhost"] == vhost.name]
        return [{name: value for name, value in shown.items() if name != "age_seconds"} for shown in exchanges]

    before = state()
    assert before
    for path in (*ADMIN, ring, f"{ring}?key=k"):
        for method in METHODS:
            answer = ask(sidecar.admin_port, method, path, b"{}", {})
            if path == "/no/such":
                assert answer.status == 404
            else:
                answer.problem(405, "method-not-allowed", "invalid", retryable=False)
        head, get = (ask(sidecar.admin_port, method, path, None, {}) for method in ("HEAD", "GET"))
        assert (head.status, head.body) == (get.status, b"")
    assert state() == before
