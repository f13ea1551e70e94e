"""The journal's records and buffers, for `equal`."""

from collections.abc import Iterator
from itertools import count
from random import Random

from proxy.http.sending.journal_receiver import JournalReceiver
from proxy.journal.buffer import BUFFERS, CAPACITY, Filled, Journal, Record
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, NACKED, UNROUTABLE, PublishResult
from proxy.routing.route import Choice, Route
from ring.hashing import SLOTS
from tests.fuzz.equal_amqp import RINGS, edged, header
from tests.fuzz.said import Say, attempt, kept_of, mutated, number
from tests.unit.proxy.publisher.client_wire import Results
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import VHOST, Wire, queue

_OUTCOMES = list(Outcome)
_VERDICTS = (CONFIRMED, NACKED, UNROUTABLE, PublishResult(Outcome.UNKNOWN, "nobody knows"))


class Journalled:
    """A journal, and what it handed over."""

    def __init__(self, rng: Random) -> None:
        """Make a journal of some slots, with few buffers to spare; sequence numbers may be at the edges."""
        self.handed: list[Filled] = []
        ticks: Iterator[int] = count(1)
        limit = rng.choice((SLOTS, SLOTS, SLOTS // 2, 0, number(rng, 62)))
        self.journal = Journal(limit, self.handed.append, lambda: next(ticks) / 4)
        self.journal.sequence = rng.choice((0, 0, number(rng)))
        for _ in range(rng.choice((0, BUFFERS - 3, BUFFERS - 2, BUFFERS - 1))):
            self.journal.spare.pop()

    def tell(self, say: Say) -> None:
        """All that it holds and has counted."""
        journal = self.journal
        attempt(say, journal.turn)
        say((journal.sequence, journal.dropped, journal.idle, len(journal.spare), journal.limit))
        for filled in self.handed:
            say((filled.used, filled.first))
            # A full batch is compared at its ends: what is between came from one record.
            for one in (*filled.records[: min(20, filled.used)], filled.records[filled.used - 1]):
                say(None if one is None else _fields(one))
        attempt(say, journal.abandon)
        say((journal.sequence, journal.dropped, attempt(say, journal.turn)))


def _fields(record: Record) -> object:
    return (
        (record.ingress, record.name, record.ring.fingerprint, str(record.destination), record.slot, record.key),
        (record.message_id_is_key, record.message_id, record.size, record.published_at, record.told_at, record.outcome),
    )


def sessions(rng: Random, say: Say) -> None:
    """Sessions whose frames have numbers at the edges, and whose publishes are journalled."""
    it = Journalled(rng)
    edged(rng, say, it.journal)
    it.tell(say)


def buffers(rng: Random, say: Say) -> None:
    """Records of any header; buffers that fill, are handed over, given back, and run out."""
    it, results = Journalled(rng), Results()
    journal, routes = it.journal, _routes()
    plain = wire.header(1, 5)[7:-1]
    usual = Record("amqp", routes[0].name, plain, 0, len(plain), 1.0)
    choice(routes[0], 7, b"k", False).tell(usual, queue("q1"))
    if rng.random() < 0.15:
        # To the brink of what is left.
        for _ in range(CAPACITY * rng.choice((1, len(journal.spare) + 1)) - rng.randrange(6)):
            journal.add(usual, Outcome.CONFIRMED, 1.5)
    for _ in range(rng.randrange(4, 24)):
        which = rng.randrange(12)
        if which < 8:
            record = _record(rng, say, routes)
            if record is None:
                continue
            if rng.random() < 0.5:
                witness = JournalReceiver(journal, record, results, index := number(rng, 31))
                attempt(say, witness.settled, number(rng, 31), rng.choice(_VERDICTS))
                say((index, [str(verdict) for verdict in results.verdicts.get(index, [])]))
            else:
                attempt(say, journal.add, record, rng.choice(_OUTCOMES), rng.random())
        elif which == 8:
            journal.drop()
        elif which == 9 and it.handed:
            journal.spare.append([None] * CAPACITY)
        else:
            attempt(say, journal.turn)
        say((journal.sequence, journal.dropped, journal.idle))
    it.tell(say)


def choice(by: Route, slot: int, value: bytes | None, by_message_id: bool) -> Choice:
    """Return a choice of that ring's first destination."""
    return Choice(by.targets[0], by, slot, value, False, by_message_id)


def _record(rng: Random, say: Say, routes: list[Route]) -> Record | None:
    """Return a record of a header that may be wrong, perhaps sent elsewhere since; None where it cannot be made."""
    named = wire.header(1, number(rng), 1 << 7, b"\2id")[7:-1]
    data = rng.choice(
        (header(rng, 1, number(rng))[7:-1], mutated(rng, kept_of("content")), named, mutated(rng, [named]))
    )
    first = rng.choice((0, 0, 7))
    framed = rng.randbytes(first) + data + rng.randbytes(rng.choice((0, 1)))
    end = max(first, first + len(data) + rng.choice((0, 0, 0, -1, 1, 300)))
    key, slot = rng.choice((rng.randbytes(rng.choice((0, 1, 255))), None)), number(rng, 62)
    rings = [one for one in routes if one.targets]
    route, by, to = rng.choice(routes), rng.choice(rings), rng.choice((queue("q1"), None))
    made: list[Record] = []
    attempt(say, lambda: made.append(Record("http", route.name, framed, first, end, rng.random())))
    if not made:
        return None
    attempt(say, choice(by, slot, key, rng.random() < 0.5).tell, made[0], to)
    if rng.random() < 0.3:
        attempt(say, choice(rng.choice(rings), slot, b"again", rng.random() < 0.5).tell, made[0], queue("q2"))
    say(_fields(made[0]))
    return made[0]


def _routes() -> list[Route]:
    tables = Wire(RINGS).tables.table(VHOST, None)
    return [route for name in RINGS if isinstance(route := tables.find(name.encode()), Route)]
