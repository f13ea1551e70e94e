"""Files that are read again when they change: what is told of a mistake in them."""

from pathlib import Path

from proxy.settings.parse import ConfigError
from proxy.settings.watched import Watched


def test_a_mistake_is_counted_and_told_until_it_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("1")

    def read() -> int:
        try:
            return int(file.read_text())
        except (ValueError, OSError):
            raise ConfigError("some_file: no number") from None

    watched = Watched("some_file", [file, None], read)
    began = watched.read_at
    assert (watched(), watched.failures, watched.fault, watched.files) == (1, 0, "", (file,))
    file.write_text("rubbish")
    for _ in range(3):
        assert (watched(), watched.failures, watched.fault) == (1, 1, "some_file: no number")
    file.unlink()
    assert (watched(), watched.failures, watched.fault) == (1, 2, "some_file: no number")
    file.write_text("22")
    assert (watched(), watched.failures, watched.fault) == (22, 2, "")
    assert watched.successes == 1
    assert watched.read_at >= began


def test_a_file_that_settles_is_read_once_two_looks_find_it_alike(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("whole")
    watched = Watched("some_file", [file], file.read_text, settles=True)
    file.write_text("")
    assert watched() == "whole"
    file.write_text("half of")
    assert watched() == "whole"
    file.write_text("half of it, and the rest")
    assert watched() == "whole"
    assert watched() == watched() == "half of it, and the rest"
    assert watched.successes == 1
    file.write_text("at once")
    assert watched.refresh(asked=True) == "at once"
    assert watched.refresh(asked=True) == "at once"
    assert watched.successes == 3
