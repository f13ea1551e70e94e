"""The metrics of the files that settings name, and of HTTP answers and bytes on their way."""

import http.client
import socket
from contextlib import closing
from pathlib import Path

from proxy.settings.certificates import end_of
from tests.certificates import Authority, Pair
from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, Login, StartSidecar
from tests.integration.sidecar import Sidecar, publish_path

EXPIRY = "ringproxy_certificate_expiry_timestamp_seconds"


def reloads(sidecar: Sidecar, setting: str) -> tuple[float, float]:
    """Whether the last reading went well, and how many did not."""
    ok = sidecar.metric("ringproxy_reload_ok", setting=setting)
    return ok, sidecar.metric("ringproxy_reload_failures_total", setting=setting)


def test_a_broken_file_shows_until_it_is_mended_though_nobody_uses_it(
    start_sidecar: StartSidecar, login: Login, authority: Authority, tmp_path: Path
) -> None:
    files = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    first, second = authority.issue("first", days=40), authority.issue("second", days=80)
    files.replace(first)
    tokens, password = tmp_path / "tokens.toml", tmp_path / "password"
    good = '[[tokens]]\nname = "t"\ntoken = "s3cret"\npublish = ["*"]\n'
    tokens.write_text(good)
    password.write_text(f"{PASSWORD}\n")
    sidecar = start_sidecar(
        tokens_file=str(tokens),
        management_password_file=str(password),
        tls_cert_file=str(files.certificate),
        tls_key_file=str(files.key),
    )
    settings = "tokens_file", "management_password_file", "tls_cert_file"
    assert [reloads(sidecar, setting) for setting in settings] == [(1, 0)] * 3
    assert sidecar.metric(EXPIRY, setting="tls_cert_file") == end_of(first.certificate.read_bytes())

    tokens.write_text("rubbish")
    password.write_text("")
    files.certificate.write_bytes(second.certificate.read_bytes())  # the key does not fit it yet
    for setting in settings:
        wait_until("it is told", lambda it=setting: reloads(sidecar, it) == (0, 1))  # type: ignore[misc]
    # The certificate in force is shown, and not the one in the file.
    assert sidecar.metric(EXPIRY, setting="tls_cert_file") == end_of(first.certificate.read_bytes())

    tokens.write_text(good)
    password.write_text(f"{PASSWORD}\n")
    files.key.write_bytes(second.key.read_bytes())
    for setting in settings:
        wait_until("it is mended", lambda it=setting: reloads(sidecar, it) == (1, 1))  # type: ignore[misc]
    assert sidecar.metric(EXPIRY, setting="tls_cert_file") == end_of(second.certificate.read_bytes())


def test_the_certificate_shown_to_the_broker_has_an_end_too(
    start_sidecar: StartSidecar, login: Login, authority: Authority
) -> None:
    own = authority.issue("shown")
    sidecar = start_sidecar(
        management_url="https://guest@localhost:9",
        client_cert_file=str(own.certificate),
        client_key_file=str(own.key),
    )
    assert sidecar.metric(EXPIRY, setting="client_cert_file") == end_of(own.certificate.read_bytes())
    assert reloads(sidecar, "client_cert_file") == (1, 0)


def test_http_answers_are_counted_by_listener_and_status(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()

    def counted(listener: str, code: str) -> float:
        return sidecar.metric("ringproxy_http_responses_total", listener=listener, code=code)

    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    assert sidecar.route("orders", "k", vhost=vhost.name).status == 200
    assert sidecar.publish("nowhere", "k", vhost=vhost.name).status == 404
    assert sidecar.ask("GET", "/nowhere").status == 404
    assert sidecar.ask("PUT", publish_path("orders")).status == 405
    assert sidecar.raw(b"rubbish\r\n\r\n")[0].status == 400
    expecting = {"Expect": "miracles", "Routing-Key": "k"}
    assert sidecar.ask("POST", publish_path("orders", vhost.name), b"", expecting).status == 417
    assert {code: counted("http", code) for code in ("200", "400", "404", "405", "417")} == {
        "200": 2,
        "404": 2,
        "400": 1,
        "405": 1,
        "417": 1,
    }
    before = counted("admin", "200")
    assert sidecar.admin("/livez").status == 200
    assert sidecar.admin("/nowhere").status == 404
    assert counted("admin", "200") - before == 2  # with the scrape before this one
    assert counted("admin", "404") == 1


def test_bytes_on_their_way_show(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar()
    size = 200_000

    def in_flight() -> float:
        return sidecar.metric("ringproxy_http_in_flight_bytes")

    assert in_flight() == 0
    with socket.create_connection(("127.0.0.1", sidecar.port), DEADLINE_SECONDS) as connection:
        head = f"POST {publish_path('orders', vhost.name)} HTTP/1.1\r\nHost: localhost\r\nRouting-Key: k\r\n"
        connection.sendall(f"{head}Content-Length: {size + 1}\r\n\r\n".encode() + bytes(size))
        wait_until("it has come", lambda: in_flight() == size)
        connection.sendall(b"\0")
        with closing(http.client.HTTPResponse(connection)) as response:
            response.begin()
            assert response.status == 200
    wait_until("it is answered", lambda: in_flight() == 0)
