"""A measurement in a process of its own."""

from pathlib import Path

import pytest

from bench import BenchError, apart


def test_a_rate_is_the_number_by_the_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measuring.py").write_text("import sys; print(int(sys.argv[1]) * 3, sys.argv[2])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert apart.rate("measuring", 4, 0.5) == (24.0, 12)
    with pytest.raises(BenchError, match=r"-m measuring 4 failed: (.|\n)*IndexError"):
        apart.figures("measuring", 4)
