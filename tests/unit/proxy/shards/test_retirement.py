"""The parts of a shard that `retire` finds, the order in which they go, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.shards.difference import compare
from proxy.shards.document import parse
from proxy.shards.retirement import Parts, Removals, RetireError, Shard, check, parts_of, removals
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeleteExchange, DeleteQueue, Removal, Unbind
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after

FANOUT, RING = FoundExchange("fanout"), FoundExchange("x-consistent-hash")
TYPES = ["x-consistent-hash", "x-modulus-hash"]


def leads(kind: Any, name: str, key: str = "") -> tuple[FoundBinding, ...]:
    return (FoundBinding(Destination(kind, name), key, key or "~"),)


def state(*queues: str, bindings: Any = None, **exchanges: FoundExchange) -> State:
    """A virtual host with the ring `orders`; exchanges are named with `_` for each dot."""
    named = {name.replace("_", "."): exchange for name, exchange in exchanges.items()}
    return State("/", {"orders": RING, **named}, dict.fromkeys(queues, FoundQueue("quorum")), bindings or {})


def checked(found: State, queue: str, keep: bool = False) -> tuple[str, ...]:
    """Return the lanes of a queue that may be retired."""
    shard = Shard("orders", queue)
    parts = parts_of(found, shard)
    check(found, shard, parts, keep=keep)
    return parts.lanes


@pytest.mark.parametrize("queue", ["invoices", "orders.3x", "orders", "orders3", "invoices.3"])
def test_a_queue_that_nothing_ties_to_the_exchange_is_not_retired(queue: str) -> None:
    with pytest.raises(RetireError, match=r"is not bound to queue .* and nothing tells that it was"):
        checked(state(queue), queue)
    assert checked(state(queue), queue, keep=True) == ()


def test_a_queue_off_the_ring_is_known_by_its_name_or_by_a_lane_that_was_left() -> None:
    assert checked(state("orders.3"), "orders.3") == ()
    left = state("adopted", orders_lane_7=FANOUT, bindings={"orders.lane.7": leads("queue", "adopted")})
    assert checked(left, "adopted") == ("orders.lane.7",)


def test_a_lane_that_leads_nowhere_is_known_by_its_number_only() -> None:
    assert checked(state("orders.3", orders_lane_3=FANOUT, orders_lane_4=FANOUT), "orders.3") == ("orders.lane.3",)


def test_a_lane_on_the_ring_that_leads_nowhere_is_its_shards_own() -> None:
    """Otherwise the queue would be deleted, and the lane would stay and swallow its share of the messages."""
    others = {"orders_lane_1": FANOUT, "orders_lane_3": FANOUT}
    ring = (*leads("exchange", "orders.lane.1", "1"), *leads("exchange", "orders.lane.3", "1"))
    bindings = {"orders": ring, "orders.lane.1": leads("queue", "orders.1")}
    found = state("orders.1", "orders.3", bindings=bindings, **others)

    assert checked(found, "orders.3") == ("orders.lane.3",)
    assert parts_of(found, Shard("orders", "orders.3")).bindings == ring[1:]
    # The bindings of the queue behind the last lane that leads somewhere all stay.
    with pytest.raises(RetireError, match="is the only one of exchange 'orders'"):
        checked(found, "orders.1")
    assert parts_of(found, Shard("orders", "orders.1")).bindings == ring[:1]


def test_an_exchange_that_another_feeds_is_no_lane_that_was_left() -> None:
    bindings = {"orders.lane.7": leads("queue", "orders.3"), "amq.topic": leads("exchange", "orders.lane.7", "#")}
    with pytest.raises(RetireError, match=r"also gets messages from exchange 'orders.lane.7'"):
        checked(state("orders.3", orders_lane_7=FANOUT, bindings=bindings), "orders.3")


def file(**fields: Any) -> Any:
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 3, **fields}]})
    return exchange


def made(**fields: Any) -> State:
    """Return what exists once a file with the exchange orders is applied."""
    found = compare(file(**fields), EMPTY)
    assert found.refusals == ()
    return after(EMPTY, *found.steps)


def taken(state: State, *steps: Removal) -> State:
    """Return what exists after these steps; what goes takes the bindings that lead to it, or from it, along."""
    for step in steps:
        if isinstance(step, Unbind):
            state = after(state, step)
            continue
        gone = Destination("queue" if isinstance(step, DeleteQueue) else "exchange", step.name)
        left = {
            source: tuple(each for each in bindings if each.destination != gone)
            for source, bindings in state.bindings.items()
            if gone != ("exchange", source)
        }
        if isinstance(step, DeleteQueue):
            queues = {name: queue for name, queue in state.queues.items() if name != step.name}
            state = replace(state, queues=queues, bindings=left)
        else:
            exchanges = {name: each for name, each in state.exchanges.items() if name != step.name}
            state = replace(state, exchanges=exchanges, bindings=left)
    return state


def course(state: State, queue: str = "orders.3", keep: bool = False) -> tuple[Parts, Removals]:
    """Return the parts of a shard that may be retired, and the steps that take them away."""
    shard = Shard("orders", queue)
    parts = parts_of(state, shard)
    check(state, shard, parts, keep=keep)
    return parts, removals(state, shard, parts, keep=keep)


def copies(state: State, lane: str) -> set[str]:
    """Return the queues that get a message which is published to a lane."""
    reached, ways = set[str](), [lane]
    while ways:
        for each in state.bindings.get(ways.pop(), ()):
            if each.destination.kind == "queue":
                reached.add(each.destination.name)
            else:
                ways.append(each.destination.name)
    return reached


GROUPS = [[], ["audit"], ["audit", "billing"]]
ADOPTED = {"shard": [{"number": 3, "queue": "adopted", "lane": "fast"}]}
"""The shard 3 has a queue and a lane of other names."""


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", TYPES)
def test_at_each_moment_a_message_is_for_all_groups_of_the_shard_or_comes_back(kind: str, groups: list[str]) -> None:
    begin = made(type=kind, groups=groups)
    parts, steps = course(begin)
    mine = {f"orders.{each}3" for each in ("", *(f"{group}." for group in groups))}
    assert set(parts.queues) == mine
    assert parts.queues[-1] == "orders.3"
    open_until = len(steps.off_the_ring) + len(steps.closing)
    for done in range(len(steps.steps) + 1):
        now = taken(begin, *steps.steps[:done])
        assert copies(now, "orders.lane.3") == (mine if done < open_until else set())
        assert all(now.lane(f"orders.lane.{n}").missing == () for n in (1, 2))
        assert {each for each in begin.queues if not each.endswith(".3")} <= now.queues.keys()
        found = compare(file(type=kind, groups=groups, retiring=[3]), now)
        assert (found.steps, found.refusals) == ((), ()), f"after {done} steps"
    end = taken(begin, *steps.steps)
    assert {name for name in end.exchanges if name.endswith(".3")} == set()
    assert {name for name in end.queues if name.endswith(".3")} == set()
    assert end.weights("orders") == {Destination("queue", f"orders.{n}"): 1 for n in (1, 2)}
    assert not course(end)[0]


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("kind", TYPES)
def test_killed_after_any_step_the_next_run_takes_the_steps_that_are_left(kind: str, groups: list[str]) -> None:
    begin = made(type=kind, groups=groups)
    steps = course(begin)[1].steps
    for done in range(len(steps) + 1):
        killed = taken(begin, *steps[:done])
        assert course(killed)[1].steps == steps[done:], f"killed after {done} steps"


def test_a_queue_of_another_name_is_known_by_its_fan_up_to_its_deletion() -> None:
    begin = made(groups=["audit"], **ADOPTED)
    steps = course(begin, "adopted")[1].steps
    assert [str(step) for step in steps[2:]] == [
        "delete queue orders.audit.3",
        "delete queue adopted",
        "delete exchange fast",
        "delete exchange orders.fan.3",
    ]
    for done in range(4):
        left = course(taken(begin, *steps[:done]), "adopted")[1].steps
        # The lane, of a name that tells nothing, is known as long as it leads to the fan.
        assert left == tuple(step for step in steps[done:] if done < 2 or step != DeleteExchange("fast"))


def test_the_last_of_several_groups_leaves_the_fan_to_the_shard() -> None:
    """`retire-group` leaves a fan that leads to the queue of the exchange's own group only."""
    begin = made(groups=["audit"])
    gone = Unbind("orders.fan.3", Destination("queue", "orders.audit.3"), "", "~")
    begin = taken(begin, gone, DeleteQueue("orders.audit.3", if_empty=False))
    parts = parts_of(begin, Shard("orders", "orders.3"))
    assert (parts.queues, parts.fans) == (("orders.3",), ("orders.fan.3",))


def test_a_lane_that_still_leads_to_its_queue_too_is_closed_from_there() -> None:
    """Closed the other way round, a message would come to one group only."""
    begin = after(made(groups=["audit"]), Bind("orders.lane.3", Destination("queue", "orders.3"), ""))
    steps = course(begin)[1]
    assert [str(step) for step in steps.closing] == [
        "unbind orders.lane.3 from queue orders.3",
        "unbind orders.lane.3 from exchange orders.fan.3",
    ]


def test_a_queue_that_somebody_unbound_from_the_fan_is_emptied_and_deleted_too() -> None:
    unbound = Unbind("orders.fan.3", Destination("queue", "orders.audit.3"), "", "~")
    begin = taken(made(groups=["audit"]), unbound)
    steps = course(begin)[1].steps
    assert DeleteQueue("orders.audit.3", if_empty=False) in steps
    assert course(taken(begin, steps[0]))[1].steps == steps[1:]
    other = replace(begin, exchanges={**begin.exchanges, "orders.audit": RING})
    # The name could be that of a shard of the other exchange.
    assert DeleteQueue("orders.audit.3", if_empty=False) not in course(taken(other, steps[0]))[1].steps


def test_with_keep_only_the_bindings_of_the_ring_go() -> None:
    steps = course(made(groups=["audit"]), keep=True)[1]
    assert [str(step) for step in steps.steps] == ["unbind orders from exchange orders.lane.3, weight 1"]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_classic_queues_are_deleted_only_if_they_are_empty(queue_type: str) -> None:
    steps = course(made(groups=["audit"], queue_type=queue_type))[1].steps
    assert {step.if_empty for step in steps if isinstance(step, DeleteQueue)} == {queue_type == "classic"}


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_the_queue_of_a_further_group_does_not_name_a_shard(done: int) -> None:
    begin = made(groups=["audit", "billing"])
    now = taken(begin, *course(begin)[1].steps[:done])
    name = "orders.audit.3" if "orders.audit.3" in now.queues else "orders.billing.3"
    group = name.split(".")[1]
    with pytest.raises(RetireError, match=f"is of group '{group}': name the queue of the exchange's own group"):
        course(now, name)


@pytest.mark.parametrize(
    ("destination", "told"),
    [
        (Destination("queue", "orders.audit.3"), "queue 'orders.audit.3'"),
        (Destination("exchange", "orders.fan.3"), "exchange 'orders.fan.3'"),
    ],
)
def test_a_part_that_gets_other_messages_too_is_not_deleted(destination: Destination, told: str) -> None:
    begin = made(groups=["audit"])
    tapped = {**begin.bindings, "amq.topic": (FoundBinding(destination, "#", "#"),)}
    with pytest.raises(RetireError, match=f"{told} also gets messages from exchange 'amq.topic'"):
        course(replace(begin, bindings=tapped))


@pytest.mark.parametrize("name", ["invoices", "orders.tap.3"])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_queue_that_somebody_bound_to_the_fan_is_not_deleted(done: int, name: str) -> None:
    """It may have messages from elsewhere: the default exchange feeds it too, which no binding shows."""
    begin = made(groups=["audit"])
    begin = taken(begin, *course(begin)[1].steps[:done])
    tap = FoundBinding(Destination("queue", name), "", "~")
    tapped = {**begin.bindings, "orders.fan.3": (*begin.bindings["orders.fan.3"], tap)}
    now = replace(begin, queues={**begin.queues, name: FoundQueue("quorum")}, bindings=tapped)
    with pytest.raises(RetireError, match=f"queue '{name}' is bound to exchange 'orders.fan.3'.*; unbind it first"):
        course(now)
    assert name not in parts_of(now, Shard("orders", "orders.3")).queues
    if not done:
        assert len(course(now, keep=True)[1].steps) == 1
    unbound = taken(now, Unbind("orders.fan.3", tap.destination, "", "~"))
    assert course(unbound)[1].steps == course(begin)[1].steps


def test_streams_of_groups_are_never_empty() -> None:
    begin = made(groups=["audit"], queue_type="stream")
    with pytest.raises(RetireError, match=r"queue 'orders.audit.3' is a stream, which keeps its messages"):
        course(begin)
    assert len(course(begin, keep=True)[1].steps) == 1


def test_the_fan_of_another_shard_is_not_taken_for_ones_own() -> None:
    """The shard 3 has the queue `adopted`, and a queue of the name `orders.3` is left of another time."""
    begin = made(groups=["audit"], **ADOPTED)
    begin = replace(begin, queues={**begin.queues, "orders.3": FoundQueue("quorum")})
    steps = course(begin)[1].steps
    assert steps == (DeleteQueue("orders.3", if_empty=False),)
    half_gone = taken(begin, *course(begin, "adopted")[1].steps[:1])
    assert course(half_gone)[1].steps == steps
