"""Files that settings name: what happens to the watch over them."""

import asyncio
from pathlib import Path

import pytest

from proxy.settings import files, watched
from proxy.settings.config import Settings


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

    def defective() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ZeroDivisionError
        refresh()
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
