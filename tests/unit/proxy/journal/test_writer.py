"""The thread that writes the journal: when it says that records were."""

import json
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from proxy.journal import writer
from proxy.journal.buffer import Filled, Journal
from proxy.journal.lines import LineFormatter, plain
from proxy.journal.writer import Writer
from proxy.outcome import Outcome
from tests.unit.proxy.journal.test_buffer import record

EPOCH = 1_000_000_000.0


class Clock:
    """In place of `time`: between any two readings passes one of `pauses`, in turn, and no time after them."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self._now, self._pauses = 100.0, list(pauses)

    def _read(self) -> float:
        now = self._now
        if self._pauses:
            self._now += self._pauses.pop(0)
        return now

    def monotonic(self) -> float:
        return self._read()

    def time(self) -> float:
        return EPOCH + self._read()

    def sleep(self, seconds: float) -> None: ...


class Kept:
    """A store that keeps lines."""

    def __init__(self) -> None:
        self.lines = b""

    def ring(self, fingerprint: str, content: bytes) -> None: ...

    def write(self, lines: bytes, records: int, first: int, at: float) -> None:
        self.lines += lines

    def finish_if_due(self) -> bool:
        return True

    def hurry(self) -> None: ...

    def give_up(self) -> int:
        return 0

    def close(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("pauses", "off"),
    [
        ([0.1], 0.0),  # as where the thread waits for the GIL
        ([0.1] * 9, 0.0),
        ([0.03, 0.05] + [0.1] * 100, 0.01),  # none was close: the best of them
    ],
)
def test_a_pause_between_two_clocks_dates_no_record_otherwise(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], off: float
) -> None:
    monkeypatch.setattr(writer, "time", Clock(pauses))
    filled: SimpleQueue[Filled | None] = SimpleQueue()
    journal, kept = Journal(1 << 20, filled.put, lambda: 99.0), Kept()
    journal.add(record(), Outcome.CONFIRMED, 99.5)
    journal.turn()
    filled.put(None)
    Writer(journal, filled, kept, LineFormatter("00000000000000ab", 1.0, plain)).run()
    assert json.loads(kept.lines)["time"] / 1e6 == pytest.approx(EPOCH + 99.5, abs=off + 1e-5)
