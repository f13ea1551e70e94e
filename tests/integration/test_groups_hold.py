"""Messages in series that fail for longer than groups_hold_max."""

import time

import pytest
from pamqp.commands import Basic

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, publish, sharded, waiting
from tests.integration.test_groups_dead_letters import buried, consume, grave
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = pytest.mark.versions

TIMES = {"groups_retry_delay": "0.2", "groups_retry_delay_max": "0.2", "groups_hold_max": "2"}
IN_SERIES = {"groups": "orders", "groups_in_series": "orders", "groups_window": "10", **TIMES}


def work(wire: Wire) -> list[bytes]:
    """Take one message: return it if it is `bad 0`, and ack any other one, which is in the result."""
    content = wire.content(1, Basic.Deliver)
    assert isinstance(content.method, Basic.Deliver)
    number = content.method.delivery_tag or 0
    is_bad = content.body == b"bad 0"
    wire.tell(1, Basic.Reject(number, True) if is_bad else Basic.Ack(number))
    return [] if is_bad else [content.body]


def work_for(wire: Wire, seconds: float) -> list[bytes]:
    """Take the messages that come for so many seconds, of which the last one is `bad 0`; tell which others came."""
    until = time.monotonic() + seconds
    done: list[bytes] = []
    while time.monotonic() < until:
        done += work(wire)
    return done


def test_a_message_that_fails_for_too_long_becomes_a_dead_letter(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    grave(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    sidecar = start_sidecar(**IN_SERIES, groups_dead_letter="dead")
    publish(client, sidecar.amqp_port, vhost, [("orders", "bad", b"bad 0"), ("orders", "bad", b"bad 1")])
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        done: list[bytes] = []
        while not done:
            done += work(wire)
        (letter,) = buried(vhost)
        assert done == [b"bad 1"]
        assert (letter.body, letter.headers["x-ring-reason"]) == (b"bad 0", "held-too-long")
        assert letter.headers["x-ring-attempt"] > 5
        wire.goodbye()


def test_without_dead_letters_the_shard_stands_until_the_message_is_done(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, SHARDS[:1])
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    sidecar = start_sidecar(**IN_SERIES)
    labels = {"vhost": vhost.name, "exchange": "orders"}
    publish(client, sidecar.amqp_port, vhost, [("orders", "bad", b"bad 0"), ("orders", "good", b"before")])

    def ready() -> int:
        return waiting(client, port_of(broker.amqp_url), vhost, SHARDS[:1])[SHARDS[0]]

    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        assert work_for(wire, 3.0) == [b"before"]
        assert "(groups_hold_max): its shard stands until the message is settled" in sidecar.log()
        later = [("orders", f"good {number}", b"later %d" % number) for number in range(30)]
        publish(client, sidecar.amqp_port, vhost, later)
        assert work_for(wire, 1.0) == []
        wait_until("the window is full", lambda: ready() == 30 - 9)
        wait_until("the metric", lambda: sidecar.metric("ringproxy_group_shards_standing", **labels) == 1)
        content = wire.content(1, Basic.Deliver)
        assert content.body == b"bad 0"
        assert isinstance(content.method, Basic.Deliver)
        wire.tell(1, Basic.Ack(content.method.delivery_tag or 0))
        done: list[bytes] = []
        while len(done) < 30:
            done += work(wire)
        assert sorted(done) == sorted(body for _, _, body in later)
        wire.goodbye()
