"""The journal of a sidecar: what was published, and what became of it, as files and as messages of a stream queue."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from pamqp.commands import Basic

from ring.destination import Destination
from ring.hashing import SLOTS, slot_of
from ring.ring import fingerprint
from testbed.broker import Broker
from tests.integration import generations
from tests.integration.broker_api import DEADLINE_SECONDS, BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import USER, Login, StartSidecar
from tests.integration.documents import Document, Shell, variables
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar
from tests.integration.test_access import refused
from tests.integration.wire_client import Client

QUEUES = ["q1", "q2", "q3"]


def read(folder: Path) -> list[dict[str, Any]]:
    """The records of all whole files, in the order of their numbers."""
    files = (folder / "records").glob("dt=*/hour=*/[!.]*.jsonl.gz")
    lines = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    return sorted(lines, key=lambda record: record["seq"])


def journalled(sidecar: Sidecar, folder: Path) -> list[dict[str, Any]]:
    """Return the records that a sidecar has journalled when it is stopped."""
    sidecar.stop()
    records = read(folder)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert len({record["proxy"] for record in records}) <= 1
    return records


def weights(queues: list[str]) -> dict[Destination, int]:
    return {Destination("queue", queue): 1 for queue in queues}


def test_publishes_by_http_and_amqp(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_dir=str(tmp_path))
    keys = [f"key {n}" for n in range(20)]
    for key in keys:
        assert (
            sidecar.publish("orders", key, b"12345", vhost=vhost.name, headers={"Amqp-Message-Id": key}).status == 200
        )
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1, confirm=False)
        peer.publish(1, "orders", "unconfirmed", b"1", Basic.Properties(message_id="m"))
        peer.channel(2)
        for each in keys:
            peer.publish(2, "orders", each, b"123")
        peer.confirm(2, len(keys))

    records = journalled(sidecar, tmp_path)
    assert Counter((r["ingress"], r["outcome"]) for r in records) == {
        ("http", "confirmed"): 20,
        ("amqp", "confirmed"): 20,
        ("amqp", "sent"): 1,
    }
    for record in records:
        hashed = base64.b64decode(record["key"])
        assert record["slot"] == slot_of(hashed)
        assert (record["kind"], record["destination"]) == ("queue", owner(QUEUES, hashed))
        assert (record["vhost"], record["exchange"]) == (vhost.name, "orders")
        if record["outcome"] == "sent":
            assert (record["latency"], record["bytes"], record["message_id"]) == (None, 1, "m")
        else:
            assert 0 < record["latency"] < 30_000_000
            of_http = (5, hashed.decode())
            assert (record["bytes"], record["message_id"]) == (of_http if record["ingress"] == "http" else (3, None))
    (ring,) = [json.loads(file.read_bytes()) for file in (tmp_path / "rings").iterdir()]
    assert {record["ring"] for record in records} == {ring["fingerprint"]}
    assert ring["fingerprint"] == fingerprint(weights(QUEUES), "x-consistent-hash", "routing_key")
    assert [Destination(kind, name) for kind, name, _ in ring["destinations"]] == sorted(weights(QUEUES))


def test_the_ring_of_a_later_generation_tells_its_queues(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    """Each message is in the queue that its record's ring names, though both generations have equal shards."""
    generations.made(vhost, 3, x_queue_type="quorum")
    generations.declare(vhost, 2, 3, x_queue_type="quorum")
    sidecar = start_sidecar(journal_dir=str(tmp_path))
    expected: Counter[str] = Counter()
    for generation in (1, 2):
        if generation == 2:
            for shard in range(3):
                generations.bind(vhost, 2, shard, 3)
            wait_until("the switch", lambda: sidecar.ring(vhost.name, "orders")["generation"] == 2)
        for n in range(12):
            assert sidecar.publish("orders", f"key {n}", vhost=vhost.name).status == 200

    records = journalled(sidecar, tmp_path)
    rings = {file.stem: json.loads(file.read_bytes()) for file in (tmp_path / "rings").iterdir()}
    first, later = (rings[record["ring"]] for record in (records[0], records[-1]))
    assert len(rings) == 2
    assert "queues" not in first
    assert later["queues"] == dict(zip(generations.queues(1, 3), generations.queues(2, 3), strict=True))
    assert later["destinations"] == first["destinations"]
    for record in records:
        expected[rings[record["ring"]].get("queues", {}).get(record["destination"], record["destination"])] += 1
    names = [*generations.queues(1, 3), *generations.queues(2, 3)]
    assert Counter({name: len(vhost.drain(name)) for name in names}) == expected
    assert expected.total() == 24


def test_a_full_folder_drops_the_newest_records_until_its_reader_makes_room(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    """By the command that journal.md shows. Nobody but the owner gets at the files, though the umask would let them."""
    (remove,) = Document("docs/reference/journal.md")["Files"]
    vhost.ring("orders", QUEUES)
    folder, most = tmp_path / "j", 1_000_000
    before = os.umask(0)
    try:
        sidecar = start_sidecar(journal_dir=str(folder), journal_max_bytes=str(most), journal_file_seconds="0.1")
    finally:
        os.umask(before)
    # The file is one of another sidecar, or of this one before a restart.
    old = folder / "records" / "0123456789abcdef-000000000001.jsonl.gz"
    old.write_bytes(gzip.compress(os.urandom(most)))
    week = 8 * 24 * 3600
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - week))

    def publish() -> None:
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200

    def dropped() -> float:
        return sidecar.metric("ringproxy_journal_dropped_total", reason="full")

    publish()
    wait_until("it is full", lambda: dropped() == 1)
    assert sidecar.metric("ringproxy_journal_failing") == 1
    Shell({"JOURNAL_DIR": str(folder)})(remove)
    assert not old.exists()

    def written() -> list[dict[str, Any]]:
        publish()
        return read(folder)

    first, *_ = wait_until("there is room", written)
    wait_until("it is told", lambda: sidecar.metric("ringproxy_journal_failing") == 0)
    assert first["seq"] == dropped() + 1
    sidecar.stop()
    made = [folder, *folder.rglob("*")]
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in made} == {(True, 0o700), (False, 0o600)}


def test_keys_are_hashed_with_a_secret_made_as_shown(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    (make,) = Document("docs/reference/journal.md")["Personal data"]
    folder, show = tmp_path / "j", 'echo "$RINGPROXY_JOURNAL_KEY $RINGPROXY_JOURNAL_KEY_FILE"'
    mode, file = Shell({"PWD": str(tmp_path)})(f"cd {tmp_path}\n{make}\n{show}").split()
    assert os.stat(file).st_mode & 0o777 == 0o600
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_dir=str(folder), journal_key=mode, journal_key_file=file)
    assert sidecar.publish("orders", "customer-4711", vhost=vhost.name).status == 200
    (record,) = journalled(sidecar, folder)
    secret = Path(file).read_text().strip().encode()
    assert base64.b64decode(record["key"]) == hashlib.blake2b(b"customer-4711", key=secret, digest_size=16).digest()
    assert record["slot"] == slot_of(b"customer-4711")


def test_a_sample_has_all_of_a_key_or_nothing(start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path) -> None:
    vhost.ring("orders", QUEUES)
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    settings = {"journal_dir": str(tmp_path / "j"), "journal_sample": "0.25"}
    sidecar = start_sidecar(**settings, journal_key="hash", journal_key_file=str(secret))
    keys = [f"key {n}" for n in range(100)] * 2
    assert sidecar.batch("orders", [{"key": key, "payload": "x"} for key in keys], vhost=vhost.name).status == 200

    records = journalled(sidecar, tmp_path / "j")
    sampled = [key for key in keys if slot_of(key.encode()) < SLOTS // 4]
    assert 5 < len(set(sampled)) < 60
    digests = [hashlib.blake2b(key.encode(), key=b"s3cret", digest_size=16).digest() for key in sampled]
    assert Counter(base64.b64decode(record["key"]) for record in records) == Counter(digests)
    assert {record["sample"] for record in records} == {0.25}
    assert b"key " not in b"".join(file.read_bytes() for file in (tmp_path / "j").rglob("*.json"))


def test_what_came_back_was_passed_or_hashes_a_header(
    start_sidecar: StartSidecar, vhost: VirtualHost, client: Client, tmp_path: Path
) -> None:
    vhost.ring("orders", QUEUES)
    vhost.ring("by header", ["h1", "h2"], hash_header="customer")
    vhost.ring("shadowed", ["s1"])
    vhost.exchange("plain", "fanout")
    sidecar = start_sidecar(journal_dir=str(tmp_path), shadow="*/shadowed", sync_interval="600", journal_key="plain")
    sidecar.ring(vhost.name, "shadowed")  # or the first publish passes before there is a ring to record
    lost = next(each for each in map(str, range(99)) if owner(QUEUES, each) == "q2")
    assert sidecar.publish("orders", "first", vhost=vhost.name).status == 200
    vhost.delete_queue("q2")
    with client.session(sidecar.amqp_port, vhost.name) as peer:
        peer.channel(1)
        headers = Basic.Properties(headers={"customer": "alice"})
        publishes = [("orders", lost, None), ("by header", "key", headers), ("by header", "key", None)]
        for number, (exchange, key, properties) in enumerate([*publishes, ("shadowed", "1", None)]):
            peer.publish(1, exchange, key, b"", properties)
            peer.confirm(1, number + 1, number)
    assert sidecar.publish("plain", "not journalled", vhost=vhost.name).status == 503

    first, rerouted, by_header, without, shadowed = journalled(sidecar, tmp_path)
    assert first["outcome"] == "confirmed"
    assert (rerouted["outcome"], rerouted["destination"]) == ("confirmed", owner(["q1", "q3"], lost))
    assert rerouted["ring"] == fingerprint(weights(["q1", "q3"]), "x-consistent-hash", "routing_key")
    assert base64.b64decode(by_header["key"]) == b"alice"
    assert by_header["slot"] == slot_of(b"alice")
    assert (without["key"], without["slot"]) == (None, slot_of(b""))
    assert (shadowed["outcome"], shadowed["kind"], shadowed["destination"]) == ("passed", None, None)
    assert len(list((tmp_path / "rings").iterdir())) == 4


def test_a_sidecar_that_is_killed_leaves_no_half_file_to_read(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_dir=str(tmp_path), journal_file_seconds="2")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    wait_until("the first file", lambda: read(tmp_path))
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    sidecar.signal(signal.SIGKILL)
    sidecar.process.wait()
    assert [record["seq"] for record in read(tmp_path)] == [1]


def test_a_disk_that_fails_costs_records_and_no_publish(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_dir=str(tmp_path), journal_file_seconds="0.2")
    os.rename(tmp_path / "records", tmp_path / "away")
    (tmp_path / "records").touch()
    assert sidecar.publish("orders", "lost", vhost=vhost.name).status == 200
    wait_until("it is told", lambda: sidecar.metric("ringproxy_journal_failing") == 1)
    assert sidecar.metric("ringproxy_journal_dropped_total", reason="store") == 1
    (tmp_path / "records").unlink()
    assert sidecar.publish("orders", "written", vhost=vhost.name).status == 200
    wait_until("it is well again", lambda: sidecar.metric("ringproxy_journal_failing") == 0)
    assert sidecar.metric("ringproxy_journal_records_total") == 2
    sidecar.stop()
    assert [record["seq"] for record in read(tmp_path)] == [2]


async def consumed(login: Login, queue: str, count: int) -> list[AbstractIncomingMessage]:
    """The first messages of a stream queue."""
    found: list[AbstractIncomingMessage] = []
    connection = await aio_pika.connect(login.broker_url)
    async with connection, asyncio.timeout(DEADLINE_SECONDS):
        channel = await connection.channel()
        await channel.set_qos(10)
        stream = await channel.get_queue(queue)
        async with stream.iterator(arguments={"x-stream-offset": "first"}) as messages:
            async for message in messages:
                await message.ack()
                found.append(message)
                if len(found) == count:
                    return found
    raise AssertionError("unreachable")


def test_what_http_is_told_besides_confirmed(start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path) -> None:
    vhost.exchange("orders")
    vhost.queue("full", x_max_length=0, x_overflow="reject-publish")
    vhost.bind("orders", "full")
    vhost.ring("shadowed", ["s1"])
    vhost.ring("gone", ["g1"])
    sidecar = start_sidecar(journal_dir=str(tmp_path), shadow="*/shadowed", sync_interval="600", settle_time="600")
    sidecar.ring(vhost.name, "shadowed")  # or the first publish passes before there is a ring to record
    assert sidecar.publish("gone", "k", vhost=vhost.name).status == 200
    assert sidecar.publish("shadowed", "k", vhost=vhost.name).status == 200
    assert sidecar.publish("orders", "k", vhost=vhost.name).json["outcome"] == "nacked"

    assert [record["outcome"] for record in journalled(sidecar, tmp_path)] == ["confirmed", "passed", "nacked"]


@pytest.mark.versions
async def test_a_stream_queue(start_sidecar: StartSidecar, login: Login, vhost: VirtualHost) -> None:
    home = VirtualHost(vhost.api, login.vhost, [])
    home.permit(USER, configure="the journal", read=".*")
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_stream="the journal")
    try:
        for n in range(5):
            assert sidecar.publish("orders", f"{n}", vhost=vhost.name).status == 200
        sidecar.stop()
        queue = home.api.ask("GET", "queues", home.name, "the journal")
        assert queue["arguments"]["x-queue-type"] == "stream"
        ring, first = await consumed(login, "the journal", 2)
        assert (ring.type, first.type) == ("ringproxy.ring.v1", "ringproxy.records.v1")
        assert first.content_encoding == "gzip"
        records = [json.loads(line) for line in gzip.decompress(first.body).splitlines()]
        assert records[0]["seq"] == 1
        assert {record["ring"] for record in records} == {json.loads(ring.body)["fingerprint"]}
    finally:
        home.delete_queue("the journal")
        home.permit(USER)


@pytest.mark.versions
@pytest.mark.parametrize("way", ["by the sidecar", "beforehand"])
def test_the_rights_that_a_stream_queue_takes(
    start_sidecar: StartSidecar, broker: Broker, login: Login, api: BrokerApi, way: str
) -> None:
    """By the document's own commands; its rabbitmqctl as requests to the management API."""
    grant, declare = Document("docs/reference/journal.md")["The stream"]
    shop = VirtualHost(api, "shop", [])
    shop.ring("orders", QUEUES)
    commands = grant if way == "by the sidecar" else declare
    (rights,) = re.findall(r"^rabbitmqctl set_permissions -p shop orders '(.*)' '(.*)' '(.*)'$", commands, flags=re.M)
    shop.permit(USER, *rights)
    try:
        url = urlsplit(login.broker_url)._replace(path="/shop").geturl()
        sidecar = start_sidecar(broker_url=url, journal_stream="journal")
        if way == "beforehand":
            export, _, commands = declare.partition("\n")
            assert export.startswith("export MANAGEMENT=")
            Shell(variables(broker, sidecar))(commands.partition("\nrabbitmqctl ")[0])
        assert sidecar.publish("orders", "k").status == 200
        sidecar.stop()
        assert "stream queue" not in sidecar.log()
        queue = api.ask("GET", "queues", "shop", "journal")
        assert queue["arguments"] == {"x-queue-type": "stream", "x-max-length-bytes": 10 * 1024**3}
        wait_until("both messages", lambda: api.ask("GET", "queues", "shop", "journal").get("messages") == 2)
    finally:
        shop.delete()


@pytest.mark.versions
def test_a_stream_queue_that_is_deleted_is_declared_again(
    start_sidecar: StartSidecar, login: Login, vhost: VirtualHost
) -> None:
    home = VirtualHost(vhost.api, login.vhost, [])
    home.permit(USER, configure="short-lived", read=".*")
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_stream="short-lived")

    def declared() -> bool:
        # The list of queues is a 500 while a stream comes or goes (RabbitMQ 3.10.8).
        with contextlib.suppress(AssertionError):
            return bool(home.api.ask("GET", "queues", home.name, "short-lived", query="disable_stats=true"))
        return False

    try:
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        wait_until("it is there", declared)
        home.delete_queue("short-lived")
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        wait_until("it is there again", declared)
        sidecar.stop()
        assert "the next try follows" in sidecar.log()
    finally:
        home.delete_queue("short-lived")
        home.permit(USER)


@pytest.mark.versions
def test_a_stream_queue_that_may_not_be_declared_costs_no_publish(
    start_sidecar: StartSidecar, vhost: VirtualHost
) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = start_sidecar(journal_stream="not permitted", drain_time="1")
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
    wait_until("it is told", lambda: "journal_stream: 'not permitted' takes no records: " in sidecar.log())
    assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200


@pytest.mark.parametrize("made", ["file", "secret"])
def test_a_journal_that_cannot_be_is_refused_at_the_start(tmp_path: Path, made: str) -> None:
    if made == "file":
        (tmp_path / "f").touch()
        assert "journal_dir: " in refused(journal_dir=str(tmp_path / "f"))
    else:
        (tmp_path / "s").write_text("x" * 65)
        line = refused(journal_dir=str(tmp_path), journal_key="hash", journal_key_file=str(tmp_path / "s"))
        assert "journal_key_file: the secret has 65 bytes; at most 64 are allowed" in line
