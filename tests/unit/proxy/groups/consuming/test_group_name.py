"""The effects of a client's methods on a group's name as if it were a queue, frame by frame."""

import pytest
from pamqp import base, commands

from proxy.groups.consuming import group_name
from proxy.groups.consuming.events import DeclaredGroup, Shadowed, ShardsAsked
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.session import client_loop
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.events import Lacks, Refused
from proxy.session.state import ChannelState
from proxy.settings.missing_right import MissingRight
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, consume, deliver, is_close
from tests.unit.proxy.session.wire import (
    Wire,
    chunkings,
    close_channel,
    code_of,
    known,
    made,
    message,
    method,
    queue,
    ring,
    short,
    split,
    text_of,
)

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue

ASKED = [(FIRST, (20, 10)), (FIRST, (50, 10)), (FIRST, (40, 10))]
"""The methods by which the broker is asked first."""

METHODS: dict[str, tuple[base.Frame, int, str]] = {
    "bind": (Queue.Bind(queue="x", exchange="e", routing_key="k"), 406, "'x' is a sharded exchange and no queue: it c"),
    "unbind": (Queue.Unbind(queue="x", exchange="e", routing_key="k"), 406, "cannot be unbound as if it were a queue"),
    "purge": (Queue.Purge(queue="x"), 406, "cannot be purged as if it were a queue"),
    "delete": (Queue.Delete(queue="x"), 406, "cannot be deleted as if it were a queue"),
    "get": (Basic.Get(queue="x"), 405, "basic.consume"),
}
DECLARE = Queue.Declare(queue="x", durable=True, exclusive=True, auto_delete=True, arguments={"x-max-length": 1})


def asked(wire: Grouping, request: base.Frame = DECLARE, channel: int = 1) -> int:
    """Send a method; return the hidden channel on which the broker is asked what the name is."""
    sent = split(wire.client(made(channel, request)))
    assert [each.id for each in sent] == [(20, 10), (50, 10), (40, 10)]
    assert sent[1].whole == made(sent[0].channel, Queue.Declare(queue="x", passive=True))
    assert sent[2].whole == made(sent[0].channel, Exchange.Declare(exchange="x", exchange_type="direct", passive=True))
    return sent[0].channel


def missing(number: int, method_id: tuple[int, int] = (50, 10)) -> bytes:
    return close_channel(number, 404, b"NOT_FOUND", method_id)


def opened(number: int) -> bytes:
    return made(number, commands.Channel.OpenOk())


def counted(number: int, messages: int, consumers: int) -> bytes:
    return made(number, Queue.DeclareOk("a shard", messages, consumers))


def asking(wire: Grouping) -> Channel:
    """Return the channel for which the groups are asked to tell the shards, and forget that they were asked."""
    (event,) = (each for each in wire.consuming.events if isinstance(each, ShardsAsked))
    wire.consuming.events.remove(event)
    assert event.name == "x"
    return event.channel


def is_exchange(wire: Grouping, number: int) -> None:
    """Let the broker answer that an exchange has the name, and no queue."""
    to_broker, to_client = wire.both(opened(number) + missing(number))
    assert [each.id for each in split(to_broker)] == [(20, 41), (20, 10), (40, 10)]
    assert to_client == b""
    assert wire.both(opened(number) + made(number, Exchange.DeclareOk())) == (b"", b"")


def shards(wire: Grouping, names: list[str] | None) -> bytes:
    """Tell the shards, and return what goes to the broker."""
    group_name.found(wire.consuming, asking(wire), names)
    return wire.to_broker()


def is_waiting(wire: Grouping, what: Wait) -> bool:
    return wire.waits_for is what


def resumed(wire: Grouping) -> tuple[bytes, bytes]:
    """Let the method go on; return what goes to the broker and to the client."""
    client_loop.from_client(wire.c, b"")
    return wire.to_broker(), wire.to_client()


@pytest.mark.parametrize("passive", [False, True])
def test_a_declaration_is_answered_with_the_sums_of_the_shards(passive: bool) -> None:
    wire = Grouping()
    number = asked(wire, Queue.Declare(queue="x", passive=passive))
    is_exchange(wire, number)
    assert shards(wire, ["q1", "q2"]) == b"".join(
        made(number, Queue.Declare(queue=name, passive=True)) for name in ("q1", "q2")
    )
    assert wire.both(counted(number, 3, 1)) == (b"", b"")
    assert resumed(wire) == (b"", b"")
    to_broker, _ = wire.both(counted(number, 4, 1))
    assert is_close(split(to_broker)[0])
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 7, 2)))
    assert wire.events == [DeclaredGroup("x")]
    wire.broker(closed(number))
    assert len(wire.consuming.free) == 20


def test_all_arguments_are_taken_and_nowait_has_no_answer() -> None:
    for request in (DECLARE, Queue.Declare(queue="x", nowait=True)):
        wire = Grouping()
        number = asked(wire, request)
        is_exchange(wire, number)
        shards(wire, ["q1"])
        wire.both(counted(number, 1, 0))
        answer = b"" if request.nowait else made(1, Queue.DeclareOk("x", 1, 0))
        assert resumed(wire) == (b"", answer)
        assert wire.c.channels[1].declaring == 0
        assert not wire.c.channels[1].pending


def test_shards_that_are_gone_count_nothing_and_the_others_are_asked_again() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    shards(wire, ["q1", "q2", "q3"])
    to_broker, _ = wire.both(missing(number))
    again = [made(number, Queue.Declare(queue=name, passive=True)) for name in ("q2", "q3")]
    begin = made(number, commands.Channel.CloseOk()) + method(number, 20, 10, b"\0")
    assert to_broker == begin + b"".join(again)
    wire.both(opened(number) + counted(number, 5, 1))
    # The last one is another connection's own.
    to_broker, _ = wire.both(close_channel(number, 405, b"RESOURCE_LOCKED", (50, 10)))
    assert to_broker == made(number, commands.Channel.CloseOk())
    assert len(wire.consuming.free) == 20
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 5, 1)))


@pytest.mark.parametrize("code", [404, 403])
def test_shards_that_the_broker_does_not_tell_of_cost_as_many_questions_however_many_they_are(code: int) -> None:
    """The broker drops what was asked behind such a shard, so asking for all of them each time would be quadratic."""
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    names = [f"q{n}" for n in range(300)]
    sent = len(split(shards(wire, names)))
    assert sent == 32
    for _ in names[1:]:
        to_broker, _ = wire.both(close_channel(number, code, b"", (50, 10)))
        frames = split(to_broker)
        assert [each.id for each in frames[:3]] == [(20, 41), (20, 10), (50, 10)]
        sent += len(frames)
        wire.both(opened(number))
    wire.both(close_channel(number, code, b"", (50, 10)))
    assert sent <= 34 * len(names)
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 0, 0)))


def test_each_answer_brings_the_question_about_one_more_shard() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    names = [f"q{n}" for n in range(40)]
    questions = [made(number, Queue.Declare(queue=name, passive=True)) for name in names]
    assert shards(wire, names) == b"".join(questions[:32])
    for n in range(39):
        to_broker, _ = wire.both(counted(number, 1, 0))
        assert to_broker == b"".join(questions[n + 32 : n + 33])
    assert is_close(split(wire.both(counted(number, 1, 0))[0])[0])
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 40, 0)))


def test_a_group_without_shards_has_nothing() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    assert is_close(split(shards(wire, []))[0])
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 0, 0)))


def test_counts_beyond_32_bits_are_told_as_the_largest() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    shards(wire, ["q1", "q2"])
    wire.both(counted(number, 0xFFFFFFFF, 0) + counted(number, 2, 0))
    assert resumed(wire)[1] == made(1, Queue.DeclareOk("x", 0xFFFFFFFF, 0))


@pytest.mark.parametrize("has_exchange", [True, False])
@pytest.mark.parametrize("what", [*METHODS, "declare"])
def test_a_queue_of_that_name_wins(what: str, has_exchange: bool) -> None:
    request = METHODS[what][0] if what in METHODS else DECLARE
    wire = Grouping()
    number = asked(wire, request)
    assert wire.both(opened(number) + made(number, Queue.DeclareOk("x", 0, 0))) == (b"", b"")
    assert wire.resumed() == made(1, request)
    if has_exchange:
        to_broker, _ = wire.both(made(number, Exchange.DeclareOk()))
        assert is_close(split(to_broker)[0])
        wire.broker(closed(number))
    else:
        wire.both(missing(number, (40, 10)))
    assert wire.events == ([Shadowed("x")] if has_exchange else [])
    assert len(wire.consuming.free) == 20


@pytest.mark.parametrize("what", [*METHODS, "declare"])
def test_where_the_broker_has_neither_the_method_passes(what: str) -> None:
    request = METHODS[what][0] if what in METHODS else DECLARE
    wire = Grouping()
    number = asked(wire, request)
    wire.both(opened(number) + missing(number))
    wire.both(opened(number) + missing(number, (40, 10)))
    assert wire.resumed() == made(1, request)
    assert wire.events == []
    assert len(wire.consuming.free) == 20


def test_an_exchange_that_is_no_hash_exchange_has_no_say() -> None:
    wire = Grouping()
    is_exchange(wire, asked(wire))
    assert is_close(split(shards(wire, None))[0])
    assert wire.resumed() == made(1, DECLARE)


def test_another_connections_own_queue_is_the_brokers_to_refuse() -> None:
    wire = Grouping()
    number = asked(wire)
    wire.both(opened(number) + close_channel(number, 405, b"RESOURCE_LOCKED", (50, 10)))
    assert wire.resumed() == made(1, DECLARE)


@pytest.mark.parametrize("what", METHODS)
def test_what_a_group_does_not_take(what: str) -> None:
    request, code, text = METHODS[what]
    wire = Grouping()
    number = asked(wire, request)
    is_exchange(wire, number)
    assert is_close(split(shards(wire, ["q1"]))[0])
    to_broker, to_client = resumed(wire)
    assert [(each.channel, each.id) for each in split(to_broker)] == [(1, (20, 40))]
    assert to_client == b""
    (refusal,) = split(wire.broker(made(1, commands.Channel.CloseOk())))
    assert (refusal.channel, code_of(refusal)) == (1, code)
    assert text in text_of(refusal)
    assert "'x' is a sharded exchange and no queue" in text_of(refusal)
    assert refusal.payload[-4:] == made(1, request)[7:11]


def test_what_follows_waits_and_other_channels_go_on() -> None:
    data = made(1, DECLARE) + consume(1) + message(2, b"", b"q") + message(1, b"", b"q")
    for chunking in chunkings(data):
        wire = Grouping()
        for chunk in chunking:
            client_loop.from_client(wire.c, chunk)
        sent = split(wire.to_broker())
        assert [(each.channel, each.id) for each in sent if each.kind == 1] == [*ASKED, (2, (60, 40))]
        assert is_waiting(wire, Wait.INTERCEPTED)
        is_exchange(wire, FIRST)
        shards(wire, [])
        to_broker, to_client = resumed(wire)
        assert to_client == made(1, Queue.DeclareOk("x", 0, 0))
        # The consumer asks for itself.
        assert [(each.channel, each.id) for each in split(to_broker)] == [
            (FIRST + 1, (20, 10)),
            (FIRST + 1, (50, 10)),
        ]
        assert is_waiting(wire, Wait.INTERCEPTED)


def test_the_answer_comes_behind_those_to_earlier_requests() -> None:
    wire = Grouping()
    earlier = made(1, Exchange.Declare(exchange="other"))
    sent = split(wire.client(earlier + made(1, DECLARE)))
    assert [(each.channel, each.id) for each in sent] == [(1, (40, 10)), *ASKED]
    is_exchange(wire, FIRST)
    shards(wire, [])
    assert resumed(wire) == (b"", b"")
    assert wire.broker(made(1, Exchange.DeclareOk())) == made(1, Exchange.DeclareOk())
    assert resumed(wire) == (b"", made(1, Queue.DeclareOk("x", 0, 0)))


def test_the_answer_waits_for_the_end_of_a_delivery() -> None:
    wire = Grouping()
    member = wire.join(["q1"])
    number = asked(wire)
    is_exchange(wire, number)
    shards(wire, [])
    delivery = deliver(member.links["q1"].channel, 1)
    wire.broker(delivery[:-9])
    assert resumed(wire) == (b"", b"")
    assert wire.broker(delivery[-9:]).endswith(made(1, Queue.DeclareOk("x", 0, 0)))


def test_an_empty_name_stands_for_the_group_that_was_declared_last() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    shards(wire, [])
    resumed(wire)
    wire.broker(closed(number))
    assert asked(wire, Queue.Bind(exchange="e")) != number
    wire = Grouping()
    wire.c.channels[1].last_queue = b"x"
    assert wire.ask(name="") == FIRST
    # Not where another queue is being declared.
    wire = Grouping()
    wire.c.channels[1].last_queue = b"x"
    behind = made(1, Queue.Declare(queue="")) + made(1, Queue.Bind(exchange="e"))
    assert wire.client(behind) == behind


@pytest.mark.parametrize("name", ["x\n", "\r\nx", "\nx"])
def test_the_name_is_the_one_that_the_broker_would_look_for(name: str) -> None:
    """RabbitMQ takes line ends out of it in these methods, and not in the others."""
    text = short(name)
    for ids, arguments in (((50, 10), b"\0" * 5), ((50, 20), b"\0" * 7), ((50, 50), b"\0" * 6), ((50, 40), b"\0")):
        wire = Grouping()
        sent = split(wire.client(method(1, *ids, b"\0\0" + text + arguments)))
        assert [each.id for each in sent] == [(20, 10), (50, 10), (40, 10)], ids
        assert sent[1].whole == made(sent[0].channel, Queue.Declare(queue="x", passive=True))
    for ids in ((50, 30), (60, 70)):
        other = method(1, *ids, b"\0\0" + short("\nx") + b"\0")
        assert Grouping().client(other) == other


def test_other_names_and_sessions_without_groups_pass() -> None:
    requests = [Queue.Declare(queue="other"), Queue.Declare(queue=""), Queue.Purge(queue="y"), Basic.Get(queue="y")]
    for request in requests:
        assert Grouping().client(made(1, request)) == made(1, request)
    for request in [DECLARE, *(each[0] for each in METHODS.values())]:
        assert Wire().client(made(1, request)) == made(1, request)
    name = b"\0\0\x02x\xff\0\0\0\0\0"
    assert Grouping().client(method(1, 50, 10, name)) == method(1, 50, 10, name)


def test_without_a_free_channel_nothing_can_be_asked() -> None:
    wire = Grouping(hidden=0)
    (sent,) = split(wire.client(made(1, DECLARE)))
    assert (sent.channel, sent.id) == (1, (20, 40))
    (refusal,) = split(wire.broker(made(1, commands.Channel.CloseOk())))
    assert (code_of(refusal), text_of(refusal)) == (
        506,
        "RESOURCE_ERROR - group 'x': all 0 hidden channels of the connection are in use",
    )


def test_where_the_shards_cannot_be_read_no_queue_is_made() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    group_name.found(wire.consuming, asking(wire), None, "no answer")
    sent = split(wire.to_broker())
    assert {(each.channel, each.id) for each in sent} == {(1, (20, 40)), (number, (20, 40))}
    assert resumed(wire) == (b"", b"")
    assert wire.events == [Refused(541, "it is not known whether 'x' is a group: no answer", wire.c.channels[1])]
    (refusal,) = split(wire.broker(made(1, commands.Channel.CloseOk())))
    assert (code_of(refusal), refusal.payload[-4:]) == (541, b"\0\x32\0\x0a")
    wire.broker(closed(number))
    assert len(wire.consuming.free) == 20


@pytest.mark.parametrize("step", range(4))
def test_a_channel_that_ends_meanwhile_takes_its_question_along(step: int) -> None:
    wire = Grouping()
    number = asked(wire)
    if step > 0:
        wire.both(opened(number) + missing(number))
    if step > 1:
        wire.both(opened(number) + made(number, Exchange.DeclareOk()))
    if step > 2:
        shards(wire, ["q1", "q2"])
    to_broker, _ = wire.both(close_channel(1, 404, b"NOT_FOUND - no exchange", (60, 40)))
    assert is_close(next(each for each in split(to_broker) if each.channel == number))
    assert wire.c.channels[1].state == ChannelState.CLOSED
    group_name.found(wire.consuming, wire.c.channels[1], ["q1"])
    assert wire.to_broker() == b""
    # The broker's earlier answers change nothing, and the number is free again.
    wire.both(counted(number, 1, 1) + closed(number))
    assert len(wire.consuming.free) == 20
    resumed(wire)
    assert wire.c.waiting.channels == {}


def test_the_brokers_reason_is_passed_on_while_the_shards_are_read() -> None:
    wire = Grouping()
    number = asked(wire)
    is_exchange(wire, number)
    to_broker, _ = wire.both(close_channel(number, 541, b"INTERNAL_ERROR - oops", (0, 0)))
    assert {(each.channel, each.id) for each in split(to_broker)} == {(number, (20, 41)), (1, (20, 40))}
    (refusal,) = split(wire.broker(made(1, commands.Channel.CloseOk())))
    assert (code_of(refusal), text_of(refusal)) == (541, "INTERNAL_ERROR - oops")


def test_a_missing_right_on_many_shards_names_one_of_them_and_no_pattern_that_is_cut_short() -> None:
    c = Wire({"x": known(ring(*(queue(f"shard of region {n}") for n in range(8))))}).c
    consuming = GroupInterceptor(c, lambda vhost, name: True)
    denied = "ACCESS_REFUSED - read access to queue 'shard of region 3' in vhost '/' refused for user 'u'"
    told = group_name.not_permitted(consuming, "x", denied)
    assert told.endswith("user 'u': grant read on the exchange's name and on its shards, such as 'shard of region 0'")
    wanted = "the exchange's name and its shards, such as 'shard of region 0'"
    assert c.events == [Lacks(MissingRight("/", "u", "read", "group 'x'", wanted))]


def test_a_missing_configure_on_the_name_of_a_group_is_told_as_a_missing_read() -> None:
    c = Wire({"x": known(ring(queue("x.1"), queue("x.2")))}).c
    denied = "ACCESS_REFUSED - configure access to queue 'x' in vhost '/' refused for user 'u'"
    group_name.not_permitted(GroupInterceptor(c, lambda vhost, name: True), "x", denied)
    wanted = r"the exchange's name and its shards, ^x(\.[0-9]+)?$"
    assert c.events == [Lacks(MissingRight("/", "u", "read", "group 'x'", wanted))]
