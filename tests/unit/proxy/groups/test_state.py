"""One group as a sidecar knows it: links that end, shards that come and go, beats, and when a decision is due."""

import time
from itertools import pairwise

import pytest

from proxy.groups.attempts import ASK_AGAIN, FIRST_PAUSE, LONGEST_PAUSE, Refusal
from proxy.groups.beat import Beat, LinkBeat, MemberBeat
from proxy.groups.claims import MOST_KNOWN, priority
from proxy.groups.decision import EVIDENCE, HEAL, LOST_MARGIN, Act
from proxy.groups.followers import WAITING_BELOW
from proxy.groups.member import QUIET, Link, LinkState, Member
from proxy.groups.peers import OTHER_VERSION
from proxy.groups.state import BEAT_EVERY, CALM, LONGEST_CALM, GroupState

NOW = 1000.0


def member(name: str = "m", *shards: str) -> Member:
    made = Member(name, "/", "orders", 1, b"tag")
    for shard in shards:
        link = made.links[shard] = Link(made, shard, 1, 0)
        link.state = LinkState.OPEN
    return made


def state(*shards: str) -> tuple[GroupState, Member]:
    """A sidecar that has one member and hears itself; its shards have been vacant for long enough to be raised."""
    made, its = GroupState("own", "host"), member("m", *shards)
    made.lost_after = dict.fromkeys(shards, 0.0)
    made.movable = frozenset(shards)
    made.idle_at = dict.fromkeys(shards, NOW + 1000)
    made.follow(shards, NOW, NOW)
    made.claims.follow(shards, NOW - EVIDENCE)
    made.joined(its, NOW)
    made.heard(made.beat(NOW - 1), NOW - 1)
    return made, its


def acts(found: GroupState, now: float) -> list[tuple[Act, str]]:
    return [(step.act, step.shard) for step in found.tick(now).steps]


def test_a_change_is_acted_upon_after_a_calm_but_not_put_off_for_ever() -> None:
    made, _ = state("s")
    made.tick(NOW)
    assert made.due == float("inf")
    made.follow(["s", "t"], NOW, NOW)
    assert made.due == NOW + CALM
    for tenth in range(100):
        made.follow([f"s{tenth}"], NOW, NOW + tenth / 10)
    assert made.due == NOW + LONGEST_CALM
    made.tick(NOW)
    assert made.due == float("inf")


def test_a_link_that_the_broker_ends_is_opened_again_after_longer_and_longer_pauses() -> None:
    made, its = state("s")
    assert acts(made, NOW) == [(Act.RAISE, "s")]
    now, pause = NOW, FIRST_PAUSE
    for _ in range(10):
        its.links.clear()
        made.link_ended("m", "s", "", is_missing=False, now=now)
        assert acts(made, now + pause * 0.99) == []
        assert acts(made, now + pause) == [(Act.SUBSCRIBE, "s")]
        now, pause = now + pause, min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE


def test_the_links_that_wait_follow_as_soon_as_the_one_that_was_raised_is_there() -> None:
    """A raise ends the member's link before it opens the next one."""
    made, its = state("s")
    other = member("n", "s")
    made.joined(other, NOW)
    made.idle_at = {}
    made.wedged = frozenset("s")
    made.claims.add("s", 1, "m", NOW - HEAL)
    made.heard(made.beat(NOW), NOW)
    assert acts(made, NOW) == [(Act.RAISE, "s")]
    link = its.links.pop("s")
    assert (made.followers(NOW), made.is_followed) == ([], False)
    made.tick(NOW)
    made.heard(made.beat(NOW), NOW)
    assert made.due == float("inf")
    link.priority = priority(made.claims.epoch("s"), "m")
    its.links["s"] = link
    (step,) = made.followers(NOW)
    assert (step.act, step.member, step.priority) == (Act.SUBSCRIBE, "n", link.priority - WAITING_BELOW)
    assert made.is_followed
    # The next beat tells the other sidecars, too.
    assert made.due == NOW + CALM
    # A link that the broker does not open is not waited for all the time.
    del its.links["s"]
    made.followers(NOW + HEAL)
    assert made.is_followed


def test_a_link_that_the_broker_refuses_is_told_until_it_is_open_and_is_news_once() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    link = its.links.pop("t")
    assert made.link_ended("m", "t", "403 no", is_missing=False, now=NOW + 1)
    made.tick(NOW + 2)
    assert not made.link_ended("m", "t", "403 no", is_missing=False, now=NOW + 2)
    assert made.attempts.refused == {("m", "t"): Refusal(NOW + 1, "403 no")}
    made.claims.forget("m", NOW + 2)
    for second in range(3):
        made.heard(made.beat(NOW + second), NOW + second)
    whys = {move.shard: move.why for move in made.tick(NOW + 2).moves}
    assert whys["t"] == "the broker refuses its consumer: 403 no"
    assert made.link_ended("m", "t", "406 other", is_missing=False, now=NOW + 9)
    its.links["t"] = link
    made.tick(NOW + 10)
    assert made.attempts.refused == {}


@pytest.mark.parametrize("end", ["the member leaves", "the queue is gone", "the queue is unbound"])
def test_a_refusal_that_nobody_waits_for_any_more_is_forgotten(end: str) -> None:
    made, its = state("s", "t")
    del its.links["t"]
    made.link_ended("m", "t", "403 no", is_missing=False, now=NOW + 1)
    if end == "the member leaves":
        made.left("m", NOW + 2)
    elif end == "the queue is gone":
        assert not made.link_ended("m", "t", "404 gone", is_missing=True, now=NOW + 2)
    else:
        made.follow(["s"], NOW + 2, NOW + 2)
    made.tick(NOW + 3)
    assert made.attempts.refused == {}
    made.link_ended("m", "s", "", is_missing=False, now=NOW + 3)
    assert made.attempts.refused == {}


def test_a_session_that_opens_no_link_is_asked_again_but_not_at_once() -> None:
    made, its = state("s")
    its.links.clear()
    asked = [second for second in range(25) if (Act.SUBSCRIBE, "s") in acts(made, NOW + second)]
    assert asked == [0, ASK_AGAIN, 2 * ASK_AGAIN]


def test_a_shard_that_does_not_exist_is_left_until_a_later_reading_shows_it() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    assert made.claims.holders == {"s": "m", "t": "m"}
    del its.links["t"]
    made.link_ended("m", "t", "404 NOT_FOUND", is_missing=True, now=NOW + 1)
    made.follow(["s", "t"], NOW + 0.9, NOW + 2)
    assert (made.shards, made.claims.holders) == (["s"], {"s": "m"})
    assert acts(made, NOW + 2) == []
    made.follow(["s", "t"], NOW + 3, NOW + 3)
    assert acts(made, NOW + 3) == [(Act.SUBSCRIBE, "t")]
    # What a session tells of a member that has left changes nothing.
    made.link_ended("gone", "s", "404 NOT_FOUND", is_missing=True, now=NOW + 4)
    assert made.shards == ["s", "t"]


def test_a_shard_that_left_the_ring_is_consumed_while_a_member_claims_it() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    made.follow(["s"], NOW + 1, NOW + 1)
    assert made.shards == ["s", "t"]
    del its.links["t"]
    made.link_ended("m", "t", "404 NOT_FOUND", is_missing=True, now=NOW + 2)
    assert made.shards == ["s"]


def test_a_claim_to_a_queue_that_was_never_in_the_ring_makes_nobody_consume_it() -> None:
    made, _ = state("s")
    claimed = {name: LinkBeat(1, 1, None, 0) for name in ("payments", "s")}
    made.heard(Beat("other", "host", 1, 1.0, (MemberBeat("o", "", 0.0, links=claimed),)), NOW)
    assert made.shards == ["s"]
    assert {shard for _, shard in acts(made, NOW + 1)} <= {"s"}
    made.follow(["t"], NOW + 2, NOW + 2)
    assert made.shards == ["s", "t"]


def test_raises_in_vain_become_rarer_and_those_of_an_idle_shard_do_not() -> None:
    """The broker goes on delivering to another sidecar's member, whatever is raised: it ignores priorities."""
    for delivers in (True, False):
        made, its = state("s")
        raised = []
        for second in range(200):
            now = NOW + second
            ago = 0.1 if delivers else None
            claim = made.claims.epoch("s") + 1 if second % 20 == 0 else 0
            links = {"s": LinkBeat(claim, 1, ago, 0, priority=1 if claim else 0)}
            made.heard(
                Beat("z", "host", second + 1, 1.0, (MemberBeat("z", "", 0.0, is_stalled=True, links=links),)), now
            )
            made.heard(made.beat(now), now)
            raised += [second for step in made.tick(now).steps if step.act is Act.RAISE]
        pauses = [later - earlier for earlier, later in pairwise(raised)]
        if delivers:
            # The first ones also depend on when the other member's claims come.
            assert pauses[-3:] == sorted(pauses[-3:])
            assert pauses[-1] >= 60
            assert len(raised) <= 6
        else:
            assert len(raised) == 10
        assert its.links["s"].delivered_at == 0


def test_a_raise_that_has_had_an_effect_for_another_member_does_not_delay_the_next_one() -> None:
    """Two shards are raised for M, which gets their messages. One of them is then raised for N, and is wedged."""
    made, its = state("s", "t")

    def raised(now: float) -> list[tuple[str, str]]:
        for at in (now - 1, now):
            made.heard(made.beat(at), at)
        return [(step.member, step.shard) for step in made.tick(now).steps if step.act is Act.RAISE]

    assert raised(NOW) == [("m", "s"), ("m", "t")]
    made.joined(member("n", "s", "t"), NOW + 10)
    for link in its.links.values():
        link.delivered_at = NOW + 20
    (first,) = raised(NOW + 20)
    assert first[0] == "n"
    made.wedged = frozenset({first[1]})
    assert raised(NOW + 21) == [first]


def test_a_beat_tells_what_a_member_holds_has_unacked_or_got_lately() -> None:
    made, its = state("held", "unacked", "lately", "long ago", "never")
    made.follow([], NOW, NOW)
    made.claims.add("held", 7, "m", NOW)
    made.claims.learn("lately", 9)
    its.client = "client"
    its.links["unacked"].unacked = 3
    its.links["lately"].delivered_at = NOW - 2
    its.links["long ago"].delivered_at = NOW - 1000
    first, second = made.beat(NOW), made.beat(NOW)
    assert second.number == first.number + 1
    (told,) = first.members
    assert (told.id, told.client) == ("m", "client")
    assert told.links == {
        "held": LinkBeat(7, 7, None, 0),
        "unacked": LinkBeat(0, 0, None, 3),
        "lately": LinkBeat(0, 9, 2.0, 0),
    }


def test_what_others_tell_of_deliveries_is_taken_by_this_machines_clock() -> None:
    made, _ = state("s")
    links = {"s": LinkBeat(0, 5, 3.0, 1)}
    assert made.heard(Beat("other", "host", 1, 1.0, (MemberBeat("o", "", 0.0, links=links),)), NOW)
    assert made.delivered_at("s") == NOW - 3.0
    assert made.claims.epoch("s") == 5
    made.heard(Beat("other", "host", 2, 1.0, ()), NOW + 1)
    assert made.delivered_at("s") == 0.0


def test_a_member_that_leaves_is_told_by_the_next_beat() -> None:
    made, its = state("s")
    made.tick(NOW)
    its.links.clear()
    made.left("m", NOW)
    (told,) = made.beat(NOW).members
    assert (told.id, told.is_leaving, told.links, made.is_over) == ("m", True, {}, True)
    assert made.beat(NOW).members == ()
    assert (made.claims.holders, made.claims.is_given_up("s")) == ({}, True)
    made.left("m", NOW)
    assert made.beat(NOW).members == ()


def test_a_member_whose_connection_to_the_broker_is_lost_may_be_lost_with_its_node() -> None:
    made, _ = state("s")
    made.tick(NOW)
    made.left("m", NOW, is_lost=True)
    assert (made.beat(NOW).members, made.claims.is_given_up("s"), made.is_over) == ((), False, True)


def leave(its: Member, shard: str, unacked: int) -> Link:
    """Have a link to a shard stay as its member leaves, since its client holds so many messages."""
    link = its.links.pop(shard)
    link.state, link.unacked = LinkState.LEAVING, unacked
    its.leaving.append(link)
    return link


def test_a_member_that_has_left_is_told_of_until_its_client_holds_nothing_any_more() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    its.links["s"].delivered_at = NOW
    link = leave(its, "s", 3)
    its.links.clear()
    made.left("m", NOW)
    for _ in range(2):
        (told,) = made.beat(NOW).members
        assert (told.is_leaving, told.links["s"].unacked, told.links["s"].claim) == (True, 3, 0)
    assert (made.is_over, made.unacked("s"), made.prefetches) == (False, 3, set())
    # Another member that is raised for the shard has its link give way, so that its end returns what it holds.
    made.joined(member("other", "s", "t"), NOW)
    epoch = made.claims.epoch("s") + 1
    made.claims.add("s", epoch, "other", NOW)
    made.followers(NOW)
    assert not link.gives_way(NOW + QUIET + 1)
    made.local["other"].links["s"].priority = priority(epoch, "other")
    made.followers(NOW)
    assert (link.gives_way(NOW + QUIET), link.gives_way(NOW + QUIET + 1)) == (False, True)
    link.unacked = 0
    assert (made.unacked("s"), [told.id for told in made.beat(NOW).members]) == (0, ["other", "m"])
    assert [told.id for told in made.beat(NOW).members] == ["other"]


def test_what_another_sidecar_tells_of_a_member_that_has_left() -> None:
    """It has no claims any more, and holds messages; its shards were given up in good order."""
    made, _ = state("s", "t")
    links = {"s": LinkBeat(7, 7, 0.0, 2), "t": LinkBeat(7, 7, 0.0, 2)}
    made.heard(Beat("z", "host", 1, 1.0, (MemberBeat("z", "", 0.0, links=links),)), NOW)
    assert made.claims.holders == {"s": "z", "t": "z"}
    left = {"s": LinkBeat(0, 7, None, 2)}
    made.heard(Beat("z", "host", 2, 1.0, (MemberBeat("z", "", 0.0, is_leaving=True, links=left),)), NOW + 1)
    assert [made.claims.is_given_up(shard) for shard in ("s", "t")] == [True, True]
    assert (made.claims.holders, made.unacked("s"), made.prefetches) == ({}, 2, {200})
    made.heard(made.beat(NOW + 1), NOW + 1)
    found = made.tick(NOW + 1)
    assert (found.targets["s"], found.targets["t"]) == ("m", "m")
    whys = {move.shard: move.why for move in found.moves}
    assert whys["s"] == "a member that has left has yet to ack 2 of its messages"
    # Its sidecar has left the group with the beat that says that it holds nothing any more.
    made.heard(Beat("z", "host", 3, 1.0, (MemberBeat("z", "", 0.0, is_leaving=True),)), NOW + 2)
    assert (made.unacked("s"), made.peers.all, made.delivered_at("s")) == (0, {}, 0.0)


def test_beside_sidecars_of_another_release_nothing_is_claimed() -> None:
    """This sidecar does not know what their members hold."""
    made, _ = state("s")
    assert made.hears(NOW)
    made.peers.heard_other_version("z", NOW)
    assert (made.hears(NOW), acts(made, NOW)) == (False, [])
    later = NOW + OTHER_VERSION + 1
    made.heard(made.beat(later - 2), later - 2)
    assert (made.hears(later), acts(made, later)) == (True, [(Act.RAISE, "s")])


def test_a_stalled_member_says_so_until_its_time_is_over() -> None:
    made, _ = state("s")
    made.released("m", "s", NOW + 10, NOW)
    assert [made.beat(now).members[0].is_stalled for now in (NOW, NOW + 9, NOW + 10)] == [True, True, False]


def test_a_shard_that_is_taken_from_a_member_is_given_up_unless_nobody_else_can_have_it() -> None:
    made, _ = state("s")
    made.claims.add("s", 1, "m", NOW)
    made.released("m", "s", NOW + 10, NOW)
    assert made.claims.holders == {"s": "m"}
    made.heard(Beat("z", "host", 1, 1.0, (MemberBeat("other", "", 0.0),)), NOW)
    made.released("m", "s", NOW + 10, NOW)
    assert (made.claims.holders, made.claims.is_given_up("s")) == ({}, True)


def test_a_shard_that_has_left_the_ring_is_not_given_up_as_it_would_be_forgotten() -> None:
    made, _ = state("s", "t")
    made.heard(Beat("z", "host", 1, 1.0, (MemberBeat("other", "", 0.0),)), NOW)
    made.claims.add("s", 1, "m", NOW)
    made.follow(["t"], NOW, NOW)
    made.released("m", "s", NOW + 10, NOW)
    assert (made.claims.holders, made.shards) == ({"s": "m"}, ["s", "t"])


@pytest.mark.parametrize(("sidecars", "every"), [(0, BEAT_EVERY), (19, 1.0), (99, 5.0), (999, 15.0)])
def test_many_sidecars_beat_more_slowly(sidecars: int, every: float) -> None:
    made, _ = state("s")
    for number in range(sidecars):
        made.heard(Beat(f"{number}", "host", 1, 1.0, (MemberBeat(f"m{number}", "", 0.0),)), NOW)
    assert made.every == every


def test_who_holds_what_here() -> None:
    made, _ = state("s", "t", "u")
    made.claims.add("s", 1, "m", NOW)
    made.claims.add("t", 1, "other", NOW)
    assert (made.held(is_first=False), made.held(is_first=True)) == (["s"], ["s", "u"])


def test_a_raise_of_a_shard_that_is_held_already_is_no_move() -> None:
    made, its = state("s")
    least = int(time.time())
    ((act, member, shard, epoch, *_),) = made.tick(NOW).steps
    assert (act, member, shard) == (Act.RAISE, "m", "s")
    assert least <= epoch <= time.time()
    made.wedged = frozenset({"s"})
    ((act, member, shard, again, *_),) = made.tick(NOW + 1).steps
    assert (act, member, shard) == (Act.RAISE, "m", "s")
    assert again > epoch
    assert (made.moves, made.wedged) == (1, frozenset())
    assert its.links["s"].priority == 0


def test_of_shards_that_are_not_in_the_ring_only_so_many_are_remembered() -> None:
    """Whoever may write to the group's exchange can send beats that name any shards. Those of the ring go on."""
    made, _ = state("s")
    made.tick(NOW)
    for number in range(1, 5):
        links = {f"{number}-{shard}": LinkBeat(0, 5, 1.0, 0) for shard in range(MOST_KNOWN // 3)}
        made.heard(Beat("other", "host", number, 1.0, (MemberBeat("m2", "client", 1.0, links=links),)), NOW)
    learned = [made.claims.epoch(f"4-{shard}") > 0 for shard in range(MOST_KNOWN // 3)]
    assert learned.index(False) == learned.count(True) < 10
    epoch = made.claims.epoch("s") + 1
    links = {"s": LinkBeat(epoch, epoch, None, 0), "1-0": LinkBeat(0, 6, None, 0), "late": LinkBeat(0, 7, None, 0)}
    made.heard(Beat("other", "host", 5, 1.0, (MemberBeat("m2", "client", 1.0, links=links),)), NOW)
    assert made.claims.holders["s"] == "m2"
    assert [made.claims.epoch(shard) for shard in ("1-0", "late")] == [6, 0]


def test_a_queue_that_is_bound_again_is_not_raised_while_the_broker_may_wait_for_its_last_holder() -> None:
    """The member had got messages of it before the one whose node is lost held it."""
    made, its = state("s")
    made.lost_after = {"s": 60.0}
    made.tick(NOW)
    its.links["s"].delivered_at = NOW + 1
    links = {"s": LinkBeat(made.claims.epoch("s") + 1, made.claims.epoch("s") + 1, 0.0, 0)}
    made.heard(Beat("other", "host", 1, 1.0, (MemberBeat("m2", "client", 1.0, links=links),)), NOW + 2)
    made.heard(Beat("other", "host", 2, 1.0, ()), NOW + 3)
    made.follow([], NOW + 3, NOW + 3)
    made.tick(NOW + 4)
    made.follow(["s"], NOW + 12, NOW + 12)
    for late in range(12, 76):
        made.heard(made.beat(NOW + late), NOW + late)
        assert acts(made, NOW + late) == ([(Act.RAISE, "s")] if late == 12 + 60 + LOST_MARGIN else []), late


@pytest.mark.parametrize("got_by", ["another's member", "another's probe", "the member itself", "its probe", "nobody"])
def test_no_probe_comes_before_a_consumer_that_was_kept_since_the_last_delivery_can_lose_its_messages(
    got_by: str,
) -> None:
    """A member that is gone has got the shard's last message at NOW. What a probe has got says nothing of others."""
    made, its = state("s")
    made.probes_after, made.kept_at = 30.0, {"s": NOW + 60}
    is_probe = got_by.endswith("probe")
    if got_by.startswith("another"):
        links = {"s": LinkBeat(7, 7, 1.0, 0, 0, is_probe)}
        made.heard(Beat("other", "host", 1, 1.0, (MemberBeat("o", "", 0.0, links=links),)), NOW + 1)
        made.heard(Beat("other", "host", 2, 1.0, ()), NOW + 1)
    elif got_by != "nobody":
        its.links["s"].delivered_at, its.links["s"].is_probe = NOW, is_probe
        made.tick(NOW)
    its.links["s"].delivered_at, made.wedged = 0.0, frozenset({"s"})
    made.heard(made.beat(NOW + 1), NOW + 1)
    (step,) = made.tick(NOW + 2).steps
    assert step.act is Act.RAISE
    raised = its.links["s"] = Link(its, "s", 2, priority(step.epoch, "m"))
    raised.state = LinkState.OPEN
    found = [[each.is_probe for each in made.followers(at)] for at in (NOW + 29.9, NOW + 30)]
    assert found == [[] if got_by in ("another's member", "the member itself") else [True], [True]]


def test_a_shard_that_is_handed_over_is_told_of_until_the_client_holds_nothing_and_then_given_up() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    link, epoch = its.links["s"], made.claims.epoch("s")
    link.priority = made.local["m"].links["t"].priority = priority(epoch, "m")
    link.delivered_at = NOW + 5
    next_one = {"s": LinkBeat(0, epoch, None, 0, link.priority - 1), "t": LinkBeat(0, 1, None, 0, link.priority - 1)}
    made.heard(Beat("z", "host", 1, 1.0, (MemberBeat("a", "", 0.0, links=next_one),)), NOW + 6)
    made.heard(made.beat(NOW + 6), NOW + 6)
    (step,) = [step for step in made.tick(NOW + 7).steps if step.act is Act.HAND_OVER]
    assert (step.member, made.due) == ("m", NOW + 7 + CALM)
    handed = its.links[step.shard]
    # Its session may be unable to do it. Then it is as before.
    assert made.tick(NOW + 7.5).steps == [step]
    assert made.claims.holders[step.shard] == "m"
    leave(its, step.shard, 3)
    for at in (NOW + 8, NOW + 9):
        assert [each.act for each in made.tick(at).steps] == []
        told = made.beat(at).members[0].links[step.shard]
        assert (told.claim, told.priority, told.unacked, told.hands_over) == (
            made.claims.winners[step.shard].epoch, handed.priority, 3, True
        )  # fmt: skip
        assert made.unacked(step.shard) == 3
    handed.unacked = 0
    made.heard(made.beat(NOW + 10), NOW + 10)
    # It waits for the shard again, at once, and the other one may claim it.
    assert [(each.act, each.shard) for each in made.tick(NOW + 10).steps] == [(Act.SUBSCRIBE, step.shard)]
    assert (step.shard in made.claims.holders, made.claims.is_given_up(step.shard)) == (False, True)


def test_whoever_is_about_to_hand_a_shard_over_and_gets_it_back_is_told_why_nothing_comes() -> None:
    made, its = state("s", "t")
    made.tick(NOW)
    epoch = made.claims.epoch("s")
    for link in its.links.values():
        link.priority = priority(epoch, "m")
    next_one = {shard: LinkBeat(0, epoch, None, 0, its.links[shard].priority - 1) for shard in ("s", "t")}
    made.heard(Beat("z", "host", 1, 1.0, (MemberBeat("a", "", 0.0, links=next_one),)), NOW + 6)
    made.heard(made.beat(NOW + 6), NOW + 6)
    (step,) = [step for step in made.tick(NOW + 7).steps if step.act is Act.HAND_OVER]
    leave(its, step.shard, 3)
    made.heard(Beat("z", "host", 2, 1.0, ()), NOW + 8)
    made.heard(made.beat(NOW + 8), NOW + 8)
    (move,) = made.tick(NOW + 8).moves
    assert (move.shard, move.target, move.why) == (
        step.shard, "m", "it was about to be handed over, and comes back once acked"
    )  # fmt: skip
