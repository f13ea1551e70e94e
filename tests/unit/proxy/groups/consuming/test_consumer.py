"""The effects of a client's methods about consumers and deliveries on its members, frame by frame."""

import pytest
from pamqp import commands

from proxy.groups.consuming import consumer, settle
from proxy.groups.consuming.events import Left, LinkBroken, LinkRefused, Shadowed
from proxy.groups.consuming.tags import MOST_TAGS, MOST_UNACKED, Numbering, numbering_of
from proxy.groups.model import LinkState
from proxy.session import client_loop
from proxy.session.backlog import Wait
from proxy.session.events import Refused
from proxy.session.state import Phase
from proxy.topology.marker import LINK_PRIORITY
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, consume, deliver, is_close, opened, seen
from tests.unit.proxy.session.wire import (
    Frame,
    Wire,
    ack,
    chunkings,
    close_channel,
    code_of,
    made,
    message,
    method,
    nack,
    split,
    text_of,
)

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the two links of a member that joins first."""


def reject(tag: int, requeue: bool = True) -> bytes:
    return made(1, commands.Basic.Reject(tag, requeue))


def requeue(tag: int, multiple: bool = False) -> bytes:
    return made(1, commands.Basic.Nack(tag, multiple, True))


def joined(**more: object) -> Grouping:
    wire = Grouping()
    wire.join(**more)  # type: ignore[arg-type]
    return wire


def holding() -> Grouping:
    """The client holds 1 and 3 of the first link, and 2 of the second."""
    wire = joined()
    wire.broker(deliver(A, 1) + deliver(B, 1) + deliver(A, 2))
    return wire


# To join.


def test_what_follows_a_consume_waits_until_the_member_has_joined() -> None:
    behind = made(1, commands.Basic.Qos(prefetch_count=3)) + message(1, b"", b"q")
    data = consume(1) + behind + made(2, commands.Basic.Qos(prefetch_count=9))
    for chunking in chunkings(data):
        wire = Grouping()
        for chunk in chunking:
            client_loop.from_client(wire.c, chunk)
        asked = split(wire.to_broker())
        assert [(each.channel, each.id) for each in asked] == [(FIRST, (20, 10)), (FIRST, (50, 10)), (2, (60, 10))]
        assert wire.waits_for is Wait.INTERCEPTED
        assert wire.no_queue(FIRST) == (made(FIRST, commands.Channel.CloseOk()), b"")
        member = wire.asked()
        assert (member.vhost, member.exchange, member.channel, member.tag) == ("/", "x", 1, b"c")
        wire.actions.start(member)
        assert wire.to_client() == made(1, commands.Basic.ConsumeOk("c"))
        assert wire.actions.open(member, "q1") == ""
        sent = wire.frames()
        assert [(each.channel, each.id) for each in sent if each.kind == 1] == [
            *((1, (60, 10)), (1, (60, 40)), (A, (20, 10)), (A, (60, 10)), (A, (60, 20))),
        ]
        assert wire.both(opened(A)) == (b"", b"")
        assert member.links["q1"].state == LinkState.OPEN


def test_a_queue_of_that_name_wins() -> None:
    wire = Grouping()
    number = wire.ask()
    to_broker, to_client = wire.both(
        made(number, commands.Channel.OpenOk()) + made(number, commands.Queue.DeclareOk("x", 0, 0))
    )
    assert is_close(split(to_broker)[0])
    assert to_client == b""
    assert wire.events == [Shadowed("x")]
    assert wire.resumed() == consume(1)
    assert wire.broker(closed(number)) == b""
    assert (wire.consuming.consumers, len(wire.consuming.free)) == ({}, 20)


def test_a_member_that_is_let_in_is_answered_at_once_and_nowait_never() -> None:
    for nowait in (False, True):
        wire = Grouping()
        wire.no_queue(wire.ask(nowait=nowait))
        wire.actions.start(wire.asked())
        assert wire.to_client() == (b"" if nowait else made(1, commands.Basic.ConsumeOk("c")))


def test_a_consumer_without_a_tag_gets_one() -> None:
    wire = Grouping()
    wire.no_queue(wire.ask(tag=""))
    member = wire.asked()
    wire.actions.start(member)
    assert member.tag.startswith(b"amq.ctag-")
    assert wire.to_client() == made(1, commands.Basic.ConsumeOk(member.tag.decode()))


def test_links_get_the_clients_arguments_and_prefetch() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(prefetch_count=7, global_=True)))
    wire.begin(["q1"], arguments={"note": "n"}, no_ack=True)
    _, qos, asked = wire.frames()
    assert qos.whole == made(A, commands.Basic.Qos(prefetch_count=7))
    queue, tag = b"\x02q1", b"\x01c"
    table = b"\x04noteS\0\0\0\x01n\x0ax-priorityl" + LINK_PRIORITY.to_bytes(8, "big")
    assert asked.payload == b"\0\x3c\0\x14\0\0" + queue + tag + b"\2" + len(table).to_bytes(4, "big") + table


@pytest.mark.parametrize(
    ("count", "expected"), [(None, 200), (0, 2000), (65535, 65535)], ids=["none", "no limit", "many"]
)
def test_the_prefetch_of_links(count: int | None, expected: int) -> None:
    wire = Grouping()
    if count is not None:
        wire.client(made(1, commands.Basic.Qos(prefetch_count=count)))
    assert wire.join().prefetch == expected


MISTAKES = {
    "exclusive": ({"exclusive": True}, 403, "exclusively"),
    "long arguments": ({"arguments": {"note": "n" * 4087}}, 406, "take 4097 bytes, and 4096 are the most"),
    "a priority": ({"arguments": {"x-priority": 1}}, 406, "x-priority"),
}


@pytest.mark.parametrize(("more", "code", "text"), MISTAKES.values(), ids=MISTAKES)
def test_what_no_member_may_ask_for(more: dict[str, object], code: int, text: str) -> None:
    wire = Grouping()
    to_broker, _ = wire.no_queue(wire.ask(**more))  # type: ignore[arg-type]
    assert [(each.channel, each.id) for each in split(to_broker)] == [(1, (20, 40)), (FIRST, (20, 41))]
    (close,) = split(wire.broker(closed(1)))
    assert (close.channel, code_of(close)) == (1, code)
    assert text in text_of(close)
    assert not any(isinstance(event, Left) for event in wire.events)


def test_a_channel_with_transactions_has_no_members_and_one_with_members_no_transactions() -> None:
    wire = Grouping()
    wire.client(made(1, commands.Tx.Select()))
    wire.no_queue(wire.ask())
    assert "transactions" in text_of(split(wire.broker(closed(1)))[0])
    wire = joined()
    assert sorted(each.channel for each in split(wire.client(made(1, commands.Tx.Select())))) == [1, A, B]
    assert "transactions" in text_of(split(wire.broker(closed(1)))[0])


def test_the_brokers_reason_for_not_telling_of_a_queue_is_the_clients() -> None:
    wire = Grouping()
    number = wire.ask()
    wire.both(close_channel(number, 405, b"RESOURCE_LOCKED - cannot obtain exclusive access", (50, 10)))
    (close,) = split(wire.broker(closed(1)))
    assert (code_of(close), text_of(close)) == (405, "RESOURCE_LOCKED - cannot obtain exclusive access")


@pytest.mark.parametrize("name", ["x", "plain"])
def test_a_tag_of_a_member_is_used_once(name: str) -> None:
    wire = joined()
    client_loop.from_client(wire.c, consume(1, "c", name))
    (close,) = split(wire.to_client())
    assert (close.channel, code_of(close), text_of(close)) == (
        0,
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 'c'",
    )


def test_a_tag_of_an_ordinary_consumer_is_not_a_members_as_long_as_it_consumes() -> None:
    wire = Grouping()
    wire.client(consume(1, "c", "plain"))
    wire.client(made(1, commands.Basic.Cancel("c")))
    wire.join()
    wire.client(consume(1, "d", "plain"))
    wire.broker(made(1, commands.Basic.Cancel("d")))
    wire.client(consume(1, "e", "plain"))
    client_loop.from_client(wire.c, consume(1, "e"))
    assert code_of(split(wire.to_client())[0]) == 530


def test_a_link_for_which_no_number_is_free_is_not_opened() -> None:
    """The last number is for a question about a name, as long as others come back."""
    wire = Grouping(hidden=3)
    member = wire.join(["q1", "q2", "q3"])
    why = "all 3 hidden channels of the client's connection are in use"
    assert wire.actions.open(member, "q4") == why
    assert "q4" not in member.links
    wire.actions.let_go(member, "q1")
    assert wire.actions.open(member, "q4") == why
    wire.both(closed(A))
    assert wire.actions.open(member, "q4") == ""
    wire = Grouping(hidden=0)
    client_loop.from_client(wire.c, consume(1))
    wire.to_broker()
    assert code_of(split(wire.broker(closed(1)))[0]) == 506


def test_a_missing_right_is_the_clients_business_before_the_first_link_and_not_after() -> None:
    denied = b"ACCESS_REFUSED - read access to queue 'q1' in vhost '/' refused for user 'u'"
    wire = Grouping()
    member = wire.begin()
    wire.frames()
    wire.to_client()
    to_broker, _ = wire.both(close_channel(A, 403, denied, (60, 20)))
    assert [(each.channel, each.id) for each in split(to_broker)] == [(1, (20, 40)), (A, (20, 41)), (B, (20, 40))]
    (close,) = split(wire.broker(closed(B) + closed(1)))
    told = "group 'x' refused for user 'u': grant read on the exchange's name and on its shards, ^(x|q1|q2|q3)$"
    assert (code_of(close), text_of(close)) == (403, f"ACCESS_REFUSED - {told}")
    assert Left(member) in wire.events
    wire = joined()
    member = next(iter(wire.consuming.consumers))
    wire.both(close_channel(A, 403, denied, (60, 20)))
    assert wire.told() == [LinkRefused(member, "q1", 403, denied.decode())]


def test_a_channel_that_ends_while_its_consumer_waits_leaves_nothing() -> None:
    """By the broker's channel.close, as the client's waits behind its consumer."""
    wire = Grouping()
    number = wire.ask()
    to_broker, to_client = wire.both(close_channel(1, 404, b"NOT_FOUND - no exchange 'e' in vhost '/'"))
    assert [(each.channel, is_close(each)) for each in split(to_broker)] == [(number, True)]
    assert is_close(split(to_client)[0])
    client_loop.from_client(wire.c, closed(1))
    wire.both(closed(number))
    assert (wire.consuming.consumers, wire.consuming.sources, len(wire.consuming.free)) == ({}, {}, 20)
    assert wire.events == []


# Acks.


@pytest.mark.parametrize("start", [False, True], ids=["before members", "with members"])
def test_what_a_consumer_without_acks_gets_before_its_cancel_ok_is_not_acked(start: bool) -> None:
    """RabbitMQ closes the channel for an ack of what it counts as acked."""
    wire = joined() if start else Grouping()
    wire.client(consume(1, "p", "plain", no_ack=True))
    wire.client(made(1, commands.Basic.Cancel("p")))
    wire.broker(deliver(1, 1, consumer="p"))
    if not start:
        wire.join()
    number = next(number for number, each in wire.consuming.sources.items() if each.is_hidden)
    assert wire.broker(deliver(number, 1)) == seen(2)
    assert wire.client(ack(1, 0, True)) == ack(number, 1, True)
    ok = made(1, commands.Basic.CancelOk("p"))
    assert wire.broker(ok) == ok
    # Another consumer of that tag may have its deliveries acked.
    wire.client(consume(1, "p", "plain"))
    wire.broker(deliver(1, 2, consumer="p"))
    assert wire.client(ack(1, 0, True)) == ack(1, 2, True)


def test_answers_go_to_the_channel_of_each_delivery() -> None:
    wire = holding()
    assert wire.client(ack(1, 2)) == ack(B, 1)
    assert wire.client(ack(1, 3, True)) == ack(A, 2, True)
    wire = holding()
    assert wire.client(requeue(3, True)) == made(A, commands.Basic.Nack(2, True, True)) + made(
        B, commands.Basic.Nack(1, True, True)
    )
    wire = holding()
    assert wire.client(ack(1, 0, True)) == ack(A, 2, True) + ack(B, 1, True)
    wire = holding()
    assert wire.client(reject(1, False)) == made(A, commands.Basic.Reject(1, False))


@pytest.mark.parametrize("answer", [ack(1, 9), ack(1, 9, True), nack(1, 4), reject(7)])
def test_an_unknown_tag_closes_the_channel_behind_what_came_before(answer: bytes) -> None:
    data = ack(1, 1) + message(1, b"", b"q") + answer + message(1, b"", b"late")
    for chunking in chunkings(data):
        wire = holding()
        for chunk in chunking:
            client_loop.from_client(wire.c, chunk)
        sent = wire.frames()
        assert b"late" not in b"".join(each.payload for each in sent)
        own = [each for each in sent if each.channel == 1]
        assert [each.kind for each in own] == [1, 2, 3, 1]
        assert is_close(own[-1])
        assert ack(A, 1) in b"".join(each.whole for each in sent)
        (close,) = split(wire.broker(closed(A) + closed(B) + closed(1)))
        assert code_of(close) == 406
        assert text_of(close).startswith("PRECONDITION_FAILED - unknown delivery tag ")
        assert [type(event) for event in wire.told()] == [Refused, Left]


def test_what_the_client_returns_waits_for_what_it_holds_before_it_of_the_shard() -> None:
    """Else the next member would get it before those, if this one ended now."""

    def three() -> Grouping:
        wire = holding()
        wire.broker(deliver(A, 3) + deliver(A, 4))
        assert wire.client(requeue(4) + reject(3)) == b""
        return wire

    # A reject stays a reject, and a nack a nack.
    back = made(A, commands.Basic.Reject(2, True)) + made(A, commands.Basic.Nack(3, False, True))
    assert three().client(ack(1, 1)) == ack(A, 1) + back
    wire = three()
    assert wire.client(ack(1, 5, True)) == ack(A, 1, True) + back + ack(A, 4, True) + ack(B, 1, True)
    nacks = {tag: made(A, commands.Basic.Nack(tag, True, True)) for tag in (1, 4)}
    assert three().client(requeue(5, True)) == nacks[1] + back + nacks[4] + made(B, commands.Basic.Nack(1, True, True))
    wire = three()
    assert wire.client(reject(2)) == b""
    # All of it goes back in order with the end of the link.
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    assert is_close(split(wire.to_broker())[0])
    assert wire.to_client() == made(1, commands.Basic.CancelOk("c"))
    assert [each.id for each in split(wire.client(ack(1, 1) + ack(1, 5)))] == [(60, 80), (60, 80), (20, 40)]
    wire = three()
    recover = made(1, commands.Basic.Recover(True))
    assert made(A, commands.Basic.Recover(True)) in wire.client(recover)
    wire.broker(deliver(A, 5) + deliver(A, 6))
    assert wire.client(ack(1, 7, True)) == ack(A, 6, True)


def test_what_the_client_returns_goes_to_the_broker_in_a_moment_unless_the_member_leaves() -> None:
    wire = holding()
    assert wire.client(reject(1) + requeue(2)) == b""
    settle.hand_back(wire.consuming, wire.c.now, wire.c.now)
    assert wire.to_broker() == made(A, commands.Basic.Reject(1, True)) + made(B, commands.Basic.Nack(1, False, True))
    settle.hand_back(wire.consuming, wire.c.now, wire.c.now)
    assert wire.to_broker() == b""
    # An ack of a later delivery does not wait, nor what was returned before it.
    wire = holding()
    assert wire.client(reject(1)) == b""
    assert wire.client(ack(1, 3)) == ack(A, 2) + made(A, commands.Basic.Reject(1, True))
    wire = holding()
    assert wire.client(reject(1) + reject(2)) == b""
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    (close,) = split(wire.to_broker())
    assert (close.channel, is_close(close)) == (B, True)
    settle.hand_back(wire.consuming, wire.c.now, wire.c.now)
    assert wire.to_broker() == b""


def test_the_moment_counts_from_the_last_reject_of_a_link_but_not_for_ever() -> None:
    """Pika rejects one by one what it has not looked at, and then cancels."""
    wire = holding()
    wire.c.now = 10.0
    wire.client(reject(1) + requeue(2))
    wire.c.now = 10.04
    wire.client(reject(3))
    settle.hand_back(wire.consuming, 10.01, 9.0)
    assert wire.to_broker() == made(B, commands.Basic.Nack(1, False, True))
    settle.hand_back(wire.consuming, 10.03, 9.9)
    assert wire.to_broker() == b""
    settle.hand_back(wire.consuming, 10.03, 10.0)
    assert wire.to_broker() == b"".join(made(A, commands.Basic.Reject(tag, True)) for tag in (1, 2))


CROWD = [f"ordinary {n}" for n in range(MOST_TAGS)]


def close_channel_of_client(channel: int) -> bytes:
    return made(channel, commands.Channel.Close(200, "", 0, 0))


def crowd(channel: int) -> bytes:
    """As many ordinary consumers as a session may have, without acks, and with answers that nobody wants."""
    return b"".join(consume(channel, tag, "other", no_ack=True, nowait=True) for tag in CROWD)


def remembered(wire: Grouping) -> int:
    found = [source.merge for source in wire.consuming.sources.values() if not source.is_hidden]
    return sum(len(merge.tags) for merge in found if isinstance(merge, Numbering))


def test_ordinary_consumers_of_a_session_take_memory_for_so_many_only() -> None:
    """Without members it is only the joining that needs to know them."""
    wire = Grouping()
    wire.client(crowd(1))
    assert remembered(wire) == wire.consuming.tags.count == MOST_TAGS
    wire.client(crowd(2))
    # The second channel knows none of its own, and so takes no member.
    assert remembered(wire) == wire.consuming.tags.count == MOST_TAGS
    wire.no_queue(wire.ask(2))
    (close,) = split(wire.broker(closed(2)))
    assert (code_of(close), text_of(close)) == (
        506,
        "RESOURCE_ERROR - group 'x': the connection has over 4096 ordinary consumers; use another connection",
    )
    # Cancelled ones make room, and so do those of a channel that is closed.
    wire.client(made(1, commands.Basic.Cancel(CROWD[0], nowait=True)) + made(1, commands.Basic.Cancel(CROWD[1])))
    assert wire.consuming.tags.count == MOST_TAGS - 1
    wire.both(made(1, commands.Basic.CancelOk(CROWD[1])))
    assert wire.consuming.tags.count == MOST_TAGS - 2
    wire.client(consume(1, "", "other", no_ack=True) + close_channel_of_client(1))
    wire.both(made(1, commands.Channel.CloseOk()))
    assert wire.consuming.tags.count == 0


@pytest.mark.parametrize("tag", ["more", ""], ids=["named", "named by the broker"])
def test_a_channel_with_members_takes_no_more_ordinary_consumers_than_can_be_remembered(tag: str) -> None:
    """Else deliveries without acks would be taken for unacked ones."""
    wire = joined()
    wire.client(crowd(1))
    sent = wire.client(consume(1, tag, "other", no_ack=True))
    if not tag:
        assert sent == consume(1, tag, "other", no_ack=True)
        sent, _ = wire.both(made(1, commands.Basic.ConsumeOk("amq.ctag-1")))
    assert sorted(each.channel for each in split(sent) if is_close(each)) == [1, A, B]
    (close,) = split(wire.broker(closed(1)))
    assert (code_of(close), text_of(close)) == (
        506,
        "RESOURCE_ERROR - a connection with consumers of groups has over 4096 ordinary consumers; use another"
        " connection",
    )


def test_recover_goes_to_every_channel_with_deliveries() -> None:
    wire = holding()
    recover = made(1, commands.Basic.Recover(True))
    assert wire.client(recover) == recover + made(A, commands.Basic.Recover(True)) + made(
        B, commands.Basic.Recover(True)
    )
    ok = commands.Basic.RecoverOk()
    assert wire.broker(made(A, ok) + made(1, ok) + made(B, ok)) == made(1, ok)
    assert wire.broker(deliver(A, 3, redelivered=True)) == seen(4, redelivered=True)
    assert wire.client(ack(1, 4)) == ack(A, 3)
    refused = made(1, commands.Basic.Recover(False))
    assert wire.client(refused) == refused


# To leave.


def test_a_cancel_lets_the_client_ack_and_closes_each_link_behind_its_last() -> None:
    wire = holding()
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    assert wire.to_client() == made(1, commands.Basic.CancelOk("c"))
    assert wire.to_broker() == b""
    assert [type(event) for event in wire.told()] == [Left]
    assert wire.broker(deliver(A, 3) + deliver(B, 2)) == b""
    sent = split(wire.client(ack(1, 2) + ack(1, 1)))
    assert [(each.channel, each.id) for each in sent] == [(B, (60, 80)), (B, (20, 40)), (A, (60, 80))]
    # A message that is returned now goes back with what was withheld, so the broker does not hear of it alone.
    (close,) = split(wire.client(requeue(3)))
    assert is_close(close)
    assert wire.broker(deliver(A, 4) + closed(A) + closed(B)) == b""
    assert len(wire.consuming.free) == 20
    # The tag is free, and an answer to a tag that has one is a mistake as ever.
    wire.forget()
    wire.no_queue(wire.ask())
    assert wire.asked().tag == b"c"


@pytest.mark.parametrize(
    ("returned", "left"),
    [(requeue(1), [2, 3, 4]), (reject(1), [2, 3, 4]), (requeue(1) + requeue(2, True), [3, 4])],
    ids=["nack", "reject", "nack of all"],
)
def test_what_is_returned_after_a_cancel_is_not_acked_with_later_deliveries(returned: bytes, left: list[int]) -> None:
    wire = joined()
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, 6)))
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    wire.to_client()
    wire.frames()
    assert wire.client(returned) == b""
    assert wire.client(ack(1, 4, True)) == b"".join(ack(A, tag) for tag in left)
    assert [each.id for each in split(wire.client(ack(1, 5)))] == [(60, 80), (20, 40)]


def test_a_link_ends_behind_all_that_one_ack_brings() -> None:
    wire = joined()
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, 4)))
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")) + requeue(1))
    wire.to_client()
    wire.frames()
    assert [each.id for each in split(wire.client(ack(1, 3, True)))] == [(60, 80), (60, 80), (20, 40)]


def test_a_cancel_of_a_member_without_acks_is_answered_behind_its_last_delivery() -> None:
    wire = joined(no_ack=True)
    cancel = made(1, commands.Basic.Cancel("c"))
    assert wire.client(cancel) == b"".join(made(n, commands.Basic.Cancel("c")) for n in (A, B))
    assert wire.broker(deliver(A, 1)) == seen(1)
    ok = commands.Basic.CancelOk("c")
    to_broker, to_client = wire.both(made(A, ok) + deliver(B, 1) + made(B, ok))
    assert [each.channel for each in split(to_broker) if is_close(each)] == [A, B]
    assert to_client == seen(2) + made(1, ok)


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_cancel_while_a_link_is_opening_closes_it_and_is_answered(no_ack: bool) -> None:
    wire = Grouping()
    wire.begin(["q1"], no_ack=no_ack)
    client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c")))
    ok = made(1, commands.Basic.ConsumeOk("c")), made(1, commands.Basic.CancelOk("c"))
    assert wire.to_client() == (ok[0] if no_ack else ok[0] + ok[1])
    assert [each.id for each in wire.frames() if each.channel == A][-1] == ((60, 30) if no_ack else (20, 40))
    if no_ack:
        # The broker counts as acked what it has sent until then.
        _, to_client = wire.both(opened(A) + deliver(A, 1) + made(A, commands.Basic.CancelOk("c")))
        assert to_client == seen(1) + ok[1]
    else:
        assert wire.both(opened(A) + closed(A)) == (b"", b"")


def test_all_leave_as_the_sidecar_shuts_down() -> None:
    """A member without acks gets all that the broker has sent, and one that waits to be let in waits no more."""
    wire = joined(no_ack=True)
    number = wire.ask(channel=2, tag="d")
    consumer.leave_all(wire.consuming)
    sent = [(each.channel, each.id) for each in wire.frames()]
    assert sorted(sent) == [(2, (20, 40)), (A, (60, 30)), (B, (60, 30)), (number, (20, 40))]
    assert wire.consuming.unacked == 2
    assert wire.broker(deliver(A, 1)) == seen(1)
    ok = commands.Basic.CancelOk("c")
    wire.both(made(A, ok) + made(B, ok))
    assert wire.consuming.unacked == 0
    (close,) = split(wire.broker(closed(2)))
    assert (code_of(close), text_of(close)) == (506, "RESOURCE_ERROR - group 'x': ringproxy is shutting down")


def test_a_cancel_of_another_tag_is_the_brokers() -> None:
    wire = joined()
    other = made(1, commands.Basic.Cancel("other"))
    assert wire.client(other) == other


def test_acks_in_front_of_a_close_reach_the_broker_first() -> None:
    wire = holding()
    sent = split(wire.client(ack(1, 3, True) + made(1, commands.Channel.Close(200, "", 0, 0))))
    for number in (A, B):
        mine = [each.id for each in sent if each.channel == number]
        assert mine == [(60, 80), (20, 40)]
    # Acks behind it are dropped with the channel.
    assert wire.client(ack(1, 1)) == ack(1, 1)


def test_deliveries_of_links_that_end_are_dropped() -> None:
    wire = joined()
    wire.client(made(1, commands.Channel.Close(200, "", 0, 0)))
    assert wire.broker(deliver(A, 1) + deliver(B, 1, b"") + closed(A) + closed(1)) == closed(1)
    wire.client(made(1, commands.Channel.Open()))
    assert wire.broker(deliver(B, 2) + closed(B)) == b""
    assert wire.consuming.sources == {}


# Calls of the groups on a session


def test_one_link_for_each_shard() -> None:
    wire = joined()
    (member,) = wire.consuming.consumers
    assert wire.actions.open(member, "q1") == ""
    assert wire.frames() == []


def test_what_is_given_away_may_be_acked_late() -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    assert set(wire.actions.oldest_unacked(member)) == {"q1", "q2"}
    wire.actions.give_up(member, "q1")
    assert [(each.channel, each.id) for each in wire.frames()] == [(A, (20, 40))]
    assert set(wire.actions.oldest_unacked(member)) == {"q2"}
    assert wire.client(ack(1, 1)) == b""
    assert wire.client(ack(1, 3, True)) == ack(B, 1, True)
    wire.both(closed(A))
    assert "q1" not in member.links
    assert code_of(_refused(wire, ack(1, 3))) == 406


def _refused(wire: Wire, data: bytes) -> Frame:
    client_loop.from_client(wire.c, data)
    wire.to_broker()
    return split(wire.broker(closed(1)))[0]


@pytest.mark.parametrize(("code", "queue", "is_told"), [(541, "q2", True), (541, "q9", False), (320, "q2", False)])
def test_the_group_is_told_of_the_link_for_which_the_broker_closes_the_connection(
    code: int, queue: str, is_told: bool
) -> None:
    text = f"INTERNAL_ERROR - failed consuming from quorum queue '{queue}' in vhost '/': noproc"
    close = made(0, commands.Connection.Close(code, text, 60, 20))
    wire = Grouping()
    member = wire.begin()
    wire.to_broker()
    wire.told()
    wire.broker(close)
    assert [each for each in wire.told() if isinstance(each, LinkBroken)] == [LinkBroken(member, "q2", text)] * is_told


def test_an_open_link_is_not_why_the_broker_closes_a_connection() -> None:
    wire = joined()
    text = "INTERNAL_ERROR - failed consuming from quorum queue 'q1' in vhost '/': noproc"
    wire.broker(made(0, commands.Connection.Close(541, text, 60, 20)))
    assert not any(isinstance(each, LinkBroken) for each in wire.told())


def test_a_shard_that_is_gone_ends_its_link_alone() -> None:
    wire = holding()
    (member,) = wire.consuming.consumers
    to_broker, to_client = wire.both(
        made(A, commands.Basic.Cancel("c", True)) + made(A, commands.Basic.Cancel("c", True))
    )
    assert [each.channel for each in split(to_broker) if is_close(each)] == [A]
    assert to_client == b""
    assert wire.told() == [LinkRefused(member, "q1", 0, "the broker has cancelled the consumer")]
    assert wire.client(ack(1, 3, True)) == ack(B, 1, True)


def test_a_queue_that_takes_no_consumer_timeout_gets_none() -> None:
    """RabbitMQ 4.3.6 refuses it for a classic queue."""
    wire = Grouping()
    wire.consuming.consumer_timeout = 1000
    member = wire.begin(["q1"])
    assert b"x-consumer-timeout" in wire.to_broker()
    wire.to_client()
    reason = b"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q1' in vhost '/' of queue type classic"
    assert wire.both(close_channel(A, 406, reason, (60, 20))) == (closed(A), b"")
    assert (wire.told(), member.links) == ([], {})
    wire.actions.open(member, "q1")
    assert b"x-consumer-timeout" not in wire.to_broker()
    wire.both(opened(member.links["q1"].channel))
    assert member.links["q1"].state == LinkState.OPEN


def test_a_link_that_the_broker_closes_frees_its_number_once_both_have_closed_it() -> None:
    timeout = close_channel(A, 406, b"PRECONDITION_FAILED - delivery acknowledgement timed out", (0, 0))
    wire = holding()
    assert wire.both(timeout) == (closed(A), b"")
    assert A in wire.consuming.free
    wire = holding()
    client_loop.from_client(wire.c, made(1, commands.Channel.Close(200, "", 0, 0)))
    wire.to_broker()
    assert wire.both(timeout) == (closed(A), b"")
    assert A not in wire.consuming.free
    assert wire.broker(closed(A)) == b""
    assert A in wire.consuming.free


def test_a_link_that_both_close_at_once_is_closed_before_its_close_is_answered() -> None:
    """RabbitMQ ends the connection for a channel.close behind its channel's close-ok."""
    gone = close_channel(A, 406, b"PRECONDITION_FAILED - anything", (0, 0))
    for first in (close_channel(1, 404, b"NOT_FOUND - no exchange 'e'"), made(A, commands.Basic.Cancel("c"))):
        wire = joined()
        to_broker, _ = wire.both(first + gone)
        assert [each.id for each in split(to_broker) if each.channel == A] == [(20, 40), (20, 41)]


def test_a_client_that_did_not_ask_for_cancels_gets_none() -> None:
    wire = Grouping()
    wire.c.handshake.cancel_notify = False
    wire.client(consume(1, "p", "plain"))
    assert wire.broker(made(1, commands.Basic.Cancel("p"))) == b""


def test_nothing_is_done_for_a_session_that_ends() -> None:
    wire = joined()
    (member,) = wire.consuming.consumers
    wire.c.enter(Phase.CLOSING)
    wire.actions.open(member, "q3")
    wire.actions.let_go(member, "q1")
    wire.actions.give_up(member, "q1")
    wire.actions.refuse(member, 404, "gone")
    wire.actions.start(member)
    assert (wire.to_broker(), wire.to_client()) == (b"", b"")
    assert wire.actions.oldest_unacked(member) == {}


def test_without_the_setting_nothing_is_looked_at() -> None:
    wire = Wire()
    data = consume(1) + ack(1, 4) + made(1, commands.Basic.Cancel("c")) + made(1, commands.Basic.Recover(True))
    assert wire.client(data) == data
    assert numbering_of(wire.c.channels[1]) is None
    assert method(1, 60, 21) == wire.broker(method(1, 60, 21))


def test_a_prefetch_that_the_channel_has_no_room_for_opens_no_further_link() -> None:
    """Each delivery without an ack takes memory here, so a channel may hold only so many."""
    wire = Grouping()
    wire.client(made(1, commands.Basic.Qos(0, 65_535)))
    member = wire.begin(["q1", "q2", "q3", "q4"])
    assert "may hold 262144 messages" in wire.actions.open(member, "q5")
    assert "q5" not in member.links


def test_a_client_that_acks_nothing_loses_its_channel_before_it_takes_much_memory() -> None:
    wire = joined()
    wire.broker(deliver(A, 1))
    numbering = numbering_of(wire.c.channels[1])
    assert numbering is not None
    while len(numbering.unacked) < MOST_UNACKED - 1:
        numbering.add(numbering.own, numbering.last, 0.0)
    to_broker, to_client = wire.both(deliver(B, 1, b"abc"))
    assert to_client == seen(MOST_UNACKED, b"abc")
    assert sorted(each.channel for each in split(to_broker) if is_close(each)) == [1, A, B]
    assert wire.broker(deliver(A, 2)) == b""
    assert code_of(split(wire.broker(closed(1)))[0]) == 506
