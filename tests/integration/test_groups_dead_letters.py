"""Dead letters of groups in series: what was tried as often as it may leaves its shard, and its key goes on."""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic

from proxy.cli import main
from proxy.commands.group import show
from proxy.commands.keys import KEYS_VIEW
from proxy.settings.tries import LONGEST_SPREAD
from testbed.broker import Broker
from tests.integration.broker_api import Delivered, VirtualHost, wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.groups import SHARDS, publish, sharded, waiting
from tests.integration.wire_client import Client, Content, Wire, port_of

pytestmark = pytest.mark.versions

LIMITED: dict[str, str] = {
    "groups": "orders",
    "groups_in_series": "orders",
    "groups_retry_delay": "0.1",
    "groups_retry_delay_max": "0.1",
    "groups_retry_limit": "3",
    "groups_dead_letter": "dead",
}
MESSAGES = [("orders", key, f"{key} {number}".encode()) for number in range(4) for key in ("bad", "good", "other")]


def grave(vhost: VirtualHost) -> None:
    """Make the exchange of dead letters, with a queue."""
    vhost.exchange("dead", "topic")
    vhost.queue("graves")
    vhost.bind("dead", "graves", "#")


def work(wire: Wire, stop: Callable[[Content], bool]) -> list[tuple[str, int]]:
    """Ack all deliveries, and return those that are `bad 1`, until one is to be the last; tell bodies and tries."""
    seen: list[tuple[str, int]] = []
    while True:
        content = wire.content(1, Basic.Deliver)
        assert isinstance(content.method, Basic.Deliver)
        number = content.method.delivery_tag or 0
        seen.append((content.body.decode(), tries_of(content)))
        wire.tell(1, Basic.Reject(number, True) if content.body == b"bad 1" else Basic.Ack(number))
        if stop(content):
            return seen


def tries_of(content: Content) -> int:
    told = (content.properties.headers or {}).get("x-ring-attempt")
    return told if isinstance(told, int) else 1


def consume(wire: Wire) -> None:
    wire.channel(1, confirm=False)
    wire.ask(1, Basic.Qos(0, 50), Basic.QosOk)
    wire.ask(1, Basic.Consume(0, "orders", "c"), Basic.ConsumeOk)


def buried(vhost: VirtualHost, count: int = 1) -> list[Delivered]:
    found: list[Delivered] = []

    def all_are_there() -> bool:
        found.extend(vhost.drain("graves"))
        return len(found) >= count

    wait_until("the dead letters are there", all_are_there)
    return found


def test_a_message_that_fails_for_ever_becomes_a_dead_letter_and_its_key_goes_on(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    grave(vhost)
    sidecar = start_sidecar(**LIMITED)
    publish(client, sidecar.amqp_port, vhost, MESSAGES)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        seen = work(wire, lambda content: content.body == b"bad 3")
        assert [each for each in seen if each[0].startswith("bad")] == [
            *[("bad 0", 1), ("bad 1", 1), ("bad 1", 2), ("bad 1", 3), ("bad 2", 1), ("bad 3", 1)]
        ]
        (letter,) = buried(vhost)
        assert (letter.body, letter.exchange, letter.routing_key) == (b"bad 1", "dead", "bad")
        told = {name: value for name, value in letter.headers.items() if name != "x-ring-id"}
        shard = told.pop("x-ring-shard")
        assert shard in SHARDS
        assert told == {"x-ring-group": "orders", "x-ring-attempt": 3, "x-ring-reason": "retry-limit"}
        wire.goodbye()
    assert sum(waiting(client, port_of(broker.amqp_url), vhost).values()) == 0


def test_properties_of_a_message_that_would_keep_a_dead_letter_from_its_queue_are_left_out(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    """A user_id must be the publisher's, an expiration would end the dead letter, and CC would multiply it."""
    sharded(vhost)
    grave(vhost)
    vhost.queue("elsewhere")
    vhost.bind("dead", "elsewhere", "copy")
    sidecar = start_sidecar(**(LIMITED | {"groups_retry_limit": "1"}))
    headers: dict[str, Any] = {"CC": ["copy"], "mine": [1, {"a": "b"}], "x-ring-attempt": "the publisher's"}
    sent = Basic.Properties(
        content_type="text/plain", headers=headers, delivery_mode=2, priority=3, correlation_id="c",
        expiration="3600000", message_id="m", message_type="t", user_id=client.user, app_id="a",
    )  # fmt: skip
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "orders", "bad", b"bad 1", sent)
        wire.confirm(1)
        wire.goodbye()
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        work(wire, lambda content: True)
        (letter,) = buried(vhost)
        wire.goodbye()
    kept = {"content_type": "text/plain", "delivery_mode": 2, "priority": 3, "correlation_id": "c", "message_id": "m"}
    found = {name: value for name, value in letter.properties.items() if name != "headers"}
    assert found == kept | {"type": "t", "app_id": "a"}
    assert letter.headers["mine"] == [1, {"a": "b"}]
    assert letter.headers["x-ring-attempt"] == 1
    assert "CC" not in letter.headers
    assert not vhost.drain("elsewhere")


def test_the_keys_that_wait_are_told(start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    settings = {name: value for name, value in LIMITED.items() if name != "groups_dead_letter"}
    settings |= {"groups_retry_then": "stop", "groups_retry_limit": "2"}
    sidecar = start_sidecar(**settings | {"groups_retry_delay": "2", "groups_retry_delay_max": "2"})
    publish(client, sidecar.amqp_port, vhost, MESSAGES)
    path = f"/groups/{quote(vhost.name, safe='')}/orders/keys"
    assert "no client of this sidecar consumes from 'orders'" in sidecar.admin(path).text

    def told() -> dict[str, Any]:
        answer: dict[str, Any] = sidecar.admin(path).json
        assert answer["in_series"]
        return answer["keys"][0] if answer["keys"] else {}

    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        work(wire, lambda content: content.body == b"bad 1")
        wait_until("it is to be tried again", lambda: told().get("state") == "to be tried again")
        key = told()
        assert (key["key"], key["tries"], key["bytes"], key["waiting"]) == ("bad", 1, 5, 2)
        assert 0 < key["due_seconds"] <= 2 * LONGEST_SPREAD
        assert key["shard"] in SHARDS
        labels = {"vhost": vhost.name, "exchange": "orders"}
        wait_until("the metric", lambda: sidecar.metric("ringproxy_group_keys_retried", **labels) == 1)
        assert sidecar.metric("ringproxy_group_oldest_retried_seconds", **labels) > 0
        work(wire, lambda content: content.body == b"bad 1")
        wait_until("it stands still", lambda: told().get("state") == "stopped")
        assert told()["fingerprint"] == key["fingerprint"]
        assert sidecar.admin(path).json["elsewhere"] == []
        wait_until("the metric", lambda: sidecar.metric("ringproxy_group_keys_stopped", **labels) == 1)
        assert sidecar.metric("ringproxy_group_returns_total", **labels) == 2
        lines = show(sidecar.admin_url, vhost.name, "orders", KEYS_VIEW, as_json=False).splitlines()
        assert re.fullmatch(
            r"key +bad, shard orders\.\d, for \d\.\d s: stopped, returned 2 times, 2 messages behind it", lines[1]
        )


def test_an_operator_decides_what_becomes_of_a_key_that_stands_still(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    sharded(vhost)
    grave(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    vhost.api.ask("PUT", "users", "stranger", body={"password": "stranger", "tags": ""})
    vhost.permit("stranger", write="^$")
    stop = {"groups_retry_then": "stop", "groups_retry_limit": "1", "groups_operators": "guest"}
    sidecar, other = (start_sidecar(**LIMITED | stop) for _ in range(2))
    publish(client, sidecar.amqp_port, vhost, [("orders", "bad", b"bad 1") for _ in range(3)])

    def ordered(act: str, key: str, user: str = "guest") -> tuple[int, str]:
        url = broker.amqp_url.replace("guest:guest", f"{user}:{user}")
        where = ["--vhost", vhost.name, "--sidecar", sidecar.admin_url]
        status = main(["group", "orders", *where, act, key, "--broker-url", url])
        told = capsys.readouterr()
        return status, (told.out + told.err).rstrip()

    def wait_for_state(state: str) -> None:
        wait_until(state, lambda: state in show(sidecar.admin_url, vhost.name, "orders", KEYS_VIEW, as_json=False))

    with client.session(sidecar.amqp_port, vhost.name) as wire, client.session(other.amqp_port, vhost.name) as idle:
        consume(wire)
        work(wire, lambda content: True)
        wait_for_state("stopped")
        consume(idle)  # its sidecar gets the orders too
        assert ordered("skip", "nosuch") == (2, "ring-proxy: KEY: 'nosuch' does not wait at this sidecar")
        status, told = ordered("release", "bad")
        assert status == 0, told
        assert told.startswith("release: released the message ")
        seen = work(wire, lambda content: True)
        assert seen == [("bad 1", 1)]
        wait_for_state("stopped")
        assert ordered("skip", "bad")[0] == 0
        work(wire, lambda content: True)
        wait_for_state("stopped")
        assert ordered("dead-letter", "bad")[0] == 0
        (letter,) = buried(vhost)
        assert (letter.headers["x-ring-reason"], letter.headers["x-ring-attempt"]) == ("operator", 1)
        work(wire, lambda content: True)
        wait_for_state("stopped")
        line = "the broker refuses the order to the exchange 'orders.group.operators': "
        assert line in ordered("skip", "bad", "stranger")[1]
        vhost.permit("stranger", write=r"^orders\.group\.operators$")
        status, told = ordered("skip", "bad", "stranger")
        assert status == 2
        assert "no sidecar has answered in 5 s" in told
        assert "whether groups_operators names the user 'stranger'" in told
        assert "an order of 'stranger', whom groups_operators does not name" in sidecar.log()
        assert sidecar.metric("ringproxy_group_orders_total", vhost=vhost.name, exchange="orders") == 3
        wire.goodbye()
    vhost.api.ask("DELETE", "users", "stranger")


def test_no_order_is_done_that_could_not_be_answered(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    sharded(vhost, lanes=True)
    vhost.permit(USER, configure=r"^orders\.group", write=r"^orders", read=r"^orders\.group")
    stop = {"groups_retry_then": "stop", "groups_retry_limit": "1", "groups_operators": "guest"}
    sidecar = start_sidecar(**LIMITED | stop)
    publish(client, sidecar.amqp_port, vhost, [("orders", "bad", b"bad 1")])
    where = ["--vhost", vhost.name, "--sidecar", sidecar.admin_url]
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        work(wire, lambda content: True)
        wait_until("it is told", lambda: "takes no orders of operators" in sidecar.log())
        assert "needs write on amq.default, to answer" in sidecar.log()
        wait_until(
            "stopped", lambda: "stopped" in show(sidecar.admin_url, vhost.name, "orders", KEYS_VIEW, as_json=False)
        )
        assert main(["group", "orders", *where, "skip", "bad", "--broker-url", broker.amqp_url]) == 2
        assert "no sidecar takes the orders of the exchange 'orders.group.operators'" in capsys.readouterr().err
        assert sidecar.metric("ringproxy_group_orders_total", vhost=vhost.name, exchange="orders") == 0
        wire.goodbye()


def test_a_message_stays_in_its_shard_until_its_dead_letter_has_a_queue(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    vhost.exchange("dead", "topic")
    sidecar = start_sidecar(**LIMITED)
    publish(client, sidecar.amqp_port, vhost, MESSAGES)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        goods: list[bytes] = []

        def the_others_are_done(content: Content) -> bool:
            goods.append(content.body)
            return len([each for each in goods if not each.startswith(b"bad")]) == 8 and goods.count(b"bad 1") == 3

        work(wire, the_others_are_done)
        line = "no dead letter goes to the exchange 'dead' (groups_dead_letter)"
        wait_until("the log tells of it", lambda: line in sidecar.log())
        vhost.queue("graves")
        vhost.bind("dead", "graves", "#")
        seen = work(wire, lambda content: content.body == b"bad 3")
        assert [each[0] for each in seen] == ["bad 2", "bad 3"]
        assert [letter.body for letter in buried(vhost)] == [b"bad 1"]
        wire.goodbye()


def test_a_limit_without_dead_letters_stops_the_key_and_no_other(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    sidecar = start_sidecar(**(LIMITED | {"groups_retry_then": "stop"}))
    publish(client, sidecar.amqp_port, vhost, [each for each in MESSAGES if each[1] == "bad"])
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        work(wire, third)
        time.sleep(1.0)  # ten times the longest delay
        publish(client, sidecar.amqp_port, vhost, [("orders", "good", b"last")])
        assert work(wire, lambda content: True) == [("last", 1)]
        wire.goodbye()


def third(content: Content) -> bool:
    return tries_of(content) == 3


@pytest.mark.parametrize("moves", [False, True], ids=["the client's crash", "another sidecar"])
def test_tries_outlive(moves: bool, start_sidecar: StartSidecar, vhost: VirtualHost, client: Client) -> None:
    sharded(vhost)
    grave(vhost)
    vhost.permit(USER, configure=r"^orders\.group", write=".*", read=r"^orders\.group")
    settings = LIMITED | {"groups_retry_delay": "3", "groups_retry_delay_max": "3"}
    first = start_sidecar(**settings)
    second = start_sidecar(**settings) if moves else first
    publish(client, first.amqp_port, vhost, [each for each in MESSAGES if each[1] == "bad"])
    with client.session(first.amqp_port, vhost.name) as wire, client.session(second.amqp_port, vhost.name) as other:
        consume(wire)
        work(wire, lambda content: content.body == b"bad 1")
        time.sleep(1.2)  # a try counts after a second
        if moves:
            consume(other)
            time.sleep(1.2)  # the beats have told of it, each second
        wire.socket.close()
        if not moves:
            consume(other)
        seen = work(other, lambda content: content.body == b"bad 3")
        other.goodbye()
    assert seen == [("bad 1", 2), ("bad 1", 3), ("bad 2", 1), ("bad 3", 1)]
    assert [letter.headers["x-ring-attempt"] for letter in buried(vhost)] == [3]


def test_two_equal_messages_of_a_key_have_tries_of_their_own(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    grave(vhost)
    sidecar = start_sidecar(**LIMITED)
    for shard in SHARDS:
        vhost.bind("amq.direct", shard, "bad")
        break
    publish(client, sidecar.amqp_port, vhost, [("amq.direct", "bad", b"bad 1")] * 2)
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        tries: list[int] = []
        while len(tries) < 6:
            tries += [attempt for _, attempt in work(wire, lambda content: True)]
        assert tries == [1, 2, 3, 1, 2, 3]
        assert len(buried(vhost, 2)) == 2
        wire.goodbye()
