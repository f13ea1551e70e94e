"""The steps from what exists to what a file wants: where they lead, in which order, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shards.defaults import DISCONNECTED_TIMEOUT, declared_arguments
from proxy.shards.difference import Difference, compare
from proxy.shards.document import parse
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeclareQueue, Unbind
from ring.destination import Destination
from ring.ring import Ring
from tests.unit.proxy.shards.model import EMPTY, after, leaks, same

QUEUE = FoundQueue("quorum", {"x-queue-type": "quorum", "x-single-active-consumer": True, "x-delivery-limit": -1})


def differ(state: State, **fields: Any) -> Difference:
    (exchange,) = parse({"exchange": [{"name": "orders", **fields}]})
    return compare(exchange, state)


def shard(number: int, **fields: Any) -> dict[str, Any]:
    return {"number": number, **fields}


def made(**fields: Any) -> State:
    """Return the state once a file with one exchange was applied to an empty virtual host."""
    return after(EMPTY, *differ(EMPTY, **fields).steps)


numbers = st.sets(st.integers(1, 5), min_size=1)
lanes = st.sampled_from([True, False])
TYPES = "x-consistent-hash", "x-modulus-hash"


@st.composite
def documents(draw: st.DrawFn, at_least: frozenset[int] = frozenset(), types: Sequence[str] = TYPES) -> dict[str, Any]:
    """The fields of an exchange `orders` that has these shards, and maybe more."""
    wanted = sorted(draw(numbers) | at_least)
    terms = [
        shard(number, weight=draw(st.integers(1, 3)), **({"lane": False} if draw(st.booleans()) else {}))
        for number in wanted
        if draw(st.booleans())
    ]
    return {"type": draw(st.sampled_from(types)), "shards": wanted, "lanes": draw(lanes), "shard": terms}


@st.composite
def changes(draw: st.DrawFn) -> tuple[State, dict[str, Any]]:
    """Draw a state, perhaps after an apply that was killed, and a file that wants the same shards or more."""
    first = draw(documents())
    steps = differ(EMPTY, **first).steps
    state = after(EMPTY, *steps[: draw(st.integers(0, len(steps)))])
    return state, draw(documents(frozenset(first["shards"]), [first["type"]]))


@given(changes())
def test_all_steps_lead_to_what_is_wanted(change: tuple[State, dict[str, Any]]) -> None:
    state, wanted = change
    difference = differ(state, **wanted)
    assert difference.refusals == ()

    end = after(state, *difference.steps)

    again = differ(end, **wanted)
    assert (again.steps, again.refusals) == ((), ())
    assert end.weights("orders") == difference.after


@given(changes())
def test_whoever_is_killed_after_any_step_and_runs_again_ends_the_same(change: tuple[State, dict[str, Any]]) -> None:
    state, wanted = change
    steps = differ(state, **wanted).steps
    end = after(state, *steps)

    for done in range(len(steps)):
        killed = after(state, *steps[:done])
        assert same(after(killed, *differ(killed, **wanted).steps), end), f"killed after {done} steps"


@given(changes())
def test_no_prefix_of_the_steps_leaves_a_ring_that_loses_messages(change: tuple[State, dict[str, Any]]) -> None:
    state, wanted = change
    steps = differ(state, **wanted).steps
    had_ring = bool(state.weights("orders"))

    for done in range(len(steps) + 1):
        state_then = after(state, *steps[:done])
        assert leaks(state_then, "orders") == []
        assert state_then.weights("orders") or not had_ring


@given(documents())
def test_lanes_put_under_an_existing_exchange_move_no_key(wanted: dict[str, Any]) -> None:
    direct = {**wanted, "lanes": False, "shard": [{**each, "lane": False} for each in wanted["shard"]]}
    laned = {**wanted, "lanes": True, "shard": [{k: v for k, v in e.items() if k != "lane"} for e in wanted["shard"]]}
    state = made(**direct)

    steps = differ(state, **laned).steps

    weights = state.weights("orders")
    for done in range(len(steps) + 1):
        assert after(state, *steps[:done]).weights("orders") == weights


def test_the_order_is_queue_lane_its_binding_exchange_ring() -> None:
    assert [str(step) for step in differ(EMPTY, shards=2).steps] == [
        "declare queue orders.1",
        "declare queue orders.2",
        "declare exchange orders.lane.1 (fanout)",
        "declare exchange orders.lane.2 (fanout)",
        "bind orders.lane.1 to queue orders.1",
        "bind orders.lane.2 to queue orders.2",
        "declare exchange orders (x-consistent-hash)",
        "bind orders to exchange orders.lane.1, weight 1",
        "bind orders to exchange orders.lane.2, weight 1",
    ]


def test_a_weight_is_changed_by_unbind_and_bind_one_shard_after_the_other() -> None:
    state = made(shards=3)

    difference = differ(state, shards=3, shard=[shard(1, weight=2), shard(3, weight=5)])

    lane = [Destination("exchange", f"orders.lane.{number}") for number in (1, 3)]
    assert difference.steps == (
        Unbind("orders", lane[0], "1", "1"),
        Bind("orders", lane[0], "2"),
        Unbind("orders", lane[1], "1", "1"),
        Bind("orders", lane[1], "5"),
    )


def test_the_weight_of_the_only_shard_changes_nothing() -> None:
    """To change it would leave the exchange without a queue for a moment."""
    difference = differ(made(shards=1), shards=1, shard=[shard(1, weight=7)])

    assert (difference.steps, difference.refusals) == ((), ())
    assert difference.before == difference.after


@pytest.mark.parametrize("key", ["20000", "x", "0"])
def test_an_only_shard_whose_key_is_no_weight_is_told_and_left_alone(key: str) -> None:
    state = made(shards=1)
    bound = FoundBinding(Destination("exchange", "orders.lane.1"), key, key)
    state = replace(state, bindings={**state.bindings, "orders": (bound,)})
    assert state.weights("orders") == {}

    difference = differ(state, shards=1)

    assert (difference.steps, difference.refusals) == ((), ())
    (line,) = [line for line in difference.warnings if "no weight" in line]
    assert f"is bound to exchange 'orders' with the key '{key}', which is no weight" in line
    assert not any("no weight" in line for line in differ(made(shards=1), shards=1).warnings)


def test_a_retiring_shard_is_left_alone_and_keeps_its_weight() -> None:
    state = made(shards=4, shard=[shard(2, weight=3)])

    difference = differ(state, shards=[1, 3, 4, 5], retiring=[2])

    assert difference.refusals == ()
    assert {step.name for step in difference.steps if isinstance(step, DeclareQueue)} == {"orders.5"}
    assert difference.after[Destination("queue", "orders.2")] == 3
    assert not any(isinstance(step, Unbind) for step in difference.steps)


def test_fewer_shards_than_exist_are_refused_with_the_way_to_retire_one() -> None:
    difference = differ(made(shards=4), shards=3)

    (line,) = difference.refusals
    assert line == (
        "[[exchange]] 1, 'orders': shards: shard 4 exists, queue 'orders.4', and is not in the file; to take it away, "
        "add 4 to retiring, apply, and run: ring-proxy topology retire orders orders.4"
    )


def test_what_is_bound_and_is_no_shard_is_refused() -> None:
    state = made(shards=2)
    foreign = FoundBinding(Destination("queue", "audit"), "1", "1")
    state = State("/", state.exchanges, {**state.queues, "audit": QUEUE}, {**state.bindings, "orders": (foreign,)})

    (line,) = differ(state, shards=2).refusals

    assert "queue 'audit' is bound to exchange 'orders' and is not a shard of this file" in line


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (FoundQueue("classic"), "is a classic queue, which no queue can change to quorum"),
        (FoundQueue("quorum"), "has no x-single-active-consumer where the file says True"),
        (
            FoundQueue("quorum", {**QUEUE.arguments, "x-max-length": 5}),
            "has x-max-length = 5 where the file has none",
        ),
        (
            FoundQueue("quorum", {**QUEUE.arguments, "x-delivery-limit": 5}),
            "has x-delivery-limit = 5 where the file says -1",
        ),
        (FoundQueue("quorum", QUEUE.arguments, lasting=False), "is not durable, exclusive, or deleted by itself"),
    ],
)
def test_what_no_queue_can_change_is_refused_with_the_way_out(found: FoundQueue, told: str) -> None:
    state = made(shards=2)
    state = State("/", state.exchanges, {**state.queues, "orders.2": found}, state.bindings)

    (line,) = differ(state, shards=2).refusals

    assert line.startswith("[[exchange]] 1, 'orders': queue 'orders.2' ")
    assert told in line
    assert "make a new generation" in line


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (FoundExchange("direct"), "is of type direct, which no exchange can change to x-consistent-hash"),
        (FoundExchange("x-consistent-hash", {"hash-header": "h"}), "has hash-header = 'h' where the file has none"),
        (FoundExchange("x-consistent-hash", lasting=False), "is not durable"),
        (FoundExchange("x-consistent-hash", internal=True), "is internal"),
    ],
)
def test_what_no_exchange_can_change_is_refused(found: FoundExchange, told: str) -> None:
    (line,) = differ(State("/", {"orders": found}), shards=1).refusals

    assert told in line


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (FoundExchange("direct"), "is of type direct; a lane is of type fanout"),
        (FoundExchange("fanout", internal=True), "is internal"),
        (FoundExchange("fanout", lasting=False), "is not durable"),
        (FoundExchange("fanout", {"alternate-exchange": "a"}), "has an alternate exchange, which would hide"),
        (FoundExchange("fanout", alternate="p"), "has an alternate exchange by policy 'p'"),
    ],
)
def test_an_exchange_that_cannot_be_a_lane_is_refused(found: FoundExchange, told: str) -> None:
    (line,) = differ(State("/", {"orders.lane.1": found}), shards=1).refusals

    assert line.startswith("[[exchange]] 1, 'orders': lane 'orders.lane.1' ")
    assert told in line


def test_a_lane_that_leads_elsewhere_too_is_refused() -> None:
    state = made(shards=1)
    more = (*state.bindings["orders.lane.1"], FoundBinding(Destination("queue", "copy"), "", "~"))
    state = State("/", state.exchanges, state.queues, {**state.bindings, "orders.lane.1": more})

    lines = differ(state, shards=1).refusals

    assert any("has a binding besides that to its queue: queue 'copy'" in line for line in lines)


def test_a_shard_whose_bindings_are_not_listed_is_not_bound_again() -> None:
    state = made(shards=2)
    down = replace(state.queues["orders.1"], down=True, bindings_known=False)
    state = replace(state, queues={**state.queues, "orders.1": down})

    (line,) = differ(state, shards=2).refusals

    assert "queue 'orders.1' is down, and RabbitMQ does not list its bindings" in line


def test_new_shards_go_to_the_nodes_that_lead_the_fewest() -> None:
    nodes = ("rabbit@a", "rabbit@b", "rabbit@c")
    two = State("/", nodes=nodes[:2], version=(4, 3, 6))
    state = after(two, *differ(two, shards_per_node=2).steps)
    assert sorted(queue.node or "" for queue in state.queues.values()) == ["rabbit@a"] * 2 + ["rabbit@b"] * 2

    joined = State("/", state.exchanges, state.queues, state.bindings, nodes, state.version)
    declared = [step for step in differ(joined, shards_per_node=2).steps if isinstance(step, DeclareQueue)]

    assert [(step.name, step.node) for step in declared] == [("orders.5", "rabbit@c"), ("orders.6", "rabbit@c")]


def test_a_node_that_leaves_takes_no_shard_away() -> None:
    three = State("/", nodes=("rabbit@a", "rabbit@b", "rabbit@c"), version=(4, 3, 6))
    state = after(three, *differ(three, shards_per_node=2).steps)

    left = State("/", state.exchanges, state.queues, state.bindings, three.nodes[:2], state.version)
    difference = differ(left, shards_per_node=2)

    assert (difference.steps, difference.refusals) == ((), ())
    assert len(difference.shards) == 6


def test_a_node_in_the_place_of_another_one_leads_nothing_and_is_told() -> None:
    three = State("/", nodes=("rabbit@a", "rabbit@b", "rabbit@c"), version=(4, 3, 6))
    state = after(three, *differ(three, shards_per_node=2).steps)
    replaced = replace(state, nodes=("rabbit@a", "rabbit@b", "rabbit@d"))

    difference = differ(replaced, shards_per_node=2)

    assert (difference.steps, difference.refusals) == ((), ())
    (line,) = [line for line in difference.warnings if "leads no shard" in line]
    assert line.startswith(
        "[[exchange]] 1, 'orders': node 'rabbit@d' leads no shard: there are 6, and shards_per_node asks for 6 on 3"
    )
    assert "rabbitmq-queues grow rabbit@d all" in line

    def idle(state: State, **fields: Any) -> list[str]:
        return [line for line in differ(state, **fields).warnings if "leads no shard" in line]

    assert idle(replaced, shards=6) == []
    assert idle(replaced, shards_per_node=3) == []
    unknown = {**replaced.queues, "orders.1": replace(replaced.queues["orders.1"], node=None)}
    assert idle(replace(replaced, queues=unknown), shards_per_node=2) == []


def test_a_lane_without_its_binding_is_bound_again_when_fewer_nodes_run() -> None:
    """Its shard exists, though the ring of sidecars has no weight for it."""
    three = State("/", nodes=("rabbit@a", "rabbit@b", "rabbit@c"), version=(4, 3, 6))
    state = after(three, *differ(three, shards_per_node=1).steps)
    broken = replace(state, nodes=three.nodes[:1], bindings={**state.bindings, "orders.lane.3": ()})

    difference = differ(broken, shards_per_node=1)

    assert difference.steps == (Bind("orders.lane.3", Destination("queue", "orders.3"), ""),)
    assert difference.refusals == ()
    assert differ(broken, shards_per_node=1, retiring=[3]).refusals == ()
    assert any("ring-proxy topology retire orders orders.3" in line for line in differ(broken, shards=2).refusals)


def test_a_lane_of_its_own_name_without_its_binding_is_bound_again() -> None:
    own = [shard(3, queue="third", lane="the lane")]
    three = State("/", nodes=("rabbit@a", "rabbit@b", "rabbit@c"), version=(4, 3, 6))
    state = after(three, *differ(three, shards_per_node=1, shard=own).steps)
    broken = replace(state, nodes=three.nodes[:1], bindings={**state.bindings, "the lane": ()})

    difference = differ(broken, shards_per_node=1, shard=own)

    assert difference.steps == (Bind("the lane", Destination("queue", "third"), ""),)


def test_a_retiring_lane_that_leads_nowhere_or_elsewhere_is_told() -> None:
    """RabbitMQ gives it its share of what native publishers send, and nothing of that reaches a queue."""
    state = made(shards=3)
    wanted: dict[str, Any] = {"shards": [1, 3], "retiring": [2]}
    nowhere = replace(state, bindings={**state.bindings, "orders.lane.2": ()})
    twice = (*state.bindings["orders.lane.2"], FoundBinding(Destination("queue", "copy"), "", "~"))
    aside = replace(state, bindings={**state.bindings, "orders.lane.2": twice})

    told = [differ(each, **wanted).warnings for each in (state, nowhere, aside)]

    assert [[line for line in lines if "lane" in line] for lines in told] == [
        [],
        [
            "[[exchange]] 1, 'orders': lane 'orders.lane.2' of the retiring shard 2 leads to no queue, and RabbitMQ "
            "still gives it a share of the messages; run: ring-proxy topology retire orders orders.2"
        ],
        [
            "[[exchange]] 1, 'orders': lane 'orders.lane.2' of the retiring shard 2 has 2 bindings; a lane has one; "
            "sidecars do not use it as a lane"
        ],
    ]


def test_terms_of_a_shard_that_no_node_asks_for_are_told() -> None:
    (line,) = differ(EMPTY, shards_per_node=1, shard=[shard(9, weight=7)]).warnings

    assert line.startswith("[[exchange]] 1, 'orders': shard 9: its [[exchange.shard]] has no effect")
    assert differ(EMPTY, shards_per_node=1, shard=[shard(1, weight=7)]).warnings == ()


def test_a_lane_that_is_not_durable_is_refused_and_its_ring_is_that_of_sidecars() -> None:
    """Sidecars use it as a lane until the broker restarts, so its keys are at its queue."""
    state = made(shards=1)
    passing = FoundExchange("fanout", lasting=False)
    state = replace(state, exchanges={**state.exchanges, "orders.lane.1": passing})

    (line,) = differ(state, shards=1).refusals

    assert "lane 'orders.lane.1' is not durable" in line
    assert state.weights("orders") == {Destination("queue", "orders.1"): 1}
    by_itself = replace(passing, auto_delete=True)
    state = replace(state, exchanges={**state.exchanges, "orders.lane.1": by_itself})
    assert state.weights("orders") == {Destination("exchange", "orders.lane.1"): 1}


def test_without_a_node_that_runs_nothing_is_planned_for_each_node() -> None:
    difference = differ(State("/"), shards_per_node=2)

    assert difference.refusals == (
        "[[exchange]] 1, 'orders': shards_per_node: the management API tells of no running node; try again",
    )


def test_which_shards_have_replicas_on_nodes_that_do_not_run_and_which_have_few() -> None:
    state = made(shards=2)
    three = frozenset({"rabbit@a", "rabbit@b", "rabbit@c"})
    queues = {
        name: FoundQueue("quorum", queue.arguments, node="rabbit@a", members=members)
        for (name, queue), members in zip(state.queues.items(), (three, frozenset({"rabbit@a"})), strict=True)
    }
    two = State("/", state.exchanges, queues, state.bindings, ("rabbit@a", "rabbit@b"), state.version)

    difference = differ(two, shards=2)

    assert difference.gone == {"rabbit@c"}
    assert difference.running == {"rabbit@a", "rabbit@b"}
    gone, few = difference.warnings
    assert gone.endswith("node 'rabbit@c' does not run, and has replicas of 1 shards, which stay as they are")
    assert "1 shards, such as 'orders.2', have fewer than 2 replicas: rabbitmq-queues grow" in few
    assert (difference.steps, difference.refusals) == ((), ())


def test_defaults_of_a_quorum_shard() -> None:
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 1}]})
    defaults = {"x-queue-type": "quorum", "x-single-active-consumer": True}

    unlimited = {**defaults, "x-delivery-limit": -1}
    assert declared_arguments(exchange.shard(1), (4, 3, 0)) == {**unlimited, DISCONNECTED_TIMEOUT: 5000}
    assert declared_arguments(exchange.shard(1), (4, 2, 5)) == unlimited
    assert declared_arguments(exchange.shard(1), (3, 10, 8)) == defaults


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"arguments": {"x-dead-letter-exchange": "dead"}},
            {
                "x-queue-type": "quorum",
                "x-single-active-consumer": True,
                "x-dead-letter-exchange": "dead",
                DISCONNECTED_TIMEOUT: 5000,
            },
        ),
        (
            {"arguments": {"x-single-active-consumer": False, "x-delivery-limit": 7}},
            {"x-queue-type": "quorum", "x-delivery-limit": 7},
        ),
        (
            {"arguments": {DISCONNECTED_TIMEOUT: 60000, "x-dead-letter-exchange": "dead"}},
            {
                "x-queue-type": "quorum",
                "x-single-active-consumer": True,
                "x-dead-letter-exchange": "dead",
                DISCONNECTED_TIMEOUT: 60000,
            },
        ),
        ({"queue_type": "classic"}, {"x-queue-type": "classic", "x-single-active-consumer": True}),
        (
            {"queue_type": "classic", "arguments": {"x-single-active-consumer": False}},
            {"x-queue-type": "classic"},
        ),
        ({"queue_type": "stream", "arguments": {"x-max-age": "7D"}}, {"x-queue-type": "stream", "x-max-age": "7D"}),
    ],
)
def test_arguments_of_other_shards(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 1, **fields}]})

    assert declared_arguments(exchange.shard(1), (4, 3, 6)) == expected


def test_a_delivery_limit_that_deletes_is_told() -> None:
    warned = differ(EMPTY, shards=1, arguments={"x-delivery-limit": 5}).warnings
    assert "deletes a message after 5 returns" in warned[0]
    with_dead_letters = {"x-delivery-limit": 5, "x-dead-letter-exchange": "dead"}
    assert differ(with_exchanges(EMPTY, "dead"), shards=1, arguments=with_dead_letters).warnings == ()


def with_exchanges(state: State, *names: str) -> State:
    return replace(state, exchanges={**state.exchanges, **{name: FoundExchange("fanout") for name in names}})


def test_a_dead_letter_exchange_that_does_not_exist_is_refused() -> None:
    """RabbitMQ 4 would delete each message of such a queue after 20 returns."""
    wanted: dict[str, Any] = {"shards": 2, "arguments": {"x-dead-letter-exchange": "dead"}}

    (line,) = differ(EMPTY, **wanted).refusals

    assert "2 shards, such as 'orders.1': their dead-letter exchange 'dead' does not exist" in line
    assert differ(with_exchanges(EMPTY, "dead"), **wanted).refusals == ()
    assert differ(EMPTY, shards=2, arguments={"x-dead-letter-exchange": ""}).refusals == ()
    (exchange,) = parse({"exchange": [{"name": "orders", **wanted}]})
    assert compare(exchange, EMPTY, frozenset({"dead"})).refusals == ()


@pytest.mark.parametrize("by_policy", [True, False])
def test_an_existing_queue_is_warned_of_when_its_dead_letter_exchange_is_gone(by_policy: bool) -> None:
    wanted: dict[str, Any] = {"shards": 1} if by_policy else {"shards": 1, "arguments": {"x-dead-letter-exchange": "x"}}
    state = after(EMPTY, *differ(with_exchanges(EMPTY, "x"), **wanted).steps)
    queue = replace(state.queues["orders.1"], policy={"dead-letter-exchange": "x"} if by_policy else {})
    state = replace(state, queues={"orders.1": queue})

    difference = differ(state, **wanted)

    assert (difference.steps, difference.refusals) == ((), ())
    assert "their dead-letter exchange 'x' does not exist" in difference.warnings[0]
    assert not any("dead-letter" in line for line in differ(with_exchanges(state, "x"), **wanted).warnings)


def test_an_alternate_exchange_that_does_not_exist_is_refused_for_a_new_exchange_and_else_told() -> None:
    wanted: dict[str, Any] = {"shards": 1, "alternate_exchange": "rest"}
    state = after(EMPTY, *differ(with_exchanges(EMPTY, "rest"), **wanted).steps)

    (refused,) = differ(EMPTY, **wanted).refusals
    (warned,) = [line for line in differ(state, **wanted).warnings if "replicas" not in line]

    assert "alternate_exchange: exchange 'rest' does not exist" in refused
    assert "alternate_exchange: exchange 'rest' does not exist" in warned
    assert differ(state, **wanted).refusals == differ(with_exchanges(EMPTY, "rest"), **wanted).refusals == ()


def test_no_limit_is_refused_where_it_means_to_delete_at_once() -> None:
    old = State("/", version=(3, 10, 8))

    (line,) = differ(old, shards=1, arguments={"x-delivery-limit": -1}).refusals

    assert "makes RabbitMQ 3.10.8 delete a message at its first return" in line


def test_an_existing_queue_with_the_brokers_own_limit_is_warned_of_and_not_refused() -> None:
    found = FoundQueue("quorum", {"x-queue-type": "quorum", "x-single-active-consumer": True})
    state = made(shards=1)
    state = State("/", state.exchanges, {"orders.1": found}, state.bindings)

    difference = differ(state, shards=1)

    assert (difference.steps, difference.refusals) == ((), ())
    assert "deletes a message after 20 returns" in difference.warnings[0]
    by_policy = FoundQueue("quorum", found.arguments, policy={"delivery-limit": -1})
    mended = State("/", state.exchanges, {"orders.1": by_policy}, state.bindings)
    assert differ(mended, shards=1).warnings == ()


CLUSTER = State("/", nodes=("rabbit@a", "rabbit@b"), version=(4, 3, 6))


def lost_consumers(state: State, **fields: Any) -> list[str]:
    """Return the warnings about consumers whose node is lost; nothing else is to do and nothing is refused."""
    difference = differ(state, **fields)
    assert (difference.steps, difference.refusals) == ((), ())
    return [line for line in difference.warnings if "consumer" in line]


@pytest.mark.parametrize("fields", [{}, {"arguments": {DISCONNECTED_TIMEOUT: 4000}}])
def test_existing_shards_that_wait_for_a_lost_consumer_are_warned_of_once_and_not_refused(
    fields: dict[str, Any],
) -> None:
    state = after(CLUSTER, *differ(CLUSTER, shards=3, **fields).steps)
    assert lost_consumers(state, shards=3, **fields) == []
    queues = {**state.queues, "orders.2": QUEUE, "orders.3": QUEUE}
    old = replace(state, queues=queues)

    (line,) = lost_consumers(old, shards=3, **fields)

    assert "2 shards, such as 'orders.2', give nothing to the next consumer" in line
    assert line.endswith(f"a policy with consumer-disconnected-timeout {4000 if fields else 5000}")
    by_policy = replace(QUEUE, policy={"consumer-disconnected-timeout": 5000})
    mended = replace(old, queues={**queues, "orders.2": by_policy, "orders.3": by_policy})
    assert lost_consumers(mended, shards=3, **fields) == []


@pytest.mark.parametrize(("nodes", "version"), [(1, (4, 3, 6)), (2, (4, 2, 5)), (2, (3, 10, 8))])
def test_a_single_node_and_an_older_broker_do_not_wait_for_lost_consumers(nodes: int, version: tuple[int, ...]) -> None:
    broker = State("/", nodes=CLUSTER.nodes[:nodes], version=version)
    state = after(broker, *differ(broker, shards=1).steps)
    arguments = {k: v for k, v in state.queues["orders.1"].arguments.items() if k != DISCONNECTED_TIMEOUT}

    assert lost_consumers(replace(state, queues={"orders.1": FoundQueue("quorum", arguments)}), shards=1) == []


def test_another_time_to_wait_for_a_lost_consumer_cannot_be_changed() -> None:
    state = after(CLUSTER, *differ(CLUSTER, shards=1).steps)

    (line,) = differ(state, shards=1, arguments={DISCONNECTED_TIMEOUT: 4000}).refusals

    assert f"has {DISCONNECTED_TIMEOUT} = 5000 where the file says 4000" in line


@pytest.mark.parametrize("version", [(4, 3, 6), (4, 2, 5)])
def test_an_existing_shard_keeps_its_time_to_wait_for_a_lost_consumer(version: tuple[int, ...]) -> None:
    """While a cluster is upgraded, the node that answers may be older than the one that made the shard."""
    state = after(CLUSTER, *differ(CLUSTER, shards=1, arguments={DISCONNECTED_TIMEOUT: 4000}).steps)

    assert lost_consumers(replace(state, version=version), shards=1) == []


def test_the_ring_after_the_steps_is_the_ring_that_a_sidecar_builds() -> None:
    difference = differ(made(shards=4), shards=5)

    assert difference.before == {Destination("queue", f"orders.{number}"): 1 for number in range(1, 5)}
    moved = Ring.build(difference.before).changed(difference.after).moved_from(Ring.build(difference.before))
    assert 0.19 < moved < 0.21


def test_a_weight_of_x_modulus_hash_is_a_number_of_bindings() -> None:
    lane = Destination("exchange", "orders.lane.1")
    state = made(type="x-modulus-hash", shards=1, shard=[shard(1, weight=3)])
    assert [binding.key for binding in state.bindings["orders"]] == ["1", "2", "3"]

    less = differ(state, type="x-modulus-hash", shards=1, shard=[shard(1, weight=2)])
    more = differ(state, type="x-modulus-hash", shards=1, shard=[shard(1, weight=4)])

    assert less.steps == (Unbind("orders", lane, "3", "3"),)
    assert more.steps == (Bind("orders", lane, "4"),)
    assert [each.after[Destination("queue", "orders.1")] for each in (less, more)] == [2, 4]


@pytest.mark.parametrize(
    ("kind", "plugin"),
    [("x-consistent-hash", "rabbitmq_consistent_hash_exchange"), ("x-modulus-hash", "rabbitmq_sharding")],
)
def test_a_plugin_that_is_off_is_told_with_the_command_that_enables_it(kind: str, plugin: str) -> None:
    without = replace(EMPTY, exchange_types=frozenset({"direct", "fanout"}))
    (line,) = differ(without, type=kind, shards=1).refusals
    assert f"type {kind!r}: RabbitMQ does not have it, since its plugin is off; " in line
    assert line.endswith(f"rabbitmq-plugins enable {plugin}")
    for known in (frozenset({kind}), None):
        assert differ(replace(EMPTY, exchange_types=known), type=kind, shards=1).refusals == ()
