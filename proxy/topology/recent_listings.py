"""Which exchanges a virtual host had a moment ago: publishes to names that do not exist share one answer. Pure."""

from proxy.topology.table import NEVER, Name

LISTING_COUNTS = 1.0
"""Seconds after the question for which an answer that lists no exchange of a name counts for that name."""

MOST_LISTINGS = 16
"""Virtual hosts whose last answer is kept."""


class RecentListings:
    """The exchanges that the management API listed last, by virtual host.

    Clients choose the names that they publish to, and each name that does not exist would cost the API three requests,
    one of them for a list of all exchanges. So that list answers for every other name, too, while it is new.
    """

    def __init__(self) -> None:
        """Empty."""
        self._listed: dict[str, tuple[float, frozenset[str] | None]] = {}

    def note(self, vhost: str, names: frozenset[str] | None, asked: float) -> None:
        """Takes in an answer to a question that was asked then, monotonic; None where there is no such virtual host."""
        self._listed.pop(vhost, None)
        self._listed[vhost] = asked, names
        for oldest in list(self._listed)[:-MOST_LISTINGS]:
            del self._listed[oldest]

    def lacks(self, name: Name, declared_at: float, now: float) -> bool:
        """Whether an exchange did not exist a moment ago, and nothing was declared on it since, as of `declared_at`."""
        asked, names = self._listed.get(name[0], (NEVER, frozenset()))
        return now - asked <= LISTING_COUNTS and declared_at < asked and (names is None or name[1] not in names)

    def lacks_vhost(self, vhost: str) -> bool:
        """Whether the last answer was that there is no such virtual host, or none for the management user to see."""
        return vhost in self._listed and self._listed[vhost][1] is None

    def forget_old(self, now: float) -> None:
        """Forgets what counts no more."""
        for vhost, (asked, _) in list(self._listed.items()):
            if now - asked > LISTING_COUNTS:
                del self._listed[vhost]
