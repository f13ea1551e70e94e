"""The tries of messages in series, as sidecars tell each other of them."""

import pytest

from proxy.groups.attempts import KEPT, MOST_ATTEMPTS, MOST_TOLD, Attempt, Attempts


def test_tries_are_noted_until_their_message_is_settled() -> None:
    attempts = Attempts()
    attempts.note("q", "a", 1, 10.0)
    attempts.note("q", "a", 2, 20.0)
    assert attempts.of("q", "a") == Attempt(2, 20.0)
    assert attempts.told([]) == {"q": {"a": Attempt(2, 20.0)}}
    attempts.forget("q", "a")
    attempts.forget("q", "a")
    assert attempts.of("q", "a") is None
    assert attempts.shards == {} == attempts.told(["q"])


def test_a_try_that_does_not_count_is_forgotten() -> None:
    attempts = Attempts()
    attempts.note("q", "a", 1, 10.0)
    attempts.note("q", "a", 0, 10.0)
    assert attempts.shards == {}


def test_what_the_owner_of_a_shard_tells_replaces_what_was_known() -> None:
    attempts = Attempts()
    attempts.note("q", "a", 1, 10.0)
    assert attempts.told([]) == {"q": {"a": Attempt(1, 10.0)}}
    attempts.replace("q", {"b": Attempt(3, 5.0)})
    assert attempts.shards == {"q": {"b": Attempt(3, 5.0)}}
    # Another sidecar owns the shard, so that this one does not tell of it, until it owns it itself.
    assert attempts.told([]) == {}
    assert attempts.told(["q"]) == {"q": {"b": Attempt(3, 5.0)}}
    attempts.replace("q", {})
    assert attempts.shards == {}


def test_what_this_sidecar_knows_better_is_not_replaced_before_it_is_told() -> None:
    """Its client was lost after the shard has moved, and the owner tells of what was before."""
    attempts = Attempts()
    attempts.note_crash("q", "a", 10.0, is_alone=True)
    before = attempts.told([])
    attempts.replace("q", before["q"])
    attempts.note_company("q", "a")
    attempts.note_crash("q", "b", 11.0, is_alone=False)
    attempts.replace("q", before["q"])
    news = {"q": {"a": Attempt(0, 10.0, 1, False), "b": Attempt(0, 11.0, 1, False)}}
    assert attempts.shards == attempts.told([]) == news
    attempts.replace("q", before["q"])
    assert attempts.shards == before, "the owner has been told"


@pytest.mark.parametrize(
    ("own", "other", "merged"),
    [
        # The higher count of crashes knows the last crash.
        (Attempt(3, 10.0, 1, False, 7.0), Attempt(2, 20.0, 2, True, 5.0), Attempt(3, 20.0, 2, True, 5.0)),
        (Attempt(1, 30.0, 2, False), Attempt(2, 20.0, 1, True, 5.0), Attempt(2, 30.0, 2, False, 5.0)),
        # It is one crash of which both know, and one of them knows of company.
        (Attempt(0, 10.0, 1, True), Attempt(0, 10.0, 1, False), Attempt(0, 10.0, 1, False)),
    ],
)
def test_two_sidecars_know_the_most_tries_and_crashes_of_a_message(
    own: Attempt, other: Attempt, merged: Attempt
) -> None:
    for one, two in ((own, other), (other, own)):
        attempts = Attempts()
        attempts.merge("q", {"a": one})
        attempts.merge("q", {})
        assert attempts.shards == {"q": {"a": one}}
        attempts.merge("q", {"a": two})
        assert attempts.shards == {"q": {"a": merged}}


def test_few_are_noted_and_told_whatever_clients_and_other_sidecars_do() -> None:
    attempts = Attempts()
    for number in range(MOST_TOLD + 10):
        attempts.note(f"q{number % 3}", str(number), 1, 10.0)
    assert sum(map(len, attempts.shards.values())) == MOST_TOLD
    attempts.note("q0", "0", 2, 10.0)
    assert attempts.of("q0", "0") == Attempt(2, 10.0)
    for number in range(30):
        attempts.replace(f"told {number}", {str(n): Attempt(1, 1.0) for n in range(MOST_ATTEMPTS)})
        attempts.merge(f"q{number}", {str(n): Attempt(1, 1.0) for n in range(MOST_ATTEMPTS)})
    assert sum(map(len, attempts.shards.values())) <= MOST_TOLD
    assert sum(map(len, attempts.told(list(attempts.shards)).values())) == MOST_ATTEMPTS


def test_tries_of_messages_that_do_not_come_again_expire() -> None:
    attempts = Attempts()
    attempts.note("q", "a", 1, 10.0)
    attempts.note("q", "b", 1, 11.0)
    attempts.note("q", "made up", 1, 1e10)
    attempts.expire(KEPT + 10.5)
    assert attempts.shards == {"q": {"b": Attempt(1, 11.0)}}


def test_tries_of_a_message_that_is_held_do_not_expire() -> None:
    attempts = Attempts()
    attempts.note("q", "a", 1, 10.0, since=5.0)
    attempts.note_crash("q", "b", 10.0, is_alone=True)
    now = KEPT / 2 + 10.5
    attempts.expire(now, {"q": {"a"}}.__getitem__)
    assert attempts.shards == {"q": {"a": Attempt(1, now, 0, False, 5.0), "b": Attempt(0, 10.0, 1, True)}}
    assert attempts.told([]).keys() == {"q"}
    attempts.expire(2 * now, {"q": ()}.__getitem__)
    assert list(attempts.shards["q"]) == ["a"]
    attempts.expire(now + KEPT, {"q": {"a"}}.__getitem__)
    assert attempts.shards == {"q": {"a": Attempt(1, now + KEPT, 0, False, 5.0)}}


def test_a_lost_shard_is_told_before_owned_ones_that_fill_the_beat() -> None:
    attempts = Attempts()
    for number in range(MOST_ATTEMPTS):
        attempts.note("owned", f"{number}", 1, 1.0)
    attempts.note("lost", "m", 1, 1.0)
    told = attempts.told(["owned"])
    assert told["lost"].keys() == {"m"}
    assert len(told["owned"]) == MOST_ATTEMPTS - 1
    attempts.replace("lost", {})
    assert "lost" not in attempts.shards, "the new owner knows, and says that the message is settled"
