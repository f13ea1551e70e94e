"""A topology file: what it says, every mistake in it, and the published schema, which must say the same."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import proxy.shards
from proxy.shards.document import DocumentError, load, parse
from proxy.shards.shard import MAX_SHARDS, Arguments, Shard

SCHEMA = json.loads((Path(proxy.shards.__file__).parent / "schema.json").read_text())
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)

LEAST = '[[exchange]]\nname = "orders"\nshards = 4\n'


def table(text: str) -> Any:
    return tomllib.loads(text)


def mistakes(text: str) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as raised:
        parse(table(text))
    return raised.value.lines


def test_the_least_file_that_works() -> None:
    (exchange,) = parse(table(LEAST))

    assert (exchange.vhost, exchange.name, exchange.type) == ("/", "orders", "x-consistent-hash")
    assert exchange.shards((), 3) == tuple(
        Shard(n, f"orders.{n}", f"orders.lane.{n}", 1, "quorum", {}) for n in range(1, 5)
    )


def test_everything_that_a_file_can_say() -> None:
    text = """
[[exchange]]
name = "orders"
vhost = "shop"
type = "x-consistent-hash"
shards = [1, 2, 5]
retiring = [2, 9]
lanes = false
queue_type = "classic"
arguments = { x-max-length = 1000, x-overflow = "reject-publish", x-single-active-consumer = false }
hash_header = "customer"
alternate_exchange = "unrouted"

[[exchange.shard]]
number = 5
queue = "big orders"
lane = "to big orders"
weight = 3
queue_type = "quorum"
arguments = {}

[[exchange]]
name = "payments"
shards_per_node = 2
hash_property = "message_id"
"""
    orders, payments = parse(table(text))

    arguments: Arguments = {"x-max-length": 1000, "x-overflow": "reject-publish", "x-single-active-consumer": False}
    assert orders.shards((), 3) == (
        Shard(1, "orders.1", None, 1, "classic", arguments),
        Shard(5, "big orders", "to big orders", 3, "quorum", {}),
    )
    assert orders.arguments == {"hash-header": "customer", "alternate-exchange": "unrouted"}
    assert orders.retiring == {2, 9}
    assert payments.arguments == {"hash-property": "message_id"}
    assert [shard.number for shard in payments.shards((), 3)] == [1, 2, 3, 4, 5, 6]
    assert VALIDATOR.is_valid(table(text))


def test_shards_of_nodes_are_never_fewer_than_there_are_and_never_those_that_retire() -> None:
    (exchange,) = parse(table('[[exchange]]\nname = "o"\nshards_per_node = 2\nretiring = [2]\n'))

    assert [shard.number for shard in exchange.shards((), 2)] == [1, 3, 4, 5]
    assert [shard.number for shard in exchange.shards((1, 2, 3, 7, 8), 1)] == [1, 3, 7, 8]


@pytest.mark.parametrize(
    ("queue", "number"),
    [("orders.7", 7), ("orders.07", None), ("orders.x", None), ("orders", None), ("orders.99999", None)],
)
def test_which_queues_are_shards_of_an_exchange(queue: str, number: int | None) -> None:
    (exchange,) = parse(table(f'{LEAST}[[exchange.shard]]\nnumber = 2\nqueue = "other"\n'))

    assert exchange.number_of(queue) == number
    assert exchange.number_of("other") == 2
    assert exchange.number_of("orders.2") is None


MISTAKES = [
    ("", "exchange: the file has no [[exchange]]"),
    ('exchange = "orders"', "exchange: the file has no [[exchange]]"),
    ("exchange = [1]", "[[exchange]] 1: 1 is not a table"),
    (f"{LEAST}\n[exchanges]\n", "unknown key 'exchanges'; did you mean exchange?"),
    ("[[exchange]]\nshards = 1\n", "[[exchange]] 1: name: missing"),
    (f"{LEAST}shard_count = 2\n", "[[exchange]] 1, 'orders': unknown key 'shard_count'"),
    (LEAST.replace("4", "0"), "[[exchange]] 1, 'orders': shards: 0 is not a whole number from 1 to 10000"),
    (LEAST.replace("4", "10001"), "[[exchange]] 1, 'orders': shards: 10001 is not a whole number from 1 to 10000"),
    (LEAST.replace("4", "true"), "shards: true is neither a number of shards nor a list of shards' numbers"),
    (LEAST.replace("4", "[]"), "shards: the list is empty"),
    (LEAST.replace("4", "[1, 1]"), "shards: 1 is in the list 2 times"),
    (LEAST.replace("4", "[1, 'x']"), "shards: 'x' is not a whole number from 1 to 10000"),
    ('[[exchange]]\nname = "o"\n', "[[exchange]] 1, 'o': shards: missing"),
    (f"{LEAST}shards_per_node = 2\n", "shards: shards_per_node is given too"),
    (f"{LEAST}retiring = [1, 2, 3, 4]\n", "retiring: every shard is retiring"),
    (f"{LEAST}retiring = 3\n", "retiring: 3 is not a list of shards' numbers"),
    (f"{LEAST}lanes = 1\n", "lanes: 1 is not true or false"),
    (f'{LEAST}type = "direct"\n', "type: 'direct' is not one of x-consistent-hash, x-modulus-hash"),
    (f'{LEAST}queue_type = "mirrored"\n', "queue_type: 'mirrored' is not one of quorum, classic, stream"),
    (f"{LEAST}vhost = 3\n", "vhost: 3 is not the name of a virtual host"),
    (f"{LEAST}hash_header = 3\n", "hash_header: 3 is not a name"),
    (
        f'{LEAST}hash_property = "type"\n',
        "hash_property: 'type' is not one of correlation_id, message_id, timestamp",
    ),
    (f'{LEAST}hash_header = "h"\nhash_property = "message_id"\n', "hash_property: hash_header is given too"),
    (f"{LEAST}arguments = 3\n", "arguments: 3 is not a table of arguments"),
    (f"{LEAST}arguments = {{ x-a = [1] }}\n", "arguments: x-a: [1] is not a text, a number, true or false"),
    (f"{LEAST}arguments = {{ x-a = {2**63} }}\n", "does not fit into 64 bits"),
    (f"{LEAST}arguments = {{ x-a = 1e20 }}\n", "x-a: 1e+20 does not fit into 64 bits"),
    (f"{LEAST}arguments = {{ x-a = {-(2**63) - 1} }}\n", "does not fit into 64 bits"),
    (
        f'{LEAST}arguments = {{ x-queue-type = "classic" }}\n',
        "arguments: x-queue-type: use the key queue_type instead",
    ),
    (
        f"{LEAST}arguments = {{ x-single-active-consumer = 1 }}\n",
        "x-single-active-consumer: 1 is not true or false",
    ),
    (f"{LEAST}shard = 3\n", "shard: 3 is not a list of tables, each written [[exchange.shard]]"),
    (f"{LEAST}shard = [3]\n", "[[exchange]] 1, 'orders', [[exchange.shard]] 1: 3 is not a table"),
    (f"{LEAST}[[exchange.shard]]\nweight = 2\n", "[[exchange.shard]] 1: number: missing"),
    (f"{LEAST}[[exchange.shard]]\nnumber = 5\n", "shard 5: its number is neither in shards nor in retiring"),
    (
        f"{LEAST}[[exchange.shard]]\nnumber = 1\nweight = 0\n",
        "[[exchange]] 1, 'orders', [[exchange.shard]] 1: weight: 0 is not a whole number from 1 to 10000",
    ),
    (f"{LEAST}[[exchange.shard]]\nnumber = 1\nwieght = 2\n", "unknown key 'wieght'; did you mean weight?"),
    (f"{LEAST}[[exchange.shard]]\nnumber = 1\nlane = true\n", "lane: true is not a name"),
    (
        f"{LEAST}[[exchange.shard]]\nnumber = 1\n[[exchange.shard]]\nnumber = 1\n",
        "[[exchange.shard]] 2: number: 1 is the number of another [[exchange.shard]] too",
    ),
    (
        f'{LEAST}type = "x-modulus-hash"\nhash_header = "h"\n',
        "hash_header: x-modulus-hash hashes the routing key only",
    ),
    (
        f'{LEAST}type = "x-modulus-hash"\nhash_property = "message_id"\n',
        "hash_property: x-modulus-hash hashes the routing key only",
    ),
    (f'{LEAST}alternate_exchange = "{"x" * 256}"\n', "alternate_exchange: 'xxx"),
    (f'{LEAST}hash_header = "{"x" * 256}"\n', "has 256 bytes; a name has 255 at most"),
    (f'{LEAST}vhost = "{"x" * 256}"\n', "has 256 bytes; a name has 255 at most"),
    (f'{LEAST}vhost = ".."\n', "vhost: '..' is not the name of a virtual host"),
    (f'{LEAST}alternate_exchange = "a\\u0000"\n', "is not a name"),
    ('[[exchange]]\nname = "a\\nb"\nshards = 1\n', "name: 'a\\nb' has the end of a line in it, which RabbitMQ takes"),
    (f'{LEAST}[[exchange.shard]]\nnumber = 1\nqueue = "a\\r"\n', "queue: 'a\\r' has the end of a line in it"),
    (LEAST.replace("4", "4.0"), "shards: 4.0 is neither a number of shards nor a list of shards' numbers"),
    (f"{LEAST}retiring = [2.0]\n", "retiring: 2.0 is not a whole number from 1 to 10000"),
    (f"{LEAST}[[exchange.shard]]\nnumber = 1\nweight = 2.0\n", "weight: 2.0 is not a whole number"),
    ('[[exchange]]\nname = ""\nshards = 1\n', "name: '' is not a name"),
    ('[[exchange]]\nname = ".."\nshards = 1\n', "name: '..' cannot be asked for"),
    ('[[exchange]]\nname = "amq.x"\nshards = 1\n', "name: 'amq.x' begins with 'amq.'"),
    (f'[[exchange]]\nname = "{"é" * 128}"\nshards = 1\n', "name: 'éé"),
    (f'[[exchange]]\nname = "{"x" * 250}"\nshards = 4\n', "shard 1: lane: "),
    (f"{LEAST}{LEAST}", "[[exchange]] 2, 'orders': name: 'orders' is the name of [[exchange]] 1, 'orders' too"),
    (
        f'{LEAST}[[exchange]]\nname = "b"\nshards = 2\n[[exchange.shard]]\nnumber = 2\nqueue = "orders.3"\n',
        "[[exchange]] 2, 'b', shard 2: queue: 'orders.3' is the queue of [[exchange]] 1, 'orders', shard 3 too",
    ),
    (
        f'{LEAST}[[exchange]]\nname = "b"\nshards = 2\n[[exchange.shard]]\nnumber = 2\nlane = "orders"\n',
        "[[exchange]] 2, 'b', shard 2: lane: 'orders' is the name of [[exchange]] 1, 'orders' too",
    ),
]
"""Files with a mistake, and what is told of each."""


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_a_mistake_is_a_line_that_names_the_place_and_the_value(text: str, told: str) -> None:
    lines = mistakes(text)

    assert any(told in line for line in lines), lines
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("shards = 0x" + "f" * 5000, "shards: a value with thousands of digits is not a whole number from 1 to 10000"),
        (
            f"arguments = {{ x-a = 0x{'f' * 5000} }}",
            "arguments: x-a: a value with thousands of digits does not fit into 64 bits",
        ),
        (f"lanes = [0x{'f' * 5000}]", "lanes: a value with thousands of digits is not true or false"),
        ("arguments = { x-a = nan }", "arguments: x-a: nan is not a finite number"),
        ("arguments = { x-a = -inf }", "arguments: x-a: -inf is not a finite number"),
    ],
)
def test_numbers_that_json_has_not_are_mistakes(line: str, told: str) -> None:
    shards = "" if line.startswith("shards") else "shards = 1\n"

    assert mistakes(f'[[exchange]]\nname = "orders"\n{shards}{line}\n') == (f"[[exchange]] 1, 'orders': {told}",)


def test_every_mistake_of_a_file_is_told() -> None:
    lines = mistakes("[[exchange]]\nname = 3\nshards = 0\n[[exchange]]\nname = 'b'\nlanes = 2\nshards = 1\n")

    assert lines == (
        "[[exchange]] 1: name: 3 is not a name",
        "[[exchange]] 1: shards: 0 is not a whole number from 1 to 10000",
        "[[exchange]] 2, 'b': lanes: 2 is not true or false",
    )


def test_mistakes_of_a_file_begin_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    for content, told in (
        (LEAST.replace("4", "0").encode(), f"{file}: [[exchange]] 1, 'orders': shards: 0 is not"),
        (b"[[exchange]", f"{file}: not TOML: "),
        (b"\xff", f"{file}: cannot be read: "),
        (b"a=" + b"[" * 5000, f"{file}: not TOML: "),
    ):
        file.write_bytes(content)
        with pytest.raises(DocumentError) as raised:
            load(file)
        assert raised.value.lines[0].startswith(told)
    with pytest.raises(DocumentError, match="cannot be read"):
        load(tmp_path / "none.toml")


BEYOND_A_SCHEMA = (
    "is the name of",
    "is the queue of",
    "shard 1: lane: ",
    "every shard is retiring",
    "neither in shards nor in retiring",
    "is the number of another",
    "'éé",
    "4.0 is",
    "2.0 is",
)
"""Mistakes between several values, in bytes, or in how a number is written, which no JSON schema can find."""


def test_the_schema_finds_the_mistakes_that_a_schema_can_find() -> None:
    for text, told in MISTAKES:
        beyond = any(each in told for each in BEYOND_A_SCHEMA)
        assert VALIDATOR.is_valid(table(text)) == beyond, (text, told)


def test_the_schema_has_the_keys_and_bounds_of_the_code() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    exchange, shard = (set(SCHEMA["$defs"][name]["properties"]) for name in ("exchange", "shard"))

    for keys, line in ((exchange, 0), (shard, 1)):
        text = f"{LEAST}nonsense = 1\n" if line == 0 else f"{LEAST}[[exchange.shard]]\nnumber = 1\nnonsense = 1\n"
        assert "unknown key 'nonsense'" in mistakes(text)[0]
        for key in keys:
            head = LEAST if line == 0 else f"{LEAST}[[exchange.shard]]\n"
            with_key = table(head)
            target = with_key["exchange"][0] if line == 0 else with_key["exchange"][0]["shard"][0]
            target[key] = object()
            with pytest.raises(DocumentError) as raised:
                parse(with_key)
            assert not any("unknown key" in told for told in raised.value.lines)
    assert SCHEMA["$defs"]["number"]["maximum"] == MAX_SHARDS
    assert VALIDATOR.is_valid(table(LEAST))
