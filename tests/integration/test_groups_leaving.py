"""Members that leave with messages unacked: the next one gets those first, redelivered, and each key in order."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import aio_pika
import pytest
from pamqp.commands import Basic, Channel, Connection

from proxy.commands.group import MEMBERS_VIEW, show
from proxy.topology.marker import LINK_PRIORITY
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, numbers, publish, sharded, waiting
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import PROTOCOL_HEADER, Client, Wire, encoded, publish_frames, wire

SHARD = ["orders.0"]
PREFETCH = 10


@pytest.fixture
def grouping(start_sidecar: StartSidecar) -> Sidecar:
    """Start a sidecar whose clients may consume from the name orders."""
    return start_sidecar(groups="orders")


@contextmanager
def members(client: Client, port: int, vhost: VirtualHost) -> Iterator[tuple[Wire, Wire]]:
    """Yield a member that holds ten messages of the only shard, of forty, and one that waits."""
    sharded(vhost, SHARD)
    publish(client, port, vhost, numbered(range(40), key="one"))
    with client.session(port, vhost.name) as holder, client.session(port, vhost.name) as waiter:
        holder.channel(1, confirm=False)
        consume(holder, 1, prefetch=PREFETCH)
        assert numbers(deliveries(holder, 1, PREFETCH)) == list(range(PREFETCH))
        waiter.channel(1, confirm=False)
        consume(waiter, 1, prefetch=100)
        yield holder, waiter


def nothing_comes(wire: Wire) -> None:
    """Fail if anything else comes than the answer to a question that the broker gets now."""
    wire.ask(1, Basic.Qos(0, 100), Basic.QosOk)


def drop(wire: Wire) -> None:
    """Reset the connection, as the kernel does for a process that was killed with bytes unread."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def cancel_and_goodbye(wire: Wire) -> None:
    """Leave as most client libraries do."""
    wire.ask(1, Basic.Cancel("c"), Basic.CancelOk)
    wire.goodbye()


ENDS: dict[str, Callable[[Wire], None]] = {
    "channel.close": lambda wire: void(wire.ask(1, Channel.Close(200, "", 0, 0), Channel.CloseOk)),
    "cancel and channel.close": lambda wire: void(
        wire.ask(1, Basic.Cancel("c"), Basic.CancelOk), wire.ask(1, Channel.Close(200, "", 0, 0), Channel.CloseOk)
    ),
    "both at once": lambda wire: wire.tell(1, Basic.Cancel("c", nowait=True), Channel.Close(200, "", 0, 0)),
    "connection.close": lambda wire: wire.goodbye(),
    "cancel and connection.close": lambda wire: cancel_and_goodbye(wire),
    "the socket's end": lambda wire: wire.close(),
    "a reset": drop,
    "an error of its own": lambda wire: void(wire.ask(1, Basic.Ack(77), Channel.Close)),
    "an error of the broker's": lambda wire: wire.send(*publish_frames(1, "no such exchange", "key", b"x")),
}


def void(*_: object) -> None:
    """Take what expressions were evaluated for their effect."""


@pytest.mark.versions
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whatever_ends_a_member_the_next_one_gets_all_in_order(
    grouping: Sidecar, vhost: VirtualHost, client: Client, end: Callable[[Wire], None]
) -> None:
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.tell(1, Basic.Ack(3, True))
        assert numbers(deliveries(holder, 1, 3)) == [10, 11, 12]
        nothing_comes(waiter)
        end(holder)
        got = deliveries(waiter, 1, 37)
        assert numbers(got) == list(range(3, 40))
        assert [each.redelivered for each in got] == [True] * PREFETCH + [False] * 27
        waiter.tell(1, Basic.Ack(0, True))
        waiter.goodbye()
    assert waiting(client, grouping.amqp_port, vhost, SHARD) == {"orders.0": 0}


@pytest.mark.versions
def test_what_a_client_rejects_right_before_it_cancels_comes_to_the_next_one_in_order(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Pika rejects, one by one, what it has not looked at. The broker may have sent later ones by then."""
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.tell(1, Basic.Ack(4, True))
        assert numbers(deliveries(holder, 1, 4)) == [10, 11, 12, 13]
        holder.tell(1, Basic.Ack(5))
        for number in range(6, 15):
            holder.tell(1, Basic.Reject(number, True))
        holder.tell(1, Basic.Cancel("c", nowait=True), Channel.Close(200, "", 0, 0))
        assert numbers(deliveries(waiter, 1, 35)) == list(range(5, 40))


@pytest.mark.usefixtures("raising")
def test_what_a_client_rejects_comes_again_at_once(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """RabbitMQ 3.10.8 deletes it, as these queues have the delivery limit -1."""
    with members(client, grouping.amqp_port, vhost) as (holder, _):
        holder.tell(1, Basic.Reject(1, True))
        assert [(each.body, each.redelivered) for each in deliveries(holder, 1, 1)] == [(b"0", True)]
        for number in range(2, 11):
            holder.tell(1, Basic.Reject(number, True))
        assert numbers(deliveries(holder, 1, 9)) == list(range(1, 10))


@pytest.mark.versions
def test_a_member_that_returns_all_it_holds_while_its_shard_is_to_move_does_not_hold_it_up(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Among consumers of different priorities RabbitMQ 4.0 would then give the shard's messages to nobody."""
    sharded(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    told = partial(show, grouping.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
    publish(client, grouping.amqp_port, vhost, [("", shard, b"%d" % n) for n in range(20) for shard in SHARDS])
    with (
        client.session(grouping.amqp_port, vhost.name) as old,
        client.session(grouping.amqp_port, vhost.name) as new,
    ):
        old.channel(1, confirm=False)
        consume(old, 1, prefetch=20)
        assert len(deliveries(old, 1, 60)) == 60
        wait_until("the links", lambda: "has 3 shards" in told())
        new.channel(1, confirm=False)
        consume(new, 1, prefetch=20)
        wait_until("the move", lambda: "yet to ack" in told())
        old.tell(1, Basic.Nack(0, True, True))
        began = time.monotonic()
        # One shard of the three moves.
        got = deliveries(new, 1, 20)
        print(f"after {time.monotonic() - began:.1f} s")
        assert numbers(got) == list(range(20))
        assert {each.redelivered for each in got} == {True}
        drop(old)
        drop(new)


@pytest.mark.versions
@pytest.mark.parametrize(
    "way",
    ["its shard moves", "it cancels", "it cancels and closes its channel", "it cancels, and closes once all is done"],
)
def test_a_member_that_acks_many_messages_one_by_one_as_its_shard_moves_leaves_none_of_them_to_the_next(
    grouping: Sidecar, vhost: VirtualHost, client: Client, way: str
) -> None:
    """RabbitMQ forgets some of so many acks if the channel ends right behind them."""
    shards = SHARDS[:2]
    sharded(vhost, shards)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    told = partial(show, grouping.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
    publish(client, grouping.amqp_port, vhost, [("", shard, b"%d" % n) for n in range(200) for shard in shards])
    with (
        client.session(grouping.amqp_port, vhost.name) as old,
        client.session(grouping.amqp_port, vhost.name) as new,
    ):
        old.channel(1, confirm=False)
        consume(old, 1, prefetch=200)
        assert len(deliveries(old, 1, 400)) == 400
        wait_until("the links", lambda: "has 2 shards" in told())
        new.channel(1, confirm=False)
        consume(new, 1, prefetch=200)
        wait_until("the move", lambda: "yet to ack" in told())
        acks = b"".join(encoded(1, Basic.Ack(tag)) for tag in range(1, 401))
        if way == "its shard moves":
            old.send(acks)
        elif way == "it cancels":
            old.send(acks + encoded(1, Basic.Cancel("c")))
            old.expect(1, Basic.CancelOk)
            old.goodbye()
        elif way == "it cancels, and closes once all is done":
            old.ask(1, Basic.Cancel("c"), Basic.CancelOk)
            old.send(acks + encoded(1, Channel.Close(200, "", 0, 0)) + encoded(0, Connection.Close(200, "", 0, 0)))
            old.expect(1, Channel.CloseOk)
            old.expect(0, Connection.CloseOk)
        else:
            old.send(acks + encoded(1, Basic.Cancel("c", True)) + encoded(1, Channel.Close(200, "", 0, 0)))
            old.expect(1, Channel.CloseOk)
        wait_until("no shard moves", lambda: "yet to ack" not in told())
        publish(client, grouping.amqp_port, vhost, [("", shard, b"last") for shard in shards])
        count = 1 if way == "its shard moves" else 2
        assert [each.body for each in deliveries(new, 1, count)] == [b"last"] * count
        drop(new)


@pytest.mark.versions
def test_after_a_cancel_nothing_is_handed_on_until_the_client_has_acked_what_it_got(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        holder.tell(1, Basic.Ack(9, True))
        # The acks let ten more in, which the member that has cancelled does not get.
        nothing_comes(holder)
        nothing_comes(waiter)
        holder.tell(1, Basic.Ack(10))
        got = deliveries(waiter, 1, 30)
        assert numbers(got) == list(range(10, 40))
        nothing_comes(holder)
        # The channel goes on: another consumer of the same tag may come.
        consume(holder, 1)


def test_what_is_returned_after_a_cancel_comes_to_the_next_one_in_order(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """A nack of the first alone would let the later ones overtake it, as the others are still held."""
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        holder.tell(1, Basic.Nack(1, False, True), Basic.Reject(5, True))
        for number in (2, 3, 4, 6, 7, 8, 9):
            holder.tell(1, Basic.Ack(number))
        nothing_comes(waiter)
        holder.tell(1, Basic.Nack(10, True, True))
        assert numbers(deliveries(waiter, 1, 33)) == [0, 4, 9, *range(10, 40)]


def test_what_is_returned_after_a_cancel_is_not_acked_with_the_deliveries_behind_it(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        holder.tell(1, Basic.Nack(1, False, True), Basic.Ack(6, True), Basic.Reject(7, True), Basic.Ack(10, True))
        assert numbers(deliveries(waiter, 1, 32)) == [0, 6, *range(10, 40)]


def test_a_cancel_right_behind_its_consume_is_answered_behind_it(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    with members(client, grouping.amqp_port, vhost) as (_, waiter):
        waiter.tell(1, Basic.Consume(queue="orders", consumer_tag="d"), Basic.Cancel("d"))
        waiter.expect(1, Basic.ConsumeOk)
        waiter.expect(1, Basic.CancelOk)


def test_acks_right_before_a_close_count(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    with members(client, grouping.amqp_port, vhost) as (holder, waiter):
        holder.tell(1, Basic.Ack(4, True), Basic.Ack(6), Channel.Close(200, "", 0, 0))
        holder.expect(1, Channel.CloseOk)
        assert numbers(deliveries(waiter, 1, 35)) == [4, *range(6, 40)]


def test_a_channel_number_is_used_again_at_once(grouping: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """The broker's last deliveries to the member of the number's last channel are not of the new one."""
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(300)))
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        for _ in range(10):
            consume(wire, 1, prefetch=50)
            deliveries(wire, 1, 5)
            wire.tell(1, Channel.Close(200, "", 0, 0), Channel.Open())
            while not isinstance(wire.read()[1], Channel.CloseOk):
                pass
            wire.expect(1, Channel.OpenOk)
        consume(wire, 1, prefetch=300)
        got = deliveries(wire, 1, 300)
        assert [each.number for each in got] == list(range(1, 301))
        assert sorted(numbers(got)) == list(range(300))


def test_pika_which_cancels_before_it_closes_leaves_in_order(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost, SHARD)
    publish(client, grouping.amqp_port, vhost, numbered(range(60), key="one"))
    with client.pika(grouping.amqp_port, vhost.name) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        first: list[int] = []
        channel.basic_consume("orders", lambda _, method, __, body: first.append(int(body)))
        while len(first) < PREFETCH:
            channel.connection.process_data_events(time_limit=None)
        channel.basic_ack(5, multiple=True)
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, prefetch=100)
        assert first[:5] + numbers(deliveries(wire, 1, 55)) == list(range(60))


def test_pikas_generator_which_returns_what_it_has_read_ahead_leaves_in_order(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """It rejects what its program has not seen, while the program holds an earlier message; then it cancels."""
    sharded(vhost, SHARD)
    publish(client, grouping.amqp_port, vhost, numbered(range(60), key="one"))
    with client.pika(grouping.amqp_port, vhost.name) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        seen = []
        for method, _, body in channel.consume("orders"):
            assert body is not None
            seen.append(int(body))
            if len(seen) == 5:
                break
            channel.basic_ack(method.delivery_tag or 0)
        channel.cancel()
    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, prefetch=100)
        assert seen[:4] + numbers(deliveries(wire, 1, 56)) == list(range(60))


async def test_aio_pika_gets_each_shard_in_order_and_leaves_it_so(
    grouping: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """Its iterator cancels at the end of the block, and returns what its program has not taken."""
    sharded(vhost)
    publish(client, grouping.amqp_port, vhost, numbered(range(300), key="key {}"))
    got: list[int] = []
    while len(got) < 300:
        connection = await aio_pika.connect(
            host="127.0.0.1",
            port=grouping.amqp_port,
            login=client.user,
            password=client.password,
            virtualhost=vhost.name,
        )
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=7)
            queue = await channel.get_queue("orders", ensure=False)
            async with queue.iterator() as messages:
                async for message in messages:
                    got.append(int(message.body))
                    await message.ack()
                    if len(got) % 60 == 0:
                        break
    assert sorted(set(got)) == list(range(300))
    of = {shard: [n for n in got if owner(SHARDS, f"key {n}") == shard] for shard in SHARDS}
    assert all(numbers == sorted(numbers) for numbers in of.values())


@contextmanager
def leaving(sidecar: Sidecar, client: Client) -> Iterator[None]:
    """Stop a sidecar, which has begun to drain when the block begins, and has ended after it."""
    stopping = threading.Thread(target=sidecar.stop)
    stopping.start()
    try:
        wait_until("a drain", lambda: _refuses(sidecar, client))
        yield
    finally:
        stopping.join()


def _refuses(sidecar: Sidecar, client: Client) -> bool:
    with wire(sidecar.amqp_port) as peer:
        peer.send(PROTOCOL_HEADER)
        try:
            peer.expect(0, Connection.Start)
            peer.tell(0, Connection.StartOk({}, "PLAIN", f"\0{client.user}\0{client.password}"))
            return isinstance(peer.read()[1], Connection.Close)
        except EOFError:
            return True  # the drain began before the broker had answered


@contextmanager
def moving(client: Client, old: Sidecar, new: Sidecar, vhost: VirtualHost) -> Iterator[tuple[Wire, Wire]]:
    """Yield a member at one sidecar that holds ten of forty messages, and one that waits at another sidecar."""
    sharded(vhost, SHARD)
    publish(client, new.amqp_port, vhost, numbered(range(40), key="one"))
    with client.session(old.amqp_port, vhost.name) as holder, client.session(new.amqp_port, vhost.name) as waiter:
        holder.channel(1, confirm=False)
        consume(holder, 1, prefetch=PREFETCH)
        deliveries(holder, 1, PREFETCH)
        waiter.channel(1, confirm=False)
        consume(waiter, 1, prefetch=100)
        yield holder, waiter


@pytest.mark.versions
def test_sigterm_lets_a_client_ack_what_it_got_and_the_next_sidecar_gets_the_rest(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    old, new = start_sidecar(groups="orders"), start_sidecar(groups="orders")
    with moving(client, old, new, vhost) as (holder, waiter), leaving(old, client):
        holder.tell(1, Basic.Ack(9, True))
        nothing_comes(waiter)
        nothing_comes(holder)
        holder.tell(1, Basic.Ack(10))
        assert holder.expect(0, Connection.Close).reply_code == 320
        holder.tell(0, Connection.CloseOk())
        assert numbers(deliveries(waiter, 1, 30)) == list(range(10, 40))


def test_sigterm_does_not_wait_beyond_drain_time_for_acks(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    old, new = start_sidecar(groups="orders", drain_time="1"), start_sidecar(groups="orders")
    with moving(client, old, new, vhost) as (holder, waiter), leaving(old, client):
        holder.tell(1, Basic.Ack(5, True))
        assert holder.expect(0, Connection.Close).reply_code == 320
        holder.tell(0, Connection.CloseOk())
        assert numbers(deliveries(waiter, 1, 35)) == list(range(5, 40))


def test_a_member_that_acks_nothing_loses_its_shard_and_its_late_acks_harm_nobody(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar(groups="orders", groups_ack_timeout="2")
    with members(client, sidecar.amqp_port, vhost) as (holder, waiter):
        got = deliveries(waiter, 1, 40)
        assert numbers(got) == list(range(40))
        holder.tell(1, Basic.Ack(10, True), Basic.Nack(10, False, True))
        assert holder.expect(1, Channel.Close).reply_text == "PRECONDITION_FAILED - unknown delivery tag 10"
        nothing_comes(waiter)
        waiter.tell(1, Basic.Ack(40, True))
        nothing_comes(waiter)
    assert waiting(client, sidecar.amqp_port, vhost, SHARD) == {"orders.0": 0}


def test_a_client_that_has_cancelled_and_acks_nothing_loses_its_shard(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar(groups="orders", groups_ack_timeout="2")
    with members(client, sidecar.amqp_port, vhost) as (holder, waiter):
        holder.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        assert numbers(deliveries(waiter, 1, 40)) == list(range(40))
        holder.tell(1, Basic.Ack(10))
        nothing_comes(holder)


@pytest.mark.versions
@pytest.mark.parametrize("end", ["it acks all", "its client is gone"])
def test_a_client_that_acks_slowly_after_its_cancel_is_waited_for(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, end: str
) -> None:
    """The next member's link waits at the broker meanwhile, and both have the same priority."""
    old, new = start_sidecar(groups="orders"), start_sidecar(groups="orders")
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=".*")
    sharded(vhost, SHARD)
    told = partial(show, new.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)

    def priorities() -> list[int]:
        found = vhost.api.ask("GET", "consumers", vhost.name)
        return [each["arguments"]["x-priority"] for each in found if each["queue"]["name"] == "orders.0"]

    publish(client, new.amqp_port, vhost, numbered(range(40), key="one"))
    with client.session(old.amqp_port, vhost.name) as leaver, client.session(new.amqp_port, vhost.name) as waiter:
        leaver.channel(1, confirm=False)
        consume(leaver, 1, prefetch=PREFETCH)
        deliveries(leaver, 1, PREFETCH)
        waiter.channel(1, confirm=False)
        consume(waiter, 1, prefetch=PREFETCH)
        wait_until("both members", lambda: "2 members" in told() and "not balanced" not in told(), within=30)
        wait_until("one consumer", lambda: priorities() == [LINK_PRIORITY], within=30)
        leaver.ask(1, Basic.Cancel("c"), Basic.CancelOk)
        for number in range(1, 9):
            leaver.tell(1, Basic.Ack(number))
            nothing_comes(waiter)
        wait_until("the next one waits", lambda: priorities() == [LINK_PRIORITY, LINK_PRIORITY], within=30)
        nothing_comes(waiter)
        wait_until("it is told", lambda: "has cancelled, with 2 unacked of orders.0" in told())
        if end == "it acks all":
            leaver.tell(1, Basic.Ack(10, True))
        else:
            drop(leaver)
        first = 10 if end == "it acks all" else 8
        for start in range(first, 40, PREFETCH):
            batch = list(range(start, min(start + PREFETCH, 40)))
            assert numbers(deliveries(waiter, 1, len(batch))) == batch
            waiter.tell(1, Basic.Ack(0, True))
        wait_until("the only consumer", lambda: priorities() == [LINK_PRIORITY], within=30)
