"""The causes that close a channel or a whole connection of a consumer at RabbitMQ, and what else goes with it.

Consumer groups give each shard a channel of its own on the client's connection. No sidecar takes part.
"""

from contextlib import ExitStack
from typing import NamedTuple

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Queue
from pamqp.common import FieldTable

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost
from tests.integration.consuming import CAPABILITIES, Behaviour, Connect, Consumer, Declare, consumers, runs
from tests.integration.wire_client import Client, port_of, raw_frame, short

pytestmark = [pytest.mark.long, pytest.mark.versions]


class Refusal(NamedTuple):
    """A request, whether it closes the whole connection, and with which code and text; {v} is the virtual host."""

    request: base.Frame
    connection: bool
    code: int
    text: str


def consume(queue: str, tag: str = "t", *, nowait: bool = False, arguments: FieldTable | None = None) -> base.Frame:
    return Basic.Consume(0, queue, tag, False, False, False, nowait, arguments or {})


REFUSALS = {
    "no queue": Refusal(consume("none"), False, 404, "NOT_FOUND - no queue 'none' in vhost '{v}'"),
    "no queue, nowait": Refusal(consume("none", nowait=True), False, 404, "NOT_FOUND - no queue 'none' in vhost '{v}'"),
    "a priority that is a text": Refusal(
        consume("q", arguments={"x-priority": "high"}),
        False,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '{v}': "
        '"expected integer, got longstr"',
    ),
    "an unknown delivery tag": Refusal(Basic.Ack(99), False, 406, "PRECONDITION_FAILED - unknown delivery tag 99"),
    "a tag used twice on the channel": Refusal(
        consume("other", "kept"), True, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'kept'"
    ),
    "a prefetch in bytes": Refusal(Basic.Qos(100, 5, False), True, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (100)"),
    "flow, to stop": Refusal(Channel.Flow(False), True, 540, "NOT_IMPLEMENTED - active=false"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_closes_the_channel_and_what_the_connection(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, what: str
) -> None:
    """A consumer on another channel goes on only where the channel alone is closed."""
    refusal = REFUSALS[what]
    queue, other = declare_shard("q"), declare_shard("other")
    a = connect_consumer()
    a.open(1, 10)
    a.consume(1, other.name, "kept", acks=True)
    a.open(2, 10)
    a.consume(2, queue.name, "kept")
    a.tell(2, refusal.request)
    assert a.refusal() == (0 if refusal.connection else 2, refusal.code, refusal.text.format(v=vhost.name))
    if not refusal.connection:
        a.tell(2, Channel.CloseOk())
        other.publish(10)
        assert len(a.wait_for(10, "kept")) == 10


ACCEPTED = {
    "a cancel of no consumer": (Basic.Cancel("none", False), Basic.CancelOk),
    "flow, to go on": (Channel.Flow(True), Channel.FlowOk),
    "exclusive": (Basic.Consume(0, "q", "t", False, False, True, False, {}), Basic.ConsumeOk),
    "no_local": (Basic.Consume(0, "q", "t", True, False, False, False, {}), Basic.ConsumeOk),
    "no_ack": (Basic.Consume(0, "q", "t", False, True, False, False, {}), Basic.ConsumeOk),
    "an unknown argument": (consume("q", arguments={"x-unknown": 1}), Basic.ConsumeOk),
    "no tag": (consume("q", ""), Basic.ConsumeOk),
    "the longest tag": (consume("q", "t" * 255), Basic.ConsumeOk),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_accepted(connect_consumer: Connect, declare_shard: Declare, what: str) -> None:
    """Exclusive has no effect on a quorum queue: another consumer is let in."""
    declare_shard("q")
    a = connect_consumer()
    a.open(1)
    request, answer = ACCEPTED[what]
    a.ask(1, request, answer)
    a.open(2)
    a.consume(2, "q", "another")


def test_a_missing_right_closes_the_channel(
    broker: Broker, vhost: VirtualHost, declare_shard: Declare, rabbitmq: Behaviour
) -> None:
    """A user who may not read the queue is refused on that channel."""
    declare_shard("q")
    vhost.api.ask("PUT", "users", "nobody", body={"password": "n", "tags": ""})
    vhost.permit("nobody", read="^other$")
    with consumers(Client("nobody", "n"), port_of(broker.amqp_url), vhost.name) as (a,):
        a.open(1)
        a.tell(1, consume("q"))
        right = "read access" if rabbitmq.names_right else "access"
        text = f"ACCESS_REFUSED - {right} to queue 'q' in vhost '{vhost.name}' refused for user 'nobody'"
        assert a.refusal() == (1, 403, text)
    vhost.api.ask("DELETE", "users", "nobody")


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_quorum_queue_hands_messages_on_only_behind_the_clients_close_ok(
    connect_consumer: Connect, declare_shard: Declare, kind: str
) -> None:
    """After a close that RabbitMQ sends, what the channel held waits for close-ok. A classic queue does not wait."""
    queue = declare_shard("q", kind)
    a, b = connect_consumer(), connect_consumer()
    a.open(1, 10)
    b.open(1, 10)
    a.consume(1, "q", "A")
    queue.publish(10)
    a.wait_for(10)
    b.consume(1, "q", "B", acks=True)
    a.tell(1, consume("none", nowait=True))
    assert a.refusal()[:2] == (1, 404)
    queue.publish(10)
    if kind == "quorum":
        b.settle(1)
        assert not b.got()
        a.tell(1, Channel.CloseOk())
    assert runs(b.wait_for(20)) == "0-9R 10-19"


def test_an_ack_behind_the_close_of_its_channel(connect_consumer: Connect, declare_shard: Declare) -> None:
    """It is ignored before close-ok; afterwards it closes the connection."""
    queue = declare_shard("q")
    a = connect_consumer()
    a.open(1, 5)
    a.consume(1, "q", "A")
    queue.publish(5)
    a.wait_for(5)
    a.tell(1, Channel.Close(200, "", 0, 0), Basic.Ack(1))
    a.expect(1, Channel.CloseOk)
    a.open(2)
    a.tell(1, Basic.Ack(1))
    assert a.refusal() == (0, 504, "CHANNEL_ERROR - expected 'channel.open'")


@pytest.mark.usefixtures("raising")
def test_shards_on_channels_of_their_own_do_not_wait_for_each_other(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """B takes over the queue whose messages A acknowledges, while A holds on to those of the other."""
    a, b = connect_consumer(), connect_consumer()
    for channel, queue in ((1, declare_shard("one")), (2, declare_shard("two"))):
        a.open(channel, 10)
        a.consume(channel, queue.name, queue.name, 1)
        queue.publish(20)
        a.wait_for(10, queue.name)
        b.open(channel, 10)
        b.consume(channel, queue.name, queue.name, 5, acks=True)
    a.tell(1, Basic.Ack(10, True))
    assert runs(b.wait_for(10, "one")) == "10-19"
    b.settle(2)
    assert not b.got("two")


def test_the_number_of_channels_is_limited_and_their_numbers_are_not(
    broker: Broker, client: Client, vhost: VirtualHost
) -> None:
    """A connection that agreed on 20 channels may use the number 1000. The 21st channel closes the connection."""
    vhost.permit(client.user, configure=".*", read=".*")
    with consumers(client, port_of(broker.amqp_url), vhost.name, channel_max=20) as (a,):
        for number in range(1, 20):
            a.open(number)
        a.open(1000)
        a.tell(20, Channel.Open())
        text = "NOT_ALLOWED - number of channels opened (20) has reached the negotiated channel_max (20)"
        assert a.refusal() == (0, 530, text)


def test_a_limit_of_the_user_counts_all_channels(broker: Broker, vhost: VirtualHost) -> None:
    """One channel more than max-channels allows closes the connection."""
    vhost.api.ask("PUT", "users", "few", body={"password": "f", "tags": ""})
    vhost.permit("few")
    vhost.api.ask("PUT", "user-limits", "few", "max-channels", body={"value": 2})
    with consumers(Client("few", "f"), port_of(broker.amqp_url), vhost.name) as (a,):
        a.open(1)
        a.open(2)
        a.tell(3, Channel.Open())
        channel, code, text = a.refusal()
        assert (channel, code) == (0, 530)
        assert "has reached the maximum allowed user limit of" in text
    vhost.api.ask("DELETE", "users", "few")


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_deleted_queue_cancels_only_the_consumers_of_clients_that_announced_it(
    broker: Broker, client: Client, vhost: VirtualHost, declare_shard: Declare, kind: str
) -> None:
    """Without the capability consumer_cancel_notify the consumer ends without a word."""
    queue = declare_shard("q", kind)
    with ExitStack() as stack:
        told, untold = (
            stack.enter_context(consumers(client, port_of(broker.amqp_url), vhost.name, capabilities=capabilities))[0]
            for capabilities in (CAPABILITIES, {"basic.nack": True})
        )
        for peer in (told, untold):
            peer.open(1, 5)
            peer.consume(1, "q", "t")
        queue.publish(5)
        queue.peer.open(2)
        queue.peer.ask(2, Queue.Delete(0, "q"), Queue.DeleteOk)
        cancel = told.expect(1, Basic.Cancel)
        assert (cancel.consumer_tag, cancel.nowait) == ("t", True)
        for peer in (told, untold):
            if peer.got():
                peer.tell(1, Basic.Ack(0, True))  # accepted, though the queue is gone
            peer.settle(1)
            peer.cancel(1, "t")
            assert not peer.methods


def test_a_prefetch_counts_for_later_consumers_each_for_itself(
    connect_consumer: Connect, declare_shard: Declare
) -> None:
    """Two consumers of a channel get five each. A prefetch that is set later changes nothing for them."""
    one, two = declare_shard("one"), declare_shard("two")
    a = connect_consumer()
    a.open(1, 5)
    for queue in (one, two):
        queue.publish(20)
        a.consume(1, queue.name, queue.name)
    a.wait_for(10)
    a.ask(1, Basic.Qos(0, 8, False), Basic.QosOk)
    one.publish(1)
    a.ask(1, Basic.Qos(0, 8, False), Basic.QosOk)
    assert (len(a.got("one")), len(a.got("two"))) == (5, 5)


def test_a_global_prefetch_on_a_quorum_queue(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, rabbitmq: Behaviour
) -> None:
    """4.3.6 counts it for each consumer, as if it were not global. Older versions close the connection at consume."""
    one, two = declare_shard("one"), declare_shard("two")
    one.publish(20)
    two.publish(20)
    a = connect_consumer()
    a.open(1)
    a.ask(1, Basic.Qos(0, 5, True), Basic.QosOk)
    a.tell(1, consume("one", "one"))
    if rabbitmq.global_qos:
        a.consume(1, "two", "two")
        a.wait_for(10)
        one.publish(1)
        a.ask(1, Basic.Qos(0, 5, True), Basic.QosOk)
        assert (len(a.got("one")), len(a.got("two"))) == (5, 5)
    else:
        text = f"NOT_IMPLEMENTED - queue 'one' in vhost '{vhost.name}' does not support global qos"
        assert a.refusal() == (0, 540, text)


@pytest.mark.parametrize(("kind", "handed_out"), [("quorum", 2000), ("classic", 3000)])
def test_what_a_consumer_gets_without_a_prefetch(
    connect_consumer: Connect, declare_shard: Declare, kind: str, handed_out: int
) -> None:
    """A quorum queue hands out 2,000 messages, a classic queue all that it has."""
    queue = declare_shard("q", kind)
    queue.publish(3000)
    a = connect_consumer()
    a.open(1)
    a.consume(1, "q", "A")
    a.wait_for(handed_out)
    queue.publish(1)
    a.settle(1)
    assert len(a.got()) == handed_out + (kind == "classic")


PRIORITIES = {
    "l": (2**63 - 1).to_bytes(8, "big"),
    "I": (-5).to_bytes(4, "big", signed=True),
    "s": b"\x01\x00",
    "b": b"\xfb",
    "B": b"\xfb",
    "u": b"\xff\xff",
    "i": b"\xff\xff\xff\xff",
    "d": b"\x40\x14\0\0\0\0\0\0",
    "t": b"\x01",
}


@pytest.mark.parametrize("kind", PRIORITIES)
def test_a_priority_is_any_integer_of_a_field_table(
    connect_consumer: Connect, declare_shard: Declare, vhost: VirtualHost, kind: str
) -> None:
    """Integers of all widths are accepted. A floating-point number and a boolean are refused."""
    declare_shard("q")
    table = short(b"x-priority") + kind.encode() + PRIORITIES[kind]
    payload = b"\0\x3c\0\x14\0\0" + short(b"q") + short(b"t") + b"\0" + len(table).to_bytes(4, "big") + table
    a = connect_consumer()
    a.open(1)
    a.wire.send(raw_frame(1, 1, payload))
    refused = {"d": "double", "t": "bool"}.get(kind)
    if refused:
        place = f"'x-priority' for queue 'q' in vhost '{vhost.name}'"
        text = f'PRECONDITION_FAILED - invalid arg {place}: "expected integer, got {refused}"'
        assert a.refusal() == (1, 406, text)
    else:
        assert a.expect(1, Basic.ConsumeOk).consumer_tag == "t"


def test_a_get_from_a_queue_with_single_active_consumer(connect_consumer: Connect, declare_shard: Declare) -> None:
    """It is refused on the channel, whoever consumes."""
    declare_shard("q").publish(1)
    a = connect_consumer()
    a.open(1)
    a.tell(1, Basic.Get(0, "q", False))
    channel, code, text = a.refusal()
    assert (channel, code) == (1, 405)
    assert text.startswith("RESOURCE_LOCKED - cannot obtain access to locked queue 'q'")
    assert text.endswith("queues with single active consumer")


def open_channels(peer: Consumer, numbers: range, queue: str) -> None:
    """Open the channels, and consume the queue on each, without waiting for each answer before the next request."""
    requests = [Channel.Open(), Basic.Qos(0, 10, False), consume(queue, arguments={"x-priority": 1})]
    for number in numbers:
        peer.tell(number, *requests)
    for number in numbers:
        peer.expect(number, Channel.OpenOk)
        peer.expect(number, Basic.QosOk)
        peer.expect(number, Basic.ConsumeOk)


def test_a_connection_carries_a_thousand_channels(connect_consumer: Connect, declare_shard: Declare) -> None:
    """All consume the same queue; each that closes makes the next one active, in order."""
    queue = declare_shard("q")
    a = connect_consumer()
    # RabbitMQ serves channels beside each other, so of requests that are sent together any may be the first.
    open_channels(a, range(1, 2), queue.name)
    open_channels(a, range(2, 1001), queue.name)
    queue.publish(10)
    assert {d.channel for d in a.wait_for(10)} == {1}
    a.close(1)
    assert runs(a.wait_for(20)[10:]) == "0-9R"
