"""One task's connection against a real broker that loses it, refuses rows or is away: what arrives, and in which order.

No test here needs Spark: the rows are the sink's own messages. The content of the queues is judged by plain Python.
"""

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import aio_pika
import pyarrow as pa
import pytest
from aio_pika.abc import AbstractChannel

from pipeline import PipelineError
from pipeline.data.rings import parse_ring, to_json
from pipeline.publish import sending
from pipeline.publish.depth import Depths
from pipeline.publish.messages import Reader, RowMessage
from pipeline.publish.options import parse
from pipeline.publish.pinned import pinned
from pipeline.publish.routes import Routes
from pipeline.publish.sending import SendResult, publish
from pipeline.publish.window import Window
from proxy.publisher import connection
from proxy.settings.config import Settings
from testbed.node import Node
from tests.chaos.relay import Relay, relay
from tests.integration.broker_api import BrokerApi, Delivered, VirtualHost, wait_until
from tests.integration.conftest import Login, with_login
from tests.integration.own_node import Control, own_node, private_only
from tests.integration.relay import at_port
from tests.integration.rings import owner
from tests.pipeline.publishing import options_of, something_came
from tests.pipeline.records import ring_of

QUEUES = {"q0": 1, "q1": 2, "q 2/ü": 1}
KEYS = 20
PER_BATCH = 100


@pytest.fixture(autouse=True)
def _reconnects_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a connection that is lost 50 times would pause for up to 10 s."""
    monkeypatch.setattr(connection, "LONGEST_RECONNECT_PAUSE", 0.1)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[connection.BrokerConnection]:
    """The connections of tasks, as they are made."""
    made, connected = [], sending.connected

    def noted(settings: Settings, done: Callable[[], bool]) -> tuple[connection.BrokerConnection, Awaitable[None]]:
        found = connected(settings, done)
        made.append(found[0])
        return found

    monkeypatch.setattr(sending, "connected", noted)
    return made


def batches(going_on: Callable[[int], bool], keys: int = KEYS) -> Iterator[Iterator[RowMessage]]:
    """Rows 0, 1 and so on, in batches, for as long as that says of a batch's first row."""
    reader = Reader(routes().hashed, (), "a write")
    first = 0
    while going_on(first):
        numbers = range(first, first + PER_BATCH)
        columns = {"key": [f"k{n % keys}" for n in numbers], "body": [str(n).encode() for n in numbers]}
        yield reader.messages(pa.record_batch({name: pa.array(values) for name, values in columns.items()}))
        first += PER_BATCH


def routes() -> Routes:
    return Routes.of("orders", ring_of(QUEUES))


def rows(count: int, keys: int = KEYS) -> Iterator[Iterator[RowMessage]]:
    """Return at least `count` rows, whole batches of them."""
    return batches(lambda first: first < count, keys)


async def published(
    login: Login, vhost: VirtualHost, messages: Iterator[Iterator[RowMessage]], **more: object
) -> SendResult:
    options = parse(options_of(login, vhost, "orders") | {name: str(value) for name, value in more.items()})
    return await publish(messages, options, routes())


@asynccontextmanager
async def relayed(login: Login, vhost: VirtualHost) -> AsyncIterator[tuple[Relay, str]]:
    """A relay to the broker, and the URL of the virtual host by it."""
    url = options_of(login, vhost, "orders")["broker_url"]
    async with relay(int(url.rpartition(":")[2].partition("/")[0])) as between:
        yield between, at_port(url, between.port)


def check_all_came(came: dict[str, list[Delivered]], count: int) -> int:
    """Each of so many rows came, all copies of it equal but for the ring id; return how many came beyond one each."""
    copies: dict[int, set[str]] = {}
    total = 0
    for queue, messages in came.items():
        for message in messages:
            total += 1
            properties = dict(message.properties)
            headers = {name: value for name, value in message.headers.items() if name != "x-ring-id"}
            copies.setdefault(int(message.body), set()).add(repr((queue, properties | {"headers": headers})))
    assert copies.keys() == set(range(count))
    assert {len(found) for found in copies.values()} == {1}
    return total - count


def in_order(messages: list[Delivered]) -> bool:
    """Whether each key's rows come in their order, the first copy of each."""
    last: dict[str, int] = {}
    seen = set()
    for message in messages:
        key, n = message.headers["x-ring-routing-key"], int(message.body)
        if n not in seen:
            seen.add(n)
            if last.get(key, -1) > n:
                return False
            last[key] = n
    return True


def last_copies_in_order(messages: list[Delivered]) -> bool:
    """The same of the last copy of each row."""
    last: dict[str, int] = {}
    seen = set()
    for message in reversed(messages):
        key, n = message.headers["x-ring-routing-key"], int(message.body)
        if n not in seen:
            seen.add(n)
            if last.get(key, n) < n:
                return False
            last[key] = n
    return True


async def test_a_connection_lost_50_times_repeats_no_more_than_a_window_each_time(
    login: Login, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.ring("orders", QUEUES)
    take_back, taken = Window.take_back, []

    def noted(window: Window) -> list[RowMessage]:
        found = take_back(window)
        taken.append(len(found))
        return found

    monkeypatch.setattr(Window, "take_back", noted)
    losses, window, sent, chance = 50, 300, 0, random.Random(18)
    lost = 0

    def going_on(first: int) -> bool:
        nonlocal sent
        if lost < losses:
            sent = first + PER_BATCH
        return lost < losses

    async def lose(between: Relay) -> None:
        nonlocal lost
        while lost < losses:
            await asyncio.sleep(chance.uniform(0.0, 0.12))
            lost += between.reset() > 0

    async with relayed(login, vhost) as (between, url):
        losing = asyncio.create_task(lose(between))
        told = await published(login, vhost, batches(going_on), broker_url=url, window=window)
        await losing
    came = vhost.drain_all()
    repeated = check_all_came(came, sent)
    assert sum(told.rows.values()) == sent
    assert told.rows == {queue: len({message.body for message in messages}) for queue, messages in came.items()}
    assert 0 < max(taken) <= window
    # One for each loss, at most: a channel or an answer was not lost by itself.
    assert len(taken) <= losses
    assert repeated <= told.again == sum(taken)
    assert all(in_order(messages) for messages in came.values())


LANED = ["orders.1", "orders.2", "orders.3"]


@pytest.fixture
def least(laned: VirtualHost, api: BrokerApi) -> Iterator[str]:
    """A user who may write on what is named like the lanes, and not on the default exchange."""
    api.ask("PUT", "users", "least rows", body={"password": "pw", "tags": ""})
    laned.permit("least rows", write=r"^orders\..*$")
    yield "least rows"
    api.ask("DELETE", "users", "least rows")


@pytest.fixture
def laned(vhost: VirtualHost) -> VirtualHost:
    """Whose exchange orders leads through lanes, to a queue that would lose its messages' routing keys among others."""
    vhost.exchange("orders")
    vhost.queue(LANED[0], x_dead_letter_exchange="amq.fanout")
    vhost.exchange(f"orders.lane.{LANED[0]}", "fanout")
    vhost.bind(f"orders.lane.{LANED[0]}", LANED[0], "")
    vhost.bind("orders", f"orders.lane.{LANED[0]}", kind="e")
    vhost.lanes("orders", LANED[1:])
    return vhost


async def test_rows_go_through_lanes_under_their_own_routing_keys(login: Login, laned: VirtualHost, least: str) -> None:
    told = options_of(login, laned, "orders")
    url = with_login(told["broker_url"], least, "pw")
    options = parse(told | {"broker_url": url})
    # In the form in which the command hands it to Spark.
    spec = parse_ring(to_json(await asyncio.to_thread(pinned, options)), "told")
    result = await publish(rows(2000), options, Routes.of("orders", spec))
    came = laned.drain_all()
    assert result.rows == {queue: len(messages) for queue, messages in came.items()}
    assert sum(result.rows.values()) == 2000
    for queue, messages in came.items():
        last: dict[str, int] = {}
        for message in messages:
            key, n = message.routing_key, int(message.body)
            assert (message.exchange, list(message.headers)) == (f"orders.lane.{queue}", ["x-ring-id"])
            assert (key, owner(LANED, key)) == (f"k{n % KEYS}", queue)
            assert last.get(key, -1) < n
            last[key] = n


async def test_a_lane_that_is_deleted_meanwhile_is_named(login: Login, laned: VirtualHost) -> None:
    options = parse(options_of(login, laned, "orders"))
    known = Routes.of("orders", await asyncio.to_thread(pinned, options))
    laned.delete_exchange("orders.lane.orders.2")
    with pytest.raises(PipelineError, match=r"no exchange 'orders\.lane\.orders\.2'"):
        await publish(rows(1000), options, known)


async def test_rows_that_a_full_queue_refuses_come_once_it_was_drained_and_those_behind_come_after_them(
    login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", QUEUES)
    vhost.delete_queue("q1")
    vhost.queue("q1", x_max_length=10, x_overflow="reject-publish")
    count, came = 1500, dict[str, list[Delivered]]()
    publishing = asyncio.create_task(published(login, vhost, rows(count, keys=4), window=200))
    while not publishing.done():
        came.setdefault("q1", []).extend(await asyncio.to_thread(vhost._get, "q1", 2))
    told = await publishing
    for queue, messages in vhost.drain_all().items():
        came[queue] = came.get(queue, []) + messages
    # Nothing else was lost: what was sent again was refused, or stood behind it.
    assert told.again > 0
    assert check_all_came(came, count) <= told.again
    assert all(last_copies_in_order(messages) for messages in came.values())


async def test_a_queue_that_stays_full_is_named_within_the_limit(login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    vhost.delete_queue("q1")
    vhost.queue("q1", x_max_length=5, x_overflow="reject-publish")
    with pytest.raises(PipelineError) as raised:
        await published(login, vhost, rows(500), retry_timeout="1")
    told = str(raised.value)
    assert re.match(
        r"queue 'q1': 1 row refused by the broker \(basic\.nack\); \d+ rows wait to be sent again;"
        r" no row was confirmed for 1 s \(retry_timeout\); ",
        told,
    )
    assert told.endswith(" rows of this task were confirmed before")


async def test_a_queue_that_is_deleted_and_made_again_in_time_gets_its_rows(login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    vhost.delete_queue("q1")
    publishing = asyncio.create_task(published(login, vhost, rows(500)))
    ring = ring_of(QUEUES).ring
    # The first batch goes out in one write, those of q0 last.
    elsewhere = sum(ring.owner_of(f"k{n % KEYS}".encode()).name != "q1" for n in range(PER_BATCH))
    await asyncio.to_thread(wait_until, "rows elsewhere", lambda: something_came(vhost, elsewhere))
    vhost.queue("q1")
    told = await publishing
    came = vhost.drain_all()
    assert check_all_came(came, 500) <= told.again
    assert all(last_copies_in_order(messages) for messages in came.values())


async def test_rows_that_were_lost_are_sent_again_while_upstream_works(login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    vhost.delete_queue("q1")
    ring = ring_of(QUEUES).ring
    elsewhere = sum(ring.owner_of(f"k{n % KEYS}".encode()).name != "q1" for n in range(PER_BATCH))

    def some() -> Iterator[Iterator[RowMessage]]:
        made = rows(2 * PER_BATCH)
        yield next(made)
        wait_until("rows elsewhere", lambda: something_came(vhost, elsewhere))
        vhost.queue("q1")
        # No batch comes before those have come which the missing queue did not take.
        wait_until("all rows", lambda: something_came(vhost, PER_BATCH))
        yield next(made)

    await published(login, vhost, some())
    assert check_all_came(vhost.drain_all(), 2 * PER_BATCH) == 0


async def test_a_broker_that_is_away_is_waited_for_and_named_once_the_limit_is_over(
    login: Login, vhost: VirtualHost
) -> None:
    vhost.ring("orders", QUEUES)
    async with relayed(login, vhost) as (between, url):
        target, loop = between.target, asyncio.get_running_loop()

        def away(seconds: float | None) -> None:
            between.target = 1
            between.reset()
            if seconds is not None:
                loop.call_later(seconds, setattr, between, "target", target)

        def some() -> Iterator[Iterator[RowMessage]]:
            for number, batch in enumerate(itertools.islice(rows(10_000), 10)):
                if number in (4, 8):
                    # Upstream is in a thread of its own.
                    loop.call_soon_threadsafe(away, 0.3 if number == 4 else None)
                yield batch

        with pytest.raises(PipelineError) as raised:
            await published(login, vhost, some(), broker_url=url, window=50, retry_timeout="2")
    told = str(raised.value)
    assert "no connection to the broker: " in told
    assert "; no row was confirmed for 2 s (retry_timeout); " in told
    came = {int(message.body) for messages in vhost.drain_all().values() for message in messages}
    assert set(range(700)) <= came


async def test_a_queue_as_deep_as_the_limit_gets_no_more_until_it_was_drained(login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    most, count, came, patience = 20, 600, dict[str, list[Delivered]](), 2
    settings = parse(options_of(login, vhost, "orders")).settings
    async with Depths(settings) as depths:
        publishing = asyncio.create_task(published(login, vhost, rows(count), max_depth=most, retry_timeout=patience))
        while most not in (await depths.of(QUEUES)).values():
            assert not publishing.done()
        # However long its consumers take.
        await asyncio.sleep(1.5 * patience)
        assert not publishing.done()
        while not publishing.done():
            for queue in QUEUES:
                assert (await depths.of((queue,)))[queue] <= most
                came.setdefault(queue, []).extend(await asyncio.to_thread(vhost._get, queue, 1000))
    told = await publishing
    for queue, messages in vhost.drain_all().items():
        came[queue] += messages
    assert (check_all_came(came, count), told.again) == (0, 0)
    assert all(in_order(messages) for messages in came.values())


async def test_a_look_that_fails_is_made_again(login: Login, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    most, count, came = 20, 300, dict[str, list[Delivered]]()

    def looking() -> list[str]:
        found = vhost.api.ask("GET", "vhosts", vhost.name, "connections")
        return [one["name"] for one in found if "depths" in one.get("client_properties", {}).get("connection_name", "")]

    publishing = asyncio.create_task(published(login, vhost, rows(count), max_depth=most))
    (name,) = await asyncio.to_thread(wait_until, "a connection that looks", looking)
    await asyncio.to_thread(vhost.api.ask, "DELETE", "connections", name)
    while not publishing.done():
        for queue in QUEUES:
            came.setdefault(queue, []).extend(await asyncio.to_thread(vhost._get, queue, 1000))
    told = await publishing
    for queue, messages in vhost.drain_all().items():
        came[queue] += messages
    assert (check_all_came(came, count), told.again) == (0, 0)


async def test_the_broker_lists_its_connection_as_a_jobs_and_not_as_a_sidecars(
    login: Login, vhost: VirtualHost
) -> None:
    """A sidecar would have to answer before a queue is retired, and a job has to end."""
    vhost.ring("orders", QUEUES)
    found: list[set[str]] = []

    def listed() -> list[set[str]]:
        connections = vhost.api.ask("GET", "vhosts", vhost.name, "connections")
        return [set(one["client_properties"]) for one in connections if one.get("client_properties")]

    def some() -> Iterator[Iterator[RowMessage]]:
        yield next(rows(PER_BATCH))
        found.extend(wait_until("the connection", listed))

    await published(login, vhost, some())

    assert [{name for name in each if name.startswith("ringproxy")} for each in found] == [
        {"ringproxy_job_version", "ringproxy_ring_format"}
    ]


async def test_a_login_that_is_refused_after_it_was_taken_is_waited_for(
    login: Login, vhost: VirtualHost, connections: list[connection.BrokerConnection]
) -> None:
    vhost.ring("orders", QUEUES)
    user = "publisher for a while"

    def permitted(password: str) -> None:
        vhost.api.ask("PUT", "users", user, body={"password": password, "tags": ""})

    def some() -> Iterator[Iterator[RowMessage]]:
        made = rows(2 * PER_BATCH)
        yield next(made)
        wait_until("rows", lambda: something_came(vhost, PER_BATCH))
        permitted("another")
        loop.call_soon_threadsafe(between.reset)
        wait_until("a refusal", lambda: connections[0].login_refused)
        # The next rows meet the refusal.
        loop.call_soon_threadsafe(loop.call_later, 0.5, loop.run_in_executor, None, permitted, "first")
        yield next(made)

    loop = asyncio.get_running_loop()
    permitted("first")
    try:
        vhost.permit(user)
        async with relayed(login, vhost) as (between, url):
            name = url.rpartition("/")[2]
            await published(
                login, vhost, some(), broker_url=f"amqp://{quote(user)}:first@127.0.0.1:{between.port}/{name}"
            )
    finally:
        vhost.api.ask("DELETE", "users", user)
    check_all_came(vhost.drain_all(), 2 * PER_BATCH)


@pytest.fixture(scope="module")
def small_node() -> Iterator[tuple[Node, Control]]:
    """A broker of this module's own that takes no message of more than 100,000 bytes."""
    with own_node("max_message_size = 100000\n") as made:
        VirtualHost(BrokerApi(made[0].management_url), "/", []).ring("orders", QUEUES)
        yield made


async def to_node(node: Node, messages: Iterator[Iterator[RowMessage]], **more: str) -> SendResult:
    given = {"broker_url": node.amqp_url, "management_url": node.management_url, "exchange": "orders"}
    return await publish(messages, parse(given | more), routes())


@private_only
async def test_a_broker_that_blocks_publishers_is_waited_for(
    small_node: tuple[Node, Control], connections: list[connection.BrokerConnection]
) -> None:
    node, control = small_node
    home = VirtualHost(BrokerApi(node.management_url), "/", [])
    sent, seen = 0, False

    def going_on(first: int) -> bool:
        nonlocal sent
        if seen:
            return False
        # The broker says that it blocks a connection once that publishes.
        sent = first + PER_BATCH
        time.sleep(0.1)
        return True

    def blocked() -> bool:
        return bool(connections and connections[0].protocol is not None and connections[0].protocol.blocked)

    publishing = asyncio.create_task(to_node(node, batches(going_on), confirm_timeout="1"))
    await asyncio.to_thread(wait_until, "rows", lambda: something_came(home))
    await asyncio.to_thread(control, "set_vm_memory_high_watermark", "0.0000001")
    try:
        await asyncio.to_thread(wait_until, "blocked", blocked)
        # The rows in flight are given up meanwhile.
        await asyncio.sleep(2)
        assert not publishing.done()
    finally:
        seen = True
        await asyncio.to_thread(control, "set_vm_memory_high_watermark", "0.6")
    told = await publishing
    assert told.again > 0
    assert check_all_came(home.drain_all(), sent) <= told.again


@private_only
async def test_a_row_that_is_too_large_among_many_ends_the_task_with_the_brokers_words(
    small_node: tuple[Node, Control],
) -> None:
    node, _ = small_node
    home, large = VirtualHost(BrokerApi(node.management_url), "/", []), 50
    home.drain_all()

    def some() -> Iterator[Iterator[RowMessage]]:
        for batch in rows(2 * PER_BATCH):
            yield (
                message._replace(body=b"x" * 100_001) if message.body == b"%d" % large else message for message in batch
            )

    with pytest.raises(PipelineError) as raised:
        await to_node(node, some())
    assert "larger than configured max size 100000" in str(raised.value)
    bodies = {int(message.body) for messages in home.drain_all().values() for message in messages}
    assert set(range(large)) <= bodies
    assert large not in bodies


async def test_queues_are_looked_at_on_one_channel_and_on_a_new_one_after_a_queue_that_was_missing(
    login: Login, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.ring("orders", QUEUES)
    channel, opened = aio_pika.Connection.channel, 0

    def counted(connection: aio_pika.Connection) -> AbstractChannel:
        nonlocal opened
        opened += 1
        return channel(connection)

    monkeypatch.setattr(aio_pika.Connection, "channel", counted)
    async with Depths(parse(options_of(login, vhost, "orders")).settings) as depths:
        for _ in range(3):
            assert await depths.of(QUEUES) == dict.fromkeys(QUEUES, 0)
        assert opened == 1
        with pytest.raises(PipelineError, match="'not there' is missing"):
            await depths.of(["not there"])
        assert await depths.of(["q0"]) == {"q0": 0}
    assert opened == 2
