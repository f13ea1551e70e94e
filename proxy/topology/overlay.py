"""Correct readings of an exchange by declarations that the broker has confirmed and readings may not show yet. Pure.

A follower of a cluster answers the management API from a copy that lags behind. Each confirmed declaration is therefore
recorded as a statement, and laid over the readings, binding by binding, until a reading shows it. A statement that
replaced its opposite (a bind after an unbind, say) is *contested*: a reading made before both of them would show it,
too, and proves nothing. A contested statement is therefore kept for the whole of `OVERLAY_TIME`.
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
"""Seconds for which a declaration outweighs readings that do not show it. After that, a change made by another client
must have undone it."""

MOST_STATEMENTS = 10_000
"""The most statements about bindings that one overlay keeps: as many as the largest exchanges have bindings."""


class _Statement(NamedTuple):
    """One confirmed change: a binding, destination or exchange was added or removed."""

    at: float
    """When the -ok came, in monotonic seconds."""
    contested: bool = False
    """Whether this statement replaced its opposite, so that a reading from before both may seem to show it."""

    def counts(self, started: float) -> bool:
        """Return whether the statement outweighs a reading that started at this monotonic time."""
        return started - self.at <= OVERLAY_TIME

    def settled(self, started: float, shown: bool) -> bool:
        """Return whether the statement can be dropped after a reading that started at this time.

        `shown` says whether that reading showed what the statement says.
        """
        return self.at <= started and not (self.counts(started) and (self.contested or not shown))


def _contested(statement: _Statement | None) -> bool:
    return statement is not None and statement.contested


class _StatementTable:
    """The statements of one kind about one exchange's bindings, found by destination and binding key."""

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
"""The binding key of statements that are about all bindings to one destination."""


class Overlay:
    """The confirmed declarations of one exchange that its readings may not show yet. All times are monotonic seconds.

    Beyond `MOST_STATEMENTS` statements the oldest are dropped, and `forget` drops those from before a given time.
    `incomplete_for` then says which readings cannot be corrected any more and must not be used.
    """

    def __init__(self, name: str) -> None:
        """Make an empty overlay for the exchange of this name."""
        self._name = name
        self.declared_at = NEVER
        """When the last declaration came; NEVER if none has."""
        self._added, self._removed, self._deletions = _StatementTable(), _StatementTable(), _StatementTable()
        """Statements that bindings were added, that bindings were removed, and that destinations were deleted."""
        self._order: deque[tuple[float, _StatementTable, Binding]] = deque()
        """All statements of the three tables, the oldest first; also statements that no longer stand in a table."""
        self._forgotten_at = NEVER
        """When the newest of the statements came that were forgotten although a reading may still need them."""
        self._deleted: _Statement | None = None
        """The statement that the exchange was deleted; None if it was not, or was declared again."""
        self._recreated: _Statement | None = None
        """The statement that the exchange was deleted and declared again: older bindings do not count."""
        self._declared: _Statement | None = None
        """The statement that the exchange was declared: readings must show it with `_declared_type`."""
        self._declared_type = ""
        """The type that the last declaration gave the exchange; empty if it was never declared."""

    @property
    def statement_count(self) -> int:
        """The number of statements about bindings that take up memory."""
        return len(self._order)

    @property
    def empty(self) -> bool:
        """Whether the overlay holds no statement, so that readings stand as they are."""
        return not (
            self._added or self._removed or self._deletions or self._deleted or self._recreated or self._declared
        )

    def add(self, declaration: Declaration, at: float) -> None:
        """Record a declaration that was confirmed at `at`, and drop the statements that it replaces."""
        self.declared_at = at
        match declaration:
            case BindingAdded(destination=destination, key=key, plain=True):
                binding = Binding(destination, key)
                contested = self._removed.pop(binding) is not None or destination in self._deletions
                contested = contested or self._deleted is not None or self._recreated is not None
                self._record(self._added, binding, _Statement(at, contested or _contested(self._added.get(binding))))
            case BindingRemoved(destination=destination, key=key, plain=plain):
                # An auto-delete exchange is deleted by the broker with its last binding, so it need not exist any more.
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
                pass  # The binding has arguments, which readings do not ask for.

    def _record(self, kind: _StatementTable, binding: Binding, statement: _Statement) -> None:
        kind.put(binding, statement)
        self._order.append((statement.at, kind, binding))
        while len(self._order) > MOST_STATEMENTS:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Drop the oldest statement; note its time if no later statement had replaced it."""
        at, kind, binding = self._order.popleft()
        statement = kind.get(binding)
        if statement is not None and statement.at == at:
            kind.pop(binding)
            self._forgotten_at = at

    def forget(self, before: float) -> None:
        """Drop the statements about bindings that came before this time."""
        while self._order and self._order[0][0] < before:
            self._forget_oldest()

    def incomplete_for(self, started: float) -> bool:
        """Return whether a reading that started at this time would need a statement that was dropped."""
        return started - self._forgotten_at <= OVERLAY_TIME

    def _delete_destination(self, destination: Destination, at: float) -> None:
        """Record that a destination was deleted, and with it every binding to it."""
        # The exchange may be gone with its last binding, if it is an auto-delete one.
        self._declared = None
        added, removed = self._added.pop_all(destination), self._removed.pop_all(destination)
        whole = Binding(destination, _EVERY_KEY)
        # This statement replaces all that were made about single bindings to the destination. It is contested (an
        # older reading may seem to show it) if one of them said the opposite, or was contested itself.
        replaced = [*removed, self._deletions.get(whole)]
        contested = bool(added) or any(map(_contested, replaced))
        self._record(self._deletions, whole, _Statement(at, contested))

    def _delete_exchange(self, at: float) -> None:
        """Record that the exchange was deleted, and with it every binding whose source it was."""
        replaced = [*self._removed.values(), *self._deletions.values(), self._deleted, self._recreated]
        contested = bool(self._added) or any(map(_contested, replaced))
        self._deleted = _Statement(at, contested)
        self._recreated = self._declared = None
        for table in (self._added, self._removed, self._deletions):
            table.clear()
        self._order.clear()

    def added(self) -> Iterator[Destination]:
        """Return the destinations of added bindings that a reading may not show yet."""
        return iter(self._added)

    def has_added(self, destination: Destination) -> bool:
        """Return whether a binding to this destination was added that a reading may not show yet."""
        return destination in self._added

    def withdraw_additions(self, destinations: Iterable[Destination]) -> None:
        """Drop the statements that bindings to these destinations were added.

        A later event, such as a returned message, showed that they are gone, so only readings can tell what is bound.
        """
        for destination in destinations:
            self._added.pop_all(destination)

    def has_deleted(self, started: float) -> bool:
        """Return whether the exchange was deleted, which a reading that started at this time may not show."""
        return self._deleted is not None and self._deleted.counts(started)

    def misses_exchange(self, shown_type: str | None, started: float) -> bool:
        """Return whether a reading does not show an exchange that must exist, as it was declared or bound.

        `shown_type` is the type that the reading showed, None if it showed no exchange; `started` is when it started.
        """
        if self._declared is not None and self._declared.counts(started) and self._declared_type != shown_type:
            return True
        return shown_type is None and any(statement.counts(started) for statement in self._added.values())

    def apply(self, bindings: Iterable[Binding], started: float) -> tuple[Binding, ...]:
        """Return the bindings of a reading that started at this time, corrected by declarations that it may not show.

        If the exchange was deleted and not declared again, the bindings are returned as they were read.
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
        """Return those of the destinations whose removal was declared, so that it counts without a settle time."""
        if self._deleted is not None or self._recreated is not None:
            return set(destinations)
        return {
            destination
            for destination in destinations
            if destination in self._removed or destination in self._deletions
        }

    def confirmed_unbinds(self, bindings: Iterable[Binding]) -> set[Binding]:
        """Return those of the bindings whose removal was declared, so that it counts without a settle time."""
        if self._deleted is not None or self._recreated is not None:
            return set(bindings)
        return {b for b in bindings if self._removed.get(b) is not None or b.destination in self._deletions}

    def only_unbound(self, bindings: Iterable[Binding]) -> set[Binding]:
        """Return those of the bindings that were unbound, and whose destination and exchange were not deleted."""
        if self._deleted is not None or self._recreated is not None:
            return set()
        return {b for b in bindings if self._removed.get(b) is not None and b.destination not in self._deletions}

    def settle(self, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """Drop the statements that no reading needs after this one, which started at `started` and succeeded.

        A statement is dropped if the reading showed it, or if it has not shown for `OVERLAY_TIME`. `bindings` are those
        that were read, without corrections.
        """
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
        """Return when the first statement ceases to outweigh readings; None if there is no statement."""
        kinds = (self._added, self._removed, self._deletions)
        statement = [
            *(statement for kind in kinds for statement in kind.values()),
            self._deleted,
            self._recreated,
            self._declared,
        ]
        return min((each.at + OVERLAY_TIME for each in statement if each is not None), default=None)
