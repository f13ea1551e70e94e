"""Which exchanges are routed, shadowed and passed, by the patterns of their names."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.settings.patterns import Mode, Selection, named


def matches(pattern: str, vhost: str, exchange: str) -> bool:
    return Selection([pattern], [], []).mode(vhost, exchange) is Mode.ROUTE


def test_pass_wins_over_shadow_and_shadow_over_route() -> None:
    selection = Selection(["*"], ["s*", "both"], ["p*", "both", "sp"])
    assert selection.mode("/", "x") is Mode.ROUTE
    assert selection.mode("/", "s1") is Mode.SHADOW
    assert selection.mode("/", "p1") is Mode.PASS
    assert selection.mode("/", "both") is Mode.PASS
    assert selection.mode("/", "sp") is Mode.PASS


def test_only_a_name_in_route_names_an_exchange_to_be_routed() -> None:
    selection = Selection(["*", "a", "v*/b", "c?", "s", "p"], ["s"], ["p"])
    named = [selection.routes_by_name(*each) for each in (("/", "a"), ("v1", "b"), ("w", "b"), ("/", "cc"), ("/", "x"))]
    assert named == [True, True, False, False, False]
    assert not selection.routes_by_name("/", "s")
    assert not selection.routes_by_name("/", "p")


def test_what_matches_nothing_is_passed() -> None:
    assert Selection([], [], []).mode("/", "x") is Mode.PASS
    assert Selection(["a"], ["b"], ["c"]).mode("/", "x") is Mode.PASS


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (pattern, name, expected)
        for pattern, yes, no in [
            ("*", [("/", "a"), ("v", "a/b"), ("a/b", ""), ("/", "new\nline")], []),
            ("orders", [("/", "orders"), ("v", "orders")], [("/", "orders2"), ("/", "Orders"), ("orders", "x")]),
            ("orders.*", [("/", "orders."), ("/", "orders.a/b")], [("/", "ordersx"), ("/", "xorders.a")]),
            ("%2F/orders", [("/", "orders")], [("v", "orders"), ("%2F", "orders"), ("/", "orders2")]),
            ("%2f/orders", [("/", "orders")], [("v", "orders")]),
            ("v/*", [("v", "a"), ("v", "a/b")], [("w", "a"), ("/v", "a"), ("v/a", "b"), ("V", "a")]),
            ("*/orders", [("v", "orders"), ("/", "orders"), ("a/b", "orders")], [("v", "a/orders")]),
            ("v/a%2Fb", [("v", "a/b")], [("v", "a%2Fb"), ("v/a", "b")]),
            ("a%252Fb", [("v", "a%2Fb")], [("v", "a/b")]),
            ("a%2Ab", [("/", "a*b")], [("/", "axb"), ("/", "ab"), ("/", "a%2Ab")]),
            ("a%3Fb", [("/", "a?b")], [("/", "axb")]),
            ("a*b", [("/", "a*b"), ("/", "ab"), ("/", "axxb")], [("/", "a")]),
            ("a[bc]", [("/", "a[bc]")], [("/", "ab"), ("/", "ac")]),
            ("a[!b]", [("/", "a[!b]")], [("/", "ac")]),
            ("a.c", [("/", "a.c")], [("/", "abc")]),
            ("a+(b)|$^", [("/", "a+(b)|$^")], [("/", "aa")]),
            ("?", [("/", "a"), ("/", "é"), ("/", "/"), ("/", " "), ("v", "\n")], [("/", ""), ("/", "ab")]),
            ("*5", [("/", "a5")], [("/", "aå"), ("/", "%E")]),
            ("*F/x", [("F", "x")], [("/", "x")]),
            ("é", [("/", "é")], [("/", "e")]),
            ("%C3%A9", [("/", "é")], []),
            ("a b", [("/", "a b")], [("/", "a+b"), ("/", "a%20b")]),
        ]
        for names, expected in ((yes, True), (no, False))
        for name in names
    ],
)
def test_what_a_pattern_matches(pattern: str, name: tuple[str, str], expected: bool) -> None:
    assert matches(pattern, *name) is expected


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_encoded_name_matches_itself_and_no_other(one: str, other: str) -> None:
    pattern = f"{quote(one, safe='')}/{quote(other, safe='')}"
    assert matches(pattern, one, other)
    assert matches(pattern, other, one) is (one == other)
    assert not matches(pattern, one, other + "x")
    assert named([pattern], "d") == [(one, other)]


def test_named_are_the_patterns_without_a_wildcard() -> None:
    patterns = ["orders", "*", "a?", "%2F/x", "v/a%2Fb", "v/*", "*/y", "a[b]", "a%2Ab", "a%3Fb"]
    assert named(patterns, "dflt") == [
        ("dflt", "orders"),
        ("/", "x"),
        ("v", "a/b"),
        ("dflt", "a[b]"),
        ("dflt", "a*b"),
        ("dflt", "a?b"),
    ]
    assert named([], "dflt") == []


def test_named_exchanges_are_those_that_their_patterns_select() -> None:
    patterns = ["a[b]", "a%2Ab", "v/a%2Fb", "é"]
    for vhost, exchange in named(patterns, "dflt"):
        assert Selection(patterns, [], []).mode(vhost, exchange) is Mode.ROUTE


def test_names_without_a_wildcard_are_told_from_those_that_clients_choose() -> None:
    selection = Selection(["*", "v/orders"], ["a%2Fb"], ["*/left", "x*"])
    names = ("orders", "a/b", "left", "x", "xy", "*", "other")
    assert [selection.names(name) for name in names] == [True, True, True, False, False, False, False]


def test_a_selection_takes_other_patterns() -> None:
    selection = Selection(["a"], [], ["b"], ["b"])
    assert (selection.says("/", "a"), selection.says("/", "b")) == ((Mode.ROUTE, True, True), (Mode.PASS, False, True))
    selection.take(["c*"], ["a"], [], [], [("/", "b")])
    assert (selection.says("/", "a"), selection.says("/", "b")) == (
        (Mode.SHADOW, False, True),
        (Mode.PASS, False, True),
    )
    assert selection.says("v", "b") == (Mode.PASS, False, False)
    assert selection.says("/", "c1") == (Mode.ROUTE, False, True)
    assert (selection.names("a"), selection.names("b")) == (True, False)
