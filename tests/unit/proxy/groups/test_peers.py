"""The other sidecars of a group: who is there, who is late or gone, and when nobody can be said to be gone."""

import pytest
from msgspec.structs import replace

from proxy.groups import peers as peers_module
from proxy.groups.beats import Beat, LinkBeat, MemberBeat
from proxy.groups.peers import MOST_PEERS, OTHER_VERSION, Heard, News, Peers, Question
from proxy.groups.timing import ASK_AGAIN, BEAT, BEATS_UNTIL_GONE, DEAF, HEARD_A_SECOND, LATE

NOW = 100.0
GONE = BEATS_UNTIL_GONE * BEAT
OPEN = LinkBeat(2, 1.0, 0, True, "")


def beat(sidecar: str, number: int, *members: str, queue: str = "q", **more: object) -> Beat:
    told = tuple(MemberBeat(member, "", 0.0, **more) for member in members)  # type: ignore[arg-type]
    return Beat(sidecar, number, "host", queue, "ring", None, told)


def peers(now: float = NOW) -> Peers:
    made = Peers("own")
    made.echoed(now)
    return made


def hear(made: Peers, beat: Beat, now: float = NOW) -> Heard:
    return made.heard(beat, {}, now)


def test_the_first_beat_of_a_sidecar_and_of_its_next_queue_is_to_be_answered() -> None:
    made = peers()
    assert hear(made, beat("a", 5, "m")) == Heard(News.MEMBERS, is_new=True)
    assert hear(made, beat("a", 6, "m")) == Heard()
    assert hear(made, beat("a", 7, "m", queue="another")) == Heard(News.NOTHING, is_new=True)


def test_a_sign_of_life_of_a_sidecar_that_is_not_known_tells_nothing() -> None:
    made = peers()
    hear(
        made,
        Beat(
            "a",
            1,
        ),
    )
    hear(made, beat("b", 1))
    assert made.all == {}


@pytest.mark.parametrize(
    ("next_one", "news"),
    [
        (beat("a", 2, "m", "n"), News.MEMBERS),
        (beat("a", 2, "n"), News.MEMBERS),
        (beat("a", 2), News.MEMBERS),
        (beat("a", 2, "m", is_stalled=True), News.MEMBERS),
        (beat("a", 2, "m", is_leaving=True), News.MEMBERS),
        (beat("a", 2, "m", links={"s": OPEN}), News.LINKS),
        (beat("a", 2, "m", refused=frozenset({"s"})), News.LINKS),
        (Beat("a", 2, "host", "q", "another ring", None, (MemberBeat("m", "", 0.0),)), News.LINKS),
        (beat("a", 2, "m"), News.NOTHING),
        (
            Beat(
                "a",
                2,
            ),
            News.NOTHING,
        ),
    ],
)
def test_how_much_a_beat_changes(next_one: Beat, news: News) -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    assert hear(made, next_one).news is news


def test_what_clients_hold_is_no_news() -> None:
    made = peers()
    hear(made, beat("a", 1, "m", links={"s": OPEN}))
    assert hear(made, beat("a", 2, "m", links={"s": replace(OPEN, unacked=5)})) == Heard()
    assert made.all["a"].members["m"].links["s"].unacked == 5


def test_a_sidecar_without_members_has_left() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    hear(made, beat("a", 2))
    assert made.all == {}


def test_beats_that_come_twice_or_late_are_ignored_and_those_that_do_not_come_are_counted() -> None:
    made = peers()
    for number in (1, 2, 5, 5, 4):
        hear(made, beat("a", number, str(number)))
    assert made.lost == 2
    assert made.all["a"].members.keys() == {"5"}


def test_a_member_of_another_sidecar_is_not_taken_over() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    made.heard(beat("b", 1, "m", "own", "n"), {"own": None}, NOW)
    assert [peer.members.keys() for peer in made.all.values()] == [{"m"}, {"n"}]


# Late and gone.


def silent(made: Peers, until: float) -> None:
    """Let time go by in which only this sidecar's own beats come."""
    now = NOW
    while now < until:
        now = min(now + 1.0, until)
        made.echoed(now)


def test_a_late_sidecar_is_asked_for_and_is_gone_once_its_queue_is_twice_not_there() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    silent(made, NOW + LATE)
    assert made.expire(NOW + LATE) == ([], [])
    later = NOW + LATE + 0.1
    assert made.expire(later) == ([], [Question("a", "q")])
    assert made.expire(later + 0.1) == ([], [])
    assert not made.answered(Question("a", "q"), is_there=False, now=later + 0.1)
    silent(made, later + ASK_AGAIN)
    assert made.expire(later + ASK_AGAIN) == ([], [Question("a", "q")])
    assert made.answered(Question("a", "q"), is_there=False, now=later + ASK_AGAIN + 0.1)


@pytest.mark.parametrize("other", [True, None])
def test_a_late_sidecar_whose_queue_is_there_or_not_known_stays(other: bool | None) -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    later = NOW + LATE + 0.1
    silent(made, later)
    made.expire(later)
    assert not made.answered(Question("a", "q"), other, later)
    assert not made.answered(Question("a", "q"), is_there=False, now=later + ASK_AGAIN)


def test_an_answer_about_a_queue_that_is_no_more_its_own_or_that_a_beat_overtook_means_nothing() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    later = NOW + LATE + 0.1
    silent(made, later)
    made.expire(later)
    assert not made.answered(Question("a", "q"), is_there=False, now=later)
    hear(made, beat("a", 2, "m", queue="another"), later)
    assert not made.answered(Question("a", "q"), is_there=False, now=later + 1)
    assert not made.answered(Question("b", "q"), is_there=False, now=later + 1)
    assert "a" in made.all


def test_a_sidecar_that_is_silent_for_four_beats_is_gone_whatever_the_broker_says() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    silent(made, NOW + GONE + 0.1)
    assert made.expire(NOW + GONE)[0] == []
    assert made.expire(NOW + GONE + 0.1)[0] == ["a"]


def test_a_sign_of_life_is_enough() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    for second in range(1, 9):
        made.echoed(NOW + second)
        hear(
            made,
            Beat(
                "a",
                1 + second,
            ),
            NOW + second,
        )
        assert made.expire(NOW + second) == ([], [])
    assert made.all["a"].members.keys() == {"m"}


def test_nobody_is_late_or_gone_while_nobody_is_heard_and_all_have_time_again_after_it() -> None:
    made = peers()
    hear(made, beat("a", 1, "m"))
    later = NOW + BEAT + DEAF + 10
    assert not made.hears(later)
    assert made.expire(later) == ([], [])
    assert made.echoed(later)
    assert made.expire(later) == ([], [])
    assert not made.echoed(later + 1)
    made.disconnected()
    assert not made.hears(later + 1)


# Large fleets.


def fleet(size: int) -> Peers:
    """Return the others of a fleet of so many, of which this sidecar is the last by its id."""
    made = peers()
    for beats in (1, 2):
        for number in range(size - 1):
            hear(made, beat(f"a{number:03}", beats, f"m{number}"))
    made.echoed(NOW)
    return made


def asked_for(made: Peers, now: float) -> list[str]:
    """Return the sidecars that the broker is to be asked for, while none counts as gone by itself."""
    gone, late = made.expire(now)
    assert gone == []
    return sorted(question.sidecar for question in late)


@pytest.mark.parametrize(("size", "every"), [(1, 1.0), (10, 1.0), (50, 5.0), (200, 20.0)])
def test_in_a_large_fleet_each_beats_less_often(size: int, every: float) -> None:
    """A sidecar hears no more than `HEARD_A_SECOND` beats."""
    made = fleet(size)
    assert made.every == every
    assert size / every <= HEARD_A_SECOND


def test_two_are_watched_and_asked_for_as_soon_as_in_a_small_fleet() -> None:
    made = fleet(200)
    watched = ["a197", "a198"]
    assert made.watched == {*watched}
    assert made.expire(NOW + LATE) == ([], [])
    asked = NOW + LATE + 0.1
    assert asked_for(made, asked) == watched
    # As long as the broker says that the queue is there, it is asked no more often than that.
    assert not made.answered(Question("a197", "q"), is_there=True, now=asked)
    assert not made.answered(Question("a198", "q"), is_there=False, now=asked)
    assert made.expire(asked + ASK_AGAIN) == ([], [Question("a198", "q")])
    assert made.answered(Question("a198", "q"), is_there=False, now=asked + ASK_AGAIN)
    # The next one is watched now, which has not been heard for as long.
    assert asked_for(made, asked + ASK_AGAIN) == ["a196"]
    assert asked_for(made, asked + LATE + 0.1) == ["a196", "a197"]


def test_each_sidecar_is_watched_by_two_others() -> None:
    names = [f"a{number}" for number in range(7)]
    watched = []
    for own in names:
        made = Peers(own)
        for number, name in enumerate(names):
            if name != own:
                hear(made, beat(name, 1, f"m{number}"))
        watched += sorted(made.watched)
    assert sorted(watched) == sorted(names * 2)
    assert Peers("alone").watched == set()


def test_the_farewell_of_one_that_is_gone_has_it_removed_unless_it_has_beaten_since() -> None:
    made, other, third = peers(), peers(), peers()
    for each in (made, other, third):
        hear(each, beat("a", 5, "m"))
    hear(third, Beat("a", 6))
    asked = NOW + LATE + 0.1
    for now in (asked, asked + ASK_AGAIN):
        made.echoed(now)
        assert asked_for(made, now) == ["a"]
        made.answered(Question("a", "q"), is_there=False, now=now)
    (farewell,) = made.farewells
    # Nobody waits for an answer to it.
    assert hear(other, farewell) == Heard(News.MEMBERS, is_new=False)
    assert hear(third, farewell) == Heard()
    assert [[*each.all] for each in (other, third)] == [[], ["a"]]
    # If it lives, its next full beat makes it known again, though it has the same number.
    assert hear(other, beat("a", 6, "m")) == Heard(News.MEMBERS, is_new=True)


def test_nobody_is_deaf_or_gone_as_a_fleet_shrinks_or_grows() -> None:
    """The others have beaten when the fleet was as large as it was then."""
    made = fleet(200)
    for number in range(190):
        made.remove(f"a{number:03}")
    assert made.every == BEAT
    assert made.hears(NOW + 19.0)
    assert made.expire(NOW + 19.0)[0] == []
    silent(made, NOW + 80.1)
    assert made.expire(NOW + 80.0)[0] == []
    assert len(made.expire(NOW + 80.1)[0]) == 9
    grown = peers()
    hear(grown, beat("old", 1, "m"))
    for number in range(199):
        hear(grown, beat(f"a{number:03}", 1, f"m{number}"), NOW + 2.0)
    assert grown.hears(NOW + 19.0)
    assert grown.expire(NOW + 19.0)[0] == []


# Peers that somebody makes up


def test_there_are_no_more_peers_than_may_be() -> None:
    made = peers()
    for number in range(MOST_PEERS + 5):
        hear(made, beat(str(number), 1, f"m{number}"))
    assert len(made.all) == MOST_PEERS


def test_what_beats_tell_in_all_is_limited_and_falls_with_those_that_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MOST_TOLD", 5)
    made = peers()
    hear(made, beat("a", 1, "m", links={"s": OPEN, "t": OPEN}))
    hear(made, beat("b", 1, "n", "o"))
    hear(made, beat("c", 1, "p"))
    assert made.all.keys() == {"a", "b"}
    hear(made, beat("b", 2, "n", "o", "p"))
    assert made.all["b"].members.keys() == {"n", "o"}
    hear(made, beat("a", 2))
    hear(made, beat("c", 2, "p"))
    assert made.all.keys() == {"b", "c"}
    made.remove("b")
    made.remove("b")
    hear(made, beat("d", 1, "q", "r", "s", "t"))
    assert made.all.keys() == {"c", "d"}


def test_sidecars_of_other_releases_count_as_there_for_a_while() -> None:
    made = peers()
    made.heard_other_version("x", NOW)
    made.heard_other_version("x", NOW + 1)
    made.heard_other_version("y", NOW + 1)
    assert made.other_versions(NOW + 1) == 2
    for number in range(MOST_PEERS + 5):
        made.heard_other_version(str(number), NOW + 2)
    assert made.other_versions(NOW + 2) == MOST_PEERS
    assert made.other_versions(NOW + 3 + OTHER_VERSION) == 0
