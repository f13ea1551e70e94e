"""When one sidecar tells what, and when it decides: without the others, whose beats the tests make."""

import math
from itertools import pairwise

import msgspec
from msgspec import UNSET

from proxy.groups.beats import Beat, LinkBeat, MemberBeat
from proxy.groups.decide import Act, Step
from proxy.groups.group import DECIDED_A_SECOND, Group, Tick
from proxy.groups.model import Link, LinkEvent, LinkState, Member
from proxy.groups.pauses import PauseOrder, Pauses, Verb
from proxy.groups.peers import Question
from proxy.groups.timing import (
    ASK_AGAIN,
    BEAT,
    CALM,
    COUNT_AGAIN,
    COUNT_EVERY,
    FIRST_LINK_PAUSE,
    LATE,
    LONGEST_CONSUMED,
    LOOK_EVERY,
    ORPHANED,
    PAUSES_WITHIN,
    SOON,
    STARVED_FOR,
    between_news,
)

NOW = 100.0


def group(shards: int = 2) -> Group:
    """Return a group with one member, whose first full beat has come back."""
    made = Group("own", "host", NOW)
    made.connected("queue of own", NOW)
    made.follow([f"s{number}" for number in range(shards)], NOW, NOW)
    made.joined(Member("m", "/", "orders", 1, b"tag"), NOW)
    beat = made.tick(NOW + SOON).beat
    assert beat is not None
    assert beat.members
    made.heard(beat, NOW + SOON)
    return made


def other(sidecar: str, number: int = 1, refused: int = 0) -> Beat:
    """Return a full beat of another sidecar, with a member that may not have so many shards."""
    shards = frozenset(f"none{number}" for number in range(refused))
    member = MemberBeat(f"m of {sidecar}", "", 0.0, refused=shards)
    return Beat(sidecar, number, "host", f"queue of {sidecar}", "ring", None, (member,))


def ticks(made: Group, since: float, until: float) -> list[tuple[float, Tick]]:
    """Return all that is due in a time, in which no beat comes back."""
    found, now = [], since
    while now <= until:
        found.append((now, made.tick(now)))
        now = max(made.due, now + 0.005)
    return found


def beats(made: Group, since: float, until: float) -> list[tuple[float, Beat]]:
    return [(now, tick.beat) for now, tick in ticks(made, since, until) if tick.beat is not None]


def test_a_full_beat_is_sent_again_until_it_has_come_back() -> None:
    """The connection may be lost, or the broker takes a beat only once the next one has replaced it."""
    made = group()
    made.heard(other("a", refused=1_000), NOW + SOON)
    sent = [beat for _, beat in beats(made, NOW + SOON, NOW + 3.5)]
    assert len(sent) == 4
    assert all(beat.members for beat in sent)
    made.heard(sent[-1], NOW + 3.5)
    # One that hears again tells all.
    ((_, again),) = beats(made, NOW + 3.5, NOW + 4.0)
    assert again.members
    made.heard(again, NOW + 4.0)
    ((_, sign),) = beats(made, NOW + 4.0, NOW + 4.0 + BEAT)
    assert sign.members is UNSET


def test_in_a_large_fleet_a_first_news_is_told_at_once_and_the_next_a_while_later() -> None:
    """Else 200 that start together would each have all others tell all."""
    made = group()
    now = NOW + 5.0
    made.tick(now)
    for number in range(99):
        made.heard(other(f"a{number}"), now)
    told = [at for at, _ in beats(made, now, now + 0.1)]
    assert told == [now + SOON]
    for number in range(10):
        made.heard(other(f"b{number}"), now + 0.1)
    told = [at for at, _ in beats(made, now + 0.1, now + 2.0)]
    assert len(told) == 1
    assert abs(told[0] - (now + SOON + between_news(101))) < 0.01


def test_of_one_that_is_gone_those_who_watch_it_tell_all() -> None:
    made = group()
    made.heard(other("a", 7), NOW + SOON)
    question = Question("a", "queue of a")
    for back in range(2):
        made.heard(Beat("own", 10**15 + back), NOW + 1.5)
    asked = NOW + SOON + LATE + 0.1
    assert made.tick(asked).questions == [question]
    made.answered(question, is_there=False, now=asked)
    assert not any(beat.sidecar == "a" for _, beat in beats(made, asked, asked + ASK_AGAIN - 0.01))
    assert made.tick(asked + ASK_AGAIN + 0.25).questions == [question]
    made.answered(question, is_there=False, now=asked + ASK_AGAIN + 0.26)
    assert made.due < asked
    (_, first), (_, second) = beats(made, asked + ASK_AGAIN + 0.26, asked + ASK_AGAIN + 0.4)
    assert (first.sidecar, first.number, first.members) == ("a", 8, ())
    # A beat may replace one that has not gone out, so its own news follow in any case.
    assert second.sidecar == "own"
    assert second.members
    assert made.peers.all == {}


def test_one_that_is_taken_for_gone_tells_that_it_is_there() -> None:
    made = group()
    now = NOW + 5.0
    made.tick(now)
    before = made.peers.echo_at
    made.heard(Beat("own", 10**15, members=()), now)
    assert made.peers.echo_at == before
    (at, beat), *_ = beats(made, now, now + 0.1)
    assert at <= now + SOON
    assert beat.members


def test_a_sidecar_that_leaves_does_not_contradict_its_own_farewell() -> None:
    made = group()
    beats(made, NOW + SOON, NOW + 0.1)
    last = made.last_beat(NOW + 0.5)
    assert last.members == ()
    made.heard(last, NOW + 0.5)
    assert beats(made, NOW + 0.5, NOW + 0.6) == []


def test_decisions_of_a_large_group_are_made_together() -> None:
    made = group(shards=1_000)
    now = NOW + SOON + CALM
    made.tick(now)
    gap = 1_001 / DECIDED_A_SECOND
    (member,) = made.local.values()
    decided = []
    for step in range(20):
        at = now + step * gap / 10
        made.changed(member, at)
        before = made.decision
        made.tick(at)
        if made.decision is not before:
            decided.append(at)
    assert 1 <= len(decided) <= 2


def test_without_any_event_there_is_a_decision_now_and_then() -> None:
    """The pause of a refused link ends without one."""
    made = group()
    (member,) = made.local.values()
    now = NOW + SOON + CALM
    made.tick(now)
    made.refused(member, "s0", "403", now)
    steps = [(at, step) for at, tick in ticks(made, now, now + 3.0) for step in tick.steps]
    assert any(step.shard == "s0" and at > now + 1.0 for at, step in steps)


def opened(made: Group, since: float, until: float) -> list[tuple[float, str]]:
    """Return when which links are opened in a time, in which all beats come back."""
    found, now = [], since
    while now <= until:
        tick = made.tick(now)
        found += [(now, step.shard) for step in tick.steps]
        if tick.beat is not None:
            made.heard(tick.beat, now)
        now = max(made.due, now + 0.005)
    return found


def test_nothing_is_opened_until_the_pauses_are_known_or_cannot_be_known_in_time() -> None:
    made = group(1)
    made.awaits_pauses(NOW)
    assert opened(made, NOW + SOON, NOW + 1.0) == []
    made.paused(Pauses(), NOW + 1.0)
    assert opened(made, NOW + 1.0, NOW + 1.0) == [(NOW + 1.0, "s0")]
    made = group(1)
    made.awaits_pauses(NOW)
    for late in range(5):
        # There are so many that they take longer.
        made.still_awaits_pauses(NOW + late)
        assert opened(made, NOW + late, NOW + late + 0.9) == []
    made = group(1)
    made.awaits_pauses(NOW)
    ((at, _), *_) = opened(made, NOW + SOON, NOW + 2 * PAUSES_WITHIN)
    assert PAUSES_WITHIN <= at - NOW <= PAUSES_WITHIN + BEAT
    # An open link is not let go because they come after all.
    made.still_awaits_pauses(NOW + 2 * PAUSES_WITHIN)
    made.tick(NOW + 2 * PAUSES_WITHIN + BEAT)
    assert list(made.decision.targets) == ["s0"]


def test_sidecars_try_an_orphan_in_turn_one_and_then_twice_as_many_each_time() -> None:
    """Else a fleet that starts on a slow broker opens as many links as its sidecars and shards multiply to."""
    made, others = group(shards=160), [f"a{number:02}" for number in range(15)]
    tried: dict[str, float] = {}
    for second in range(12):
        now = NOW + second
        made.heard(Beat("own", 10**15 + second), now)
        for sidecar in others:
            made.heard(other(sidecar, 1 + second), now)
        for at, shard in opened(made, now, now + 1.0):
            tried.setdefault(shard, at - NOW)
    turns = dict(made.peers.turns(made.shards))
    own = {shard for shard, target in made.decision.targets.items() if target == "m"}
    assert len(own) == 10
    assert own <= tried.keys()
    assert set(turns.values()) == set(range(16))
    for shard, turn in turns.items():
        due = 0.0 if shard in own else ORPHANED * (1 + math.ceil(math.log2(turn + 1)))
        assert due <= tried[shard] < due + 2 * BEAT, (shard, turn)


def test_an_orphan_is_left_to_one_that_opens_a_link_until_that_is_refused() -> None:
    made, now = group(shards=1), NOW
    opening = {"s0": LinkBeat(LinkState.OPENING, 0.0, 0, wants=True, behind="")}
    for second in range(8):
        now = NOW + second
        made.heard(Beat("own", 10**15 + second), now)
        told = MemberBeat("a", "", 0.0, refused=frozenset({"s0"} if second > 5 else ()), links=opening)
        made.heard(Beat("a", 1 + second, "host", "queue of a", "ring", None, (told,)), now)
        assert bool(opened(made, now, now + 0.9)) == (second > 5)


def test_a_shard_is_no_orphan_as_soon_as_its_pause_is_over() -> None:
    """This sidecar's member is not the one that should have one of the shards, and leaves that to the other."""
    made, pauses = group(2), Pauses()
    pauses.take(PauseOrder(Verb.PAUSE, "orders", 0.0), "anna")
    made.paused(pauses, NOW + SOON)
    made.heard(other("a"), NOW + 0.1)
    assert opened(made, NOW + 0.1, NOW + 0.9) == []
    now = NOW + 0.9
    for number in range(2, 8):
        made.heard(other("a", number), now)
        assert opened(made, now, now + 0.5 * ORPHANED) == []
        now += 0.5 * ORPHANED
    assert made.paused_shards == ["s0", "s1"]
    pauses.take(PauseOrder(Verb.RESUME, "orders", 0.0), "anna")
    made.paused(pauses, now)
    assert [shard for _, shard in opened(made, now, now + 0.1)] == [
        shard for shard, target in made.decision.targets.items() if target == "m"
    ]
    assert len(made.decision.targets) == 2
    assert made.paused_shards == []


def ended_at_a_marker(made: Group, shard: str, now: float) -> None:
    """Have a link of the only member open, meet a marker, and end."""
    (member,) = made.local.values()
    link = member.links[shard] = Link(member, shard)
    link.since = now
    for event in (LinkEvent.WANT, LinkEvent.CONSUMING):
        link.enter(event, now)
        made.changed(member, now)
    made.tick(now)
    link.is_marked = True
    for event in (LinkEvent.LET_GO, LinkEvent.SETTLED, LinkEvent.CLOSED):
        link.enter(event, now)
        made.changed(member, now)
    made.tick(now)


def test_a_shard_that_ended_at_a_marker_stays_its_owners_until_nobody_was_counted_twice() -> None:
    """A member that consumed as the command deletes the queue would cost its client the connection."""
    made = group(1)
    made.heard(other("a"), NOW + SOON)
    ticks(made, NOW + SOON, NOW + 1.0)
    (shard,) = {name for name, target in made.decision.targets.items() if target == "m"}
    ended = NOW + 1.0
    ended_at_a_marker(made, shard, ended)
    counts, asked, now = [1, None, 0, 1, 0, 0], [ended], ended + 0.01
    while not (tick := made.tick(now)).steps:
        for name in tick.counted:
            asked.append(now)
            made.counted(name, counts[len(asked) - 2], now)
        if tick.beat is not None:
            made.heard(tick.beat, now)
            made.heard(other("a", number=int(now * 1000)), now)
        (told,) = made.beat(now, is_full=True).told
        link = told.links[shard]
        assert (link.state, link.unacked, link.since) == (LinkState.LEAVING, 0, ended)
        assert (told.refused, made.owned(is_first=False)) == (frozenset(), [shard])
        assert made.decision.targets[shard] == "m"
        now = max(made.due, now + 0.005)
        assert now < ended + 30
    assert tick.steps == [Step(Act.OPEN, "m", shard)]
    pauses = [after - before for before, after in pairwise(asked)]
    for pause, least in zip(pauses, [1, 2, 4, COUNT_AGAIN, 8, COUNT_AGAIN], strict=True):
        assert least - 0.001 <= pause <= least + 2 * LOOK_EVERY
    assert made.moves == 1


def test_two_counts_at_once_are_one() -> None:
    made = group(1)
    ended_at_a_marker(made, "s0", NOW + 1.0)
    for count_at, may_open in ((2.0, False), (2.1, False), (2.4, False), (2.6, True)):
        made.counted("s0", 0, NOW + count_at)
        (member,) = made.local.values()
        assert member.endings["s0"].is_over == may_open


def test_a_shard_that_a_stranger_consumes_is_joined_after_a_limit() -> None:
    made = group(1)
    ended_at_a_marker(made, "s0", NOW + 1.0)
    (member,) = made.local.values()
    for after, may_open in ((LONGEST_CONSUMED - 1, False), (LONGEST_CONSUMED, True)):
        made.counted("s0", 1, NOW + 1.0 + after)
        assert member.endings["s0"].is_over == may_open


def test_a_shard_is_counted_again_where_no_answer_comes() -> None:
    made = group(1)
    ended_at_a_marker(made, "s0", NOW + 1.0)
    asked, now = [], NOW + 1.0
    while now < NOW + 8.0:
        made.heard(Beat("own", int(now * 1e16)), now)
        asked += [now] * bool(made.tick(now).counted)
        now += 0.05
    assert len(asked) == 3
    assert all(after - before >= COUNT_EVERY for before, after in pairwise(asked))


def test_a_member_that_has_left_does_not_hold_a_shard_that_ended_at_a_marker() -> None:
    made = group(1)
    (member,) = made.local.values()
    ended_at_a_marker(made, "s0", NOW + 1.0)
    member.links["other"] = Link(member, "other")
    made.left(member, NOW + 1.0)
    assert [dict(told.links) for told in made.beat(NOW + 1.0, is_full=True).told] == [{}]


def test_another_member_leaves_a_shard_alone_in_the_place_of_one_that_is_gone() -> None:
    made = group(1)
    (member,) = made.local.values()
    ended_at_a_marker(made, "s0", NOW + 1.0)
    made.joined(heir := Member("n", "/", "orders", 1, b"tag"), NOW + 1.0)
    made.left(member, NOW + 1.1)
    assert heir.endings == member.endings
    assert not made.tick(NOW + 2.0).steps
    assert [told.links["s0"].state for told in made.beat(NOW + 2.0, is_full=True).told] == [LinkState.LEAVING]
    for at in (2.5, 2.5 + COUNT_AGAIN):
        made.counted("s0", 0, NOW + at)
    assert [shard for _, shard in opened(made, NOW + 3.0, NOW + 4.0)] == ["s0"]


def test_a_shard_is_its_owners_from_the_end_of_a_link_at_a_marker_until_the_next_one_has_ended() -> None:
    made = group(1)
    (member,) = made.local.values()

    def told(now: float = NOW) -> list[int]:
        return [link.state for link in made.beat(now, is_full=True).told[0].links.values()]

    link = member.links["s0"] = Link(member, "s0")
    link.enter(LinkEvent.WANT, NOW)
    link.enter(LinkEvent.CONSUMING, NOW)
    link.is_marked = True
    for event in (LinkEvent.LET_GO, LinkEvent.ACKED, LinkEvent.CONSUMING, LinkEvent.CLOSED):
        link.enter(event, NOW)
        assert told() == [LinkState.LEAVING], event
    # One that should not have the shard any more tells of it no longer.
    over = NOW + FIRST_LINK_PAUSE + ORPHANED
    assert (told(over - 0.01), told(over)) == ([LinkState.LEAVING], [])
    link = member.links["s0"] = Link(member, "s0")
    link.enter(LinkEvent.WANT, NOW + 1)
    assert told() == [LinkState.LEAVING]
    link.enter(LinkEvent.CONSUMING, NOW + 1)
    assert told() == [LinkState.OPEN]
    link.enter(LinkEvent.REFUSED, NOW + 1)
    assert (told(), member.endings) == ([], {})


def test_a_member_forgets_the_pauses_of_a_shard_whose_queue_is_gone() -> None:
    """A report would tell for ever of a consumer that is refused."""
    made = group(2)
    (member,) = made.local.values()
    ended_at_a_marker(made, "s0", NOW + 1.0)
    made.refused(member, "s0", "the broker has cancelled the consumer", NOW + 2.0)
    made.refused(member, "s1", "403", NOW + 2.0)
    made.missing("s0", NOW + 3.0)
    assert member.pauses.keys() == {"s0", "s1"}
    made.follow(["s1"], NOW + 4.0, NOW + 4.0)
    assert member.pauses.keys() == {"s1"}
    assert member.endings == {}


def refused(made: Group, now: float) -> frozenset[str]:
    """Return the shards that the group's own member may not have, as its next beat tells."""
    return made.members(now)["m"].refused


def test_a_shard_of_which_a_member_got_nothing_is_anothers_for_a_while() -> None:
    made, now = group(), NOW + 1.0
    member = made.local["m"]
    made.starved(member, "s0", now)
    assert refused(made, now) == frozenset()  # there is no other one
    made.heard(other("b"), now)
    assert refused(made, now) == {"s0"}
    assert refused(made, now + STARVED_FOR) == frozenset()


def test_a_shard_that_no_member_gets_is_refused_by_none() -> None:
    made, now = group(), NOW + 1.0
    member, second = made.local["m"], Member("n", "/", "orders", 1, b"tag")
    made.joined(second, now)
    made.starved(member, "s0", now)
    assert refused(made, now) == {"s0"}
    second.refused("s0", "404", now)
    assert refused(made, now) == frozenset()
    assert refused(made, now + FIRST_LINK_PAUSE) == {"s0"}
    second.stalled_until = now + 5.0
    assert refused(made, now + FIRST_LINK_PAUSE) == frozenset()
    made.heard(other("b", refused=1), now)
    assert refused(made, now + FIRST_LINK_PAUSE) == {"s0"}
    beat = other("b", number=2)
    assert isinstance(beat.members, tuple)
    made.heard(
        msgspec.structs.replace(beat, members=(msgspec.structs.replace(beat.members[0], refused=frozenset({"s0"})),)),
        now,
    )
    assert refused(made, now + FIRST_LINK_PAUSE) == frozenset()


def test_a_sidecar_without_the_rights_to_beat_looks_after_shards_at_once() -> None:
    made = Group("own", "host", NOW)
    made.follow(["s0", "s1"], NOW, NOW)
    made.joined(Member("m", "/", "orders", 1, b"tag"), NOW)
    made.tick(NOW + CALM)
    made.connected("", NOW + CALM, is_refused=True)
    assert made.tick(NOW + CALM).counted == ["s0", "s1"]
    made.counted("s0", 0, NOW + CALM)
    made.counted("s1", 1, NOW + CALM)
    steps = [step for _, tick in ticks(made, NOW + CALM, NOW + 2 * CALM) for step in tick.steps]
    assert {(step.act, step.shard) for step in steps} == {(Act.OPEN, "s0")}
