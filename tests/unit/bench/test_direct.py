"""The direct publisher's frames and its count of confirms."""

import random

import pytest
from pamqp import body, commands, frame, header

from bench import BenchError, direct
from bench.direct import Chunks, Confirmed


def test_a_message_is_a_publish_of_its_size_and_mode_to_the_queue() -> None:
    data, found = direct.message("bench.q1", 2), []
    while data:
        size, channel, part = frame.unmarshal(data)
        assert channel == 1
        found.append(part)
        data = data[size:]
    publish, head, payload = found
    assert isinstance(publish, commands.Basic.Publish)
    assert isinstance(head, header.ContentHeader)
    assert isinstance(payload, body.ContentBody)
    assert (publish.exchange, publish.routing_key) == ("", "bench.q1")
    assert (head.body_size, head.properties.delivery_mode) == (direct.SIZE, 2)
    assert payload.value is not None
    assert len(payload.value) == direct.SIZE


def acks(tags: list[tuple[int, bool]]) -> bytes:
    return b"".join(frame.marshal(commands.Basic.Ack(tag, multiple), 1) for tag, multiple in tags)


def test_confirms_count_up_to_the_first_gap_in_any_order_and_chunking() -> None:
    confirmed = Confirmed()
    confirmed.feed(acks([(2, False), (3, False)]))
    assert confirmed.upto == 0
    confirmed.feed(acks([(1, False)]))
    assert confirmed.upto == 3
    confirmed.feed(acks([(6, False), (5, True), (8, False)]))
    assert confirmed.upto == 6
    tags = [(tag, False) for tag in range(7, 100) if tag != 8]
    random.Random(7).shuffle(tags)
    data = acks(tags)
    for at in range(0, len(data), 5):
        confirmed.feed(data[at : at + 5])
    assert confirmed.upto == 99


def test_a_nack_is_no_confirm() -> None:
    with pytest.raises(BenchError):
        Confirmed().feed(frame.marshal(commands.Basic.Nack(1), 1))


def test_a_long_body_is_cut_into_frames_that_the_broker_takes() -> None:
    data, found = direct.message("key", 1, size=300_000), []
    while data:
        size, _, part = frame.unmarshal(data)
        assert size <= 131072
        found.append(part)
        data = data[size:]
    assert isinstance(found[1], header.ContentHeader)
    assert found[1].body_size == 300_000
    assert sum(len(part.value or b"") for part in found[2:] if isinstance(part, body.ContentBody)) == 300_000


def test_a_message_to_an_exchange_names_it() -> None:
    _, _, publish = frame.unmarshal(direct.message("key", 1, "bench"))
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key) == ("bench", "key")


@pytest.mark.parametrize(
    ("count", "size", "each"), [(8, 100, 500), (1000, 100, 500), (10, 1 << 17, 2), (3, 1 << 20, 1)]
)
def test_chunks_hold_every_message_in_turn_and_no_more_than_they_may(count: int, size: int, each: int) -> None:
    messages = [bytes([number % 256]) * size for number in range(count)]
    chunks = Chunks.of(messages)
    assert chunks.size == each
    assert {len(chunk) for chunk in chunks.chunks} == {each * size}
    written = b"".join(chunks.chunks)[::size]
    assert written == bytes(number % count % 256 for number in range(len(written)))
    assert len(written) >= count
    assert Chunks.of(messages, 1) == (messages, 1)
