"""`config --check`: a mistake in each kind of file, with the setting that names it; nothing is made or changed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import main
from proxy.commands.check import mistakes
from proxy.journal.files import check_folder
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.sources import load_settings
from tests.certificates import Authority, ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in good order for every setting that names one."""
    folder = tmp_path_factory.mktemp("files")
    authority = Authority(folder)
    for name in ("tls", "client", "old", "other"):
        authority.issue(name)
    ended(authority.issue("old"))
    for name in ("broker.password", "management.password", "journal.key"):
        (folder / name).write_text("s3cret\n")
    (folder / "tokens.toml").write_text('[[tokens]]\nname = "t"\ntoken = "s3cret"\npublish = ["*"]\n')
    (folder / "rubbish").write_text("s3cret rubbish")
    (folder / "empty").touch()
    (folder / "long").write_text("s3cret" * 20)
    return folder


def settings(folder: Path) -> dict[str, str]:
    files = {
        "broker_password_file": "broker.password",
        "management_password_file": "management.password",
        "tokens_file": "tokens.toml",
        "tls_cert_file": "tls.crt",
        "tls_key_file": "tls.key",
        "client_ca_file": "ca.crt",
        "ca_file": "ca.crt",
        "client_cert_file": "client.crt",
        "client_key_file": "client.key",
        "journal_key_file": "journal.key",
        "journal_dir": "new/journal",
        "ring_cache_dir": "new/rings",
        "http_socket": "http.sock",
    }
    urls = {"broker_url": "amqps://me@h/", "management_url": "https://me@h", "journal_key": "hash"}
    return {name: str(folder / file) for name, file in files.items()} | urls


def found(folder: Path, **changes: str) -> list[str]:
    given = settings(folder) | {name: str(folder / file) for name, file in changes.items()}
    made = load_settings(None, {}, given, secrets=False)
    before = sorted(folder.rglob("*"))
    lines = mistakes(made)
    assert sorted(folder.rglob("*")) == before
    assert not [line for line in lines if "s3cret" in line or "\n" in line]
    return lines


def test_what_is_in_order_has_no_mistake(folder: Path) -> None:
    assert found(folder) == []
    assert mistakes(Settings()) == []


@pytest.mark.parametrize(
    ("setting", "file", "why"),
    [
        ("broker_password_file", "nowhere", "cannot be read: No such file"),
        ("management_password_file", "empty", "empty first line"),
        ("tokens_file", "nowhere", "cannot be read: No such file"),
        ("tokens_file", "rubbish", "not TOML"),
        ("tls_cert_file", "rubbish", "has no certificate"),
        ("tls_key_file", "other.key", "is not the key of tls_cert_file"),
        ("tls_key_file", "nowhere", "cannot be read"),
        ("client_ca_file", "tls.key", "has no certificate"),
        ("ca_file", "nowhere", "cannot be read"),
        ("client_cert_file", "empty", "has no certificate"),
        ("client_key_file", "tls.key", "is not the key of client_cert_file"),
        ("journal_key_file", "empty", "empty first line"),
        ("journal_key_file", "long", "120 bytes"),
        ("journal_dir", "rubbish", "cannot be written to: Not a directory"),
        ("ring_cache_dir", "rubbish", "is not a folder that this user may write to"),
        ("ring_cache_dir", "rubbish/below", "is not a folder that this user may write to"),
        ("journal_dir", "rubbish/below", "cannot be written to: Not a directory"),
        ("http_socket", "nowhere/http.sock", "not a folder that this user may write to"),
    ],
)
def test_a_mistake_names_the_setting_and_the_file(folder: Path, setting: str, file: str, why: str) -> None:
    (line,) = found(folder, **{setting: file})
    assert line.startswith(f"{setting}: ")
    assert why in line
    assert file.removesuffix("/below") in line or "bytes" in line


@pytest.mark.parametrize(
    ("file", "why"),
    [("nowhere", "cannot be read: No such file"), ("empty", "has an empty first line"), ("tls.key", "")],
)
def test_the_secret_of_a_client_of_an_authorization_server(folder: Path, file: str, why: str) -> None:
    given = {"oauth_token_url": "http://h", "oauth_client_id": "c", "oauth_client_secret_file": str(folder / file)}
    lines = mistakes(load_settings(None, {}, given, secrets=False))
    assert [why in line and line.startswith("oauth_client_secret_file: ") for line in lines] == [True] * bool(why)


@pytest.mark.parametrize("which", ["tls", "client"])
def test_a_certificate_that_has_ended_is_a_mistake(folder: Path, which: str) -> None:
    (line,) = found(folder, **{f"{which}_cert_file": "old.crt", f"{which}_key_file": "old.key"})
    assert line.startswith(f"{which}_cert_file: the certificate in ")
    assert "old.crt' ended at 20" in line


def test_no_mistake_hides_another(folder: Path) -> None:
    wrong = (
        *("tokens_file", "tls_key_file", "ca_file"),
        *("broker_password_file", "management_password_file", "journal_key_file"),
    )
    lines = found(folder, **dict.fromkeys(wrong, "empty"))
    assert [line.partition(":")[0] for line in lines] == list(wrong)


def test_a_password_as_config_shows_it_is_a_mistake() -> None:
    (line,) = mistakes(load_settings(None, {}, {"broker_url": "amqp://me:***@h/"}, secrets=False))
    assert line.startswith("broker_url: the password is '***'")


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root may write everywhere, so the test is somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.mark.usefixtures("nobody")
def test_a_folder_without_the_right_to_write_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"^journal_dir: '/no-such/journal' cannot be written to: Permission denied"):
        check_folder(Path("/no-such/journal"))


def flags(folder: Path, **changes: str) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in (settings(folder) | changes).items()]


def test_the_commands_status_tells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--check", *flags(folder)]) == 0
    assert capsys.readouterr() == ("the settings, and the files that they name, are in order\n", "")
    wrong = {"tokens_file": "/no\nwhere", "ca_file": "/nowhere"}
    assert main(["config", "--check", *flags(folder, **wrong)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[:2] for line in err.splitlines()] == [
        ["ring-proxy", " tokens_file"],
        ["ring-proxy", " ca_file"],
    ]
    # A setting that is wrong without any file is told as ever.
    assert main(["config", "--check", "--sync-interval=soon"]) == 2
    assert "sync_interval" in capsys.readouterr().err
