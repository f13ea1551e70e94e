"""The messages that the journal's stream queue may hold, and what of them is refused with its offset."""

import gzip
import json
from typing import Any

import pytest

from pipeline import PipelineError
from pipeline.data.schema import RECORD
from pipeline.stream.messages import RECORDS, RING, records
from pipeline.stream.queue import StreamMessage, StreamQueue, ranges
from proxy.journal import stream
from tests.pipeline.records import published, ring_of

QUEUE = StreamQueue("amqp://guest:s3cret@broker/", "journal")
RECORD_LINES = published(ring_of({"q1": 1, "q2": 3}), [b"a", b"\xff\x00"])


def message(body: bytes, kind: str = RECORDS, encoding: str = "gzip") -> StreamMessage:
    return StreamMessage(7, kind, encoding, gzip.compress(body) if encoding == "gzip" else body)


def lines(*told: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in told)


def test_the_types_of_messages_are_those_that_a_sidecar_writes() -> None:
    assert (RECORDS, RING) == (stream.RECORDS, stream.RING)


def test_records_come_out_as_they_went_in() -> None:
    batch = records(message(lines(*RECORD_LINES)), QUEUE)
    assert batch is not None
    assert batch.schema.names == RECORD.fieldNames()
    found = batch.to_pylist()
    assert [one["key"] for one in found] == [b"a", b"\xff\x00"]
    assert [one | {"key": None} for one in found] == [one | {"key": None} for one in RECORD_LINES]


def test_what_does_not_apply_is_null() -> None:
    nulls = dict.fromkeys(("key", "kind", "destination", "latency", "message_id"), None)
    batch = records(message(lines(RECORD_LINES[0] | nulls), encoding=""), QUEUE)
    assert batch is not None
    assert batch.to_pylist() == [RECORD_LINES[0] | nulls]


@pytest.mark.parametrize("held", [message(b'{"v": 1}', RING, ""), message(b""), message(b"\n")])
def test_a_ring_or_nothing_holds_no_records(held: StreamMessage) -> None:
    assert records(held, QUEUE) is None


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (message(lines(RECORD_LINES[0], RECORD_LINES[0] | {"v": 2})), "schema version 2, known is 1"),
        (message(lines({"v": 2, "seq": "of another kind"})), "schema version 2, known is 1"),
        (message(lines({"seq": 1})), "schema version none, known is 1"),
        (message(lines(RECORD_LINES[0]) + b'{"v": 1, "ev'), "a line that is no record: "),
        (message(lines(RECORD_LINES[0] | {"seq": "1"})), "a line that is no record: "),
        (message(lines(RECORD_LINES[0] | {"key": "!"})), "a line that is no record: "),
        (message(b"", "ringproxy.records.v2"), "a message of type 'ringproxy.records.v2', known are "),
        (message(b"", ""), "a message of type '', known are "),
        (message(b"", encoding="zstd"), "content_encoding 'zstd', known is gzip"),
        (StreamMessage(7, RECORDS, "gzip", b"no gzip"), "broken gzip: "),
        (StreamMessage(7, RECORDS, "gzip", gzip.compress(lines(*RECORD_LINES))[:-9]), "broken gzip: "),
    ],
)
def test_what_is_not_as_the_contract_says_is_refused(held: StreamMessage, why: str) -> None:
    with pytest.raises(PipelineError) as refused:
        records(held, QUEUE)
    assert str(refused.value).startswith(f"stream queue 'journal' at broker:5672, offset 7: {why}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["", "nonsense", "http://broker", "amqp:///x", "amqp://u:s3cret@broker:port/"])
def test_another_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(PipelineError, match=r"^stream queue 'journal': its URL is not amqp://") as refused:
        StreamQueue(url, "journal")
    assert "s3cret" not in str(refused.value)


def test_a_password_is_never_shown() -> None:
    assert "s3cret" not in f"{QUEUE} {QUEUE!r}"


def test_ranges_cover_all_and_nothing_twice() -> None:
    assert ranges(5, 5) == ranges(6, 5) == []
    assert [offset for start, end in ranges(3, 1003) for offset in range(start, end)] == list(range(3, 1003))
