"""Which binding a message matches, and whether one message can match two; what the broker does: test_upstreams.py."""

import threading
import time
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.topology import matching
from proxy.topology.bindings import Binding
from proxy.topology.matching import MOST_KEYS, NO_RING, Matcher, Trie, upstream_of, words_of
from ring.destination import Destination

RING, OTHER_RING, QUEUE = Destination("exchange", "ring"), Destination("exchange", "other"), Destination("queue", "q")

PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"", b"*", b"#"]), max_size=4)
WORDS = st.lists(st.sampled_from([b"a", b"b", b"", b"*", b"#"]), max_size=5)


def by_definition(pattern: Sequence[bytes], key: Sequence[bytes]) -> bool:
    """Return whether a key matches, straight from what the two wildcards mean."""
    if not pattern:
        return not key
    if pattern[0] == b"#":
        return any(by_definition(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in (b"*", key[0]) and by_definition(pattern[1:], key[1:])


def matches(pattern: Sequence[bytes], key: Sequence[bytes]) -> bool:
    trie = Trie()
    trie.add(pattern, 0, Binding(RING, ""))
    return trie.find(key) == 0


def overlap(one: Sequence[bytes], other: Sequence[bytes]) -> bool:
    trie = Trie()
    trie.add(one, 0, Binding(RING, ""))
    assert trie.conflicting(other, 0) is None
    return trie.conflicting(other, 1) is not None


def conflict_of(kind: str, bindings: list[Binding]) -> str:
    return upstream_of(kind, bindings, [RING, OTHER_RING]).conflict


@given(PATTERNS, WORDS)
def test_a_key_matches_a_pattern_as_the_wildcards_are_defined(pattern: list[bytes], key: list[bytes]) -> None:
    assert matches(pattern, key) == by_definition(pattern, key)


@given(st.lists(st.sampled_from([b"a", b"b", b"*", b"#"]), max_size=3), st.lists(st.sampled_from([b"a", b"*", b"#"])))
def test_patterns_overlap_if_a_key_matches_both(one: list[bytes], other: list[bytes]) -> None:
    other = other[:3]
    # `c` stands for every word that neither has; longer keys than both together add nothing new.
    keys = [key for length in range(len(one) + len(other) + 1) for key in product((b"a", b"b", b"c"), repeat=length)]
    assert overlap(one, other) == overlap(other, one) == any(matches(one, k) and matches(other, k) for k in keys)


@pytest.mark.parametrize(
    ("key", "words"),
    [(b"", []), (b"a", [b"a"]), (b"a.", [b"a", b""]), (b".", [b"", b""]), (b"a..b", [b"a", b"", b"b"])],
)
def test_words(key: bytes, words: list[bytes]) -> None:
    assert words_of(key) == words


@pytest.mark.parametrize(
    ("kind", "bindings", "conflict"),
    [
        ("topic", [(RING, "orders.#"), (RING, "orders.*"), (RING, "refunds.*.eu"), (QUEUE, "payments.#")], ""),
        ("topic", [(RING, "orders.#"), (QUEUE, "#")], "exchange 'ring' with 'orders.#' and queue 'q' with '#'"),
        ("topic", [(RING, "a.b"), (QUEUE, "*.b")], "exchange 'ring' with 'a.b' and queue 'q' with '*.b'"),
        ("topic", [(RING, "a.b"), (OTHER_RING, "a.b")], "exchange 'other' with 'a.b' and exchange 'ring' with 'a.b'"),
        ("topic", [(Destination("queue", "p"), "#"), (QUEUE, "#")], ""),
        ("direct", [(RING, "a"), (RING, "b"), (OTHER_RING, "c"), (QUEUE, "#"), (QUEUE, "*")], ""),
        ("direct", [(RING, "a"), (QUEUE, "a")], "exchange 'ring' with 'a' and queue 'q' with 'a'"),
        ("fanout", [(RING, "a"), (RING, "b")], ""),
        ("fanout", [(RING, "a"), (QUEUE, "b")], "exchange 'ring' with 'a' and queue 'q' with 'b'"),
        ("fanout", [(QUEUE, "a"), (Destination("queue", "p"), "b")], ""),
    ],
)
def test_a_conflict_is_two_bindings_that_one_message_may_match(
    kind: str, bindings: list[tuple[Destination, str]], conflict: str
) -> None:
    expected = f"one message may match its bindings to {conflict}" if conflict else ""
    assert conflict_of(kind, [Binding(*each) for each in bindings]) == expected


def test_too_many_bindings_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MOST_STEPS", 60)
    bindings = [Binding(RING, f"a.{n}.*") for n in range(9)] + [Binding(QUEUE, f"a.*.{n}") for n in range(9)]
    assert conflict_of("topic", bindings[9:]) == ""
    assert conflict_of("topic", bindings[1:10]) != ""
    bindings = [Binding(RING, f"a.{n}.*") for n in range(30)]
    assert conflict_of("topic", bindings) == "its 30 bindings are too many to compare"
    assert conflict_of("direct", bindings) == ""


def test_so_many_wildcards_behind_one_another_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long key could lead to all of them at once."""
    monkeypatch.setattr(matching, "MOST_BRANCHES", 8)
    for pattern, words in (("#.{}.#", 1), ("#.{}.*.b", 2), ("#.#.{}.b", 3)):
        bindings = [Binding(RING, pattern.format(n)) for n in range(8 // words)]
        assert conflict_of("topic", bindings) == ""
        assert "too many" in conflict_of("topic", [*bindings, Binding(RING, pattern.format("more"))])
    assert conflict_of("topic", [Binding(RING, f"*.{n}.a.#") for n in range(20)]) == ""


def test_patterns_without_a_word_in_common_are_not_compared() -> None:
    """The patterns of so many bindings take a few steps each, whether they lead to one ring or to several places."""
    for rings in ([RING], [RING, OTHER_RING, QUEUE]):
        bindings = [Binding(rings[n % len(rings)], f"user.{n}.#") for n in range(10_000)]
        upstream = upstream_of("topic", [*bindings, Binding(QUEUE, "pay.*")], [RING, OTHER_RING])
        assert upstream.conflict == ""
        assert upstream.matcher is not None
        assert upstream.matcher.find(b"user.3333.a.b") == upstream.matcher.rings.index(RING)
        assert upstream.matcher.find(b"pay.1") == upstream.matcher.find(b"user.10000.a") == NO_RING


def test_the_event_loop_goes_on_while_bindings_are_compared() -> None:
    """The steps let go of the GIL, also in compiled code."""
    turns = 0
    done = False

    def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        begun = turns
        upstream_of("topic", [Binding(RING, f"user.{n}.#") for n in range(10_000)], [RING])
        assert turns - begun > 10
    finally:
        done = True
        thread.join()


@given(
    st.sampled_from(["topic", "direct", "fanout"]),
    st.lists(st.tuples(st.sampled_from([RING, OTHER_RING, QUEUE]), PATTERNS), max_size=4),
    st.lists(WORDS, max_size=5),
)
def test_a_matcher_finds_the_ring_of_every_message_unless_there_is_a_conflict(
    kind: str, bound: list[tuple[Destination, list[bytes]]], keys: list[list[bytes]]
) -> None:
    bindings = [Binding(destination, b".".join(words).decode()) for destination, words in bound]
    upstream = upstream_of(kind, bindings, [RING, OTHER_RING, Destination("exchange", "not bound")])
    rings = sorted(upstream.rings)
    for key in (b".".join(words) for words in keys):
        matched = {
            b.destination
            for b in bindings
            if kind == "fanout"
            or (kind == "direct" and b.key.encode() == key)
            or (kind == "topic" and by_definition(words_of(b.key.encode()), words_of(key)))
        }
        assert bool(upstream.conflict) is (upstream.matcher is None)
        if upstream.matcher is None:
            continue
        found = upstream.matcher.find(key)
        assert upstream.matcher.find(key) == found, "remembered"
        assert {rings[found]} == matched if found != NO_RING else not matched & {RING, OTHER_RING}
        assert len(matched) == 1 or not matched & {RING, OTHER_RING}


def test_a_matcher_remembers_so_many_keys_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_KEYS >= 1000
    monkeypatch.setattr(matching, "MOST_KEYS", 3)
    matcher = Matcher("topic", [RING])
    assert [matcher.add(Binding(RING, key)) for key in ("a.*", "#.z")] == [None, None]
    assert [matcher.find(b"a.%d" % n) for n in range(10)] == [0] * 10
    assert [matcher.find(b"b.%d" % n) for n in range(10)] == [NO_RING] * 10
    assert matcher.find(b"b.9.z") == 0
    assert len(matcher._found) <= 3
