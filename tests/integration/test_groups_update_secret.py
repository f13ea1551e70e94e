"""A member whose program renews its secret: RabbitMQ 4.3 looks at once whether its consumers may still consume.

Older releases look at the rights of a consumer only when it begins (RabbitMQ's changes 16092 and 17029).
"""

import pytest
from pamqp.commands import Basic, Connection

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import SHARDS, Got, consume, deliveries, publish, sharded
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire

pytestmark = pytest.mark.versions


def renew(wire: Wire) -> None:
    """Give the broker the same secret once more; nothing but the answer comes meanwhile."""
    wire.ask(0, Connection.UpdateSecret("reader", "renewed"), Connection.UpdateSecretOk)


def one_each(client: Client, sidecar: Sidecar, vhost: VirtualHost, body: bytes) -> None:
    """Publish one message to each shard."""
    publish(client, sidecar.amqp_port, vhost, [("", shard, body) for shard in SHARDS])


def refused(sidecar: Sidecar) -> float:
    return sidecar.metric("ringproxy_group_links_refused", exchange="orders")


def test_a_renewed_secret_keeps_consumers_and_ends_those_whose_right_is_gone(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    vhost.api.ask("PUT", "users", "reader", body={"password": "reader", "tags": ""})
    try:
        vhost.permit("reader", read=".*")
        with Client("reader", "reader").session(sidecar.amqp_port, vhost.name) as wire:
            wire.channel(1, confirm=False)
            consume(wire, 1)
            renew(wire)
            one_each(client, sidecar, vhost, b"kept")
            got = deliveries(wire, 1, 3)
            assert {each.body for each in got} == {b"kept"}

            vhost.permit("reader", read=r"^orders(\.0)?$")
            renew(wire)
            looks_at_once = tuple(map(int, broker.version.split(".")[:2])) >= (4, 3)
            if looks_at_once:
                wait_until("two refusals", lambda: refused(sidecar) == 2)
            one_each(client, sidecar, vhost, b"later")
            later = deliveries(wire, 1, 1 if looks_at_once else 3)
            assert {each.body for each in later} == {b"later"}
            # Answers to deliveries of channels that the broker has closed do not disturb those of the others.
            for each in (*got, *later):
                wire.tell(1, Basic.Ack(each.number))

            vhost.permit("reader", read=".*")
            if looks_at_once:
                # RabbitMQ has taken back what was not acked, and brings it first.
                again = deliveries(wire, 1, 4)
                assert [each.body for each in again].count(b"kept") == 2
                assert in_order(again)
                wait_until("no refusal", lambda: refused(sidecar) == 0)
                wire.tell(1, Basic.Ack(0, True))
            one_each(client, sidecar, vhost, b"last")
            assert {each.body for each in deliveries(wire, 1, 3)} == {b"last"}
            wire.goodbye()
    finally:
        vhost.api.ask("DELETE", "users", "reader")
    assert sidecar.log().count("the broker has cancelled the consumer") == (2 if looks_at_once else 0)


def in_order(got: list[Got]) -> bool:
    """Whether each shard's `kept` comes before its `later`: by the shard's name, the key of what was published."""
    return all([each.body for each in got if each.key == shard] == [b"kept", b"later"] for shard in SHARDS[1:])
