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
    assert (watched(), watched.failures, watched.fault, watched.files) == (1, 0, "", (file,))
    file.write_text("rubbish")
    for _ in range(3):
        assert (watched(), watched.failures, watched.fault) == (1, 1, "some_file: no number")
    file.unlink()
    assert (watched(), watched.failures, watched.fault) == (1, 2, "some_file: no number")
    file.write_text("22")
    assert (watched(), watched.failures, watched.fault) == (22, 2, "")
