"""Files of results: their names, the newest of a part, and what they say of their making."""

import subprocess
from datetime import date
from pathlib import Path

import pytest

from bench.results import Result, commit, document, file_name, newest
from bench.tables import table


def test_a_file_is_named_after_its_part_and_the_brokers_release() -> None:
    assert [file_name("http-latency", version) for version in ("4.3.6", "3.10.8-1", "")] == [
        *("http-latency-4.3.md", "http-latency-3.10.md", "http-latency.md"),
    ]


def test_the_newest_release_is_the_greatest_number_and_not_the_last_name(tmp_path: Path) -> None:
    for name in ("http-3.10.md", "http-4.3.md", "http-4.10.md", "http-latency-5.0.md", "growth.md"):
        (tmp_path / name).touch()
    assert [newest(part, tmp_path).name for part in ("http", "http-latency", "growth")] == [
        *("http-4.10.md", "http-latency-5.0.md", "growth.md"),
    ]


def test_a_file_says_when_and_how_it_was_made_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys-4.3.md"
    path.write_text(document("keys", "python -m bench keys", ": two cores", table(["a", "b"], [["x", "1"]])))
    assert path.read_text().startswith(
        f"# keys\n\n`python -m bench keys`, {date.today().isoformat()}: two cores.\n\n| a | b |"
    )
    result = Result(path)
    assert result.table("a") == result.table("b", 1)
    assert result.table("a").number(["x"], "b") == 1


def test_a_commit_is_told_where_git_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) == ""
    (tmp_path / "file").write_text("1")
    identity = ["-c", "user.name=test", "-c", "user.email=test", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    found = commit(tmp_path)
    assert found
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{found}-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit(tmp_path) == ""
