"""Shards that cost a client its connection."""

from proxy.groups.broken import FIRST, FORGOTTEN, LONGEST, Broken
from proxy.groups.group import Group
from proxy.groups.model import Link, LinkEvent, Member

NOW = 1000.0


def test_a_pause_doubles_from_one_loss_to_the_next_up_to_the_longest() -> None:
    broken, now = Broken(), NOW
    lengths = []
    for _ in range(7):
        pause = broken.note("s1", "noproc", now)
        assert pause.until - now == pause.length
        lengths.append(pause.length)
        assert broken.pauses(now) == {"s1": pause}
        assert broken.pauses(pause.until) == {}
        now = pause.until + 1.0
    assert lengths == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST, LONGEST, LONGEST]
    assert pause.since == NOW


def test_a_shard_that_was_well_for_long_begins_anew() -> None:
    broken = Broken()
    end = broken.note("s1", "noproc", NOW).until + FIRST + FORGOTTEN
    assert not broken.forget(end - 1.0)
    assert broken.forget(end)
    assert broken.note("s1", "noproc", end).length == FIRST


def group(*members: Member) -> Group:
    made = Group("a", "host", NOW)
    made.connected("queue of a", NOW)
    made.follow(["s1", "s2"], NOW, NOW)
    for member in members:
        made.joined(member, NOW)
    return made


def member(name: str) -> Member:
    return Member(name, "/", "orders", 1, b"tag")


def refused(made: Group, name: str, now: float) -> frozenset[str]:
    return made.members(now)[name].refused


def test_no_member_beside_the_lost_one_opens_a_link_and_the_group_goes_on_deciding() -> None:
    made = group(member("m1"), member("m2"))
    pause = made.link_broken("s1", "noproc", NOW + 1.0)
    assert made.due <= NOW + 3.0
    made.left(made.local["m1"], NOW + 1.0)
    assert refused(made, "m2", NOW + 2.0) == {"s1"}
    assert refused(made, "m2", NOW + 1.0 + pause) == frozenset()
    assert made.present == ["s1", "s2"]


def test_a_member_that_comes_after_the_loss_leaves_the_shard_alone_too() -> None:
    made = group(member("m1"))
    pause = made.link_broken("s1", "noproc", NOW + 1.0)
    made.joined(member("m2"), NOW + 2.0)
    assert refused(made, "m2", NOW + 2.0) == {"s1"}
    made.joined(member("m3"), NOW + 1.0 + pause)
    assert refused(made, "m3", NOW + 1.0 + pause) == frozenset()


def test_an_open_link_stays() -> None:
    made = group(member("m1"), member("m2"))
    holder = made.local["m1"]
    link = holder.links["s1"] = Link(holder, "s1")
    for event in (LinkEvent.WANT, LinkEvent.CONSUMING):
        link.enter(event, NOW)
    made.link_broken("s1", "noproc", NOW + 1.0)
    assert not refused(made, "m1", NOW + 2.0)
    assert refused(made, "m2", NOW + 2.0) == {"s1"}
