"""A plan: the keys that move, what waits where they leave, the rights of users, and how a plan is shown."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.rights import pattern
from proxy.shards import plan_text
from proxy.shards.document import DocumentError, parse
from proxy.shards.journal import Moved
from proxy.shards.plan import Plan, make_plan, moves_keys
from proxy.shards.state import FoundExchange, FoundQueue, State
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import Ring
from tests.unit.proxy.shards.model import EMPTY, after


def queue(number: int) -> Destination:
    return Destination("queue", f"orders.{number}")


def plan(state: State, *exchanges: dict[str, Any]) -> Plan:
    return make_plan(parse({"exchange": list(exchanges)}), {"/": state})


def text_of(found: Plan) -> str:
    return "\n".join(plan_text.as_text(found))


def orders(**fields: Any) -> dict[str, Any]:
    return {"name": "orders", **fields}


def made(*exchanges: dict[str, Any]) -> State:
    return after(EMPTY, *(step for _, step in plan(EMPTY, *exchanges).steps))


def test_the_moves_are_those_between_the_rings_that_sidecars_build() -> None:
    (planned,) = plan(made(orders(shards=4)), orders(shards=5, shard=[{"number": 1, "weight": 2}])).exchanges

    before = Ring.build({queue(n): 1 for n in range(1, 5)})
    after = Ring.build({queue(n): 1 + (n == 1) for n in range(1, 6)})
    pairs = Counter(
        (before.destinations[old], after.destinations[new])
        for old, new in zip(before.table.tolist(), after.table.tolist(), strict=True)
    )
    assert {(move.source, move.target): move.slots for move in planned.moves} == {
        (source, target): slots for (source, target), slots in pairs.items() if source != target
    }
    assert planned.moved_slots is not None
    assert int(planned.moved_slots.sum()) == sum(move.slots for move in planned.moves)
    assert {move.target for move in planned.moves} == {queue(1), queue(5)}


def test_without_a_ring_before_or_after_or_with_the_same_one_nothing_moves() -> None:
    weights = {queue(1): 1, queue(2): 3}

    assert [moves_keys({}, weights), moves_keys(weights, {}), moves_keys(weights, dict(weights))] == [False] * 3
    assert moves_keys(weights, {queue(1): 1})


def test_what_waits_is_told_of_the_queues_that_lose_keys() -> None:
    state = made(orders(shards=3))
    queues = {
        **state.queues,
        "orders.1": FoundQueue("quorum", state.queues["orders.1"].arguments, ready=1200, unacked=4),
        "orders.2": FoundQueue("quorum", state.queues["orders.2"].arguments, ready=0, unacked=0),
        "orders.3": FoundQueue("quorum", state.queues["orders.3"].arguments),
    }
    state = State("/", state.exchanges, queues, state.bindings, state.nodes, state.version)

    found = plan(state, orders(shards=4))

    (planned,) = found.exchanges
    assert planned.waiting == {queue(1): 1204, queue(2): 0, queue(3): None}
    text = text_of(found)
    assert re.search(r"orders\.1 +[\d.]+% +1,204\n", text)
    assert re.search(r"orders\.3 +[\d.]+% +unknown\n", text)
    assert "messages wait in orders.1, orders.3" in text


def test_a_plan_says_how_many_keys_move_and_what_is_to_do() -> None:
    text = text_of(plan(made(orders(shards=4)), orders(shards=5)))

    share, slots = re.findall(r"([\d.]+)% of the keys move \(([\d,]+) of 1,048,576 slots\)", text)[0]
    assert f"{int(slots.replace(',', '')) / SLOTS:.4%}" == f"{share}%"
    arguments = "x-single-active-consumer=true, x-delivery-limit=-1, x-consumer-disconnected-timeout=5000"
    assert f"  + declare queue orders.5: x-queue-type=quorum, {arguments}\n" in text
    assert "consumer timeout: the broker's own, 30 minutes" in text
    assert text.endswith("\n4 steps to do")


def test_a_plan_says_what_new_shards_do_without_the_node_of_their_consumer() -> None:
    own = [{"number": 2, "arguments": {"x-consumer-disconnected-timeout": 2500}}]

    text = text_of(plan(EMPTY, orders(shards=2, shard=own)))

    assert re.findall(r"after ([\d.]+) s without its node, a consumer of a new shard loses", text) == ["2.5", "5"]
    assert "lost consumers:" not in text_of(plan(EMPTY, orders(shards=2, queue_type="classic")))


def test_a_plan_says_how_many_messages_a_day_move_and_if_a_journal_was_too_long() -> None:
    found = plan(made(orders(shards=4)), orders(shards=5))

    def told(moved: Moved) -> str:
        (line,) = [line for line in plan_text.as_text(found, {("/", "orders"): moved}) if "journal:" in line]
        return line

    assert told(Moved(100, 25, 2.0)) == "  journal: about 300 messages a day move, 25.0% of 100 messages in 2.0 h"
    assert told(Moved(100, 25, 0.5, is_part=True)) == (
        "  journal: at least 1,200 messages a day move, 25.0% of 100 messages in 0.5 h, the first ones of the newest "
        "hour, which has more"
    )


def test_a_plan_says_that_keys_may_move_twice_if_a_weight_changes() -> None:
    """A shard is off the ring between unbind and bind, for how long nobody can promise."""
    heavier = {"shard": [{"number": 1, "weight": 2}, {"number": 3, "weight": 2}]}

    text = text_of(plan(made(orders(shards=3)), orders(shards=3, **heavier)))

    assert "  weights: 2 shards are unbound and bound again" in text
    assert "weights:" not in text_of(plan(made(orders(shards=3)), orders(shards=4)))
    assert "weights:" not in text_of(plan(made(orders(shards=3, lanes=False)), orders(shards=3)))


def test_a_plan_without_steps_says_so() -> None:
    text = text_of(plan(made(orders(shards=2)), orders(shards=2)))

    assert "  no key moves\n" in text
    assert text.endswith("\nnothing to do")


def test_a_plan_with_a_refusal_says_that_nothing_would_be_done() -> None:
    text = text_of(plan(made(orders(shards=4)), orders(shards=3)))

    assert "cannot be done:\n  [[exchange]] 1, 'orders': shards: shard 4 exists" in text
    assert text.endswith("\n1 cannot be done, so apply would do nothing")


def test_a_plan_as_json() -> None:
    found = json.loads(json.dumps(plan_text.as_json(plan(made(orders(shards=1)), orders(shards=2)))))

    assert (found["v"], found["steps"]) == (1, 4)
    (exchange,) = found["exchanges"]
    assert [step["step"] for step in exchange["steps"]] == ["declare_queue", "declare_exchange", "bind", "bind"]
    assert exchange["shards"][1] == {"number": 2, "queue": "orders.2", "lane": "orders.lane.2", "weight": 1}
    assert exchange["moved"] == sum(move["slots"] for move in exchange["moves"]) / SLOTS
    assert exchange["waiting"] == {"orders.1": 0}
    assert len(found["rights"]) == 5


def test_two_exchanges_that_come_to_share_a_queue_are_refused() -> None:
    """Which numbers an exchange has by its nodes is known only here."""
    other = {"name": "b", "shards": 1, "shard": [{"number": 1, "queue": "orders.2"}]}
    two = State("/", nodes=("rabbit@a", "rabbit@b"))

    with pytest.raises(DocumentError, match=r"shard 1: queue: 'orders.2' is the queue of \[\[exchange\]\] 1, 'orders'"):
        plan(two, orders(shards_per_node=1), other)


def rights(*exchanges: dict[str, Any]) -> dict[str, list[str]]:
    found = plan(EMPTY, *exchanges)
    assert found.rights == found.rights_applied
    return by_user(found.rights)


def by_user(rights: Iterable[str]) -> dict[str, list[str]]:
    lines = [shlex.split(line) for line in rights]
    assert all(line[:4] == ["rabbitmqctl", "set_permissions", "-p", "/"] for line in lines)
    return {line[4]: line[5:] for line in lines}


def may(regex: str, *names: str) -> list[bool]:
    return [re.search(regex, name) is not None for name in names]


def test_with_lanes_nobody_needs_the_default_exchange() -> None:
    found = rights(orders(shards=2), {"name": "b", "shards": 1})

    configure, write, read = found["WRITER"]
    assert may(configure, "orders", "x") == may(read, "orders", "x") == [False, False]
    assert may(write, "orders", "orders.lane.1", "orders.lane.77", "b", "b.lane.1") == [True] * 5
    assert may(write, "amq.default", "orders.1", "orders.lane.", "orders.lane.1x", "xorders") == [False] * 5
    assert may(found["READER"][2], "orders.1", "orders.12", "orders", "orders.lane.1") == [True, True, False, False]
    assert may(found["TOPOLOGY"][0], "ring-proxy.topology", "orders", "orders.1", "other") == [True, True, True, False]


def test_a_change_in_order_needs_rights_on_all_generations_and_on_the_default_exchange_for_markers() -> None:
    found = plan(made(orders(shards=2)), orders(shards=3))

    named = by_user(found.rights_ordered)
    assert may(named["WRITER"][1], "orders", "orders.lane.1", "orders.lane.g2.3", "orders.g2.3") == [*[True] * 3, False]
    assert may(named["READER"][2], "orders.1", "orders.g2.3", "orders.lane.1") == [True, True, False]
    configure, write, read = named["TOPOLOGY"]
    assert may(configure, "orders.g2.1", "orders.lane.g2.1", "ring-proxy.topology") == [True] * 3
    assert may(write, "amq.default", "orders.lane.1", "orders.g2.1") == [True] * 3
    assert may(read, "orders", "orders.1", "orders.g2.1", "orders.lane.1") == [True] * 4
    assert may(by_user(found.rights)["TOPOLOGY"][1], "amq.default") == [False]
    assert f"set these instead before you begin:\n    {found.rights_ordered[0]}\n" in text_of(found)
    assert plan(made(orders(shards=2)), orders(shards=2)).rights_ordered == ()


def test_a_group_needs_rights_of_its_members_and_of_the_sidecars() -> None:
    found = rights(orders(shards=2))

    configure, write, read = found["MEMBER"]
    assert (configure, write) == ("^$", "^$")
    assert may(read, "orders", "orders.1", "orders.12", "orders.lane.1") == [True, True, True, False]
    queue = "orders.group.0123456789abcdef"
    for part in found["SIDECAR"]:
        assert may(part, "orders.group", "orders.group.asked", queue) == [True, True, True]
        assert may(part, "orders.groups", "orders.1") == [False, False]
    assert may(found["SIDECAR"][1], "orders", "orders.lane.1", "amq.default") == [True, True, False]
    assert may(found["SIDECAR"][2], "orders", "orders.lane.1") == [False, False]


@pytest.mark.parametrize(("dead", "named"), [("dead", "dead"), ("", "amq.default")])
def test_whoever_applies_needs_the_dead_letter_exchange_which_may_be_the_default_one(dead: str, named: str) -> None:
    arguments = {"x-dead-letter-exchange": dead, "x-dead-letter-routing-key": "failed"}
    state = State("/", {"dead": FoundExchange("fanout")}, nodes=EMPTY.nodes)

    _, write, read = by_user(plan(state, orders(shards=1, arguments=arguments)).rights)["TOPOLOGY"]

    assert may(write, named, "orders.1") == [True, True]
    assert may(read, "orders.1", named) == [True, False]


def test_without_lanes_the_writer_needs_the_default_exchange() -> None:
    assert may(rights(orders(shards=2, lanes=False))["WRITER"][1], "amq.default", "orders", "orders.1") == [
        *(True, True, False),
    ]


def test_rights_before_the_file_is_applied_are_enough_for_the_shards_as_they_are() -> None:
    """Otherwise publishes are refused while queues are still bound themselves, or once the first lane is bound."""
    found = plan(made(orders(shards=2, lanes=False)), orders(shards=2))

    now, later = by_user(found.rights), by_user(found.rights_applied)
    assert may(now["WRITER"][1], "amq.default", "orders", "orders.lane.1") == [True, True, True]
    assert may(later["WRITER"][1], "amq.default", "orders", "orders.lane.1") == [False, True, True]
    text = text_of(found)
    before, _, after_it = text.partition("  set these once it is applied and sidecars have noticed:\n")
    assert f"  set these before you apply the file:\n    {found.rights[0]}\n" in before
    assert f"    {found.rights_applied[0]}\n" in after_it
    assert plan_text.as_json(found)["rights_applied"] == list(found.rights_applied)


def test_a_lane_that_is_replaced_is_written_to_until_the_file_is_applied() -> None:
    old, new = ({"number": 1, "lane": name} for name in ("old", "new"))
    found = plan(made(orders(shards=2, shard=[old])), orders(shards=2, shard=[new]))

    now, later = by_user(found.rights), by_user(found.rights_applied)
    for user, at in (("WRITER", 1), ("TOPOLOGY", 0), ("TOPOLOGY", 1), ("TOPOLOGY", 2)):
        assert may(now[user][at], "old", "new") == [True, True]
        assert may(later[user][at], "old", "new") == [False, True]


@pytest.mark.parametrize("lane", [False, "its own lane"])
def test_a_retiring_shard_of_any_name_is_in_the_rights_until_it_is_gone(lane: bool | str) -> None:
    own = [{"number": 2, "queue": "old one", "lane": lane}]
    state, wanted = made(orders(shards=2, shard=own)), orders(shards=2, retiring=[2], shard=own)
    off_the_ring = replace(state, bindings={**state.bindings, "orders": state.bindings["orders"][:1]})
    deleted = replace(off_the_ring, queues={"orders.1": state.queues["orders.1"]}, exchanges={
        name: exchange for name, exchange in state.exchanges.items() if name != lane
    })  # fmt: skip

    for found, there in ((state, True), (off_the_ring, True), (deleted, False)):
        lines = by_user(plan(found, wanted).rights_applied)
        assert may(lines["READER"][2], "orders.1", "old one") == [True, there]
        assert may(lines["TOPOLOGY"][0], "orders.1", "old one") == [True, there]
        if lane:
            assert may(lines["WRITER"][1], str(lane), "amq.default") == [there, False]
    assert may(by_user(plan(state, wanted).rights_applied)["WRITER"][1], "amq.default") == [lane is False]


def test_only_the_numbers_of_shards_stand_for_all_numbers() -> None:
    """A name that someone chose, and that ends in a number, says nothing of the others."""
    own = [{"number": 1, "queue": "adopted.3", "lane": "lane.4"}]
    found = rights({"name": "tenant.7", "shards": 2, "shard": own, "alternate_exchange": "rest.1"})

    assert may(found["WRITER"][1], "tenant.7", "tenant.8", "tenant.7.lane.9", "lane.4", "lane.5") == [
        *(True, False, True, True, False),
    ]
    assert may(found["READER"][2], "tenant.7.9", "adopted.3", "adopted.4") == [True, True, False]
    assert may(found["TOPOLOGY"][1], "rest.1", "rest.2") == [True, False]


def test_a_dead_letter_exchange_that_the_file_makes_is_not_missing() -> None:
    dead = {"arguments": {"x-dead-letter-exchange": "dead"}}

    assert plan(EMPTY, orders(shards=1, **dead), {"name": "dead", "shards": 1}).refusals == ()
    assert len(plan(EMPTY, orders(shards=1, **dead)).refusals) == 1


RINGS = "a", "b", "c", "d"


@st.composite
def chains(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Exchanges of which some name others, as alternate or as dead-letter exchange, though never in a circle."""
    exchanges: list[dict[str, Any]] = []
    for name in draw(st.permutations(RINGS)):
        named = st.sampled_from([each["name"] for each in exchanges]) if exchanges else st.nothing()
        dead, alternate, own = (draw(st.none() | named) for _ in range(3))
        shards = draw(st.integers(1, 3))
        exchange = {"name": name, "shards": shards, "lanes": draw(st.booleans())}
        exchange |= {} if alternate is None else {"alternate_exchange": alternate}
        exchange |= {} if dead is None else {"arguments": {"x-dead-letter-exchange": dead}}
        exchange |= {} if own is None else {"shard": [{"number": 1, "arguments": {"x-dead-letter-exchange": own}}]}
        exchanges.append(exchange)
    return draw(st.permutations(exchanges))


def losing(state: State) -> set[tuple[str, str]]:
    """Return each exchange that takes messages, with an exchange that it names and that leads nowhere."""
    lost = set()
    for name in RINGS:
        bound = state.weights(name)
        named = [state.queues[each.name].arguments.get("x-dead-letter-exchange") for each in bound]
        if bound:
            named.append(state.exchanges[name].arguments.get("alternate-exchange"))
        lost |= {(name, str(other)) for other in named if other is not None and not state.weights(other)}
    return lost


@given(chains(), st.data())
def test_no_prefix_of_a_plan_loses_what_is_dead_lettered_to_another_exchange_of_the_file(
    exchanges: list[dict[str, Any]], data: st.DataObject
) -> None:
    """The rule holds where an earlier apply of some of the exchanges was killed, too."""
    fewer = [each for each in exchanges if data.draw(st.booleans())]
    fewer = fewer if fewer and not plan(EMPTY, *fewer).refusals else exchanges
    steps = plan(EMPTY, *fewer).steps
    state = after(EMPTY, *(step for _, step in steps[: data.draw(st.integers(0, len(steps)))]))

    found = plan(state, *exchanges)

    assert found.refusals == ()
    assert not any("gets messages of the other" in line for line in found.warnings)
    for done in range(len(found.steps) + 1):
        then = after(state, *(step for _, step in found.steps[:done]))
        assert losing(then) == set(), f"after {done} steps"
    assert plan(then, *exchanges).steps == ()


def test_exchanges_that_dead_letter_to_each_other_are_bound_in_the_order_of_use_and_the_gap_is_told() -> None:
    """The first one of the file is what publishers use, and the other one serves it, say to try a message later."""
    both = orders(shards=1, arguments={"x-dead-letter-exchange": "retry"}), {
        "name": "retry", "shards": 1, "arguments": {"x-dead-letter-exchange": "orders"},
    }  # fmt: skip
    found = plan(EMPTY, *both)

    assert [str(step) for _, step in found.steps][-2:] == [
        "bind retry to exchange retry.lane.1, weight 1",
        "bind orders to exchange orders.lane.1, weight 1",
    ]
    told = [line for line in found.warnings if "each of them gets messages of the other" in line]
    assert [line.partition(", since")[0] for line in told] == [
        "[[exchange]] 2, 'retry': is bound before exchange 'orders'"
    ]
    assert not any("each of them" in line for line in plan(made(*both), *both).warnings)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=20), min_size=1)
)
def test_the_rights_match_the_names_of_the_exchanges(names: list[str]) -> None:
    regex = rights(*({"name": f"n{name}", "shards": 1, "vhost": "/"} for name in dict.fromkeys(names)))["WRITER"][1]

    assert all(re.fullmatch(regex, f"n{name}") for name in names)


def test_a_pattern_without_names_matches_none() -> None:
    assert pattern([]) == "^$"
    assert pattern(["a", "b", "a"]) == "^(a|b)$"
