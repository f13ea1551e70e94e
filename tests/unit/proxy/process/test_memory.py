"""The sum of what settings let in, and the limit of the control group that it is held against."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxy.process import memory
from proxy.settings.config import Settings

MIB = memory.MIB


def test_every_limit_counts() -> None:
    def together(**changes: Any) -> int:
        return sum(size for _, size in memory.reckoned(Settings(**changes)))

    before = together()
    assert together(max_sessions=1001) - before == MIB
    assert together(max_http_connections=11_008) - before == MIB
    assert together(max_in_flight_bytes=65 * MIB) - before == MIB
    one_each: dict[str, Any] = {"max_sessions": 1, "max_http_connections": 1}
    tls: dict[str, Any] = {"tls_cert_file": Path("c"), "tls_key_file": Path("k")}
    assert together(**tls, **one_each) - together(**one_each) == 2 * memory.TLS


def test_the_table_is_a_comment_with_the_sum() -> None:
    text = memory.table(Settings(max_sessions=64, max_http_connections=200))
    assert tomllib.loads(text) == {}
    assert text.splitlines()[-1].split() == ["#", "239", "MiB", "together"]
    assert "64 AMQP sessions whose peers do not read: max_sessions" in text


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        pytest.param("0::/\n", {"": "268435456\n"}, 256 * MIB, id="of a container"),
        pytest.param("0::/pods/one\n", {"pods/one": "1048576\n", "": "2097152\n"}, MIB, id="of the process's own"),
        pytest.param("0::/not/here\n", {"": "1048576\n"}, MIB, id="a path of the host's that is not seen from within"),
        pytest.param("0::/\n", {"": "max\n"}, None, id="none"),
        pytest.param("0::/\n", {}, None, id="no control groups"),
    ],
)
def test_the_limit_of_the_control_group(own: str, limits: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    for path, text in limits.items():
        (tmp_path / "groups" / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / path / "memory.max").write_text(text)
    (tmp_path / "own").write_text(own)
    assert memory.limit(tmp_path / "groups", tmp_path / "own") == expected


def test_settings_beyond_the_containers_limit_are_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(max_sessions=64, max_http_connections=200)
    for most in (None, 256 * MIB):
        memory.warn_beyond(settings, most)
    assert not caplog.records
    memory.warn_beyond(settings, 200 * MIB)
    memory.warn_beyond(Settings(), 256 * MIB)
    few, default = (record.getMessage() for record in caplog.records)
    assert "let in 239 MiB at once, and beyond the container's limit, 200 MiB, " in few
    assert "1375 MiB, is for 11000 HTTP connections" in default
    assert "max_http_connections" in default
