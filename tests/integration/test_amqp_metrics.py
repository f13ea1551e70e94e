"""A scrape of AMQP sessions, while they are open and after."""

from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Confirm, Connection

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.relay import relay
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, raw_frame

QUEUES = ["q1", "q2", "q3"]


class Metrics:
    """The metrics of one exchange."""

    def __init__(self, sidecar: Sidecar, vhost: VirtualHost, exchange: str = "orders") -> None:
        self._sidecar, self._labels = sidecar, {"vhost": vhost.name, "exchange": exchange}

    def outcome(self, outcome: str) -> float:
        return self._sidecar.metric("ringproxy_publishes_total", ingress="amqp", outcome=outcome, **self._labels)

    def passed(self, reason: str) -> float:
        return self._sidecar.metric("ringproxy_passed_total", reason=reason, **self._labels)


@pytest.fixture
def peer(sidecar: Sidecar, vhost: VirtualHost, client: Client) -> Iterator[Wire]:
    with client.session(sidecar.amqp_port, vhost.name) as made:
        yield made


def test_publishes_by_outcome(sidecar: Sidecar, vhost: VirtualHost, peer: Wire) -> None:
    """All of it shows while the session is open."""
    vhost.ring("orders", QUEUES)
    metrics = Metrics(sidecar, vhost)
    peer.ask(1, Channel.Open(), Channel.OpenOk)
    for n in range(7):
        peer.publish(1, "orders", f"{n}")
    wait_until("sent", lambda: metrics.outcome("sent") == 7)
    peer.ask(1, Confirm.Select(), Confirm.SelectOk)
    for n in range(5):
        peer.publish(1, "orders", f"{n}")
    peer.confirm(1, 5)
    assert metrics.outcome("confirmed") == 5
    assert metrics.outcome("sent") == 7
    key = next(f"{n}" for n in range(100) if owner(QUEUES, f"{n}") == "q2")
    vhost.delete_queue("q2")
    peer.publish(1, "orders", key, mandatory=True)
    peer.expect(1, Basic.Ack)
    assert metrics.outcome("confirmed") == 6
    assert sidecar.metric("ringproxy_rerouted_total", vhost=vhost.name, ingress="amqp", exchange="orders") == 1
    for queue in vhost.queues():
        vhost.delete_queue(queue)
    peer.publish(1, "orders", key, mandatory=True)
    peer.content(1, Basic.Return)
    peer.expect(1, Basic.Ack)
    assert metrics.outcome("unroutable") == 1
    assert metrics.outcome("confirmed") == 6
    assert metrics.outcome("nacked") == metrics.outcome("unknown") == 0


def test_nacks(sidecar: Sidecar, vhost: VirtualHost, peer: Wire) -> None:
    vhost.exchange("orders")
    vhost.queue("full", x_max_length=1, x_overflow="reject-publish")
    vhost.bind("orders", "full")
    peer.channel()
    for _ in range(20):
        peer.publish(1, "orders", "k")
    told = list(peer.answers(1, 20).values())
    metrics = Metrics(sidecar, vhost)
    assert "nack" in told
    assert metrics.outcome("confirmed") == told.count("ack")
    assert metrics.outcome("nacked") == told.count("nack")
    assert len(vhost.drain("full")) == told.count("ack")


def test_passed_by_reason(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.exchange("empty")
    vhost.exchange("inside", internal=True)
    vhost.ring("shadowed", QUEUES)
    vhost.ring("alone", QUEUES)
    vhost.ring("dead", ["d"])
    vhost.queue("dies", x_dead_letter_exchange="dlx")
    vhost.bind("dead", "dies")
    vhost.exchange("to inside")
    vhost.bind("to inside", "inside", kind="e")
    reasons = {
        "": "type",
        "amq.topic": "type",
        "empty": "no_bindings",
        "shadowed": "shadow",
        "alone": "pass",
        "dead": "dead_letter",
        "to inside": "internal_destination",
    }
    sidecar = start_sidecar(shadow="shadowed", **{"pass": "alone"})
    sidecar.ring(vhost.name, "shadowed")  # or the first publish is not counted by destination
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel()
        for exchange in reasons:
            for n in range(3):
                peer.publish(1, exchange, f"{n}")
        peer.confirm(1, 3 * len(reasons))
        # The bindings of an exchange that is left alone are never read, so that only its reason is known.
        found = {
            e: sidecar.metric("ringproxy_passed_total", reason=r, vhost=vhost.name, exchange=e)
            for e, r in reasons.items()
        }
        alone = found.pop("alone")
        assert alone or sidecar.metric("ringproxy_passed_total", reason="pass") == 3
        assert found == dict.fromkeys(found, 3)
        assert Metrics(sidecar, vhost, "amq.topic").outcome("passed") == 3
        assert sidecar.metric("ringproxy_shadowed_total", vhost=vhost.name, exchange="shadowed") == 3
        # An exchange that does not exist is the broker's to refuse, and no label.
        peer.publish(1, "no such", "k")
        assert peer.expect(1, Channel.Close).reply_code == 404
        assert sidecar.metric("ringproxy_passed_total", reason="absent", exchange="", vhost="") == 1
        assert "no such" not in sidecar.admin("/metrics").text
        peer.tell(1, Channel.CloseOk())
        peer.goodbye()


def test_unknown_at_the_end_and_unavailable(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    vhost.ring("orders", QUEUES)
    vhost.ring("never read", QUEUES)
    with relay(login.broker_url) as (link, broker_url), relay(login.management_url) as (api, management_url):
        sidecar = start_sidecar(broker_url=broker_url, management_url=management_url, lookup_timeout="0.5")
        metrics = Metrics(sidecar, vhost)
        with client.session(sidecar.amqp_port, vhost.name) as peer:
            peer.channel()
            peer.publish(1, "orders", "k")
            peer.confirm(1)
            api.cut()
            peer.channel(2)
            peer.publish(2, "never read", "k")
            assert peer.expect(2, Channel.Close).reply_code == 541
            peer.tell(2, Channel.CloseOk())
            assert sidecar.metric("ringproxy_publishes_total", ingress="amqp", outcome="unavailable") == 1
            link.freeze()
            for n in range(4):
                peer.publish(1, "orders", f"{n}")
            wait_until("in flight", lambda: sidecar.metric("ringproxy_in_flight") == 4)
            assert metrics.outcome("unknown") == 0
        link.cut()
        link.thaw()
        wait_until("unknown", lambda: metrics.outcome("unknown") == 4)
        assert metrics.outcome("confirmed") == 1
        assert sidecar.metric("ringproxy_in_flight") == 0


def test_sessions_bytes_and_frames(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar()
    ends = "ringproxy_amqp_session_ends_total"
    with client.session(sidecar.amqp_port, vhost.name) as one, client.session(sidecar.amqp_port, vhost.name) as two:
        assert sidecar.metric("ringproxy_amqp_sessions") == 2
        assert sidecar.metric("ringproxy_amqp_sessions_opened_total") == 2
        one.channel()
        before = {what: sidecar.metric(f"ringproxy_amqp_{what}_total", leg="client") for what in ("bytes", "frames")}
        body = bytes(50_000)
        one.publish(1, "orders", "k", body)
        one.confirm(1)
        # The protocol header is counted too; it is no frame.
        frames = sidecar.metric("ringproxy_amqp_frames_total", leg="client")
        assert frames == before["frames"] + 3
        grown = sidecar.metric("ringproxy_amqp_bytes_total", leg="client") - before["bytes"]
        assert len(body) < grown < len(body) + 200
        assert sidecar.metric("ringproxy_amqp_frames_total", leg="broker") == 3 + 3 + 2 + 1
        assert sidecar.metric("ringproxy_confirm_latency_seconds_count", ingress="amqp") == 1
        assert 0 < sidecar.metric("ringproxy_confirm_latency_seconds_sum", ingress="amqp") < 30
        assert sidecar.metric(ends) == 0
        two.send(raw_frame(3, 0, b"!"))
        assert two.expect(0, Connection.Close).reply_code == 505
        two.tell(0, Connection.CloseOk())
        wait_until("refused", lambda: sidecar.metric(ends, reason="protocol") == 1)
        assert sidecar.metric("ringproxy_amqp_sessions") == 1
        one.goodbye()
    wait_until("ended", lambda: sidecar.metric(ends, reason="client") == 1)
    assert sidecar.metric(ends) == 2
    assert sidecar.metric("ringproxy_amqp_sessions") == 0
    # Nothing is forgotten with the sessions.
    assert sidecar.metric("ringproxy_amqp_frames_total", leg="client") == frames + 1
    assert Metrics(sidecar, vhost).outcome("confirmed") == 1
