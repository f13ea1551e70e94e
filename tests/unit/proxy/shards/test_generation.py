"""A change of generations, by what a virtual host has: what may not begin, what is left to do, when shards open."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from proxy.shards.consumers import Consumer
from proxy.shards.difference import compare, compare_generation
from proxy.shards.document import parse
from proxy.shards.export import ExportError, export
from proxy.shards.generation import (
    Permission,
    begun,
    change_of,
    differs,
    has_no_limit,
    next_of,
    refusals,
    standing,
    strangers,
    taken_back,
    unpermitted,
)
from proxy.shards.retirement import RetireError, check, parts_of
from proxy.shards.retirement import Shard as RetiredShard
from proxy.shards.shard import OwnTerms, Sharded
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Unbind
from proxy.topology.bindings import UNREADABLE, Promise
from ring.destination import Destination

SAC = {"x-single-active-consumer": True}


def file(*numbers: int, **more: Any) -> Sharded:
    return Sharded('[[exchange]] 1, "orders"', "orders", numbers=numbers, **more)


def after(state: State, steps: Any) -> State:
    """Return a state once steps that declare, bind and unbind are taken."""
    exchanges, queues = dict(state.exchanges), dict(state.queues)
    bindings = {source: list(found) for source, found in state.bindings.items()}
    for step in steps:
        match step:
            case DeclareQueue():
                queues[step.name] = FoundQueue("quorum", SAC | dict(step.arguments), ready=0, unacked=0)
            case DeclareExchange():
                exchanges[step.name] = FoundExchange(step.type)
            case Bind():
                found = FoundBinding(step.destination, step.key, str(len(bindings)), step.promise)
                bindings.setdefault(step.source, []).append(found)
            case Unbind():
                kept = [each for each in bindings[step.source] if each.destination != step.destination]
                bindings[step.source] = kept
    return replace(state, exchanges=exchanges, queues=queues, bindings={s: tuple(b) for s, b in bindings.items()})


def made(exchange: Sharded) -> State:
    state = State("/", nodes=("rabbit@a",))
    return after(state, compare(exchange, state).steps)


def closed(state: State, exchange: Sharded) -> State:
    """Return a state whose old lanes are closed, as the change to the generation of `exchange` closes them."""
    change = change_of(exchange, state)
    steps = [Unbind(each.lane, Destination("queue", each.place), "", "~") for each in change.old]
    return after(state, [*change.promised(state), *steps])


def without(state: State, *queues: str) -> State:
    return replace(state, queues={name: found for name, found in state.queues.items() if name not in queues})


def test_the_next_generation_has_names_of_its_own_and_the_places_of_the_first() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    assert [(s.queue, s.lane, s.place) for s in target.shards((), 1)] == [
        (f"orders.g2.{n}", f"orders.lane.g2.{n}", f"orders.{n}") for n in (1, 2, 3)
    ]
    assert target.shard(3).promise == Promise("orders.3", (("orders", "orders.g2.3"),), 2, 3)


def test_nothing_counts_until_the_last_lane_is_bound_and_no_group_is_promised_anything() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    steps = compare_generation(target, state, is_new=True).steps
    bound = [step for step in steps if isinstance(step, Bind) and step.source == "orders"]
    assert [step.promise for step in bound] == [Promise(f"orders.{n}", (), 2, 3) for n in (1, 2, 3)]
    before, almost, done = state.weights("orders"), after(state, steps[:-1]), after(state, steps)
    assert almost.weights("orders") == before
    assert set(done.weights("orders")) == {Destination("queue", f"orders.{n}") for n in (1, 2, 3)}
    assert begun(file(1, 2, 3), almost) == begun(file(1, 2, 3), done) == target
    assert begun(file(1, 2, 3), state) is None
    assert not compare_generation(target, done, is_new=True).steps
    assert "generation 2 is being made" in compare(file(1, 2, 3), done).refusals[0]


def test_a_new_shard_waits_for_each_old_one_that_had_keys_of_it() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    state = closed(after(state, compare_generation(target, state, is_new=True).steps), target)
    change = change_of(target, state)
    # A number that stays loses keys, and gets none.
    assert change.sources == {"orders.1": {"orders.1"}, "orders.2": {"orders.2"}, "orders.3": {"orders.1", "orders.2"}}
    assert change.left(()) == {f"orders.{n}": ("orders", f"orders.{n}") for n in (1, 2)}
    assert not list(change.opened(state, ()))
    (bind,) = change.opened(state, {"orders.1"})
    assert bind.promise == Promise("orders.1", (("orders", "orders.g2.1"),), 2, 3)
    names = [step.destination.name for step in change.opened(state, {"orders.1", "orders.2"})]
    assert names == [f"orders.lane.g2.{n}" for n in (1, 2, 3)]
    assert not list(change.opened(after(state, [bind]), {"orders.1"}))


def test_where_an_old_lane_is_gone_new_shards_wait_for_more_and_never_for_fewer() -> None:
    state = made(file(1, 2, 3, 4))
    target = next_of(file(1, 2), state)
    state = closed(after(state, compare_generation(target, state, is_new=True).steps), target)
    whole = change_of(target, state)
    gone = after(state, [Unbind("orders", Destination("exchange", "orders.lane.3"), "1", "~")])
    part = change_of(target, gone)
    for place, sources in whole.sources.items():
        assert sources - {"orders.3"} <= part.sources[place]


def test_each_group_drains_for_itself() -> None:
    wanted = {"groups": ("audit",)}
    state = made(file(1, 2, **wanted))
    target = next_of(file(1, 2, 3, **wanted), state)
    state = closed(after(state, compare_generation(target, state, is_new=True).steps), target)
    change = change_of(target, state)
    assert {group for group, _ in change.left(()).values()} == {"orders", "orders/audit"}
    binds = list(change.opened(state, {"orders.1", "orders.2"}))
    assert [bind.promise and bind.promise.groups for bind in binds] == [
        (("orders", f"orders.g2.{n}"),) for n in (1, 2, 3)
    ]
    (bind,) = change.opened(after(state, binds), {"orders.1", "orders.2", "orders.audit.2"})
    assert bind.promise == Promise("orders.2", (("orders/audit", "orders.audit.g2.2"),), 2, 3)


def test_a_change_that_is_over_is_like_the_file_and_the_next_one_follows() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    state = closed(after(state, compare_generation(target, state, is_new=True).steps), target)
    change = change_of(target, state)
    state = after(without(state, *change.left(())), change.opened(state, change.left(())))
    state = after(state, [Unbind("orders", Destination("exchange", each.lane), "1", "~") for each in change.old])
    difference = compare(file(1, 2, 3), state)
    assert (difference.steps, difference.refusals) == ((), ())
    assert not differs(file(1, 2, 3), state)
    assert differs(file(1, 2), state)
    assert list(standing("orders", state)) == ["orders: generation 2 with 3 shards, and no change is under way"]
    further = next_of(file(1, 2), state)
    assert further.generation == 3
    assert [each.queues for each in change_of(further, state).old] == [{"orders": f"orders.g2.{n}"} for n in (1, 2, 3)]
    for other in (file(1, 2), file(1, 2, 3, 4)):
        (refusal,) = compare(other, state).refusals
        assert "apply --ordered" in refusal


def test_the_standing_tells_the_step_the_drained_shards_and_what_is_left() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    steps = compare_generation(target, state, is_new=True).steps
    almost = [*standing("orders", after(state, steps[:-1]))]
    assert almost[1] == "  step 1 of 4: 2 of 3 lanes are bound; it can be taken back with --abort"
    state = after(state, steps)
    filled = {"orders.1": FoundQueue("quorum", SAC, ready=1000, unacked=234), "orders.2": FoundQueue("quorum", SAC)}
    open_lanes = [*standing("orders", replace(state, queues={**state.queues, **filled}))]
    assert open_lanes[1:3] == [
        "  step 2 of 4: 0 of 2 old lanes are closed",
        "  2 old shards are left, 1,234 messages are left, 1 queues are not counted yet",
    ]
    # The number of shards of a later generation is known.
    state = later()
    target = next_of(file(1, 2), state)
    state = after(state, compare_generation(target, state, is_new=True).steps)
    (first, *rest) = change_of(target, state).old
    state = after(state, [Unbind("orders", Destination("exchange", first.lane), "1", "~")])
    for each in rest:
        state = replace(state, bindings={**state.bindings, each.lane: ()})
    assert [*standing("orders", state)][1:3] == [
        "  steps 3 and 4 of 4: settles all that was published before, and drains",
        "  1 of 3 old shards are drained, 0 messages are left",
    ]


def test_a_generation_is_taken_back_until_it_is_the_ring() -> None:
    state = made(file(1, 2))
    target = next_of(file(1, 2, 3), state)
    steps = compare_generation(target, state, is_new=True).steps
    almost = after(state, steps[:-1])
    back, why = taken_back(target, almost)
    assert why == ""
    assert [str(step) for step in back] == [
        *(f"unbind orders from exchange orders.lane.g2.{n}, weight 1" for n in (1, 2)),
        *(f"delete exchange orders.lane.g2.{n}" for n in (1, 2, 3)),
        *(f"delete queue orders.g2.{n}" for n in (1, 2, 3)),
    ]
    full = replace(almost, queues={**almost.queues, "orders.g2.1": FoundQueue("quorum", SAC, ready=1, unacked=0)})
    assert taken_back(target, full) == (
        [],
        "queue 'orders.g2.1' has messages of programs without a sidecar, or is not counted yet",
    )
    assert "is the ring already" in taken_back(target, after(state, steps))[1]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (file(1, 2, lanes=False), "has a lane, and no name of its own"),
        (file(1, 2, own={1: OwnTerms(queue="other")}), "has a lane, and no name of its own"),
        (file(1, 2, retiring=frozenset({2})), "retiring: [2]"),
        (replace(file(1), numbers=None, per_node=2), "shards_per_node"),
        (file(1, 2, type="x-modulus-hash"), "only the weights of x-consistent-hash"),
    ],
)
def test_a_file_that_no_generation_can_be_made_of_is_refused(wanted: Sharded, why: str) -> None:
    assert any(why in line for line in refusals(wanted, made(file(1, 2))))


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (FoundQueue("stream"), "is a stream"),
        (FoundQueue("quorum"), "no single active consumer"),
        (FoundQueue("quorum", SAC | {"x-message-ttl": 5}), "x-message-ttl: a marker could expire"),
        (FoundQueue("quorum", SAC, policy={"delayed-retry-type": "all"}), "delayed retry"),
        (FoundQueue("quorum", SAC | {"x-max-length": 5}), "a marker could push a message out"),
        (FoundQueue("quorum", SAC, policy={"dead-letter-strategy": "at-least-once"}), "would go with the queue"),
    ],
)
def test_a_queue_that_cannot_be_drained_in_order_is_refused(queue: FoundQueue, why: str) -> None:
    state = made(file(1, 2))
    assert not refusals(file(1, 2, 3), state)
    (line,) = refusals(file(1, 2, 3), replace(state, queues={**state.queues, "orders.2": queue}))
    assert "'orders.2'" in line
    assert why in line


def test_users_who_may_use_old_shards_must_have_the_rights_on_new_ones() -> None:
    state = made(file(1, 2))
    change = change_of(next_of(file(1, 2, 3), state), state)
    assert not unpermitted(change, [Permission("all", ".*", ".*"), Permission("none", "", "^other$")])
    assert not unpermitted(change, [Permission("wide", r"^orders\.lane\.(g[0-9]+\.)?[0-9]+$", "(")])
    (write,) = unpermitted(change, [Permission("app", r"^(orders\.lane\.[0-9]+)$", "")])
    assert "user 'app' may write on 'orders.lane.1' and not on 'orders.lane.g2.1'" in write
    (read,) = unpermitted(change, [Permission("app", "", r"^(orders\.[0-9]+)$")])
    assert "user 'app' may read on 'orders.1' and not on 'orders.g2.1'" in read


def later(**more: Any) -> State:
    """Return a state with three shards of the second generation, and nothing of the first one."""
    state = made(file(1, 2, **more))
    target = next_of(file(1, 2, 3, **more), state)
    state = closed(after(state, compare_generation(target, state, is_new=True).steps), target)
    change = change_of(target, state)
    state = after(without(state, *change.left(())), change.opened(state, change.left(())))
    return after(state, [Unbind("orders", Destination("exchange", each.lane), "1", "~") for each in change.old])


@pytest.mark.parametrize("groups", [(), ("audit",)])
def test_a_later_generation_is_exported_as_the_file_that_made_it(groups: tuple[str, ...]) -> None:
    (exported,) = parse(tomllib.loads(export(later(groups=groups), "orders")))
    assert (exported.numbers, exported.groups, exported.own) == ((1, 2, 3), groups, {})


def test_no_file_is_exported_of_two_generations() -> None:
    state = made(file(1, 2))
    both = after(state, compare_generation(next_of(file(1), state), state, is_new=True).steps)
    with pytest.raises(ExportError, match="changes from generation 1 of its shards to 2"):
        export(both, "orders")


def test_no_shard_of_a_later_generation_is_retired() -> None:
    shard = RetiredShard("orders", "orders.g2.1")
    with pytest.raises(RetireError, match="apply --ordered"):
        check(later(), shard, parts_of(later(), shard), keep=False)


def test_a_group_is_added_to_a_later_generation() -> None:
    state = later()
    difference = compare(file(1, 2, 3, groups=("audit",)), state)
    assert not difference.refusals
    state = after(state, difference.steps)
    left = compare(file(1, 2, 3, groups=("audit",)), state)
    assert (left.steps, left.refusals) == ((), ())
    assert state.weights("orders") == later().weights("orders")


def test_consumers_beside_the_group_are_named_and_those_of_sidecars_are_not() -> None:
    state = made(file(1, 2))
    change = change_of(next_of(file(1, 2, 3), state), state)
    link, mine = Consumer("orders.1", "c", True, True), Consumer("orders.1", "c", False, True)
    drainer = mine._replace(tag="ringproxy.generation-1")
    assert strangers(change, [link, drainer, mine._replace(queue="other")]) == []
    assert strangers(change, [mine], ["orders.1"]) == []
    (line,) = strangers(change, [mine])
    assert line.startswith("queue 'orders.1' has the consumer 'c', which does not consume as a group through a sidecar")


@pytest.mark.parametrize(
    ("bindings", "why"),
    [
        (
            [FoundBinding(Destination("exchange", "special"), "1")],
            "lane 'special', key '1', is no lane of",
        ),
        ([FoundBinding(Destination("exchange", "orders.lane.2"), "3")], "the keys '1' and '3'"),
        ([FoundBinding(Destination("queue", "orders.2"), "1")], "is bound without a lane"),
        (
            [FoundBinding(Destination("exchange", "x"), "1", "~", UNREADABLE)],
            "x-ring-generation of another form",
        ),
    ],
)
def test_what_nobody_can_tell_how_to_drain_is_refused(bindings: list[FoundBinding], why: str) -> None:
    state = made(file(1, 2))
    state = replace(state, bindings={**state.bindings, "orders": (*state.bindings["orders"], *bindings)})
    assert any(why in line for line in refusals(file(1, 2, 3), state))


def test_a_binding_without_arguments_belongs_to_the_generation_of_its_lane() -> None:
    state = later()
    plain = FoundBinding(Destination("exchange", "orders.lane.g2.2"), "1")
    state = replace(state, bindings={**state.bindings, "orders": (*state.bindings["orders"], plain)})
    assert state.generations("orders") == (2,)
    assert begun(file(1, 2, 3), state) is None


def test_a_group_that_the_file_leaves_out_is_not_ended_unsaid() -> None:
    (line,) = refusals(file(1, 2, 3), made(file(1, 2, groups=("audit",))))
    assert "group 'orders/audit' is not in the file" in line


def test_a_change_is_ended_with_the_file_that_it_was_begun_with() -> None:
    state = made(file(1, 2))
    begins = after(state, compare_generation(next_of(file(1, 2, 3), state), state, is_new=True).steps)
    assert not refusals(file(1, 2, 3), begins)
    for other in (file(1, 2, 3, 4), file(1, 2), file(1, 2, 3, own={1: OwnTerms(weight=2)})):
        assert any("end it with the file that it was begun with" in line for line in refusals(other, begins))


@pytest.mark.parametrize(
    ("queue", "version", "has_none"),
    [
        (FoundQueue("quorum"), (3, 10), True),
        (FoundQueue("quorum"), (4, 3), False),
        (FoundQueue("quorum", {"x-delivery-limit": -1}), (4, 3), True),
        (FoundQueue("quorum", {"x-delivery-limit": -1}, policy={"delivery-limit": 5}), (4, 3), False),
        (FoundQueue("quorum", {"x-delivery-limit": -1}, policy={"delivery-limit": -1}), (4, 3), True),
        (FoundQueue("quorum", {"x-delivery-limit": -1}), (3, 10), False),
        (FoundQueue("quorum", {"x-delivery-limit": 5}), (3, 10), False),
        (FoundQueue("quorum", policy={"delivery-limit": 5}), (3, 10), False),
        (FoundQueue("classic"), (4, 3), True),
    ],
)
def test_whether_a_delivery_limit_counts_a_look(queue: FoundQueue, version: tuple[int, ...], has_none: bool) -> None:
    assert has_no_limit("q", State("/", queues={"q": queue}, version=version)) is has_none
