"""The CPU time at a fixed rate is that of the process, over the messages that were due."""

import os

import pytest

from bench.long.rates import spent


def _busy(seconds: float) -> None:
    """Take some CPU time, more than the kernel's count can miss."""
    sum(range(2_000_000))


def test_the_time_is_told_a_second_and_a_message() -> None:
    found = spent(os.getpid(), 50, _busy, 4)
    assert found.each is not None
    assert found.each > 0
    assert found.cores * 1e6 == pytest.approx(found.each * 50)


def test_without_messages_it_is_told_a_second_only() -> None:
    found = spent(os.getpid(), 0, _busy, 4)
    assert found.each is None
    assert found.cores > 0
