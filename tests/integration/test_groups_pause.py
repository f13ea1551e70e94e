"""Operators pause and resume shards and groups: nobody consumes what is paused, and nothing is lost."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest
from pamqp.commands import Basic, Queue

from proxy.cli import main
from proxy.commands.group import MEMBERS_VIEW, show
from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.group_nodes import address
from tests.integration.groups import SHARDS, consume, deliveries, fanned_out, publish, sharded, waiting
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = pytest.mark.versions

PAUSING = {"groups": "orders", "groups_operators": "guest"}
Order = Callable[..., tuple[int, str]]


@pytest.fixture
def order(broker: Broker, vhost: VirtualHost, capsys: pytest.CaptureFixture[str]) -> Order:
    """Return the command: what follows `ring-proxy group`, and the user, to its status and all that it prints."""
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")

    def run(*arguments: str, user: str = "guest") -> tuple[int, str]:
        url = broker.amqp_url.replace("guest:guest", f"{user}:{user}")
        status = main(["group", *arguments, "--vhost", vhost.name, "--broker-url", url])
        told = capsys.readouterr()
        return status, (told.out + told.err).rstrip()

    return run


@pytest.fixture
def stranger(api: BrokerApi, vhost: VirtualHost) -> Iterator[str]:
    """Yield a user who may publish orders, and whom no sidecar takes for an operator."""
    api.ask("PUT", "users", "stranger", body={"password": "stranger", "tags": ""})
    vhost.permit("stranger", write=r"^orders\.group\.pauses$")
    yield "stranger"
    api.ask("DELETE", "users", "stranger")


def consumers(client: Client, broker: Broker, vhost: VirtualHost) -> dict[str, int]:
    with client.session(port_of(broker.amqp_url), vhost.name) as wire:
        wire.channel(1, confirm=False)
        asked = [wire.ask(1, Queue.Declare(0, shard, passive=True), Queue.DeclareOk) for shard in SHARDS]
        wire.goodbye()
    return {answer.queue or "": answer.consumer_count or 0 for answer in asked}


def report(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    return sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json


def paused(sidecar: Sidecar, vhost: VirtualHost) -> dict[str, str]:
    """Return who has paused which shards, as the sidecar tells."""
    return {each["shard"]: each["paused"]["by"] for each in report(sidecar, vhost)["shards"] if each["paused"]}


def all_owned(sidecar: Sidecar, vhost: VirtualHost) -> bool:
    return all(each["holder"] for each in report(sidecar, vhost)["shards"])


def keyed(count: int, keys: int = 8) -> list[tuple[str, str, bytes]]:
    """Return so many messages, numbered over all keys."""
    return [("orders", f"k{number % keys}", b"%d" % number) for number in range(count)]


def member(wire: Wire, exchange: str = "orders") -> None:
    wire.channel(1, confirm=False)
    consume(wire, 1, exchange=exchange, prefetch=50)


def take(wire: Wire, count: int, keys: int = 8) -> list[int]:
    """Ack so many messages, which come for the first time and in the order of each key; return their numbers."""
    got = [(int(each.body), each) for each in deliveries(wire, 1, count)]
    assert not any(each.redelivered for _, each in got)
    for key in range(keys):
        of_key = [number for number, _ in got if number % keys == key]
        assert of_key == sorted(of_key)
    wire.tell(1, Basic.Ack(got[-1][1].number, True))
    return [number for number, _ in got]


def here(sidecar: Sidecar, vhost: VirtualHost) -> list[str]:
    """Return the shards that members of the sidecar own."""
    return [shard for each in report(sidecar, vhost)["members"] if each["here"] for shard in each["shards"]]


def test_a_paused_group_is_consumed_by_nobody_until_it_is_resumed(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order
) -> None:
    sharded(vhost)
    port = port_of(broker.amqp_url)
    one, other = start_sidecar(**PAUSING), start_sidecar(**PAUSING)
    with client.session(one.amqp_port, vhost.name) as a, client.session(other.amqp_port, vhost.name) as b:
        member(a)
        member(b)
        wait_until("both have some", lambda: here(one, vhost) and here(other, vhost))
        status, told = order("orders", "pause")
        assert status == 0, told
        lines = told.splitlines()
        assert lines[0] == f"pause        kept in virtual host {vhost.name}: all shards of the group orders"
        assert [line.partition(" ")[2].strip() for line in lines[1:]] == [f"paused: {', '.join(SHARDS)}"] * 2
        wait_until("no consumer", lambda: not any(consumers(client, broker, vhost).values()))
        publish(client, one.amqp_port, vhost, keyed(60))
        wait_until("all are told", lambda: paused(one, vhost) == paused(other, vhost) == dict.fromkeys(SHARDS, "guest"))
        wait_until("nothing moves", lambda: report(one, vhost)["moves"] == [])
        found = report(one, vhost)
        assert len(found["members"]) == 2
        assert {each["waiting"] for each in found["shards"]} == {False}
        labels = {"vhost": vhost.name, "exchange": "orders"}
        assert one.metric("ringproxy_group_shards_paused", **labels) == 3
        assert one.metric("ringproxy_group_orders_total", **labels) == 1
        text = show(one.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False)
        assert text.count(", paused by guest since 20") == 3
        assert sum(waiting(client, port, vhost).values()) == 60
        b.goodbye()
        wait_until("one has left", lambda: len(report(one, vhost)["members"]) == 1)
        status, told = order("orders", "resume")
        assert (status, told.count("paused: none")) == (0, 1), told
        assert sorted(take(a, 60)) == list(range(60))
        a.goodbye()
    assert not any(waiting(client, port, vhost).values())
    assert "operator 'guest': pause all shards" in one.log()


def test_a_pause_of_one_shard_stops_no_other_and_no_other_group(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order
) -> None:
    fanned_out(vhost)
    sidecar = start_sidecar(**PAUSING)
    with client.session(sidecar.amqp_port, vhost.name) as a, client.session(sidecar.amqp_port, vhost.name) as b:
        member(a)
        member(b, "orders/audit")
        wait_until("it has all", lambda: here(sidecar, vhost) == SHARDS)
        status, told = order("orders", "pause", "--shard", "orders.1")
        assert (status, told.splitlines()[1].partition(" ")[2].strip()) == (0, "paused: orders.1")
        wait_until("no consumer", lambda: consumers(client, broker, vhost)["orders.1"] == 0)
        publish(client, sidecar.amqp_port, vhost, keyed(60))
        assert sorted(take(b, 60)) == list(range(60))
        left = waiting(client, port_of(broker.amqp_url), vhost)["orders.1"]
        assert left > 0
        got = take(a, 60 - left)
        status, told = order("orders/audit", "pause")
        assert status == 0, told
        assert paused(sidecar, vhost) == {"orders.1": "guest"}
        assert order("orders", "pause", "--shard", "orders.7") == (
            2,
            f"ring-proxy: pause: {report(sidecar, vhost)['members'][0]['host']}: kept, and counts once 'orders.7' is"
            " a shard of the group, which it is not here",
        )
        # The last order counts that names a shard, or all.
        assert order("orders", "pause")[0] == order("orders", "resume", "--shard", "orders.1")[0] == 0
        assert paused(sidecar, vhost) == {"orders.0": "guest", "orders.2": "guest"}
        assert sorted(got + take(a, left)) == list(range(60))
        a.goodbye()
        b.goodbye()


def test_a_pause_holds_for_sidecars_that_start_later_and_needs_none_at_its_time(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order
) -> None:
    sharded(vhost)
    its = r"^orders\.group\.pauses"
    vhost.permit("guest", configure=its, write=its, read=its)
    status, told = order("orders", "pause")
    vhost.permit("guest", configure=".*", write=".*", read=".*")
    assert status == 1
    assert "no answer    no sidecar with a member of orders has a groups_operators" in told
    assert "'guest'" in told
    port = port_of(broker.amqp_url)
    publish(client, port, vhost, keyed(60))
    for _ in range(2):
        sidecar = start_sidecar(**PAUSING)
        with client.session(sidecar.amqp_port, vhost.name) as wire:
            member(wire)
            # It has decided once it has heard itself, and counts the shards that it would open.
            wait_until("all are paused", lambda: paused(sidecar, vhost) == dict.fromkeys(SHARDS, "guest"))  # noqa: B023
            wait_until("it hears", lambda: report(sidecar, vhost)["membership"] is None)  # noqa: B023
            assert sidecar.metric("ringproxy_group_moves_total", vhost=vhost.name, exchange="orders") == 0
            assert not any(consumers(client, broker, vhost).values())
            wire.goodbye()
        sidecar.stop()
        assert sum(waiting(client, port, vhost).values()) == 60
    sidecar = start_sidecar(**PAUSING)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        member(wire)
        wait_until("all are paused", lambda: paused(sidecar, vhost) == dict.fromkeys(SHARDS, "guest"))
        assert order("orders", "resume")[0] == 0
        assert sorted(take(wire, 60)) == list(range(60))
        wire.goodbye()
    assert sidecar.metric("ringproxy_group_redeliveries_total", vhost=vhost.name, exchange="orders", shard="s") == 0


def test_only_orders_of_operators_count(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order, stranger: str
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(**PAUSING)

    async def publish_as(user: str, body: bytes) -> None:
        url = address(broker, vhost.name)
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            exchange = await channel.get_exchange("orders.group.pauses", ensure=False)
            await exchange.publish(aio_pika.Message(body, user_id=user), "")

    with client.session(sidecar.amqp_port, vhost.name) as wire:
        member(wire)
        wait_until("it has all", lambda: here(sidecar, vhost) == SHARDS)
        status, told = order("orders", "pause", user=stranger)
        assert status == 1
        assert "no answer    no sidecar with a member of orders has a groups_operators that names 'stranger'" in told
        assert paused(sidecar, vhost) == {}
        assert order("orders", "pause")[0] == 0
        assert order("orders", "resume", user=stranger)[0] == 1
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
            asyncio.run(publish_as("stranger", b"{}"))  # on a connection of guest's
        asyncio.run(publish_as("guest", b'{"verb":"stop","group":"orders","at":1}'))
        line = "a message of the operator 'guest' is no order: Invalid enum value 'stop' - at `$.verb`: "
        wait_until("the log names the field", lambda: line in sidecar.log())
        asyncio.run(publish_as("guest", b'{"verb":"resume","group":"others","at":1}'))
        line = "is no order: group: 'others' is another group"
        wait_until("the log names the field", lambda: line in sidecar.log())
        assert paused(sidecar, vhost) == dict.fromkeys(SHARDS, "guest")
        wire.goodbye()
    assert "an order of 'stranger', whom groups_operators does not name" in sidecar.log()
    sidecar.stop()
    vhost.permit(stranger, write="^$")
    status, told = order("orders", "pause", user=stranger)
    assert (status, told[:53]) == (2, "ring-proxy: the broker refuses the order: ACCESS_REFUSED"[:53])
    assert "access to exchange 'orders.group.pauses'" in told
    again = start_sidecar(**PAUSING)
    with client.session(again.amqp_port, vhost.name) as wire:
        member(wire)
        wait_until("what does not count has hidden nothing", lambda: len(paused(again, vhost)) == 3)
        wire.goodbye()


def test_in_series_what_a_client_works_on_is_acked_and_the_rest_comes_in_order_after_the_pause(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(**PAUSING, groups_in_series="orders")
    publish(client, sidecar.amqp_port, vhost, keyed(60, keys=4))
    port = port_of(broker.amqp_url)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        member(wire)
        first = deliveries(wire, 1, 4)
        status, told = order("orders", "pause")
        assert status == 0
        assert "its clients have yet to ack 4 messages" in told
        for each in first:
            wire.tell(1, Basic.Ack(each.number))
        wait_until("all others wait", lambda: sum(waiting(client, port, vhost).values()) == 56)
        wait_until("no consumer", lambda: not any(consumers(client, broker, vhost).values()))
        assert order("orders", "resume")[0] == 0
        got = [int(each.body) for each in first]
        while len(got) < 60:
            (each,) = deliveries(wire, 1, 1)
            got.append(int(each.body))
            wire.tell(1, Basic.Ack(each.number))
        assert [number for key in range(4) for number in got if number % 4 == key] == [
            number for key in range(4) for number in range(key, 60, 4)
        ]
        wire.goodbye()
    wait_until("all is acked", lambda: not any(waiting(client, port, vhost).values()))


@pytest.mark.long
def test_while_orders_cannot_be_read_the_group_goes_on_and_the_sidecar_says_why(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, order: Order
) -> None:
    sharded(vhost)
    vhost.permit(
        USER, configure=r"^orders\.group(\.[0-9a-f]+|\.asked|\.operators|)$", write=".*", read=r"^orders\.group"
    )
    sidecar = start_sidecar(**PAUSING)
    publish(client, sidecar.amqp_port, vhost, keyed(60))
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        member(wire)
        assert sorted(take(wire, 60)) == list(range(60))
        (warning,) = [each for each in report(sidecar, vhost)["warnings"] if "orders to pause" in each]
        assert "ACCESS_REFUSED" in warning
        assert "orders.group.pauses" in warning
        assert order("orders", "pause")[0] == 1
        vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
        wait_until("it reads the order", lambda: len(paused(sidecar, vhost)) == 3)
        assert not [each for each in report(sidecar, vhost)["warnings"] if "orders to pause" in each]
        vhost.permit(USER, configure="^$", write=".*", read=r"^orders\.group")
        vhost.delete_queue("orders.group.pauses.log")
        line = "orders to pause are not read, so what is paused stays so: the stream was deleted, or its node is away"
        wait_until("the log tells of it", lambda: line in sidecar.log())
        assert len(paused(sidecar, vhost)) == 3
        vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
        line = "no shard is paused any more"
        wait_until("an empty stream has no pause", lambda: line in sidecar.log())
        wait_until("it has all", lambda: here(sidecar, vhost) == SHARDS)
        wire.goodbye()
