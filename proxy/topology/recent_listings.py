"""Remember for a second which exchanges a virtual host has, so that publishes to absent ones cost one request. Pure."""

from proxy.topology.table import NEVER, Name

LISTING_COUNTS = 1.0
"""Seconds, from its request on, for which a list of exchanges proves that an exchange does not exist."""

MOST_LISTINGS = 16
"""The most virtual hosts whose last list is kept."""


class RecentListings:
    """The last list of exchanges of each virtual host, as the management API sent it.

    Clients choose the names that they publish to, and each name that does not exist costs the API three requests. One
    of them lists all exchanges, so while it is new that list also answers for every other name.
    """

    def __init__(self) -> None:
        """Make an object that knows no list yet."""
        self._listed: dict[str, tuple[float, frozenset[str] | None]] = {}

    def note(self, vhost: str, names: frozenset[str] | None, asked: float) -> None:
        """Remember a list that was requested at the monotonic time `asked`; `names` is None if the virtual host is not
        listed.
        """
        self._listed.pop(vhost, None)
        self._listed[vhost] = asked, names
        for oldest in list(self._listed)[:-MOST_LISTINGS]:
            del self._listed[oldest]

    def lacks(self, name: Name, declared_at: float, now: float) -> bool:
        """Return whether a recent list lacks this exchange and was requested after its last declaration, at
        `declared_at`.
        """
        asked, names = self._listed.get(name[0], (NEVER, frozenset()))
        return now - asked <= LISTING_COUNTS and declared_at < asked and (names is None or name[1] not in names)

    def lacks_vhost(self, vhost: str) -> bool:
        """Return whether the virtual host was not listed: it does not exist, or the management user may not see it."""
        return vhost in self._listed and self._listed[vhost][1] is None

    def forget_old(self, now: float) -> None:
        """Forget the lists that are older than `LISTING_COUNTS`."""
        for vhost, (asked, _) in list(self._listed.items()):
            if now - asked > LISTING_COUNTS:
                del self._listed[vhost]
