"""Ids that tell a channel's own publishes from copies, and what is remembered of them."""

import pytest

from proxy.routing.counters import Counters
from proxy.session.channel import MOST_NOTES, Channel, Pending
from proxy.session.publishing.confirms import PublishNote
from proxy.session.state import EXPECT_BODY, EXPECT_HEADER, EXPECT_METHOD
from proxy.wire.frames import TX_COMMIT_OK


def publish(channel: Channel, count: int = 1) -> None:
    """As `publishing.count` numbers them."""
    for _ in range(count):
        channel.confirms.publish(Counters())


def test_an_id_says_number_and_flags_and_is_of_its_incarnation_only() -> None:
    channel, other = Channel(1), Channel(1)
    for asked in (0, 1):
        for had_headers in (0, 1 << 13):
            ring_id = channel.next_id(asked, had_headers)
            assert 0 <= ring_id < 1 << 63
            assert channel.read_id(ring_id) is None, "it was not published yet"
            publish(channel)
            read = channel.read_id(ring_id)
            assert read is not None
            assert (read.number, read.asked, read.had_headers) == (
                channel.confirms.number,
                bool(asked),
                bool(had_headers),
            )
            assert other.nonce == channel.nonce or other.read_id(ring_id) is None
    for foreign in (0, 1, (1 << 64) - 1, channel.nonce, channel.nonce | 5, channel.nonce ^ 1 << 40 | 1):
        assert channel.read_id(foreign) is None


def test_numbers_beyond_32_bits_are_read_back() -> None:
    channel = Channel(1)
    channel.confirms.number = (1 << 32) - 2
    ids = []
    for _ in range(4):
        ids.append(channel.next_id(1, 0))
        publish(channel)
    assert [read.number for ring_id in ids if (read := channel.read_id(ring_id))] == [
        (1 << 32) + n for n in (-1, 0, 1, 2)
    ]


def test_the_id_of_what_the_broker_has_answered_is_a_copys() -> None:
    """A return comes before the ack, so what comes back later was published by the client, stamps and all."""
    channel = Channel(1)
    ids = []
    for number in range(5):
        if number == 1:
            channel.select(transactional=False)
        ids.append(channel.next_id(1, 0))
        publish(channel)
    channel.confirms.settle(2, multiple=False, acked=True)
    channel.confirms.settle(4, multiple=False, acked=True)
    numbers = [read.number if (read := channel.read_id(ring_id)) else None for ring_id in ids]
    assert numbers == [1, None, 3, None, 5]


def test_what_is_kept_goes_with_the_answers_or_beyond_a_number() -> None:
    channel = Channel(1)
    for _ in range(MOST_NOTES + 5):
        publish(channel)
        channel.note(PublishNote(b"x"))
    assert list(channel.confirms.notes) == list(range(6, MOST_NOTES + 6))
    channel.select(transactional=False)
    for _ in range(3):
        publish(channel)
        channel.note(PublishNote(b"y"))
    channel.confirms.settle(MOST_NOTES + 7, multiple=True, acked=True)
    assert list(channel.confirms.notes) == [MOST_NOTES + 8]


def test_the_nonces_of_channels_differ_and_leave_room_for_the_sign() -> None:
    nonces = {Channel(1).nonce for _ in range(50)}
    assert len(nonces) > 45
    assert all(0 <= nonce < 1 << 63 and nonce % (1 << 34) == 0 for nonce in nonces)


def test_the_first_publisher_mode_counts() -> None:
    for transactional in (False, True):
        channel = Channel(1)
        publish(channel)
        channel.select(transactional=transactional)
        publish(channel)
        channel.select(transactional=not transactional)
        assert (channel.transactional, channel.confirms.answered) == (transactional, True)
        assert channel.confirms.base == 1


@pytest.mark.parametrize(
    ("expect", "withheld", "inside", "awaited"),
    [
        (EXPECT_METHOD, False, False, True),
        (EXPECT_METHOD, False, True, False),
        (EXPECT_HEADER, False, False, False),
        (EXPECT_HEADER, True, False, True),
        (EXPECT_BODY, False, True, False),
    ],
)
def test_answers_are_awaited_of_what_has_gone_out_whole(
    expect: int, withheld: bool, inside: bool, awaited: bool
) -> None:
    channel = Channel(1)
    assert not channel.awaits(inside=False)
    channel.select(transactional=False)
    publish(channel)
    channel.expect, channel.withheld = expect, withheld
    assert channel.awaits(inside) is awaited
    publish(channel)
    assert channel.awaits(inside)


def test_a_transaction_is_awaited_once_its_end_is_asked_for() -> None:
    channel = Channel(1)
    channel.select(transactional=True)
    publish(channel)
    assert not channel.awaits(inside=False)
    channel.ask(Pending(TX_COMMIT_OK, number=1))
    assert channel.awaits(inside=False)
