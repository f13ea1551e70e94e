"""The buffers of the journal: what is taken, handed over and dropped, in numbers without a doubt."""

from proxy.journal.buffer import BUFFERS, CAPACITY, Filled, Journal, Record
from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.session.publishing.confirms import MOST_RECORDS, Confirms, Settlement
from proxy.topology.table import KnownRing
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

QUEUE = Destination("queue", "q")
RING = KnownRing.of(Ring.build({QUEUE: 1}), HashedValue(), "x-consistent-hash")
HEADER = b"\0\x3c\0\0" + (5).to_bytes(8, "big") + b"\0\0"
MESSAGE = b"\0\x3c\0\0" + (1 << 40).to_bytes(8, "big") + b"\0\x80\x02id"


def record(n: int = 0, destination: Destination | None = QUEUE, header: bytes = HEADER) -> Record:
    made = Record("amqp", ("/", "orders"), header, 0, len(header), 1.0)
    made.placed(RING, destination, n, b"k", False)
    return made


def journal() -> tuple[Journal, list[Filled]]:
    handed: list[Filled] = []
    return Journal(1 << 20, handed.append, lambda: 2.0), handed


def test_what_a_record_takes_of_a_header() -> None:
    assert (record().size, record().message_id) == (5, None)
    made = record(header=MESSAGE)
    assert (made.size, made.message_id) == (1 << 40, b"id")


def test_records_are_handed_over_in_order_and_numbered_without_a_gap() -> None:
    made, handed = journal()
    for n in range(CAPACITY + 3):
        made.add(record(n), Outcome.CONFIRMED, 2.0)
    assert [(filled.used, filled.first) for filled in handed] == [(CAPACITY, 1)]
    assert made.turn()
    assert [(filled.used, filled.first) for filled in handed] == [(CAPACITY, 1), (3, CAPACITY + 1)]
    slots = [one.slot for filled in handed for one in filled.records[: filled.used] if one is not None]
    assert slots == list(range(CAPACITY + 3))
    assert made.turn()
    assert len(handed) == 2
    assert made.sequence == CAPACITY + 3


def test_with_no_buffer_free_records_are_dropped_and_leave_a_gap() -> None:
    made, handed = journal()
    for n in range(BUFFERS * CAPACITY + 7):
        made.add(record(n), Outcome.CONFIRMED, 2.0)
    assert made.dropped == 7
    assert len(handed) == BUFFERS - 1
    assert not made.turn()
    first = handed.pop(0)
    made.spare.append(first.records)
    made.add(record(), Outcome.CONFIRMED, 2.0)
    assert made.turn() is False
    made.spare.append(handed.pop(0).records)
    assert made.turn()
    assert [filled.first for filled in handed[-2:]] == [(BUFFERS - 1) * CAPACITY + 1, BUFFERS * CAPACITY + 8]
    assert handed[-1].used == 1
    assert (made.sequence, made.dropped) == (BUFFERS * CAPACITY + 8, 7)


def test_what_cannot_be_handed_over_at_the_end_is_counted() -> None:
    made, _ = journal()
    made.spare.clear()
    made.add(record(), Outcome.CONFIRMED, 2.0)
    assert not made.turn()
    made.abandon()
    assert (made.sequence, made.dropped, made.turn()) == (1, 1, True)


def test_no_channel_keeps_more_records_than_its_share() -> None:
    made, _ = journal()
    confirms = Confirms()
    confirms.start()
    publish(confirms, made, MOST_RECORDS + 5)
    assert (len(confirms.records), made.dropped, made.sequence) == (MOST_RECORDS, 5, 5)


def test_a_header_that_cannot_be_read_has_no_message_id() -> None:
    assert record(header=MESSAGE[:-1]).message_id is None


def outcomes(made: Journal, handed: list[Filled]) -> dict[int, Outcome]:
    made.turn()
    return {one.slot: one.outcome for filled in handed for one in filled.records[: filled.used] if one is not None}


def publish(confirms: Confirms, made: Journal, count: int, destination: Destination | None = QUEUE) -> None:
    for _ in range(count):
        confirms.publish(Counters())
        confirms.record(made, record(confirms.number, destination))


def test_confirms_tell_what_became_of_each() -> None:
    made, handed = journal()
    confirms = Confirms()
    confirms.start()
    publish(confirms, made, 9)
    confirms.came_back(2, Settlement(Outcome.UNROUTABLE, True))
    confirms.settle(4, True, True)
    confirms.settle(6, False, False)
    confirms.settle(6, False, True)
    confirms.settle(7, False, True)
    confirms.abandon()
    c, unknown = Outcome.CONFIRMED, Outcome.UNKNOWN
    expected = {1: c, 2: Outcome.UNROUTABLE, 3: c, 4: c, 5: unknown, 6: Outcome.NACKED, 7: c, 8: unknown, 9: unknown}
    assert outcomes(made, handed) == expected
    assert not confirms.records


def test_what_is_passed_rolled_back_or_never_answered() -> None:
    made, handed = journal()
    confirms = Confirms()
    publish(confirms, made, 1)
    confirms.start()
    publish(confirms, made, 2)
    confirms.forget(3)
    publish(confirms, made, 1, None)
    confirms.settle(4, True, True)
    assert outcomes(made, handed) == {1: Outcome.SENT, 4: Outcome.PASSED}
