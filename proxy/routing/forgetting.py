"""The end of counts of exchanges that are gone, so that a long life with many names does not fill the memory."""

from collections.abc import Callable, Collection

from proxy.routing.counters import Counts
from proxy.topology.reader import Reader
from proxy.topology.table import Name, Router
from ring.destination import Destination

COUNTS_KEPT = 3600.0
"""Seconds for which the counts of something that is gone are kept, so that scrapes see the last ones."""

SWEEP_INTERVAL = 60.0
"""Seconds between two calls of `Forgetting.sweep`."""

Counted = tuple[Name, Destination | None]
"""Something that counts are kept of: an exchange (with None), or one destination of its ring."""


class Forgetting:
    """The watch over what is counted: it drops the counts of what has been gone for `COUNTS_KEPT` seconds.

    An exchange is there while the router knows it, and a virtual host's default exchange while a session, or an HTTP
    connection to the broker, is in that virtual host. No route therefore holds counters that are dropped, and none are
    lost.
    """

    def __init__(self, counts: Counts, router: Router, reader: Reader, vhosts: Callable[[], Collection[str]]) -> None:
        """Take what is counted and what is known; `vhosts` returns the virtual hosts that something is connected to."""
        self._counts, self._router, self._reader, self._vhosts = counts, router, reader, vhosts
        self._gone_since: dict[Counted, float] = {}
        """By counted exchange or destination that is gone: when a sweep first found it gone, on the router's clock."""

    def sweep(self) -> None:
        """Note which exchanges and destinations are gone by now, and drop the counts of those gone for COUNTS_KEPT.

        To be called now and then.
        """
        now, vhosts = self._router.clock(), self._vhosts()
        names = self._counts.names() | self._reader.changes.keys()
        gone: set[Counted] = {(name, None) for name in names if not self._is_there(name, vhosts)}
        for name, counted in self._counts.all_destinations().items():
            entry = self._router.entries.get(name)
            if entry is not None:
                there = entry.known.ring.destinations if entry.known is not None else ()
                gone.update((name, destination) for destination in counted.difference(there))
        self._gone_since = {each: self._gone_since.get(each, now) for each in gone}
        ended: dict[Name, list[Destination]] = {}
        for name, destination in [each for each, since in self._gone_since.items() if now - since >= COUNTS_KEPT]:
            if destination is None:
                self._counts.forget(name)
                self._reader.changes.pop(name, None)
                self._reader.moved.pop(name, None)
            else:
                ended.setdefault(name, []).append(destination)
            del self._gone_since[name, destination]
        for name, destinations in ended.items():
            self._counts.forget_destinations(name, destinations)

    def _is_there(self, name: Name, vhosts: Collection[str]) -> bool:
        return name in self._router.entries if name[1] else name[0] in vhosts
