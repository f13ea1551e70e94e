"""The steps that take a group of an exchange away: what each prefix of them leaves, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.shards.difference import compare
from proxy.shards.document import parse
from proxy.shards.retire_group import GroupRetirement, _left, course_of
from proxy.shards.retirement import RetireError
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeleteQueue, Removal, Step, Unbind
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after, leaks, same

TYPES = ["x-consistent-hash", "x-modulus-hash"]


def made(state: State = EMPTY, **fields: Any) -> State:
    """Return what exists once a file with the exchange orders is applied."""
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 3, **fields}]})
    found = compare(exchange, state)
    assert found.refusals == ()
    return after(state, *found.steps)


def retirement(group: str = "audit", *, keep: bool = False, drop: bool = False) -> GroupRetirement:
    return GroupRetirement("/", "orders", group, keep, drop, 1.0)


def taken(state: State, *steps: Step | Removal) -> State:
    """Return what exists after these steps."""
    for step in steps:
        if isinstance(step, DeleteQueue):
            queues = {name: queue for name, queue in state.queues.items() if name != step.name}
            state = replace(state, queues=queues)
        else:
            assert isinstance(step, Bind | Unbind)
            state = after(state, step)
    return state


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("others", [[], ["billing"]])
def test_no_prefix_loses_a_copy_of_another_group_or_is_taken_for_a_loss(kind: str, others: list[str]) -> None:
    state = made(type=kind, groups=["audit", *others])
    weights, steps = state.weights("orders"), course_of(state, retirement()).steps
    for done in range(len(steps) + 1):
        then = taken(state, *steps[:done])
        assert leaks(then, "orders") == []
        for number in (1, 2, 3):
            assert then.lane(f"orders.lane.{number}").missing == () or done < 2 * number
        is_between = isinstance(steps[done - 1], Unbind) and done and done < 6 and done % 2
        assert is_between or then.weights("orders") == weights
    end = taken(state, *steps)
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 3, "type": kind, "groups": others}]})
    found = compare(exchange, end)
    assert (found.steps, found.refusals, found.warnings) == ((), (), found.warnings)
    assert sorted(end.queues) == sorted(
        f"orders.{each}{n}" for each in ("", *(f"{g}." for g in others)) for n in (1, 2, 3)
    )


def alike(one: State, other: State) -> bool:
    """Return whether two states are the same but for the keys of x-modulus-hash, which mean nothing."""
    if one.exchanges["orders"].type == "x-consistent-hash":
        return same(one, other)
    lanes = [[each.lane(f"orders.lane.{n}") for n in (1, 2, 3)] for each in (one, other)]
    return lanes[0] == lanes[1] and one.weights("orders") == other.weights("orders") and one.queues == other.queues


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("what", [retirement(), retirement(drop=True), retirement(keep=True)])
def test_taken_in_two_runs_the_steps_end_the_same(kind: str, what: GroupRetirement) -> None:
    state = made(type=kind, groups=["audit"])
    steps = course_of(state, what).steps
    end = taken(state, *steps)
    for done in range(len(steps)):
        killed = taken(state, *steps[:done])
        if killed.weights("orders") != state.weights("orders"):
            with pytest.raises(RetireError, match=r"add 'audit' to groups of the topology file, apply, take it out"):
                course_of(killed, what)
            killed = made(killed, type=kind, groups=["audit"])  # as the error says
        again = taken(killed, *course_of(killed, what).steps)
        assert alike(again, end), f"killed after {done} steps"


def test_without_the_last_group_the_fan_and_its_promise_stay() -> None:
    end = taken(made(groups=["audit"]), *course_of(made(groups=["audit"]), retirement()).steps)
    for number in (1, 2, 3):
        behind = end.lane(f"orders.lane.{number}")
        assert (behind.queue, behind.fan) == (f"orders.{number}", f"orders.fan.{number}")
        assert behind.promise is not None
        assert behind.promise.groups == (("orders", f"orders.{number}"),)


def test_with_keep_the_queues_stay() -> None:
    state = made(groups=["audit"])
    course = course_of(state, retirement(keep=True))
    assert course.deleting == ()
    assert len(course.closing) == 3
    assert taken(state, *course.steps).queues == state.queues


@pytest.mark.parametrize(
    ("type_", "drop", "if_empty"), [("classic", False, True), ("classic", True, False), ("quorum", False, False)]
)
def test_a_classic_queue_is_deleted_only_if_empty_unless_told_otherwise(type_: str, drop: bool, if_empty: bool) -> None:
    course = course_of(made(groups=["audit"], queue_type=type_), retirement(drop=drop))
    assert {each.if_empty for each in course.deleting} == {if_empty}


def test_nothing_of_a_group_is_nothing_to_do() -> None:
    assert course_of(made(groups=["audit"]), retirement("adit")).steps == ()


def test_the_shards_of_another_exchange_are_not_taken_for_the_groups() -> None:
    state = made()
    queues = {**state.queues, "orders.audit.1": FoundQueue("quorum")}
    state = replace(state, queues=queues)
    assert course_of(state, retirement()).queues == ("orders.audit.1",)
    exchanges = {**state.exchanges, "orders.audit": FoundExchange("x-consistent-hash")}
    assert course_of(replace(state, exchanges=exchanges), retirement()).queues == ()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (retirement("orders/audit"), "group 'orders/audit' is no name of a group: give the one in groups"),
        (replace(retirement(), exchange="bills"), "virtual host '/' has no hash exchange 'bills'"),
    ],
)
def test_mistakes_are_told(what: GroupRetirement, told: str) -> None:
    with pytest.raises(RetireError, match=told):
        course_of(made(groups=["audit"]), what)


def test_a_queue_that_gets_other_messages_too_is_not_deleted() -> None:
    state = made(groups=["audit"])
    tapped = {**state.bindings, "amq.topic": (FoundBinding(Destination("queue", "orders.audit.2"), "#", "#"),)}
    state = replace(state, bindings=tapped)
    with pytest.raises(RetireError, match=r"queue 'orders.audit.2' also gets messages from exchange 'amq.topic'"):
        course_of(state, retirement())
    assert len(course_of(state, retirement(keep=True)).closing) == 3


def test_a_stream_is_never_empty() -> None:
    state = made(groups=["audit"], queue_type="stream")
    with pytest.raises(RetireError, match="is a stream, which is never empty: use --keep, or --drop"):
        course_of(state, retirement())
    assert len(course_of(state, retirement(drop=True)).deleting) == 3


def test_what_is_left_is_told_by_queue() -> None:
    queues = {"a": FoundQueue("quorum", ready=2, unacked=1), "b": FoundQueue("quorum", ready=0, unacked=0)}
    assert _left(replace(EMPTY, queues=queues), ["a", "b", "gone"]) == "a has 2 messages ready and 1 not acked yet"
    delayed = {"a": FoundQueue("quorum", ready=0, unacked=0, elsewhere=3)}
    assert _left(replace(EMPTY, queues=delayed), ["a"]).endswith(
        "and 3 wait for a delayed retry or to be dead-lettered"
    )
    assert _left(replace(EMPTY, queues={"a": FoundQueue("quorum")}), ["a"]) == "a is not counted yet"
