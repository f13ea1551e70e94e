"""The broker's password, from the URL or from a file that may change."""

from pathlib import Path

import pytest
from yarl import URL

from proxy.settings.credentials import credentials
from proxy.settings.parse import ConfigError

LOGIN = URL("amqp://me:old@h/v")


def test_without_a_file_they_are_the_urls() -> None:
    assert credentials("broker_password_file", LOGIN, None)() == ("me", "old")
    assert credentials("broker_password_file", URL("amqp://h"), None)() == ("guest", "guest")


def test_a_new_password_counts_at_the_next_use_and_a_broken_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    login = credentials("broker_password_file", LOGIN, file)
    assert login() == ("me", "first")
    file.write_text("second é\nmore\n")
    assert login() == ("me", "second é")
    for broken in (b"", b"\n", b"\xff"):
        file.write_bytes(broken)
        assert login() == login() == ("me", "second é")
    file.unlink()
    assert login() == ("me", "second é")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 4
    assert all(error.startswith("broker_password_file: ") and "second" not in error for error in errors)


@pytest.mark.parametrize("broken", [None, b"", b"\xff"])
def test_a_file_without_a_password_at_the_start(tmp_path: Path, broken: bytes | None) -> None:
    if broken is not None:
        (tmp_path / "password").write_bytes(broken)
    with pytest.raises(ConfigError, match=r"^management_password_file: "):
        credentials("management_password_file", LOGIN, tmp_path / "password")
