"""What the broker has confirmed of an exchange and a reading may not show yet. Pure: -oks, readings, times.

A follower of a cluster answers the management API from a copy that lags. So what an -ok told is laid over readings
until one shows it, binding by binding. A statement that took the place of its opposite is *contested*: a reading from
before both shows it too, so it is kept for its whole time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from proxy.topology.bindings import Binding
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.topology.table import NEVER
from ring.destination import Destination

OVERLAY_TIME = 10.0
"""Seconds for which a declaration outweighs readings that do not show it: later, a change made elsewhere undid it."""

MOST_STATEMENTS = 10_000
"""Statements on bindings that one overlay keeps; as many bindings as the largest exchanges have."""


class _Statement(NamedTuple):
    at: float
    contested: bool = False

    def counts(self, started: float) -> bool:
        """Whether it outweighs a reading that started then."""
        return started - self.at <= OVERLAY_TIME

    def settled(self, started: float, shown: bool) -> bool:
        """Whether a reading that started then, and showed it or not, is the last that needs it."""
        return self.at <= started and not (self.counts(started) and (self.contested or not shown))


def _contested(statement: _Statement | None) -> bool:
    return statement is not None and statement.contested


class _StatementTable:
    """Statements of one kind on the bindings of one exchange, found by destination and key."""

    def __init__(self) -> None:
        self._by_destination: dict[Destination, dict[str, _Statement]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_destination)

    def __contains__(self, destination: Destination) -> bool:
        return destination in self._by_destination

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_destination)

    def get(self, binding: Binding) -> _Statement | None:
        return self._by_destination.get(binding.destination, {}).get(binding.key)

    def put(self, binding: Binding, statement: _Statement) -> None:
        self._by_destination.setdefault(binding.destination, {})[binding.key] = statement

    def pop(self, binding: Binding) -> _Statement | None:
        keys = self._by_destination.get(binding.destination, {})
        statement = keys.pop(binding.key, None)
        if statement is not None and not keys:
            del self._by_destination[binding.destination]
        return statement

    def pop_all(self, destination: Destination) -> list[_Statement]:
        return list(self._by_destination.pop(destination, {}).values())

    def items(self) -> Iterator[tuple[Binding, _Statement]]:
        for destination, keys in self._by_destination.items():
            for key, statement in keys.items():
                yield Binding(destination, key), statement

    def values(self) -> Iterator[_Statement]:
        return (statement for _, statement in self.items())

    def drop(self, unwanted: Callable[[Binding, _Statement], bool]) -> None:
        for binding in [binding for binding, statement in self.items() if unwanted(binding, statement)]:
            self.pop(binding)

    def clear(self) -> None:
        self._by_destination.clear()


_EVERY_KEY = ""
"""Stands for the key in statements on all bindings to one destination."""


class Overlay:
    """What declarations say of one exchange, for readings that may not show it yet. Times are monotonic.

    What it can hold has a limit: beyond `MOST_STATEMENTS` statements the oldest are forgotten, and so are those from
    before what `forget` is told. `incomplete_for` then says which readings may not be believed without them.
    """

    def __init__(self, name: str) -> None:
        """For the exchange of that name."""
        self._name = name
        self.declared_at = NEVER
        """When the last declaration came."""
        self._added, self._removed, self._deletions = (
            _StatementTable(),
            _StatementTable(),
            _StatementTable(),
        )
        """Bindings that were made, bindings that were removed, and destinations that were deleted."""
        self._order: deque[tuple[float, _StatementTable, Binding]] = deque()
        """Those statements, also such as were superseded or are settled, the oldest first."""
        self._forgotten_at = NEVER
        """When the last statement came that was forgotten although a reading under way might need it."""
        self._deleted: _Statement | None = None
        """The exchange was deleted, and not declared since."""
        self._recreated: _Statement | None = None
        """It was deleted and declared: bindings of before do not count."""
        self._declared: _Statement | None = None
        """It must exist, and be of that type."""
        self._declared_type = ""

    @property
    def statement_count(self) -> int:
        """The number of statements on bindings that take up memory."""
        return len(self._order)

    @property
    def empty(self) -> bool:
        """Whether nothing is left that a reading may not show."""
        return not (
            self._added or self._removed or self._deletions or self._deleted or self._recreated or self._declared
        )

    def add(self, declaration: Declaration, at: float) -> None:
        """Takes in what an -ok statement at `at`, in place of what it supersedes."""
        self.declared_at = at
        match declaration:
            case BindingAdded(destination=destination, key=key, plain=True):
                binding = Binding(destination, key)
                contested = self._removed.pop(binding) is not None or destination in self._deletions
                contested = contested or self._deleted is not None or self._recreated is not None
                self._record(self._added, binding, _Statement(at, contested or _contested(self._added.get(binding))))
            case BindingRemoved(destination=destination, key=key, plain=plain):
                # One that deletes itself is gone with its last binding.
                self._declared = None
                if plain:
                    binding = Binding(destination, key)
                    contested = self._added.pop(binding) is not None
                    self._record(
                        self._removed, binding, _Statement(at, contested or _contested(self._removed.get(binding)))
                    )
            case ExchangeDeclared(exchange_type=exchange_type):
                contested = self._deleted is not None or _contested(self._declared)
                if self._deleted is not None:
                    self._recreated = _Statement(at, self._deleted.contested)
                    self._deleted = None
                self._declared, self._declared_type = _Statement(at, contested), exchange_type
            case ExchangeDeleted(name=name) if name == self._name:
                self._delete_exchange(at)
            case ExchangeDeleted(name=name):
                self._delete_destination(Destination("exchange", name), at)
            case QueueDeleted(name=name):
                self._delete_destination(Destination("queue", name), at)
            case _:
                pass  # a binding with arguments

    def _record(self, kind: _StatementTable, binding: Binding, statement: _Statement) -> None:
        kind.put(binding, statement)
        self._order.append((statement.at, kind, binding))
        while len(self._order) > MOST_STATEMENTS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        at, kind, binding = self._order.popleft()
        statement = kind.get(binding)
        if statement is not None and statement.at == at:
            kind.pop(binding)
            self._forgotten_at = at

    def forget(self, before: float) -> None:
        """Forgets the statements on bindings that came before that time."""
        while self._order and self._order[0][0] < before:
            self._forget_oldest()

    def incomplete_for(self, started: float) -> bool:
        """Whether a reading that started then would have needed a statement that was forgotten."""
        return started - self._forgotten_at <= OVERLAY_TIME

    def _delete_destination(self, destination: Destination, at: float) -> None:
        """The destination is deleted, and every binding to it."""
        self._declared = None
        bound, unbound = self._added.pop_all(destination), self._removed.pop_all(destination)
        gone = Binding(destination, _EVERY_KEY)
        before = [*unbound, self._deletions.get(gone)]
        self._record(self._deletions, gone, _Statement(at, bool(bound) or any(map(_contested, before))))

    def _delete_exchange(self, at: float) -> None:
        """The exchange is deleted, and every binding of it."""
        before = [
            *self._removed.values(),
            *self._deletions.values(),
            self._deleted,
            self._recreated,
        ]
        self._deleted = _Statement(at, bool(self._added) or any(map(_contested, before)))
        self._recreated = self._declared = None
        for statement in (self._added, self._removed, self._deletions):
            statement.clear()
        self._order.clear()

    def added(self) -> Iterator[Destination]:
        """The destinations to which it has bindings that a reading may not show."""
        return iter(self._added)

    def has_added(self, destination: Destination) -> bool:
        """Whether it has a binding to that destination that a reading may not show."""
        return destination in self._added

    def withdraw_additions(self, destinations: Iterable[Destination]) -> None:
        """Something newer than the -oks told that these are gone: only readings say whether they are bound."""
        for destination in destinations:
            self._added.pop_all(destination)

    def misses_exchange(self, shown_type: str | None, started: float) -> bool:
        """Whether a reading lacks the exchange that was declared; it showed this type, None for no exchange."""
        if self._declared is not None and self._declared.counts(started) and self._declared_type != shown_type:
            return True
        return shown_type is None and any(statement.counts(started) for statement in self._added.values())

    def apply(self, bindings: Iterable[Binding], started: float) -> tuple[Binding, ...]:
        """The bindings of a reading that started then, with what was declared and it does not show.

        Of an exchange that was deleted, and not declared again, a reading is left as it is.
        """
        if self._recreated is not None and self._recreated.counts(started):
            kept: list[Binding] = []
        else:
            gone = {binding.destination for binding, statement in self._deletions.items() if statement.counts(started)}
            unbound = {binding for binding, statement in self._removed.items() if statement.counts(started)}
            kept = [b for b in bindings if b.destination not in gone and b not in unbound]
        present = frozenset(kept)
        bound = [b for b, statement in self._added.items() if b not in present and statement.counts(started)]
        return (*kept, *bound)

    def confirmed_removals(self, destinations: Iterable[Destination]) -> set[Destination]:
        """Of these, the ones whose removal was declared: where a reading has them no more, it need not settle."""
        if self._deleted is not None or self._recreated is not None:
            return set(destinations)
        return {
            destination
            for destination in destinations
            if destination in self._removed or destination in self._deletions
        }

    def settle(self, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """Forgets what a good reading showed, or did not show for too long; `bindings` as they were read."""
        present = frozenset(bindings)
        others = {binding.destination for binding in present if self._added.get(binding) is None}
        self._removed.drop(lambda b, statement: statement.settled(started, b not in present))
        self._deletions.drop(lambda b, statement: statement.settled(started, b.destination not in others))
        self._added.drop(lambda b, statement: statement.settled(started, b in present))
        if not (self._added or self._removed or self._deletions):
            self._order.clear()
        if self._deleted is not None and self._deleted.settled(started, shown_type is None):
            self._deleted = None
        if self._recreated is not None and self._recreated.settled(started, not others):
            self._recreated = None
        if self._declared is not None and self._declared.settled(started, self._declared_type == shown_type):
            self._declared = None

    def ends_at(self) -> float | None:
        """When the first of the statements that are left stops to outweigh readings; None where none is left."""
        kinds = (self._added, self._removed, self._deletions)
        statement = [
            *(statement for kind in kinds for statement in kind.values()),
            self._deleted,
            self._recreated,
            self._declared,
        ]
        return min((each.at + OVERLAY_TIME for each in statement if each is not None), default=None)
