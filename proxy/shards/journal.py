"""Count in a journal how many messages a day a change of the ring would have moved."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxy.shards.plan import Plan
from ring.hashing import SLOTS

MOST_HOURS = 24
"""The most hours of a journal that are read, the newest first."""

MOST_LINES = 1_000_000
"""The most lines that are read. An hour that they do not reach to the end of counts only if it is the newest one."""

LONGEST_LINE = 1 << 20
"""The most bytes of one line; a longer one is no record."""

_LEAST_SHARE = 1e-9
"""The least share of all messages that a sample can be."""

_END = 1 << 63
"""The first time that no record has, in microseconds since 1970."""

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
    is_part: bool = False
    """Whether not even one hour was read to its end, so that there were more messages than these."""

    @property
    def a_day(self) -> int | None:
        """The messages a day that move; None if the journal has too little to tell."""
        return round(self.moved * 24 / self.hours) if self.hours > 0 else None


@dataclass
class _Count:
    """The messages of one exchange in what was read so far."""

    moved_slots: NDArray[np.bool_]
    """For each slot whether it moves."""
    messages: float = 0.0
    moved: float = 0.0
    first: int = 0
    last: int = 0

    def add(self, slot: int, time: int, share: float) -> None:
        """Count one record; of a sample, it stands for several messages."""
        self.messages += 1 / share
        self.moved += self.moved_slots[slot] / share
        self.first, self.last = min(self.first or time, time), max(self.last, time)


_Counts = dict[tuple[str, str], _Count]
"""By virtual host and name of each exchange whose keys move."""


def moved_of_plan(folder: Path, plan: Plan) -> dict[tuple[str, str], Moved]:
    """Return what a journal tells of each exchange of a plan whose keys move, by virtual host and name.

    Raises JournalError.
    """
    moved_slots = {
        (planned.difference.exchange.vhost, planned.difference.exchange.name): planned.moved_slots
        for planned in plan.exchanges
        if planned.moved_slots is not None
    }
    return moved_messages(folder, moved_slots)


def moved_messages(
    folder: Path, moved_slots: Mapping[tuple[str, str], NDArray[np.bool_]]
) -> dict[tuple[str, str], Moved]:
    """Return how many messages of exchanges went to slots that move, by the newest hours of a journal.

    `moved_slots` has True for each slot that moves, by virtual host and name of the exchange. Raises JournalError.
    """
    if not (records := folder / "records").is_dir():
        raise JournalError(f"{folder}: no journal, as it has no folder records")
    counts = {name: _Count(slots) for name, slots in moved_slots.items()}
    left, is_part = MOST_LINES, False
    for hour in sorted(records.glob("dt=*/hour=*"), reverse=True)[:MOST_HOURS] if counts else ():
        counted = {name: replace(count) for name, count in counts.items()}
        left = _count_hour(hour, counted, left)
        if left < 0 and any(count.messages for count in counts.values()):
            break  # A part of this hour would make the messages of an hour seem fewer.
        counts, is_part = counted, left < 0
        if left <= 0:
            break
    return {
        name: Moved(round(c.messages), round(c.moved), (c.last - c.first) * 24 / _DAY, is_part)
        for name, c in counts.items()
    }


def _count_hour(hour: Path, counts: _Counts, most: int) -> int:
    """Count the records of one hour, and return how many more lines may be read: -1 if the hour has more than `most`.

    Raises JournalError.
    """
    for file in sorted(hour.glob("[!.]*.jsonl.gz")):
        for number, line in enumerate(_lines(file), 1):
            if most <= 0:
                return -1
            most -= 1
            _count_line(line, f"{file}: line {number}", counts)
    return most


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, a line that is too long in parts; none if it is gone. Raises JournalError."""
    try:
        with gzip.open(file) as content:
            yield from iter(lambda: content.readline(LONGEST_LINE), b"")
    except FileNotFoundError:
        return  # The program that keeps the journal small has removed it meanwhile.
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(f"{file}: cannot be read: {error}") from None


def _count_line(line: bytes, where: str, counts: _Counts) -> None:
    """Count the record in a line, if it is of one of these exchanges. Raises JournalError for what is no record."""
    try:
        record: Mapping[str, Any] = json.loads(line)
        if (count := counts.get((record["vhost"], record["exchange"]))) is None:
            return
        slot, time, share = record["slot"], record["time"], record["sample"]
        is_whole = type(slot) is int and 0 <= slot < SLOTS and type(time) is int and 0 <= time < _END
        if record["v"] == 1 and is_whole and _LEAST_SHARE <= share <= 1:
            count.add(slot, time, share)
            return
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise JournalError(f"{where}: not a record of version 1")
