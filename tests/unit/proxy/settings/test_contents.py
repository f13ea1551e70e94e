"""How the files are read that settings and commands name, and what is told of a secret that all may read."""

import logging
import os
import re
from pathlib import Path

import pytest

from proxy.settings.contents import MOST_BYTES, content, secret_content
from proxy.settings.credentials import secret
from proxy.settings.parse import ConfigError
from proxy.settings.sources import load_settings
from proxy.settings.tokens import read_tokens
from proxy.shards import document


def test_a_file_has_an_end(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(MOST_BYTES))
    assert len(content("ca_file", file)) == MOST_BYTES
    with file.open("ab") as opened:
        opened.write(b"x")
    for endless in (file, Path("/dev/zero")):
        with pytest.raises(
            ConfigError, match=f"^ca_file: '{re.escape(str(endless))}' cannot be read: longer than {MOST_BYTES} bytes"
        ):
            content("ca_file", endless)


def test_no_file_that_is_named_anywhere_is_read_for_ever() -> None:
    endless = Path("/dev/zero")
    with pytest.raises(ConfigError, match="longer than"):
        read_tokens(endless)
    with pytest.raises(ConfigError, match="longer than"):
        secret("broker_password_file", endless)
    with pytest.raises(ConfigError, match=r"/dev/zero: cannot be read: .*longer than"):
        load_settings(endless, {}, {})
    with pytest.raises(document.DocumentError, match=r"/dev/zero: cannot be read: .*longer than"):
        document.load(endless)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """As of the shell's <(pass show broker)."""
    end, other = os.pipe()
    os.write(other, b"hush\n")
    os.close(other)
    try:
        assert secret("broker_password_file", Path(f"/dev/fd/{end}")) == "hush"
    finally:
        os.close(end)


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user may enter, whatever pytest's own folders are."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001 and os.access(folder, os.W_OK):
            folder.chmod(folder.stat().st_mode | 0o001)
    return tmp_path


def told_of(file: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert secret_content("tokens_file", file) == b"hush"
    return [record.getMessage() for record in caplog.records]


def test_a_secret_that_all_may_read_is_told(open_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = open_folder / "tokens.toml"
    file.write_bytes(b"hush")
    file.chmod(0o644)
    (told,) = told_of(file, caplog)
    assert told.startswith(
        f"tokens_file: every user of this machine can read {str(file)!r} (mode 0644); run chmod o= on"
    )
    assert told_of(file, caplog) == []
    (open_folder / "link").symlink_to(file)
    assert len(told_of(open_folder / "link", caplog)) == 1
    for mode in (0o600, 0o640, 0o440):
        file.chmod(mode)
        assert told_of(file, caplog) == []
    file.chmod(0o604)
    assert len(told_of(file, caplog)) == 1


def test_a_secret_in_a_folder_of_its_own_is_not_told(open_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (open_folder / "own").mkdir(0o700)
    file = open_folder / "own" / "tokens.toml"
    file.write_bytes(b"hush")
    file.chmod(0o644)
    assert told_of(file, caplog) == []


def test_a_secret_of_a_kubernetes_volume_is_not_told(open_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its mode is 0644 by default, and nobody is there but the containers that mount it."""
    (open_folder / "..2026").mkdir()
    (open_folder / "..data").symlink_to("..2026")
    (open_folder / "tokens.toml").symlink_to("..data/tokens.toml")
    file = open_folder / "..2026" / "tokens.toml"
    file.write_bytes(b"hush")
    file.chmod(0o644)
    assert told_of(open_folder / "tokens.toml", caplog) == []
