"""`ring-proxy group orders redrive`: dead letters go through the ring again, at least once and in their order."""

import os
import re
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel, Queue

import proxy
from proxy.redrive.redrive import LOCK
from testbed.broker import Broker
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, Delivered, VirtualHost, wait_until
from tests.integration.conftest import PASSWORD, USER, StartSidecar, with_login
from tests.integration.groups import SHARDS, sharded, waiting
from tests.integration.sidecar import COMMAND, Sidecar
from tests.integration.test_groups_dead_letters import LIMITED, consume, grave, work
from tests.integration.wire_client import Client, port_of

pytestmark = pytest.mark.versions

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])
KEYS = [f"key {number}" for number in range(10)]


@contextmanager
def begun(
    user: str, password: str, port: int, vhost: VirtualHost, *flags: str, group: str = "orders"
) -> Iterator["subprocess.Popen[str]"]:
    """Begin a redrive of a group from the queue graves, or as the flags say; the end of the block ends it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
    clean["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])
    clean["RINGPROXY_BROKER_URL"] = with_login(
        f"amqp://127.0.0.1:{port}", user, password, f"/{quote(vhost.name, safe='')}"
    )
    arguments = [COMMAND, "group", group, "redrive", "--queue", "graves", *flags]
    running = subprocess.Popen(arguments, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
            running.communicate()


def ended(running: "subprocess.Popen[str]", status: int = 0) -> tuple[str, str]:
    """Return what a redrive prints until its end, as lines for people and as complaints."""
    told, complained = running.communicate(timeout=4 * DEADLINE_SECONDS)
    assert running.returncode == status, (told, complained)
    return told, complained


def redrive(client: Client, port: int, vhost: VirtualHost, *flags: str, status: int = 0) -> tuple[str, str]:
    with begun(client.user, client.password, port, vhost, *flags) as running:
        return ended(running, status)


def last(told: str) -> str:
    """Return the summary."""
    return told.splitlines()[-1]


def headers(number: int = 0, *, group: str = "orders", shard: str = "orders.1", **more: Any) -> dict[str, Any]:
    """Return the headers of a dead letter, beside those of its publisher."""
    ours = {"x-ring-group": group, "x-ring-shard": shard, "x-ring-attempt": 3, "x-ring-reason": "retry-limit"}
    return ours | {"number": number} | more


def bury(
    client: Client, port: int, vhost: VirtualHost, letters: Iterable[tuple[str, bytes, dict[str, Any] | None]]
) -> None:
    """Put messages into the queue of dead letters: key, body and headers of each."""
    with client.session(port, vhost.name) as wire:
        wire.channel(1)
        count = 0
        for key, data, told in letters:
            wire.publish(1, "dead", key, data, Basic.Properties(headers=told, delivery_mode=2))
            count += 1
        wire.confirm(1, count)
        wire.goodbye()


def graves(vhost: VirtualHost, kind: str = "classic") -> None:
    vhost.exchange("dead", "topic")
    vhost.queue("graves", x_queue_type=kind)
    vhost.bind("dead", "graves", "#")


def arrived(vhost: VirtualHost) -> dict[str, list[Delivered]]:
    """Take all messages out of the shards; return them by key, in order."""
    found: dict[str, list[Delivered]] = defaultdict(list)
    for shard in SHARDS:
        for message in vhost.drain(shard):
            found[message.routing_key].append(message)
    return found


@pytest.fixture
def at(start_sidecar: StartSidecar, vhost: VirtualHost) -> Sidecar:
    """A sidecar that has the group; the shards are behind lanes, and so keep the key."""
    vhost.exchange("orders")
    vhost.lanes("orders", SHARDS)
    return start_sidecar(groups="orders")


def test_a_message_that_was_given_up_is_worked_on_again(
    start_sidecar: StartSidecar, broker: Broker, vhost: VirtualHost, client: Client
) -> None:
    sharded(vhost)
    grave(vhost)
    sidecar = start_sidecar(**(LIMITED | {"groups_retry_limit": "1"}))
    given: dict[str, Any] = {"mine": [1, {"a": "b"}], "x-retry": 7}
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "orders", "bad", b"bad 1", Basic.Properties(headers=given, message_id="m"))
        wire.confirm(1)
        wire.goodbye()
    with client.session(sidecar.amqp_port, vhost.name) as wire:
        consume(wire)
        work(wire, lambda content: True)
        wait_until(
            "the dead letter is there", lambda: vhost.api.ask("GET", "queues", vhost.name, "graves").get("messages")
        )
        told, complained = redrive(client, sidecar.amqp_port, vhost)
        assert "at least once" in told
        assert last(told) == "1 published again; left in the queue: none of those read"
        assert not complained
        content = wire.content(1, Basic.Deliver)
        assert isinstance(content.method, Basic.Deliver)
        assert (content.method.routing_key, content.method.exchange, content.body) == ("bad", "orders", b"bad 1")
        found = {name: value for name, value in (content.properties.headers or {}).items() if name != "x-ring-id"}
        assert {
            name: value for name, value in found.items() if name not in ("x-ring-exchange", "x-ring-routing-key")
        } == given
        assert content.properties.message_id == "m"
        wire.tell(1, Basic.Ack(content.method.delivery_tag or 0))
        wire.goodbye()
    assert not vhost.drain("graves")
    assert sum(waiting(client, port_of(broker.amqp_url), vhost).values()) == 0


@KINDS
def test_letters_of_the_group_go_in_their_order_and_all_others_stay_in_theirs(
    kind: str, at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost, kind)
    letters: list[tuple[str, bytes, dict[str, Any] | None]] = []
    stay: list[bytes] = []
    for number in range(60):
        letters.append((KEYS[number % 10], b"%d" % number, headers(number)))
        if not number % 10:
            letters.append(("key 1", b"other %d" % number, headers(group="bills")))
            letters.append(("key 1", b"strange %d" % number, None))
            stay += [b"other %d" % number, b"strange %d" % number]
    bury(client, at.amqp_port, vhost, letters)
    told, complained = redrive(client, at.amqp_port, vhost)
    assert last(told) == (
        "60 published again; left in the queue: 6 of other groups, 6 without the headers of a dead letter"
    )
    assert not complained
    wait_until(
        "those that stay are back",
        lambda: vhost.api.ask("GET", "queues", vhost.name, "graves").get("messages_ready") == 12,
    )
    assert [each.body for each in vhost.drain("graves")] == stay
    found = arrived(vhost)
    for index, key in enumerate(KEYS):
        assert [int(message.body) for message in found[key]] == list(range(index, 60, 10))
        assert all(set(message.headers) == {"number", "x-ring-id"} for message in found[key])


@KINDS
def test_a_run_that_is_killed_loses_nothing_and_the_next_one_goes_on(
    kind: str, at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost, kind)
    total = 1_000
    bury(client, at.amqp_port, vhost, ((KEYS[n % 10], b"%d" % n, headers(n)) for n in range(total)))
    for aim in (750, 500):
        with begun(client.user, client.password, at.amqp_port, vhost) as running:
            at_work(client, at, vhost, aim)
            running.kill()
            running.communicate()
    told, _ = redrive(client, at.amqp_port, vhost)
    again = int(re.findall(r"(\d+) published again", told)[-1])
    assert 0 < again < total
    assert left_in(client, at.amqp_port, vhost) == 0
    found = arrived(vhost)
    for index, key in enumerate(KEYS):
        numbers = [int(message.body) for message in found[key]]
        assert list(dict.fromkeys(numbers)) == list(range(index, total, 10))
        assert numbers == sorted(numbers)
        for earlier, later in zip(found[key], found[key][1:], strict=False):
            if earlier.body == later.body:
                assert later.headers["x-ring-maybe-twice"] is True
    # Each kill costs at most the one letter whose ack had not gone out; marked are those that had been delivered.
    assert sum(map(len, found.values())) <= total + 2
    marked = [m for messages in found.values() for m in messages if "x-ring-maybe-twice" in m.headers]
    assert 0 < len(marked) <= 2 * 201


def test_a_run_whose_sidecar_ends_says_so_and_the_next_one_goes_on_at_another(
    at: Sidecar, start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost)
    other = start_sidecar(groups="orders")
    bury(client, at.amqp_port, vhost, ((KEYS[n % 10], b"%d" % n, headers(n)) for n in range(1_000)))
    with begun(client.user, client.password, other.amqp_port, vhost) as running:
        at_work(client, at, vhost, 700)
        other.process.kill()
        told, complained = ended(running, 2)
    assert "published again" in last(told)
    assert "run it again" in complained
    redrive(client, at.amqp_port, vhost)
    found = arrived(vhost)
    for index, key in enumerate(KEYS):
        assert list(dict.fromkeys(int(message.body) for message in found[key])) == list(range(index, 1_000, 10))


def at_work(client: Client, at: Sidecar, vhost: VirtualHost, most: int) -> None:
    """Return once no more than so many letters are ready: the others are done, or delivered to the redriver."""
    wait_until("part of it is done", lambda: left_in(client, at.amqp_port, vhost) <= most, 120)


@KINDS
def test_more_letters_stay_than_the_first_window_holds(
    kind: str, at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost, kind)
    bury(client, at.amqp_port, vhost, (("key 1", b"%d" % n, headers(group="bills")) for n in range(250)))
    bury(client, at.amqp_port, vhost, [("key 1", b"1", headers()), ("key 1", b"2", headers())])
    told, _ = redrive(client, at.amqp_port, vhost)
    assert last(told).endswith("left in the queue: 250 of other groups")
    assert last(told).startswith("2 published again")
    assert [each.body for each in arrived(vhost)["key 1"]] == [b"1", b"2"]
    wait_until("the others are back", lambda: left_in(client, at.amqp_port, vhost) == 250)
    assert [int(each.body) for each in vhost.drain("graves")] == list(range(250))


def test_a_letter_that_no_queue_is_bound_for_stays(at: Sidecar, vhost: VirtualHost, client: Client) -> None:
    graves(vhost)
    bury(client, at.amqp_port, vhost, [("key 1", b"1", headers())])
    for shard in SHARDS:
        vhost.unbind("orders", f"orders.lane.{shard}", kind="e")
    told, complained = redrive(client, at.amqp_port, vhost, status=1)
    assert last(told) == "0 published again; left in the queue: 1 refused"
    assert "'key 1' stays: returned: 312 NO_ROUTE" in complained
    assert left_in(client, at.amqp_port, vhost) == 1


def test_the_run_goes_on_when_nobody_reads_what_it_prints(at: Sidecar, vhost: VirtualHost, client: Client) -> None:
    """It prints again after 1,000 letters."""
    graves(vhost)
    bury(client, at.amqp_port, vhost, ((KEYS[n % 10], b"%d" % n, headers(n)) for n in range(1_001)))
    with begun(client.user, client.password, at.amqp_port, vhost) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        with running.stdout:
            assert "1001 ready in graves" in running.stdout.readline()
        with running.stderr:
            assert not running.stderr.read()
        assert running.wait(4 * DEADLINE_SECONDS) == 0
    assert left_in(client, at.amqp_port, vhost) == 0
    assert sum(map(len, arrived(vhost).values())) == 1_001


def left_in(client: Client, port: int, vhost: VirtualHost) -> int:
    """Return how many messages are ready in the queue of dead letters."""
    return waiting(client, port, vhost, ["graves"])["graves"]


def test_a_second_redriver_is_told_of_the_first_which_goes_on(at: Sidecar, vhost: VirtualHost, client: Client) -> None:
    graves(vhost)
    bury(client, at.amqp_port, vhost, ((KEYS[n % 10], b"%d" % n, headers(n)) for n in range(1_000)))
    with begun(client.user, client.password, at.amqp_port, vhost) as first:
        at_work(client, at, vhost, 700)
        first.send_signal(signal.SIGSTOP)
        _, complained = redrive(client, at.amqp_port, vhost, status=2)
        assert "another redriver is at work, as it holds the queue 'ring-proxy.redrive'" in complained
        first.send_signal(signal.SIGCONT)
        told, _ = ended(first)
    assert last(told).startswith("1000 published again;")
    assert sum(map(len, arrived(vhost).values())) == 1_000


@pytest.mark.long
def test_a_run_that_loses_only_its_consumer_keeps_others_out_and_the_next_one_marks_its_letters(
    at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost)
    bury(client, at.amqp_port, vhost, ((KEYS[n % 10], b"%d" % n, headers(n)) for n in range(1_000)))

    def consumers() -> list[str]:
        return [each["channel_details"]["connection_name"] for each in vhost.api.ask("GET", "consumers", vhost.name)]

    with begun(client.user, client.password, at.amqp_port, vhost) as first:
        at_work(client, at, vhost, 700)
        first.send_signal(signal.SIGSTOP)
        wait_until("the consumer shows", lambda: len(consumers()) == 1)
        vhost.api.ask("DELETE", "connections", *consumers())
        wait_until("its letters are back", lambda: left_in(client, at.amqp_port, vhost) > 700)
        with client.session(at.amqp_port, vhost.name) as other:
            other.channel(1, confirm=False)
            refused = other.ask(1, Queue.Declare(0, LOCK, exclusive=True), Channel.Close)
            assert refused.reply_code == 405
        first.send_signal(signal.SIGCONT)
        assert "CONNECTION_FORCED" in ended(first, 2)[1]
    redrive(client, at.amqp_port, vhost)
    found = arrived(vhost)
    for index, key in enumerate(KEYS):
        messages = found[key]
        numbers = [int(message.body) for message in messages]
        assert list(dict.fromkeys(numbers)) == list(range(index, 1_000, 10))
        assert all("x-ring-maybe-twice" in m.headers for n, m in enumerate(messages) if numbers[n] in numbers[:n])


def test_letters_that_no_queue_takes_stay_in_order_and_others_go(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client
) -> None:
    vhost.exchange("orders")
    vhost.lanes("orders", SHARDS)
    sidecar = start_sidecar(groups="orders")
    shards = {key: sidecar.route("orders", key, vhost=vhost.name).queue() for key in KEYS}
    full = shards["key 0"]
    vhost.policy("full", f"^{re.escape(full)}$", "queues", **{"max-length": 0, "overflow": "reject-publish"})
    graves(vhost, "quorum")
    letters = [(KEYS[n % 10], b"%d" % n, headers(n, shard=shards[KEYS[n % 10]])) for n in range(40)]
    bury(client, sidecar.amqp_port, vhost, letters)
    stay = [n for n in range(40) if shards[KEYS[n % 10]] == full]
    told, complained = redrive(client, sidecar.amqp_port, vhost, status=1)
    assert last(told) == (
        f"{40 - len(stay)} published again; left in the queue: 1 refused, {len(stay) - 1} behind a refused one of"
        " their shard or key"
    )
    assert f"the letter of '{full}' with the key 'key 0' stays: nacked" in complained
    vhost.api.ask("DELETE", "policies", vhost.name, "full")
    wait_until("the queue takes messages", lambda: redrive_takes(client, sidecar.amqp_port, vhost, full))
    told, _ = redrive(client, sidecar.amqp_port, vhost)
    assert last(told).startswith(f"{len(stay)} published again ({len(stay)} marked x-ring-maybe-twice);")
    found = arrived(vhost)
    for index, key in enumerate(KEYS):
        assert [int(message.body) for message in found[key]] == list(range(index, 40, 10))


def test_a_refused_letter_holds_back_its_key_also_from_another_shard(
    at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    """The ring has changed between the two, and RabbitMQ refuses the first one for its user_id."""
    graves(vhost)
    with client.session(at.amqp_port, vhost.name) as wire:
        wire.channel(1)
        for number, user in enumerate((client.user, None)):
            named = headers(number, shard=f"orders.{number}")
            wire.publish(1, "dead", "key 1", b"%d" % number, Basic.Properties(headers=named, user_id=user))
        wire.publish(1, "dead", "key 2", b"2", Basic.Properties(headers=headers(2, shard="orders.2")))
        wire.confirm(1, 3)
        wire.goodbye()
    vhost.permit(USER, ".*", ".*", ".*")
    with begun(USER, PASSWORD, at.amqp_port, vhost) as running:
        told, complained = ended(running, 1)
    assert last(told) == (
        "1 published again; left in the queue: 1 refused, 1 behind a refused one of their shard or key"
    )
    assert "user_id property set to" in complained
    assert [each.body for each in vhost.drain("graves")] == [b"0", b"1"]


def redrive_takes(client: Client, port: int, vhost: VirtualHost, queue: str) -> bool:
    """Return whether a queue takes a message, which is taken out again."""
    with client.session(port, vhost.name) as wire:
        wire.channel(1)
        wire.publish(1, "", queue, b"probe")
        taken = set(wire.answers(1, 1, 0).values()) == {"ack"}
        assert not taken or wire.get(1, queue) is not None
        wire.goodbye()
    return taken


def test_a_queue_that_somebody_consumes_is_left_alone(at: Sidecar, vhost: VirtualHost, client: Client) -> None:
    graves(vhost, "quorum")
    bury(client, at.amqp_port, vhost, [("key 1", b"1", headers())])
    with client.session(at.amqp_port, vhost.name) as wire:
        wire.channel(1, confirm=False)
        wire.ask(1, Basic.Qos(0, 1), Basic.QosOk)
        wire.ask(1, Basic.Consume(0, "graves", "stranger"), Basic.ConsumeOk)
        _, complained = redrive(client, at.amqp_port, vhost, status=2)
    assert "'graves' has 1 consumers, and the letters that they hold would come out of order" in complained


def test_a_count_ends_the_run_early(at: Sidecar, vhost: VirtualHost, client: Client) -> None:
    graves(vhost)
    bury(client, at.amqp_port, vhost, [("key 1", b"other", headers(group="bills"))])
    bury(client, at.amqp_port, vhost, (("key 1", b"%d" % n, headers(n)) for n in range(5)))
    told, _ = redrive(client, at.amqp_port, vhost, "--count", "2")
    assert last(told) == "2 published again; left in the queue: 1 of other groups"
    assert [each.body for each in arrived(vhost)["key 1"]] == [b"0", b"1"]
    assert left_in(client, at.amqp_port, vhost) == 4


def test_what_came_from_the_publisher_stays_and_what_brokers_and_sidecars_counted_goes(
    at: Sidecar, vhost: VirtualHost, client: Client
) -> None:
    graves(vhost)
    mine: dict[str, Any] = {"CC-like": 1, "x-retry-count": 3, "x-ring": "mine", "number": 0}
    counted: dict[str, Any] = {"x-death": [{"queue": "orders.1", "count": 3}], "x-first-death-queue": "orders.1"}
    counted |= {"x-last-death-reason": "expired", "x-delivery-count": 9, "x-acquired-count": 3}
    counted |= {"x-ring-exchange": "a", "x-ring-routing-key": "b"}
    bury(
        client,
        at.amqp_port,
        vhost,
        [("key 1", b"x" * 300_000, headers() | mine | counted), ("k" * 255, b"", headers())],
    )
    redrive(client, at.amqp_port, vhost)
    found = arrived(vhost)
    (large,), (long,) = found["key 1"], found["k" * 255]
    assert {name: value for name, value in large.headers.items() if name != "x-ring-id"} == mine
    assert (len(large.body), large.properties["delivery_mode"], long.body) == (300_000, 2, b"")


def test_mistakes_are_told_with_what_to_do(
    at: Sidecar, broker: Broker, api: BrokerApi, vhost: VirtualHost, client: Client
) -> None:
    def fails(*flags: str, port: int = at.amqp_port, user: str = client.user, password: str = client.password) -> str:
        with begun(user, password, port, vhost, *flags) as running:
            told, complained = ended(running, 2)
        assert not told or "published again" not in told
        (line,) = complained.splitlines()
        return line

    assert f"virtual host {vhost.name!r} has no queue 'graves'" in fails()
    graves(vhost)
    bury(client, at.amqp_port, vhost, [("key 1", b"1", headers())])
    assert "leads to no sidecar with the group 'orders'" in fails(port=port_of(broker.amqp_url))
    assert "refused" in fails(password="wrong").lower()
    assert "redrive: argument --count: '0' is not a number of letters" in fails("--count", "0")
    assert "--queue: 'orders' is the group itself" in fails("--queue", "orders")
    assert "a name of 256 bytes" in fails("--queue", "q" * 256)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert "broker_url: 127.0.0.1:" in fails(port=nobody.getsockname()[1])
    assert "is not AMQP 0-9-1" in fails(port=at.port)
    # One right after the other.
    vhost.permit(USER, "", "", "")
    assert "needs configure on the queue 'ring-proxy.redrive'" in fails(user=USER, password=PASSWORD)
    lock = r"^ring-proxy\.redrive$"
    vhost.permit(USER, lock, "", "^orders.*")
    assert "needs read on the queue 'graves'" in fails(user=USER, password=PASSWORD)
    vhost.permit(USER, lock, "", "^(graves|orders.*)$")
    with begun(USER, PASSWORD, at.amqp_port, vhost) as running:
        assert "needs write where the sidecar publishes" in ended(running, 2)[1]
    vhost.permit(USER, lock, r"^orders(\.lane\..*)?$", "^(graves|orders.*)$")
    vhost.delete_exchange("orders")
    assert "leads to no sidecar with the group 'orders'" in fails()
    assert left_in(client, at.amqp_port, vhost) == 1
