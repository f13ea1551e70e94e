"""Declarations: nowait cleared, -oks swallowed, and what each -ok says has changed."""

from struct import pack
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from proxy.session import broker_loop
from proxy.session.events import Declared
from proxy.session.state import ChannelState
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.table import PassReason
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    Wire,
    as_it_is,
    chunks,
    close_channel,
    exchange,
    fed,
    known,
    made,
    message,
    method,
    queue,
    short,
    split,
)

NO_TABLE = pack(">I", 0)
TO_EXCHANGE, TO_QUEUE = (short(name) + short("x") + short("3") for name in "dq")


class Form(NamedTuple):
    """A declaring method and what it means."""

    ids: tuple[int, int]
    names: bytes
    bits: int
    """Others than nowait, all set that are harmless."""
    nowait: int
    table: bool
    ok: bytes
    declares: Declaration | None


TO_D, TO_Q = ("x", exchange("d"), "3"), ("x", queue("q"), "3")
QUEUE_DECLARE_OK = made(1, commands.Queue.DeclareOk("q", 0, 0))

FORMS = {
    "exchange.declare": Form(
        (40, 10), short("x") + short("topic"), 14, 16, True, method(1, 40, 11), ExchangeDeclared("x", "topic")
    ),
    "exchange.delete": Form((40, 20), short("x"), 1, 2, False, method(1, 40, 21), ExchangeDeleted("x")),
    "exchange.bind": Form((40, 30), TO_EXCHANGE, 0, 1, True, method(1, 40, 31), BindingAdded(*TO_D)),
    "exchange.unbind": Form((40, 40), TO_EXCHANGE, 0, 1, True, method(1, 40, 51), BindingRemoved(*TO_D)),
    "queue.declare": Form((50, 10), short("q"), 14, 16, True, QUEUE_DECLARE_OK, None),
    "queue.bind": Form((50, 20), TO_QUEUE, 0, 1, True, method(1, 50, 21), BindingAdded(*TO_Q)),
    "queue.unbind": Form((50, 50), TO_QUEUE, 0, 0, True, method(1, 50, 51), BindingRemoved(*TO_Q)),
    "queue.delete": Form((50, 40), short("q"), 3, 4, False, method(1, 50, 41, NO_TABLE), QueueDeleted("q")),
}
WITH_NOWAIT = {name: form for name, form in FORMS.items() if form.nowait}


def request(form: Form, bits: int, table: bytes = NO_TABLE, channel: int = 1) -> bytes:
    has_bits = form.ids != (50, 50)
    arguments = b"\0\0" + form.names + (bytes((bits,)) if has_bits else b"") + (table if form.table else b"")
    return method(channel, *form.ids, arguments)


def declared(w: Wire) -> list[Declaration]:
    """Return the declarations since the last call."""
    told = [event.declaration for event in w.c.events if isinstance(event, Declared)]
    assert len(told) == len(w.c.events)
    w.c.events.clear()
    return told


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_declaration_passes_and_its_ok_tells(form: Form) -> None:
    for trailing in (b"", HEARTBEAT):
        as_it_is(Wire, request(form, form.bits) + trailing)
    w = Wire()
    w.client(request(form, form.bits))
    assert declared(w) == []

    def sent() -> Wire:
        w = Wire()
        w.client(request(form, form.bits))
        return w

    for trailing in (b"", HEARTBEAT):
        out = fed(sent, form.ok + trailing, broker_loop.from_broker)
        assert out.to_client == form.ok + trailing
        assert declared(out.wire) == ([form.declares] if form.declares else [])
        assert not out.wire.c.channels[1].pending


@pytest.mark.parametrize("form", WITH_NOWAIT.values(), ids=WITH_NOWAIT)
def test_nowait_is_cleared_and_the_ok_swallowed(form: Form) -> None:
    def sent() -> Wire:
        w = Wire()
        w.client(request(form, form.bits | form.nowait))
        return w

    for trailing in (b"", HEARTBEAT):
        out = fed(Wire, request(form, form.bits | form.nowait) + trailing)
        assert out.to_broker == request(form, form.bits) + trailing
        out = fed(sent, form.ok + trailing, broker_loop.from_broker)
        assert out.to_client == trailing
        assert declared(out.wire) == ([form.declares] if form.declares else [])


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("name", ["exchange.declare", "queue.declare"])
def test_a_passive_declaration_changes_nothing(name: str, nowait: bool) -> None:
    form = FORMS[name]
    w = Wire()
    w.client(request(form, 1 | (form.nowait if nowait else 0)))
    assert w.c.channels[1].declaring == 0
    assert w.broker(form.ok) == (b"" if nowait else form.ok)
    assert declared(w) == []
    assert w.c.channels[1].last_queue == (b"q" if name == "queue.declare" else b"")


@pytest.mark.parametrize("name", ["exchange.bind", "exchange.unbind", "queue.bind", "queue.unbind"])
def test_a_binding_with_arguments_is_not_plain(name: str) -> None:
    form = FORMS[name]
    table = pack(">I", 6) + short("abc") + b"t\x01"
    w = Wire()
    data = request(form, form.nowait, table)
    assert table in w.client(data)
    w.broker(form.ok)
    (told,) = declared(w)
    assert isinstance(told, BindingAdded | BindingRemoved)
    assert isinstance(form.declares, BindingAdded | BindingRemoved)
    assert not told.plain
    assert (told.source, told.destination, told.key) == form_of(form.declares)


def form_of(said: BindingAdded | BindingRemoved) -> tuple[str, object, str]:
    return said.source, said.destination, said.key


def declare_queue(name: str = "") -> bytes:
    return method(1, 50, 10, b"\0\0" + short(name) + b"\0" + NO_TABLE)


def bind(name: bytes, key: bytes, bits: int = 0) -> bytes:
    return method(1, 50, 20, b"\0\0" + short(name) + short("x") + short(key) + bytes((bits,)) + NO_TABLE)


BIND_OK = method(1, 50, 21)


@pytest.mark.parametrize("pipelined", [False, True])
def test_an_empty_name_is_the_last_queue_declared(pipelined: bool) -> None:
    requests = [
        (declare_queue(), made(1, commands.Queue.DeclareOk("amq.gen-1", 0, 0))),
        (bind(b"", b"7"), BIND_OK),
        (bind(b"", b""), BIND_OK),
        (bind(b"other", b""), BIND_OK),
        (declare_queue("named"), made(1, commands.Queue.DeclareOk("named", 0, 0))),
        (bind(b"", b"8", 1), BIND_OK),
        (method(1, 50, 50, b"\0\0\0" + short("x") + short("8") + NO_TABLE), method(1, 50, 51)),
        (method(1, 50, 40, b"\0\0\0\0"), method(1, 50, 41, NO_TABLE)),
    ]
    w = Wire()
    if pipelined:
        w.client(b"".join(asked for asked, _ in requests))
        w.broker(b"".join(ok for _, ok in requests))
    else:
        for asked, ok in requests:
            w.client(asked)
            w.broker(ok)
    assert declared(w) == [
        BindingAdded("x", queue("amq.gen-1"), "7"),
        BindingAdded("x", queue("amq.gen-1"), "amq.gen-1"),
        BindingAdded("x", queue("other"), ""),
        BindingAdded("x", queue("named"), "8"),
        BindingRemoved("x", queue("named"), "8"),
        QueueDeleted("named"),
    ]


NAMES = {
    "orders\n": "orders",
    "\norders": "orders",
    "or\rd\r\ners": "orders",
    "orders": "orders",
    "orders\t": "orders\t",
    "orders ": "orders ",
    "orders\v\f\x85\u2028": "orders\v\f\x85\u2028",
    "\r\n": "",
}
"""By name as a client may give it: the name that RabbitMQ keeps."""

KEPT = {
    "exchange.declare": lambda name: ExchangeDeclared(name, "x-consistent-hash"),
    "exchange.delete": ExchangeDeleted,
    "exchange.bind": lambda name: BindingAdded(name, exchange(name), "1\n"),
    "exchange.unbind": lambda name: BindingRemoved(name, exchange(name), "1\n"),
    "queue.bind": lambda name: BindingAdded(name, queue(name), "1\n"),
    "queue.unbind": lambda name: BindingRemoved(name, queue(name), "1\n"),
    "queue.delete": QueueDeleted,
}
"""By method: what it declares if every name in it is the given one; the binding key is kept as it is."""


def names_in(what: str, name: str) -> bytes:
    if what == "exchange.declare":
        return short(name) + short("x-consistent-hash")
    return short(name) + short(name) + short("1\n") if "bind" in what else short(name)


@pytest.mark.parametrize("what", KEPT)
def test_names_are_those_that_the_broker_keeps(what: str) -> None:
    for name, kept in NAMES.items():
        form, w = FORMS[what]._replace(names=names_in(what, name)), Wire()
        asked = request(form, 0)
        assert w.client(asked) == asked, "the broker gets the name as it is"
        w.broker(form.ok)
        assert declared(w) == [KEPT[what](kept)], (what, name)


def test_a_name_of_nothing_but_line_ends_is_not_the_last_queue_declared() -> None:
    """RabbitMQ looks for an empty name before it takes them out."""
    w = Wire()
    w.client(declare_queue("q") + bind(b"\n", b""))
    w.broker(QUEUE_DECLARE_OK + BIND_OK)
    assert declared(w) == [BindingAdded("x", queue(""), "")]


@pytest.mark.parametrize("name", ["exchange.declare", "exchange.delete", "exchange.bind", "queue.bind", "queue.unbind"])
def test_names_that_are_not_utf8_are_no_exchanges(name: str) -> None:
    """RabbitMQ refuses them; nothing is told, and nothing breaks."""
    form = FORMS[name]
    bad = form._replace(names=form.names.replace(b"x", b"\xff"))
    w = Wire()
    w.client(request(bad, bad.nowait))
    assert w.broker(bad.ok) == (b"" if bad.nowait else bad.ok)
    assert declared(w) == []
    assert w.c.channels[1].declaring == 0


def test_a_queue_whose_name_is_not_utf8_stands_for_nothing() -> None:
    w = Wire()
    w.client(declare_queue() + bind(b"", b"1"))
    w.broker(method(1, 50, 11, short(b"\xff") + bytes(8)) + BIND_OK)
    assert declared(w) == []


def test_oks_that_nobody_waits_for_pass() -> None:
    w = Wire()
    w.client(bind(b"q", b"1", 1))
    others = method(1, 40, 11) + method(2, 50, 21) + method(1, 90, 21)
    assert w.broker(others) == others
    assert declared(w) == []
    assert w.broker(BIND_OK + BIND_OK) == BIND_OK
    assert len(declared(w)) == 1


def test_after_a_close_declarations_pass_as_they_are() -> None:
    """The broker will not answer them."""
    w = Wire()
    w.broker(close_channel(1, 404, b"NOT_FOUND"))
    for form in FORMS.values():
        data = request(form, form.nowait)
        assert w.client(data) == data
    assert not w.c.channels[1].pending


def test_what_was_asked_of_a_channel_is_forgotten_with_it() -> None:
    w = Wire()
    w.client(bind(b"q", b"1", 1))
    w.broker(close_channel(1, 404, b"NOT_FOUND"))
    w.client(made(1, commands.Channel.CloseOk()) + made(1, commands.Channel.Open()))
    assert not w.c.channels[1].pending
    assert w.c.channels[1].state == ChannelState.OPEN
    w.client(bind(b"q", b"1"))
    assert w.broker(BIND_OK) == BIND_OK


def test_declarations_of_two_channels_are_apart() -> None:
    w = Wire()
    w.client(request(FORMS["queue.bind"], 1, channel=1) + request(FORMS["queue.bind"], 0, channel=2))
    assert w.broker(method(2, 50, 21) + BIND_OK) == method(2, 50, 21)
    assert len(declared(w)) == 2


@given(st.data())
def test_any_requests_in_any_chunking_get_their_own_oks(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(sorted(FORMS)), st.booleans()), max_size=8))
    forms = [(FORMS[name], nowait and bool(FORMS[name].nowait)) for name, nowait in chosen]
    stream = b"".join(request(form, form.nowait if nowait else 0) for form, nowait in forms)
    oks = b"".join(form.ok for form, _ in forms)
    w, out, back = Wire(), b"", b""
    for chunk in chunks(stream, data.draw(wire.cuts(stream))):
        out += w.client(chunk)
    assert out == b"".join(request(form, 0) for form, _ in forms)
    for chunk in chunks(oks, data.draw(wire.cuts(oks))):
        back += w.broker(chunk)
    assert back == b"".join(form.ok for form, nowait in forms if not nowait)
    assert declared(w) == [form.declares for form, _ in forms if form.declares]
    assert w.c.channels[1].declaring == 0


# Publisher modes.


def test_a_commit_and_a_rollback_count_what_was_before_them() -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    w.client(made(1, commands.Tx.Select()) + message(1, b"t", b"k") * 2 + made(1, commands.Tx.Commit()))
    w.client(message(1, b"t", b"k") * 3 + made(1, commands.Tx.Rollback()) + message(1, b"t", b"k"))
    confirms, counters = w.c.channels[1].confirms, w.counters("t", PassReason.TYPE)
    assert confirms.unsettled == 6
    w.broker(made(1, commands.Tx.CommitOk()))
    assert (confirms.unsettled, counters.acked) == (4, 2)
    w.broker(made(1, commands.Tx.RollbackOk()))
    assert (confirms.unsettled, counters.acked) == (1, 2)


def test_confirm_select_without_wait_begins_all_the_same() -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    select = method(1, 85, 10, b"\x01")
    assert w.client(select) == select
    assert w.c.channels[1].confirms.answered
    assert not w.c.channels[1].transactional
    assert split(w.client(made(1, commands.Tx.Select())))
    assert not w.c.channels[1].transactional
