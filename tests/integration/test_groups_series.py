"""Groups in series: a client works on one message of a key at a time, and a returned one holds up its own key alone."""

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, Got, deliveries, publish, sharded, waiting
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = pytest.mark.versions

EMPTY = dict.fromkeys(SHARDS, 0)
IN_SERIES: dict[str, Any] = {"x-ring-in-series": True}


def keyed(keys: Iterable[str], each: int) -> list[tuple[str, str, bytes]]:
    """Return so many messages of each key, in turn; their bodies tell key and number."""
    keys = list(keys)
    return [("orders", key, f"{key} {number}".encode()) for number in range(each) for key in keys]


def join(wire: Wire, channel: int, *, prefetch: int = 50, arguments: Mapping[str, Any] = IN_SERIES) -> None:
    wire.channel(channel, confirm=False)
    wire.ask(channel, Basic.Qos(0, prefetch), Basic.QosOk)
    wire.ask(channel, Basic.Consume(0, "orders", "c", arguments=dict(arguments)), Basic.ConsumeOk)


def key_of(got: Got) -> str:
    return got.body.decode().split()[0]


class Worker:
    """A client that holds what it gets, and sees that it never holds two messages of one key."""

    def __init__(self, wire: Wire, channel: int = 1) -> None:
        self.wire, self.channel = wire, channel
        self.held: dict[str, Got] = {}
        self.done: dict[str, list[int]] = defaultdict(list)

    def take(self, count: int = 1) -> list[Got]:
        got = deliveries(self.wire, self.channel, count)
        for each in got:
            assert key_of(each) not in self.held, f"two messages of {key_of(each)} at once"
            self.held[key_of(each)] = each
        return got

    def ack(self, got: Got) -> None:
        del self.held[key_of(got)]
        self.done[key_of(got)].append(int(got.body.split()[1]))
        self.wire.tell(self.channel, Basic.Ack(got.number))

    def give_back(self, got: Got, *, reject: bool = False) -> None:
        del self.held[key_of(got)]
        answer = Basic.Reject(got.number, True) if reject else Basic.Nack(got.number, False, True)
        self.wire.tell(self.channel, answer)


def test_a_pool_of_workers_gets_one_message_of_a_key_at_a_time_and_completes_each_key_in_order(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    """Answers come in any order, and one in ten is a return."""
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_retry_delay="0.05", groups_retry_delay_max="0.2")
    keys, each = [f"k{n}" for n in range(30)], 20
    publish(client, sidecar.amqp_port, vhost, keyed(keys, each))
    chance = random.Random(1)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1, prefetch=10)
        worker, left = Worker(wire), len(keys) * each
        while left:
            if len(worker.held) < min(10, len([key for key in keys if len(worker.done[key]) < each])):
                worker.take()
                continue
            got = chance.choice(list(worker.held.values()))
            if chance.random() < 0.1:
                worker.give_back(got, reject=chance.random() < 0.5)
            else:
                worker.ack(got)
                left -= 1
        assert worker.done == {key: list(range(each)) for key in keys}
        wait_until("all is acked", lambda: waiting(client, port_of(broker.amqp_url), vhost) == EMPTY)
        wire.goodbye()
    # The broker has each message acked, and none is left unacked for the next member.
    assert waiting(client, port_of(broker.amqp_url), vhost) == EMPTY


def test_a_returned_message_holds_up_its_key_and_no_other(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_retry_delay="0.3")
    publish(client, sidecar.amqp_port, vhost, keyed(["bad"], 3) + keyed(["good"], 20))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        worker = Worker(wire)
        tries: list[tuple[bool, object, int]] = []
        while len(worker.done["good"]) < 20 or len(worker.done["bad"]) < 3:
            content = wire.content(1, Basic.Deliver)
            assert isinstance(content.method, Basic.Deliver)
            got = Got(content.method, content.body)
            worker.held[key_of(got)] = got
            if got.body == b"bad 0" and len(tries) < 3:
                headers = content.properties.headers or {}
                tries.append((got.redelivered, headers.get("x-ring-attempt"), len(worker.done["good"])))
                worker.give_back(got)
            else:
                worker.ack(got)
        assert [each[:2] for each in tries] == [(False, None), (True, 2), (True, 3)]
        assert tries[1][2] == 20, "the others waited for it"
        assert worker.done == {"bad": [0, 1, 2], "good": list(range(20))}
        wire.goodbye()


def test_an_ack_of_all_up_to_a_number_takes_in_nothing_that_waits(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    publish(client, sidecar.amqp_port, vhost, keyed(["a", "b", "c"], 2))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        worker = Worker(wire)
        first = worker.take(3)
        wire.tell(1, Basic.Ack(first[1].number, multiple=True))
        for got in first[:2]:
            del worker.held[key_of(got)]
        again = worker.take(2)
        assert {got.body for got in again} == {b"%s 1" % key_of(got).encode() for got in first[:2]}
        wire.tell(1, Basic.Ack(0, multiple=True))
        worker.held.clear()
        (last,) = worker.take()
        assert last.body == b"%s 1" % key_of(first[2]).encode()
        # The connection ends with this one unacked: it alone comes again.
        wire.goodbye()
    wait_until("one is left", lambda: sum(waiting(client, port_of(broker.amqp_url), vhost).values()) == 1)


def test_what_was_returned_or_waits_comes_in_order_to_the_next_member(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """The first member returns some, holds some, and goes without a word."""
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_retry_delay="60")
    keys = [f"k{n}" for n in range(6)]
    publish(client, sidecar.amqp_port, vhost, keyed(keys, 5))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        worker = Worker(wire)
        for number, got in enumerate(worker.take(6)):
            if number % 3 == 0:
                worker.give_back(got)
            elif number % 3 == 1:
                worker.ack(got)
        worker.take(2)
        wire.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        # The client may still answer its messages; a return then goes with the link.
        held = list(worker.held.values())
        worker.give_back(held[0])
        worker.ack(held[1])
        for got in held[2:]:
            worker.ack(got)
        done = {key: list(numbers) for key, numbers in worker.done.items()}
        with client.session(sidecar.amqp_port, vhost.name) as other:
            join(other, 1)
            second = Worker(other)
            while sum(map(len, second.done.values())) + sum(map(len, done.values())) < 30:
                (got,) = second.take()
                second.ack(got)
            for key in keys:
                assert done.get(key, []) + second.done[key] == list(range(5)), key
            other.goodbye()
        wire.goodbye()


def test_a_message_that_no_worker_can_do_is_rejected_for_good_and_its_key_goes_on(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    vhost.exchange("orders")
    vhost.queue("dead")
    dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    vhost.queue("orders.0", x_queue_type="quorum", x_single_active_consumer=True, **dead)
    vhost.bind("orders", "orders.0")
    sidecar = start_sidecar(groups="orders", groups_in_series="orders")
    publish(client, sidecar.amqp_port, vhost, keyed(["a"], 3))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1, arguments={})
        worker = Worker(wire)
        (got,) = worker.take()
        worker.held.clear()
        wire.tell(1, Basic.Nack(got.number, False, False))
        (got,) = worker.take()
        assert got.body == b"a 1"
        worker.held.clear()
        wire.tell(1, Basic.Reject(got.number, False))
        (got,) = worker.take()
        assert got.body == b"a 2"
        worker.ack(got)
        wait_until("dead", lambda: waiting(client, port_of(broker.amqp_url), vhost, ["dead"]) == {"dead": 2})
        wire.goodbye()


def test_recover_has_all_come_again_at_once(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_retry_delay="60")
    publish(client, sidecar.amqp_port, vhost, keyed(["a", "b"], 2))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        first = deliveries(wire, 1, 2)
        wire.tell(1, Basic.Recover(True))
        # Its answer may come before or behind what comes again.
        frames = [wire.read()[1] for _ in range(7)]
        again = [each for each in frames if isinstance(each, Basic.Deliver)]
        bodies = {each.value for each in frames if isinstance(each, ContentBody)}
        assert sum(isinstance(each, Basic.RecoverOk) for each in frames) == 1
        assert bodies == {got.body for got in first}
        assert all(each.redelivered for each in again)
        for each in again:
            wire.tell(1, Basic.Ack(each.delivery_tag or 0))
        assert {got.body for got in deliveries(wire, 1, 2)} == {b"a 1", b"b 1"}
        wire.goodbye()


def test_large_messages_come_whole(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    large = {n: bytes([n]) * 400_000 for n in range(5)}
    publish(client, sidecar.amqp_port, vhost, [("orders", "k", b"k %d " % n + data) for n, data in large.items()])
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        for n, data in large.items():
            (got,) = deliveries(wire, 1, 1)
            assert got.body == b"k %d " % n + data
            wire.tell(1, Basic.Ack(got.number))
        wire.goodbye()


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Basic.Consume(0, "orders", "c", no_ack=True, arguments=IN_SERIES), "needs acks"),
        (Basic.Consume(0, "orders", "c", arguments={"x-ring-in-series": "yes"}), "must be true or false"),
    ],
)
def test_what_cannot_be_in_series_is_refused(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, request_: Basic.Consume, text: str
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        closed = wire.ask(1, request_, Channel.Close)
        assert closed.reply_code == 406
        assert text in (closed.reply_text or "")
        wire.tell(1, Channel.CloseOk())
        wire.goodbye()


def test_an_ack_of_a_message_that_waits_in_the_sidecar_is_one_of_an_unknown_tag(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    publish(client, sidecar.amqp_port, vhost, keyed(["a"], 2))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        (got,) = deliveries(wire, 1, 1)
        closed = wire.ask(1, Basic.Ack(got.number + 1), Channel.Close)
        assert (closed.reply_code, closed.reply_text) == (
            406,
            f"PRECONDITION_FAILED - unknown delivery tag {got.number + 1}",
        )
        wire.tell(1, Channel.CloseOk())
        wire.goodbye()


def test_a_member_whose_connection_is_lost_leaves_each_key_in_order_to_the_next(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """It has acked out of order, so that there are holes in what the broker takes back."""
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", groups_in_series="orders", groups_retry_delay="60")
    keys, each = [f"k{n}" for n in range(12)], 6
    publish(client, sidecar.amqp_port, vhost, keyed(keys, each))
    done: dict[str, list[int]] = {key: [] for key in keys}
    for round_ in range(2):  # what was held at two losses comes alone
        with client.session(sidecar.amqp_port, vhost.name) as wire:
            join(wire, 1, arguments={})
            worker = Worker(wire)
            for number, got in enumerate(worker.take(len([key for key in keys if len(done[key]) < each]))):
                if number % 4 == round_ % 4:
                    worker.give_back(got)
                elif number % 2:
                    worker.ack(got)
            time.sleep(0.5)  # until the broker has the acks: no answer tells
            wire.socket.close()
        for key in keys:
            done[key] += worker.done[key]
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1, arguments={})
        worker = Worker(wire)
        while sum(map(len, done.values())) + sum(map(len, worker.done.values())) < len(keys) * each:
            (got,) = worker.take()
            worker.ack(got)
        wire.goodbye()
    for key in keys:
        assert done[key] + worker.done[key] == list(range(each)), key


def test_a_client_that_hangs_with_all_that_it_may_hold_gets_no_shard_again(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """Three times as long as one that did not ack gets none: nothing would be passed to it."""
    sharded(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    sidecar = start_sidecar(groups="orders", groups_ack_timeout="2")
    with client.session(sidecar.amqp_port, vhost.name) as hung, client.session(sidecar.amqp_port, vhost.name) as wire:
        join(hung, 1, prefetch=1)
        publish(client, sidecar.amqp_port, vhost, keyed(["bad"], 1))
        deliveries(hung, 1, 1)
        join(wire, 1)
        worker = Worker(wire)
        worker.ack(*worker.take())
        for number in range(7):
            publish(client, sidecar.amqp_port, vhost, keyed([f"k{number}-{n}" for n in range(8)], 1))
            for got in worker.take(8):
                worker.ack(got)
            time.sleep(1.0)
        assert "as it waits in series" not in sidecar.log()


def test_a_group_of_which_some_members_are_in_series_is_not_exact(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        join(wire, 1)
        join(wire, 2, arguments={})
        path = f"/groups/{quote(vhost.name, safe='')}/orders"
        wait_until(
            "the reason",
            lambda: any("some members consume in series" in why for why in sidecar.admin(path).receipt()["reasons"]),
        )
        wire.goodbye()
