"""The sample, the limit of spans under way, and what becomes of the spans of publishes and deliveries."""

import time
import tracemalloc

import pytest
from pamqp import commands

from proxy.groups.consuming import links
from proxy.outcome import Outcome
from proxy.tracing import tracer as tracer_module
from proxy.tracing.context import TRACEPARENT, UNREADABLE, Parent
from proxy.tracing.tracer import MOST_A_SECOND, MOST_OPEN, Kind, Span, Tracer
from proxy.wire.content import STAMP_ID
from proxy.wire.table import text_field
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, deliver
from tests.unit.proxy.session.republishing import LEFT, LOST, OURS, again, connected
from tests.unit.proxy.session.wire import (
    QUEUES,
    Wire,
    ack,
    back,
    close_channel,
    headers,
    made,
    message,
    nack,
    publish,
)

A = FIRST + 1
SAMPLED = Parent(5, 6, True)
VALUE = b"00-%032x-%016x-01" % (5, 6)
HEADER = b"\0\x3c\0\0" + (5).to_bytes(8, "big") + b"\0\0"


def tracing(share: float = 1.0) -> tuple[Tracer, list[Span]]:
    ended: list[Span] = []
    return Tracer(share, ended.append), ended


def span(tracer: Tracer, parent: Parent | None = None) -> Span:
    return tracer.publish(("/", "x"), b"k", "q", HEADER, 0, len(HEADER), parent, Kind.PRODUCER)


@pytest.mark.parametrize(
    ("share", "parent", "takes"),
    [
        (0.0, None, False),
        (1.0, None, True),
        (0.0, SAMPLED, True),
        (1.0, Parent(5, 6, False), False),
        (1.0, UNREADABLE, False),
    ],
)
def test_what_is_of_the_sample(share: float, parent: Parent | None, takes: bool) -> None:
    assert tracing(share)[0].takes(parent) == takes


def test_spans_under_way_are_limited() -> None:
    tracer, ended = tracing()
    made = [span(tracer) for _ in range(MOST_OPEN)]
    assert not tracer.takes(None)
    assert not tracer.takes(SAMPLED)
    assert (tracer.open, tracer.dropped) == (MOST_OPEN, 2)
    made[0].end("")
    made[1].forget()
    assert tracer.takes(None)
    assert (tracer.open, tracer.dropped, ended) == (MOST_OPEN - 2, 2, [made[0]])


def test_all_spans_under_way_take_no_more_memory_than_is_said() -> None:
    """docs/reference/memory.md has 20 MiB, with what the SDK keeps of those that have ended."""
    tracer, _ = tracing()
    tracemalloc.start()
    try:
        made = [span(tracer) for _ in range(MOST_OPEN)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) == MOST_OPEN
    assert taken < 20 * 2**20


def test_spans_of_a_second_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(tracer_module, "monotonic", lambda: now)
    tracer, _ = tracing()

    def taken() -> int:
        return sum(tracer.takes(SAMPLED) for _ in range(MOST_A_SECOND + 1))

    assert (taken(), tracer.limited) == (MOST_A_SECOND, 1)
    now += 0.5
    assert taken() == MOST_A_SECOND // 2
    now += 100
    assert (taken(), tracer.dropped) == (MOST_A_SECOND, 0)


def test_a_span_has_ids_of_its_own_and_its_times() -> None:
    tracer, ended = tracing()
    before = time.time_ns()
    first, second = span(tracer), span(tracer, SAMPLED)
    first.settled(Outcome.PASSED)
    second.settled(Outcome.UNKNOWN)
    assert [(each.error, each.kind, each.name) for each in ended] == [
        ("", Kind.PRODUCER, "publish x"),
        ("unknown", Kind.PRODUCER, "publish x"),
    ]
    assert (second.trace_id, second.parent_id, first.parent_id) == (5, 6, 0)
    assert len({first.span_id, second.span_id, first.trace_id, 5, 6}) == 5
    assert before <= first.started_at <= first.ended_at <= time.time_ns()


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    tracer, ended = tracing()
    made = span(tracer)
    made.started_at += 10**12
    made.end("")
    assert ended[0].ended_at == made.started_at


def test_a_publish_to_the_default_exchange_has_the_conventions_name_for_it() -> None:
    tracer, _ = tracing()
    made = tracer.publish(("/", ""), b"q", "", HEADER, 0, len(HEADER), None, Kind.PRODUCER)
    assert (made.name, made.attributes["messaging.destination.name"]) == ("publish amq.default", "q")
    assert "messaging.destination.partition.id" not in made.attributes


# Publishes over AMQP


def traced() -> tuple[Wire, Tracer, list[Span]]:
    tracer, ended = tracing()
    w = connected(x=QUEUES)
    w.tables.tracer = tracer
    return w, tracer, ended


def test_a_publish_ends_its_span_with_its_answer() -> None:
    w, tracer, ended = traced()
    w.client(b"".join(message(1, b"x", b"key %d" % n) for n in range(5)))
    assert (tracer.open, ended) == (5, [])
    w.both(ack(1, 2))
    w.both(nack(1, 3))
    w.both(ack(1, 4, multiple=True))
    assert [each.error for each in ended] == ["", "nacked", "", ""]
    assert [each.attributes["messaging.rabbitmq.destination.routing_key"] for each in ended] == [
        *("key 1", "key 2", "key 0", "key 3"),
    ]
    w.both(close_channel(1, 404, b"gone", (0, 0)))
    assert [each.error for each in ended[4:]] == ["unknown"]
    assert tracer.open == 0


@pytest.mark.parametrize(("spare", "named", "stamped"), [(72, 1, True), (71, 0, True), (-1, 0, False)])
def test_the_name_of_a_span_never_costs_a_message_its_stamps(spare: int, named: int, stamped: bool) -> None:
    def sent(w: Wire, room: int) -> bytes:
        return w.client(publish(1, b"x", b"k") + headers(1, 0, text_field(b"a", bytes(room))))

    def small() -> Wire:
        return Wire({"x": QUEUES}, frame_max=4096, confirming=True)

    largest = max(room for room in range(3900, 4060) if STAMP_ID in sent(small(), room))
    (tracer, ended), w = tracing(), small()
    w.tables.tracer = tracer
    out = sent(w, largest - spare)
    assert (out.count(TRACEPARENT), STAMP_ID in out) == (named, stamped)
    w.both(ack(1, 1))
    assert len(ended) == 1


def test_one_that_came_back_tells_where_it_went_then() -> None:
    w, tracer, ended = traced()
    w.both(back(w.client(message(1, b"x", LOST[0]))) + ack(1, 1))
    (sent,) = again(w.reread({"x": LEFT})[0])
    assert ended == []
    w.both(ack(OURS, 1))
    (one,) = ended
    assert (one.attributes["messaging.destination.partition.id"], one.error) == (sent.key.decode(), "")
    assert tracer.open == 0


# Deliveries by a group


def consuming(**more: object) -> tuple[Grouping, Tracer, list[Span]]:
    tracer, ended = tracing(0.0)
    w = Grouping()
    w.consuming.tracer = tracer
    w.join(**more)  # type: ignore[arg-type]
    return w, tracer, ended


HEAD = headers(A, 5, text_field(b"traceparent", VALUE))


def answer(*values: commands.Basic.Ack | commands.Basic.Nack | commands.Basic.Reject) -> bytes:
    return b"".join(made(1, value) for value in values)


@pytest.mark.parametrize(
    ("answers", "errors"),
    [
        (answer(commands.Basic.Ack(1), commands.Basic.Ack(2)), ["", ""]),
        (answer(commands.Basic.Ack(2, multiple=True)), ["", ""]),
        (answer(commands.Basic.Ack(0, multiple=True)), [""] * 3),
        (answer(commands.Basic.Nack(2, multiple=True, requeue=False)), ["rejected"] * 2),
        (answer(commands.Basic.Nack(2, multiple=True, requeue=True)), ["requeued"] * 2),
        (answer(commands.Basic.Reject(3, requeue=True)), ["requeued"]),
        (answer(commands.Basic.Reject(3, requeue=False)), ["rejected"]),
        (made(1, commands.Basic.Recover(requeue=True)), ["requeued"] * 3),
    ],
)
@pytest.mark.parametrize("in_series", [False, True])
def test_a_delivery_ends_its_span_with_its_answer(answers: bytes, errors: list[str], in_series: bool) -> None:
    more = {"arguments": {"x-ring-in-series": True}} if in_series else {}
    w, tracer, ended = consuming(**more)
    w.both(b"".join(deliver(A, n, head=HEAD, key=b"key %d" % n) for n in (1, 2, 3)) + deliver(A, 4, key=b"untraced"))
    assert (tracer.open, ended) == (3, [])
    w.client(answers)
    assert [each.error for each in ended] == errors
    assert {(each.trace_id, each.parent_id, each.kind) for each in ended} == {(5, 6, Kind.CONSUMER)}
    assert tracer.open == 3 - len(errors)
    links.lose_all(w.consuming)
    assert [each.error for each in ended[len(errors) :]] == ["unsettled"] * (3 - len(errors))
    assert tracer.open == 0


def test_without_acks_a_delivery_ends_its_span_at_once() -> None:
    w, tracer, ended = consuming(no_ack=True)
    w.both(deliver(A, 1, head=HEAD))
    assert ([each.error for each in ended], tracer.open) == ([""], 0)


def test_an_answer_that_comes_after_its_links_end_settles_nothing() -> None:
    w, tracer, ended = consuming()
    w.both(deliver(A, 1, head=HEAD))
    (member,) = w.consuming.consumers
    w.actions.give_up(member, "q1")
    w.client(answer(commands.Basic.Ack(1)))
    assert ([each.error for each in ended], tracer.open) == (["unsettled"], 0)


def test_what_a_channel_holds_at_its_end_is_unsettled() -> None:
    w, tracer, ended = consuming()
    w.both(deliver(A, 1, head=HEAD))
    w.both(close_channel(1, 406, b"wrong", (0, 0)))
    w.client(made(1, commands.Channel.CloseOk()))
    assert ([each.error for each in ended], tracer.open) == (["unsettled"], 0)
