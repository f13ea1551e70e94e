"""How many messages a day move, by a journal."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxy.shards import journal
from proxy.shards.journal import JournalError, Moved, moved_messages
from ring.hashing import SLOTS

HOUR = 3600 * 1_000_000
MOVED = np.zeros(SLOTS, np.bool_)
MOVED[:10] = True


def record(slot: int, hour: float, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "vhost": "/", "exchange": "orders", "slot": slot, "time": int(hour * HOUR), "sample": 1.0, **fields}


def write(folder: Path, hour: int, *records: dict[str, Any], name: str = "a") -> Path:
    file = folder / "records" / "dt=2026-11-22" / f"hour={hour:02}" / f"{name}.jsonl.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(b"".join(json.dumps(each).encode() + b"\n" for each in records)))
    return file


ORDERS = "/", "orders"


def moved(folder: Path) -> Moved:
    return moved_messages(folder, {ORDERS: MOVED})[ORDERS]


def test_messages_whose_slots_move_are_counted_and_scaled_to_a_day(tmp_path: Path) -> None:
    write(tmp_path, 1, record(3, 1.0), record(11, 1.5), record(4, 1.25, exchange="other"))
    write(tmp_path, 2, record(9, 2.5), record(12, 3.0), name="b")

    found = moved(tmp_path)

    assert found == Moved(4, 2, 2.0)
    assert found.a_day == 24


def test_a_sample_stands_for_all(tmp_path: Path) -> None:
    write(tmp_path, 1, record(3, 1.0, sample=0.25), record(11, 2.0, sample=0.25))

    assert moved(tmp_path) == Moved(8, 4, 1.0)


def test_only_the_newest_hours_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_LINES", 2)
    write(tmp_path, 1, record(3, 1.0))
    write(tmp_path, 2, record(3, 2.0), record(3, 2.5))

    assert moved(tmp_path) == Moved(2, 2, 0.5)
    monkeypatch.setattr(journal, "MOST_LINES", 1_000_000)
    monkeypatch.setattr(journal, "MOST_HOURS", 1)
    assert moved(tmp_path) == Moved(2, 2, 0.5)


def test_an_hour_that_is_too_long_counts_only_if_it_is_the_newest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of an older one that was read would make the messages of an hour seem fewer."""
    write(tmp_path, 1, *(record(3, 1 + n / 100) for n in range(50)))
    write(tmp_path, 2, record(3, 2.0), record(11, 2.5))

    for most, expected in ((40, Moved(2, 1, 0.5)), (52, Moved(52, 51, 1.5))):
        monkeypatch.setattr(journal, "MOST_LINES", most)
        assert moved(tmp_path) == expected
    monkeypatch.setattr(journal, "MOST_LINES", 11)
    write(tmp_path, 3, *(record(3, 3 + n / 100) for n in range(50)))
    assert moved(tmp_path) == Moved(11, 11, 0.1, is_part=True)


def test_no_more_is_read_than_the_limit_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For however many exchanges: a journal may have a billion lines."""
    write(tmp_path, 1, *(record(3, 1 + n / 100, exchange=f"e{n % 5}") for n in range(50)))
    read: list[int] = []
    lines_of = journal._lines

    def counted(file: Path) -> Iterator[bytes]:
        for line in lines_of(file):
            read.append(1)
            yield line

    monkeypatch.setattr(journal, "_lines", counted)
    monkeypatch.setattr(journal, "MOST_LINES", 20)

    found = moved_messages(tmp_path, {("/", f"e{n}"): MOVED for n in range(5)})

    assert [each.messages for each in found.values()] == [4] * 5
    assert len(read) == 21
    read.clear()
    assert moved_messages(tmp_path, {}) == {}
    assert read == []


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONGEST_LINE", 100)
    write(tmp_path, 1, record(3, 1.0)).write_bytes(gzip.compress(b"x" * 1000))

    assert max(map(len, journal._lines(next(tmp_path.rglob("*.gz"))))) == 100
    with pytest.raises(JournalError, match="line 1: not a record"):
        moved(tmp_path)


def test_an_exchange_without_records_tells_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, record(3, 1.0, vhost="shop"))

    assert moved(tmp_path).a_day is None


def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, 1, record(3, 1.0))
    write(tmp_path, 1, record(3, 1.0), name=".hidden").write_bytes(b"\0")

    assert moved(tmp_path).messages == 1


def test_what_is_no_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal, as it has no folder records"):
        moved(tmp_path)
    file = write(tmp_path, 1, record(3, 1.0), record(-1, 1.0))
    with pytest.raises(JournalError, match="line 2: not a record of version 1"):
        moved(tmp_path)
    odd_records: list[dict[str, Any]] = [{"sample": 1e-320}, {"time": 1 << 63}, {"time": -1}, {"vhost": []}]
    for odd in odd_records:
        write(tmp_path, 1, record(3, 1.0, **odd))
        with pytest.raises(JournalError, match="line 1: not a record"):
            moved(tmp_path)
    file.write_bytes(b"not gzip")
    with pytest.raises(JournalError, match="cannot be read"):
        moved(tmp_path)
    file.write_bytes(gzip.compress(b"[]\n"))
    with pytest.raises(JournalError, match="line 1: not a record"):
        moved(tmp_path)
