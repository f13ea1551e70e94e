"""The unix socket of the HTTP ingress: whose it is, what it replaces, and what it leaves alone."""

import socket
import stat
from pathlib import Path

import pytest

from proxy.http.unix_socket import unix_socket
from proxy.settings.parse import ConfigError


def mistake(path: Path) -> str:
    with pytest.raises(ConfigError) as raised, unix_socket("http_socket", path):
        pass
    assert str(raised.value).startswith("http_socket: ")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_it_is_for_owner_and_group_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with unix_socket("http_socket", path) as bound:
        bound.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_one_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with unix_socket("http_socket", path) as bound:
        bound.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_one_that_somebody_listens_on_stays(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with unix_socket("http_socket", path) as bound:
        bound.listen()
        assert "another process listens" in mistake(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_what_a_successor_has_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with socket.socket(socket.AF_UNIX) as successor:
        with unix_socket("http_socket", path):
            path.rename(tmp_path / "old")
            successor.bind(str(path))
        assert path.is_socket()


def test_paths_that_cannot_be_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "not a socket" in mistake(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert "not a socket" in mistake(tmp_path)
    assert "No such file" in mistake(tmp_path / "nowhere" / "http")
    assert "too long" in mistake(tmp_path / ("x" * 200))
