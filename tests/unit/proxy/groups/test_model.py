"""The table of a link's states: each row, and that nothing else can come."""

import itertools

import pytest

from proxy.groups.model import TABLE, Ending, Link, LinkAction, LinkEvent, LinkState, Member
from proxy.groups.timing import FIRST_LINK_PAUSE, LONGEST_ENDING, LONGEST_LINK_PAUSE


def link(state: LinkState = LinkState.NONE, *, no_ack: bool = False) -> Link:
    member = Member("m", "/", "orders", 1, b"tag")
    member.no_ack = no_ack
    made = member.links["s"] = Link(member, "s")
    made.state = state
    return made


@pytest.mark.parametrize(("row", "then"), TABLE.items(), ids=lambda row: str(row))
def test_a_row_of_the_table(row: tuple[LinkState, LinkEvent], then: tuple[LinkState, LinkAction]) -> None:
    (before, event), (after, action) = row, then
    its = link(before)
    is_silent = action is LinkAction.CANCEL  # a member with acks is not cancelled
    assert its.enter(event, 5.0) == (LinkAction.NOTHING if is_silent else action)
    assert its.state == after
    assert its.changed_at == (5.0 if after is not before else 0.0)
    assert ("s" in its.member.links) is (after is not LinkState.NONE)


@pytest.mark.parametrize("row", [row for row in itertools.product(LinkState, LinkEvent) if row not in TABLE], ids=str)
def test_no_other_event_can_come(row: tuple[LinkState, LinkEvent]) -> None:
    its = link(row[0])
    with pytest.raises(RuntimeError, match=f"{row[1].name} in the state {row[0].name}"):
        its.enter(row[1], 5.0)
    assert its.state == row[0]


def test_a_member_without_acks_is_cancelled_before_its_channel_is_closed() -> None:
    its = link(LinkState.OPEN, no_ack=True)
    assert its.enter(LinkEvent.LET_GO, 0.0) is LinkAction.CANCEL
    assert its.enter(LinkEvent.SETTLED, 0.0) is LinkAction.CLOSE
    assert its.enter(LinkEvent.CLOSED, 0.0) is LinkAction.NOTHING
    assert its.state == LinkState.NONE


@pytest.mark.parametrize("state", LinkState)
def test_every_state_but_the_first_ends_whatever_the_broker_or_the_session_does(state: LinkState) -> None:
    for event in (LinkEvent.REFUSED, LinkEvent.LOST):
        if state is not LinkState.NONE:
            its = link(state)
            its.enter(event, 0.0)
            assert its.state == LinkState.NONE


def test_the_pause_after_a_refusal_doubles_and_tells_since_when() -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    assert member.refused("s", "403", 10.0)
    assert member.pauses["s"][:3] == (10.0, 10.0 + FIRST_LINK_PAUSE, FIRST_LINK_PAUSE)
    assert not member.refused("s", "403", 12.0)
    assert member.pauses["s"][:3] == (10.0, 12.0 + 2 * FIRST_LINK_PAUSE, 2 * FIRST_LINK_PAUSE)
    assert member.refused("s", "404", 20.0)
    for _ in range(20):
        member.refused("s", "404", 30.0)
    assert member.pauses["s"].length == LONGEST_LINK_PAUSE


def test_a_pause_for_lack_of_room_is_over_as_soon_as_a_link_ends() -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    member.refused("full", "no channel number is free", 10.0, lacked_room=True)
    member.refused("denied", "403", 10.0)
    link = member.links["s"] = Link(member, "s")
    link.enter(LinkEvent.WANT, 10.0)
    assert {shard: pause.until for shard, pause in member.pauses.items()} == {"full": 11.0, "denied": 11.0}
    link.enter(LinkEvent.REFUSED, 10.5)
    assert {shard: pause.until for shard, pause in member.pauses.items()} == {"full": 10.5, "denied": 11.0}
    # It is no news that there is no room still.
    assert not member.refused("full", "no channel number is free", 10.6, lacked_room=True)


def ended(member: Member, now: float, delivered: int = 0) -> None:
    """Have a link of the member end at a marker, behind so many messages."""
    its = member.links["s"] = Link(member, "s")
    its.since = 1000.0
    its.enter(LinkEvent.WANT, now)
    its.enter(LinkEvent.CONSUMING, now)
    its.delivered, its.is_marked = delivered, True
    for event in (LinkEvent.LET_GO, LinkEvent.SETTLED):
        its.enter(event, now)
    assert "s" not in member.endings or member.endings["s"].until <= now
    its.enter(LinkEvent.CLOSED, now)


def test_the_pause_after_a_marker_begins_with_the_links_end_and_doubles_until_messages_have_come() -> None:
    member = Member("m", "/", "orders", 1, b"tag")
    now, lengths = 10.0, []
    for _ in range(6):
        ended(member, now)
        ending = member.endings["s"]
        assert ending == Ending(now + ending.length, ending.length, 1000.0, at=now)
        lengths.append(ending.length)
        now = ending.until
    assert lengths[:3] == [FIRST_LINK_PAUSE, 2 * FIRST_LINK_PAUSE, 4 * FIRST_LINK_PAUSE]
    assert lengths[-1] == LONGEST_ENDING
    ended(member, now, delivered=1)
    assert member.endings["s"].length == FIRST_LINK_PAUSE
    assert member.pauses == {}
    member.refused("s", "403", now)
    member.forget("s")
    assert (member.endings, member.pauses) == ({}, {})


def test_a_shard_whose_consumer_the_broker_cancelled_is_left_alone_as_its_queue_may_be_deleted() -> None:
    its = link(LinkState.OPEN)
    its.enter(LinkEvent.CANCELLED, 5.0)
    assert its.may_end_its_shard
    its.enter(LinkEvent.CLOSED, 6.0)
    assert its.member.endings["s"] == Ending(7.0, FIRST_LINK_PAUSE, its.since, is_over=True, at=6.0)


@pytest.mark.parametrize("event", [LinkEvent.GIVE_UP, LinkEvent.CANCELLED, LinkEvent.REFUSED, LinkEvent.LOST])
def test_a_link_by_which_a_marker_came_is_followed_by_a_pause_whatever_ends_it(event: LinkEvent) -> None:
    its = link(LinkState.OPEN)
    its.is_marked = True
    its.enter(event, 5.0)
    if its.state == LinkState.CLOSING:
        assert its.member.endings == {}
        its.enter(LinkEvent.CLOSED, 5.0)
    assert its.member.endings["s"].until == 5.0 + FIRST_LINK_PAUSE
