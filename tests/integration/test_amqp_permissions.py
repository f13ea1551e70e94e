"""The rights of users of the AMQP ingress: no more than the documents say, and a refusal says what is missing."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar, with_login
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2"]
WHO = Client("least", "pw-least")


@pytest.fixture
def least(vhost: VirtualHost) -> Iterator[Client]:
    """A user without any right yet, and a ring `orders`."""
    vhost.ring("orders", QUEUES)
    vhost.api.ask("PUT", "users", WHO.user, body={"password": WHO.password, "tags": ""})
    yield WHO
    vhost.api.ask("DELETE", "users", WHO.user)


def test_the_rights_that_publishing_takes(sidecar: Sidecar, vhost: VirtualHost, least: Client) -> None:
    vhost.permit(least.user, configure="", write="^(orders|amq\\.default)$", read="")
    with least.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for n in range(20):
            peer.publish(1, "orders", f"{n}", b"%d" % n, mandatory=bool(n % 2))
        peer.confirm(1, 20)
        peer.goodbye()
    landed = {m.body.decode(): queue for queue, got in vhost.drain_all().items() for m in got}
    assert landed == {f"{n}": owner(QUEUES, f"{n}") for n in range(20)}


def test_without_the_default_exchange_the_refusal_says_what_to_grant(
    sidecar: Sidecar, vhost: VirtualHost, least: Client
) -> None:
    vhost.permit(least.user, write="^orders$")
    with least.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.channel(2)
        peer.publish(1, "orders", "k", b"refused")
        closed = peer.expect(1, Channel.Close)
        assert closed.reply_code == 403
        assert closed.reply_text.startswith("ACCESS_REFUSED - ")
        assert "grant write on amq.default" in closed.reply_text
        assert (closed.class_id, closed.method_id) == (60, 40)
        peer.tell(1, Channel.CloseOk())
        assert "grant write on amq.default" in sidecar.log()
        # Another channel of the connection is not touched, and the number is free again.
        vhost.permit(least.user, write="^(orders|amq\\.default)$")
        peer.publish(2, "orders", "k", b"granted")
        peer.confirm(2)
        peer.channel(1)
        peer.publish(1, "orders", "k", b"granted")
        peer.confirm(1)
        peer.goodbye()
    assert {m.body for got in vhost.drain_all().values() for m in got} == {b"granted"}


def test_an_exchange_behind_the_ring_needs_its_own_right(sidecar: Sidecar, vhost: VirtualHost, least: Client) -> None:
    vhost.exchange("outer")
    vhost.exchange("behind", "topic")
    vhost.bind("outer", "behind", kind="e")
    vhost.permit(least.user, write="^(outer|amq\\.default)$")
    with least.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "outer", "k")
        closed = peer.expect(1, Channel.Close)
        assert closed.reply_code == 403
        assert "grant write on behind" in closed.reply_text


def test_other_refusals_are_the_brokers_own(sidecar: Sidecar, vhost: VirtualHost, least: Client) -> None:
    vhost.permit(least.user, write="^orders$")
    with least.session(sidecar.amqp_port, vhost.name) as peer:
        for exchange in ("amq.fanout", "", "no such"):
            peer.channel()
            peer.publish(1, exchange, "q1", b"refused")
            closed = peer.expect(1, Channel.Close)
            assert closed.reply_code in (403, 404)
            assert "ringproxy" not in closed.reply_text, exchange
            peer.tell(1, Channel.CloseOk())
        peer.channel()
        peer.tell(1, Basic.Get(0, "q1", True))
        assert peer.expect(1, Channel.Close).reply_code == 403


def test_a_ring_needs_no_right_to_its_exchange_itself(sidecar: Sidecar, vhost: VirtualHost, least: Client) -> None:
    """The broker sees publishes to the default exchange only: who may write there reaches every queue."""
    vhost.permit(least.user, write="^amq\\.default$")
    with least.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        peer.publish(1, "orders", "k")
        peer.confirm(1)


def test_where_nobody_publishes_over_http_the_sidecars_own_user_needs_no_right(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, least: Client
) -> None:
    """But a row of permissions, to log in."""
    name, password = "idle", "pw-idle"
    vhost.api.ask("PUT", "users", name, body={"password": password, "tags": ""})
    try:
        url = with_login(login.broker_url, name, password, "/" + quote(vhost.name, safe=""))
        sidecar = start_sidecar(broker_url=url)
        wait_until("a refusal", lambda: "530" in sidecar.admin("/readyz?verbose").text)
        vhost.permit(name, write="")
        sidecar.wait_ready()
        assert sidecar.metric("ringproxy_broker_connected", vhost=vhost.name) == 1
        vhost.permit(least.user, write="^(orders|amq\\.default)$")
        with least.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)
        assert sidecar.publish("orders", "k").status == 403
    finally:
        vhost.api.ask("DELETE", "users", name)


@pytest.mark.parametrize("missing", ["the tag", "a permission"])
def test_the_user_that_reads_bindings(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, missing: str
) -> None:
    """It takes the tag management and any permission in the virtual host, and nothing else."""
    vhost.ring("orders", QUEUES)
    name, password = "reader", "pw-reader"
    vhost.api.ask(
        "PUT", "users", name, body={"password": password, "tags": "" if missing == "the tag" else "management"}
    )
    try:
        if missing == "the tag":
            vhost.permit(name, write="")
        url = with_login(login.management_url, name, password)
        sidecar = start_sidecar(management_url=url, lookup_timeout="1")
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            closed = peer.expect(1, Channel.Close)
            assert closed.reply_code == 541
            assert "orders" in closed.reply_text
            peer.tell(1, Channel.CloseOk())
            vhost.api.ask("PUT", "users", name, body={"password": password, "tags": "management"})
            vhost.permit(name, write="")

            def confirmed() -> bool:
                peer.channel()
                peer.publish(1, "orders", "k")
                _, frame = peer.read()
                if isinstance(frame, Channel.Close):
                    peer.tell(1, Channel.CloseOk())
                return isinstance(frame, Basic.Ack)

            wait_until("readable", confirmed)
    finally:
        vhost.api.ask("DELETE", "users", name)
