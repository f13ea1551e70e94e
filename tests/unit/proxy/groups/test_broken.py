"""Shards that cost a client its connection."""

from proxy.groups.broken import FIRST, LONGEST, Broken
from proxy.groups.group import Group
from proxy.groups.shard_readings import left_alone


def test_a_pause_doubles_from_one_loss_to_the_next_up_to_the_longest() -> None:
    broken, now = Broken(), 1000.0
    lengths = []
    for _ in range(7):
        until = broken.note("s1", now)
        lengths.append(until - now)
        now = until + 1.0
    assert lengths == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST, LONGEST, LONGEST]
    assert broken.until("s1") == now - 1.0
    assert broken.until("s2") == 0.0


def test_a_shard_that_was_well_for_as_long_as_its_pause_begins_anew() -> None:
    broken = Broken()
    until = broken.note("s1", 1000.0)
    assert not broken.forget(until + FIRST - 1.0)
    assert broken.forget(until + FIRST)
    assert broken.note("s1", until + FIRST) == until + 2 * FIRST


def test_a_group_of_new_members_leaves_the_shard_alone_until_a_reading_after_its_pause() -> None:
    group = Group("a", "host", 1000.0)
    until = group.broken.note("s1", 1000.0)
    group.follow(["s1", "s2"], 1000.5, 1001.0)
    assert group.present == ["s2"]
    group.follow(["s1", "s2"], until - 0.1, until)
    assert group.present == ["s2"]
    group.follow(["s1", "s2"], until + 0.1, until + 0.2)
    assert group.present == ["s1", "s2"]


def test_a_group_that_begins_after_the_pause_has_the_shard() -> None:
    group = Group("a", "host", 1000.0)
    until = group.broken.note("s1", 1000.0)
    group.follow(["s1"], until + 1.0, until + 1.0)
    assert group.present == ["s1"]


def test_a_shard_off_the_ring_is_kept_and_the_group_goes_on_deciding() -> None:
    """It may hold messages. The member whose connection is lost may have others beside it."""
    group = Group("a", "host", 1000.0)
    group.follow(["s1", "s2"], 1000.0, 1000.0)
    group.follow(["s2"], 1001.0, 1001.0)
    until = group.link_broken("s1", 1002.0)
    assert (group.present, group.broken_shards) == (["s2"], ["s1"])
    assert group.due <= 1004.0
    group.follow(["s2"], until + 0.1, until + 0.2)
    assert (group.present, group.broken_shards) == (["s1", "s2"], [])
    assert group.shards["s1"].told_at == until + 0.2


def test_a_report_says_which_shards_are_left_alone() -> None:
    assert left_alone([]) == ()
    (why,) = left_alone(["s2", "s1"])
    assert why.startswith("shards 's1', 's2': not consumed for a while")
