"""A batch: what is sent of it, in which order, and what is said of each message."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.http.admission.limits import Limits
from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError, invalid, unavailable
from proxy.http.sending.batch import MESSAGES, Batch, FieldNames
from proxy.http.sending.dispatch import Dispatch, ExchangeHandle, OrderingKey, Placement
from proxy.outcome import Outcome
from proxy.publisher.channel import CONFIRMED, NACKED, UNROUTABLE, PublishResult, Receiver
from proxy.publisher.pool import ConnectionGroup
from proxy.republishes import MOST_REPUBLISHES
from proxy.routing.counters import Counters
from proxy.routing.route import Choice, Route
from proxy.topology.table import PassReason
from proxy.wire.frames import NOT_FOUND
from proxy.wire.properties import HEADERS_FLAG, PERSISTENT, Header, encoded_headers
from tests.unit.proxy.session.wire import QUEUES, known

UNKNOWN = PublishResult(Outcome.UNKNOWN, "nobody knows")
REFUSED = PublishResult(Outcome.INVALID, "too large", 406)

ROUTE = Route(("/", "orders"), Counters(), None, known(QUEUES))
PASSED = Placement(Route(("/", "topic"), Counters(), PassReason.TYPE), None, PassReason.TYPE)


def placement(target: int = 0) -> Placement:
    return Placement(ROUTE, Choice(ROUTE.targets[target], ROUTE, 5, b"k", False, False), None)


class FakeDispatch(Dispatch):
    """Takes messages, and answers as it is told: at once, or when asked to."""

    def __init__(self, at_once: Callable[[int], PublishResult | None] = lambda index: None) -> None:
        self.at_once = at_once
        self.problems: dict[int, Exception] = {}
        self.places: dict[int, Placement] = {}
        self.waits: dict[int, Coroutine[Any, Any, None]] = {}
        """The coroutine to await before a message goes, by its number."""
        self.sent: list[tuple[int, Message]] = []
        self.waiting: dict[int, Receiver] = {}
        self.read_anew: list[Placement] = []
        self.now: Placement | None = None
        """Where messages that came back would go; None for where they came from."""
        self.ring: str | None = None
        """The digest of the ring in force, if it has changed."""
        self.rerouted = 0
        self.coming_back = Counter()

    def ordering_key_of(self, handle: ExchangeHandle, message: Message) -> OrderingKey:
        return message.key

    def attempt(
        self,
        handle: ExchangeHandle,
        message: Message,
        receiver: Receiver,
        index: int,
        since: float,
        behind: str | None = None,
    ) -> Placement | Coroutine[Any, Any, None] | None:
        if index in self.problems:
            raise self.problems[index]
        if behind is not None and self.ring is not None and behind != self.ring:
            return None
        if index in self.waits:
            return self.waits.pop(index)
        self.sent.append((index, message))
        self.waiting[index] = receiver
        verdict = self.at_once(index)
        if verdict is not None:
            asyncio.get_running_loop().call_soon(self.settle, index, verdict)
        return self.places.get(index, self.now or placement())

    def settle(self, index: int, verdict: PublishResult) -> None:
        self.waiting.pop(index).settled(index, verdict)

    def goes_again(self, handle: ExchangeHandle, message: Message, placement: Placement, since: float) -> bool:
        return self.now is not None and self.now.where != placement.where

    def came_back(self, placement: Placement, result: PublishResult) -> bool:
        return result.outcome is Outcome.UNROUTABLE or (result.outcome is Outcome.INVALID and result.code == NOT_FOUND)

    def count_rerouted(self, placement: Placement) -> None:
        self.rerouted += 1

    async def read_again(self, placement: Placement, why: str) -> None:
        self.read_anew.append(placement)

    @property
    def indices(self) -> list[int]:
        return [index for index, _ in self.sent]


class Case:
    """A batch and what is around it."""

    def __init__(
        self,
        at_once: Callable[[int], PublishResult | None] = lambda index: CONFIRMED,
        *,
        most: int = 1000,
        patience: float = 10,
        words: FieldNames = MESSAGES,
    ) -> None:
        self.dispatch, self.limits = FakeDispatch(at_once), Limits(most, 1 << 20)
        handle = ExchangeHandle(("/", "orders"), ConnectionGroup("/", (), False), b"orders")
        self.batch = Batch(self.dispatch, self.limits, handle, patience, words)

    async def add(self, *keys: str) -> None:
        for key in keys:
            await self.put(None, key.encode(), b"body of " + key.encode())

    async def put(self, message_id: str | None, key: bytes | None, body: bytes = b"x") -> None:
        step = self.batch.add(message_id, Message(key, Header.of(PERSISTENT), body))
        if step is not None:
            await step

    async def done(self) -> None:
        async with asyncio.timeout(10):
            await self.batch.done()
        assert (self.limits.messages, self.limits.bytes) == (0, 0)

    @property
    def outcomes(self) -> list[Outcome]:
        return [result["outcome"] for result in self.batch.results()]


def answers(given: Mapping[int, PublishResult]) -> Callable[[int], PublishResult]:
    return lambda index: given.get(index, CONFIRMED)


async def idle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


# All confirmed.


async def test_every_message_confirmed() -> None:
    case = Case(lambda index: None)
    case.dispatch.places = {1: PASSED, 2: placement(1)}
    await case.put("first", b"k", b"1")
    await case.put(None, None, b"2")
    await case.put("", b"k", b"3")
    assert [message.body for _, message in case.dispatch.sent] == [b"1", b"2", b"3"]
    assert (len(case.batch), case.limits.messages, case.limits.bytes) == (3, 3, 3)
    done = asyncio.create_task(case.done())
    for index in (2, 0, 1):
        await idle()
        assert not done.done()
        case.dispatch.settle(index, CONFIRMED)
    await done
    assert case.batch.is_confirmed
    assert case.batch.summary() == {"outcome": "confirmed", "messages": 3, "confirmed": 2, "passed": 1}
    ring = {"slot": 5, "ring": ROUTE.fingerprint}
    assert case.batch.results() == [
        {"id": "first", "outcome": "confirmed", "destination": {"type": "queue", "name": "q1"}, **ring},
        {"outcome": "passed", "exchange": "topic", "reason": PassReason.TYPE},
        {"id": "", "outcome": "confirmed", "destination": {"type": "queue", "name": "q2"}, **ring},
    ]
    assert case.batch.unsent() == Counter()
    assert case.dispatch.read_anew == []


async def test_an_empty_batch_is_done() -> None:
    case = Case()
    await case.done()
    assert case.batch.is_confirmed
    assert case.batch.summary() == {"outcome": "confirmed", "messages": 0, "confirmed": 0, "passed": 0}
    assert case.batch.results() == []


# Failures.


@pytest.mark.parametrize(
    ("verdict", "again"),
    [(NACKED, True), (UNROUTABLE, True), (REFUSED, False)],
    ids=["nacked", "unroutable", "refused"],
)
async def test_after_a_keys_failure_nothing_more_of_that_key_is_sent(verdict: PublishResult, again: bool) -> None:
    case = Case(answers({1: verdict}))
    await case.add("a", "b", "a")
    await idle()
    await case.add("b", "a", "b")
    await case.done()
    assert case.dispatch.indices == [0, 1, 2, 4]
    rejected = {
        "outcome": Outcome.REJECTED,
        "detail": "not sent, because an earlier message of its key failed",
        "retryable": True,
    }
    results = case.batch.results()
    assert (results[3], results[5]) == (rejected, rejected)
    assert results[1]["outcome"] is verdict.outcome
    assert results[1]["retryable"] is again
    assert {result["outcome"] for result in (results[0], results[2], results[4])} == {"confirmed"}
    assert not case.batch.is_confirmed


async def test_messages_without_an_order_fail_alone() -> None:
    case = Case(answers({0: NACKED}))
    for key in (None, None, b""):
        await case.put(None, key, b"")
        await idle()
    await case.done()
    assert case.outcomes == [Outcome.NACKED, Outcome.CONFIRMED, Outcome.CONFIRMED]
    assert not case.batch.is_confirmed


async def test_what_fails_while_one_waits_for_a_reading_is_not_overtaken() -> None:
    case = Case(lambda index: None)
    read = asyncio.Event()

    async def wait() -> None:
        await read.wait()

    case.dispatch.waits[1] = wait()
    await case.add("a")
    adding = asyncio.create_task(case.add("a"))
    await idle()
    case.dispatch.settle(0, NACKED)
    read.set()
    await adding
    await case.done()
    assert case.outcomes == [Outcome.NACKED, Outcome.REJECTED]


async def test_a_malformed_message_fails_its_key() -> None:
    case = Case()
    await case.add("a")
    case.batch.refuse("x", b"a", "messages[1].priority: no")
    await case.add("a", "b")
    case.batch.refuse(None, None, "messages[4]: not an object")
    await case.done()
    assert case.outcomes == [
        *(Outcome.CONFIRMED, Outcome.INVALID, Outcome.REJECTED),
        *(Outcome.CONFIRMED, Outcome.INVALID),
    ]
    assert case.batch.results()[1] == {
        "id": "x", "outcome": "invalid", "detail": "messages[1].priority: no", "retryable": False,
    }  # fmt: skip
    assert case.batch.unsent() == {Outcome.INVALID: 2, Outcome.REJECTED: 1}


@pytest.mark.parametrize(
    ("problem", "again"),
    [
        (unavailable("no broker"), True),
        (ProblemError(404, "unknown-exchange", "no exchange", Outcome.INVALID), False),
        (ProblemError(403, "internal-exchange", "internal", Outcome.INVALID), False),
    ],
    ids=["unavailable", "unknown", "internal"],
)
async def test_nothing_is_sent_after_what_all_would_meet(problem: ProblemError, again: bool) -> None:
    case = Case()
    case.dispatch.problems[1] = problem
    await case.add("a", "b", "c", "b")
    await case.done()
    assert case.dispatch.indices == [0]
    assert case.outcomes == [Outcome.CONFIRMED, problem.outcome, Outcome.REJECTED, Outcome.REJECTED]
    assert case.batch.results()[2]["detail"] == f"not sent, because an earlier message failed: {problem.detail}"
    assert {result["retryable"] for result in case.batch.results()[1:]} == {again}
    assert case.batch.unsent() == Counter([problem.outcome, Outcome.REJECTED, Outcome.REJECTED])


async def test_nothing_is_sent_after_one_that_the_broker_did_not_answer() -> None:
    case = Case(answers({0: UNKNOWN}))
    await case.add("a", "b")
    await idle()
    await case.add("c")
    await case.done()
    assert case.outcomes == [Outcome.UNKNOWN, Outcome.CONFIRMED, Outcome.REJECTED]
    assert case.batch.unsent() == {Outcome.REJECTED: 1}


async def test_a_message_that_cannot_be_sent_is_named() -> None:
    case = Case(words=FieldNames("events", "partitionkey"))
    case.dispatch.problems = {
        0: ProblemError(400, "no-routing-key", "Routing-Key: the header is missing", Outcome.INVALID),
        2: invalid("headers", "5000 bytes"),
        3: ProblemError(413, "too-large", "body: 9 bytes", Outcome.INVALID),
    }
    await case.add("a", "b", "c", "d", "e")
    await case.done()
    assert [result.get("detail") for result in case.batch.results()] == [
        *("events[0].partitionkey: missing", None, "events[2].headers: 5000 bytes", "events[3].body: 9 bytes", None),
    ]


async def test_long_details_are_cut() -> None:
    case = Case(answers({0: PublishResult(Outcome.NACKED, "x" * 5000)}))
    await case.add("a")
    await case.done()
    problem = case.batch.problem()
    assert len(problem.more["results"][0]["detail"]) == 300
    assert len(problem.detail) <= 500


async def test_long_details_are_not_kept() -> None:
    case = Case()
    tracemalloc.start()
    try:
        for n in range(100):
            case.batch.refuse(None, None, f"{n}" + "x" * 10_000)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    await case.done()


# Answers about all messages


@pytest.mark.parametrize(
    ("verdicts", "status", "outcome"),
    [
        ([CONFIRMED, NACKED], 503, Outcome.UNKNOWN),
        ([NACKED, NACKED], 503, Outcome.NACKED),
        ([UNROUTABLE, NACKED], 503, Outcome.UNKNOWN),
        ([UNKNOWN, UNKNOWN], 503, Outcome.UNKNOWN),
        ([REFUSED, REFUSED], 422, Outcome.INVALID),
        ([CONFIRMED, REFUSED], 422, Outcome.UNKNOWN),
        ([REFUSED, NACKED], 503, Outcome.UNKNOWN),
    ],
)
async def test_the_problem_of_all(verdicts: list[PublishResult], status: int, outcome: Outcome) -> None:
    case = Case(lambda index: verdicts[index])
    await case.add("a", "b")
    await case.done()
    problem = case.batch.problem()
    assert (problem.status, problem.kind, problem.outcome, problem.retryable) == (
        status, "batch-failed", outcome, status == 503,
    )  # fmt: skip
    failed = sum(verdict is not CONFIRMED for verdict in verdicts)
    assert problem.detail.startswith(f"{failed} of 2 messages are not confirmed; the first: ")
    assert problem.more == {"results": case.batch.results()}
    assert len(case.batch.results()) == 2


async def test_what_a_ring_missed_is_read_again_once_a_target() -> None:
    gone = PublishResult(Outcome.INVALID, "no exchange", NOT_FOUND)
    case = Case(answers({0: UNROUTABLE, 1: UNROUTABLE, 2: UNROUTABLE, 4: gone, 5: NACKED}))
    case.dispatch.places = {index: placement(target) for index, target in enumerate((0, 0, 1, 2, 2, 1))}
    await case.add("a", "b", "c", "d", "e", "f")
    await case.done()
    assert [one.choice and one.choice.target.destination.name for one in case.dispatch.read_anew] == ["q1", "q2", "q3"]
    assert case.batch.results()[0]["detail"] == "there is no queue 'q1'"
    # The exchange that a ring chose is gone; with the ring read again it is another one.
    assert case.batch.results()[4]["outcome"] is Outcome.UNAVAILABLE
    assert case.batch.results()[4]["retryable"]


async def test_what_came_back_goes_where_its_ring_says_now_and_its_key_keeps_its_order() -> None:
    case = Case(lambda index: None)
    await case.add("a", "b", "a")
    case.dispatch.settle(0, UNROUTABLE)
    await case.add("a", "b")
    assert case.dispatch.indices == [0, 1, 2, 4]
    case.dispatch.now = placement(1)
    case.dispatch.settle(2, UNROUTABLE)
    done = asyncio.create_task(case.done())
    for index in (1, 4):
        await idle()
        assert case.dispatch.indices == [0, 1, 2, 4]
        case.dispatch.settle(index, CONFIRMED)
    await idle()
    assert case.dispatch.indices == [0, 1, 2, 4, 0, 2, 3]
    assert (len(case.dispatch.read_anew), case.dispatch.rerouted) == (1, 2)
    # Once more, and nothing else to go to.
    case.dispatch.settle(0, UNROUTABLE)
    for index in (2, 3):
        case.dispatch.settle(index, CONFIRMED)
    await done
    assert case.outcomes == [Outcome.UNROUTABLE, *[Outcome.CONFIRMED] * 4]
    assert case.batch.results()[2]["destination"]["name"] == "q2"
    assert case.batch.unsent() == {Outcome.UNROUTABLE: 1}


async def test_what_is_behind_a_message_that_no_queue_takes_is_rejected() -> None:
    case = Case(lambda index: None)
    await case.add("a")
    case.dispatch.settle(0, UNROUTABLE)
    await case.add("a", "b")
    done = asyncio.create_task(case.done())
    await idle()
    case.dispatch.settle(2, CONFIRMED)
    await done
    assert case.dispatch.indices == [0, 2]
    assert case.outcomes == [Outcome.UNROUTABLE, Outcome.REJECTED, Outcome.CONFIRMED]


async def test_what_waits_to_be_sent_again_has_its_place_in_the_limits_and_frees_it_itself() -> None:
    case = Case(lambda index: None, most=8)
    await case.add("a")
    case.dispatch.settle(0, UNROUTABLE)
    await case.add("a", "a", "a")
    assert (case.dispatch.indices, case.limits.messages) == ([0], 4)
    case.dispatch.now = placement(1)
    adding = asyncio.create_task(case.add("a"))
    await idle()
    assert case.dispatch.indices == [0, 0, 1, 2, 3]
    assert not adding.done()
    for index in range(4):
        case.dispatch.settle(index, CONFIRMED)
    await adding
    case.dispatch.settle(4, CONFIRMED)
    await case.done()
    assert case.batch.is_confirmed


async def test_what_waits_to_be_sent_again_is_given_up_with_its_batch() -> None:
    case = Case(lambda index: None)
    await case.add("a")
    case.dispatch.settle(0, UNROUTABLE)
    await case.add("a")
    assert case.limits.messages == 2
    assert case.dispatch.coming_back.total() == 1
    case.batch.abandon()
    assert (case.limits.messages, case.limits.bytes) == (0, 0)
    assert not case.dispatch.coming_back


async def test_what_comes_back_after_it_was_abandoned_gives_its_place_back() -> None:
    case = Case(lambda index: None)
    await case.add("a")
    case.batch.abandon()
    case.dispatch.settle(0, UNROUTABLE)
    assert (case.limits.messages, case.limits.bytes) == (0, 0)


async def test_a_message_is_not_sent_again_for_ever() -> None:
    case = Case(lambda index: UNROUTABLE)
    case.dispatch.now = placement(1)
    case.dispatch.places = {0: placement(0)}
    await case.add("a")
    await case.done()
    assert case.dispatch.indices == [0] * (1 + MOST_REPUBLISHES)
    assert case.outcomes == [Outcome.UNROUTABLE]


# Room.


async def test_it_waits_for_room() -> None:
    case = Case(lambda index: None, most=4)
    adding = asyncio.create_task(case.add("a", "b", "c", "d"))
    await idle()
    assert case.dispatch.indices == [0, 1]
    case.dispatch.settle(0, CONFIRMED)
    await idle()
    assert case.dispatch.indices == [0, 1, 2]
    assert not adding.done()
    for index in (1, 2):
        case.dispatch.settle(index, CONFIRMED)
    await adding
    case.dispatch.settle(3, CONFIRMED)
    await case.done()
    assert case.batch.is_confirmed


async def test_what_fails_while_it_waits_is_not_sent() -> None:
    case = Case(lambda index: None, most=2)
    await case.add("a")
    adding = asyncio.create_task(case.add("a", "b"))
    await idle()
    case.dispatch.settle(0, NACKED)
    await idle()
    case.dispatch.settle(2, CONFIRMED)
    await adding
    await case.done()
    assert case.outcomes == [Outcome.NACKED, Outcome.REJECTED, Outcome.CONFIRMED]


async def test_what_comes_back_meanwhile_gives_its_place() -> None:
    case = Case(lambda index: None, most=4)
    await case.add("a", "b")
    adding = asyncio.create_task(case.add("c"))
    await idle()
    assert not adding.done()
    case.dispatch.settle(0, UNROUTABLE)
    case.dispatch.settle(1, UNROUTABLE)
    async with asyncio.timeout(5):
        await adding
    case.dispatch.settle(2, CONFIRMED)
    await case.done()
    assert case.outcomes == [Outcome.UNROUTABLE, Outcome.UNROUTABLE, Outcome.CONFIRMED]


async def test_headers_count_as_bodies_do() -> None:
    case = Case(lambda index: None)
    header = Header.of({**PERSISTENT, HEADERS_FLAG: encoded_headers({"long": "x" * 1000})})
    assert case.batch.add(None, Message(b"k", header, b"body")) is None
    assert case.limits.bytes == len("body") + len("\x04longS") + 4 + 1000
    case.dispatch.settle(0, CONFIRMED)
    await case.done()


async def test_it_waits_no_longer_than_its_patience() -> None:
    case = Case(most=2, patience=0.05)
    case.limits.take_batched(0)
    await case.add("a", "b")
    case.limits.give_batched(0)
    await case.add("c")
    await case.done()
    assert case.dispatch.sent == []
    assert case.outcomes == [Outcome.REJECTED] * 3
    assert case.batch.problem().outcome is Outcome.REJECTED
    assert case.batch.problem().status == 503
    assert (
        "not sent, because there was no room in max_in_flight or max_in_flight_bytes for 0.05 s"
        in case.batch.problem().detail
    )


async def test_a_defect_leaves_nothing_counted() -> None:
    case = Case(lambda index: None)
    await case.add("a")
    case.dispatch.problems[1] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await case.add("b")
    case.dispatch.settle(0, CONFIRMED)
    await case.done()
    assert case.outcomes == [Outcome.CONFIRMED, Outcome.UNKNOWN]


async def test_leaving_while_it_waits_leaves_nothing_counted() -> None:
    case = Case(lambda index: None, most=2)
    await case.add("a")
    adding = asyncio.create_task(case.add("b"))
    await idle()
    adding.cancel()
    await idle()
    assert adding.cancelled()
    case.dispatch.settle(0, CONFIRMED)
    await case.done()


# At random.

VERDICTS = {
    "confirmed": CONFIRMED,
    "nacked": NACKED,
    "unroutable": UNROUTABLE,
    "unknown": UNKNOWN,
    "refused": REFUSED,
}
PROBLEMS = {
    "no broker": unavailable("no broker"),
    "no key": ProblemError(400, "no-routing-key", "", Outcome.INVALID),
}
FATES = ("malformed", *VERDICTS, *PROBLEMS)
batches = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([*["confirmed"] * 8, *FATES]),
        st.lists(st.integers(0, 9), max_size=3),
    ),
    max_size=25,
)
"""Each message's key, its fate, and which of those under way are answered after it is taken."""


class Trial:
    """A batch beside what is known of it."""

    def __init__(self, messages: list[tuple[str, str, list[int]]], most: int) -> None:
        self.case = Case(lambda index: None, most=most)
        self.messages = messages
        self.failed: set[str] = set()
        self.stopped = False

    @property
    def waiting(self) -> list[int]:
        return sorted(self.case.dispatch.waiting)

    def settle(self, index: int) -> None:
        key, fate, _ = self.messages[index]
        self.case.dispatch.settle(index, VERDICTS[fate])
        self.know(key, fate)

    def know(self, key: str, fate: str) -> None:
        if fate != "confirmed":
            self.failed.add(key)
        self.stopped |= fate in ("unknown", "no broker")

    async def add(self, index: int) -> None:
        key, fate, _ = self.messages[index]
        if fate == "malformed":
            self.case.batch.refuse(str(index), key.encode(), "malformed")
            self.know(key, fate)
            return
        if fate in PROBLEMS:
            self.case.dispatch.problems[index] = PROBLEMS[fate]
        adding = asyncio.create_task(self.case.put(str(index), key.encode()))
        await idle()
        async with asyncio.timeout(10):
            while not adding.done():
                if self.waiting:  # nothing is, while it looks at what came back
                    self.settle(self.waiting[0])
                await idle()
        tried = key not in self.failed and not self.stopped
        assert (index in self.case.dispatch.indices) == (tried and fate in VERDICTS)
        if tried and fate in PROBLEMS:
            self.know(key, fate)
        if not tried:
            self.failed.add(key)

    async def run(self) -> None:
        for index, (_, _, answered) in enumerate(self.messages):
            await self.add(index)
            for at in answered:
                if self.waiting:
                    self.settle(self.waiting[at % len(self.waiting)])
        done = asyncio.create_task(self.case.done())
        while self.waiting:
            await idle()
            assert not done.done()
            self.settle(self.waiting[-1])
        await done

    def check(self) -> None:
        results, sent = self.case.batch.results(), self.case.dispatch.indices
        assert [result["id"] for result in results] == [str(index) for index in range(len(self.messages))]
        for index, result in enumerate(results):
            fate = self.messages[index][1]
            if index in sent:
                assert result["outcome"] == VERDICTS[fate].outcome
            else:
                assert result["outcome"] in ("rejected", "invalid", "unavailable")
        assert sent == sorted(sent)
        batch = self.case.batch
        assert batch.is_confirmed == all(result["outcome"] == "confirmed" for result in results)
        if not batch.is_confirmed:
            again = any(result.get("retryable") for result in results)
            assert (batch.problem().retryable, batch.problem().status) == (again, 503 if again else 422)


@given(batches, st.integers(1, 12))
@settings(deadline=None)
def test_any_batch(messages: list[tuple[str, str, list[int]]], most: int) -> None:
    trial = Trial(messages, most)
    asyncio.run(trial.run())
    trial.check()
    assert not trial.case.dispatch.coming_back


# The ring changes while messages are under way.


async def test_messages_wait_for_those_that_went_by_another_ring() -> None:
    """One of these that comes back goes out again before the later ones of its key."""
    case = Case(lambda index: None)
    await case.add("a", "b")
    case.dispatch.ring = "another ring"
    adding = asyncio.create_task(case.add("b", "c"))
    await idle()
    assert case.dispatch.indices == [0, 1]
    case.dispatch.settle(0, CONFIRMED)
    await idle()
    assert case.dispatch.indices == [0, 1]
    case.dispatch.now = placement(1)
    case.dispatch.settle(1, UNROUTABLE)
    await idle()
    assert case.dispatch.indices == [0, 1, 1]
    case.dispatch.ring = None
    case.dispatch.settle(1, CONFIRMED)
    await adding
    assert case.dispatch.indices == [0, 1, 1, 2, 3]
    for index in (2, 3):
        case.dispatch.settle(index, CONFIRMED)
    await case.done()
    assert case.outcomes == [Outcome.CONFIRMED] * 4


async def test_no_message_goes_by_another_ring_once_the_batch_has_stopped() -> None:
    case = Case(lambda index: None)
    await case.add("a")
    case.dispatch.ring = "another ring"
    adding = asyncio.create_task(case.add("b"))
    await idle()
    case.dispatch.settle(0, UNKNOWN)
    await adding
    await case.done()
    assert case.dispatch.indices == [0]
    assert case.outcomes == [Outcome.UNKNOWN, Outcome.REJECTED]
