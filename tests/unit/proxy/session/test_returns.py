"""Returned messages: the client gets its own in its own words, or nothing of them."""

from collections.abc import Callable, Mapping
from struct import pack
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.session import broker_loop
from proxy.session.events import Declared, Stale
from proxy.topology.table import Entry, KnownRing, PassReason
from tests.properties import examples
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import (
    NONCE,
    QUEUES,
    Frame,
    Published,
    Wire,
    ack,
    back,
    body,
    chunks,
    confirm_select,
    entry,
    exchange,
    fed,
    header,
    headers,
    known,
    long_string,
    made,
    message,
    nack,
    publish,
    published,
    queue,
    returned,
    ring,
    split,
)

OWNER = QUEUES.ring.owner_of(b"k").name.encode()
COPIES = entry(b"CC", b"A", pack(">I", 6) + b"S" + pack(">I", 1) + b"z")


def entries_of(payload: bytes) -> list[bytes]:
    """The entries of a content header with no property but headers."""
    assert payload[12] & 1 << 5
    size = int.from_bytes(payload[14:18], "big")
    assert len(payload) == 18 + size
    found, at = [], 18
    while at < len(payload):
        name_stop = at + 1 + payload[at]
        kind = payload[name_stop : name_stop + 1]
        fixed = {b"l": 8, b"t": 1, b"V": 0, b"I": 4}.get(kind)
        stop = (
            name_stop
            + 1
            + (4 + int.from_bytes(payload[name_stop + 1 : name_stop + 5], "big") if fixed is None else fixed)
        )
        found.append(payload[at:stop])
        at = stop
    return found


def sorted_by_name(head: bytes) -> bytes:
    """As RabbitMQ 4.3 gives back a content header."""
    entries = sorted(entries_of(head), key=lambda each: each[1 : 1 + each[0]])
    return head[:18] + b"".join(entries)


def echo(sent: bytes, data: bytes = b"", change: Callable[[bytes], bytes] = lambda head: head) -> bytes:
    """The broker's return of one publish that reached it, its body in single frames of 3 bytes."""
    (one,) = published(sent + body(1, data)) if data else published(sent)
    head = Frame(2, 1, change(one.header)).whole
    return (
        returned(1, one.exchange, one.key) + head + b"".join(body(1, data[i : i + 3]) for i in range(0, len(data), 3))
    )


def sent(
    bits: int,
    head: bytes,
    key: bytes = b"k",
    *,
    confirming: bool = True,
    rings: Mapping[str, Entry | KnownRing] = MappingProxyType({"x": QUEUES}),
) -> tuple[Wire, bytes]:
    """A connection that has sent a publish to x up to its body, and what went out."""
    w = Wire(rings, confirming=confirming)
    return w, w.client(publish(1, b"x", key, bits) + head)


ALL = wire.short("t/p") + wire.short("gz") + b"\x02" + wire.short("c")
HEADS = {
    "no properties": header(1, 10),
    "all before and after": header(1, 10, 3 << 14 | 1 << 12 | 1 << 2, ALL),
    "continuations": header(1, 10, 1 << 12 | 1, b"\0\x01\0\0" + b"\x02"),
    "an empty table": headers(1, 10, b""),
    "a table": headers(1, 10, long_string(b"a", b"1") + entry(b"b", b"t", b"\x01")),
    "names and values of any bytes": headers(1, 10, long_string(b"\xff\xfe", b"\xff" * 9) + entry(b"", b"V", b"")),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("confirming", [False, True])
@pytest.mark.parametrize("bits", [1, 3])
def test_a_return_that_the_client_asked_for_is_as_it_was_published(head: bytes, confirming: bool, bits: int) -> None:
    data = b"0123456789"
    _, out = sent(bits, head, confirming=confirming)
    back = echo(out, data)

    def make() -> Wire:
        return sent(bits, head, confirming=confirming)[0]

    for trailing in (b"", ack(2, 1)):
        out_ = fed(make, back + trailing, broker_loop.from_broker)
        told = split(out_.to_client)
        assert told[0].whole == returned(1, b"x", b"k")
        assert told[1].whole == head
        assert b"".join(each.payload for each in told[2:6]) == data
        assert b"".join(each.whole for each in told[6:]) == trailing
        assert out_.wire.c.events == [Stale(("/", "x"), queue(OWNER.decode()))]


def test_keys_of_any_bytes_come_back() -> None:
    for key in (b"", b"\0\xff" * 127, bytes(range(255))):
        w, out = sent(1, header(1, 0), key)
        assert w.broker(echo(out)) == returned(1, b"x", key) + header(1, 0)


TABLES = {
    "copies": COPIES + long_string(b"a", b"1"),
    "copies only": COPIES,
    "both kinds of copies": long_string(b"z", b"1") + COPIES + entry(b"BCC", b"A", pack(">I", 0)),
    "stamps of another": long_string(b"x-ring-exchange", b"old") + entry(b"x-ring-id", b"l", b"\0" * 7 + b"\x09"),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("change", [lambda head: head, sorted_by_name], ids=["as sent", "sorted"])
def test_what_was_cut_from_the_headers_is_put_back(table: bytes, change: Callable[[bytes], bytes]) -> None:
    head = headers(1, 0, table)
    w, out = sent(1, head)
    assert b"old" not in out
    assert b"CC" not in out
    method, back = split(w.broker(echo(out, change=change)))
    assert method.whole == returned(1, b"x", b"k")
    assert sorted(entries_of(back.payload)) == sorted(entries_of(split(head)[0].payload))
    assert w.c.channels[1].confirms.notes == {}


def test_each_return_gets_its_own_back() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    tables = [COPIES + long_string(b"n", b"%d" % i) for i in range(3)]
    outs = [w.client(publish(1, b"x", b"k%d" % i, 1) + headers(1, 0, table)) for i, table in enumerate(tables)]
    w.broker(ack(1, 2))
    for i in (2, 0):
        method, back = split(w.broker(echo(outs[i])))
        assert method.whole == returned(1, b"x", b"k%d" % i)
        assert set(entries_of(back.payload)) == {COPIES, long_string(b"n", b"%d" % i)}


def test_a_return_of_an_unstamped_publish_is_restored_all_the_same() -> None:
    """The oldest that went out unstamped to the same place."""
    w = Wire({"x": QUEUES, "y": QUEUES}, confirming=True, frame_max=4096)
    filling = long_string(b"f", bytes(4040))
    heads = [headers(1, 0, filling), headers(1, 0, COPIES + filling[:-40][:3] + pack(">I", 4000) + bytes(4000))]
    outs = [
        w.client(publish(1, b"x", b"k", 1) + heads[0]),
        w.client(publish(1, b"y", b"k", 1) + heads[1]),
        w.client(publish(1, b"x", b"k", 1) + header(1, 0)),
    ]
    assert b"x-ring" not in outs[0] + outs[1]
    assert b"x-ring" in outs[2]
    assert w.broker(echo(outs[2])) == returned(1, b"x", b"k") + header(1, 0)
    assert w.broker(echo(outs[0])) == returned(1, b"x", b"k") + heads[0]
    method, back = split(w.broker(echo(outs[1])))
    assert method.whole == returned(1, b"y", b"k")
    assert sorted(entries_of(back.payload)) == sorted(entries_of(split(heads[1])[0].payload))


def test_a_client_sees_a_return_that_may_be_of_its_own_publish_to_the_queue() -> None:
    """Unstamped both, and to the same queue: by the exchange, and straight, with mandatory."""
    w = Wire({"x": QUEUES}, confirming=True, frame_max=4096)
    head = headers(1, 0, long_string(b"f", bytes(4040)))
    w.client(publish(1, b"x", b"k") + head)
    straight = w.client(publish(1, b"", OWNER, 1) + head)
    assert w.broker(echo(straight)).endswith(head)
    assert w.broker(ack(1, 2, True)) == nack(1, 1) + ack(1, 2, True)


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_return_unasked_is_swallowed_and_its_ack_is_a_nack(size: int) -> None:
    def make() -> Wire:
        return sent(0, header(1, size))[0]

    data = bytes(range(size))
    back = echo(sent(0, header(1, size))[1], data)
    for trailing in (b"", ack(2, 7)):
        out = fed(make, back + ack(1, 1) + trailing, broker_loop.from_broker)
        assert out.to_client == nack(1, 1) + trailing
        assert out.wire.c.events == [Stale(("/", "x"), queue(OWNER.decode()))]
        assert (out.wire.counters("x").unroutable, out.wire.counters("x").acked) == (1, 0)


def test_a_multiple_ack_over_what_is_lost_is_split() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    outs = [w.client(publish(1, b"x", b"k%d" % i, i == 5) + header(1, 0)) for i in range(6)]
    for i in (1, 3, 5):
        w.broker(echo(outs[i]))
    expected = ack(1, 1, True) + nack(1, 2) + ack(1, 3, True) + nack(1, 4) + ack(1, 6, True)
    assert w.broker(ack(1, 6, True) + ack(2, 9, True)) == expected + ack(2, 9, True)
    assert (w.counters("x").acked, w.counters("x").unroutable) == (3, 3)
    assert w.c.channels[1].confirms.returned == {}


def test_tags_count_from_confirm_select() -> None:
    w = Wire({"x": QUEUES})
    early = w.client(publish(1, b"x", b"k") + header(1, 0))
    w.client(confirm_select(1))
    outs = [w.client(publish(1, b"x", b"k%d" % i) + header(1, 0)) for i in range(3)]
    assert w.broker(echo(outs[1])) == b""
    assert w.broker(echo(early)) == b""
    assert w.broker(ack(1, 3, True)) == ack(1, 1, True) + nack(1, 2) + ack(1, 3, True)
    counters = w.counters("x")
    assert (counters.published, counters.sent, counters.acked) == (4, 1, 2)


def test_a_nack_over_what_is_lost_passes() -> None:
    """LavinMQ answers a mandatory publish to a full queue with a return and a nack."""
    w, out = sent(0, header(1, 0))
    assert w.broker(echo(out) + nack(1, 1)) == nack(1, 1)
    assert (w.counters("x").unroutable, w.counters("x").nacked) == (1, 0)


def test_from_an_exchange_of_the_ring_asked_for_comes_back() -> None:
    w, out = sent(1, headers(1, 0, COPIES), rings={"x": ring(exchange("y")), "y": known(None, PassReason.TYPE)})
    assert COPIES in out
    assert w.broker(echo(out)) == returned(1, b"x", b"k") + headers(1, 0, COPIES)


def test_without_confirms_a_lost_publish_is_swallowed_and_counted() -> None:
    w, out = sent(0, header(1, 0), confirming=False)
    assert w.broker(echo(out)) == b""
    assert w.counters("x").unroutable == 1
    assert w.c.channels[1].confirms.returned == {}


# Returns of messages that no ring routed


def passing() -> Wire:
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)}, confirming=True)
    w.client(message(1, b"x", b"k") + publish(1, b"t", b"k", 1) + header(1, 3) + body(1, b"abc"))
    return w


def foreign(ring_id: int) -> bytes:
    stamps = long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"k")
    return stamps + entry(b"x-ring-id", b"l", pack(">Q", ring_id))


NOT_OURS = {
    "no headers": header(1, 3),
    "headers": headers(1, 3, long_string(b"a", b"b")),
    "another's stamps": headers(1, 3, foreign(77)),
    "stamps of a negative id": headers(1, 3, foreign((1 << 64) - 1)),
    "of a number not published yet": headers(1, 3, foreign(wire.NONCE | 9)),
    "an id that is no number": headers(1, 3, foreign(0).replace(b"idl", b"idL")),
    "half of the stamps": headers(1, 3, entry(b"x-ring-id", b"l", pack(">Q", wire.NONCE | 1))),
    "a table that lies": headers(1, 3, b"\x01aS\0\0\0\x09b"),
    "a type that nobody knows": headers(1, 3, entry(b"a", b"?", b"")),
    "a table past its frame": header(1, 3, 1 << 13, pack(">I", 99)),
}


@pytest.mark.parametrize("head", NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_not_ours_comes_back_as_it_is(head: bytes) -> None:
    back = returned(1, b"t", b"k") + head + body(1, b"a") + body(1, b"bc") + ack(1, 2, True)
    out = fed(passing, back, broker_loop.from_broker)
    assert out.to_client == back
    assert out.wire.c.events == []
    assert out.wire.counters("t", PassReason.TYPE).unroutable == 0


def test_a_copy_that_the_client_forwards_on_the_same_channel_is_its_own() -> None:
    """It has the stamps of a publish that was confirmed before."""
    w, out = sent(0, header(1, 0))
    w.broker(ack(1, 1))
    stamped = split(out)[1].payload
    copy = Frame(2, 1, stamped).whole
    w.client(publish(1, b"", b"gone", 1) + copy)
    back = returned(1, b"", b"gone") + copy
    assert w.broker(back + ack(1, 2)) == back + ack(1, 2)
    assert w.c.events == []


def forwarding(original: Published, bits: int = 0) -> bytes:
    """A consumer's publish of what it has got, on channel 1, to where it came from."""
    return (
        publish(1, original.exchange, original.key, bits) + wire.frame(2, 1, original.header) + body(1, original.body)
    )


@pytest.mark.parametrize("confirming", [False, True])
@pytest.mark.parametrize("shadowed", [False, True])
@pytest.mark.parametrize("asked", [0, 1])
def test_a_copy_that_is_forwarded_before_its_original_is_confirmed_is_the_clients_own(
    confirming: bool, shadowed: bool, asked: int
) -> None:
    """Consumed, and published to the queue that it came from, with all its headers; that queue is gone by then."""
    behind = exchange("behind")
    rings: dict[str, Entry | KnownRing] = {"x": QUEUES}
    if shadowed:
        rings = {"x": ring(behind), "behind": known(QUEUES, PassReason.SHADOW)}

    (original,) = published(Wire(rings, confirming=confirming).client(message(1, b"x", b"k")))

    def consumed() -> Wire:
        w = Wire(rings, confirming=confirming)
        w.client(message(1, b"x", b"k"))
        return w

    out = fed(consumed, forwarding(original, asked))
    (copy,) = published(out.to_broker)
    assert copy._replace(header=b"") == original._replace(header=b"", bits=asked)
    w, comes_back = out.wire, back(out.to_broker)
    assert w.both(comes_back) == (b"", comes_back)
    assert w.c.channels[1].unsettled_returns == 0
    if confirming:
        assert w.broker(ack(1, 2, multiple=True)) == ack(1, 2, multiple=True)


def test_a_copy_of_another_channels_message_is_forwarded_as_it_is() -> None:
    w = Wire({"x": QUEUES})
    w.c.channels[2].nonce = NONCE ^ 1 << 60
    (original,) = published(w.client(message(2, b"x", b"k")))
    w.client(message(1, b"x", b"k"))
    forwarded = forwarding(original)
    assert w.client(forwarded) == forwarded


def test_a_stamped_copy_is_not_taken_for_an_unstamped_publish() -> None:
    w = Wire({"x": QUEUES}, confirming=True, frame_max=4096)
    big = w.client(publish(1, b"x", b"k", 1) + headers(1, 0, long_string(b"f", bytes(4040))))
    assert b"x-ring" not in big
    back = returned(1, b"", OWNER) + headers(1, 0, foreign(77))
    assert w.broker(back) == back
    assert len(w.c.channels[1].confirms.notes) == 1


def test_returns_of_two_channels_at_once() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    outs = {n: w.client(publish(n, b"x", b"k", n == 1) + header(n, 6)) for n in (1, 2)}
    heads = {n: split(outs[n])[1].whole for n in (1, 2)}
    parts = [
        returned(1, b"", OWNER),
        returned(2, b"", OWNER),
        heads[2],
        heads[1],
        body(2, b"abc"),
        body(1, b"ABC"),
        body(2, b"def"),
        body(1, b"DEF"),
        ack(2, 1),
        ack(1, 1),
    ]
    expected = returned(1, b"x", b"k") + header(1, 6) + body(1, b"ABC") + body(1, b"DEF") + nack(2, 1) + ack(1, 1)
    assert w.broker(b"".join(parts)) == expected


def test_on_a_channel_opened_again_a_late_return_is_not_ours() -> None:
    w, out = sent(1, header(1, 0))
    w.client(made(1, commands.Channel.Close(200, "", 0, 0)))
    w.broker(made(1, commands.Channel.CloseOk()))
    w.client(made(1, commands.Channel.Open()))
    w.c.channels[1].nonce ^= 1 << 40
    w.client(message(1, b"x", b"k"))
    back = echo(out)
    assert w.broker(back) == back


# Transactions.


def test_what_is_lost_in_a_transaction_is_known_at_its_commit_and_not_after_a_rollback() -> None:
    w = Wire({"x": QUEUES})
    w.client(made(1, commands.Tx.Select()))
    out = w.client(publish(1, b"x", b"k") + header(1, 0))
    w.client(made(1, commands.Tx.Rollback()))
    ok = made(1, commands.Tx.RollbackOk())
    assert w.broker(ok) == ok
    out = w.client(publish(1, b"x", b"k", 1) + header(1, 0))
    w.client(made(1, commands.Tx.Commit()))
    back = w.broker(echo(out))
    assert back == returned(1, b"x", b"k") + header(1, 0)
    ok = made(1, commands.Tx.CommitOk())
    assert w.broker(ok) == ok
    assert (w.counters("x").published, w.counters("x").unroutable) == (2, 1)
    assert not any(isinstance(event, Declared) for event in w.c.events)


@given(st.data())
@examples(150)
def test_in_any_chunking_and_any_mix_nothing_lost_is_acked(data: st.DataObject) -> None:
    """Random publishes, some returned, acked in random ways: each asked-for return is the client's own."""
    w = Wire({"x": QUEUES}, confirming=True)
    count = data.draw(st.integers(1, 8))
    asked = [data.draw(st.booleans()) for _ in range(count)]
    outs = [w.client(publish(1, b"x", b"%d" % i, asked[i]) + header(1, 2) + body(1, b"%02d" % i)) for i in range(count)]
    lost = data.draw(st.sets(st.integers(0, count - 1)))
    from_broker = b""
    acked = 0
    while acked < count:
        upto = data.draw(st.integers(acked + 1, count))
        for i in range(acked, upto):
            if i in lost:
                one = published(outs[i])[0]
                from_broker += returned(1, b"", one.key) + Frame(2, 1, one.header).whole + body(1, one.body)
        from_broker += ack(1, upto, True)
        acked = upto
    out = b""
    for chunk in chunks(from_broker, data.draw(wire.cuts(from_broker))):
        out += w.broker(chunk)
    told: dict[int, bool] = {}
    came: list[int] = []
    for each in split(out):
        if each.kind == 1 and each.id == (60, 50):
            came.append(int(wire.short_strings(each.payload, 6, 3)[0][2]))
        elif each.kind == 1:
            tag = int.from_bytes(each.payload[4:12], "big")
            for n in range(1, tag + 1) if each.payload[12] else (tag,):
                told.setdefault(n, each.id == (60, 80))
    assert sorted(came) == [i for i in sorted(lost) if asked[i]]
    assert told == {i + 1: i not in lost or asked[i] for i in range(count)}
    assert (w.counters("x").unroutable, w.counters("x").acked) == (len(lost), count - len(lost))
