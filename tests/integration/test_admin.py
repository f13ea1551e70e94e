"""The admin listener: probes that say what they should and no more, and metrics that hold nobody's data."""

import socket
import subprocess
from contextlib import ExitStack, suppress
from urllib.parse import quote

import pytest

from proxy.process.memory import ADMIN_CONNECTIONS
from testbed.debian import ensure_package
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import SECRETS, USER, Login, StartSidecar
from tests.integration.relay import management_front
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

SECRET_KEY, SECRET_ID, SECRET_VALUE = "key-of-alice", "id-of-alice", "value-of-alice"


def promtool_complaints(text: str) -> str:
    promtool = ensure_package("prometheus", "promtool")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return checked.stdout + checked.stderr


def test_ready(sidecar: Sidecar, login: Login) -> None:
    sidecar.wait_ready()

    assert sidecar.admin("/livez").status == sidecar.admin("/startupz").status == 200
    lines = sidecar.admin("/readyz?verbose").text.splitlines()
    for check in (
        "not draining",
        "management API",
        "rings read",
        "rings fresh",
        f"broker, virtual host {login.vhost!r}",
    ):
        assert f"ok   {check}" in lines


def test_connections_that_ask_nothing_keep_no_probe_out_and_take_little_memory(start_sidecar: StartSidecar) -> None:
    """Nor do answers that nobody reads."""
    sidecar = start_sidecar()
    before, head = sidecar.memory(), b"GET /livez HTTP/1.1\r\n" + b"X: " + b"v" * 8000 + b"\r\n"
    with ExitStack() as stack:
        for number in range(300):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.admin_port), DEADLINE_SECONDS))
            with suppress(ConnectionError):
                silent.sendall(head + (b"X: " + b"v" * 8000 + b"\r\n") * 6)
            if not number % 50:
                assert sidecar.admin("/livez").status == 200
        assert sidecar.admin("/readyz").status in (200, 503)
        assert sidecar.memory() - before < 16 << 20
    assert "as many as the admin listener's limit allows" in sidecar.log()


@pytest.mark.parametrize(
    "request_head",
    [
        "POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx",
        "GET /rings/v/{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["bodies that do not come", "look-ups that get no answer"],
)
def test_requests_that_take_long_keep_no_probe_out(
    start_sidecar: StartSidecar, login: Login, request_head: str
) -> None:
    with ExitStack() as stack:
        hung = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        sidecar = start_sidecar(management_url=f"http://127.0.0.1:{hung.getsockname()[1]}", lookup_timeout="30")
        for number in range(2 * ADMIN_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", sidecar.admin_port), DEADLINE_SECONDS))
            client.sendall(request_head.format(number).encode())
            assert sidecar.admin("/livez").status == 200
        assert "as many as the admin listener's limit allows" not in sidecar.log()


def test_an_answer_ends_its_connection(sidecar: Sidecar) -> None:
    for path in ("/livez", "/metrics", "/nothing"):
        assert sidecar.admin(path).headers["connection"] == "close"


def test_every_answer_says_which_sidecar_it_is_of(
    api: BrokerApi, start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """The answer that there is no such exchange says it, too; and so do all its connections to the broker."""
    one, other = start_sidecar(), start_sidecar()
    assert one.id != other.id
    for path in ("/rings", "/metrics", "/nothing", "/rings/%2F/none"):
        assert one.admin(path).headers["ringproxy-id"] == one.id

    def ids(user: str) -> set[str]:
        listed = api.ask("GET", "connections")
        return {each["client_properties"].get("ringproxy_id", "") for each in listed if each.get("user") == user}

    wait_until("their own connections", lambda: {one.id, other.id} <= ids(USER))
    with client.session(other.amqp_port, vhost.name):
        wait_until("a client's connection", lambda: other.id in ids(client.user))
        assert one.id not in ids(client.user)


def test_not_ready_until_the_named_rings_are_read(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    home = VirtualHost(vhost.api, login.vhost, [])
    home.ring("named ring", ["named queue"])
    try:
        with management_front(login.management_url) as front:
            front.answer("named%20ring", 500)
            sidecar = start_sidecar(management_url=front.url, route="named%20ring", sync_interval="0.3")
            unread = "FAIL rings read: not read yet: 'named ring'"
            wait_until("all else", lambda: sidecar.admin("/readyz?verbose").text.count("FAIL") == 1)
            assert unread in sidecar.admin("/readyz?verbose").text
            assert sidecar.admin("/readyz").status == 503

            front.answers.clear()
            sidecar.wait_ready()
            assert sidecar.weights(home.name, "named ring") == {"named queue": 1}
    finally:
        home.delete_queue("named queue")
        home.delete_exchange("named ring")


def test_a_ring_of_a_virtual_host_that_is_gone_is_a_note(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    """Another virtual host that is gone must not make the sidecar unready for all."""
    rings = [f"ring {n:02}" for n in range(12)]
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url, ring_max_age="1", sync_interval="0.3")
        for ring in rings:
            vhost.ring(ring, ["q"])
            assert sidecar.publish(ring, "k", vhost=vhost.name).status == 200
        front.answer(quote(vhost.name, safe=""), 404)

        def told() -> str:
            return sidecar.admin("/readyz?verbose").text

        wait_until("all are stale", lambda: "and 2 more" in told())
        assert (
            f"note stale rings of virtual hosts that the management API does not list: 'ring 00' in {vhost.name!r}, "
            in told()
        )
        assert "ok   rings fresh" in told().splitlines()
        assert sidecar.admin("/readyz").status == 200


def test_a_named_exchange_that_does_not_exist_is_told_and_keeps_nothing_waiting(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    """Somebody may declare it later: its absence is an answer, and the status of readyz is as if it were there."""
    # Written as in a URL's path: as it is, a name with a "?" would be a pattern.
    host = quote(vhost.name, safe="")
    sidecar = start_sidecar(route=f"{host}/ordesr", shadow=f"{host}/watched,*/some*", sync_interval="0.2")

    def absent(exchange: str) -> float:
        return sidecar.metric("ringproxy_named_exchange_absent", vhost=vhost.name, exchange=exchange)

    sidecar.wait_ready()
    told = sidecar.admin("/readyz?verbose")
    where = f"'ordesr' in {vhost.name!r}, 'watched' in {vhost.name!r}"
    assert (
        f"FAIL named exchanges exist: not found: {where}; the sidecar is ready all the same" in told.text.splitlines()
    )
    assert told.status == 200
    assert (absent("ordesr"), absent("watched")) == (1, 1)
    for exchange in ("ordesr", "watched"):
        said = f"exchange '{exchange}' in virtual host {vhost.name!r} does not exist, and the setting route, shadow"
        assert sidecar.log().count(said) == 1

    vhost.exchange("ordesr")
    vhost.exchange("watched")
    wait_until("found", lambda: "ok   named exchanges exist" in sidecar.admin("/readyz?verbose").text.splitlines())
    assert (absent("ordesr"), absent("watched")) == (0, 0)

    vhost.delete_exchange("ordesr")
    wait_until("missed again", lambda: absent("ordesr") == 1)
    assert sidecar.log().count("exchange 'ordesr' in virtual host") >= 2


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0"])
def test_metrics_are_well_formed_and_hold_nobodys_data(sidecar: Sidecar, vhost: VirtualHost, accept: str) -> None:
    vhost.ring('or"d\\ers', ["q"])
    vhost.ring("by header", ["q2"], hash_header="customer")
    vhost.exchange("plain", "fanout")
    headers = {"Amqp-Message-Id": SECRET_ID, "Amqp-Header-customer": SECRET_VALUE}
    for exchange in ('or"d\\ers', "by header", "plain", SECRET_KEY):
        sidecar.publish(exchange, SECRET_KEY, SECRET_VALUE.encode(), vhost=vhost.name, headers=headers)

    answer = sidecar.admin("/metrics", {"Accept": accept})

    assert answer.status == 200
    for private in (SECRET_KEY, SECRET_ID, SECRET_VALUE, "127.0.0.1", *SECRETS):
        assert private not in answer.text
    if accept == "*/*":
        assert promtool_complaints(answer.text) == ""
    else:
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


def test_metrics_count_what_happened(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q1", "q2"])
    vhost.exchange("plain", "direct")
    latencies = sidecar.metric("ringproxy_confirm_latency_seconds_count")
    for n in range(3):
        assert sidecar.publish("orders", f"{n}", vhost=vhost.name).status == 200
    sidecar.publish("plain", "nobody", vhost=vhost.name)

    def count(name: str, **labels: str) -> float:
        return sidecar.metric(name, vhost=vhost.name, **labels)

    assert count("ringproxy_publishes_total", exchange="orders", outcome="confirmed", ingress="http") == 3
    assert count("ringproxy_publishes_total", exchange="plain", outcome="unroutable", ingress="http") == 1
    assert count("ringproxy_passed_total", exchange="plain", reason="type") == 1
    assert count("ringproxy_ring_destinations", exchange="orders") == 2
    assert count("ringproxy_ring_changes_total", exchange="orders") == 1
    fingerprint = sidecar.ring(vhost.name, "orders")["ring"]
    assert count("ringproxy_ring_fingerprint", exchange="orders", fingerprint=fingerprint) == 1
    assert count("ringproxy_ring_routed", exchange="orders") == 1
    assert count("ringproxy_broker_connected") == 1
    assert sidecar.metric("ringproxy_confirm_latency_seconds_count") == latencies + 4
    assert sidecar.metric("ringproxy_in_flight") == 0
    assert sidecar.metric("ringproxy_build_info") == 1


def test_no_secret_in_any_answer(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", ["q"])
    sidecar.publish("orders", SECRET_KEY, vhost=vhost.name)

    for path in ("/livez", "/startupz", "/readyz?verbose", "/metrics", "/rings"):
        text = sidecar.admin(path).text
        for secret in (*SECRETS, SECRET_KEY):
            assert secret not in text
