"""Find which destination of a topic, direct or fanout exchange a message matches, as RabbitMQ does.

An upstream exchange leads on to exchanges with rings. Messages to it are routed only if none of them can match bindings
to two destinations of which one leads to a ring: a message then goes to one ring, or to no ring at all.
"""

# mypyc: compiled

import time
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple

from mypy_extensions import i64

from proxy.topology.bindings import FANOUT, Binding
from ring.destination import Destination

TOPIC: Final = "topic"
DIRECT: Final = "direct"
UPSTREAM_TYPES: Final = frozenset({TOPIC, DIRECT, FANOUT})
"""The types of exchange whose matches are known from the routing key alone."""

MOST_KEYS = 10_000
"""The most routing keys whose matches one matcher remembers: clients choose the keys."""

MOST_STEPS = 200_000
"""The most steps that are taken to compare the bindings of one exchange: clients choose the bindings."""

MOST_BRANCHES = 1000
"""The most words of patterns that stand behind a `#` and one more wildcard: one key may lead to all of these at once,
and to them again with each of its words."""

STEPS_AT_ONCE = 1000
"""The steps after which other threads get their turn: compiled code never lets go of the GIL by itself."""

NO_RING: Final = -1
"""The match of what leads to no ring."""

_NONE: Final = -2
"""Stands for the match of a node that no pattern goes through."""
_SEVERAL: Final = -3
"""Stands for the match of a node that patterns with different matches go through."""

_ONE: Final = b"*"
"""The word of a pattern that stands for exactly one word."""
_ANY: Final = b"#"
"""The word of a pattern that stands for any number of words, or none."""

Words = Sequence[bytes]
"""The words of a routing key, or of a topic exchange's pattern."""


def words_of(key: bytes) -> list[bytes]:
    """Return the words of a routing key or a pattern. The empty key has no words, and `a.` has an empty one."""
    return key.split(b".") if key else []


class TooManyError(Exception):
    """The bindings of an exchange take more than MOST_STEPS to compare, or have more than MOST_BRANCHES."""


class _Node:
    """The patterns of a trie that begin with the same words."""

    def __init__(self, number: int, repeats: bool) -> None:
        self.number = number
        """The number of nodes that the trie had before this one."""
        self.repeats = repeats
        """Whether the last of these words is `#`, so that any word leads from the node to itself."""
        self.words: dict[bytes, _Node] = {}
        """The nodes that one more plain word leads to."""
        self.one: _Node | None = None
        """The node that `*` leads to."""
        self.any: _Node | None = None
        """The node that `#` leads to."""
        self.match: i64 = _NONE
        """The match of all patterns that go through the node or end there; _NONE or _SEVERAL if there is not one."""
        self.binding: Binding | None = None
        """The first binding whose pattern ends here; None if none does."""
        self.binding_match: i64 = NO_RING
        """The match of `binding`."""

    def goes_through(self, match: i64) -> None:
        """Note that a pattern with this match goes through the node or ends there."""
        if self.match != match:
            self.match = match if self.match == _NONE else _SEVERAL


class Trie:
    """The patterns of a topic exchange, by their words. Each has a match: the number of a ring, or NO_RING."""

    def __init__(self) -> None:
        """Make an empty trie."""
        self._root = _Node(0, False)
        self._size = 1
        self._steps: i64 = 0
        self._branches = 0

    def add(self, pattern: Words, match: i64, binding: Binding) -> None:
        """Add the pattern of a binding. Raises TooManyError."""
        node = self._root
        node.goes_through(match)
        behind_any = branches = False
        for word in pattern:
            self.step()
            branches |= behind_any and word in (_ANY, _ONE)
            behind_any |= word == _ANY
            self._branches += branches
            if self._branches > MOST_BRANCHES:
                raise TooManyError
            node = self._after(node, word)
            node.goes_through(match)
        if node.binding is None:
            node.binding, node.binding_match = binding, match

    def conflicting(self, pattern: Words, match: i64) -> Binding | None:
        """Return a binding with another match than `match` that some key matches as well as `pattern`; None for none.

        Raises TooManyError if that takes too many steps.
        """
        seen: set[int] = set()
        # Each node with the number of words of `pattern` by which some key leads to it.
        todo: list[tuple[_Node, int]] = [(self._root, 0)]
        while todo:
            node, done = todo.pop()
            state = node.number << 9 | done  # a routing key has 256 words at most
            if node.match == match or state in seen:
                continue
            self.step()
            seen.add(state)
            if node.any is not None:
                todo.append((node.any, done))  # without a word
            if done == len(pattern):
                if node.binding is not None and node.binding_match != match:
                    return node.binding
                continue
            word = pattern[done]
            if word == _ANY:
                todo.append((node, done + 1))  # without a word
            after = done if word == _ANY else done + 1
            todo += [(each, after) for each in self._one_word_on(node, word)]
        return None

    def find(self, key: Words) -> int:
        """Return the match of a routing key, NO_RING if it has none. No two patterns may conflict."""
        reached: dict[int, _Node] = {}
        self._reach(reached, self._root)
        for word in key:
            before = list(reached.values())
            reached = {}
            for node in before:
                if node.repeats:
                    reached[node.number] = node
                self._reach(reached, node.words.get(word))
                self._reach(reached, node.one)
        for node in reached.values():
            if node.binding is not None and node.binding_match != NO_RING:
                return node.binding_match
        return NO_RING

    def step(self) -> None:
        """Count one step of a comparison. Raises TooManyError."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooManyError
        if self._steps % STEPS_AT_ONCE == 0:
            time.sleep(0)

    def _one_word_on(self, node: _Node, word: bytes) -> list[_Node]:
        """Return the nodes to which a key's next word may lead that a word of another pattern stands for."""
        found = list(node.words.values()) if word in (_ANY, _ONE) else []
        if (plain := node.words.get(word)) is not None:
            found.append(plain)
        if node.one is not None:
            found.append(node.one)
        if node.repeats:
            found.append(node)
        for _ in found:
            self.step()
        return found

    def _reach(self, reached: dict[int, _Node], node: _Node | None) -> None:
        """Note that words lead to a node, and so to those that `#` leads to from there without a word."""
        while node is not None and node.match != NO_RING:
            reached[node.number] = node
            node = node.any

    def _after(self, node: _Node, word: bytes) -> _Node:
        """Return the node that a word of a pattern leads to, made if there is none yet."""
        child = node.one if word == _ONE else node.any if word == _ANY else node.words.get(word)
        if child is None:
            child = _Node(self._size, word == _ANY)
            self._size += 1
            if word == _ONE:
                node.one = child
            elif word == _ANY:
                node.any = child
            else:
                node.words[word] = child
        return child


_numbers = count(1)


class Matcher:
    """Finds the ring that messages to one upstream exchange go to, by routing key; it lives as long as its bindings."""

    def __init__(self, exchange_type: str, rings: Sequence[Destination]) -> None:
        """Make a matcher without bindings. A match is told by the place of its destination in `rings`."""
        self.number = next(_numbers)
        """A number that no other matcher has or will have."""
        self.rings = tuple(rings)
        self._index = {destination: n for n, destination in enumerate(rings)}
        self._type = exchange_type
        self._trie = Trie()
        """The patterns of a topic exchange. The pattern of a fanout exchange is the empty one, whatever the key."""
        self._exact: dict[bytes, Binding] = {}
        """The first binding of a direct exchange with each key."""
        self._found: dict[bytes, int] = {}
        """The matches found so far, by routing key; of a direct exchange all."""

    def add(self, binding: Binding) -> Binding | None:
        """Add a binding, or return an earlier one that conflicts: one message may match both, and one leads to a ring.

        Returns None if the binding was added. Raises TooManyError.
        """
        match, key = self._index.get(binding.destination, NO_RING), binding.key.encode()
        if self._type == DIRECT:
            self._trie.step()
            same = self._exact.setdefault(key, binding)
            self._found.setdefault(key, match)
            return same if self._found[key] != match else None
        pattern = words_of(key) if self._type == TOPIC else []
        other = self._trie.conflicting(pattern, match)
        if other is None:
            self._trie.add(pattern, match, binding)
        return other

    def find(self, key: bytes) -> int:
        """Return the place of the destination that a message with this routing key goes to; NO_RING if none has it."""
        known = self._found.get(key)
        if known is not None:
            return known
        if self._type == DIRECT:
            return NO_RING
        if len(self._found) >= MOST_KEYS:
            self._found.clear()
        found = self._trie.find(words_of(key) if self._type == TOPIC else [])
        self._found[key] = found
        return found


class Upstream(NamedTuple):
    """The rule that decides which ring a message to an upstream exchange goes to."""

    exchange_type: str
    bindings: frozenset[Binding]
    """The bindings in force whose source is the exchange."""
    rings: frozenset[Destination]
    """The destinations that have rings, or lead on to rings as this exchange does."""
    conflict: str = ""
    """Why publishes must be passed, in words: mostly the two bindings that one message may match. Empty if no message
    matches a binding to a ring and another one."""
    matcher: Matcher | None = None
    """Finds the ring of each message; None if there is a conflict."""

    @property
    def destinations(self) -> frozenset[Destination]:
        """The destinations of the bindings."""
        return frozenset(binding.destination for binding in self.bindings)


def upstream_of(exchange_type: str, bindings: Iterable[Binding], rings: Iterable[Destination]) -> Upstream:
    """Return the upstream exchange of this type and with these bindings in force; `rings` are those that lead on."""
    in_force = frozenset(bindings)
    leading_on = frozenset(binding.destination for binding in in_force).intersection(rings)
    matcher = Matcher(exchange_type, sorted(leading_on))
    try:
        for binding in sorted(in_force):
            if (other := matcher.add(binding)) is not None:
                return Upstream(exchange_type, in_force, leading_on, _in_words(other, binding, leading_on))
    except TooManyError:
        why = f"its {len(in_force)} bindings are too many to compare"
        return Upstream(exchange_type, in_force, leading_on, why)
    return Upstream(exchange_type, in_force, leading_on, matcher=matcher)


def _in_words(one: Binding, other: Binding, rings: frozenset[Destination]) -> str:
    """Return why two bindings conflict; the one to a ring is named first."""
    ring, aside = (one, other) if one.destination in rings else (other, one)
    both = f"{ring.destination} with {ring.key!r} and {aside.destination} with {aside.key!r}"
    return f"one message may match its bindings to {both}"
