"""CloudEvents as the official SDK writes them, and as nobody should, to messages."""

import base64
import functools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.amqp import AMQPMessage, from_binary_event
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.formats.cloudevents import Form, binary, form_of, identity_of, message_of, structured
from proxy.http.formats.fields import ItemError
from proxy.http.formats.message import Message
from tests.unit.proxy.http.sending.published import properties_of

EVENT: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
HEADERS = {f"ce-{name}": value for name, value in EVENT.items()}


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def from_json(**members: object) -> Message:
    """Return the message of an event in structured mode."""
    return structured(json.dumps(EVENT | members).encode())


def from_headers(body: bytes = b"", **headers: str) -> Message:
    """Return the message of an event in binary mode; `_` stands for `-` in the names."""
    return binary(raw(HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}), body)


def received(message: Message) -> CloudEvent:
    """As the SDK understands the message, by its AMQP binding."""
    properties = properties_of(message)
    kept = {"content-type": properties["content_type"]} if "content_type" in properties else {}
    event = from_binary_event(AMQPMessage(kept, properties["headers"], message.body))
    assert isinstance(event, CloudEvent)
    return event


# Events of the SDK

SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "a JSON object": ({"datacontenttype": "application/json"}, {"a": ["ß", 1, None]}),
    "text": ({"datacontenttype": "text/plain; charset=utf-8"}, "just ß text"),
    "bytes": ({"datacontenttype": "application/octet-stream"}, b"\x00\xff"),
    "no data": ({}, None),
    "every attribute": (
        {
            "datacontenttype": "application/vnd.x+json",
            "dataschema": "https://example.com/schema#1",
            "subject": 'a "quoted" 100% ß😀 subject',
            "time": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
            "partitionkey": "ключ",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        },
        {"a": 1},
    ),
}


@pytest.mark.parametrize(("attributes", "data"), SENT.values(), ids=SENT)
@pytest.mark.parametrize("structured_mode", [False, True])
def test_what_the_sdk_sends_is_what_the_sdk_receives(
    attributes: dict[str, Any], data: Any, structured_mode: bool
) -> None:
    event = CloudEvent({"id": "1", "source": "/s", "type": "t", **attributes}, data)
    request: HTTPMessage = to_structured_event(event) if structured_mode else to_binary_event(event)
    form = form_of(request.headers.get("content-type", ""))
    assert form is (Form.STRUCTURED if structured_mode else Form.BINARY)
    message = structured(request.body) if structured_mode else binary(raw(request.headers), request.body)
    assert message.key == (attributes["partitionkey"].encode() if "partitionkey" in attributes else None)
    understood = received(message)
    assert understood.get_attributes() == event.get_attributes()
    if isinstance(data, bytes):
        assert message.body == data
    else:
        assert understood.get_data() == data


def test_both_forms_give_the_same_message() -> None:
    attributes, data = SENT["every attribute"]
    event = CloudEvent({"id": "1", "source": "/s", "type": "t", **attributes}, json.dumps(data))
    one = binary(raw(to_binary_event(event).headers), b'{"a":1}')
    other = structured(to_structured_event(CloudEvent(event.get_attributes(), data)).body)
    assert (one.key, properties_of(one), one.body) == (other.key, properties_of(other), other.body)


# The examples of the JSON format's section 3.2.

EXAMPLE = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "source": "/mycontext",
    "id": "A234-1234-1234",
    "time": "2018-04-05T17:31:00Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "unsetextension": None,
}

FORMAT = {
    "base64": (
        {"datacontenttype": "application/vnd.apache.thrift.binary", "data_base64": "AP8="},
        b"\x00\xff",
        "application/vnd.apache.thrift.binary",
    ),
    "text": (
        {"datacontenttype": "application/xml", "data": '<much wow="xml"/>'},
        b'<much wow="xml"/>',
        "application/xml",
    ),
    "JSON": (
        {"datacontenttype": "application/json", "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": True}},
        b'{"appinfoA":"abc","appinfoB":123,"appinfoC":true}',
        "application/json",
    ),
    "JSON without its type": ({"data": "I'm just a string"}, b'"I\'m just a string"', "application/json"),
    "null": ({"data": None}, b"null", "application/json"),
    "another JSON": ({"datacontenttype": "Text/X+JSON ;a=b", "data": "x"}, b'"x"', "Text/X+JSON ;a=b"),
    "not quite JSON": ({"datacontenttype": "text/json-seq", "data": "x"}, b"x", "text/json-seq"),
    "no text where text is due": ({"datacontenttype": "text/plain", "data": [1, 2]}, b"[1,2]", "text/plain"),
    "base64 of an unknown type": ({"data_base64": "AP8="}, b"\x00\xff", None),
    "an unset type": ({"datacontenttype": None, "data": 1}, b"1", "application/json"),
    "nothing": ({}, b"", None),
    "nothing, explicitly": ({"data_base64": None, "datacontenttype": "text/plain"}, b"", "text/plain"),
}


@pytest.mark.parametrize(("members", "body", "content_type"), FORMAT.values(), ids=FORMAT)
def test_data_in_the_json_format(members: dict[str, object], body: bytes, content_type: str | None) -> None:
    message = structured(json.dumps(EXAMPLE | members).encode())
    properties = properties_of(message)
    assert message.body == body
    assert properties.pop("content_type", None) == content_type
    assert properties == {
        "delivery_mode": 2,
        "message_id": "A234-1234-1234",
        "headers": {f"cloudEvents_{name}": value for name, value in EXAMPLE.items() if value is not None},
    }


def test_attributes_keep_their_types_in_json_and_are_strings_in_headers() -> None:
    values = {"yes": True, "no": False, "least": -(1 << 31), "most": (1 << 31) - 1, "nothing": ""}
    headers = properties_of(from_json(**values))["headers"]
    assert {name: headers[f"cloudEvents_{name}"] for name in values} == values
    assert type(headers["cloudEvents_yes"]) is bool
    headers = properties_of(from_headers(ce_yes="true", ce_most="2147483647"))["headers"]
    assert (headers["cloudEvents_yes"], headers["cloudEvents_most"]) == ("true", "2147483647")


def test_the_body_in_binary_mode_is_as_it_is() -> None:
    message = from_headers(b"\x00\xff{", content_type="application/json", content_encoding="br", accept="*/*")
    properties = properties_of(message)
    assert message.body == b"\x00\xff{"
    assert (properties["content_type"], properties["content_encoding"]) == ("application/json", "br")
    assert set(properties["headers"]) == {f"cloudEvents_{name}" for name in EVENT}


def test_a_long_id_is_no_message_id() -> None:
    for length, kept in ((255, True), (256, False)):
        properties = properties_of(from_json(id="i" * length))
        assert properties["headers"]["cloudEvents_id"] == "i" * length
        assert ("message_id" in properties) is kept


def test_a_key_that_is_missing_and_one_that_is_none() -> None:
    for members, key in (
        ({}, b""),
        ({"partitionkey": None}, b""),
        ({"partitionkey": 5}, None),
        ({"partitionkey": ""}, None),
    ):
        with pytest.raises(ItemError) as raised:
            message_of(EVENT | {"ext": []} | members)
        assert raised.value.key == key


def test_the_trace_of_a_request_goes_along() -> None:
    given = raw(HEADERS | {"ce-traceparent": "the event's own", "TraceParent": "00-1-2-01", "tracestate": "a=1"})
    headers = properties_of(binary([*given, (b"Tracestate", b"b=%41, c=3")], b""))["headers"]
    assert {name: value for name, value in headers.items() if "trace" in name} == {
        "cloudEvents_traceparent": "the event's own",
        "traceparent": "00-1-2-01",
        "tracestate": "a=1,b=%41, c=3",
    }


def test_the_trace_of_a_request_goes_along_with_a_structured_event() -> None:
    trace = [(b"TraceParent", b"00-1-2-01"), (b"tracestate", b"a=1"), (b"Tracestate", b"b=2"), (b"ce-id", b"none")]
    headers = properties_of(structured(json.dumps(EVENT).encode(), trace))["headers"]
    assert {name: value for name, value in headers.items() if name in ("traceparent", "tracestate")} == {
        "traceparent": "00-1-2-01",
        "tracestate": "a=1,b=2",
    }
    assert headers["cloudEvents_id"] == "1"

    own = properties_of(structured(json.dumps(EVENT | {"traceparent": "its own"}).encode(), trace))["headers"]
    assert {name: value for name, value in own.items() if "trace" in name} == {
        "cloudEvents_traceparent": "its own",
        "tracestate": "a=1,b=2",
    }

    for wrong, text in (
        ([*trace, (b"traceparent", b"1")], "traceparent: given twice"),
        ([(b"tracestate", b"\xe4")], "tracestate: b'\\xe4' is not UTF-8"),
    ):
        with pytest.raises(ItemError) as raised:
            structured(json.dumps(EVENT | {"partitionkey": "k"}).encode(), wrong)
        assert (str(raised.value), raised.value.id, raised.value.key) == (text, "1", b"k")


def test_a_source_and_an_id_together_are_an_events_identity() -> None:
    named = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "c"), ("ä" * 100_000, "b"), ("ä" * 100_001, "b")]
    identities = [identity_of({"source": source, "id": id_}) for source, id_ in named]
    assert len(set(identities)) == len(named)
    assert identity_of(EVENT | {"id": "b", "source": "a", "data": 1}) == identities[0]
    # They are kept of all events of a batch.
    assert {len(identity) for identity in identities} == {16}


# HTTP binding, section 3.1.3.2.

VALUES = {
    "Euro%20%E2%82%AC%20%F0%9F%98%80": "Euro € 😀",
    "Euro%20%e2%82%ac": "Euro €",
    "%41b": "Ab",
    "a%2541": "a%41",
    "100%": "100%",
    '"two words"': "two words",
    r'"a \"quote\" and \\ more%20"': r'a "quote" and \ more ',
    '"': '"',
    'in "the" middle': 'in "the" middle',
    "ß": "ß",
}


@pytest.mark.parametrize(("value", "text"), VALUES.items())
def test_values_of_http_headers(value: str, text: str) -> None:
    assert properties_of(from_headers(CE_Subject=value))["headers"]["cloudEvents_subject"] == text


ALLOWED = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1)


@given(ALLOWED)
def test_any_text_goes_through_both_forms(text: str) -> None:
    event = CloudEvent({"id": "1", "source": "/s", "type": "t", "other": text})
    for message in (binary(raw(to_binary_event(event).headers), b""), structured(to_structured_event(event).body)):
        assert properties_of(message)["headers"]["cloudEvents_other"] == text


# Content types.


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("", Form.BINARY),
        ("application/json", Form.BINARY),
        ("text/plain; x=application/cloudevents", Form.BINARY),
        ("application/cloudevents+json", Form.STRUCTURED),
        ("Application/CloudEvents+JSON ; charset=utf-8", Form.STRUCTURED),
        ("application/cloudevents-batch+json; charset=UTF-8", Form.BATCHED),
    ],
)
def test_the_form_of_a_request(content_type: str, form: Form) -> None:
    assert form_of(content_type) is form


@pytest.mark.parametrize("media_type", ["", "+avro", "-batch", "-batch+avro", "+jsonx", "+json+x"])
def test_forms_that_are_not_known(media_type: str) -> None:
    known = r"is neither application/cloudevents\+json nor application/cloudevents-batch\+json$"
    with pytest.raises(ValueError, match=known):
        form_of(f"application/cloudevents{media_type}; charset=utf-8")


# Mistakes

WRONG: dict[str, tuple[dict[str, object], str]] = {
    "another version": ({"specversion": "0.3"}, "specversion: '0.3' is not '1.0'"),
    "a version of a number": ({"specversion": 1.0}, "specversion: 1.0 is not a string"),
    "no id": ({"id": None}, "id: missing"),
    "an empty id": ({"id": ""}, "id: empty"),
    "an id of a number": ({"id": 5}, "id: 5 is not a string"),
    "no source": ({"source": None}, "source: missing"),
    "an empty source": ({"source": ""}, "source: empty"),
    "an empty type": ({"type": ""}, "type: empty"),
    "an empty subject": ({"subject": ""}, "subject: empty"),
    "an empty schema": ({"dataschema": ""}, "dataschema: empty"),
    "an empty content type": ({"datacontenttype": ""}, "datacontenttype: empty"),
    "a content type of a number": ({"datacontenttype": 1, "data": ""}, "datacontenttype: 1 is not a string"),
    "a long content type": (
        {"datacontenttype": "t" * 256},
        f"datacontenttype: '{'t' * 56}... has 256 bytes, 255 are the most",
    ),
    "an upper-case name": ({"someName": "x"}, "someName: an attribute's name has lower-case letters and digits only"),
    "a name with a dash": ({"a-b": "x"}, "a-b: an attribute's name has lower-case letters and digits only"),
    "no name": ({"": "x"}, ": an attribute's name has lower-case letters and digits only"),
    "a name of other letters": ({"ß": "x"}, "ß: an attribute's name has lower-case letters and digits only"),
    "a long name": (
        {"a" * 117: "x"},
        f"the name 'cloudEvents_{'a' * 44}... has 129 bytes, not 1 to 128",
    ),
    "a fraction": ({"ext": 1.5}, "ext: 1.5 is neither a string nor true, false or an integer of 32 bits"),
    "a large integer": (
        {"ext": 1 << 31},
        "ext: 2147483648 is neither a string nor true, false or an integer of 32 bits",
    ),
    "a list": ({"ext": []}, "ext: a list is neither a string nor true, false or an integer of 32 bits"),
    "a control character": ({"ext": "a\x85"}, "ext: '\\x85' is not allowed in it"),
    "half a character": ({"ext": "\ud800"}, "ext: '\\ud800' is not Unicode text"),
    "half a character as id": ({"id": "\ud800"}, "id: '\\ud800' is not Unicode text"),
    "a key of a number": ({"partitionkey": 5}, "partitionkey: 5 is not a string"),
    "an empty key": ({"partitionkey": ""}, "partitionkey: empty"),
    "a long key": ({"partitionkey": "ß" * 128}, f"partitionkey: '{'ß' * 56}... has 256 bytes, 255 are the most"),
    "data twice": ({"data": 1, "data_base64": "AA=="}, "data: given twice, here and as data_base64"),
    "no base64": ({"data_base64": "-"}, "data_base64: not base64 at character 0, '-'"),
    "base64 of a number": ({"data_base64": 5}, "data_base64: 5 is not a string"),
    "data with half a character": ({"data": "\ud800"}, "data: '\"\\ud800\"' is not Unicode text"),
}


@functools.cache
def nested() -> object:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("name", [*EVENT, "datacontenttype", "partitionkey", "time", "ext", "data", "data_base64"])
def test_what_is_nested_deeply_is_not_shown(name: str) -> None:
    with pytest.raises(ItemError) as raised:
        message_of(EVENT | {"datacontenttype": "text/plain"} | {name: nested()})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(("members", "text"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_an_event(members: dict[str, object], text: str) -> None:
    event = EVENT | {"id": "7", "partitionkey": "k"} | members
    with pytest.raises(ItemError) as raised:
        structured(json.dumps(event).encode())
    assert str(raised.value) == text
    assert raised.value.id == (None if "id" in members else "7")
    assert raised.value.key == (None if "partitionkey" in members else b"k")


WRONG_HEADERS: dict[str, tuple[list[tuple[bytes, bytes]], str]] = {
    "another version": ([(b"ce-specversion", b"0.3")], "ce-specversion: given twice"),
    "twice": ([(b"CE-ID", b"2")], "ce-id: given twice"),
    "two content types": ([(b"content-type", b"a/b"), (b"Content-Type", b"a/b")], "content-type: given twice"),
    "two traces": ([(b"traceparent", b"1"), (b"Traceparent", b"1")], "traceparent: given twice"),
    "a trace in another encoding": ([(b"tracestate", b"\xe4")], "tracestate: b'\\xe4' is not UTF-8"),
    "no content type": ([(b"content-type", b"")], "content-type: empty"),
    "a long encoding": (
        [(b"content-encoding", b"x" * 256)],
        f"content_encoding: '{'x' * 56}... has 256 bytes, 255 are the most",
    ),
    "a content type by name": (
        [(b"ce-datacontenttype", b"a/b")],
        "ce-datacontenttype: not an attribute of an event",
    ),
    "data as an attribute": ([(b"ce-data", b"a/b")], "ce-data: not an attribute of an event"),
    "no name": ([(b"ce-", b"x")], "ce-: an attribute's name has lower-case letters and digits only"),
    "a name with a dash": ([(b"ce-a-b", b"x")], "ce-a-b: an attribute's name has lower-case letters and digits only"),
    "an empty time": ([(b"ce-time", b"")], "ce-time: empty"),
    "overlong UTF-8": ([(b"ce-subject", b"%C0%A0")], "ce-subject: b'%C0%A0' is not UTF-8"),
    "another encoding": ([(b"ce-subject", b"\xe4")], "ce-subject: b'\\xe4' is not UTF-8"),
    "a control character": ([(b"ce-subject", b"%0A")], "ce-subject: '\\n' is not allowed in it"),
}


@pytest.mark.parametrize(("headers", "text"), WRONG_HEADERS.values(), ids=WRONG_HEADERS)
def test_what_is_wrong_with_headers(headers: list[tuple[bytes, bytes]], text: str) -> None:
    with pytest.raises(ItemError) as raised:
        binary([*raw(HEADERS), *headers], b"")
    assert str(raised.value) == text
    assert raised.value.id == "1"


@pytest.mark.parametrize("name", EVENT)
def test_a_required_header_is_missing(name: str) -> None:
    with pytest.raises(ItemError, match=rf"^ce-{name}: missing$"):
        binary(raw({header: value for header, value in HEADERS.items() if header != f"ce-{name}"}), b"")


BODIES = {
    b"": r"body: Expecting value: line 1 column 1 \(char 0\)",
    b"[1": "body: Expecting ',' delimiter: .*",
    b"\xff": "body: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    b"\xef\xbb\xbf[]": "body: Unexpected UTF-8 BOM .*",
    b"[NaN]": "body: NaN is not JSON",
    b"[" * 100_000: "body: nested too deeply",
    b"7" * 5000: "body: a number is too long",
    b'{"id": "1", "source": "/", "id": "2"}': "body: 'id' stands twice in one object",
    b'{"data": {"a": 1, "a": 1}}': "body: 'a' stands twice in one object",
}


@pytest.mark.parametrize(("body", "text"), BODIES.items(), ids=range(len(BODIES)))
def test_bodies_that_are_not_json(body: bytes, text: str) -> None:
    with pytest.raises(ItemError, match=f"^{text}$"):
        structured(body)


def test_bodies_of_many_small_values() -> None:
    body = json.dumps(EVENT | {"data": [{}] * 100_000}).encode()
    with pytest.raises(ItemError, match=r"^body: has more than 262144 characters outside its strings$") as raised:
        structured(body)
    assert raised.value.too_large


def test_long_data() -> None:
    assert from_json(datacontenttype="text/plain", data='{"a":[1,2]}' * 100_000).body == b'{"a":[1,2]}' * 100_000


def test_bodies_of_another_kind() -> None:
    with pytest.raises(ItemError, match=r"^event: not an object$"):
        structured(json.dumps([EVENT]).encode())


TIMES = ["2018-04-05T17:31:00Z", "2018-04-05t17:31:00.123456789z", "2016-12-31T23:59:60Z", "2020-02-29T00:00:00+23:59"]
NO_TIMES = [
    "now",
    "2018-04-05",
    "2018-04-05 17:31:00Z",
    "2018-04-05T17:31:00",
    "2018-04-05T24:00:00Z",
    "2018-04-05T17:31:00.Z",
    "2018-04-05T17:31:00+0100",
    "2019-02-29T00:00:00Z",
    "2018-13-01T00:00:00Z",
    "٢018-04-05T17:31:00Z",
]


@pytest.mark.parametrize("time", TIMES)
def test_times(time: str) -> None:
    assert properties_of(from_json(time=time))["headers"]["cloudEvents_time"] == time


@pytest.mark.parametrize("time", NO_TIMES)
def test_what_is_no_time(time: str) -> None:
    with pytest.raises(ItemError, match=r"^time: .* is not a time as in RFC 3339$"):
        from_json(time=time)


@given(st.binary())
def test_any_bytes_go_through_base64(data: bytes) -> None:
    assert from_json(data_base64=base64.b64encode(data).decode()).body == data
