"""Exclusive queues as signs of life: how RabbitMQ shows who is a member of a group, and which rights that takes.

Each member binds an exclusive queue to the exchange `orders.group`. No sidecar takes part.
"""

from collections.abc import Callable

import pytest
from pamqp.commands import Basic, Channel, Confirm, Queue

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.consuming import Behaviour, Connect, Consumer, Declare, consumers
from tests.integration.wire_client import Client, port_of, publishing

pytestmark = [pytest.mark.long, pytest.mark.versions]

EXCHANGE = "orders.group"


@pytest.fixture(autouse=True)
def _exchange(vhost: VirtualHost) -> None:
    vhost.exchange(EXCHANGE, "fanout")


def join(peer: Consumer, name: str) -> None:
    """Declare the member's queue, bind it and consume it."""
    peer.open(1)
    peer.ask(1, Queue.Declare(0, name, exclusive=True), Queue.DeclareOk)
    peer.ask(1, Queue.Bind(0, name, EXCHANGE, ""), Queue.BindOk)
    peer.consume(1, name, "member", acks=True)


def members(vhost: VirtualHost) -> set[str]:
    """Return the members' queues, as the management API lists them."""
    bindings = vhost.api.ask("GET", "exchanges", vhost.name, EXCHANGE, "bindings", "source")
    return {binding["destination"] for binding in bindings}


ENDS: dict[str, Callable[[Consumer], None]] = {
    "connection.close": lambda peer: peer.bye(),
    "the socket drops": lambda peer: peer.drop(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_member_is_listed_from_its_binding_to_the_end_of_its_connection(
    connect_consumer: Connect, vhost: VirtualHost, end: str
) -> None:
    """An exclusive queue goes with its connection, and its binding with it, in whatever way the connection ends."""
    a, b = connect_consumer(), connect_consumer()
    join(a, "orders.group.a")
    join(b, "orders.group.b")
    wait_until("both", lambda: members(vhost) == {"orders.group.a", "orders.group.b"})
    ENDS[end](a)
    wait_until("one left", lambda: members(vhost) == {"orders.group.b"})


def test_a_publish_reaches_all_members_and_comes_back_where_there_are_none(connect_consumer: Connect) -> None:
    """A member can tell the others that it came, or that it is alone, without the management API."""
    a, b, publisher = connect_consumer(), connect_consumer(), connect_consumer()
    publisher.open(1)
    publisher.ask(1, Confirm.Select(), Confirm.SelectOk)
    publisher.wire.send(publishing(1, EXCHANGE, "", b"0", mandatory=True))
    assert publisher.expect(1, Basic.Return).reply_code == 312
    publisher.expect(1, Basic.Ack)
    join(a, "orders.group.a")
    join(b, "orders.group.b")
    publisher.wire.send(publishing(1, EXCHANGE, "", b"1", mandatory=True))
    publisher.expect(1, Basic.Ack)
    for member in (a, b):
        assert [d.number for d in member.wait_for(1)] == [1]
    assert not publisher.methods


def test_the_queue_of_another_member_is_locked_while_that_member_lives(
    connect_consumer: Connect, vhost: VirtualHost
) -> None:
    """A passive declaration is refused with 405 for a member that lives, and with 404 for one that is gone."""
    a, b = connect_consumer(), connect_consumer()
    join(a, "orders.group.a")
    for number, request in enumerate((True, False), 1):
        b.open(number)
        b.tell(number, Queue.Declare(0, "orders.group.a", passive=request, exclusive=not request))
        channel, code, text = b.refusal()
        assert (channel, code) == (number, 405)
        assert text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'orders.group.a'")
        b.methods.clear()
        b.tell(number, Channel.CloseOk())
    a.drop()
    wait_until("no member", lambda: not members(vhost))
    b.open(3)
    b.tell(3, Queue.Declare(0, "orders.group.a", passive=True))
    assert b.refusal() == (3, 404, f"NOT_FOUND - no queue 'orders.group.a' in vhost '{vhost.name}'")


ENOUGH = {"configure": r"^orders\.group\..*$", "write": r"^orders\.group\..*$", "read": r"^orders\.group(\..*)?$"}


@pytest.mark.parametrize(
    ("missing", "instead", "refused"),
    [
        ("", "", ""),
        ("configure", "", "queue 'orders.group.x'"),
        ("write", "", "queue 'orders.group.x'"),
        ("read", r"^orders\.group\..*$", "exchange 'orders.group'"),
    ],
)
def test_the_rights_of_a_member(
    broker: Broker, vhost: VirtualHost, rabbitmq: Behaviour, missing: str, instead: str, refused: str
) -> None:
    """A member needs configure and write on its queue, and read on its queue and on the exchange."""
    vhost.api.ask("PUT", "users", "member", body={"password": "m", "tags": ""})
    rights = ENOUGH | ({missing: instead} if missing else {})
    vhost.permit("member", **rights)
    with consumers(Client("member", "m"), port_of(broker.amqp_url), vhost.name) as (peer,):
        peer.open(1)
        peer.tell(1, Queue.Declare(0, "orders.group.x", exclusive=True))
        if missing != "configure":
            peer.expect(1, Queue.DeclareOk)
            peer.tell(1, Queue.Bind(0, "orders.group.x", EXCHANGE, ""))
        if missing:
            right = f"{missing} access" if rabbitmq.names_right else "access"
            text = f"ACCESS_REFUSED - {right} to {refused} in vhost '{vhost.name}' refused for user 'member'"
            assert peer.refusal() == (1, 403, text)
        else:
            peer.expect(1, Queue.BindOk)
            peer.consume(1, "orders.group.x", "member")
    vhost.api.ask("DELETE", "users", "member")


@pytest.mark.parametrize(("kind", "counts"), [("quorum", [1, 1, 1]), ("classic", [1, 2, 3])])
def test_what_a_declaration_tells_of_a_shard(
    connect_consumer: Connect, declare_shard: Declare, kind: str, counts: list[int]
) -> None:
    """A quorum queue counts the active consumer alone, a classic queue all. Neither counts unacknowledged messages."""
    queue, a = declare_shard("shard", kind), connect_consumer()
    a.open(1, 5)
    for number, count in enumerate(counts):
        a.consume(1, "shard", str(number))
        told = a.ask(1, Queue.Declare(0, "shard", passive=True), Queue.DeclareOk)
        assert told.consumer_count == count
    queue.publish(20)
    a.wait_for(5)
    told = a.ask(1, Queue.Declare(0, "shard", passive=True), Queue.DeclareOk)
    assert told.message_count == 15
