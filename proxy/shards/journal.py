"""Count in a journal how many messages a day a change of the ring would have moved."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxy.shards.plan import Plan
from ring.hashing import SLOTS

MOST_HOURS = 24
"""The most hours of a journal that are read, the newest first."""

MOST_LINES = 1_000_000
"""The number of lines after which no further hour is read."""

_DAY = 24 * 3600 * 1_000_000
"""Microseconds of a day."""


class JournalError(Exception):
    """A journal cannot be read; the message names the file and says why."""


@dataclass(frozen=True)
class Moved:
    """How many messages of one exchange a journal records, and how many of them have a key that moves."""

    messages: int
    """The messages of the exchange in the hours that were read; of a sample, an estimate."""
    moved: int
    """The number of these messages whose keys move."""
    hours: float
    """The time between the first and the last of these messages, in hours."""

    @property
    def a_day(self) -> int | None:
        """The messages a day that move; None if the journal has too little to tell."""
        return round(self.moved * 24 / self.hours) if self.hours > 0 else None


def moved_of_plan(folder: Path, plan: Plan) -> dict[tuple[str, str], Moved]:
    """Return what a journal tells of each exchange of a plan whose keys move, by virtual host and name."""
    found = {}
    for planned in plan.exchanges:
        exchange = planned.difference.exchange
        if planned.moved_slots is not None:
            moved = moved_messages(folder, exchange.vhost, exchange.name, planned.moved_slots)
            found[exchange.vhost, exchange.name] = moved
    return found


def moved_messages(folder: Path, vhost: str, exchange: str, moved_slots: NDArray[np.bool_]) -> Moved:
    """Return how many messages of an exchange went to slots that move, by the newest hours of a journal.

    `moved_slots` has True for each slot that moves. Raises JournalError.
    """
    if not (records := folder / "records").is_dir():
        raise JournalError(f"{folder}: no journal, as it has no folder records")
    hours = sorted(records.glob("dt=*/hour=*"), reverse=True)[:MOST_HOURS]
    counts = np.zeros(2)
    first, last, lines = 0, 0, 0
    for hour in hours:
        for file in sorted(hour.glob("[!.]*.jsonl.gz")):
            for number, line in enumerate(_lines(file), 1):
                lines += 1
                if (record := _record(line, f"{file}: line {number}", vhost, exchange)) is None:
                    continue
                slot, time, share = record
                counts += 1 / share, moved_slots[slot] / share
                first, last = min(first or time, time), max(last, time)
        if lines >= MOST_LINES:
            break
    return Moved(round(counts[0]), round(counts[1]), (last - first) * 24 / _DAY)


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file) as content:
            yield from content
    except FileNotFoundError:
        return  # Whoever keeps the journal small has removed it meanwhile.
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(f"{file}: cannot be read: {error}") from None


def _record(line: bytes, where: str, vhost: str, exchange: str) -> tuple[int, int, float] | None:
    """Return the slot, the time and the sample's share of a record; None if it is of another exchange."""
    try:
        record: Mapping[str, Any] = json.loads(line)
        if (record["vhost"], record["exchange"]) != (vhost, exchange):
            return None
        slot, time, share = record["slot"], record["time"], record["sample"]
        if record["v"] == 1 and type(slot) is int and 0 <= slot < SLOTS and type(time) is int and 0 < share <= 1:
            return slot, time, share
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise JournalError(f"{where}: not a record of version 1")
