"""The lag of a group, as KEDA asks for it at any sidecar: while nobody consumes, and with a member at another one."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import yaml
from pamqp.commands import Basic

from proxy.commands.group import MEMBERS_VIEW, show
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.conftest import Login, StartSidecar
from tests.integration.groups import SHARDS, consume, deliveries, numbered, publish, sharded
from tests.integration.relay import Relay, relay
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client

MANIFEST = Path(__file__).parents[2] / "deploy" / "scaledobject.yaml"
SCALED = next(each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "ScaledObject")
COMES_IN, WAITS = SCALED["spec"]["triggers"]


def scaled_by(sidecar: Sidecar, vhost: VirtualHost, trigger: Any = WAITS) -> Any:
    """Return the value that a trigger of the manifest finds in a sidecar's answer."""
    path = urlsplit(trigger["metadata"]["url"]).path.replace("/shop/", f"/{quote(vhost.name, safe='')}/")
    answer = sidecar.admin(path)
    assert answer.status == 200, answer.text
    return reduce(lambda found, field: found[field], trigger["metadata"]["valueLocation"].split("."), answer.json)


def lag_of(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    return sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json


@pytest.mark.versions
def test_the_lag_without_consumers_and_with_a_member_elsewhere(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    publishing, grouping = start_sidecar(route="orders"), start_sidecar(groups="orders")
    publish(client, publishing.amqp_port, vhost, numbered(range(30)))
    for sidecar in (publishing, grouping):
        assert wait_until("all messages", lambda: scaled_by(sidecar, vhost) == 30)  # noqa: B023 - called at once
    shown = lag_of(publishing, vhost)
    assert (shown["joined"], shown["exact"], shown["members"]) == (False, True, [])
    assert sum(each["ready"] for each in shown["shards"]) == shown["lag"]["ready"] == 30
    assert [(each["shard"], each["consumers"]) for each in shown["shards"]] == [(shard, 0) for shard in SHARDS]
    assert shown["lag"]["seconds_to_empty"] is None
    lines = show(publishing.admin_url, vhost.name, "orders", MEMBERS_VIEW, as_json=False).splitlines()
    assert lines[0].endswith(", 3 shards, no member at this sidecar, exact")
    assert lines[1].startswith("lag          30 ready, 0 unacked, ")
    assert lines[1].endswith("/s published, 0.0/s consumed, not getting empty")

    with client.session(grouping.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1, prefetch=1000)
        got = deliveries(wire, 1, 30)
        wire.tell(1, Basic.Ack(got[9].number, True))
        for sidecar in (publishing, grouping):
            wait_until("what is unacked", lambda: lag_of(sidecar, vhost)["lag"]["unacked"] == 20)  # noqa: B023
            assert scaled_by(sidecar, vhost) == 20
        assert [each["consumers"] for each in lag_of(publishing, vhost)["shards"]] == [1, 1, 1]
        assert lag_of(grouping, vhost)["joined"]
        wait_until(
            "the metrics", lambda: grouping.metric("ringproxy_group_shard_unacked", vhost=vhost.name) == 20, within=60
        )
        assert grouping.metric("ringproxy_group_shard_ready", vhost=vhost.name) == 0
        assert "ringproxy_group_shard_ready{" not in publishing.admin("/metrics").text
        wire.tell(1, Basic.Ack(got[-1].number, True))
        for sidecar in (publishing, grouping):
            wait_until("nothing", lambda: scaled_by(sidecar, vhost) == 0)  # noqa: B023
            assert lag_of(sidecar, vhost)["lag"]["seconds_to_empty"] == 0
        wire.goodbye()


def test_the_rates_are_the_brokers(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    sidecar = start_sidecar(groups="orders")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        for channel in (1, 2):
            wire.channel(channel, confirm=False)
        consume(wire, 2)

        def flows() -> bool:
            """Publish and ack ten messages; return whether the lag shows both."""
            for _, key, data in numbered(range(10)):
                wire.publish(1, "orders", key, data)
            wire.tell(2, Basic.Ack(deliveries(wire, 2, 10)[-1].number, True))
            lag = lag_of(sidecar, vhost)["lag"]
            return bool(lag["publish_rate"] and lag["consume_rate"] and scaled_by(sidecar, vhost, COMES_IN))

        wait_until("rates", flows)
        wire.goodbye()


@pytest.mark.parametrize("goes_away", [Relay.freeze, Relay.cut])
def test_a_management_api_that_is_away_is_told_and_holds_nobody_up(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost, goes_away: Callable[[Relay], None]
) -> None:
    """KEDA takes any status but 200 for an error, at which the number of copies stays."""
    sharded(vhost)
    with relay(login.management_url) as (link, url):
        pattern = f"{quote(vhost.name, safe='')}/orders"
        sidecar = start_sidecar(route=pattern, management_url=url, lookup_timeout="1", management_timeout="1")
        sidecar.wait_ready()
        goes_away(link)
        answer = sidecar.admin(f"/groups/{pattern}")
        assert answer.status == 503
        assert "the management API does not tell the messages of the shards of 'orders'" in answer.json["detail"]
        link.open() if goes_away is Relay.cut else link.thaw()
        wait_until("the lag", lambda: sidecar.admin(f"/groups/{pattern}").status == 200)


@pytest.mark.parametrize(
    ("exchange", "detail"),
    [
        ("other", "is named neither by route nor by groups"),
        ("orders.gone", "'orders.gone'"),
        ("orders.fan", "has the type 'fanout', and only hash exchanges have shards"),
    ],
)
def test_what_has_no_lag_says_why(start_sidecar: StartSidecar, vhost: VirtualHost, exchange: str, detail: str) -> None:
    vhost.exchange("orders.fan", "fanout")
    sidecar = start_sidecar(route="orders*")
    answer = sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/{exchange}")
    assert answer.status == 404
    assert detail in answer.json["detail"]
