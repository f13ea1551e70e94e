"""The decision by what beats tell: who owns a shard, who should, and which links are opened and let go for that."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.groups.beats import LinkBeat, MemberBeat
from proxy.groups.decide import Act, Decision, Move, Reason, Stance, Step, View, decide, owner_of
from proxy.groups.model import Link, LinkState, Member

OPENING, OPEN, LEAVING = LinkState.OPENING.value, LinkState.OPEN.value, LinkState.LEAVING.value


def link(state: int = OPEN, since: float = 1.0, *, wants: bool = False, behind: str = "", unacked: int = 0) -> LinkBeat:
    return LinkBeat(state, since, unacked, wants, behind)


def member(name: str, **links: LinkBeat) -> MemberBeat:
    return MemberBeat(name, f"client of {name}", 0.0, links=links)


def changed(told: MemberBeat, **changes: Any) -> MemberBeat:
    return replace(told, **changes)


def view(
    *members: MemberBeat,
    local: str = "a",
    shards: str = "s t",
    closing: Iterable[tuple[str, str]] = (),
    brought: Iterable[tuple[str, str]] = (),
    **more: Any,
) -> View:
    """Return what a sidecar with the members `local` sees.

    By member and shard, `closing` are its links that end, and `brought` those by which messages have come.
    """
    own = {name: Member(name, "/", "orders", 1, b"tag") for name in local.split()}
    for told in members:
        if told.id in own:
            own[told.id].links = {shard: Link(own[told.id], shard) for shard in told.links}
    for name, shard in closing:
        own[name].links[shard] = Link(own[name], shard)
    for name, shard in brought:
        own[name].links[shard].delivered = 1
    return View(shards.split(), {each.id: each for each in members}, own, **more)


def steps(decision: Decision) -> list[tuple[str, str, str]]:
    return [(step.act.name, step.member, step.shard) for step in decision.steps]


# Owners.


@pytest.mark.parametrize(
    ("links", "owner"),
    [
        ([], ""),
        ([("a", link(OPENING, 1))], ""),
        ([("a", link(OPEN, 2)), ("b", link(OPEN, 1))], "b"),
        ([("b", link(OPEN, 1)), ("a", link(OPEN, 1))], "a"),
        ([("a", link(LEAVING, 1)), ("b", link(OPEN, 2))], "b"),
        ([("a", link(LEAVING, 1)), ("b", link(OPENING, 2))], "a"),
        ([("a", link(LEAVING, 2)), ("b", link(LEAVING, 1))], "b"),
    ],
)
def test_the_owner_is_the_member_of_the_oldest_open_link(links: list[tuple[str, LinkBeat]], owner: str) -> None:
    assert owner_of(links) == owner


# Targets.


def test_members_that_have_stalled_or_left_are_no_targets_unless_all_have() -> None:
    a, b, c = member("a", s=link(), t=link()), member("b"), member("c")
    decision = decide(view(a, changed(b, is_stalled=True), changed(c, is_leaving=True)))
    assert decision.targets == {"s": "a", "t": "a"}
    decision = decide(view(changed(a, is_leaving=True), changed(b, is_stalled=True), changed(c, is_leaving=True)))
    assert decision.targets == {"s": "b", "t": "b"}
    assert decide(view(changed(a, is_leaving=True))).targets == {}


def test_a_shard_goes_to_one_that_may_have_it_and_stays_with_its_owner_if_that_may() -> None:
    a, b = member("a", s=link(), t=link()), changed(member("b"), refused=frozenset({"s", "t"}))
    assert decide(view(a, b)).targets == {"s": "a", "t": "a"}
    # Nobody owns them: the one with the fewest gets both.
    assert decide(view(member("a"), b)).targets == {"s": "a", "t": "a"}
    assert decide(view(a, member("b"), lacking={"b": frozenset({"s", "t"})})).targets == {"s": "a", "t": "a"}


def test_where_all_are_refused_the_target_tries_again() -> None:
    refused = frozenset({"s"})
    a, b = changed(member("a"), refused=refused), changed(member("b"), refused=refused)
    assert decide(view(a, b, shards="s")).targets["s"] in ("a", "b")


# Links that members open and let go


def test_a_target_opens_its_link_once() -> None:
    assert steps(decide(view(member("a"), shards="s"))) == [("OPEN", "a", "s")]
    assert steps(decide(view(member("a", s=link(OPENING)), shards="s"))) == []
    assert steps(decide(view(member("a"), shards="s", closing=[("a", "s")]))) == []
    assert steps(decide(view(changed(member("a"), refused=frozenset({"s"})), shards="s"))) == []
    assert steps(decide(view(member("a"), shards="s", local=""))) == []
    assert steps(decide(view(member("a"), shards="s", hears=False))) == []


@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_target_opens_no_link_to_a_shard_that_another_member_has_let_go_at_a_marker(is_leaving: bool) -> None:
    its = changed(member("a", s=link(LEAVING)), is_leaving=is_leaving, is_stalled=True)
    decision = decide(view(its, member("b"), shards="s", local="b"))
    assert decision.targets == {"s": "b"}
    assert steps(decision) == ([("OPEN", "b", "s")] if is_leaving else [])


def moving(target: MemberBeat, **more: Any) -> View:
    """A owns both shards, and b is to have one of them, t."""
    return view(member("a", s=link(since=1), t=link(since=2)), target, **more)


def test_an_owner_lets_go_once_the_target_waits_behind_it_and_wants_the_shard() -> None:
    assert decide(moving(member("b"))).targets == {"s": "a", "t": "b"}
    assert steps(decide(moving(member("b")))) == []
    assert steps(decide(moving(member("b", t=link(OPENING, 3, wants=True, behind="a"))))) == []
    assert steps(decide(moving(member("b", t=link(OPEN, 3))))) == []
    assert steps(decide(moving(member("b", t=link(OPEN, 3, wants=True))))) == []
    assert steps(decide(moving(member("b", t=link(OPEN, 3, behind="a"))))) == []
    ready = member("b", t=link(OPEN, 3, wants=True, behind="a"))
    assert steps(decide(moving(ready))) == [("LET_GO", "a", "t")]
    assert steps(decide(moving(ready, hears=False))) == []


def test_a_target_of_the_same_sidecar_needs_no_beat() -> None:
    assert steps(decide(moving(member("b", t=link(OPEN, 3)), local="a b"))) == [("LET_GO", "a", "t")]


def test_one_that_is_not_the_owner_lets_go_once_it_and_the_target_see_the_same_owner() -> None:
    c = member("c", t=link(OPEN, 1))
    for behind, expected in (("c", True), ("a", True), ("", False), ("b", False)):
        b = member("b", t=link(OPEN, 3, wants=True, behind=behind))
        a = member("a", s=link(since=1), t=link(OPEN, 2))
        found = steps(decide(view(a, b, changed(c, is_leaving=True), shards="s t", brought=[("a", "t")])))
        assert (("LET_GO", "a", "t") in found) is expected, behind


def test_a_link_that_waits_behind_the_owner_for_nothing_ends() -> None:
    """As after a time in which a sidecar heard nobody, and opened links to shards that others have."""
    spare, owner = member("a", s=link(since=9), t=link(since=9)), member("b", s=link(since=1), t=link(since=1))
    assert steps(decide(view(spare, owner))) == [("LET_GO", "a", "s")]
    # One by which messages have come does not wait, whatever the clocks say.
    assert steps(decide(view(spare, owner, brought=[("a", "s")]))) == []
    leaving = member("b", s=link(LEAVING, since=1), t=link(LEAVING, since=1))
    assert steps(decide(view(spare, leaving))) == []


def test_an_owner_that_is_leaving_takes_no_further_step() -> None:
    a = changed(member("a", s=link(), t=link()), is_leaving=True)
    assert steps(decide(view(a, member("b", s=link(OPEN, 5, wants=True, behind="a"))))) == []


def test_a_vacant_shard_is_opened_by_the_fit_member_with_the_fewest_whoever_the_target_is() -> None:
    # B is the target of s, and c of t. A has one link, and c none.
    members = member("a", u=link()), member("b"), member("c")
    vacant = view(*members, local="a c", shards="s t u", vacant={"s", "t"})
    assert decide(vacant).targets == {"s": "b", "t": "c", "u": "a"}
    assert steps(decide(vacant)) == [("OPEN", "c", "t"), ("OPEN", "c", "s")]
    # A sidecar that hears nobody does so too, for shards that nobody consumes.
    deaf = view(member("a"), local="a", vacant={"t"}, hears=False)
    assert steps(decide(deaf)) == [("OPEN", "a", "t")]
    stalled = view(changed(member("a"), is_stalled=True), local="a", vacant={"t"}, hears=False)
    assert steps(decide(stalled)) == [("OPEN", "a", "t")]
    gone = view(changed(member("a"), is_leaving=True), local="a", vacant={"t"}, hears=False)
    assert steps(decide(gone)) == []


def test_a_vacant_shard_is_tried_by_one_member_at_a_time_beside_its_target() -> None:
    """RabbitMQ 4.0.5 in a cluster took seconds for each basic.consume, and got one of each member (seen in chaos)."""
    a, b, c, far = member("a", s=link(OPENING)), member("b"), member("c"), member("0")
    for hears, remote in ((True, [far]), (False, [])):
        vacant = view(a, b, c, *remote, local="a b c", shards="s", vacant={"s"}, hears=hears)
        assert decide(vacant).targets["s"] == ("0" if hears else "a")
        assert steps(decide(vacant)) == []
    # The target is not waited for, unless nobody is heard.
    assert steps(decide(view(a, b, c, local="a b c", shards="s", vacant={"s"}))) == [("OPEN", "b", "s")]
    # An attempt that takes long counts as refused, and the next member tries.
    slow = changed(a, refused=frozenset({"s"}))
    assert steps(decide(view(slow, b, far, local="a b", shards="s", vacant={"s"}))) == [("OPEN", "b", "s")]


# Links in beats


def test_a_link_says_whether_its_member_is_the_target_and_behind_whom_it_waits() -> None:
    b = member("b", t=link(OPEN, 3))
    assert decide(moving(b, local="a b")).stances == {
        ("a", "s"): Stance(wants=True, behind=""),
        ("a", "t"): Stance(wants=False, behind=""),
        ("b", "t"): Stance(wants=True, behind="a"),
    }


# Reasons in reports


@pytest.mark.parametrize(
    ("told", "more", "reason"),
    [
        (member("b"), {}, Reason.NOT_OPENED),
        (changed(member("b"), refused=frozenset({"t"})), {}, None),
        (member("b", t=link(OPENING, 3)), {}, Reason.OPENING),
        (member("b", t=link(OPEN, 3)), {}, Reason.DISAGREEMENT),
        (member("b", t=link(OPEN, 3)), {"local": "b"}, Reason.NOT_LET_GO),
        (member("b"), {"hears": False}, Reason.DEAF),
    ],
)
def test_why_a_shard_is_not_with_its_target(told: MemberBeat, more: dict[str, Any], reason: Reason | None) -> None:
    expected = [] if reason is None else [Move("t", "a", "b", reason)]
    assert list(decide(moving(told, **more)).moves) == expected


def test_a_shard_whose_owner_has_yet_to_ack_moves() -> None:
    a = member("a", s=link(LEAVING, unacked=3))
    assert list(decide(view(a, shards="s")).moves) == [Move("s", "a", "a", Reason.ACKS)]
    nobody = decide(view(changed(member("a"), refused=frozenset({"s"})), shards="s"))
    assert list(nobody.moves) == [Move("s", "", "a", Reason.REFUSED)]
    opening = changed(member("a", s=link(OPENING)), refused=frozenset({"s"}))
    assert list(decide(view(opening, shards="s")).moves) == [Move("s", "", "a", Reason.REFUSED)]


def test_two_sidecars_that_know_the_same_decide_the_same() -> None:
    a, b = member("a", s=link(), t=link(since=2)), member("b")
    assert decide(view(a, b, local="a")).targets == decide(view(b, a, local="b")).targets
    assert Step(Act.OPEN, "b", "t") in decide(view(a, b, local="b")).steps


# Pauses


def test_a_paused_shard_has_no_target_and_its_link_is_let_go_by_whoever_has_it() -> None:
    a, b = member("a", s=link(since=1), t=link(since=2)), member("b", u=link(since=3))
    decision = decide(view(a, b, shards="s t u", local="a b", paused={"s", "u"}))
    assert decision.targets == {"t": "a"}
    assert steps(decision) == [("LET_GO", "a", "s"), ("LET_GO", "b", "u")]
    assert decision.moves == [Move("s", "a", "", Reason.PAUSED), Move("u", "b", "", Reason.PAUSED)]
    assert decision.stances["a", "s"] == Stance(wants=False, behind="")
    # Another sidecar's link is that sidecar's to let go.
    assert steps(decide(view(a, b, shards="s t u", local="a", paused={"u"}))) == []


def test_nobody_opens_a_paused_shard_also_where_it_is_an_orphan() -> None:
    a = member("a", t=link())
    for hears in (True, False):
        decision = decide(view(a, paused={"s"}, vacant={"s"}, hears=hears))
        assert (steps(decision), decision.moves) == ([], [])
    assert steps(decide(view(member("a"), member("b"), local="a b", paused={"s", "t"}))) == []


def test_what_is_paused_is_let_go_by_a_deaf_sidecar_too_and_only_once() -> None:
    a = member("a", s=link(), t=link(OPENING))
    assert steps(decide(view(a, paused={"s", "t"}, hears=False))) == [("LET_GO", "a", "s")]
    decision = decide(view(member("a", s=link(LEAVING, unacked=3)), shards="s", paused={"s"}))
    assert (steps(decision), decision.moves) == ([], [Move("s", "a", "", Reason.ACKS)])
    assert steps(decide(view(changed(member("a", s=link()), is_leaving=True), shards="s", paused={"s"}))) == []


def test_a_pause_moves_no_other_shard_and_the_shard_comes_back_to_the_member_that_lacks_one() -> None:
    a, b = member("a", s=link(since=1), t=link(since=2)), member("b", u=link(since=3), v=link(since=4))
    shards = "s t u v"
    before = decide(view(a, b, shards=shards)).targets
    paused = decide(view(member("a", t=link(since=2)), b, shards=shards, paused={"s"}))
    assert paused.targets == {shard: owner for shard, owner in before.items() if shard != "s"}
    assert decide(view(member("a", t=link(since=2)), b, shards=shards)).targets == before
