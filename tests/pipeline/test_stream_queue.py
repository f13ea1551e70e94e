"""A stream queue of a real broker, read over AMQP: its ends, ranges of it, and what is not there."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from yarl import URL

from pipeline import PipelineError
from pipeline.stream import queue as stream
from pipeline.stream.queue import StreamQueue
from testbed.broker import Broker, installation
from testbed.cluster import private_cluster
from tests.integration.broker_api import VirtualHost, wait_until
from tests.integration.own_node import BROKER, private_only
from tests.pipeline.streams import put, settled, stream_queue

pytestmark = pytest.mark.versions

SMALL = 2000
"""Bytes of a segment: of some ten messages."""


PATIENCE, LONG = 1.0, 60.0
"""Seconds that are waited for, and seconds that would be noticed if they were, however slow the machine is."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PATIENCE", PATIENCE)


def numbered(first: int, count: int) -> list[tuple[bytes, str]]:
    return [(b"%100d" % n, "n") for n in range(first, first + count)]


def numbers(queue: StreamQueue, start: int, end: int, *, lossy: bool = False) -> list[int]:
    return [int(message.body) for message in queue.messages(start, end, lossy=lossy)]


def test_an_empty_stream_ends_where_it_begins(broker: Broker, vhost: VirtualHost) -> None:
    queue = stream_queue(broker, vhost.name)
    put(queue, [])
    assert queue.first() is None
    assert queue.end() == 0


def test_any_cut_gives_each_message_once(broker: Broker, vhost: VirtualHost) -> None:
    queue = stream_queue(broker, vhost.name)
    put(queue, numbered(0, 60), x_stream_max_segment_size_bytes=SMALL, together=False)
    end = queue.end()
    assert queue.first() == 0
    # The broker keeps offsets for itself, where segments begin.
    assert end > 60
    assert numbers(queue, 0, end) == list(range(60))
    cuts = [0, 1, 9, 10, 11, 20, 21, 40, end]
    assert [n for start, to in itertools.pairwise(cuts) for n in numbers(queue, start, to)] == list(range(60))


def test_the_end_waits_for_news_and_tells_of_a_stream_that_is_shorter(
    broker: Broker, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream_queue(broker, vhost.name)
    put(queue, numbered(0, 20))
    # Where there is news it is not waited for: so long that it would be seen.
    monkeypatch.setattr(stream, "PATIENCE", LONG)
    begun = time.monotonic()
    assert queue.end(19) == 20
    assert time.monotonic() - begun < LONG
    monkeypatch.setattr(stream, "PATIENCE", PATIENCE)
    begun = time.monotonic()
    assert queue.end(20) == 20
    assert time.monotonic() - begun > PATIENCE
    with pytest.raises(PipelineError, match=r"'journal' at .*: ends at offset 20, before 21: it is not the stream"):
        queue.end(21)


def test_what_retention_took_is_told_or_left_out(broker: Broker, vhost: VirtualHost) -> None:
    queue = stream_queue(broker, vhost.name)
    for n in range(0, 100, 20):
        limits = {"x_stream_max_segment_size_bytes": SMALL, "x_max_length_bytes": 3 * SMALL}
        put(queue, numbered(n, 20), **limits, together=False)
    oldest, end = settled(queue), queue.end()
    assert oldest > 3
    with pytest.raises(
        PipelineError, match=rf": offsets 3 to {oldest - 1} are gone, .*retention.* goes on at {oldest}"
    ):
        queue.messages(3, end)
    with pytest.raises(PipelineError, match=rf": offsets 3 to {oldest - 1} are gone"):
        queue.messages(3, 5)
    assert numbers(queue, 3, 5, lossy=True) == []
    left = numbers(queue, 3, end, lossy=True)
    assert left == list(range(left[0], 100))
    # All messages before the oldest offset are read already; the one offset that is missing then is the broker's own.
    assert numbers(queue, oldest - 1, end) == numbers(queue, oldest, end) == left


@pytest.mark.parametrize(("made", "why"), [("", "no queue 'journal'"), ("classic", "x-stream-offset"), ("quorum", "")])
def test_what_is_no_stream_queue_is_refused(broker: Broker, vhost: VirtualHost, made: str, why: str) -> None:
    if made:
        vhost.queue("journal", x_queue_type=made)
    with pytest.raises(PipelineError, match=rf"^stream queue 'journal' at .*: .*{why}") as refused:
        stream_queue(broker, vhost.name).end()
    assert "\n" not in str(refused.value)


def test_a_password_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    queue = StreamQueue.with_password_file("amqp://reader:old@h:1/v", "journal", file)
    assert URL(queue.url).password == "p@ss/word"
    assert queue.url.endswith("@h:1/v")
    with pytest.raises(PipelineError, match=r"amqp_password_file: .*none"):
        StreamQueue.with_password_file("amqp://reader@h/", "journal", tmp_path / "none")


def test_where_sidecars_publish_all_the_time_there_is_an_end_all_the_same(
    broker: Broker, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream_queue(broker, vhost.name)
    put(queue, numbered(0, 5))
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            put(queue, numbered(5, 1))

    publishing = threading.Thread(target=publish)
    publishing.start()
    # The time is so long that the queue was never quiet.
    monkeypatch.setattr(stream, "QUIET", LONG)
    begun = time.monotonic()
    try:
        assert queue.end() >= 5
    finally:
        took = time.monotonic() - begun
        over.set()
        publishing.join()
    assert took < LONG


def test_a_broker_that_is_slow_to_deliver_is_no_empty_stream(
    broker: Broker, vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream_queue(broker, vhost.name)
    put(queue, numbered(0, 3))
    wait_until("the broker's count", lambda: asyncio.run(queue._count()) == 3)
    # Too short for any delivery.
    monkeypatch.setattr(stream, "PATIENCE", 0.0)
    assert queue.first() == 0
    assert queue.end() == 3


def test_a_login_that_is_refused_and_a_broker_that_is_not_there(broker: Broker, vhost: VirtualHost) -> None:
    right = stream_queue(broker, vhost.name)
    for url in (right.url.replace("://", "://wrong", 1), "amqp://user:s3cret@127.0.0.1:1/"):
        with pytest.raises(PipelineError, match=r"^stream queue 'journal' at .*refused|Connect call failed") as refused:
            StreamQueue(url, "journal").end()
        assert "s3cret" not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_broker_that_is_not_ready_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker can be made to answer 541 at will."""
    monkeypatch.setattr(stream, "PAUSE", 0.0)
    queue, asked = StreamQueue("amqp://nowhere", "q"), iter([1, 2])

    async def first() -> int:
        if next(asked, None) is not None:
            raise stream._NotReadyError("INTERNAL_ERROR")
        return 7

    monkeypatch.setattr(StreamQueue, "_first", lambda _: first())
    assert queue.first() == 7
    asked = iter(range(1, stream.TRIES + 1))
    with pytest.raises(PipelineError, match="INTERNAL_ERROR"):
        queue.first()


@private_only
@pytest.mark.long
def test_a_stream_is_read_once_the_node_that_is_asked_has_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    with private_cluster(installation(BROKER), 2) as (first, second):
        there, here = StreamQueue(first.amqp_url, "journal"), StreamQueue(second.amqp_url, "journal")
        put(there, numbered(0, 10), x_initial_cluster_size=1)
        with monkeypatch.context() as once:
            once.setattr(stream, "TRIES", 1)
            with pytest.raises(PipelineError, match="replica on the local node"):
                here.end()
        monkeypatch.setattr(stream, "TRIES", 60)  # the program takes its time
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(here.end)
            first.control("add_replica", "journal", second.name, program="rabbitmq-streams")
            assert asked.result() >= 0
        wait_until("the replica has all of it", lambda: here.end() == there.end())
        assert numbers(here, 0, here.end()) == list(range(10))
