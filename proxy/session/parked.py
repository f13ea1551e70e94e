"""Messages that came back and wait for a reading, while all else that the broker sends goes on. Pure state."""

from collections import deque
from typing import TYPE_CHECKING, Final

from proxy.routing.routes import Unread
from proxy.topology.table import Name
from proxy.wire.frames import OVERHEAD

if TYPE_CHECKING:
    from proxy.session.republish import Rerouted
    from proxy.session.state import Stale

MOST_PARKED: Final = 1 << 20
"""Bytes of such messages in one session from which on the broker is not read any further until one has been placed."""


_OVERHEAD: Final = 1024
"""Bytes that one message takes beside its frames."""


class Parked:
    """One message, from its return until it is known where it goes."""

    __slots__ = ("bodies", "came", "frame", "given_up", "header", "left", "ours", "tried", "unread")

    def __init__(
        self, came: "Rerouted", frame: bytes, header: bytes, left: int, unread: "Stale | Unread | None", *, ours: bool
    ) -> None:
        """`frame` and `header` are the frames of basic.return and of its content header.

        `left` are the bytes of the body that have not come yet; `ours` says that it came back on our own channel.
        """
        self.came, self.frame, self.header, self.left, self.ours = came, frame, header, left, ours
        self.unread = unread
        """What must be read before the message can be placed; None where nothing has to be, or one before it waits."""
        self.bodies: list[bytes] = []
        """The frames of its body that have come."""
        self.tried: set[Stale | Name] = set()
        """What was read for it, as far as it could be: it is not read twice for one message."""
        self.given_up = False
        """It has waited as long as a message may."""

    @property
    def size(self) -> int:
        """About the bytes of memory that it takes."""
        return _OVERHEAD + len(self.header) + sum(map(len, self.bodies))

    def was_read(self, what: "Stale | Unread") -> None:
        """Notes that something has been read, or could not be."""
        if self.unread == what:
            self.unread = None
            self.tried.add(what.name if isinstance(what, Unread) else what)


class Parking:
    """The messages of a session that wait, by the exchange that their clients published them to, in their order.

    A message behind one that waits waits as well, where both are of the same exchange: they may have the same key.
    """

    __slots__ = ("_by_exchange", "size")

    def __init__(self) -> None:
        """Nothing waits."""
        self._by_exchange: dict[bytes, deque[Parked]] = {}
        self.size = 0
        """Bytes of them all."""

    def __bool__(self) -> bool:
        """Whether any message waits."""
        return bool(self._by_exchange)

    def __contains__(self, exchange: bytes) -> bool:
        """Whether a message of that exchange waits."""
        return exchange in self._by_exchange

    @property
    def waits(self) -> bool:
        """Whether the first message of any exchange waits for a reading."""
        return any(parked[0].unread is not None for parked in self._by_exchange.values())

    @property
    def exchanges(self) -> list[bytes]:
        """The exchanges of which messages wait."""
        return list(self._by_exchange)

    def wanted(self, exchange: bytes) -> "Stale | Unread | None":
        """Return what must be read for the first message of an exchange; None where nothing has to be."""
        parked = self._by_exchange.get(exchange)
        return parked[0].unread if parked else None

    def put(self, parked: Parked) -> None:
        """Adds a message behind those of its exchange."""
        self._by_exchange.setdefault(parked.came.exchange, deque()).append(parked)
        self.size += parked.size

    def grow(self, parked: Parked, body: bytes) -> None:
        """Adds a body frame to a message that waits."""
        parked.bodies.append(body)
        parked.left -= len(body) - OVERHEAD
        self.size += len(body)

    def first(self, exchange: bytes) -> Parked | None:
        """Return the first message of an exchange; None where none waits."""
        parked = self._by_exchange.get(exchange)
        return parked[0] if parked else None

    def remove(self, parked: Parked) -> None:
        """Takes a message out."""
        exchange = parked.came.exchange
        others = self._by_exchange[exchange]
        others.remove(parked)
        self.size -= parked.size
        if not others:
            del self._by_exchange[exchange]

    def was_read(self, exchange: bytes, what: "Stale | Unread") -> None:
        """Notes for each message of an exchange that something has been read, or could not be."""
        for parked in self._by_exchange.get(exchange, ()):
            parked.was_read(what)

    def give_up(self, exchange: bytes) -> None:
        """Lets no message of an exchange wait for a reading any more."""
        for parked in self._by_exchange.get(exchange, ()):
            parked.unread, parked.given_up = None, True

    def drop(self) -> None:
        """Forgets them all: the session ends."""
        self._by_exchange.clear()
        self.size = 0
