"""Items of a batch, field by field, to messages; and what is said of those that are none."""

import functools
import json
from datetime import UTC, datetime

import pytest

from proxy.http.formats.fields import ItemError, message_of
from proxy.http.formats.message import Message
from proxy.http.formats.scanning import Item
from proxy.wire.properties import PERSISTENT, Header
from tests.unit.proxy.http.sending.published import properties_of


@pytest.mark.parametrize("key", ["k", "", "ключ", "k" * 255, "ß" * 127])
@pytest.mark.parametrize("payload", ["x", "", "😀\n"])
def test_a_key_and_a_payload(key: str, payload: str) -> None:
    expected = Message(key.encode(), Header.of(PERSISTENT), payload.encode())
    assert message_of({"key": key, "payload": payload}) == (None, expected)
    assert message_of({"id": "7", "key": key, "payload": payload}) == ("7", expected)


def test_no_key_is_none() -> None:
    assert message_of({"payload": "x"}) == (None, Message(None, Header.of(PERSISTENT), b"x"))
    assert message_of({"payload": "x", "id": "ä"}) == ("ä", Message(None, Header.of(PERSISTENT), b"x"))


PAYLOADS = {
    "text": ({"payload": "x"}, b"x", None),
    "said to be text": ({"payload": "x", "payload_encoding": "string"}, b"x", None),
    "base64": ({"payload": "AP+/", "payload_encoding": "base64"}, b"\x00\xff\xbf", None),
    "padded": ({"payload": "AA==", "payload_encoding": "base64"}, b"\x00", None),
    "no base64": ({"payload": "", "payload_encoding": "base64"}, b"", None),
    "JSON": (
        {"payload": {"b": [1, 2.5, None, True], "a": "ß"}, "payload_encoding": "json"},
        '{"b":[1,2.5,null,true],"a":"ß"}'.encode(),
        "application/json",
    ),
    "null": ({"payload": None, "payload_encoding": "json"}, b"null", "application/json"),
    "JSON of a type": (
        {"payload": "a", "payload_encoding": "json", "content_type": "application/x+json"},
        b'"a"',
        "application/x+json",
    ),
    "JSON of a type in the properties": (
        {"payload": 1, "payload_encoding": "json", "properties": {"content_type": "a/b"}},
        b"1",
        "a/b",
    ),
}


@pytest.mark.parametrize(("item", "body", "content_type"), PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_in_each_encoding(item: Item, body: bytes, content_type: str | None) -> None:
    message = message_of(item)[1]
    assert message.body == body
    assert properties_of(message).get("content_type") == content_type


def test_properties_and_headers() -> None:
    item = {
        "payload": "x",
        "content_type": "text/plain",
        "headers": {"s": "ß", "i": 1, "l": 1 << 40, "b": True, "f": 0.5, "n": None, "a": [1, "x"], "o": {"k": "v"}},
        "properties": {
            "content_encoding": "br",
            "delivery_mode": 1,
            "priority": 5,
            "correlation_id": "c",
            "reply_to": "r",
            "expiration": 60000,
            "message_id": "m",
            "timestamp": 1_700_000_000,
            "type": "t",
            "app_id": "a",
        },
    }
    read = properties_of(message_of(json.loads(json.dumps(item)))[1])
    assert read == {
        **item["properties"],  # type: ignore[dict-item]
        "content_type": "text/plain",
        "expiration": "60000",
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC),
        "headers": item["headers"],
    }


def test_headers_may_be_among_the_properties() -> None:
    read = properties_of(message_of({"payload": "x", "properties": {"headers": {"a": 1}}})[1])
    assert read == {"delivery_mode": 2, "headers": {"a": 1}}


def test_the_headers_of_the_proxy_are_dropped() -> None:
    stamps: dict[str, object] = {"x-ring-exchange": "e", "x-ring-routing-key": "k", "x-ring-id": 1}
    read = properties_of(message_of({"payload": "x", "headers": {**stamps, "x-ring-other": 1}})[1])
    assert read == {"delivery_mode": 2, "headers": {"x-ring-other": 1}}
    assert message_of({"payload": "x", "headers": stamps})[1].header == Header.of(PERSISTENT)


AS_ONE = ' is not a string; send it as one, or set payload_encoding to "json"'

WRONG: dict[str, tuple[Item, str]] = {
    "an unknown field": ({"colour": 1}, "colour: unknown field"),
    "the first of unknown fields": ({"z": 1, "payloads": ""}, "payloads: unknown field"),
    "no payload": ({"payload_encoding": "json"}, "payload: missing"),
    "a payload that is no text": ({"payload": {"a": 1}}, f"payload: an object{AS_ONE}"),
    "a payload that is a number": ({"payload": 5}, f"payload: 5{AS_ONE}"),
    "a payload that is null": ({"payload": None, "payload_encoding": "string"}, f"payload: None{AS_ONE}"),
    "half a character": ({"payload": "a\ud800"}, "payload: 'a\\ud800' is not Unicode text"),
    "half a character in JSON": (
        {"payload": ["\ud800"], "payload_encoding": "json"},
        r"payload: '[\"\\ud800\"]' is not Unicode text".replace(r"\"", '"').replace(r"\\", "\\"),
    ),
    "infinite JSON": (
        {"payload": [json.loads("1e999")], "payload_encoding": "json"},
        "payload: a number in it is too large",
    ),
    "an unknown encoding": (
        {"payload": "", "payload_encoding": "hex"},
        "payload_encoding: 'hex' is not one of string, base64, json",
    ),
    "an encoding that is no text": (
        {"payload": "", "payload_encoding": ["json"]},
        "payload_encoding: a list is not one of string, base64, json",
    ),
    "no base64": ({"payload": "AA_A", "payload_encoding": "base64"}, "payload: not base64 at character 2, '_'"),
    "base64 in lines": (
        {"payload": "AA\nAA", "payload_encoding": "base64"},
        "payload: not base64 at character 2, '\\n'",
    ),
    "base64 not padded": ({"payload": "AAA", "payload_encoding": "base64"}, "payload: not base64: Incorrect padding"),
    "base64 behind padding": (
        {"payload": "AA==AAAA", "payload_encoding": "base64"},
        "payload: not base64: Excess data after padding",
    ),
    "base64 of no text": ({"payload": 5, "payload_encoding": "base64"}, "payload: 5 is not a string"),
    "a content type of no text": ({"payload": "", "content_type": 5}, "content_type: 5 is not a string"),
    "two content types": (
        {"payload": "", "content_type": "a/b", "properties": {"content_type": "a/b"}},
        "content_type: given twice, here and in properties",
    ),
    "headers twice": (
        {"payload": "", "headers": {}, "properties": {"headers": {}}},
        "headers: given twice, here and in properties",
    ),
    "headers that are none": ({"payload": "", "headers": []}, "headers: not an object"),
    "other headers that are none": (
        {"payload": "", "properties": {"headers": 1}},
        "properties.headers: not an object",
    ),
    "copies": (
        {"payload": "", "headers": {"CC": ["q"]}},
        "headers: CC: asks for copies in other queues, which a ring cannot give; leave it out",
    ),
    "hidden copies": (
        {"payload": "", "properties": {"headers": {"BCC": ["q"]}}},
        "properties.headers: BCC: asks for copies in other queues, which a ring cannot give; leave it out",
    ),
    "a header that is too large": (
        {"payload": "", "headers": {"a": 1 << 70}},
        f"headers: a: {1 << 70} does not fit 64 bits",
    ),
    "a header without name": ({"payload": "", "headers": {"": 1}}, "headers: the name '' has 0 bytes, not 1 to 128"),
    "properties that are none": ({"payload": "", "properties": "x"}, "properties: not an object"),
    "an unknown property": ({"payload": "", "properties": {"colour": 1}}, "properties.colour: unknown field"),
    "the broker's property": (
        {"payload": "", "properties": {"cluster_id": "x"}},
        "properties.cluster_id: unknown field",
    ),
    "a user": (
        {"payload": "", "properties": {"user_id": "guest"}},
        "properties.user_id: not taken: RabbitMQ accepts only the name of the user who publishes",
    ),
    "a priority out of range": (
        {"payload": "", "properties": {"priority": 300}},
        "properties.priority: 300 is not a whole number from 0 to 255",
    ),
    "a delivery mode out of range": (
        {"payload": "", "properties": {"delivery_mode": True}},
        "properties.delivery_mode: True is not a whole number from 1 to 2",
    ),
    "a long type": (
        {"payload": "", "properties": {"type": "t" * 256}},
        f"properties.type: '{'t' * 56}... has 256 bytes, 255 are the most",
    ),
}


@pytest.mark.parametrize(("item", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_an_item(item: Item, text: str) -> None:
    with pytest.raises(ItemError) as raised:
        message_of({"id": "7", "key": "kä", **item})
    assert str(raised.value) == text
    assert (raised.value.id, raised.value.key) == ("7", "kä".encode())


@pytest.mark.parametrize("key", [7, None, "k" * 256, "ß" * 128, "\ud800"])
def test_a_key_that_is_none(key: object) -> None:
    with pytest.raises(ItemError, match=r"^key: ") as raised:
        message_of({"id": "7", "key": key, "payload": "x"})
    assert (raised.value.id, raised.value.key) == ("7", None)


def test_a_key_that_is_missing_is_not_one_that_is_none() -> None:
    for item in ({"payload": 5}, {"payload": "\ud800"}, {"payload": "x", "colour": 1}):
        with pytest.raises(ItemError) as raised:
            message_of(item)
        assert raised.value.key == b""


@pytest.mark.parametrize("own_id", [7, None, "i" * 256, "\ud800"])
def test_an_id_that_is_none(own_id: object) -> None:
    with pytest.raises(ItemError, match=r"^id: ") as raised:
        message_of({"id": own_id, "key": "k", "payload": "x"})
    assert (raised.value.id, raised.value.key) == (None, b"k")


def test_half_a_character_where_nothing_else_is_special() -> None:
    with pytest.raises(ItemError, match=r"^payload: not Unicode text$") as raised:
        message_of({"id": "7", "key": "k", "payload": "a\ud800"})
    assert (raised.value.id, raised.value.key) == ("7", b"k")


def test_a_payload_nested_too_deeply_to_write() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ItemError, match=r"^payload: nested too deeply$"):
        message_of({"payload": deep, "payload_encoding": "json"})


FIELDS = ("id", "key", "payload", "payload_encoding", "content_type", "headers", "properties")


@functools.cache
def nested(make: type) -> object:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep] if make is list else {"a": deep}
    return deep


@pytest.mark.parametrize("name", [*FIELDS, "priority", "type", "timestamp", "header"])
@pytest.mark.parametrize("make", [list, dict])
def test_what_is_nested_deeply_is_not_shown(name: str, make: type) -> None:
    deep = nested(make)
    item: Item = {"key": "k", "payload": "x"}
    if name in FIELDS:
        item[name] = deep
    else:
        item["properties"] = {"headers": {"a": deep}} if name == "header" else {name: deep}
    with pytest.raises(ItemError) as raised:
        message_of(item)
    assert len(str(raised.value)) < 200


def test_headers_nested_too_deeply() -> None:
    deep: object = 1
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(ItemError, match=r"lie more than 16 deep$"):
        message_of({"payload": "", "headers": deep})
