"""TLS on every way in and out, with certificates of the tests' own that are replaced while it runs."""

import http.client
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from pika import BlockingConnection, ConnectionParameters, PlainCredentials, SSLOptions
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from yarl import URL

from testbed.broker import installation
from testbed.node import Certificates, Node, private_node
from tests.certificates import Authority, Pair
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Answer, Sidecar, publish_path
from tests.integration.wire_client import Client, wire

BROKER = os.environ.get("BROKER", "")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Pair:
    """The files of a sidecar's certificate, to be replaced."""
    files = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    files.replace(authority.issue("sidecar"))
    return files


def trusting(authority: Authority, shown: Pair | None = None) -> ssl.SSLContext:
    """A client's context: whom it trusts, and what it shows."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


def ask(sidecar: Sidecar, context: ssl.SSLContext, path: str, key: str = "k") -> Answer:
    """A publish over TLS."""
    with closing(
        http.client.HTTPSConnection("localhost", sidecar.port, timeout=DEADLINE_SECONDS, context=context)
    ) as connection:
        connection.request("POST", path, b"over TLS", {"Routing-Key": key})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())


def trusts(sidecar: Sidecar, context: ssl.SSLContext, path: str) -> bool:
    """Whether a new connection gets through."""
    try:
        return ask(sidecar, context, path).status == 200
    except ssl.SSLCertVerificationError:
        return False


def connected(sidecar: Sidecar, client: Client, vhost: str, context: ssl.SSLContext) -> BlockingConnection:
    """pika, over TLS to the sidecar."""
    return BlockingConnection(
        ConnectionParameters(
            "localhost",
            sidecar.amqp_port,
            vhost,
            PlainCredentials(client.user, client.password),
            ssl_options=SSLOptions(context, "localhost"),
            socket_timeout=DEADLINE_SECONDS,
        )
    )


def settings(server: Pair) -> dict[str, str]:
    return {"tls_cert_file": str(server.certificate), "tls_key_file": str(server.key)}


def test_http_over_tls_with_a_certificate_that_is_replaced(
    start_sidecar: StartSidecar, vhost: VirtualHost, authority: Authority, other: Authority, server: Pair
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    path = publish_path("orders", vhost.name)
    sidecar = start_sidecar(**settings(server))
    assert ask(sidecar, trusting(authority), path).receipt()["outcome"] == "confirmed"
    assert not trusts(sidecar, trusting(other), path)
    with pytest.raises((http.client.HTTPException, OSError)):
        sidecar.publish("orders", "k", vhost=vhost.name)  # in the clear
    # A connection that is open stays open, with the certificate that it began with.
    with closing(http.client.HTTPSConnection("localhost", sidecar.port, context=trusting(authority))) as open_before:
        open_before.connect()
        server.replace(other.issue("sidecar"))
        wait_until("the new certificate", lambda: trusts(sidecar, trusting(other), path))
        assert not trusts(sidecar, trusting(authority), path)
        open_before.request("POST", path, b"", {"Routing-Key": "k"})
        assert open_before.getresponse().status == 200
    server.key.write_text("broken")
    wait_until("its mistake is told", lambda: "tls_key_file: " in sidecar.log())
    assert trusts(sidecar, trusting(other), path)


def test_amqp_over_tls_to_the_sidecar(
    start_sidecar: StartSidecar,
    vhost: VirtualHost,
    client: Client,
    authority: Authority,
    other: Authority,
    server: Pair,
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    sidecar = start_sidecar(**settings(server))
    connection = connected(sidecar, client, vhost.name, trusting(authority))
    channel = connection.channel()
    channel.confirm_delivery()
    body = bytes(range(256)) * 4096  # many frames, and many records of TLS
    for number in range(20):
        channel.basic_publish("orders", f"key-{number}", body)
    assert sidecar.metric("ringproxy_amqp_sessions") == 1
    connection.close()
    wait_until("the session ends", lambda: sidecar.metric("ringproxy_amqp_sessions") == 0)
    delivered = [message for messages in vhost.drain_all().values() for message in messages]
    assert [message.body for message in delivered] == [body] * 20
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(sidecar, client, vhost.name, trusting(other))
    with wire(sidecar.amqp_port) as plain, pytest.raises((EOFError, ConnectionError, AssertionError)):
        plain.handshake(client.user, client.password)
    with wire(sidecar.amqp_port):  # has not shaken hands yet
        assert sidecar.metric("ringproxy_amqp_sessions") == 0
    # None of these three was ever a session, or the end would wait for them.
    assert sidecar.metric("ringproxy_amqp_sessions_opened_total") == 1


def test_a_session_over_tls_ends_in_good_order_when_the_sidecar_stops(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, authority: Authority, server: Pair
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    sidecar = start_sidecar(**settings(server))
    connection = connected(sidecar, client, vhost.name, trusting(authority))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("orders", "k", b"before")
    sidecar.stop()
    with pytest.raises(ConnectionClosedByBroker) as told:
        connection.process_data_events(DEADLINE_SECONDS)
    assert told.value.reply_code == 320


def test_client_certificates(
    start_sidecar: StartSidecar,
    vhost: VirtualHost,
    client: Client,
    authority: Authority,
    other: Authority,
    server: Pair,
) -> None:
    vhost.ring("orders", ["q1", "q2"])
    path = publish_path("orders", vhost.name)
    # With them, an address that others reach needs no tokens.
    sidecar = start_sidecar(
        **settings(server), client_ca_file=str(authority.certificate), http_listen="0.0.0.0:0", amqp_listen="0.0.0.0:0"
    )
    known = trusting(authority, authority.issue("client"))
    assert ask(sidecar, known, path).status == 200
    connected(sidecar, client, vhost.name, known).close()
    for stranger in (trusting(authority), trusting(authority, other.issue("stranger"))):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            ask(sidecar, stranger, path)
        with pytest.raises((AMQPConnectionError, OSError)):
            connected(sidecar, client, vhost.name, stranger)
    assert "insecure" not in sidecar.log()


@pytest.fixture(scope="module")
def node(authority: Authority) -> Iterator[Node]:
    if BROKER.startswith(("amqp:", "docker:")):
        pytest.skip("this broker is not a private node of the testbed")
    certificates = Certificates(authority.certificate, *authority.issue("broker"))
    with private_node(installation(BROKER), certificates) as made:
        made.start()
        yield made


def test_tls_to_the_broker_and_the_management_api(
    start_sidecar: StartSidecar, node: Node, client: Client, authority: Authority, other: Authority, tmp_path: Path
) -> None:
    home = VirtualHost(BrokerApi(node.management_url), "/", [])
    home.ring("orders", ["q1", "q2"])
    ca, own = tmp_path / "ca.crt", Pair(tmp_path / "client.crt", tmp_path / "client.key")
    shutil.copy(authority.certificate, ca)
    own.replace(authority.issue("sidecar-client"))
    sidecar = start_sidecar(
        broker_url=node.amqps_url,
        management_url=node.https_url,
        ca_file=str(ca),
        client_cert_file=str(own.certificate),
        client_key_file=str(own.key),
        lookup_timeout="2",
        management_timeout="2",
    )
    sidecar.wait_ready()
    assert sidecar.publish("orders", "k", b"over TLS").receipt()["outcome"] == "confirmed"
    guest = Client("guest", "guest")
    with guest.pika(sidecar.amqp_port, "/") as channel:
        channel.basic_publish("orders", "k", b"over TLS too")
    assert [m.body for messages in home.drain_all().values() for m in messages] == [b"over TLS", b"over TLS too"]
    # Another CA: what is connected stays, and nothing new is trusted, without a restart.
    shutil.copy(other.certificate, ca)
    wait_until("the management API is not trusted", lambda: "certificate verify failed" in sidecar.log())
    with wire(sidecar.amqp_port) as refused, pytest.raises(EOFError):
        refused.handshake("guest", "guest")
    shutil.copy(authority.certificate, ca)
    wait_until("the management API is trusted", lambda: sidecar.admin("/readyz").status == 200)
    with guest.pika(sidecar.amqp_port, "/") as channel:
        channel.basic_publish("orders", "k", b"trusted again")


def test_a_broker_whose_certificate_nobody_vouches_for_is_not_spoken_to(
    start_sidecar: StartSidecar, node: Node, other: Authority
) -> None:
    sidecar = start_sidecar(
        broker_url=node.amqps_url,
        management_url=node.management_url,
        ca_file=str(other.certificate),
        lookup_timeout="1",
    )
    answer = sidecar.publish("orders", "k")
    assert "certificate verify failed" in answer.problem(503, "unavailable", "unavailable", retryable=True)


def test_a_port_of_another_kind_or_without_tls_is_told_with_what_to_do(
    start_sidecar: StartSidecar, node: Node, authority: Authority, other: Authority
) -> None:
    amqp, api = URL(node.amqp_url), URL(node.management_url)
    amqps, https = URL(node.amqps_url), URL(node.https_url)
    strange = {"ca_file": str(other.certificate)}
    known = {"ca_file": str(authority.certificate)}
    cases: list[tuple[dict[str, str], str]] = [
        ({"management_url": str(api.with_port(amqp.port))}, f"{api.host}:{amqp.port} is an AMQP port"),
        ({"management_url": str(api.with_port(https.port))}, f"{api.host}:{https.port} has TLS; write https://"),
        ({"management_url": str(api.with_scheme("https").with_port(api.port))}, "this port has no TLS"),
        ({"management_url": str(https), **strange}, f"{https.host}:{https.port}: certificate verify failed: "),
        ({"management_url": str(https), **known}, "set client_cert_file and client_key_file"),
        ({"broker_url": str(amqp.with_port(api.port))}, f":{api.port}: no AMQP answer in time; is it an AMQP port"),
        ({"broker_url": str(amqp.with_port(amqps.port))}, f":{amqps.port}: the connection was lost before AMQP began"),
        ({"broker_url": str(amqp.with_scheme("amqps").with_port(amqp.port))}, f":{amqp.port}: wrong version number"),
        ({"broker_url": str(amqps), **strange}, "ca_file must name the CA that signed the certificate of the server"),
        ({"broker_url": str(amqps), **known}, "set client_cert_file and client_key_file"),
    ]
    common = {"broker_url": str(amqp), "management_url": str(api), "lookup_timeout": "1", "management_timeout": "2"}
    running = [(start_sidecar(**common | changes), told) for changes, told in cases]
    for sidecar, told in running:
        wait_until(f"the log says {told}", partial(says, sidecar, told))


def says(sidecar: Sidecar, told: str) -> bool:
    return told in sidecar.log()
