"""Files of the journal: hidden until they are whole, of one hour each, and what a disk that fails takes with it."""

import gzip
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from proxy.journal import files
from proxy.journal.buffer import CAPACITY, Filled, Journal, Record
from proxy.journal.files import FileStore
from proxy.journal.lines import LineFormatter, plain
from proxy.journal.store import FullError
from proxy.journal.writer import Writer
from proxy.outcome import Outcome
from proxy.settings.parse import ConfigError
from tests.unit.proxy.journal.test_buffer import record

HOUR = 3600.0
PROXY = "00000000000000ab"


def store(folder: Path, seconds: float = 60, most_bytes: int = 1 << 20, most_in_all: int = 1 << 40) -> FileStore:
    return FileStore(folder, PROXY, most_seconds=seconds, most_bytes=most_bytes, most_in_all=most_in_all)


def shown(folder: Path) -> dict[str, bytes]:
    """The files that a reader sees, unpacked."""
    found = [path for path in (folder / "records").rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder / "records")): gzip.decompress(path.read_bytes()) for path in found}


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


def test_a_file_shows_when_it_is_whole(tmp_path: Path) -> None:
    made = store(tmp_path / "new" / "folder")
    made.write(b"a\n", 1, 1, 5 * HOUR)
    made.write(b"b\n", 1, 2, 5 * HOUR + 1)
    assert shown(tmp_path / "new" / "folder") == {}
    made.finish()
    assert shown(tmp_path / "new" / "folder") == {f"dt=1970-01-01/hour=05/{PROXY}-000000000001.jsonl.gz": b"a\nb\n"}
    made.finish()
    assert hidden(tmp_path) == []


def test_each_hour_and_each_size_has_its_file(tmp_path: Path) -> None:
    made = store(tmp_path, most_bytes=100)
    made.write(b"a\n", 1, 1, 24 * HOUR - 1)
    made.write(b"b\n", 1, 2, 24 * HOUR)
    big = random.Random(1).randbytes(100_000)  # so that it does not stay in the compressor
    made.write(big, 1, 3, 24 * HOUR)
    assert made.finish_if_due()
    assert not made.finish_if_due()
    made.write(b"c\n", 1, 4, 24 * HOUR)
    made.close()
    assert shown(tmp_path) == {
        f"dt=1970-01-01/hour=23/{PROXY}-000000000001.jsonl.gz": b"a\n",
        f"dt=1970-01-02/hour=00/{PROXY}-000000000002.jsonl.gz": b"b\n" + big,
        f"dt=1970-01-02/hour=00/{PROXY}-000000000004.jsonl.gz": b"c\n",
    }


def test_a_file_is_closed_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: 5 * HOUR)
    made = store(tmp_path, seconds=60)
    made.write(b"a\n", 1, 1, time.time())
    now += 59
    assert not made.finish_if_due()
    now += 1
    assert made.finish_if_due()
    assert len(shown(tmp_path)) == 1


def test_a_file_is_closed_when_its_hour_is_over(tmp_path: Path) -> None:
    made = store(tmp_path, seconds=1e9)
    made.write(b"a\n", 1, 1, time.time() - HOUR)
    assert made.finish_if_due()
    assert len(shown(tmp_path)) == 1


def test_a_ring_is_written_once(tmp_path: Path) -> None:
    made = store(tmp_path)
    (tmp_path / "rings" / "f.json").touch()  # as a crash may leave it
    made.ring("f", b"one")
    written = (tmp_path / "rings" / "f.json").stat()
    made.ring("f", b"one")
    again = (tmp_path / "rings" / "f.json").stat()
    assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert (tmp_path / "rings" / "f.json").read_bytes() == b"one"
    assert hidden(tmp_path) == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"journal_dir: .*file.* cannot be written to: Not a directory"):
        store(tmp_path / "file")


@pytest.fixture
def umask() -> Iterator[None]:
    """One that takes nothing away, until the end of the test."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.usefixtures("umask")
def test_only_their_owner_gets_at_the_files_and_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = store(tmp_path / "new" / "folder")
    made.ring("00000000000000fe", b"{}")
    made.write(b"a\n", 1, 1, 5 * HOUR)
    (unfinished,) = hidden(tmp_path)
    assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
    made.finish()
    found = modes(tmp_path)
    assert {mode for name, mode in found.items() if name.endswith(("gz", "json"))} == {0o600}
    assert {mode for name, mode in found.items() if not name.endswith(("gz", "json"))} == {0o700}
    assert len(found) == 8
    assert caplog.messages == []


@pytest.mark.usefixtures("umask")
def test_folders_that_are_there_stay_as_they_are_and_open_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder itself may be open, as a volume of Kubernetes is: those in it are not."""
    (tmp_path / "records").mkdir(0o750)
    os.chmod(tmp_path, 0o2777)
    store(tmp_path)
    assert modes(tmp_path) == {"records": 0o750, "rings": 0o2700}
    (told,) = caplog.messages
    assert told.startswith("journal_dir: others than its owner may enter")
    assert "/records' (mode 0750)" in told


BIG = random.Random(2).randbytes(200_000)
"""A content that takes as many bytes compressed, nearly all of them at once."""


def test_a_full_folder_takes_no_more_records_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOOK_AGAIN", 0)
    made = store(tmp_path, most_in_all=300_000)
    made.write(BIG, 1, 1, HOUR)
    made.write(BIG, 1, 2, HOUR)
    with pytest.raises(FullError, match=r"have reached 300000 bytes \(journal_max_bytes\)"):
        made.write(BIG, 1, 3, HOUR)
    # The file that was being written is whole, and nothing of it is lost.
    assert shown(tmp_path) == {f"dt=1970-01-01/hour=01/{PROXY}-000000000001.jsonl.gz": BIG + BIG}
    assert (made.give_up(), made.finish_if_due(), made.close(), hidden(tmp_path)) == (0, False, False, [])
    with pytest.raises(FullError):
        made.ring("00000000000000fe", b"{}")
    next((tmp_path / "records").rglob("*.gz")).unlink()
    made.ring("00000000000000fe", b"{}")
    made.write(BIG, 1, 4, HOUR)
    assert made.close()
    # Its name says that 3 was dropped, and was in no file that has been removed.
    assert list(shown(tmp_path)) == [f"dt=1970-01-01/hour=01/{PROXY}-000000000003.jsonl.gz"]


def test_a_file_is_named_after_the_number_behind_those_of_the_last_one(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.write(b"a\n", 1, 5, HOUR)  # 1 to 4 were dropped
    assert made.give_up() == 1
    made.write(b"b\n", 2, 8, HOUR)
    made.finish()
    made.write(b"c\n", 3, 12, HOUR)
    made.finish()
    assert sorted(shown(tmp_path)) == [f"dt=1970-01-01/hour=01/{PROXY}-{n:012}.jsonl.gz" for n in (1, 10)]


def test_files_of_earlier_starts_count_and_those_of_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "records" / "dt=1970-01-01" / "hour=01"
    folder.mkdir(parents=True)
    earlier = FileStore(tmp_path, "0123456789abcdef", most_seconds=60, most_bytes=1 << 20)
    earlier.write(BIG, 1, 1, HOUR)
    earlier.close()
    for name in ("notes.jsonl.gz", "backup.tar", f"{PROXY}-1.jsonl.gz.sent"):
        (folder / name).write_bytes(BIG * 10)
    made = store(tmp_path, most_in_all=250_000)
    made.write(b"a\n", 1, 1, HOUR)
    made.finish()
    # One that a sidecar left behind, which was killed.
    (folder / ".00000000000000cd-000000000001.jsonl.gz").write_bytes(bytes(60_000))
    monkeypatch.setattr(files, "LOOK_AGAIN", 0)
    with pytest.raises(FullError):
        made.write(b"b\n", 1, 2, HOUR)
    with pytest.raises(FullError):
        store(tmp_path, most_in_all=250_000).write(b"c\n", 1, 1, HOUR)


def test_records_that_find_the_folder_full_are_counted_told_once_and_leave_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "LOOK_AGAIN", 0)
    caplog.set_level("INFO")
    (tmp_path / "records").mkdir(0o700)
    other = tmp_path / "records" / "0123456789abcdef-000000000001.jsonl.gz"
    other.write_bytes(BIG)

    def make_room(writer: Writer, journal: Journal) -> None:
        assert (writer.written, writer.lost, writer.refused, journal.sequence) == (0, 0, 10, 10)
        other.unlink()

    writer, _ = run(tmp_path, 10, make_room, most_in_all=200_000)
    assert (writer.written, writer.lost, writer.refused, writer.fault) == (10, 0, 10, "")
    (text,) = shown(tmp_path).values()
    assert b'"seq":11,' in text.splitlines()[0]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the journal cannot be written, and its records are dropped",
        "the journal is written again",
    ]


def run(
    folder: Path, count: int, between: Callable[[Writer, Journal], None], most_in_all: int = 1 << 40
) -> tuple[Writer, Journal]:
    """A writer that has written `count` records, twice, with something between."""
    filled: SimpleQueue[Filled | None] = SimpleQueue()
    journal = Journal(1 << 20, filled.put, time.monotonic)
    writer = Writer(journal, filled, store(folder, most_in_all=most_in_all), LineFormatter(PROXY, 1.0, plain))
    for again in (True, False):
        for n in range(count):
            journal.add(_now(record(n)), Outcome.CONFIRMED, time.monotonic())
        journal.turn()
        filled.put(None)
        writer.run()
        if again:
            between(writer, journal)
    return writer, journal


def _now(made: Record) -> Record:
    made.published_at = time.monotonic()
    return made


def test_the_writer_writes_all_and_gives_the_buffers_back(tmp_path: Path) -> None:
    writer, journal = run(tmp_path, CAPACITY + 5, lambda *_: None)
    lines = b"".join(text for _, text in sorted(shown(tmp_path).items())).splitlines()
    assert len(lines) == writer.written == journal.sequence == 2 * (CAPACITY + 5)
    assert (writer.lost, journal.dropped, len(journal.spare)) == (0, 0, 5)
    assert all(one is None for buffer in journal.spare for one in buffer)


def test_what_cannot_be_written_is_counted_and_writing_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing of root's is refused for want of a permission: a file stands where a folder should.
    records = tmp_path / "records"

    def block(writer: Writer, _: Journal) -> None:
        assert (writer.written, writer.lost) == (0, 10)
        assert "Not a directory" in writer.fault or "File exists" in writer.fault
        today.unlink()

    store(tmp_path)
    today = records / time.strftime("dt=%Y-%m-%d", time.gmtime())
    today.touch()
    writer, _ = run(tmp_path, 10, block)
    assert (writer.written, writer.lost, writer.fault) == (10, 10, "")
    (text,) = shown(tmp_path).values()
    assert b'"seq":11,' in text.splitlines()[0]
    assert sum("cannot be written" in message for message in caplog.messages) == 1
