"""One publishing connection: what it sends, and that every publish is told of once and never too well."""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from proxy import __version__
from proxy.outcome import Outcome
from proxy.process.identity import of_job, process_id
from proxy.publisher.channel import CONFIRMED, NACKED, UNROUTABLE
from proxy.publisher.handshake import MAX_CHANNELS
from proxy.publisher.protocol import Full, PublisherProtocol, Stage
from proxy.routing.route import PUBLISH, Target
from proxy.wire.content import STAMP_ID_FIELD, stamp_of_exchange
from proxy.wire.frames import PROTOCOL_HEADER, Fault, shorted
from proxy.wire.properties import Header, encoded
from ring.hashing import RING_FORMAT
from tests.properties import examples
from tests.unit.proxy.publisher.client_wire import (
    OPEN_OK,
    PERSISTENT_HEADER,
    TO_Q,
    Wire,
    blocked,
    come_back,
    queue_named,
    start,
    tune,
)
from tests.unit.proxy.session.wire import (
    CONNECTION_CLOSE_OK,
    HEARTBEAT,
    Frame,
    ack,
    body,
    chunkings,
    chunks,
    close_channel,
    close_connection,
    entry,
    exchange,
    frame,
    headers,
    made,
    method,
    nack,
    published,
    returned,
    short,
    split,
)

OPEN = 20, 10
CLOSE, CLOSE_OK = (20, 40), (20, 41)


def decoded(data: bytes) -> list[tuple[int, Any]]:
    """The frames as pamqp reads them."""
    found = []
    while data:
        size, channel, read = pamqp_frame.unmarshal(data)
        found.append((channel, read))
        data = data[size:]
    return found


# The handshake.


def test_handshake() -> None:
    for chunking in chunkings(start({"cluster_name": "rabbit@a", "other": {"a": 1}}) + tune() + OPEN_OK):
        client = PublisherProtocol("me", "s€cret", "v/é")
        for chunk in chunking:
            assert client.stage is Stage.OPENING
            client.feed(chunk)
        assert client.stage is Stage.OPEN
        (_, start_ok), (_, tune_ok), (_, opening) = decoded(b"".join(client.out))
        assert isinstance(start_ok, commands.Connection.StartOk)
        assert (start_ok.mechanism, start_ok.response, start_ok.locale) == ("PLAIN", "\0me\0s€cret", "en_US")
        assert start_ok.client_properties == {
            "product": "ringproxy",
            "version": __version__,
            "platform": "Python",
            "connection_name": "ringproxy v/é",
            "ringproxy_version": __version__,
            "ringproxy_ring_format": str(RING_FORMAT),
            "ringproxy_id": process_id(),
            "capabilities": {
                "publisher_confirms": True,
                "basic.nack": True,
                "connection.blocked": True,
                "authentication_failure_close": True,
            },
        }
        assert isinstance(tune_ok, commands.Connection.TuneOk)
        assert (tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat) == (MAX_CHANNELS, 131072, 20)
        assert isinstance(opening, commands.Connection.Open)
        assert opening.virtual_host == "v/é"
        assert client.cluster == "rabbit@a"


def test_who_is_no_sidecar_says_what_it_is_instead() -> None:
    client = PublisherProtocol("me", "secret", "v", of_job())
    client.feed(start({}))
    ((_, start_ok),) = decoded(b"".join(client.out))
    assert isinstance(start_ok, commands.Connection.StartOk)
    named = {name for name in start_ok.client_properties or {} if name.startswith("ringproxy")}
    assert named == {"ringproxy_job_version", "ringproxy_ring_format"}


def test_it_waits_for_the_broker_to_begin() -> None:
    assert PublisherProtocol("me", "secret", "v").out == []


@pytest.mark.parametrize("properties", [{}, {"cluster_name": 1}, {"cluster_name": {"a": "b"}}])
def test_a_broker_without_a_cluster_name(properties: FieldTable) -> None:
    client = PublisherProtocol("me", "secret", "v")
    client.feed(start(properties))
    assert client.cluster is None


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ((0, 0, 0), (MAX_CHANNELS, 0, 20)),
        ((10, 4096, 5), (10, 4096, 5)),
        ((65535, 1 << 31, 65535), (MAX_CHANNELS, 1 << 31, 20)),
    ],
)
def test_limits_are_the_brokers_or_less(offered: tuple[int, int, int], agreed: tuple[int, int, int]) -> None:
    client = PublisherProtocol("me", "secret", "v")
    client.feed(tune(*offered))
    (_, answer) = decoded(b"".join(client.out))[0]
    assert (answer.channel_max, answer.frame_max, answer.heartbeat) == agreed
    assert client.heartbeat == agreed[2]


@pytest.mark.parametrize("frame_max", [1, 7, 8, 4095])
def test_frames_that_hold_nothing_are_no_offer(frame_max: int) -> None:
    with pytest.raises(Fault, match="4096 are the least"):
        PublisherProtocol("me", "secret", "v").feed(tune(frame_max=frame_max))


@pytest.mark.parametrize("after", [b"", start(), start() + tune()], ids=["at once", "at login", "at open"])
@pytest.mark.parametrize("code", [403, 530, 320])
def test_refused(after: bytes, code: int) -> None:
    client = PublisherProtocol("me", "secret", "v")
    client.feed(after + close_connection(code, b"NO - b\xffcause"))
    assert (client.stage, client.code, client.fault) == (Stage.CLOSED, code, "NO - b�cause")
    assert b"".join(client.out) == CONNECTION_CLOSE_OK


def test_blocked_and_unblocked() -> None:
    w = Wire()
    w.fed(blocked("low on memory"))
    assert w.client.blocked == "low on memory"
    w.fed(made(0, commands.Connection.Unblocked()))
    assert w.client.blocked == ""
    w.fed(blocked(""))
    assert w.client.blocked


def test_a_new_secret_goes_out_behind_what_was_published() -> None:
    w = Wire()
    w.publishes(1)
    w.sent()
    w.publishes(1)
    token = b"e" * 3000  # longer than a short string
    w.client.update_secret(token, b"renewed")
    *before, (channel, update) = decoded(w.sent())
    assert len(before) == 2
    assert (channel, dict(update)) == (0, {"new_secret": token.decode(), "reason": "renewed"})
    # The answer changes nothing.
    w.fed(made(0, commands.Connection.UpdateSecretOk()))
    assert w.client.stage is Stage.OPEN


def test_no_new_secret_goes_where_nobody_is_logged_in() -> None:
    client = PublisherProtocol("me", "secret", "v")
    client.update_secret(b"token", b"renewed")
    assert client.out == []


def test_closing_takes_the_last_answers() -> None:
    w = Wire()
    w.publishes(2)
    w.sent()
    w.client.close()
    assert w.client.stage.value == "closing"
    (goodbye,) = split(w.sent())
    assert goodbye.id == (10, 50)
    assert w.fed(ack(1, 2), CONNECTION_CLOSE_OK) == {1: Outcome.CONFIRMED}
    assert w.client.stage.value == "closed"
    w.client.lost("gone")
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED}


def test_closing_what_is_not_open_says_nothing() -> None:
    client = PublisherProtocol("me", "secret", "v")
    client.close()
    assert (client.out, client.stage) == ([], Stage.OPENING)


# Sending


def test_a_publish_to_a_queue() -> None:
    w = Wire()
    properties = dict(
        [encoded("content_type", "text/plain"), encoded("message_id", "m"), encoded("headers", {"a": "b"})]
    )
    stamp = stamp_of_exchange(b"orders")
    w.client.publish(b"", TO_Q, Header.of(properties), stamp, b"key", b"hello", (w.results, 7, w.counters))
    frames = decoded(w.sent())
    assert [channel for channel, _ in frames] == [1] * 5
    opening, select, sent, head, payload = (read for _, read in frames)
    assert isinstance(opening, commands.Channel.Open)
    assert isinstance(select, commands.Confirm.Select)
    assert select.nowait is False
    assert isinstance(sent, commands.Basic.Publish)
    assert (sent.exchange, sent.routing_key, sent.mandatory, sent.immediate) == ("", "q", True, False)
    assert isinstance(head, ContentHeader)
    assert head.body_size == 5
    assert (head.properties.content_type, head.properties.message_id) == ("text/plain", "m")
    given = head.properties.headers
    assert given is not None
    assert list(given) == ["x-ring-exchange", "x-ring-routing-key", "x-ring-id", "a"]
    assert (given["x-ring-exchange"], given["x-ring-routing-key"], given["a"]) == ("orders", "key", "b")
    ring_id = given["x-ring-id"]
    assert isinstance(ring_id, int)
    assert 0 < ring_id < 1 << 63
    assert ring_id - w.channel().nonce == 1
    assert isinstance(payload, ContentBody)
    assert payload.value == b"hello"


def test_publishes_to_exchanges() -> None:
    w = Wire()
    w.publish(b"behind", method=Target(exchange("behind")).method + shorted(b"key"))
    w.publish(b"passed", method=PUBLISH + shorted(b"passed") + shorted(b"a.b"))
    found = [(one.channel, one.exchange, one.key, one.bits) for one in published(w.sent())]
    assert found == [(1, b"behind", b"key", 1), (2, b"passed", b"a.b", 1)]


@pytest.mark.parametrize("size", [0, 1, 4096 - 9, 4096 - 8, 4096 - 7, 2 * (4096 - 8), 3 * 4096])
def test_bodies_fit_the_frames(size: int) -> None:
    w = Wire(frame_max=4096)
    data = Random(size).randbytes(size)
    w.publish(data=data)
    sent = w.sent()
    assert published(sent)[0].body == data
    bodies = [len(one.payload) for one in split(sent) if one.kind == 3]
    assert bodies == [4088] * (size // 4088) + [size % 4088] * bool(size % 4088)


def test_a_broker_that_knows_no_limit_gets_a_body_in_one_frame() -> None:
    w = Wire(frame_max=0)
    w.publish(data=b"x" * 300_000)
    assert [len(one.payload) for one in split(w.sent()) if one.kind == 3] == [300_000]


def test_every_ring_id_is_another_one() -> None:
    first, second = Wire(), Wire()
    for to in (b"", b"e"):
        for w in (first, second):
            w.publishes(3, to)
    ids = [*first.ids(), *second.ids()]
    assert len(set(ids)) == 12
    assert all(0 < ring_id < 1 << 63 for ring_id in ids)


def test_headers_that_fit_no_frame_are_the_senders_mistake() -> None:
    w = Wire(frame_max=4096)
    fixed = len(PERSISTENT_HEADER.payload(0, STAMP_ID_FIELD + bytes(8))) + len(b"\x01aS\0\0\0\0")
    exact = Header.of(dict([encoded("headers", {"a": "x" * (4088 - fixed)}), encoded("delivery_mode", 2)]))
    more = Header.of(dict([encoded("headers", {"a": "x" * (4089 - fixed)}), encoded("delivery_mode", 2)]))
    with pytest.raises(ValueError, match="4089 bytes, and the broker accepts 4088"):
        w.publish(header=more)
    assert (w.client.in_flight, w.counters.published, published(w.sent())) == (0, 0, [])
    # It has no number; and its channel serves on.
    w.publish(header=exact)
    assert len(split(w.sent())[-1].payload) == 4088
    assert w.fed(ack(1, 1)) == {0: Outcome.CONFIRMED}


# Channels.


def test_one_channel_an_exchange() -> None:
    w = Wire()
    for to in (b"", b"a", b"b", b"a", b""):
        w.publish(to)
    assert [one.channel for one in published(w.sent())] == [1, 2, 3, 2, 1]


def opened_and_closed(frames: Iterable[Frame]) -> list[tuple[tuple[int, int], int]]:
    return [(one.id, one.channel) for one in frames if one.kind == 1 and one.id in (OPEN, CLOSE)]


def test_channels_stay_within_what_is_agreed() -> None:
    w = Wire(channel_max=8)
    for n in range(6):
        w.publish(b"%d" % n)
    w.sent()
    w.fed(*(ack(n, 1) for n in range(1, 4)))
    # From three quarters on an idle one is closed for each that is opened, the first first.
    w.publish(b"6")
    w.publish(b"7")
    assert opened_and_closed(split(w.sent())) == [(CLOSE, 1), (OPEN, 7), (CLOSE, 2), (OPEN, 8)]
    with pytest.raises(Full, match="all 8 channels"):
        w.publish(b"8")
    # But the third is being closed now, and once the broker has said so, it and the others are free.
    assert opened_and_closed(split(w.sent())) == [(CLOSE, 3)]
    w.fed(method(3, *CLOSE_OK), method(1, *CLOSE_OK))
    w.publish(b"8")
    w.publish(b"9")
    assert opened_and_closed(split(w.sent())) == [(OPEN, 1), (OPEN, 3)]
    with pytest.raises(Full):
        w.publish(b"10")
    w.publish(b"9")


def test_both_sides_may_close_a_channel_at_once() -> None:
    w = Wire(channel_max=1)
    w.publish(b"a")
    w.client.give_up(w.channel(b"a"), 1, "too late")
    with pytest.raises(Full):
        w.publish(b"b")
    w.sent()
    w.fed(close_channel(1, 404, b"gone"))
    w.publish(b"b")
    assert [one.id for one in split(w.sent())[:2]] == [CLOSE_OK, OPEN]
    # The answer to our own close is for the channel that was.
    assert w.fed(method(1, *CLOSE_OK), ack(1, 1)) == {0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED}


def test_the_channel_to_the_queues_is_the_last_to_be_closed() -> None:
    w = Wire(channel_max=4)
    w.publish()
    w.publish(b"a")
    w.fed(ack(1, 1), ack(2, 1))
    w.publish(b"b")
    w.sent()
    w.publish(b"c")
    assert opened_and_closed(split(w.sent())) == [(CLOSE, 2), (OPEN, 4)]


def test_a_broker_with_one_channel_only() -> None:
    w = Wire(channel_max=1)
    w.publish(b"a")
    with pytest.raises(Full):
        w.publish(b"b")
    w.fed(ack(1, 1))
    with pytest.raises(Full):
        w.publish(b"b")
    w.fed(method(1, *CLOSE_OK))
    w.publish(b"b")
    assert w.fed(ack(1, 1)) == {0: Outcome.CONFIRMED, 1: Outcome.CONFIRMED}


def test_a_channel_anew_begins_anew() -> None:
    w = Wire()
    w.publishes(3)
    before = w.channel()
    w.fed(close_channel(1, 404, b"gone"))
    w.sent()
    w.publish()
    assert w.channel() is not before
    assert opened_and_closed(split(w.sent())) == [(OPEN, 1)]
    assert w.fed(ack(1, 1))[3] is Outcome.CONFIRMED


# The broker's answers.


@pytest.mark.parametrize(
    ("answers", "left", "low"),
    [
        ([ack(1, 1), ack(1, 2), ack(1, 3)], 0, 3),
        ([ack(1, 3), ack(1, 1), ack(1, 2)], 0, 3),
        ([ack(1, 3, multiple=True)], 0, 3),
        ([ack(1, 2), ack(1, 3, multiple=True), ack(1, 1)], 0, 3),
        ([ack(1, 2, multiple=True), ack(1, 1), ack(1, 2, multiple=True)], 1, 2),
        ([ack(1, 2), ack(1, 2), ack(1, 2)], 2, 0),
        ([ack(1, 0), ack(1, 0, multiple=True), ack(9, 5), ack(0, 1)], 3, 0),
        ([HEARTBEAT, method(1, 20, 11, b"\0\0\0\0"), method(1, 85, 11)], 3, 0),
    ],
)
def test_confirms_in_any_order(answers: list[bytes], left: int, low: int) -> None:
    for chunking in chunkings(b"".join(answers)):
        w = Wire()
        w.publishes(3)
        for chunk in chunking:
            w.fed(chunk)
        assert (w.client.in_flight, w.counters.acked, w.channel().low) == (left, 3 - left, low)
        assert all(verdicts == [CONFIRMED] for verdicts in w.results.verdicts.values())


def test_nacks() -> None:
    w = Wire()
    w.publishes(4)
    outcomes = w.fed(nack(1, 2), ack(1, 1), nack(1, 4, multiple=True))
    assert outcomes == {0: Outcome.CONFIRMED, **dict.fromkeys((1, 2, 3), Outcome.NACKED)}
    assert w.results.of(3) is NACKED
    assert (w.counters.acked, w.counters.nacked, w.client.in_flight) == (1, 3, 0)


@pytest.mark.parametrize("answer", [ack, nack])
@pytest.mark.parametrize("multiple", [False, True])
def test_an_answer_to_what_was_never_sent_ends_the_connection(answer: Callable[..., bytes], multiple: bool) -> None:
    w = Wire()
    w.publishes(2)
    with pytest.raises(Fault, match="the broker confirmed 3, the last publish was 2"):
        w.fed(answer(1, 3, multiple))
    assert w.results.verdicts == {}


@pytest.mark.parametrize("size", [0, 1, 4088, 9000])
def test_what_comes_back_is_unroutable_once_it_is_acked(size: int) -> None:
    w = Wire(frame_max=4096)
    w.publishes(3)
    ids = w.ids()
    bodies = [b"x" * min(4088, size - at) for at in range(0, size, 4088)]
    back = come_back(1, ids[1]).replace(pack(">Q", 0), pack(">Q", size), 1) + b"".join(body(1, b) for b in bodies)
    for chunking in chunks(back, range(0, len(back), 50)), [back]:
        for chunk in chunking:
            assert w.fed(chunk) == {}
    assert w.client.in_flight == 3
    outcomes = w.fed(ack(1, 3, multiple=True))
    assert outcomes == {0: Outcome.CONFIRMED, 1: Outcome.UNROUTABLE, 2: Outcome.CONFIRMED}
    assert w.results.of(1) is UNROUTABLE
    assert (w.counters.acked, w.counters.unroutable) == (2, 0)


def test_returns_of_two_channels_may_cross() -> None:
    w = Wire()
    w.publish(b"a")
    w.publish(b"b")
    first, second = w.ids()
    (a, a_head), (b, b_head) = split(come_back(1, first)), split(come_back(2, second))
    w.fed(a.whole, b.whole, a_head.whole, b_head.whole, ack(1, 1), ack(2, 1))
    assert w.results.outcomes == {0: Outcome.UNROUTABLE, 1: Outcome.UNROUTABLE}


def test_the_stamp_is_found_by_name_wherever_it_stands() -> None:
    w = Wire()
    w.publish()
    (ring_id,) = w.ids()
    entries = entry(b"a", b"S", pack(">I", 1) + b"x") + entry(b"x-ring-id", b"l", pack(">q", ring_id))
    flags, properties = 1 << 15 | 1 << 14 | 1 << 13, short("text/plain") + short("gzip")
    head = frame(2, 1, pack(">HHQH", 60, 0, 0, flags) + properties + pack(">I", len(entries)) + entries)
    assert w.fed(returned(1, b"", b"q"), head, ack(1, 1)) == {0: Outcome.UNROUTABLE}


@pytest.mark.parametrize(
    "head",
    [
        headers(1, 0, b""),
        headers(1, 0, entry(b"x-ring-id", b"S", pack(">I", 8) + bytes(8))),
        headers(1, 0, entry(b"x-ring-id", b"l", pack(">q", 5))),
        headers(1, 0, entry(b"x-ring-id", b"l", pack(">Q", 1 << 63))),
        frame(2, 1, pack(">HHQH", 60, 0, 0, 0)),
        frame(2, 1, b"\0"),
    ],
)
def test_a_return_of_nobody_knows_what_ends_the_connection(head: bytes) -> None:
    """Rather than that the ack behind it makes it a confirm."""
    w = Wire()
    w.publish()
    with pytest.raises(Fault):
        w.fed(returned(1, b"", b"q"), head)
    assert w.results.verdicts == {}


def test_returns_on_a_channel_that_is_being_closed_are_of_no_interest() -> None:
    w = Wire(channel_max=1)
    w.publish(b"a")
    (ring_id,) = w.ids()
    w.client.give_up(w.channel(b"a"), 1, "too late")
    with pytest.raises(Full):
        w.publish(b"b")
    w.fed(come_back(1, ring_id), ack(1, 1), close_channel(1, 404, b"x"))
    assert w.results.outcomes == {0: Outcome.UNKNOWN}


# Channels that the broker closes.


@pytest.mark.parametrize("code", [403, 404, 406])
def test_the_one_in_flight_is_to_blame(code: int) -> None:
    w = Wire()
    w.publishes(2)
    w.fed(ack(1, 1))
    w.sent()
    w.fed(close_channel(1, code, b"why"))
    verdict = w.results.of(1)
    assert (verdict.outcome, verdict.code) == (Outcome.INVALID, code)
    assert "why" in verdict.detail
    assert split(w.sent())[0].id == CLOSE_OK
    assert w.client.in_flight == 0


@pytest.mark.parametrize(
    ("code", "at"), [(541, (60, 40)), (504, (60, 40)), (404, (85, 10)), (406, (0, 0))], ids=str
)  # fmt: skip
def test_what_the_broker_does_not_put_down_to_a_publish_is_unknown(code: int, at: tuple[int, int]) -> None:
    w = Wire()
    w.publish()
    w.fed(close_channel(1, code, b"why", at))
    assert w.results.of(0).outcome is Outcome.UNKNOWN
    assert "the channel was lost before the confirm: why" in w.results.of(0).detail


def test_of_several_in_flight_nobody_knows_which_is_to_blame() -> None:
    w = Wire()
    w.publishes(3)
    w.publish(b"other")
    assert w.fed(ack(1, 2), close_channel(1, 404, b"why")) == {
        0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED, 2: Outcome.UNKNOWN,
    }  # fmt: skip
    assert (w.client.in_flight, w.counters.unknown, w.results.of(0).code) == (1, 2, 404)


def test_what_came_back_before_the_close_came_back() -> None:
    w = Wire()
    w.publishes(2)
    first, _ = w.ids()
    w.fed(come_back(1, first), close_channel(1, 404, b"why"))
    assert w.results.outcomes == {0: Outcome.UNROUTABLE, 1: Outcome.UNKNOWN}


def test_one_alone_beside_what_was_given_up_is_not_blamed() -> None:
    w = Wire()
    w.publish()
    w.give_up("too late")
    w.publish()
    w.fed(close_channel(1, 406, b"the first was too large"))
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}


def test_one_alone_behind_an_answered_one_is_to_blame_whatever_was_given_up_before() -> None:
    w = Wire()
    w.publish()
    w.give_up("too late")
    w.publishes(2)
    w.fed(ack(1, 2), close_channel(1, 406, b"too large"))
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED, 2: Outcome.INVALID}


def test_one_alone_before_an_answered_one_was_taken() -> None:
    w = Wire()
    w.publishes(2)
    w.fed(ack(1, 2), close_channel(1, 404, b"why"))
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED}


def test_the_brokers_largest_message_is_learned() -> None:
    w = Wire()
    w.publish(data=b"x" * 1000)
    text = b"PRECONDITION_FAILED - message size 1000 is larger than configured max size 999"
    w.fed(close_channel(1, 406, text))
    assert (w.client.most_body, w.results.of(0).outcome) == (999, Outcome.INVALID)


def test_a_missing_permission_is_named_and_told_once() -> None:
    w = Wire()
    for _ in range(2):
        w.publish()
        w.publish(b"e")
        w.fed(close_channel(1, 403, b"ACCESS_REFUSED - a"), close_channel(2, 403, b"ACCESS_REFUSED - b"))
    assert "write permission on amq.default: publishes go straight to the queues" in w.results.of(0).detail
    assert "write permission on exchange 'e' (ACCESS_REFUSED - b)" in w.results.of(1).detail
    assert len(w.client.news) == len(w.client.refused) == 2
    # Until a publish there is confirmed again.
    w.publish(b"e")
    assert len(w.client.refused) == 2
    w.fed(ack(1, 1))
    assert w.client.refused == [w.results.of(0).detail]


def test_a_missing_permission_on_lanes_is_one_line_with_the_pattern_of_all() -> None:
    w = Wire()
    for number in range(1, 9):
        lane = b"or.ders.lane.%d" % number
        w.publish(lane)
        w.fed(close_channel(1, 403, b"ACCESS_REFUSED - write access to exchange '%s' refused" % lane))
    told = "the broker's user needs write permission on the lanes of an exchange, ^or\\.ders(\\.lane\\..*)?$"
    assert w.client.news == w.client.refused == [told]


def test_missing_rights_name_the_user_until_a_publish_there_is_confirmed() -> None:
    w = Wire()
    for name in (b"", b"e", b"o.lane.1", b"o.lane.2"):
        w.publish(name)
        where = name or b"amq.default"
        text = b"ACCESS_REFUSED - write access to exchange '%s' in vhost 'v' refused for user 'u'" % where
        w.fed(close_channel(1, 403, text))
    default, own, lanes = w.client.lacking
    assert [right.wanted for right in (default, own, lanes)] == [r"^amq\.default$", "^e$", r"^o(\.lane\..*)?$"]
    assert {(right.vhost, right.user, right.right) for right in (default, own, lanes)} == {("v", "u", "write")}
    w.publish(b"e")
    w.fed(ack(1, 1))
    assert w.client.lacking == [default, lanes]


def test_an_internal_exchange_is_no_missing_permission() -> None:
    w = Wire()
    w.publish(b"i")
    w.fed(close_channel(1, 403, b"ACCESS_REFUSED - cannot publish to internal exchange 'i'"))
    assert (w.client.news, w.client.refused) == ([], [])
    assert w.results.of(0).outcome is Outcome.INVALID


def test_a_close_of_a_channel_that_is_not_there_is_answered() -> None:
    w = Wire()
    w.fed(close_channel(5, 404, b"why"))
    assert [(one.id, one.channel) for one in split(w.sent())] == [(CLOSE_OK, 5)]


def test_a_close_that_cannot_be_read_leaves_no_publish_untold() -> None:
    w = Wire()
    w.publish()
    with pytest.raises(Fault):
        w.client.feed(frame(1, 1, b"\0\x14\0\x28\x01\x96\0"))
    w.client.lost("the broker is not to be understood")
    assert w.results.of(0).outcome is Outcome.UNKNOWN
    assert w.client.in_flight == 0


def test_a_frame_that_is_too_long_is_so_in_any_chunking() -> None:
    sent = frame(3, 1, bytes(0x2000))
    for chunking in [sent], [sent[:100], sent[100:]]:
        w = Wire(frame_max=4096)
        with pytest.raises(Fault, match="agreed frame_max of 4096"):
            list(map(w.client.feed, chunking))


# Without an answer.


def test_giving_up() -> None:
    w = Wire()
    w.publishes(2)
    marks = w.client.marks()
    w.publish()
    w.publish(b"e")
    w.fed(ack(1, 1))
    for channel, number in marks:
        w.client.give_up(channel, number, "too late")
    assert w.results.outcomes == {0: Outcome.CONFIRMED, 1: Outcome.UNKNOWN}
    assert (w.results.of(1).detail, w.client.in_flight, w.counters.unknown) == ("too late", 2, 1)
    # An answer that still comes is for nobody.
    assert w.fed(ack(1, 3, multiple=True), nack(1, 2)) == {
        0: Outcome.CONFIRMED, 1: Outcome.UNKNOWN, 2: Outcome.CONFIRMED,
    }  # fmt: skip
    assert [channel.exchange for channel, _ in w.client.marks()] == [b"e"]


def test_a_lost_connection() -> None:
    w = Wire()
    w.publishes(2)
    w.publish(b"e")
    w.fed(ack(1, 2))
    w.client.lost("gone")
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.CONFIRMED, 2: Outcome.UNKNOWN}
    assert (w.client.stage, w.client.in_flight, w.client.out) == (Stage.CLOSED, 0, [])
    w.client.lost("again")
    assert len(w.results.outcomes) == 3


def test_who_is_told_may_publish_and_give_up_at_once() -> None:
    w = Wire()
    w.publishes(3)
    again: Iterator[Callable[[], object]] = iter([w.publish, lambda: w.give_up("now")])
    w.results.then = lambda: next(again, bool)()
    w.fed(ack(1, 3, multiple=True))
    assert {index: len(verdicts) for index, verdicts in w.results.verdicts.items()} == dict.fromkeys(range(4), 1)
    assert w.client.in_flight == 0
    w.publish()
    assert w.client.in_flight == 1
    assert w.fed(ack(1, 5))[4] is Outcome.CONFIRMED


# Publishes that wait to be packed


def sent_to(w: Wire) -> list[tuple[str, bytes]]:
    """Queue and body of each publish that went out, in turn."""
    return [(one.key.decode(), one.body) for one in published(w.sent())]


def test_what_one_queue_gets_goes_out_in_a_row_and_in_its_order() -> None:
    w = Wire()
    numbers = [w.publish(method=queue_named(name), data=b"%d" % n) for n, name in enumerate("abcabbca")]
    assert sent_to(w) == [(name, b"%d" % n) for name, n in zip("aaabbbcc", (0, 3, 7, 1, 4, 5, 2, 6), strict=True)]
    # Each is told of by its own number, whichever place it took.
    assert w.fed(ack(1, 2), nack(1, 4), come_back(1, w.channel().nonce + 8), ack(1, 8)) == {
        numbers[3]: Outcome.CONFIRMED,
        numbers[1]: Outcome.NACKED,
        numbers[6]: Outcome.UNROUTABLE,
    }


def test_what_goes_to_an_exchange_stays_in_its_order() -> None:
    w = Wire()
    for n, key in enumerate((b"a", b"b", b"a")):
        w.publish(b"e", b"%d" % n, PUBLISH + shorted(b"e") + shorted(key))
    assert sent_to(w) == [("a", b"0"), ("b", b"1"), ("a", b"2")]


def test_bodies_of_many_frames_stay_with_their_messages() -> None:
    w = Wire(frame_max=4096)
    for n, name in enumerate("aba"):
        w.publish(method=queue_named(name), data=b"%d" % n * 20_000)
    assert sent_to(w) == [("a", b"0" * 20_000), ("a", b"2" * 20_000), ("b", b"1" * 20_000)]


@pytest.mark.parametrize("end", ["lost", "close", "close_channel", "close_connection", "give_up"])
def test_an_end_tells_also_of_what_was_not_packed(end: str) -> None:
    w = Wire()
    w.publish()
    w.client.pack()
    w.publish()
    if end == "lost":
        w.client.lost("gone")
    elif end == "close":
        w.client.close()
        assert split(w.sent())[-1].payload.startswith(pack(">HH", 10, 50))
        w.client.lost("gone")
    elif end == "close_channel":
        w.client.feed(close_channel(1, 404, b"why"))
    elif end == "close_connection":
        w.client.feed(close_connection(320, b"why"))
        assert w.sent() == CONNECTION_CLOSE_OK
        w.client.lost("gone")
    else:
        w.give_up("too late")
    assert w.results.outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
    assert w.client.in_flight == 0


def test_a_channel_with_publishes_that_wait_is_not_idle() -> None:
    w = Wire(channel_max=4)
    w.publish()
    for to in (b"a", b"b", b"c"):
        w.publish(to)
    assert b"" in w.client.channels
    assert len(published(w.sent())) == 4


# Whatever the broker sends.


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        PROTOCOL_HEADER,
        frame(1, 1, b""),
        frame(1, 1, b"\0\x3c\0"),
        frame(1, 1, pack(">HH", 60, 80)),
        frame(1, 1, pack(">HHQ", 60, 80, 1)),
        frame(1, 1, pack(">HHQ", 60, 120, 1)),
        frame(1, 0, pack(">HHH", 10, 50, 320)),
        frame(1, 0, pack(">HHHB", 10, 50, 320, 9)),
        frame(1, 0, pack(">HHB", 10, 60, 9)),
        frame(1, 1, pack(">HH", 20, 40)),
        frame(1, 1, pack(">HH", 20, 40) + pack(">H", 404) + short("x")),
        ack(1, 1)[:-1] + b"\0",
        pack(">BHIB", 3, 1, 131073, 0),
    ],
)
@pytest.mark.parametrize("behind", [b"", ack(1, 1) * 3], ids=["alone", "with more"])
def test_what_is_not_amqp_is_a_fault(data: bytes, behind: bytes) -> None:
    w = Wire()
    w.publish()
    with pytest.raises(Fault):
        w.fed(data, behind)
    assert w.results.verdicts == {}


GOOD = [
    *(start({"cluster_name": "a"}), tune(), OPEN_OK, blocked("why"), close_connection(320, b"bye")),
    *(ack(1, 1), nack(1, 2, multiple=True), close_channel(1, 404, b"x"), method(1, *CLOSE_OK), HEARTBEAT),
    *(come_back(1, 1, 5), headers(1, 0, entry(b"x-ring-id", b"l", bytes(8))), returned(1, b"", b"")),
]


@given(st.lists(st.sampled_from(GOOD), max_size=4).map(b"".join), st.data())
@examples(400)
def test_garbage_is_a_fault_and_nothing_else(good: bytes, data: st.DataObject) -> None:
    w = Wire()
    w.publishes(3)
    garbled = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, max(0, len(good) - 1)), max_size=4)):
        garbled[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        for chunk in chunks(bytes(garbled), data.draw(st.lists(st.integers(0, len(garbled)), max_size=3))):
            w.client.feed(chunk)
    except Fault:
        pass
    w.client.lost("gone")
    assert set(w.results.outcomes) == {0, 1, 2}
    assert w.client.in_flight == 0


@given(st.binary(max_size=60))
def test_bytes_at_random(data: bytes) -> None:
    w = Wire()
    w.publish()
    try:
        w.client.feed(data)
        w.client.feed(frame(1, 1, data))
        w.client.feed(frame(1, 0, data))
    except Fault:
        pass
    assert w.results.verdicts.get(0, [None]) != [CONFIRMED] or b"\0\x3c\0\x50" in data


# Cost.


class Counting(dict[int, Any]):
    """Counts how often it is asked."""

    asked = 0

    def pop(self, *arguments: Any) -> Any:
        self.asked += 1
        return super().pop(*arguments)

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def orders(n: int) -> dict[str, list[bytes]]:
    numbers = list(range(1, n + 1))
    shuffled = Random(1).sample(numbers, n)
    return {
        "in order": [ack(1, number) for number in numbers],
        "backwards": [ack(1, number) for number in reversed(numbers)],
        "at random": [ack(1, number) for number in shuffled],
        "the first last": [ack(1, number) for number in (*numbers[1:], 1)],
        "multiple": [ack(1, number, multiple=True) for number in numbers],
        "both": [ack(1, number, multiple=number % 7 == 0) for number in shuffled],
    }


@pytest.mark.parametrize("order", orders(1))
def test_acks_cost_the_same_in_any_order_and_number(order: str) -> None:
    n = 20_000
    w = Wire()
    w.publishes(n)
    w.sent()
    w.channel().pending = counting = Counting(w.channel().pending)
    w.fed(*orders(n)[order])
    assert (w.counters.acked, w.client.in_flight) == (n, 0)
    assert counting.asked <= 3 * n
