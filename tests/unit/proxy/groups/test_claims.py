"""Claims to shards: the highest epoch wins, and the broker's priorities say the same."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.claims import MAX_EPOCH, MOST_KNOWN, Claim, Claims, priority


def test_the_highest_epoch_wins_whoever_comes_first() -> None:
    claims = Claims()
    claims.add("s", 2, "b", 1.0)
    claims.add("s", 1, "a", 2.0)
    assert claims.holder("s") == Claim(2, "b", 1.0)
    assert claims.holders == {"s": "b"}
    assert claims.epoch("s") == 2


@given(st.integers(1, MAX_EPOCH), st.sets(st.text(min_size=1), min_size=2, max_size=5))
def test_ties_are_broken_as_the_broker_breaks_them(epoch: int, members: set[str]) -> None:
    claims = Claims()
    for member in members:
        claims.add("s", epoch, member, 0.0)
    won = claims.holder("s")
    assert won is not None
    assert priority(epoch, won.member) == max(priority(epoch, member) for member in members)


@given(st.integers(0, MAX_EPOCH - 1), st.text(), st.text())
def test_a_higher_epoch_is_a_higher_priority_of_64_bits(epoch: int, one: str, other: str) -> None:
    assert 0 <= priority(epoch, one) < priority(epoch + 1, other) < 2**63


def test_a_claim_seen_again_keeps_its_time() -> None:
    claims = Claims()
    claims.replace("a", {"s": 1, "t": 1}, 1.0)
    claims.replace("a", {"s": 1}, 5.0)
    assert claims.holder("s") == Claim(1, "a", 1.0)
    assert claims.holder("t") is None
    assert claims.vacant_since("t") == 5.0


def test_who_was_passed_over_holds_the_shard_again_when_the_holder_leaves() -> None:
    claims = Claims()
    claims.add("s", 1, "a", 1.0)
    claims.add("s", 2, "b", 2.0)
    claims.drop("s", "b", 7.0)
    assert claims.holder("s") == Claim(1, "a", 1.0)
    claims.drop("s", "a", 3.0)
    assert claims.holder("s") is None
    assert claims.epoch("s") == 2
    assert claims.vacant_since("s") == 3.0


def test_the_end_of_a_claim_that_had_lost_changes_nothing() -> None:
    claims = Claims()
    claims.add("s", 1, "a", 1.0)
    claims.add("s", 2, "b", 2.0)
    claims.drop("s", "a", 9.0)
    claims.drop("s", "nobody", 9.0)
    claims.drop("t", "a", 9.0)
    assert claims.holder("s") == Claim(2, "b", 2.0)
    assert claims.vacant_since("s") == 0.0


def test_of_a_shard_that_is_gone_the_epoch_is_remembered_since_it_may_come_back() -> None:
    claims = Claims()
    for shard in "stu":
        claims.add(shard, 4, "a", 1.0)
        claims.drop(shard, "a", 2.0)
    claims.add("u", 5, "a", 3.0)
    claims.follow({"s", "new"}, 9.0)
    assert [claims.epoch(shard) for shard in "stu"] == [4, 4, 5]
    assert [claims.vacant_since(shard) for shard in ("s", "t", "new")] == [2.0, 0.0, 9.0]
    assert (claims.left_at("s"), claims.left_at("new")) == (2.0, 0.0)
    claims.follow({"t"}, 12.0)
    assert claims.left_at("t") == 12.0


def test_for_want_of_room_the_epochs_of_shards_that_are_gone_are_forgotten() -> None:
    claims = Claims()
    claims.add("claimed", 4, "a", 1.0)
    claims.learn("bound", 3)
    for number in range(MOST_KNOWN - 2):
        assert claims.may_learn(f"{number}")
        claims.learn(f"{number}", 2)
    assert not claims.may_learn("more")
    assert claims.may_learn("0")
    claims.follow({"bound"}, 9.0)
    assert [claims.epoch(shard) for shard in ("claimed", "bound", "0")] == [4, 3, 0]
    assert claims.may_learn("more")
