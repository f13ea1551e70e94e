"""Several groups of one exchange: each gets every message through a fan behind the lane, and consumes its copies."""

from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel, Queue

from proxy.commands.group import MEMBERS_VIEW, show
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.groups import (
    AUDIT,
    SHARDS,
    consume,
    deliveries,
    fanned_out,
    numbered,
    numbers,
    publish,
    waiting,
)
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.test_groups_redrive import begun, bury, ended, graves, headers, last
from tests.integration.wire_client import Client

pytestmark = pytest.mark.versions


@pytest.fixture
def fanned(vhost: VirtualHost) -> VirtualHost:
    """A virtual host whose exchange orders has the groups orders and orders/audit."""
    fanned_out(vhost)
    return vhost


@pytest.fixture
def grouping(start_sidecar: StartSidecar) -> Sidecar:
    return start_sidecar(groups="orders")


def report(grouping: Sidecar, vhost: VirtualHost, group: str) -> Any:
    path = f"/groups/{quote(vhost.name, safe='')}/{quote(group, safe='')}"
    return grouping.admin(path).receipt()


def test_each_group_gets_every_message_and_the_ring_has_the_shards(
    grouping: Sidecar, fanned: VirtualHost, client: Client
) -> None:
    publish(client, grouping.amqp_port, fanned, numbered(range(40)))
    for number in range(40, 60):
        answer = grouping.publish("orders", f"key {number}", b"%d" % number, vhost=fanned.name)
        assert answer.queue() == owner(SHARDS, f"key {number}")
    assert grouping.ring(fanned.name, "orders")["passed"] is None
    with client.session(grouping.amqp_port, fanned.name) as wire:
        for channel, group in ((1, "orders"), (2, "orders/audit")):
            wire.channel(channel, confirm=False)
            consume(wire, channel, exchange=group)
            got = deliveries(wire, channel, 60)
            assert Counter(numbers(got)) == Counter(range(60))
            assert {each.exchange for each in got} == {"orders"}
            wire.tell(channel, Basic.Ack(60, True))
        wire.goodbye()


def test_two_members_share_the_queues_of_their_group(grouping: Sidecar, fanned: VirtualHost, client: Client) -> None:
    with (
        client.session(grouping.amqp_port, fanned.name) as one,
        client.session(grouping.amqp_port, fanned.name) as two,
    ):
        for wire in (one, two):
            wire.channel(1, confirm=False)
            consume(wire, 1, exchange="orders/audit")

        def shared() -> bool:
            found = report(grouping, fanned, "orders/audit")
            return sorted(len(each["shards"]) for each in found["members"]) == [1, 2]

        wait_until("each has its share", shared)
        shards = report(grouping, fanned, "orders/audit")["shards"]
        assert sorted(each["shard"] for each in shards) == AUDIT
        for wire in (one, two):
            wire.goodbye()


def test_the_lag_of_each_group_without_a_member(
    start_sidecar: StartSidecar, fanned: VirtualHost, client: Client
) -> None:
    sidecar = start_sidecar(route="orders")
    publish(client, sidecar.amqp_port, fanned, numbered(range(12)))
    with client.session(sidecar.amqp_port, fanned.name) as wire:
        wire.channel(1, confirm=False)
        for queue in SHARDS:
            wire.ask(1, Queue.Purge(0, queue), Queue.PurgeOk)
        wire.goodbye()

    def lag(group: str) -> Any:
        return report(sidecar, fanned, group)["lag"]["ready"]

    wait_until("the copies of one group", lambda: (lag("orders"), lag("orders/audit")) == (0, 12))
    assert [each["shard"] for each in report(sidecar, fanned, "orders/audit")["shards"]] == AUDIT
    lines = show(sidecar.admin_url, fanned.name, "orders/audit", MEMBERS_VIEW, as_json=False).splitlines()
    assert lines[0].startswith(f"group        orders/audit in virtual host {fanned.name}, 3 shards, no member")
    answer = sidecar.admin(f"/groups/{quote(fanned.name, safe='')}/{quote('orders/adit', safe='')}")
    assert answer.status == 404
    assert "exchange 'orders' has no group 'adit', only 'orders', 'orders/audit'" in answer.json["detail"]


def test_its_name_is_declared_as_a_groups_and_counts_its_own_messages(
    grouping: Sidecar, fanned: VirtualHost, client: Client
) -> None:
    publish(client, grouping.amqp_port, fanned, numbered(range(9)))
    with client.session(grouping.amqp_port, fanned.name) as wire:
        wire.channel(1, confirm=False)
        answer = wire.ask(1, Queue.Declare(0, "orders/audit"), Queue.DeclareOk)
        assert (answer.queue, answer.message_count) == ("orders/audit", 9)
        wire.goodbye()
    assert "orders/audit" not in fanned.queues()


def test_a_group_that_does_not_exist_is_refused_with_those_that_do(
    grouping: Sidecar, fanned: VirtualHost, client: Client
) -> None:
    with client.session(grouping.amqp_port, fanned.name) as wire:
        wire.channel(1, confirm=False)
        wire.tell(1, Basic.Consume(0, "orders/adit", "c"))
        closed = wire.expect(1, Channel.Close)
        assert closed.reply_code == 404
        assert "exchange 'orders' has no group 'adit', only 'orders', 'orders/audit'" in closed.reply_text
        wire.tell(1, Channel.CloseOk())
        wire.channel(2, confirm=False)
        wire.tell(2, Queue.Declare(0, "orders/adit"))
        assert "has no group 'adit'" in wire.expect(2, Channel.Close).reply_text
        wire.tell(2, Channel.CloseOk())
        wire.goodbye()
    assert "orders/adit" not in fanned.queues()


def test_a_queue_that_is_deleted_makes_its_group_alone_inexact_and_moves_no_key(
    grouping: Sidecar, fanned: VirtualHost, client: Client
) -> None:
    before = grouping.ring(fanned.name, "orders")["ring"]
    with client.session(grouping.amqp_port, fanned.name) as wire:
        for channel, group in ((1, "orders"), (2, "orders/audit")):
            wire.channel(channel, confirm=False)
            consume(wire, channel, exchange=group)
        fanned.delete_queue(AUDIT[0])

        def told() -> bool:
            return any("loses messages" in why for why in report(grouping, fanned, "orders/audit")["reasons"])

        wait_until("the group is told as not exact", told)
        assert report(grouping, fanned, "orders")["reasons"] == []
        wire.goodbye()
    publish(client, grouping.amqp_port, fanned, numbered(range(30)))
    assert grouping.ring(fanned.name, "orders")["ring"] == before
    assert sum(waiting(client, grouping.amqp_port, fanned).values()) == 30


def test_a_redrive_reaches_every_group_and_takes_letters_of_the_exchanges_own_group_only(
    grouping: Sidecar, fanned: VirtualHost, client: Client
) -> None:
    graves(fanned)
    letters = [headers(1), headers(2, group="orders/audit", shard="orders.audit.1")]
    bury(client, grouping.amqp_port, fanned, [("key 1", b"%d" % n, told) for n, told in enumerate(letters, 1)])
    where = client.user, client.password, grouping.amqp_port, fanned
    with begun(*where, group="orders/audit") as running:
        assert "'orders/audit' is one of several groups of an exchange" in ended(running, 2)[1]
    with begun(*where) as running:
        told, _ = ended(running)
    assert "and to every group of the exchange" in told
    assert last(told) == "1 published again; left in the queue: 1 of other groups"
    found = waiting(client, grouping.amqp_port, fanned, [*SHARDS, *AUDIT])
    assert sum(found[queue] for queue in SHARDS) == sum(found[queue] for queue in AUDIT) == 1
    assert [each.body for each in fanned.drain("graves")] == [b"2"]
