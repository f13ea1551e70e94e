"""The steps that give an exchange further groups: what each prefix of them leaves, and what is refused and told."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shards.difference import Difference, compare
from proxy.shards.document import DocumentError, parse
from proxy.shards.export import export
from proxy.shards.plan import make_plan
from proxy.shards.retire_group import GroupRetirement, course_of
from proxy.shards.state import State
from proxy.shards.steps import Bind, DeclareExchange, Unbind
from proxy.topology.bindings import Promise
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after, leaks, same

NAMES = ["audit", "billing", "copy"]


def differ(state: State, **fields: Any) -> Difference:
    (exchange,) = parse({"exchange": [{"name": "orders", **fields}]})
    return compare(exchange, state)


def reached(state: State, lane: str) -> set[str]:
    """Return the queues that get a message to a lane."""
    found, todo = set(), [Destination("exchange", lane)]
    while todo:
        for each in state.bindings.get(todo.pop().name, ()):
            if each.destination.kind == "queue":
                found.add(each.destination.name)
            else:
                todo.append(each.destination)
    return found


@st.composite
def additions(draw: st.DrawFn) -> tuple[State, dict[str, Any], dict[str, Any]]:
    """Draw a state, the file that made it or was killed at it, and a file with the same groups or more."""
    kind = draw(st.sampled_from(["x-consistent-hash", "x-modulus-hash"]))
    before = draw(st.sets(st.sampled_from(NAMES)))
    first = {"type": kind, "shards": draw(st.integers(1, 3)), "groups": sorted(before)}
    first["lanes"] = bool(before) or draw(st.booleans())
    steps = differ(EMPTY, **first).steps
    state = after(EMPTY, *steps[: draw(st.integers(len(steps) // 2, len(steps)))])
    groups = sorted(before | draw(st.sets(st.sampled_from(NAMES))))
    return state, first, {**first, "lanes": True, "groups": groups}


@given(additions())
def test_the_steps_end_at_what_is_wanted_also_when_they_are_taken_in_two_runs(
    change: tuple[State, dict[str, Any], dict[str, Any]],
) -> None:
    state, _, wanted = change
    steps = differ(state, **wanted).steps
    end = after(state, *steps)
    again = differ(end, **wanted)
    assert (again.steps, again.refusals) == ((), ())
    for done in range(len(steps)):
        killed = after(state, *steps[:done])
        assert same(after(killed, *differ(killed, **wanted).steps), end), f"killed after {done} steps"


@given(additions())
def test_no_prefix_loses_a_message_of_a_group_or_moves_a_key(
    change: tuple[State, dict[str, Any], dict[str, Any]],
) -> None:
    _, first, wanted = change
    state = after(EMPTY, *differ(EMPTY, **first).steps)
    before, weights = {}, state.weights("orders")
    for number in range(1, first["shards"] + 1):
        before[number] = reached(state, f"orders.lane.{number}")
    steps = differ(state, **wanted).steps
    for done in range(len(steps) + 1):
        then = after(state, *steps[:done])
        assert leaks(then, "orders") == []
        for number, queues in before.items():
            assert queues <= reached(then, f"orders.lane.{number}")
        # A binding that gets other arguments is unbound, and bound with the next step.
        last = steps[done - 1] if done else None
        gap = isinstance(last, Unbind) and last.source == "orders" and isinstance(next(iter(steps[done:]), None), Bind)
        assert then.weights("orders").keys() == weights.keys() or gap
        for each in then.bindings.get("orders", ()):
            if each.promise is not None:
                assert each.promise.queues <= reached(then, each.destination.name), "promised before it is kept"


def test_the_promise_names_the_queue_of_each_group() -> None:
    end = after(EMPTY, *differ(EMPTY, shards=1, groups=["audit"]).steps)
    (bound,) = end.bindings["orders"]
    assert bound.promise == Promise("orders.1", (("orders", "orders.1"), ("orders/audit", "orders.audit.1")))
    assert reached(end, "orders.lane.1") == {"orders.1", "orders.audit.1"}
    assert [each.destination for each in end.bindings["orders.lane.1"]] == [Destination("exchange", "orders.fan.1")]
    assert end.queues["orders.audit.1"].arguments == end.queues["orders.1"].arguments


def test_a_group_that_is_not_in_the_file_any_more_is_refused() -> None:
    end = after(EMPTY, *differ(EMPTY, shards=2, groups=["audit", "billing"]).steps)
    (told,) = differ(end, shards=2, groups=["billing"]).refusals
    assert "group 'audit' exists and is not in the file: add it to groups, or take it away with: " in told
    assert told.endswith("ring-proxy topology retire-group orders audit")


def test_a_queue_of_another_exchange_is_not_taken_for_a_groups() -> None:
    (other,) = parse({"exchange": [{"name": "orders.audit", "shards": 1}]})
    state = after(EMPTY, *compare(other, EMPTY).steps)
    (told,) = differ(state, shards=1, groups=["audit"]).refusals
    assert "groups: queue 'orders.audit.1' gets the messages of exchange 'orders.audit.lane.1'" in told
    end = after(EMPTY, *differ(EMPTY, shards=1, groups=["audit"]).steps)
    retried = after(
        end, DeclareExchange("retries", "fanout", {}), Bind("retries", Destination("queue", "orders.audit.1"), "")
    )
    assert differ(retried, shards=1, groups=["audit"]).refusals == ()


def test_a_queue_that_somebody_has_deleted_is_made_again() -> None:
    end = after(EMPTY, *differ(EMPTY, shards=1, groups=["audit"]).steps)
    del dict(end.queues)["orders.audit.1"]
    queues = {name: queue for name, queue in end.queues.items() if name != "orders.audit.1"}
    fanned = tuple(each for each in end.bindings["orders.fan.1"] if each.destination.name in queues)
    lost = State(end.vhost, end.exchanges, queues, {**end.bindings, "orders.fan.1": fanned}, end.nodes, end.version)
    assert lost.lane("orders.lane.1").missing == ("orders.audit.1",)
    assert same(after(lost, *differ(lost, shards=1, groups=["audit"]).steps), end)


def test_what_is_exported_is_what_exists() -> None:
    end = after(EMPTY, *differ(EMPTY, shards=3, groups=["audit", "copy"]).steps)
    text = export(end, "orders")
    assert tomllib.loads(text)["exchange"][0]["groups"] == ["audit", "copy"]


def test_a_full_queue_that_refuses_is_told() -> None:
    found = differ(EMPTY, shards=1, groups=["audit"], arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    (told,) = [line for line in found.warnings if "x-overflow" in line]
    assert "refuses a publish that the other groups have got" in told


def test_the_rights_reach_the_groups() -> None:
    document = parse({"exchange": [{"name": "orders", "shards": 2, "groups": ["audit"]}]})
    rights = make_plan(document, {"/": EMPTY}).rights
    by_user = {line.split()[4]: line for line in rights}
    assert "orders/audit|orders\\.[0-9]+|orders\\.audit\\.[0-9]+" in by_user["MEMBER"]
    assert "orders\\.fan\\.[0-9]+" in by_user["TOPOLOGY"]
    assert "fan" not in by_user["WRITER"]


def test_a_fan_that_the_last_group_has_left_is_in_the_rights_of_who_retires_its_shard() -> None:
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 2, "groups": ["audit"]}]})
    state = after(EMPTY, *compare(exchange, EMPTY).steps)
    course = course_of(state, GroupRetirement("/", "orders", "audit", keep=True, drop=False, patience=1.0))
    state = after(state, *course.promising, *(step for step in course.closing if isinstance(step, Unbind)))
    document = parse({"exchange": [{"name": "orders", "shards": 2}]})
    plan = make_plan(document, {"/": state})
    assert (plan.steps, plan.refusals) == ((), ())
    for rights in (plan.rights, plan.rights_applied):
        (line,) = (line for line in rights if " TOPOLOGY " in line)
        assert line.count("orders\\.fan\\.[0-9]+") == 3


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"groups": "audit"}, "groups: 'audit' is not a list of groups' names"),
        ({"groups": ["a/b"]}, "groups: 'a/b' is not the name of a group"),
        ({"groups": ["lane"]}, "groups: 'lane' cannot be the name of a group"),
        ({"groups": ["audit", "audit"]}, "groups: 'audit' is in the list 2 times"),
        ({"groups": [f"g{n}" for n in range(32)]}, "groups: 32 groups: 31 beside the exchange's own are the most"),
        ({"groups": ["g" * 64], "name": "o" * 47}, "cannot be balanced: its exchange 'ooo.* 128 characters"),
        ({"groups": ["audit"], "lanes": False}, "groups: shard 1 has no lane"),
    ],
)
def test_mistakes_name_the_value(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(DocumentError, match=told.replace("'", ".")):
        parse({"exchange": [{"name": "orders", "shards": 1, **fields}]})


def test_the_longest_names_of_a_group_are_taken() -> None:
    parse({"exchange": [{"name": "o" * 46, "shards": 1, "groups": ["g" * 64]}]})
