"""The management API's answers on exchanges, bindings and queues, as they are understood; anything else is an error."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError

from proxy.topology.answers import MAX_VALUES
from proxy.topology.bindings import (
    CONSISTENT_HASH,
    MAX_BINDINGS,
    MODULUS_HASH,
    Binding,
    Bindings,
    Exchange,
    IgnoredBinding,
    TopologyError,
    dead_letters_by_own_name,
    parse_bindings,
    parse_exchange,
    parse_names,
    weigh,
)
from ring.destination import Destination
from ring.hashed import HashedValue

MALFORMED = (TopologyError, DecodeError)
"""The errors of an answer of another form, and of one that is no JSON: as of text with half a surrogate pair."""


def encoded(answer: object) -> bytes:
    return json.dumps(answer).encode()


def queue(name: str) -> Destination:
    return Destination("queue", name)


def binding(name: str, key: str, kind: str = "queue") -> dict[str, Any]:
    return {"destination": name, "destination_type": kind, "routing_key": key}


def exchange(**arguments: Any) -> dict[str, Any]:
    return {"name": "x", "type": CONSISTENT_HASH, "internal": False, "arguments": arguments}


@pytest.mark.parametrize("kind", [CONSISTENT_HASH, MODULUS_HASH, "fanout"])
def test_what_the_broker_counts_of_an_exchange(kind: str) -> None:
    answer = exchange() | {"type": kind, "message_stats": {"publish_in": 17, "publish_in_details": {"rate": 0.0}}}
    assert parse_exchange(encoded(answer)) == Exchange(kind, publish_in=17)
    assert parse_exchange(encoded(answer | {"message_stats": {"publish_in": 0}})).publish_in == 0


@pytest.mark.parametrize(
    "stats",
    [..., None, [], {}, "x", 3, {"publish_in": -1}, {"publish_in": "4"}, {"publish_in": True}, {"publish_in": 4.0}],
)
def test_statistics_that_are_missing_or_malformed_are_no_fault(stats: object) -> None:
    answer = exchange() | ({} if stats is ... else {"message_stats": stats})
    assert parse_exchange(encoded(answer)) == Exchange(CONSISTENT_HASH)


def test_bindings_are_read_as_they_are() -> None:
    answer = [binding("a", "1"), binding("a", "abc"), binding("a", "1"), binding("a", "", "exchange")]
    assert parse_bindings(encoded(answer)) == (
        Binding(queue("a"), "1"),
        Binding(queue("a"), "abc"),
        Binding(queue("a"), "1"),
        Binding(Destination("exchange", "a"), ""),
    )


def test_weights_are_the_binding_keys() -> None:
    answer = [binding("a", "1"), binding("b", "10000"), binding("c", "+3"), binding("d", "05")]
    assert weigh(parse_bindings(encoded(answer)), CONSISTENT_HASH) == Bindings(
        {queue("a"): 1, queue("b"): 10_000, queue("c"): 3, queue("d"): 5}
    )
    assert weigh(parse_bindings(encoded([])), CONSISTENT_HASH) == Bindings()


@pytest.mark.parametrize("key", ["0", "-1", "abc", "500000000", "10001", "1_0", "", " 4", "4\n", "٣", "1.5", "9" * 255])
def test_a_key_that_is_no_weight_is_ignored_and_listed(key: str) -> None:
    found = weigh(parse_bindings(encoded([binding("good", "2"), binding("bad", key)])), CONSISTENT_HASH)
    assert found.weights == {queue("good"): 2}
    (ignored,) = found.ignored
    assert (ignored.destination, ignored.key) == (queue("bad"), key)
    assert ignored.reason in ("empty", "not a whole number", "outside 1 to 10000")


def test_of_two_bindings_to_one_destination_the_larger_weight_counts() -> None:
    for keys in (("2", "5"), ("5", "2"), ("5", "5"), ("2", "5", "2")):
        found = weigh(
            parse_bindings(encoded([binding("a", key) for key in keys] + [binding("b", "1")])), CONSISTENT_HASH
        )
        assert found == Bindings({queue("a"): 5, queue("b"): 1}, (), (queue("a"),))


def test_a_destination_bound_with_a_weight_and_without_is_on_the_ring_and_reported() -> None:
    for keys in (("2", "abc"), ("abc", "2")):
        found = weigh(parse_bindings(encoded([binding("a", key) for key in keys])), CONSISTENT_HASH)
        assert found.weights == {queue("a"): 2}
        assert found.ignored == (IgnoredBinding(queue("a"), "abc", "not a whole number"),)
        assert found.duplicates == (queue("a"),)


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    found = weigh(parse_bindings(encoded([binding("a", "1"), binding("a", "2", "exchange")])), CONSISTENT_HASH)
    assert found == Bindings({queue("a"): 1, Destination("exchange", "a"): 2})


def test_modulus_hash_ignores_the_keys_and_counts_the_bindings() -> None:
    answer = [binding("a", "abc"), binding("b", "7"), binding("c", "", "exchange"), binding("b", "8")]
    found = weigh(parse_bindings(encoded(answer)), MODULUS_HASH)
    assert found == Bindings({queue("a"): 1, queue("b"): 2, Destination("exchange", "c"): 1})


def test_modulus_hash_has_no_weight_beyond_the_greatest() -> None:
    answer = [binding("a", str(number)) for number in range(10_001)]
    assert weigh(parse_bindings(encoded(answer)), MODULUS_HASH).weights == {queue("a"): 10_000}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        "[]",
        5,
        {"error": "not_found"},
        [5],
        [None],
        [[]],
        [{}],
        [{"destination": "a", "destination_type": "queue"}],
        [{"destination": "a", "routing_key": "1"}],
        [{"destination_type": "queue", "routing_key": "1"}],
        [binding("a", "1", "stream")],
        [{**binding("a", "1"), "destination_type": ["queue"]}],
        [{**binding("a", "1"), "routing_key": 1}],
        [{**binding("a", "1"), "destination": None}],
        [binding("a\ud800", "1")],
        [binding("a", "\udfff")],
        [binding("good", "1"), None],
    ],
)
def test_half_of_a_malformed_list_is_never_believed(answer: object) -> None:
    with pytest.raises(MALFORMED) as raised:
        parse_bindings(encoded(answer))
    assert len(str(raised.value)) < 200
    str(raised.value).encode()


def test_ten_thousand_doubled_bindings_are_linear_work() -> None:
    """A list searched for each would be 50 million comparisons on the event loop."""

    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    bindings = [Binding(queue(Counted(f"q{i}")), "1") for i in range(1000)] * 3
    assert len(weigh(bindings, CONSISTENT_HASH).duplicates) == 1000
    assert Counted.compared < 50_000


@pytest.mark.parametrize(
    ("arguments", "hashed"),
    [
        ({}, HashedValue()),
        ({"hash-header": "customer"}, HashedValue("header", "customer")),
        ({"hash-property": "message_id"}, HashedValue("property", "message_id")),
        ({"hash-property": "correlation_id"}, HashedValue("property", "correlation_id")),
        ({"hash-property": "timestamp"}, HashedValue("property", "timestamp")),
        ({"hash-header": "é", "alternate-exchange": "ae", "x": [1]}, HashedValue("header", "é")),
    ],
)
def test_what_an_exchange_hashes(arguments: dict[str, Any], hashed: HashedValue) -> None:
    read = parse_exchange(encoded(exchange(**arguments)))
    assert (read.type, read.internal, read.hashed) == (CONSISTENT_HASH, False, hashed)


def test_what_cannot_be_hashed_is_an_error() -> None:
    with pytest.raises(TopologyError, match="hash-property: 'app_id'"):
        parse_exchange(encoded(exchange(**{"hash-property": "app_id"})))
    with pytest.raises(DecodeError):
        parse_exchange(encoded(exchange(**{"hash-header": "a\ud800"})))


def test_exchanges_of_other_types() -> None:
    assert parse_exchange(
        encoded({"type": "topic", "internal": True, "arguments": {"hash-property": "app_id"}})
    ) == Exchange("topic", True)


@pytest.mark.parametrize("arguments", [{}, {"hash-header": "h"}, {"hash-property": "message_id"}])
def test_x_modulus_hash_hashes_the_routing_key_whatever_its_arguments_say(arguments: dict[str, str]) -> None:
    """As RabbitMQ 3.10.8 does: 200 keys with one value of the named header went to all of four queues (observed)."""
    assert parse_exchange(encoded({"type": MODULUS_HASH, "arguments": arguments})) == Exchange(MODULUS_HASH)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        [{"type": CONSISTENT_HASH}],
        {},
        {"type": 5},
        {"type": "\ud800"},
        {"type": CONSISTENT_HASH, "internal": "false"},
        {"type": CONSISTENT_HASH, "arguments": []},
        {"type": CONSISTENT_HASH, "arguments": None},
        {"error": "Object Not Found", "reason": "Not Found"},
    ],
)
def test_malformed_exchanges(answer: object) -> None:
    with pytest.raises(MALFORMED):
        parse_exchange(encoded(answer))


def test_names() -> None:
    assert parse_names(encoded([{"name": "/"}, {"name": ""}, {"name": "é", "tracing": False}]), "vhost") == {
        "/",
        "",
        "é",
    }
    assert parse_names(encoded([]), "vhost") == frozenset()
    malformed: list[object] = [None, {}, ["a"], [{"name": 1}], [{}], [{"name": "\ud800"}]]
    for answer in malformed:
        with pytest.raises(MALFORMED):
            parse_names(encoded(answer), "vhost")


DLX, DLK = "x-dead-letter-exchange", "x-dead-letter-routing-key"
BY_ARGUMENT = "its argument x-dead-letter-exchange"


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {}, ""),
        ({DLX: "d"}, {}, BY_ARGUMENT),
        ({DLX: "d", DLK: "k"}, {}, ""),
        ({DLK: "k"}, {}, ""),
        ({}, {"dead-letter-exchange": "d"}, "policy 'p'"),
        ({}, {"dead-letter-exchange": "d", "dead-letter-routing-key": "k"}, ""),
        ({DLX: "d"}, {"dead-letter-routing-key": "k"}, ""),
        ({DLX: "d"}, {"dead-letter-exchange": "e"}, BY_ARGUMENT),
        ({DLK: "k"}, {"dead-letter-exchange": "d"}, ""),
        ({DLX: ""}, {}, BY_ARGUMENT),
        ({DLX: "d"}, [], BY_ARGUMENT),
        ({}, [], ""),
        ({}, None, ""),
        ({"x-max-length": 5}, {"max-length": 6}, ""),
    ],
)
def test_dead_lettering_by_argument_and_by_policy(arguments: Any, policy: Any, expected: str) -> None:
    answer: object = {"name": "q", "arguments": arguments, "policy": "p", "effective_policy_definition": policy}
    assert dead_letters_by_own_name(encoded(answer)) == expected


@pytest.mark.parametrize("name", [None, "", 7, []])
def test_a_policy_without_a_name(name: object) -> None:
    answer = {"name": "q", "policy": name, "effective_policy_definition": {"dead-letter-exchange": "d"}}
    assert dead_letters_by_own_name(encoded(answer)) == "a policy"


def test_a_queue_without_a_policy_s_field() -> None:
    assert dead_letters_by_own_name(encoded({"name": "q", "arguments": {DLX: "d"}})) == BY_ARGUMENT
    assert dead_letters_by_own_name(encoded({"name": "q"})) is None
    assert dead_letters_by_own_name(encoded({"name": "q", "effective_policy_definition": []})) == ""


@pytest.mark.parametrize("answer", [None, [], "q", {"arguments": []}, {"effective_policy_definition": ["d"]}])
def test_malformed_queues(answer: object) -> None:
    with pytest.raises(MALFORMED):
        dead_letters_by_own_name(encoded(answer))


texts = st.text(st.characters(codec=None), max_size=4) | st.sampled_from(
    ["queue", "exchange", CONSISTENT_HASH, MODULUS_HASH, "hash-header", "hash-property", "message_id", "1", "abc"]
)
names = st.sampled_from(
    [
        *("destination", "destination_type", "routing_key", "type", "internal", "arguments", "name"),
        *("hash-header", "hash-property", "effective_policy_definition"),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner, max_size=6),
)
near_misses = st.lists(
    st.fixed_dictionaries(
        {
            "destination": texts | json_values,
            "destination_type": st.sampled_from(["queue", "exchange"]) | json_values,
            "routing_key": texts | json_values,
        }
    ),
    max_size=5,
)


@given(json_values | near_misses)
def test_any_json_is_a_topology_or_a_topology_error(answer: object) -> None:
    for kind in (CONSISTENT_HASH, MODULUS_HASH):
        try:
            found = weigh(parse_bindings(encoded(answer)), kind)
        except MALFORMED:
            continue
        assert isinstance(answer, list)
        for destination, weight in found.weights.items():
            assert 1 <= weight <= 10_000
            f"{destination.name}".encode()
        # Nothing is dropped in silence.
        shown = {*found.weights, *(b.destination for b in found.ignored)}
        assert shown == {Destination(b["destination_type"], b["destination"]) for b in answer}


@given(
    json_values | st.fixed_dictionaries({"type": texts}, optional={"internal": st.booleans(), "arguments": json_values})
)
def test_any_json_is_an_exchange_or_a_topology_error(answer: object) -> None:
    try:
        found = parse_exchange(encoded(answer))
    except MALFORMED:
        return
    assert isinstance(answer, dict)
    assert found.type == answer["type"]
    str(found.hashed).encode()


@given(json_values)
def test_any_json_is_a_queue_or_names_or_a_topology_error(answer: object) -> None:
    for parse in (dead_letters_by_own_name, lambda a: parse_names(a, "vhost")):
        try:
            found = parse(encoded(answer))
        except MALFORMED:
            continue
        assert found is None or isinstance(found, str | frozenset)
        str(found).encode()


@given(json_values | near_misses)
def test_messages_can_be_written_to_a_log(answer: object) -> None:
    """Lone surrogates, which JSON can hold and UTF-8 cannot, are escaped."""
    answer = json.loads(json.dumps(answer))
    told = []
    for what in (answer, [answer], {"type": answer}, {"type": CONSISTENT_HASH, "arguments": answer}):
        for parse in (parse_exchange, dead_letters_by_own_name, parse_bindings):
            try:
                parse(encoded(what))
            except MALFORMED as error:
                told.append(str(error))
    assert told
    assert all(message.encode() for message in told)


@pytest.mark.parametrize("algorithm", ["ring", "jump", "another", 7])
def test_lavinmq_s_algorithm_changes_no_ring(algorithm: object) -> None:
    """It says how LavinMQ chooses a queue by itself; what is hashed, and the weights, are the same with each."""
    plain = {"type": "x-consistent-hash", "durable": True, "internal": False, "arguments": {"x-hash-on": "customer"}}
    chosen = plain | {"arguments": {"x-hash-on": "customer", "x-algorithm": algorithm}}
    assert parse_exchange(encoded(chosen)) == parse_exchange(encoded(plain))


def test_lavinmq_s_argument_names_a_header() -> None:
    answer = {"type": CONSISTENT_HASH, "arguments": {"x-hash-on": "customer"}}
    assert parse_exchange(encoded(answer)).hashed == HashedValue("header", "customer")


def test_more_bindings_than_a_ring_can_have_are_an_error() -> None:
    most = [binding("a", "1")] * MAX_BINDINGS
    assert len(parse_bindings(encoded(most))) == MAX_BINDINGS
    with pytest.raises(TopologyError, match="bindings: the exchange has 65537, and ringproxy takes 65536 at most"):
        parse_bindings(encoded([*most, binding("b", "1")]))


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"{}," * MAX_VALUES + b"{}]",
        b"[" * 1000 + b"1," * MAX_VALUES + b"1" + b"]" * 1000,
        b'{"type": "x", "arguments": {' + b'"a":1,' * MAX_VALUES + b'"a":1}}',
    ],
)
def test_more_values_than_any_answer_has_are_refused_before_one_is_made(body: bytes) -> None:
    for parse in (parse_exchange, dead_letters_by_own_name, parse_bindings, lambda a: parse_names(a, "vhost")):
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match="more than 500000 values"):
                parse(body)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_fields_that_are_not_needed_take_no_memory() -> None:
    body = b'[{"name": "/", "other": [' + b"[]," * (MAX_VALUES // 3) + b"1]}]"
    tracemalloc.start()
    try:
        assert parse_names(body, "vhost") == {"/"}
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_of_a_key_that_an_object_has_twice_the_last_value_counts() -> None:
    """RabbitMQ writes an argument twice that a client declared twice, so its answers are not refused for that."""
    assert parse_exchange(b'{"type": "fanout", "type": "topic", "arguments": {"x": 1, "x": 2}}') == Exchange("topic")
