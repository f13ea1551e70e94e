"""The answers of RabbitMQ's sharding plugin where a method names a sharded exchange as if it were a queue.

The exchange `orders` has three shards here, with ten messages in each. No sidecar takes part.
"""

from collections.abc import Iterator

import pytest
from pamqp import base
from pamqp.commands import Basic, Confirm, Queue

from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.consuming import Behaviour, Connect, Consumer, Shard

pytestmark = [pytest.mark.long, pytest.mark.versions]


@pytest.fixture
def vhost(api: BrokerApi, request: pytest.FixtureRequest) -> Iterator[VirtualHost]:
    """Yield a virtual host of the test's own, whose name is ASCII unless the test is given another."""
    made = VirtualHost(api, fresh_name(getattr(request, "param", "plain")), [])
    yield made
    made.delete()


@pytest.fixture
def shards(vhost: VirtualHost) -> list[str]:
    """Make the exchange, and return the names of its shards."""
    vhost.policy("shard", "^orders$", "exchanges", **{"shards-per-node": 3, "routing-key": "any"})
    vhost.exchange("orders", "x-modulus-hash")
    wait_until("three shards", lambda: len(vhost.queues()) == 3)
    return sorted(vhost.queues())


@pytest.fixture
def peer(connect_consumer: Connect, shards: list[str]) -> Consumer:
    """Return a connection, once ten messages are in each shard."""
    for name in shards:
        publisher = connect_consumer()
        publisher.open(1)
        publisher.ask(1, Confirm.Select(), Confirm.SelectOk)
        Shard(name, publisher).publish(10)
    return connect_consumer()


@pytest.mark.parametrize("passive", [True, False])
def test_a_declaration_tells_of_one_shard(peer: Consumer, shards: list[str], passive: bool) -> None:
    """The answer has the name of that shard, and its messages and consumers."""
    peer.open(1)
    told = peer.ask(1, Queue.Declare(0, "orders", passive=passive, durable=True), Queue.DeclareOk)
    assert told.queue in shards
    assert (told.message_count, told.consumer_count) == (10, 0)


@pytest.mark.parametrize("vhost", ["plain", "ünï-日本"], indirect=True, ids=["ASCII", "not ASCII"])
def test_an_exclusive_declaration_is_refused_in_the_name_of_a_shard(
    peer: Consumer, vhost: VirtualHost, rabbitmq: Behaviour
) -> None:
    """The text names the shard, which the client has never heard of.

    The text is so long that RabbitMQ cuts it. 4.x leaves 255 characters. If the name of the virtual host is not ASCII,
    these are more than the 255 bytes that the frame takes, and RabbitMQ closes the connection with an internal error.
    """
    peer.open(1)
    peer.tell(1, Queue.Declare(0, "orders", exclusive=True))
    channel, code, text = peer.refusal()
    if not (vhost.name.isascii() or rabbitmq.cuts_bytes):
        assert (channel, code, text) == (0, 541, "INTERNAL_ERROR")
        return
    assert (channel, code) == (1, 405)
    assert text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'sharding: orders - ")


REFUSED: dict[str, base.Frame] = {
    "bind": Queue.Bind(0, "orders", "amq.direct", "x"),
    "unbind": Queue.Unbind(0, "orders", "amq.direct", "x"),
    "purge": Queue.Purge(0, "orders"),
    "delete": Queue.Delete(0, "orders"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_plugin_refuses(peer: Consumer, rabbitmq: Behaviour, what: str) -> None:
    """4.x closes the channel. 3.10.8 closes the connection with an internal error."""
    peer.open(1)
    peer.tell(1, REFUSED[what])
    if rabbitmq.refuses_pseudo_queue:
        assert peer.refusal() == (1, 406, f'PRECONDITION_FAILED - Can\'t {what} sharded queue: <<"orders">>')
    else:
        assert peer.refusal() == (0, 541, "INTERNAL_ERROR")


def test_a_get_takes_from_one_shard(peer: Consumer) -> None:
    """The answer counts what is left in that shard."""
    peer.open(1)
    assert peer.ask(1, Basic.Get(0, "orders", True), Basic.GetOk).message_count == 9


def test_a_consumer_gets_one_shard_and_a_fourth_shares_one(
    peer: Consumer, connect_consumer: Connect, shards: list[str]
) -> None:
    """Each of three consumers has a shard of its own. A fourth of three shards takes from another's."""
    tags = [d.number for d in _consumes(peer, "1").wait_for(10)]
    assert tags == list(range(10))
    others = [_consumes(connect_consumer(), tag) for tag in "234"]
    wait_until("all messages", lambda: sum(len(member.got()) for member in (peer, *others)) == 30)
    peer.open(2)
    told = [peer.ask(2, Queue.Declare(0, shard, passive=True), Queue.DeclareOk) for shard in shards]
    assert sorted(t.consumer_count or 0 for t in told) == [1, 1, 2]
    assert len(peer.got()) == 10


def _consumes(member: Consumer, tag: str) -> Consumer:
    """Subscribe to the exchange's name, and return the member."""
    member.open(1)
    member.consume(1, "orders", tag)
    return member
