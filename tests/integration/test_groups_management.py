"""Members that join while the management API is away: they consume by what was read before, or are told why not."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel, Queue

from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.groups import consume, deliveries, numbered, numbers, publish, sharded
from tests.integration.relay import Relay, relay
from tests.integration.wire_client import Client, Wire

AWAY: dict[str, Callable[[Relay], None]] = {"hangs": Relay.freeze, "is down": Relay.cut}
"""The ways in which the management API is away."""


in_both_ways = pytest.mark.parametrize("goes_away", AWAY.values(), ids=AWAY)


def pattern(vhost: VirtualHost) -> str:
    """Return the setting that names the exchange of the test's virtual host."""
    return f"{quote(vhost.name, safe='')}/orders"


def joins(wire: Wire, channel: int) -> None:
    """Have a program declare its queue and consume from it; it gets the 30 messages of the group."""
    wire.channel(channel, confirm=False)
    assert wire.ask(channel, Queue.Declare(0, "orders", durable=True), Queue.DeclareOk).message_count == 30
    consume(wire, channel)
    assert sorted(numbers(deliveries(wire, channel, 30))) == list(range(30))


def refused(wire: Wire, channel: int) -> str:
    """Return why a program that consumes from the group is refused for now."""
    wire.channel(channel, confirm=False)
    close = wire.ask(channel, Basic.Consume(0, "orders", "c"), Channel.Close)
    wire.tell(channel, Channel.CloseOk())
    assert close.reply_code == 541
    return close.reply_text


@in_both_ways
def test_an_exchange_that_the_setting_names_is_read_before_anybody_consumes_from_it(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, goes_away: Callable[[Relay], None]
) -> None:
    sharded(vhost)
    with relay(login.management_url) as (link, url):
        grouping = start_sidecar(groups=pattern(vhost), management_url=url)
        grouping.wait_ready()
        goes_away(link)
        publish(client, grouping.amqp_port, vhost, numbered(range(30)))
        with client.session(grouping.amqp_port, vhost.name) as wire:
            joins(wire, 1)
            wire.goodbye()


@in_both_ways
def test_an_exchange_that_was_never_read_is_refused_until_the_management_api_is_back(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client, goes_away: Callable[[Relay], None]
) -> None:
    sharded(vhost)
    publish(client, start_sidecar().amqp_port, vhost, numbered(range(30)))
    with relay(login.management_url) as (link, url):
        goes_away(link)
        grouping = start_sidecar(groups=pattern(vhost), management_url=url, lookup_timeout="1", management_timeout="1")
        with client.session(grouping.amqp_port, vhost.name) as wire:
            assert f"exchange 'orders' in vhost {vhost.name!r} cannot be read: " in refused(wire, 1)
            link.open() if goes_away is Relay.cut else link.thaw()
            grouping.wait_ready()
            joins(wire, 2)
            wire.goodbye()


@in_both_ways
def test_a_start_without_the_management_api_goes_by_the_rings_that_were_kept(
    start_sidecar: StartSidecar,
    login: Login,
    vhost: VirtualHost,
    client: Client,
    tmp_path: Path,
    goes_away: Callable[[Relay], None],
) -> None:
    sharded(vhost)
    with relay(login.management_url) as (link, url):
        changes = {"groups": pattern(vhost), "management_url": url, "ring_cache_dir": str(tmp_path)}
        before = start_sidecar(**changes)
        publish(client, before.amqp_port, vhost, numbered(range(30)))
        wait_until("a file", lambda: sorted(tmp_path.glob("*.ring.json")))
        before.stop()
        goes_away(link)
        grouping = start_sidecar(**changes)
        with client.session(grouping.amqp_port, vhost.name) as wire:
            joins(wire, 1)
            wire.goodbye()


@pytest.mark.versions
def test_where_exact_is_required_a_member_is_refused_for_now_if_nobody_can_tell(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    with relay(login.management_url) as (link, url):
        changes = {"groups": pattern(vhost), "management_url": url, "lookup_timeout": "1"}
        grouping = start_sidecar(groups_require="exact", **changes)
        grouping.wait_ready()
        link.freeze()
        with client.session(grouping.amqp_port, vhost.name) as wire:
            assert "has perhaps no exact group: the management API does not tell" in refused(wire, 1)
            link.thaw()
            wire.goodbye()
