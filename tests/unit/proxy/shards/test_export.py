"""Files written from what exists: a plan of them has nothing to do."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shards.difference import compare
from proxy.shards.document import parse
from proxy.shards.export import ExportError, export
from proxy.shards.shard import MAX_SHARDS
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after
from tests.unit.proxy.shards.test_difference import documents

names = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..") and not name.startswith("amq.")
)
ARGUMENTS = {
    "x-max-length": 7,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "dead",
    "x-single-active-consumer": False,
    "x-delivery-limit": 5,
    "x-consumer-disconnected-timeout": 60,
}
arguments = st.sets(st.sampled_from(sorted(ARGUMENTS))).map(lambda chosen: {key: ARGUMENTS[key] for key in chosen})


@st.composite
def any_documents(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of an exchange `orders` whose shards have names, types and arguments of their own."""
    fields = draw(documents())
    given_names = draw(st.lists(names, unique=True, min_size=10, max_size=10))
    for position, terms in enumerate(fields["shard"]):
        terms |= {
            **({"queue": f"q {given_names[2 * position]}"} if draw(st.booleans()) else {}),
            **({"queue_type": draw(st.sampled_from(["classic", "quorum", "stream"]))} if draw(st.booleans()) else {}),
            **({"arguments": draw(arguments)} if draw(st.booleans()) else {}),
        }
        if terms.get("lane") is not False and draw(st.booleans()):
            terms["lane"] = f"l {given_names[2 * position + 1]}"
    kind = draw(st.sampled_from(["classic", "quorum", "stream"]))
    return {**fields, "queue_type": kind, "arguments": draw(arguments)}


@given(any_documents(), st.sampled_from([(3, 10, 8), (4, 0, 5), (4, 3, 6)]))
def test_a_plan_of_what_was_exported_has_nothing_to_do(fields: dict[str, Any], version: tuple[int, ...]) -> None:
    (exchange,) = parse({"exchange": [{"name": "orders", **fields}]})
    broker = replace(EMPTY, version=version)
    state = after(broker, *compare(exchange, broker).steps)

    text = export(state, "orders")

    (exported,) = parse(tomllib.loads(text))
    difference = compare(exported, state)
    assert (difference.steps, difference.refusals) == ((), ())
    assert difference.after == state.weights("orders")


def test_the_file_is_as_short_as_it_can_be() -> None:
    (exchange,) = parse({"exchange": [{"name": "orders", "shards": 3}]})
    state = after(EMPTY, *compare(exchange, EMPTY).steps)

    assert export(state, "orders") == '[[exchange]]\nname = "orders"\nvhost = "/"\nshards = 3\n'


def test_queues_of_the_sharding_plugin_keep_their_names() -> None:
    queues = [f"sharding: orders - rabbit@a - {n}" for n in (0, 1, 10, 2)]
    bindings = tuple(FoundBinding(Destination("queue", name), "7", "7") for name in queues)
    state = State(
        "/", {"orders": FoundExchange("x-modulus-hash")}, {name: FoundQueue("classic") for name in queues},
        {"orders": bindings},
    )  # fmt: skip

    text = export(state, "orders")

    (exchange,) = parse(tomllib.loads(text))
    assert [shard.queue for shard in exchange.shards((), 1)] == [queues[0], queues[1], queues[3], queues[2]]
    assert 'type = "x-modulus-hash"' in text
    assert 'arguments = { "x-single-active-consumer" = false }' in text


def state_of(exchange: FoundExchange, *bindings: FoundBinding, queue: FoundQueue | None = None) -> State:
    return State("/", {"orders": exchange}, {"q": queue or FoundQueue("classic")}, {"orders": bindings})


HASH = FoundExchange("x-consistent-hash")
TO_Q = Destination("queue", "q")


MANY = [f"q{n}" for n in range(MAX_SHARDS + 1)]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            State(
                "/",
                {"orders": HASH},
                dict.fromkeys(MANY, FoundQueue("classic")),
                {"orders": tuple(FoundBinding(Destination("queue", name), "1", "1") for name in MANY)},
            ),
            "exchange 'orders' has 10,001 queues; a topology file has 10,000 at most",
        ),
        (State("/"), "virtual host '/' has no exchange 'orders'"),
        (state_of(FoundExchange("topic")), "is of type topic; a ring's is x-consistent-hash or x-modulus-hash"),
        (state_of(HASH), "has no bindings"),
        (state_of(FoundExchange("x-consistent-hash", lasting=False)), "is internal, not durable, or deleted by itself"),
        (
            state_of(FoundExchange("x-consistent-hash", {"x": 1})),
            "has the argument x = 1, which a topology file cannot say",
        ),
        (
            state_of(HASH, FoundBinding(TO_Q, "1"), FoundBinding(TO_Q, "2")),
            "queue 'q' is bound to exchange 'orders' more than once, with the keys '1', '2';"
            " remove all of these bindings, then bind it once: ",
        ),
        (
            state_of(HASH, *(FoundBinding(TO_Q, str(n)) for n in range(1, 9))),
            "more than once, with the keys '1', '2', '3', '4', '5' and 3 more; remove all of these bindings",
        ),
        (
            State(
                "/",
                {"orders": HASH, "lane": FoundExchange("fanout")},
                {"q": FoundQueue("classic")},
                {
                    "orders": (FoundBinding(TO_Q, "1"), FoundBinding(Destination("exchange", "lane"), "1")),
                    "lane": (FoundBinding(TO_Q, ""),),
                },
            ),
            "more than once, with the keys '1', '1' of lane 'lane'; remove all of these bindings",
        ),
        (state_of(HASH, FoundBinding(TO_Q, "x")), "is bound with the key 'x', which is not a whole number"),
        (
            state_of(HASH, FoundBinding(Destination("exchange", "e"), "1")),
            "exchange 'orders' is bound to exchange 'e', which does not exist",
        ),
        (state_of(HASH, FoundBinding(TO_Q, "1"), queue=FoundQueue("classic", lasting=False)), "is not durable"),
        (
            state_of(HASH, FoundBinding(TO_Q, "1"), queue=FoundQueue("classic", {"x-list": [1]})),
            "has the argument x-list = [1], which a topology file cannot say",
        ),
        (state_of(HASH, FoundBinding(Destination("queue", "r"), "1")), "queue 'r' is bound and not listed"),
    ],
)
def test_what_no_file_can_say_is_refused(state: State, told: str) -> None:
    with pytest.raises(ExportError) as raised:
        export(state, "orders")
    assert told in str(raised.value)
