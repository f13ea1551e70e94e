"""A queue that comes to dead-letter under its own name: the exchange is passed, and counted, or refused."""

import json

import pytest
from pamqp.commands import Channel

from proxy.commands.explain import explain
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
SOON = {"sync_interval": "0.2"}


def passed(sidecar: Sidecar, vhost: VirtualHost) -> float:
    """Return the metric that the alert RingproxyNotRouted reads of the exchange."""
    return sidecar.metric("ringproxy_passed_total", vhost=vhost.name, exchange="orders", reason="dead_letter")


def test_a_policy_on_one_queue_passes_the_exchange_and_the_alerts_metric_grows(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(**SOON)
    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == owner(QUEUES, "k")
    assert passed(sidecar, vhost) == 0

    vhost.policy("dead", "^q2$", "queues", dead_letter_exchange="dlx")

    def counted() -> float:
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        return passed(sidecar, vhost)

    first = wait_until("passed natively", counted)
    assert counted() > first
    assert "'q2' (policy 'dead')" in sidecar.log()
    assert "note not routed (dead_letter): 'orders' in " in sidecar.admin("/readyz?verbose").text
    assert sidecar.admin("/readyz").status == 200


def test_refused_where_so_set(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(**SOON, on_dead_letter="refuse", lookup_timeout="60")
    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == owner(QUEUES, "k")

    # By its argument: RabbitMQ shows a policy up to 5 s late.
    vhost.queue("q4", x_dead_letter_exchange="dlx")
    vhost.bind("orders", "q4")

    wait_until("refused", lambda: sidecar.publish("orders", "k", vhost=vhost.name).status == 503)
    vhost.drain_all()
    remedy = "give it a dead-letter-routing-key, or set on_dead_letter = rewrite or pass"
    why = (
        "exchange 'orders' takes no publishes: "
        f"queue 'q4' would dead-letter under its own name (its argument x-dead-letter-exchange): {remedy}"
    )
    for answer in (sidecar.publish("orders", "k", vhost=vhost.name), sidecar.route("orders", "k", vhost=vhost.name)):
        assert answer.problem(503, "unavailable", "unavailable", retryable=True) == why
    batch = sidecar.batch("orders", [{"key": "k", "payload": "p"}], vhost=vhost.name)
    assert batch.status == 503
    assert why in json.dumps(batch.json)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.channel(2)
        peer.publish(1, "orders", "k")
        closed = peer.expect(1, Channel.Close)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (541, 60, 40)
        assert closed.reply_text == f"INTERNAL_ERROR - {why}"
        peer.tell(1, Channel.CloseOk())
        peer.publish(2, "", "q1")
        peer.confirm(2)
        peer.goodbye()
    assert sum(map(len, vhost.drain_all().values())) == 1
    unavailable = {"vhost": vhost.name, "exchange": "orders", "outcome": "unavailable"}
    assert sidecar.metric("ringproxy_publishes_total", ingress="amqp", **unavailable) == 1
    assert sidecar.metric("ringproxy_publishes_total", ingress="http", **unavailable) >= 2
    assert passed(sidecar, vhost) == 0
    explained = explain(sidecar.admin_url, vhost.name, "orders", "k")
    assert f"refused      publishes are refused: {why.partition(': ')[2]}" in explained
    assert "passed " not in explained
    shown = sidecar.ring(vhost.name, "orders")
    assert (shown["passed"], shown["refused"]) == (None, why.partition(": ")[2])
    assert "note refused (dead_letter): 'orders' in " in sidecar.admin("/readyz?verbose").text

    vhost.unbind("orders", "q4")

    wait_until("routed again", lambda: sidecar.publish("orders", "k", vhost=vhost.name).status == 200)
    assert sidecar.publish("orders", "k", vhost=vhost.name).queue() == owner(QUEUES, "k")


def test_a_refused_ring_behind_a_ring(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.queue("dies", x_dead_letter_exchange="dlx")
    vhost.exchange("behind")
    vhost.bind("behind", "dies")
    vhost.exchange("orders")
    vhost.bind("orders", "behind", kind="e")
    sidecar = start_sidecar(on_dead_letter="refuse", lookup_timeout="60")
    why = "exchange 'behind' takes no publishes: queue 'dies' would dead-letter under its own name (its argument "

    for answer in (sidecar.publish("orders", "k", vhost=vhost.name), sidecar.route("orders", "k", vhost=vhost.name)):
        assert answer.problem(503, "unavailable", "unavailable", retryable=True).startswith(why)
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1)
        peer.publish(1, "orders", "k")
        assert peer.expect(1, Channel.Close).reply_text.startswith(f"INTERNAL_ERROR - {why}")
        peer.tell(1, Channel.CloseOk())
        peer.goodbye()
    assert vhost.drain("dies") == []
