"""The command line before any command begins; the commands themselves: tests/integration."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import USAGE_ERROR, main


@pytest.fixture
def hang_up() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize(("command", "taken"), [("run", signal.SIG_IGN), ("config", signal.SIG_DFL)])
def test_a_hang_up_does_not_end_a_sidecar_that_starts(command: str, taken: signal.Handlers, tmp_path: Path) -> None:
    assert main([command, "--config", str(tmp_path / "absent.toml")]) == USAGE_ERROR
    assert signal.getsignal(signal.SIGHUP) is taken
