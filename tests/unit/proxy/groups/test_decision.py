"""What a sidecar does for a shard, case by case. All times are seconds on one clock; it is 100 now."""

from dataclasses import replace

import pytest

from proxy.groups.claims import LEVELS, Claims, priority
from proxy.groups.decision import (
    CLAIMED_WITHIN,
    DEAD_WITHIN,
    EVIDENCE,
    HANDED_OVER_WITHIN,
    HEAL,
    LOST_MARGIN,
    READ_BEFORE,
    Act,
    Decision,
    Move,
    Step,
    decide,
)
from proxy.groups.followers import WAITING_BELOW, followers
from proxy.groups.member import QUIET
from proxy.groups.view import SILENCE, WAITING_FROM, LinkView, MemberView, View

NOW = 100.0
RAISE, CLAIM, SUBSCRIBE = Act.RAISE, Act.CLAIM, Act.SUBSCRIBE


RAISED = LinkView(priority=priority(7, "other"))


def view(
    mine: LinkView | None, other: LinkView | None, claim: tuple[str, float] | None, vacant_since: float = 0
) -> View:
    """The shard `s`, which `mine`, of this sidecar, should have, and `other`, of another sidecar, should not.

    The other one holds more shards than its quota where it holds `s`.
    """
    claims = Claims()
    claims.add("a", 3, "other", 1.0)
    claims.learn("s", 7)
    if claim is None:
        claims.add("s", 7, "gone", 1.0)
        claims.drop("s", "gone", vacant_since)
    else:
        claims.add("s", 7, *claim)
    if claim is not None and claim[0] == "other":
        claims.add("b", 1, "other", 1.0)
        claims.add("c", 1, "mine", 1.0)
    links = {shard: LinkView(1.0) for shard in claims.holders if shard != "s"}
    members = {
        "mine": MemberView(is_local=True, links={**links, "s": mine} if mine else links),
        "other": MemberView(is_local=False, links={"s": other} if other else {}),
    }
    return View(members, sorted({"s", *claims.holders}), claims, movable={"a", "b", "c", "s"}, idle_at={"s": NOW})


def of(decision: Decision, shard: str = "s") -> tuple[Act | None, str]:
    """What is done for one shard, and what its move waits for."""
    acts = [step.act for step in decision.steps if step.shard == shard]
    whys = [move.why for move in decision.moves if move.shard == shard]
    assert max(len(acts), len(whys)) <= 1
    return (acts[0] if acts else None), (whys[0] if whys else "")


@pytest.mark.parametrize(
    ("mine", "other", "claim", "act", "why"),
    [
        # Nobody holds it any more since 95.
        pytest.param(LinkView(96), None, None, CLAIM, "already", id="vacant, and delivered to me since"),
        pytest.param(LinkView(94), None, None, CLAIM, "nobody", id="vacant, and delivered to me before"),
        pytest.param(
            LinkView(96), LinkView(97), None, None, "claim it first", id="vacant, and delivered to the other later"
        ),
        pytest.param(LinkView(), None, None, CLAIM, "nobody", id="vacant, and delivered to nobody"),
        pytest.param(LinkView(94, unacked=2), None, None, CLAIM, "already", id="vacant, and I hold messages"),
        pytest.param(
            LinkView(), LinkView(94, unacked=2), None, None, "claim it first", id="vacant, and the other holds messages"
        ),
        pytest.param(LinkView(is_open=False), None, None, None, "opened", id="vacant, and my link is not open yet"),
        # The other one holds it.
        pytest.param(LinkView(), LinkView(99), ("other", 50), RAISE, "raised", id="the other's, which gets it"),
        pytest.param(LinkView(), None, ("other", 50), RAISE, "raised", id="the other's, and delivered to nobody"),
        pytest.param(LinkView(49), LinkView(), ("other", 50), RAISE, "raised", id="the other's, mine before"),
        pytest.param(
            LinkView(unacked=1), None, ("other", 50), None, "1 unacked", id="the other's, and I hold messages"
        ),
        pytest.param(LinkView(50 + HEAL + 1), None, ("other", 50), CLAIM, "already", id="the other's, but I get it"),
        pytest.param(
            LinkView(50 + HEAL - 1), RAISED, ("other", 50), None, "next in line", id="the other's, I got it just then"
        ),
        pytest.param(
            LinkView(50 + EVIDENCE + 1),
            None,
            ("other", 50),
            CLAIM,
            "already",
            id="the other's without a raise, I get it",
        ),
        # It is mine.
        pytest.param(LinkView(99), LinkView(49), ("mine", 50), None, "", id="mine, and I get it"),
        pytest.param(LinkView(), None, ("mine", 50), None, "", id="mine, and delivered to nobody"),
        pytest.param(
            LinkView(), LinkView(50 + HEAL - 1), ("mine", 50), None, "", id="mine, and the other got it just then"
        ),
        pytest.param(
            LinkView(), LinkView(50 + HEAL + 1), ("mine", 50), None, "", id="mine, and the other one is to claim it"
        ),
        pytest.param(
            LinkView(), LinkView(50 + HEAL + CLAIMED_WITHIN + 1), ("mine", 50), RAISE, "", id="mine, the other gets it"
        ),
        pytest.param(LinkView(99), LinkView(98), ("mine", 50), None, "", id="mine, the other got it before me"),
        pytest.param(
            LinkView(0, 1), LinkView(99), ("mine", 50), None, "", id="mine, the other gets it, I hold messages"
        ),
    ],
)
def test_a_shard_that_should_be_mine(
    mine: LinkView, other: LinkView | None, claim: tuple[str, float] | None, act: Act | None, why: str
) -> None:
    seen = view(mine, other, claim, vacant_since=95)
    found, told = of(decide(seen, NOW))
    assert found is act
    assert why in told
    # Without the others' beats nothing is claimed, and what is claimed has a higher epoch than all before.
    assert of(decide(replace(seen, hears=False), NOW))[0] is None
    assert {step.epoch for step in decide(seen, NOW).steps if step.shard == "s"} <= {8}


RAISED = LinkView(priority=priority(7, "mine"))
"""A link that has been raised for the claim of the shard `s`, and has got nothing."""

OTHERS = LinkView(priority=priority(7, "other"))
BELOW = OTHERS.priority - WAITING_BELOW
NEXT = LinkView(priority=OTHERS.priority - 1)
"""A link that is next in line behind OTHERS."""


def probed(view: View) -> list[tuple[int, bool]]:
    """The priority of each link of the shard `s` that is replaced, and whether by a probe."""
    return [(step.priority, step.is_probe) for step in followers(view, {}, NOW) if step.shard == "s"]


@pytest.mark.parametrize(
    ("mine", "other", "probes"),
    [
        pytest.param(RAISED, None, True, id="nobody holds anything"),
        pytest.param(RAISED, LinkView(40), True, id="the other one has had it, and has acked all"),
        pytest.param(RAISED, LinkView(99, unacked=1), False, id="the other one has yet to ack"),
        pytest.param(RAISED._replace(delivered_at=98.9), None, False, id="the raise has brought messages"),
        pytest.param(RAISED._replace(is_probe=True), None, False, id="a probe is there"),
        pytest.param(RAISED._replace(priority=RAISED.priority + 1), None, False, id="a probe was there"),
        pytest.param(RAISED._replace(is_open=False), None, False, id="the link is not open yet"),
        pytest.param(LinkView(), None, False, id="claimed without a raise"),
    ],
)
def test_a_raise_that_brings_nothing_ends_with_a_probe(mine: LinkView, other: LinkView | None, probes: bool) -> None:
    """A consumer that RabbitMQ 4.3 has kept may hold messages. Other versions keep none."""
    seen = replace(view(mine, other, ("mine", NOW - SILENCE)), kept_at={"s": NOW})
    assert probed(seen) == ([(mine.priority, True)] if probes else [])
    assert probed(replace(seen, kept_at={})) == []
    assert probed(replace(view(mine, other, ("mine", NOW - SILENCE + 0.1)), kept_at={"s": NOW})) == []
    # What comes back so soon after a delivery is of a member that has ended, and all of it comes at once.
    assert probed(replace(seen, probed_from={"s": NOW + 0.1})) == []
    assert probed(replace(seen, probed_from={"s": NOW})) == probed(seen)
    # What a member of another sidecar holds may not be known yet, and a client may hold what its member has left with.
    assert probed(replace(seen, every=SILENCE)) == []
    assert probed(replace(seen, leaving={"gone": MemberView(False, {"s": LinkView(unacked=1)})})) == []
    without_acks = replace(seen.members["mine"], no_ack=True)
    if not mine.is_probe:
        assert probed(replace(seen, members={**seen.members, "mine": without_acks})) == []


@pytest.mark.parametrize(
    ("mine", "other", "steps"),
    [
        pytest.param(LinkView(priority=BELOW), OTHERS, [(BELOW, True)], id="silent"),
        pytest.param(LinkView(priority=5), OTHERS, [(BELOW, True)], id="silent, and of the wrong priority"),
        pytest.param(LinkView(priority=BELOW, is_probe=True), OTHERS, [], id="silent, and a probe is there"),
        pytest.param(
            LinkView(priority=BELOW, is_probe=True),
            OTHERS._replace(is_probe=True, delivered_at=99.0),
            [],
            id="the holder's probe has its message",
        ),
        pytest.param(
            LinkView(),
            OTHERS._replace(is_probe=True, unacked=1, delivered_at=99.0),
            [(BELOW, True)],
            id="a member that has joined since then",
        ),
        pytest.param(
            LinkView(priority=BELOW, is_probe=True),
            OTHERS._replace(priority=OTHERS.priority + 1, delivered_at=99.0),
            [(BELOW, False)],
            id="the holder has its prefetch again",
        ),
        pytest.param(
            LinkView(priority=5, is_probe=True), LinkView(priority=BELOW), [(BELOW - WAITING_BELOW, True)], id="another"
        ),
    ],
)
def test_all_links_of_a_shard_are_probes_until_its_holder_gets_messages_as_usual(
    mine: LinkView, other: LinkView, steps: list[tuple[int, bool]]
) -> None:
    """The holder may be lost as well. The next consumer would get newer messages beside the first that comes back."""
    seen = replace(view(mine, other, ("other", NOW - SILENCE)), kept_at={"s": NOW})
    assert probed(seen) == steps


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("other", [None, False, True])
def test_a_raise_of_a_shard_with_a_probe_opens_a_probe(mine: bool, other: bool | None) -> None:
    """A member that has just joined has an ordinary link yet."""
    seen = view(LinkView(is_probe=mine), None if other is None else LinkView(is_probe=other), ("other", 50.0))
    (step,) = [step for step in decide(seen, NOW).steps if step.shard == "s"]
    assert (step.act, step.is_probe) == (RAISE, mine or bool(other))


def test_a_shard_that_was_claimed_without_a_raise_is_raised_if_the_broker_has_kept_a_consumer_with_its_messages() -> (
    None
):
    """They come back to probes, of which the raise opens the first."""
    silent = view(LinkView(), None, ("mine", 50))
    sure = 50 + SILENCE
    for kept_at, act in [({}, None), ({"s": sure - 0.1}, None), ({"s": sure}, RAISE)]:
        assert of(decide(replace(silent, kept_at=kept_at), NOW))[0] is act
    (step,) = [step for step in decide(replace(silent, kept_at={"s": sure}), NOW).steps if step.shard == "s"]
    assert step.is_probe
    # Not before there may be probes: the last holder may be dead, and RabbitMQ may have yet to notice it.
    for probed_from, act in [(NOW + 0.1, None), (NOW, RAISE)]:
        assert of(decide(replace(silent, kept_at={"s": sure}, probed_from={"s": probed_from}), NOW))[0] is act
    # The member may have got its first message before it claimed the shard.
    for mine, other in [
        (LinkView(51), None), (LinkView(50.1 - SILENCE), None), (LinkView(40, unacked=1), None),
        (LinkView(priority=priority(7, "mine")), None),
        (LinkView(), LinkView(40, unacked=1)),
    ]:  # fmt: skip
        assert of(decide(replace(view(mine, other, ("mine", 50)), kept_at={"s": sure}), NOW))[0] is None


def test_a_vacant_shard_is_left_alone_for_a_moment() -> None:
    seen = view(LinkView(), None, None, vacant_since=NOW - EVIDENCE / 2)
    assert of(decide(seen, NOW)) == (None, "a delivery may show whom the broker has chosen")
    assert of(decide(seen, NOW + EVIDENCE))[0] is CLAIM


def test_a_shard_whose_holder_is_gone_without_a_word_is_not_claimed_before_it_is_seen_to_hold_nothing() -> None:
    """RabbitMQ may have yet to notice it. If it does so while another one is above, 4.3 keeps the consumer."""
    seen = view(LinkView(), None, None, vacant_since=NOW - 5)
    why = "RabbitMQ may have yet to notice that its last holder is gone"
    for at, act in [(NOW, CLAIM), (NOW - 5 - READ_BEFORE, CLAIM), (NOW - 5.1 - READ_BEFORE, None)]:
        assert of(decide(replace(seen, idle_at={"s": at}), NOW))[0] is act
    unread = replace(seen, idle_at={})
    assert of(decide(unread, NOW)) == (None, why)
    assert of(decide(unread, NOW - 5 + DEAD_WITHIN))[0] is CLAIM
    # Whoever has left in good order is surely gone.
    seen.claims.add("s", 8, "gone", 1.0)
    seen.claims.forget("gone", NOW - 5, in_good_order=True)
    assert of(decide(unread, NOW))[0] is CLAIM


def test_an_only_member_does_not_raise_what_a_lost_member_may_still_hold() -> None:
    """The two members of a small group ran on two machines, and RabbitMQ has yet to notice that one is gone."""
    two = view(LinkView(), None, None, vacant_since=NOW - DEAD_WITHIN)
    seen = replace(two, members={"mine": two.members["mine"]}, idle_at={})
    assert of(decide(seen, NOW - 0.1)) == (None, "RabbitMQ may have yet to notice that its last holder is gone")
    assert of(decide(seen, NOW))[0] is CLAIM
    assert of(decide(replace(seen, idle_at={"s": NOW}), NOW))[0] is RAISE
    # Where nobody is known to have held it, the broker may have kept a consumer of an earlier group.
    anew = Claims()
    anew.follow(["s"], NOW - DEAD_WITHIN)
    assert of(decide(replace(seen, claims=anew), NOW))[0] is RAISE


@pytest.mark.parametrize("alone", [True, False])
def test_a_vacant_shard_is_not_claimed_while_the_broker_may_wait_for_its_last_holder(alone: bool) -> None:
    """RabbitMQ 4.3 waits for a consumer whose node is lost; a raise meanwhile would make it wait for minutes."""
    seen = view(LinkView(), None, None, vacant_since=NOW - EVIDENCE)
    if alone:
        seen = replace(seen, members={"mine": seen.members["mine"]})
    waits = replace(seen, lost_after={"s": 5.0})
    assert of(decide(seen, NOW))[0] is (RAISE if alone else CLAIM)
    assert of(decide(waits, NOW)) == (None, "the last holder's node may be lost, for which RabbitMQ waits")
    assert of(decide(waits, NOW - EVIDENCE + 5.0 + LOST_MARGIN))[0] is (RAISE if alone else CLAIM)


def test_a_vacant_shard_whose_messages_another_member_gets_is_claimed_by_that_one_first() -> None:
    """It hands the shard over then. A raise would have it give way while it holds messages."""
    seen = replace(view(LinkView(), LinkView(NOW), None, vacant_since=NOW - EVIDENCE), lost_after={"s": 60.0})
    assert of(decide(seen, NOW)) == (None, "the broker delivers to another member, which is to claim it first")
    assert of(decide(seen, NOW + CLAIMED_WITHIN))[0] is CLAIM
    its = replace(seen, members={"mine": MemberView(False, {}), "other": MemberView(True, {"s": LinkView(NOW)})})
    assert decide(its, NOW).targets["s"] == "mine"
    assert [step for step in decide(its, NOW).steps if step.shard == "s"] == [Step(CLAIM, "other", "s", 8)]


def test_in_a_new_group_a_delivery_may_precede_the_first_decision() -> None:
    """Members that join open their links first. Where nobody is known to have held a shard, nobody's node is lost."""
    first = Claims()
    first.follow(["s"], NOW - EVIDENCE)
    got = LinkView(NOW - 2 * EVIDENCE, unacked=9)
    mine = View({"mine": MemberView(True, {"s": got}), "other": MemberView(False, {})}, ["s"], first)
    mine = replace(mine, lost_after={"s": 60.0})
    assert of(decide(mine, NOW))[0] is CLAIM
    seen = {"mine": MemberView(True, {"s": LinkView()}), "other": MemberView(False, {"s": got})}
    others = replace(mine, members=seen)
    assert decide(others, NOW).targets == {"s": "mine"}
    assert of(decide(others, NOW)) == (None, "the broker delivers to another member, which is to claim it first")
    # Somebody has held it.
    first.learn("s", 7)
    seen["other"] = MemberView(False, {"s": got._replace(unacked=0)})
    assert of(decide(others, NOW)) == (None, "the last holder's node may be lost, for which RabbitMQ waits")


@pytest.mark.parametrize(("since", "act"), [(EVIDENCE - 0.1, None), (EVIDENCE, RAISE)])
def test_an_only_member_raises_what_it_gets_nothing_of_once_a_delivery_would_have_come(
    since: float, act: Act | None
) -> None:
    """A raise at once would end its link while the first messages are on their way."""
    claims = Claims()
    claims.follow(["s"], NOW - since)
    only = View({"a": MemberView(True, {"s": LinkView()})}, ["s"], claims, movable={"s"}, idle_at={"s": NOW})
    assert of(decide(only, NOW))[0] is act


def test_in_a_new_group_a_shard_that_cannot_move_is_claimed_by_whom_the_broker_has_chosen_at_once() -> None:
    claims = Claims()
    claims.follow(["s"], NOW - EVIDENCE)
    members = {"a": MemberView(True, {"s": LinkView()}), "b": MemberView(True, {"s": LinkView(NOW - 2 * EVIDENCE)})}
    found = decide(View(members, ["s"], claims, unmovable={"s": "why"}), NOW)
    assert found.targets == {"s": "a"}
    assert [(step.act, step.member) for step in found.steps] == [(CLAIM, "b")]


def left(in_good_order: bool, **more: MemberView) -> View:
    """The shard `s`, whose holder has left at 98; RabbitMQ waits 5 s for a holder whose node is lost."""
    seen = view(LinkView(), None, None)
    seen.claims.add("s", 8, "gone", 1.0)
    seen.claims.forget("gone", NOW - 2, in_good_order=in_good_order)
    return replace(seen, lost_after={"s": 5.0}, leaving=more)


def test_a_shard_whose_holder_has_left_in_good_order_is_claimed_without_waiting_for_a_lost_node() -> None:
    assert of(decide(left(in_good_order=True), NOW))[0] is CLAIM
    assert of(decide(left(in_good_order=False), NOW)) == (
        None, "the last holder's node may be lost, for which RabbitMQ waits"
    )  # fmt: skip
    # Whoever holds it later may be lost.
    seen = left(in_good_order=True)
    seen.claims.add("s", 9, "gone", NOW - 1)
    seen.claims.forget("gone", NOW - 1)
    assert of(decide(seen, NOW))[0] is None


def test_a_shard_whose_last_holder_has_left_and_holds_messages_is_not_raised() -> None:
    """RabbitMQ 4.3 would keep the consumer of a link that ends while it holds messages and gives way."""
    holds = MemberView(is_local=False, links={"s": LinkView(unacked=3)})
    seen = left(in_good_order=True, gone=holds)
    assert of(decide(seen, NOW)) == (None, "a member that has left has yet to ack 3 of its messages")
    # It gets no shard, and its last deliveries do not make it a holder.
    gone = replace(holds, links={"s": LinkView(NOW - 1, 3)})
    assert "gone" not in decide(replace(seen, leaving={"gone": gone}), NOW).targets.values()
    assert decide(replace(seen, leaving={"gone": gone}, unmovable={"s": "why"}), NOW).steps == []
    # A member that is alone waits for it as well.
    alone = View({"mine": MemberView(True, {"s": LinkView()})}, ["s"], seen.claims, seen.leaving)
    assert decide(alone, NOW).steps == []


def test_a_member_alone_raises_at_once_what_it_does_not_get_yet() -> None:
    """RabbitMQ 4.3 may have kept a consumer of an earlier group, of an epoch that nobody knows.

    The time is above it.
    """
    links = {"s": LinkView(), "t": LinkView(delivered_at=NOW - 1), "u": LinkView()}
    me = {"me": MemberView(is_local=True, links=links)}
    seen = View(me, ["s", "t", "u"], Claims(), unmovable={"u": "classic"}, idle_at={"s": NOW}, least_epoch=1000)
    assert decide(seen, NOW).steps == [
        Step(act, "me", s, 1000) for act, s in ((RAISE, "s"), (CLAIM, "t"), (CLAIM, "u"))
    ]


def test_another_sidecars_member_is_left_to_it() -> None:
    seen = View({"other": MemberView(is_local=False, links={})}, ["s"], Claims())
    decision = decide(seen, NOW)
    assert decision.steps == []
    assert decision.targets == {"s": "other"}
    assert decision.moves == [Move("s", "", "other", "its sidecar has yet to claim it")]


def test_a_raise_waits_whose_forerunners_were_in_vain() -> None:
    seen = replace(view(LinkView(), LinkView(99), ("other", 50)), not_raised_before={("mine", "s"): NOW + 1})
    assert of(decide(seen, NOW)) == (None, "the last raise has not brought it a message, and the next one waits")
    assert of(decide(seen, NOW + 1))[0] is RAISE


def test_a_shard_that_was_never_in_the_ring_is_assigned_but_nobody_here_consumes_it() -> None:
    links = {"s": LinkView()}
    members = {"me": MemberView(is_local=True, links=links), "other": MemberView(is_local=False, links={})}
    decision = decide(View(members, ["r", "s"], Claims(), foreign={"r"}), NOW)
    assert len(set(decision.targets.values())) == 2
    assert {step.shard for step in decision.steps} <= {"s"}


def test_a_shard_that_the_broker_gives_to_nobody_is_raised_again() -> None:
    seen = replace(view(LinkView(99), None, ("mine", 50)), wedged={"s"})
    assert of(decide(seen, NOW))[0] is RAISE
    assert of(decide(replace(seen, wedged=set()), NOW))[0] is None
    # Only by its holder, and not while that holds messages.
    assert of(decide(replace(view(LinkView(99, 1), None, ("mine", 50)), wedged={"s"}), NOW))[0] is None
    not_mine = View({"other": MemberView(is_local=False, links={})}, ["s"], seen.claims, wedged={"s"})
    assert decide(not_mine, NOW).steps == []


def test_a_member_subscribes_to_what_it_has_no_link_to_but_not_before_a_pause_is_over() -> None:
    seen = View({"me": MemberView(is_local=True, links={})}, ["s", "t"], Claims(), not_before={("me", "t"): NOW + 1})
    assert decide(seen, NOW).steps == [Step(SUBSCRIBE, "me", "s")]
    assert decide(seen, NOW + 1).steps == [Step(SUBSCRIBE, "me", "s"), Step(SUBSCRIBE, "me", "t")]
    assert [step.act for step in decide(replace(seen, hears=False), NOW).steps] == [SUBSCRIBE]


def test_where_the_broker_ignores_a_raise_the_shard_belongs_to_whom_it_delivers() -> None:
    unmovable = {"s": "it is a classic queue"}
    held = replace(view(LinkView(), LinkView(99), ("other", 50)), unmovable=unmovable)
    act, why = of(decide(held, NOW))
    assert act is None
    assert why == "the broker moves it only when its active consumer ends: it is a classic queue"
    # It is to be the other's, but the broker delivers to me.
    claims = Claims()
    claims.add("s", 1, "other", 50.0)
    links = {"s": LinkView(99)}
    members = {"mine": MemberView(is_local=True, links=links), "other": MemberView(is_local=False, links={})}
    assert decide(View(members, ["s"], claims, unmovable=unmovable), NOW).steps == [Step(CLAIM, "mine", "s", 2)]
    assert decide(View(members, ["s"], claims), NOW).steps == [Step(CLAIM, "mine", "s", 2)]


def test_a_stalled_member_gets_nothing_while_others_live() -> None:
    links = {"s": LinkView(), "t": LinkView()}
    stalled = MemberView(is_local=True, links=links, is_stalled=True)
    both = {"a": stalled, "b": MemberView(is_local=True, links=links)}
    assert decide(View(both, ["s", "t"], Claims()), NOW).targets == {"s": "b", "t": "b"}
    assert decide(View({"a": stalled}, ["s", "t"], Claims()), NOW).targets == {"s": "a", "t": "a"}


@pytest.mark.parametrize(
    ("mine", "level", "since", "follows"),
    [
        pytest.param(LinkView(), 9, 50, True, id="it waits below the holder"),
        pytest.param(LinkView(priority=8), 9, 50, False, id="it is right below already"),
        pytest.param(LinkView(priority=12), 9, 50, False, id="it is above the holder"),
        pytest.param(LinkView(), 1, 50, False, id="the holder was never raised"),
        pytest.param(LinkView(49), 9, 50, True, id="it was active before"),
        pytest.param(LinkView(NOW - QUIET + 0.1), 9, 50, False, id="it gets the shard all the same"),
        pytest.param(LinkView(NOW - QUIET - 0.1), 9, 50, False, id="it is to claim what it got after the claim"),
        pytest.param(LinkView(NOW - QUIET - 0.1), 9, NOW - QUIET - 1, True, id="it may have got that before the claim"),
        pytest.param(LinkView(NOW - QUIET + 0.1), 9, NOW, False, id="messages may be on their way to it"),
        pytest.param(LinkView(), 2**62, 50, True, id="the holder's priority is none of its claim"),
        pytest.param(LinkView(unacked=1), 9, 50, False, id="it holds messages"),
        pytest.param(LinkView(is_open=False), 9, 50, False, id="it is being opened"),
        pytest.param(LinkView(), 9, NOW, True, id="the claim is new"),
    ],
)
def test_a_link_that_waits_follows_the_holder(mine: LinkView, level: int, since: float, follows: bool) -> None:
    """So that a consumer which the broker keeps though it is gone is never the next one."""
    claims = Claims()
    claims.add("s", 7, "other", since)
    claims.add("t", 7, "mine", 1.0)
    members = {
        "mine": MemberView(is_local=True, links={"s": mine, "t": LinkView()}),
        "other": MemberView(is_local=False, links={"s": LinkView(priority=level)}),
    }
    seen = View(members, ["s", "t"], claims)
    step = Step(SUBSCRIBE, "mine", "s", priority=level - 1 if level < LEVELS else priority(7, "other") - WAITING_BELOW)
    assert followers(seen, {}, NOW) == ([step] if follows else [])
    assert followers(replace(seen, unmovable={"s": "classic"}), {}, NOW) == []
    assert followers(replace(seen, foreign=frozenset({"s"})), {}, NOW) == []


@pytest.mark.parametrize(("is_local", "step"), [(True, (CLAIM, "third")), (False, (RAISE, "mine"))])
def test_a_member_of_this_sidecar_that_gets_a_shard_claims_it_before_it_is_raised(
    is_local: bool, step: tuple[Act, str]
) -> None:
    seen = view(LinkView(), None, ("mine", 50.0))
    third = MemberView(is_local, {"s": LinkView(50.1 + HEAL + CLAIMED_WITHIN), "a": LinkView(), "c": LinkView()})
    steps = decide(replace(seen, members={**seen.members, "third": third}), NOW).steps
    assert [(each.act, each.member) for each in steps if each.shard == "s"] == [step]


def test_nothing_is_opened_above_a_member_that_gets_a_shard_and_has_yet_to_claim_it() -> None:
    """The last holder is lost, which is not known yet. RabbitMQ 4.3 would keep the one that gives way, if it ended."""
    seen = view(LinkView(), OTHERS, ("other", 50.0))
    assert [step.priority for step in followers(seen, {"s": "mine"}, NOW)] == [NEXT.priority]
    for at, opened in [(50.0 + HEAL, 1), (50.1 + HEAL, 0)]:
        third = MemberView(is_local=False, links={"s": LinkView(at)})
        assert len(followers(replace(seen, members={**seen.members, "third": third}), {"s": "mine"}, NOW)) == opened


@pytest.mark.parametrize(
    ("mine", "other", "why"),
    [
        pytest.param(LinkView(), OTHERS, "it is to be the next in line", id="not next in line yet"),
        pytest.param(NEXT, OTHERS, "the old member is to hand it over", id="next in line"),
        pytest.param(
            NEXT,
            OTHERS._replace(hands_over=True, unacked=3),
            "the old member has yet to ack 3 of its messages",
            id="being handed over",
        ),
        pytest.param(
            NEXT,
            OTHERS._replace(is_probe=True, delivered_at=99.0),
            "RabbitMQ may have kept a consumer that is gone, for whose messages the old member waits",
            id="the old member's probe has its message",
        ),
    ],
)
def test_a_shard_of_another_member_is_not_raised_but_handed_over(mine: LinkView, other: LinkView, why: str) -> None:
    """RabbitMQ 4.3 keeps a consumer whose channel ends while it gives way to a higher priority."""
    seen = view(mine, other, ("other", 50.0))
    assert of(decide(seen, NOW)) == (None, why)
    later = replace(seen, next_in_line=decide(seen, NOW).next_in_line)
    assert of(decide(later, NOW + HANDED_OVER_WITHIN - 0.1)) == (None, why)
    assert of(decide(later, NOW + HANDED_OVER_WITHIN))[0] is (RAISE if why.endswith("is to hand it over") else None)
    # The time counts from the holder's claim, at the earliest.
    before = replace(view(mine, other, ("other", NOW - 1)), next_in_line={("mine", "s"): 1.0})
    assert of(decide(before, NOW))[0] is None
    # Nor where no priorities are left below the old member's, or mine is above already.
    if not other.hands_over and not other.is_probe:
        none_left = {**seen.members, "other": MemberView(False, {"s": LinkView(priority=LEVELS)})}
        none_left["mine"] = MemberView(True, {"s": LinkView()})
        assert of(decide(replace(seen, members=none_left), NOW))[0] is RAISE
        above = {"mine": MemberView(True, {**seen.members["mine"].links, "s": LinkView(priority=OTHERS.priority + 1)})}
        assert of(decide(replace(seen, members={**seen.members, **above}), NOW))[0] is CLAIM
        # A sidecar that has yet to read the shard leaves it to the holder's, which may have read it.
        assert of(decide(replace(seen, movable=set()), NOW)) == (None, why)
    # A link of this sidecar that is just being replaced has no priority.
    replaced = {**seen.members, "other": MemberView(True, {})}
    assert of(decide(replace(seen, members=replaced), NOW))[1] == "the old member's consumer is being opened"
    # Nor has another sidecar's, of which that is told.
    told = replace(before, members={**before.members, "other": MemberView(False, {"s": LinkView()})})
    assert of(decide(told, NOW - 1.1 + HANDED_OVER_WITHIN))[1] == "the old member's consumer is being opened"
    assert of(decide(told, NOW - 1 + HANDED_OVER_WITHIN))[0] is RAISE


@pytest.mark.parametrize(
    ("mine", "other", "hands_over"),
    [
        pytest.param(OTHERS, NEXT, True, id="the next one is ready"),
        pytest.param(OTHERS._replace(unacked=3, delivered_at=99.0), NEXT, True, id="I hold messages"),
        pytest.param(OTHERS, LinkView(), False, id="the next one is not there yet"),
        pytest.param(OTHERS, LinkView(priority=BELOW), False, id="the next one waits among the others"),
        pytest.param(OTHERS, NEXT._replace(is_open=False), False, id="its link is not open yet"),
        pytest.param(OTHERS._replace(hands_over=True), NEXT, False, id="it is being handed over already"),
        pytest.param(OTHERS._replace(is_probe=True, delivered_at=99.0), NEXT, False, id="my probe has its message"),
        pytest.param(OTHERS._replace(is_probe=True), NEXT, True, id="my probe has got nothing"),
    ],
)
def test_a_member_hands_its_shard_over_once_the_next_one_is_ready(
    mine: LinkView, other: LinkView, hands_over: bool
) -> None:
    """The shard `s` is that of `old`, and is to be that of `new`, which has none yet."""
    claims = Claims()
    for shard in ("a", "s"):
        claims.add(shard, 7, "other", 50.0)
    members = {
        "other": MemberView(True, {"a": OTHERS, "s": mine}),
        "new": MemberView(False, {"a": other, "s": other}),
    }
    seen = View(members, ["a", "s"], claims, movable={"a", "s"})
    (shard,) = [shard for shard, target in decide(seen, NOW).targets.items() if target == "new"]
    assert shard == "s"
    step = Step(Act.HAND_OVER, "other", "s")
    assert decide(seen, NOW).steps == ([step] if hands_over else [])
    assert decide(replace(seen, hears=False), NOW).steps == []
    assert decide(replace(seen, movable={"a"}), NOW).steps == []
    # To another member of the same sidecar as well, which notes that it is next.
    here = replace(seen, members={**members, "new": MemberView(True, {"a": LinkView(), "s": other})})
    assert (step in decide(here, NOW).steps) == hands_over
    is_next = other.priority == NEXT.priority
    assert decide(here, NOW).next_in_line == ({("new", "s"): NOW} if is_next else {})


def test_whoever_was_next_in_line_claims_the_shard_once_it_is_given_up() -> None:
    seen = left(in_good_order=True)
    assert of(decide(replace(seen, next_in_line={("mine", "s"): 9.0}), NOW)) == (CLAIM, "it was the next in line")
    assert decide(replace(seen, next_in_line={("mine", "s"): 9.0}), NOW).next_in_line == {("mine", "s"): 9.0}
    lost = replace(left(in_good_order=False), next_in_line={("mine", "s"): 9.0})
    assert of(decide(lost, NOW)) == (None, "the last holder's node may be lost, for which RabbitMQ waits")
    # A client may hold messages of it yet.
    holds = replace(seen, leaving={"gone": MemberView(False, {"s": LinkView(unacked=3)})})
    assert of(decide(replace(holds, next_in_line={("mine", "s"): 9.0}), NOW))[0] is None


@pytest.mark.parametrize(
    ("present", "is_next", "wanted"),
    [
        (0, True, -1),
        (0, False, -WAITING_BELOW),
        (-1, True, -1),
        (-1, False, -WAITING_BELOW),
        (-2, False, -2),
        (-2, True, -1),
        (-WAITING_FROM, False, -WAITING_FROM),
        (-WAITING_FROM - 1, False, -WAITING_BELOW),
        (1, False, -WAITING_BELOW),
        (1, True, -1),
    ],
)
def test_the_next_in_line_waits_above_the_others(present: int, is_next: bool, wanted: int) -> None:
    """All priorities are given by how far they are above the holder's. One above may be active and get nothing."""
    top = OTHERS.priority
    seen = view(LinkView(priority=top + present), OTHERS, ("other", 50.0))
    step = Step(SUBSCRIBE, "mine", "s", priority=top + wanted)
    found = [step for step in followers(seen, {"s": "mine" if is_next else "other"}, NOW) if step.shard == "s"]
    assert found == ([step] if present != wanted else [])
