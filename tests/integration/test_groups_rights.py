"""The rights of users around a group: those that a plan prints are enough, and a refusal says which one to grant."""

import shlex
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Queue

from testbed.broker import Broker
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, publish, refused, sharded
from tests.integration.test_groups_trust import group
from tests.integration.topology import Topology
from tests.integration.wire_client import Client, port_of

pytestmark = pytest.mark.versions

WHO = Client("billing", "pw-billing")
FILE = '[[exchange]]\nname = "orders"\nshards = 3\n'
NEEDED = "grant read on the exchange's name and on its shards, ^orders(\\.[0-9]+)?$"


@pytest.fixture
def billing(vhost: VirtualHost) -> Iterator[Client]:
    """A user who may log in, and has no right yet."""
    vhost.api.ask("PUT", "users", WHO.user, body={"password": WHO.password, "tags": ""})
    vhost.permit(WHO.user, "", "", "")
    yield WHO
    vhost.api.ask("DELETE", "users", WHO.user)


def test_the_rights_that_a_plan_prints_let_a_program_consume_by_group(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, billing: Client, topology: Topology
) -> None:
    topology.write(FILE)
    topology.did("apply")
    lines = [shlex.split(line)[4:] for line in topology.plan()["rights"]]
    rights = {user: patterns for user, *patterns in lines}
    vhost.permit(billing.user, *rights["MEMBER"])
    vhost.permit(USER, *rights["SIDECAR"])
    sidecar = start_sidecar(groups="orders")

    with billing.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        assert wire.ask(1, Queue.Declare(0, "orders", durable=True), Queue.DeclareOk).queue == "orders"
        consume(wire, 1)
        assert sidecar.publish("orders", "key 0", b"0", vhost=vhost.name).queue() in {f"orders.{n}" for n in (1, 2, 3)}
        assert [each.body for each in deliveries(wire, 1, 1)] == [b"0"]
        wait_until("beats", lambda: group(sidecar, vhost)["membership"] is None)
        wire.goodbye()


@pytest.mark.parametrize("read", ["", "^orders$", "^orders\\.[0-9]+$"])
def test_a_member_without_a_right_is_told_to_be_granted_read(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, billing: Client, read: str
) -> None:
    """RabbitMQ 4.3 itself speaks of `configure` on a queue, since the sidecar has asked whether there is one."""
    sharded(vhost)
    vhost.permit(billing.user, "", "", read)
    sidecar = start_sidecar(groups="orders")
    with billing.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        wire.tell(1, Basic.Consume(0, "orders", "c"))
        if read == "^orders\\.[0-9]+$" and not broker.version.startswith("4.3"):
            wire.expect(1, Basic.ConsumeOk)  # it tells everybody that there is no queue of that name
        else:
            if read == "^orders$" or not broker.version.startswith("4.3"):
                wire.expect(1, Basic.ConsumeOk)  # the member is let in, and then the broker refuses its links
            text = refused(wire, 1, 403)
            assert text == f"ACCESS_REFUSED - group 'orders' refused for user 'billing': {NEEDED}"
            assert NEEDED in sidecar.log()
        if broker.version.startswith("4.3") and read != "^orders$":
            wire.channel(2, confirm=False)
            wire.tell(2, Queue.Declare(0, "orders", durable=True))
            assert refused(wire, 2, 403).endswith(NEEDED)
        wire.goodbye()


def test_a_hash_exchange_that_the_setting_groups_lacks_is_named(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar()
    hint = "; it is a hash exchange: to consume from it as a group, name it in ringproxy's setting groups"
    native = None
    with client.session(port_of(broker.amqp_url), vhost.name) as wire:
        wire.channel(1, confirm=False)
        wire.tell(1, Basic.Consume(0, "orders", "c"))
        native = refused(wire, 1, 404)
        wire.goodbye()
    with client.session(sidecar.amqp_port, vhost.name) as wire:

        def told(queue: str = "orders") -> str:
            wire.channel(1, confirm=False)
            wire.tell(1, Basic.Consume(0, queue, "c"))
            return refused(wire, 1, 404)

        # The first one has the exchange read, of which nothing was known; nobody waits for that.
        assert told() == native
        wait_until("the hint", lambda: told() == native + hint)
        assert told("nonesuch") == told("nonesuch") == native.replace("'orders'", "'nonesuch'")
        wire.goodbye()
    assert f"404 {native}{hint}" in sidecar.log()


def test_a_publisher_without_a_right_on_the_lanes_is_told_the_pattern(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, billing: Client
) -> None:
    sharded(vhost, lanes=True)
    vhost.permit(billing.user, "", "^orders$", "")
    vhost.permit(USER, "", "^orders$", "")
    sidecar = start_sidecar()
    pattern = "^orders(\\.lane\\..*)?$"
    with billing.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "orders", "k", b"x")
        assert refused(wire, 1, 403).endswith(f"grant write on {pattern}")
        wire.goodbye()

    answers = [sidecar.publish("orders", f"k{n}", vhost=vhost.name) for n in range(20)]

    why = f"the broker's user needs write permission on the lanes of an exchange, {pattern}"
    assert {answer.problem(403, "forbidden", "invalid", retryable=False) for answer in answers} == {why}
    assert sidecar.log().count("needs write permission") == 1
    # The pattern is enough.
    for user in (billing.user, USER):
        vhost.permit(user, "", pattern, "")
    publish(billing, sidecar.amqp_port, vhost, numbered(range(30)))
    assert len({sidecar.publish("orders", f"k{n}", vhost=vhost.name).queue() for n in range(20)}) == len(SHARDS)
