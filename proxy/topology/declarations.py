"""What the broker has confirmed of an exchange and a reading may not show yet. Pure: -oks, readings, times.

A follower of a cluster answers the management API from a copy that lags. So what an -ok told is laid over readings
until one shows it, binding by binding. A statement that took the place of its opposite is *contested*: a reading from
before both shows it too, so it is kept for its whole time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proxy.topology.bindings import Binding
from ring.destination import Destination

OVERLAY_TIME = 10.0
"""Seconds for which a declaration outweighs readings that do not show it: later, a change made elsewhere undid it."""

NEVER = float("-inf")

MOST_SAID = 10_000
"""Statements on bindings that one overlay keeps; as many bindings as the largest exchanges have."""


@dataclass(frozen=True)
class Bound:
    """queue.bind-ok, or exchange.bind-ok."""

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False where the binding has arguments: a reason to read again, and not laid over."""


@dataclass(frozen=True)
class Unbound:
    """queue.unbind-ok, or exchange.unbind-ok. Brokers say it of what was never bound, too."""

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False where the binding has arguments: a reason to read again, and not laid over."""


@dataclass(frozen=True)
class ExchangeDeclared:
    """exchange.declare-ok of one that was not passive."""

    name: str
    exchange_type: str


@dataclass(frozen=True)
class ExchangeDeleted:
    """exchange.delete-ok."""

    name: str


@dataclass(frozen=True)
class QueueDeleted:
    """queue.delete-ok."""

    name: str


Declaration = Bound | Unbound | ExchangeDeclared | ExchangeDeleted | QueueDeleted
"""A change that the broker confirmed; its names are of one virtual host."""


class _Said(NamedTuple):
    at: float
    contested: bool = False

    def counts(self, started: float) -> bool:
        """Whether it outweighs a reading that started then."""
        return started - self.at <= OVERLAY_TIME

    def settled(self, started: float, shown: bool) -> bool:
        """Whether a reading that started then, and showed it or not, is the last that needs it."""
        return self.at <= started and not (self.counts(started) and (self.contested or not shown))


def _contested(said: _Said | None) -> bool:
    return said is not None and said.contested


class _Statements:
    """Statements of one kind on the bindings of one exchange, found by destination and key."""

    def __init__(self) -> None:
        self._by_destination: dict[Destination, dict[str, _Said]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_destination)

    def __contains__(self, destination: Destination) -> bool:
        return destination in self._by_destination

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_destination)

    def get(self, binding: Binding) -> _Said | None:
        return self._by_destination.get(binding.destination, {}).get(binding.key)

    def put(self, binding: Binding, said: _Said) -> None:
        self._by_destination.setdefault(binding.destination, {})[binding.key] = said

    def pop(self, binding: Binding) -> _Said | None:
        keys = self._by_destination.get(binding.destination, {})
        said = keys.pop(binding.key, None)
        if said is not None and not keys:
            del self._by_destination[binding.destination]
        return said

    def pop_all(self, destination: Destination) -> list[_Said]:
        return list(self._by_destination.pop(destination, {}).values())

    def items(self) -> Iterator[tuple[Binding, _Said]]:
        for destination, keys in self._by_destination.items():
            for key, said in keys.items():
                yield Binding(destination, key), said

    def values(self) -> Iterator[_Said]:
        return (said for _, said in self.items())

    def drop(self, unwanted: Callable[[Binding, _Said], bool]) -> None:
        for binding in [binding for binding, said in self.items() if unwanted(binding, said)]:
            self.pop(binding)

    def clear(self) -> None:
        self._by_destination.clear()


_EVERY_KEY = ""
"""Stands for the key in statements on all bindings to one destination."""


class Overlay:
    """What declarations say of one exchange, for readings that may not show it yet. Times are monotonic.

    What it can hold has a limit: beyond `MOST_SAID` statements the oldest are forgotten, and so are those from before
    what `forget` is told. `lacks` then says which readings may not be believed without them.
    """

    def __init__(self, name: str) -> None:
        """For the exchange of that name."""
        self._name = name
        self.told_at = NEVER
        """When the last declaration came."""
        self._bound, self._unbound, self._gone = _Statements(), _Statements(), _Statements()
        """Bindings that were made, bindings that were removed, and destinations that were deleted."""
        self._order: deque[tuple[float, _Statements, Binding]] = deque()
        """Those statements, also such as were superseded or are settled, the oldest first."""
        self._forgotten_at = NEVER
        """When the last statement came that was forgotten although a reading under way might need it."""
        self._deleted: _Said | None = None
        """The exchange was deleted, and not declared since."""
        self._anew: _Said | None = None
        """It was deleted and declared: bindings of before do not count."""
        self._declared: _Said | None = None
        """It must exist, and be of that type."""
        self._type = ""

    @property
    def size(self) -> int:
        """The number of statements on bindings that take up memory."""
        return len(self._order)

    @property
    def empty(self) -> bool:
        """Whether nothing is left that a reading may not show."""
        return not (self._bound or self._unbound or self._gone or self._deleted or self._anew or self._declared)

    def add(self, declaration: Declaration, at: float) -> None:
        """Takes in what an -ok said at `at`, in place of what it supersedes."""
        self.told_at = at
        match declaration:
            case Bound(destination=destination, key=key, plain=True):
                binding = Binding(destination, key)
                undoes = self._unbound.pop(binding) is not None or destination in self._gone
                undoes = undoes or self._deleted is not None or self._anew is not None
                self._say(self._bound, binding, _Said(at, undoes or _contested(self._bound.get(binding))))
            case Unbound(destination=destination, key=key, plain=plain):
                # One that deletes itself is gone with its last binding.
                self._declared = None
                if plain:
                    binding = Binding(destination, key)
                    undoes = self._bound.pop(binding) is not None
                    self._say(self._unbound, binding, _Said(at, undoes or _contested(self._unbound.get(binding))))
            case ExchangeDeclared(exchange_type=exchange_type):
                undoes = self._deleted is not None or _contested(self._declared)
                if self._deleted is not None:
                    self._anew = _Said(at, self._deleted.contested)
                    self._deleted = None
                self._declared, self._type = _Said(at, undoes), exchange_type
            case ExchangeDeleted(name=name) if name == self._name:
                self._delete(at)
            case ExchangeDeleted(name=name):
                self._lose(Destination("exchange", name), at)
            case QueueDeleted(name=name):
                self._lose(Destination("queue", name), at)
            case _:
                pass  # a binding with arguments

    def _say(self, kind: _Statements, binding: Binding, said: _Said) -> None:
        kind.put(binding, said)
        self._order.append((said.at, kind, binding))
        while len(self._order) > MOST_SAID:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        at, kind, binding = self._order.popleft()
        said = kind.get(binding)
        if said is not None and said.at == at:
            kind.pop(binding)
            self._forgotten_at = at

    def forget(self, before: float) -> None:
        """Forgets the statements on bindings that came before that time."""
        while self._order and self._order[0][0] < before:
            self._forget_oldest()

    def lacks(self, started: float) -> bool:
        """Whether a reading that started then would have needed a statement that was forgotten."""
        return started - self._forgotten_at <= OVERLAY_TIME

    def _lose(self, destination: Destination, at: float) -> None:
        """The destination is deleted, and every binding to it."""
        self._declared = None
        bound, unbound = self._bound.pop_all(destination), self._unbound.pop_all(destination)
        gone = Binding(destination, _EVERY_KEY)
        before = [*unbound, self._gone.get(gone)]
        self._say(self._gone, gone, _Said(at, bool(bound) or any(map(_contested, before))))

    def _delete(self, at: float) -> None:
        """The exchange is deleted, and every binding of it."""
        before = [*self._unbound.values(), *self._gone.values(), self._deleted, self._anew]
        self._deleted = _Said(at, bool(self._bound) or any(map(_contested, before)))
        self._anew = self._declared = None
        for said in (self._bound, self._unbound, self._gone):
            said.clear()
        self._order.clear()

    def bound(self) -> Iterator[Destination]:
        """The destinations to which it has bindings that a reading may not show."""
        return iter(self._bound)

    def binds(self, destination: Destination) -> bool:
        """Whether it has a binding to that destination that a reading may not show."""
        return destination in self._bound

    def doubt(self, destinations: Iterable[Destination]) -> None:
        """Something newer than the -oks told that these are gone: only readings say whether they are bound."""
        for destination in destinations:
            self._bound.pop_all(destination)

    def missing(self, shown_type: str | None, started: float) -> bool:
        """Whether a reading lacks the exchange that was declared; it showed this type, None for no exchange."""
        if self._declared is not None and self._declared.counts(started) and self._type != shown_type:
            return True
        return shown_type is None and any(said.counts(started) for said in self._bound.values())

    def apply(self, bindings: Iterable[Binding], started: float) -> tuple[Binding, ...]:
        """The bindings of a reading that started then, with what was declared and it does not show.

        Of an exchange that was deleted, and not declared again, a reading is left as it is.
        """
        if self._anew is not None and self._anew.counts(started):
            kept: list[Binding] = []
        else:
            gone = {binding.destination for binding, said in self._gone.items() if said.counts(started)}
            unbound = {binding for binding, said in self._unbound.items() if said.counts(started)}
            kept = [b for b in bindings if b.destination not in gone and b not in unbound]
        present = frozenset(kept)
        bound = [b for b, said in self._bound.items() if b not in present and said.counts(started)]
        return (*kept, *bound)

    def confirmed_removals(self, destinations: Iterable[Destination]) -> set[Destination]:
        """Of these, the ones whose removal was declared: where a reading has them no more, it need not settle."""
        if self._deleted is not None or self._anew is not None:
            return set(destinations)
        return {
            destination for destination in destinations if destination in self._unbound or destination in self._gone
        }

    def settle(self, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """Forgets what a good reading showed, or did not show for too long; `bindings` as they were read."""
        present = frozenset(bindings)
        others = {binding.destination for binding in present if self._bound.get(binding) is None}
        self._unbound.drop(lambda b, said: said.settled(started, b not in present))
        self._gone.drop(lambda b, said: said.settled(started, b.destination not in others))
        self._bound.drop(lambda b, said: said.settled(started, b in present))
        if not (self._bound or self._unbound or self._gone):
            self._order.clear()
        if self._deleted is not None and self._deleted.settled(started, shown_type is None):
            self._deleted = None
        if self._anew is not None and self._anew.settled(started, not others):
            self._anew = None
        if self._declared is not None and self._declared.settled(started, self._type == shown_type):
            self._declared = None

    def ends_at(self) -> float | None:
        """When the first of the statements that are left stops to outweigh readings; None where none is left."""
        kinds = (self._bound, self._unbound, self._gone)
        said = [*(said for kind in kinds for said in kind.values()), self._deleted, self._anew, self._declared]
        return min((each.at + OVERLAY_TIME for each in said if each is not None), default=None)
