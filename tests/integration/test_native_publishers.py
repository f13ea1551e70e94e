"""Publishes that reach a hash exchange without a sidecar: what the broker counts, and what of it sidecars passed."""

import re

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.native import publish_counted, publish_in
from tests.integration.relay import management_front
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of

pytestmark = pytest.mark.versions

QUEUES = ["q1", "q2", "q3"]
PUBLISH_IN = "ringproxy_exchange_publish_in_total"


def publish(client: Client, sidecar: Sidecar, vhost: VirtualHost, exchange: str, count: int) -> None:
    """Confirmed AMQP publishes."""
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for n in range(count):
            peer.publish(1, exchange, f"{n}")
        peer.confirm(1, count)
        peer.goodbye()


def publish_natively(client: Client, broker: Broker, vhost: VirtualHost, exchange: str, count: int) -> None:
    """Straight to the broker."""
    publish_counted(client, port_of(broker.amqp_url), vhost, exchange, map(str, range(count)))


def shown(sidecar: Sidecar, vhost: VirtualHost, exchange: str = "orders") -> float:
    """The counter; 0 where there is none."""
    return sidecar.metric(PUBLISH_IN, vhost=vhost.name, exchange=exchange)


def counted(sidecar: Sidecar) -> set[str]:
    """The exchanges that have a counter."""
    return set(re.findall(rf'^{PUBLISH_IN}{{exchange="(\w+)",', sidecar.admin("/metrics").text, flags=re.M))


def test_what_a_ring_routes_does_not_count_and_what_goes_straight_to_the_broker_does(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar()
    publish(client, sidecar, vhost, "orders", 20)
    for n in range(5):
        assert sidecar.publish("orders", f"{n}", vhost=vhost.name).status == 200
    # The broker has no such counter before an exchange's first publish.
    assert counted(sidecar) == set()
    publish_natively(client, broker, vhost, "orders", 3)
    wait_until("the broker's count", lambda: shown(sidecar, vhost))
    assert shown(sidecar, vhost) == 3
    assert sidecar.metric("ringproxy_passed_total", vhost=vhost.name, exchange="orders") == 0
    # None of the first 25 was late.
    publish_natively(client, broker, vhost, "orders", 4)
    wait_until("the later ones", lambda: shown(sidecar, vhost) == 7)
    assert sidecar.metric("ringproxy_ring_changes_total", vhost=vhost.name, exchange="orders") == 1


def test_what_sidecars_pass_counts_and_is_told_apart_by_what_they_passed(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    vhost.ring("orders", QUEUES)
    fleet = [start_sidecar(shadow="orders") for _ in range(2)]
    publish_counted(client, fleet[0].amqp_port, vhost, "orders", map(str, range(7)))
    publish_natively(client, broker, vhost, "orders", 2)
    for n in range(4):
        assert fleet[1].publish("orders", f"{n}", vhost=vhost.name).status == 200
    for sidecar in fleet:
        wait_until("all of them", lambda: shown(sidecar, vhost) == 7 + 4 + 2)  # noqa: B023 - at once
    passed = [s.metric("ringproxy_passed_total", vhost=vhost.name, exchange="orders", reason="shadow") for s in fleet]
    assert passed == [7, 4]


def test_a_counter_that_falls_is_shown_as_it_is(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(sync_interval="0.2")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    publish_natively(client, broker, vhost, "orders", 9)
    wait_until("the count", lambda: shown(sidecar, vhost) == 9)
    vhost.delete_exchange("orders")
    vhost.ring("orders", QUEUES)
    wait_until("a new exchange's", lambda: shown(sidecar, vhost) == 0)
    publish_natively(client, broker, vhost, "orders", 2)
    wait_until("from the start", lambda: shown(sidecar, vhost) == 2)


def test_exchanges_that_nobody_routes_have_no_counter(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, broker: Broker
) -> None:
    vhost.exchange("plain", "fanout")
    vhost.ring("alone", QUEUES)
    vhost.ring("orders", ["q4"])
    sidecar = start_sidecar(**{"pass": "alone"})
    for exchange in ("plain", "alone", "orders"):
        publish_natively(client, broker, vhost, exchange, 1)
        publish(client, sidecar, vhost, exchange, 1)
    wait_until("the ring's", lambda: shown(sidecar, vhost) == 1)
    # The broker does count the others.
    assert publish_in(vhost, "plain") >= publish_in(vhost, "orders") == 1
    assert sidecar.ring(vhost.name, "alone")["passed"] == "pass"
    assert counted(sidecar) == {"orders"}


def test_whether_the_management_api_answers(start_sidecar: StartSidecar, login: Login) -> None:
    with management_front(login.management_url) as front:
        sidecar = start_sidecar(management_url=front.url)
        wait_until("an answer", lambda: sidecar.metric("ringproxy_management_up") == 1)
        front.answer("", 500)
        wait_until("none", lambda: sidecar.metric("ringproxy_management_up") == 0)
        front.answers.clear()
        wait_until("an answer again", lambda: sidecar.metric("ringproxy_management_up") == 1)
