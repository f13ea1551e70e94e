"""Files that settings name: what happens to the watch over them."""

import asyncio
from pathlib import Path

import pytest

from proxy.settings import files, watched
from proxy.settings.config import Settings
from tests.unit.proxy.eventually import eventually


def write_tokens(file: Path, token: str) -> None:
    file.write_text(f'[[tokens]]\nname = "t"\ntoken = "{token}"\npublish = ["*"]\n')


async def test_the_watch_outlives_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched, "LOOK_INTERVAL", 0.01)
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, "first")
    made = files.Files(Settings(tokens_file=tokens))
    (tokens_of,) = made.watched
    refresh, looks, again = tokens_of.refresh, 0, asyncio.Event()

    def defective(*, asked: bool) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ZeroDivisionError
        refresh(asked=asked)
        again.set()

    monkeypatch.setattr(tokens_of, "refresh", defective)
    write_tokens(tokens, "second")
    watch = asyncio.create_task(made.watch())
    await asyncio.wait_for(again.wait(), 10)
    watch.cancel()
    made.access.check("Bearer second", "/", "orders")
    assert [record.message for record in caplog.records if record.exc_info] == [
        "unexpected error while reading files again; what was read before stays in force"
    ]


async def test_who_asks_has_all_files_read_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "LOOK_INTERVAL", 1000)
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, "first")
    again = watched.Watched("config", [tokens], tokens.read_text, settles=True)
    made = files.Files(Settings(tokens_file=tokens), again)
    watch = asyncio.create_task(made.watch())
    made.asked.set()
    await eventually(lambda: [each.successes for each in made.watched] == [1, 1])
    watch.cancel()
