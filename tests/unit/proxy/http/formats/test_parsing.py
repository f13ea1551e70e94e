"""The line and headers of a request are read, and each mistake names its field."""

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from proxy.http.formats.message import Message
from proxy.http.formats.parsing import key_and_properties, name_of, prefers, query_of, refuse_message_headers
from proxy.http.formats.problems import ProblemError
from proxy.wire.properties import PERSISTENT, Header
from tests.unit.proxy.http.sending.published import properties_of

PUBLISH = "/v1/exchanges/orders/publish"


def request(*headers: tuple[str, str], path: str = PUBLISH) -> web.Request:
    return make_mocked_request("POST", path, CIMultiDict(headers))


def message(*headers: tuple[str, str], path: str = PUBLISH) -> Message:
    made = request(*headers, path=path)
    key, properties = key_and_properties(made, query_of(made, {"vhost", "key"}))
    return Message(key, Header.of(properties), b"")


def refused(*headers: tuple[str, str], path: str = PUBLISH) -> str:
    """The detail of the 400."""
    with pytest.raises(ProblemError) as error:
        message(*headers, path=path)
    assert (error.value.status, error.value.kind, error.value.outcome) == (400, "bad-request", "invalid")
    return error.value.detail


# Keys.


def test_routing_keys() -> None:
    assert message().key is None
    assert message(("Routing-Key", "a.b")).key == b"a.b"
    assert message(("routing-key", "")).key == b""
    assert message(("ROUTING-KEY", "ключ")).key == "ключ".encode()
    assert message(path=f"{PUBLISH}?key=a%2Fb%20%C3%A9+c").key == "a/b é c".encode()
    assert message(path=f"{PUBLISH}?key=").key == b""
    assert message(("Routing-Key", "k" * 255)).key == b"k" * 255


@pytest.mark.parametrize("path", [PUBLISH, f"{PUBLISH}?vhost=v"])
def test_routing_keys_that_are_none(path: str) -> None:
    assert refused(("Routing-Key", "k"), ("Routing-Key", "k"), path=path) == "Routing-Key: given twice"
    assert "'kkk" in refused(("Routing-Key", "k" * 256), path=path)
    assert "has 256 bytes, 255 are the most" in refused(("Routing-Key", "é" * 128), path=path)
    both = refused(("Routing-Key", "k"), path=path + ("&" if "?" in path else "?") + "key=k")
    assert both == "key: given in the query and as Routing-Key"
    assert refused(path=f"{PUBLISH}?key=%FF") == "key: b'\\xff' is not UTF-8"
    assert refused(path=f"{PUBLISH}?key={'k' * 256}").startswith("key: 'kkk")


@pytest.mark.parametrize("name", ["Routing-Key", "routing-key", "Amqp-Nonesuch", "AMQP-Type", "amqp-header-a", "Amqp-"])
def test_headers_of_a_single_message_are_refused_elsewhere(name: str) -> None:
    with pytest.raises(ProblemError) as error:
        refuse_message_headers(request(("X-Other", "1"), (name, "1")), "but this is")
    assert (error.value.status, error.value.kind) == (400, "bad-request")
    assert error.value.detail == f"{name}: not taken here; but this is"
    refuse_message_headers(request(("X-Amqp-Type", "1"), ("Routing", "1"), ("Prefer", "return=minimal")), "")


# Properties and headers.


def test_a_message_is_persistent_and_no_more_unless_it_says_so() -> None:
    assert message().header == Header.of(PERSISTENT)
    assert properties_of(message(("Amqp-Delivery-Mode", "1")))["delivery_mode"] == 1


def test_every_property() -> None:
    given = {
        "Content-Type": "text/plain; charset=x",
        "Content-Encoding": "gzip",
        "Amqp-Priority": "9",
        "amqp-correlation-id": "c",
        "Amqp-Reply-To": "r",
        "Amqp-Expiration": "60000",
        "AMQP-MESSAGE-ID": "é",
        "Amqp-Timestamp": "1700000000",
        "Amqp-Type": "",
        "Amqp-App-Id": "a",
        "Amqp-Header-Tenant": "x é",
        "traceparent": "00-1-2-01",
        "TraceState": "a=b",
        "X-Other": "ignored",
    }
    found = properties_of(message(*given.items()))
    assert int(found.pop("timestamp").timestamp()) == 1_700_000_000
    assert found == {
        "content_type": "text/plain; charset=x",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "é",
        "type": "",
        "app_id": "a",
        "headers": {"Tenant": "x é", "traceparent": "00-1-2-01", "tracestate": "a=b"},
    }


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("Amqp-Priority", "256", "Amqp-Priority: '256' is not a whole number from 0 to 255"),
        ("Amqp-Delivery-Mode", "3", "Amqp-Delivery-Mode: '3' is not"),
        ("Amqp-Expiration", "-1", "Amqp-Expiration: '-1' is not"),
        ("Amqp-Timestamp", "now", "Amqp-Timestamp: 'now' is not"),
        ("Amqp-Timestamp", "-1", "Amqp-Timestamp: '-1' is not"),
        ("Amqp-Timestamp", "1.5", "Amqp-Timestamp: '1.5' is not"),
        ("Amqp-Timestamp", "9223372036854775808", "Amqp-Timestamp: '9223372036854775808' is not"),
        ("Amqp-Timestamp", "", "Amqp-Timestamp: '' is not"),
        ("Amqp-Timestamp", "0x10", "Amqp-Timestamp: '0x10' is not"),
        ("Amqp-Message-Id", "x" * 256, "Amqp-Message-Id: "),
        ("Amqp-Correlation-Id", "x" * 256, "Amqp-Correlation-Id: "),
        ("Content-Type", "x" * 256, "Content-Type: "),
        ("Content-Encoding", "x" * 256, "Content-Encoding: "),
        (
            "Amqp-User-Id",
            "guest",
            "Amqp-User-Id: not a property that a message may have; a message header is Amqp-Header-<name>",
        ),
        (
            "Amqp-Nonsense",
            "x",
            "Amqp-Nonsense: not a property that a message may have; a message header is Amqp-Header-<name>",
        ),
        ("Amqp-Header-", "x", "the header's own name has 0 bytes, not 1 to 128"),
        (f"Amqp-Header-{'x' * 129}", "x", "the header's own name has 129 bytes"),
        ("Amqp-Header-CC", "x", "Amqp-Header-CC: asks for copies"),
        ("Amqp-Header-BCC", "x", "Amqp-Header-BCC: asks for copies"),
    ],
)
def test_what_cannot_be_a_property(name: str, value: str, words: str) -> None:
    assert words in refused((name, value))


@pytest.mark.parametrize(
    "name", ["Content-Type", "Amqp-Message-Id", "Amqp-Delivery-Mode", "Amqp-Header-a", "traceparent"]
)
def test_nothing_is_given_twice(name: str) -> None:
    assert refused((name, "1"), (name, "1")) == f"{name}: given twice"


def test_several_lists_of_a_trace_are_one() -> None:
    given = [("tracestate", "a=1"), ("traceparent", "00-1-2-01"), ("Tracestate", "b=2,c=3"), ("tracestate", "")]
    headers = properties_of(message(*given))["headers"]
    assert headers == {"tracestate": "a=1,b=2,c=3,", "traceparent": "00-1-2-01"}


@pytest.mark.parametrize("name", ["traceparent", "tracestate"])
def test_a_trace_is_given_in_one_way(name: str) -> None:
    twice = [(name, "x"), (f"Amqp-Header-{name}", "x")]
    assert refused(*twice) == refused(*reversed(twice)) == f"Amqp-Header-{name}: given as {name} too"


def test_headers_that_differ_in_case_are_two() -> None:
    assert properties_of(message(("Amqp-Header-a", "1"), ("Amqp-Header-A", "2")))["headers"] == {"a": "1", "A": "2"}


def test_a_clients_own_stamps_are_dropped() -> None:
    names = ("x-ring-exchange", "x-ring-routing-key", "x-ring-id")
    assert message(*((f"Amqp-Header-{name}", "forged") for name in names)).header == Header.of(PERSISTENT)


# HostNames.


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/exchanges/orders/publish", ("default", "orders")),
        ("/v1/exchanges/a%2Fb%20c/publish", ("default", "a/b c")),
        ("/v1/exchanges/%C3%A9+%25/publish?vhost=%2F", ("/", "é+%")),
        ("/v1/exchanges/x/publish?vhost=", ("", "x")),
        ("/v1/exchanges/x/publish?vhost=a%26b+c", ("a&b c", "x")),
    ],
)
def test_names(path: str, name: tuple[str, str]) -> None:
    made = request(path=path)
    assert name_of(made, query_of(made, {"vhost"}), "default") == name


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/exchanges/%FF/publish", 400, "exchange: b'\\xff' is not UTF-8"),
        ("/v1/exchanges/x/publish?vhost=%FF", 400, "vhost: b'\\xff' is not UTF-8"),
        (f"/v1/exchanges/{'x' * 256}/publish", 400, "exchange: "),
        (f"/v1/exchanges/{'%C3%A9' * 128}/publish", 400, "exchange: "),
        (f"/v1/exchanges/x/publish?vhost={'x' * 256}", 400, "vhost: "),
        ("/v1/exchanges/amq.default/publish", 404, "exchange: 'amq.default'"),
        ("/v1/exchanges/%2E%2E/publish", 404, "exchange: '..'"),
        ("/v1/exchanges/x/publish?vhost=..", 404, "vhost: '..'"),
    ],
)
def test_names_that_are_none(path: str, status: int, words: str) -> None:
    made = request(path=path)
    with pytest.raises(ProblemError) as error:
        name_of(made, query_of(made, {"vhost"}), "default")
    assert error.value.status == status
    assert error.value.detail.startswith(words)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), st.text(st.characters(codec="utf-8"), max_size=40)
)
def test_any_name_survives_its_encoding(exchange: str, vhost: str) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in exchange.encode())
    made = request(path=f"/v1/exchanges/{quoted}/publish?vhost={''.join(f'%{byte:02X}' for byte in vhost.encode())}")
    if {exchange, vhost} & {".", ".."} or exchange == "amq.default":
        return
    assert name_of(made, query_of(made, {"vhost"}), "default") == (vhost, exchange)


# The query.


def test_the_query_takes_what_it_knows_once() -> None:
    made = request(path=f"{PUBLISH}?key=a&vhost=b")
    assert query_of(made, {"vhost", "key"}) == {"key": "a", "vhost": "b"}
    assert query_of(request(), {"vhost"}) == {}
    for path, words in (
        ("?key=a", "query parameter 'key': not one of vhost"),
        ("?vhost=a&vhost=a", "query parameter 'vhost': given twice"),
        ("?=a", "query parameter '': not one of vhost"),
        ("?%FF=", "query parameter"),
        (f"?{'x' * 1000}=", f"query parameter '{'x' * 60}': not one of"),
    ):
        with pytest.raises(ProblemError, match=words):
            query_of(request(path=PUBLISH + path), {"vhost"})


# Preferences.


@pytest.mark.parametrize(
    ("values", "minimal", "representation"),
    [
        ([], False, False),
        (["return=minimal"], True, False),
        (["respond-async, Return=Minimal;a=b"], True, False),
        (["wait=5", "return=representation"], False, True),
        (["return=minimalistic", "xreturn=minimal"], False, False),
    ],
)
def test_preferences(values: list[str], minimal: bool, representation: bool) -> None:
    made = request(*(("Prefer", value) for value in values))
    assert (prefers(made, "minimal"), prefers(made, "representation")) == (minimal, representation)
