"""The other sidecars of a group: who is there, who is gone, and when nobody can be said to be gone."""

import pytest

from proxy.groups import peers as peers_module
from proxy.groups.beat import Beat, LinkBeat, MemberBeat
from proxy.groups.peers import ECHO_BEATS, MOST_PEERS, OTHER_VERSION, READY, SILENT_BEATS, Peers

EVERY = 1.0


def beat(sidecar: str, number: int, *members: str, every: float = EVERY, stalled: bool = False) -> Beat:
    told = tuple(MemberBeat(member, "", 0.0, is_stalled=stalled) for member in members)
    return Beat(sidecar, "host", number, every, told)


def peers(now: float = 100.0) -> Peers:
    made = Peers("own")
    made.heard(beat("own", 1), (), EVERY, now)
    return made


def test_the_first_beat_of_a_sidecar_is_to_be_answered() -> None:
    made = peers()
    first = made.heard(beat("a", 5, "m"), (), EVERY, 100.0)
    assert (first.is_new, first.is_news, [member.id for member in first.members]) == (True, True, ["m"])
    second = made.heard(beat("a", 6, "m"), (), EVERY, 101.0)
    assert (second.is_new, second.is_news) == (False, False)


def test_members_that_come_go_or_stall_are_news() -> None:
    made = peers()
    made.heard(beat("a", 1, "m"), (), EVERY, 100.0)
    more = made.heard(beat("a", 2, "m", "n"), (), EVERY, 100.0)
    assert more.is_news
    fewer = made.heard(beat("a", 3, "n"), (), EVERY, 100.0)
    assert fewer.is_news
    assert set(fewer.gone) == {"m"}
    assert made.heard(beat("a", 4, "n", stalled=True), (), EVERY, 100.0).is_news
    left = made.heard(beat("a", 5), (), EVERY, 100.0)
    assert set(left.gone) == {"n"}
    assert not made.all


def test_beats_that_come_twice_or_late_are_ignored_and_those_that_do_not_come_are_counted() -> None:
    made = peers()
    for number in (1, 2, 5, 5, 4):
        made.heard(beat("a", number, str(number)), (), EVERY, 100.0)
    assert made.lost == 2
    assert made.members.keys() == {"5"}


def test_a_sidecar_that_is_silent_for_four_of_its_beats_is_gone() -> None:
    made = peers()
    made.heard(beat("a", 1, "m"), (), EVERY, 100.0)
    made.heard(beat("slow", 1, "n", every=10.0), (), EVERY, 100.0)
    later = 100.0 + SILENT_BEATS * EVERY
    for second in range(SILENT_BEATS + 1):
        made.heard(beat("own", 1), (), EVERY, 100.0 + second)
    assert made.expire(later, EVERY) == []
    (gone,) = made.expire(later + 0.1, EVERY)
    assert gone.members.keys() == {"m"}
    assert made.members.keys() == {"n"}


def test_while_a_sidecar_does_not_hear_itself_nobody_is_gone_and_then_all_have_a_moment_to_be_heard() -> None:
    made = peers()
    made.heard(beat("own", 1), (), EVERY, 101.0)
    made.heard(beat("a", 1, "m"), (), EVERY, 101.0)
    assert made.hears(101.0 + ECHO_BEATS, EVERY)
    assert not made.hears(101.1 + ECHO_BEATS, EVERY)
    assert made.expire(110.0, EVERY) == []
    made.heard(beat("own", 2), (), EVERY, 110.0)
    assert not made.hears(110.0, EVERY)
    assert made.hears(110.0 + READY, EVERY)
    assert made.expire(110.0 + READY, EVERY) == []


def test_without_its_own_beats_a_sidecar_hears_nobody() -> None:
    made = Peers("own")
    assert not made.hears(100.0, EVERY)
    made.heard(beat("a", 1, "m"), (), EVERY, 100.0)
    assert not made.hears(100.0 + READY, EVERY)
    made.heard(beat("own", 1), (), EVERY, 100.0)
    assert not made.hears(100.0, EVERY)
    assert made.hears(100.0 + READY, EVERY)
    made.disconnected()
    assert not made.hears(100.0 + READY, EVERY)


def test_nobody_takes_over_the_members_of_another() -> None:
    made = peers()
    made.heard(beat("a", 1, "m"), ("local",), EVERY, 100.0)
    stolen = made.heard(beat("b", 1, "m", "local", "n"), ("local",), EVERY, 100.0)
    assert [member.id for member in stolen.members] == ["n"]
    assert made.members["m"][0] is made.all["a"]
    # With the beat in which the first one gives it up, it is free.
    made.heard(beat("a", 2, "k"), ("local",), EVERY, 100.0)
    assert [member.id for member in made.heard(beat("b", 2, "m"), ("local",), EVERY, 100.0).members] == ["m"]


def test_no_more_sidecars_are_known_than_the_limit() -> None:
    made = peers()
    for number in range(MOST_PEERS + 1):
        made.heard(beat(f"sidecar-{number}", 1, f"member-{number}"), (), EVERY, 100.0)
    assert len(made.all) == MOST_PEERS
    assert not made.heard(beat("gone", 1), (), EVERY, 100.0).is_new


def test_a_sidecar_whose_members_have_left_and_hold_nothing_has_left_the_group() -> None:
    made = peers()
    held = {"s": LinkBeat(0, 0, None, 1)}
    made.heard(beat("a", 1, "m"), (), EVERY, 100.0)
    leaving = made.heard(
        Beat("a", "host", 2, EVERY, (MemberBeat("m", "", 0.0, is_leaving=True, links=held),)), (), EVERY, 100.0
    )
    assert (leaving.is_news, set(leaving.gone), set(made.all)) == (True, set(), {"a"})
    last = made.heard(Beat("a", "host", 3, EVERY, (MemberBeat("m", "", 0.0, is_leaving=True),)), (), EVERY, 100.0)
    assert ([member.id for member in last.members], set(last.gone), set(made.all)) == (["m"], {"m"}, set())


def test_what_others_tell_has_a_limit_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to the group's exchange can make up sidecars, members and links."""
    monkeypatch.setattr(peers_module, "MOST_TOLD", 10)
    made = peers()
    made.heard(beat("a", 1, *map(str, range(6))), (), EVERY, 100.0)
    assert made.heard(beat("b", 1, *map(str, range(10, 15))), (), EVERY, 100.0).members == ()
    assert made.all.keys() == {"a"}
    made.heard(beat("b", 2, *map(str, range(10, 14))), (), EVERY, 100.0)
    assert made.heard(beat("a", 2, *map(str, range(7))), (), EVERY, 100.0).members == ()
    assert len(made.all["a"].members) == 6
    made.heard(beat("a", 3), (), EVERY, 100.0)
    made.heard(beat("b", 3, *map(str, range(10, 20))), (), EVERY, 100.0)
    assert len(made.members) == 10


def test_sidecars_of_another_release_count_until_they_are_silent() -> None:
    made = peers()
    for number in range(MOST_PEERS + 1):
        made.heard_other_version(str(number), 100.0)
    assert made.other_versions(100.0) == MOST_PEERS
    made.heard_other_version("0", 110.0)
    assert made.other_versions(100.0 + OTHER_VERSION + 1) == 1
