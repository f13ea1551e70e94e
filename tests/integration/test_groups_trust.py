"""The exchange of a group's beats: no publish over HTTP is taken for a beat, whatever the sidecar's own user may do."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from proxy.groups.beats import Beat, MemberBeat, encode
from tests.integration.broker_api import BrokerApi, Delivered, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import consume, sharded
from tests.integration.sidecar import Answer, Sidecar, bearer, publish_path
from tests.integration.wire_client import Client

pytestmark = pytest.mark.versions

TOKEN = "3f1c0c4e5b0a4d0d8d9d5a7e5c1f7b2a"
CLOUD_EVENT = {"specversion": "1.0", "id": "e", "source": "/s", "type": "t", "partitionkey": "k"}


def forged() -> bytes:
    """Return a beat of a sidecar that does not exist, with three members."""
    members = tuple(MemberBeat(f"ghost{n}", "ghost", 1.0, prefetch=10) for n in range(3))
    return encode(Beat("evil", int(time.time() * 1000), "pod-x", "evil's queue", "ring", None, members))


@pytest.fixture
def grouping(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> Iterator[Sidecar]:
    """Start a sidecar with one member of the group of `orders`, and yield it once beats are sent and received."""
    vhost.permit(USER, ".*", ".*", ".*")
    sharded(vhost)
    sidecar = start_sidecar(groups="orders", management_publish="true")
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        consume(wire, 1)
        wait_until("beats", lambda: group(sidecar, vhost)["membership"] is None)
        yield sidecar
        wire.goodbye()


def group(sidecar: Sidecar, vhost: VirtualHost) -> Any:
    return sidecar.admin(f"/groups/{quote(vhost.name, safe='')}/orders").json


def ways(sidecar: Sidecar, vhost: VirtualHost, exchange: str) -> dict[str, Answer]:
    """Publish forged beats to an exchange in each way that there is over HTTP with the sidecar's rights."""
    plain, event = {"Content-Type": "application/json"}, {"Content-Type": "application/cloudevents+json"}
    lines = {"Content-Type": "application/x-ndjson"}
    item = json.dumps({"key": "k", "payload": forged().decode()}).encode()
    data = json.dumps(CLOUD_EVENT | {"data_base64": base64.b64encode(forged()).decode()}).encode()
    batch = {"Content-Type": "application/cloudevents-batch+json"}

    def path(what: str, name: str = exchange) -> str:
        return publish_path(name, vhost.name, what)

    encoded = path("publish").replace(".group", "%2Egroup")
    return {
        "one": sidecar.publish(exchange, "k", forged(), vhost=vhost.name),
        "encoded": sidecar.ask("POST", encoded, forged(), plain | {"Routing-Key": "k"}),
        "batch": sidecar.ask("POST", path("publish/batch"), item, lines),
        "event": sidecar.ask("POST", path("events"), data, event),
        "events": sidecar.ask("POST", path("events"), b"[" + data + b"]", batch),
    }


def test_no_publish_over_http_reaches_the_exchange_of_the_beats(grouping: Sidecar, vhost: VirtualHost) -> None:
    vhost.queue("tap")
    vhost.bind("orders.group", "tap", "")

    for name in ("orders.group", "orders.group.asked"):
        why = f"exchange: only sidecars publish to '{name}', to balance the consumer group of 'orders'"
        for answer in ways(grouping, vhost, name).values():
            assert answer.problem(403, "forbidden", "invalid", retryable=False) == why
    for name in ("orders.group\n", "orders.group\r"):
        assert {answer.status for answer in ways(grouping, vhost, name).values()} == {404}

    beats = {json.loads(message.body)["sidecar"] for message in vhost.drain("tap")}
    assert beats <= {grouping.id}
    assert len(group(grouping, vhost)["members"]) == 1


def test_a_sidecar_without_groups_refuses_as_well(
    grouping: Sidecar, start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    """Its user may be the one that other sidecars beat with; in shadow it reads no exchange before a publish."""
    for mode in ({}, {"route": "", "shadow": "*"}, {"pass": "*.group*"}):
        other = start_sidecar(**mode)
        for name in ("orders.group", "orders.group.asked"):
            assert {answer.status for answer in ways(other, vhost, name).values()} == {403}


def test_a_ring_does_not_lead_to_the_exchange_of_the_beats(grouping: Sidecar, vhost: VirtualHost) -> None:
    """A fanout exchange with one queue would be a lane, to which the sidecar publishes itself."""
    vhost.exchange("other")
    vhost.bind("other", "orders.group", "1", kind="e")

    answer = grouping.route("other", "k", vhost=vhost.name).json

    assert (answer["outcome"], answer["reason"]) == ("passed", "not_a_lane")
    assert "only sidecars publish to it, to balance the group of 'orders'" in grouping.log()


def test_a_message_that_was_published_elsewhere_is_no_beat(grouping: Sidecar, vhost: VirtualHost) -> None:
    """It comes over a binding or as a dead letter, whose publisher needs no right on the beats' exchange."""
    vhost.exchange("news", "fanout")
    vhost.bind("news", "orders.group", "", kind="e")
    vhost.queue("dying", x_message_ttl=1, x_dead_letter_exchange="orders.group")
    vhost.bind("news", "dying", "")
    vhost.queue("tap")
    vhost.bind("orders.group", "tap", "")

    for answer in ways(grouping, vhost, "news").values():
        assert answer.status == 200

    told: list[Delivered] = []

    def is_followed() -> bool:
        told.extend(vhost.drain("tap"))
        senders = [json.loads(message.body)["sidecar"] for message in told]
        return senders.count("evil") == 10 and "evil" not in senders[-2:]

    # Two beats of its own behind the forged ones: it has got those by then.
    wait_until("later beats", is_followed)
    assert [(m["client"], m["shards"]) for m in group(grouping, vhost)["members"] if m["client"] == "ghost"] == []
    assert group(grouping, vhost)["membership"] is None


def test_a_broker_user_needs_his_own_right(grouping: Sidecar, vhost: VirtualHost, api: BrokerApi) -> None:
    api.ask("PUT", "users", "plain", body={"password": "pw", "tags": ""})
    try:
        vhost.permit("plain", "", "^(amq\\.default|orders)$", "")
        body = {"properties": {}, "routing_key": "", "payload": forged().decode(), "payload_encoding": "string"}
        login = {"Authorization": "Basic " + base64.b64encode(b"plain:pw").decode()}
        path = f"/api/exchanges/{quote(vhost.name, safe='')}/orders.group/publish"

        answer = grouping.ask("POST", path, json.dumps(body).encode(), login)

        assert answer.status == 400
        assert "access to exchange 'orders.group'" in answer.json["reason"]
        assert len(group(grouping, vhost)["members"]) == 1
    finally:
        api.ask("DELETE", "users", "plain")


def test_another_exchange_with_such_a_name_is_published_to(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    """Beside no hash exchange, beside one of another type, or of another type than the beats' exchange itself."""
    sidecar = start_sidecar()
    vhost.exchange("orders")
    vhost.exchange("news", "topic")
    vhost.queue("q")
    names = {"alerts.group": "fanout", "news.group": "fanout", "orders.group": "topic"}
    for name, kind in names.items():
        vhost.exchange(name, kind)
        vhost.bind(name, "q", "#")
    for name in names:
        for _ in range(2):
            assert sidecar.publish(name, "k", b"x", vhost=vhost.name).status == 200
    assert len(vhost.drain("q")) == 6


def test_a_token_of_a_pattern_with_a_wildcard_does_not_reach_it(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path_factory: pytest.TempPathFactory
) -> None:
    vhost.ring("orders", ["q"])
    vhost.exchange("orders.group", "fanout")
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text(f"[[tokens]]\nname = 'orders'\ntoken = '{TOKEN}'\npublish = ['*/orders*']\n")
    file.chmod(0o600)
    sidecar = start_sidecar(tokens_file=str(file))
    headers = bearer(TOKEN) | {"Content-Type": "application/json", "Routing-Key": "k"}

    def post(exchange: str) -> int:
        return sidecar.ask("POST", publish_path(exchange, vhost.name), forged(), headers).status

    assert (post("orders"), post("orders.group")) == (200, 403)
