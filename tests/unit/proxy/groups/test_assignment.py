"""The assignment of shards to members: balance, stickiness, and one answer in every sidecar."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.assignment import assign

MEMBERS = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=12)
SHARDS = st.sets(st.integers(0, 60), max_size=40).map(lambda numbers: {f"orders.{number}" for number in numbers})


@st.composite
def groups(draw: st.DrawFn) -> tuple[set[str], set[str], dict[str, str]]:
    """Members, shards, and who holds which of them: some nobody, some a member that is gone."""
    members, shards = draw(MEMBERS), draw(SHARDS)
    holders = st.dictionaries(st.sampled_from(sorted(shards)), st.sampled_from([*sorted(members), "gone"]))
    return members, shards, draw(holders) if shards else {}


def counts(members: set[str], assigned: dict[str, str]) -> list[int]:
    found = Counter(assigned.values())
    return sorted(found[member] for member in members)


@given(groups())
def test_every_shard_has_one_member_and_no_count_is_further_than_one_from_another(
    group: tuple[set[str], set[str], dict[str, str]],
) -> None:
    members, shards, holders = group
    assigned = assign(members, shards, holders, {})
    assert assigned.keys() == shards
    assert set(assigned.values()) <= members
    found = counts(members, assigned)
    assert found[-1] - found[0] <= 1


@given(groups())
def test_no_more_shards_move_than_balance_demands(group: tuple[set[str], set[str], dict[str, str]]) -> None:
    members, shards, holders = group
    assigned = assign(members, shards, holders, {})
    held = Counter(holder for shard, holder in holders.items() if holder in members)
    share, larger = divmod(len(shards), len(members))
    # The most that can stay: all up to the share, and one more for as many members as may have one more.
    most = sum(min(held[member], share) for member in members)
    most += min(larger, sum(held[member] > share for member in members))
    assert sum(holders.get(shard) == member for shard, member in assigned.items()) == most


@given(groups(), st.randoms())
def test_the_order_of_members_shards_and_holders_does_not_matter(
    group: tuple[set[str], set[str], dict[str, str]], random: Random
) -> None:
    members, shards, holders = group
    any_members, any_shards, items = list(members), list(shards), list(holders.items())
    random.shuffle(any_members)
    random.shuffle(any_shards)
    random.shuffle(items)
    assert assign(any_members, any_shards, dict(items), {}) == assign(members, shards, holders, {})


@given(MEMBERS, SHARDS)
def test_a_balanced_group_stays_as_it_is(members: set[str], shards: set[str]) -> None:
    once = assign(members, shards, {}, {})
    assert assign(members, shards, once, {}) == once


@given(MEMBERS, SHARDS)
def test_a_join_moves_no_more_than_the_newcomers_shards(members: set[str], shards: set[str]) -> None:
    before = assign(members, shards, {}, {})
    after = assign({*members, "newcomer"}, shards, before, {})
    moved = {shard for shard in shards if before[shard] != after[shard]}
    assert {after[shard] for shard in moved} <= {"newcomer"}
    assert len(moved) in (len(shards) // (len(members) + 1), -(-len(shards) // (len(members) + 1)))


@given(MEMBERS, SHARDS)
def test_a_leave_moves_no_more_than_the_leavers_shards(members: set[str], shards: set[str]) -> None:
    before = assign({*members, "leaver"}, shards, {}, {})
    after = assign(members, shards, before, {})
    assert {before[shard] for shard in shards if before[shard] != after[shard]} <= {"leaver"}


@given(groups(), st.randoms())
def test_moving_shards_one_by_one_leads_to_what_was_wanted_at_first_or_to_a_balance_all_the_same(
    group: tuple[set[str], set[str], dict[str, str]], random: Random
) -> None:
    """Shards move one after the other, and the assignment is computed anew each time: no shard moves twice."""
    members, shards, holders = group
    now, moves = dict(holders), Counter[str]()
    for _ in range(len(shards) + 1):
        wanted = assign(members, shards, now, {})
        todo = sorted(shard for shard in shards if now.get(shard) != wanted[shard])
        if not todo:
            break
        shard = random.choice(todo)
        moves[shard] += 1
        now[shard] = wanted[shard]
    assert assign(members, shards, now, {}) == now
    assert not moves or max(moves.values()) == 1


def test_without_members_nothing_is_assigned() -> None:
    assert assign([], ["orders.0"], {"orders.0": "gone"}, {}) == {}


@pytest.mark.parametrize(
    ("holders", "assigned"),
    [
        ({}, {"a": ["1", "2", "3"], "b": ["4", "5"]}),
        (dict.fromkeys("12345", "b"), {"a": ["4", "5"], "b": ["1", "2", "3"]}),
        ({"2": "a", "3": "b", "4": "b", "5": "gone"}, {"a": ["1", "2"], "b": ["3", "4", "5"]}),
    ],
)
def test_who_holds_more_rounds_up(holders: dict[str, str], assigned: dict[str, list[str]]) -> None:
    found = assign("ab", "12345", holders, {})
    assert {member: sorted(shard for shard in found if found[shard] == member) for member in "ab"} == assigned
