"""The rows of the table of a link's states that the links of a run have taken, by the debug logs of its sidecars.

Each row has a unit test that takes it with a session (`tests/unit/proxy/groups/consuming/test_rows.py`). A run must
take those of a link's ordinary life; how often it has taken the others is printed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime

from proxy.groups.model import TABLE, LinkEvent, LinkState

Row = tuple[LinkState, LinkEvent]

_TAKEN = re.compile(r" DEBUG proxy\.groups\.model: .*: ([A-Z_]+) in ([A-Z]+)$", re.MULTILINE)

_EVENT = re.compile(r"^(\S+) DEBUG proxy\.groups\.model: \S+ (\S+), shard '(\S+)': ([A-Z_]+) in [A-Z]+$", re.MULTILINE)

CLOSED = frozenset({LinkEvent.CLOSED, LinkEvent.LOST, LinkEvent.REFUSED})
"""The events by which a link ends."""

ORDINARY: frozenset[Row] = frozenset(
    {
        (LinkState.NONE, LinkEvent.WANT),
        (LinkState.OPENING, LinkEvent.CONSUMING),
        (LinkState.OPEN, LinkEvent.LET_GO),
        (LinkState.OPEN, LinkEvent.LOST),
        (LinkState.LEAVING, LinkEvent.SETTLED),
        (LinkState.CLOSING, LinkEvent.CLOSED),
    }
)
"""The rows that every run takes, however few faults it has: members join, get shards from others, and end."""


def taken(logs: Iterable[str]) -> Counter[Row]:
    """Return how often links took each row, by the logs of all sidecars."""
    found: Counter[Row] = Counter(dict.fromkeys(TABLE, 0))
    for log in logs:
        found.update((LinkState[state], LinkEvent[event]) for event, state in _TAKEN.findall(log))
    return found


def missed(counts: Counter[Row]) -> list[Row]:
    """Return the rows of a link's ordinary life that no link took."""
    return [row for row in sorted(ORDINARY) if not counts[row]]


def times(logs: Iterable[str], epoch: float, events: Set[LinkEvent]) -> Mapping[tuple[str, str], Sequence[float]]:
    """Return when links took one of these events, by their members and shards, in monotonic seconds.

    `epoch` is the monotonic time of the year 1970's beginning. The clocks of the sidecars must be right.
    """
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for log in logs:
        for at, member, shard, event in _EVENT.findall(log):
            if LinkEvent[event] in events:
                found[member, shard].append(epoch + datetime.fromisoformat(at).timestamp())
    return found
