"""Folders of a landed table that no manifest names: those of runs that died, and batches that have been merged.

Nobody can tell a dead run from a slow one, nor whether a reader still reads a batch that is merged. A folder is noted
before it may become a leftover, and removed a day later if no manifest names it then.
"""

import contextlib
import json
import time
from collections.abc import Sequence

from pipeline.data.files import GoneError, content, found
from pipeline.data.folder import Folder
from pipeline.data.landed import Landed

KEPT_SECONDS = 24 * 3600
"""How long a leftover stays: longer than any job reads."""


def note(folder: Folder, name: str, patterns: Sequence[str]) -> None:
    """Note the folders of these patterns, below the table, under a name."""
    folder.create(f"leftovers/{name}.json", json.dumps({"at": int(time.time()), "folders": list(patterns)}))


def done(folder: Folder, name: str) -> None:
    """Forget a note: its folders are in manifests, or gone."""
    folder.delete(f"leftovers/{name}.json")


class Remover:
    """Removes the leftovers of a table once an hour, while a job lives."""

    def __init__(self, table: Landed, folder: Folder) -> None:
        """Take the table, and its folder as one that can be written."""
        self._table, self._folder, self._next = table, folder, 0.0

    def __call__(self) -> None:
        """Remove the leftovers, unless that was done within the hour."""
        if time.monotonic() >= self._next:
            remove(self._table, self._folder)
            self._next = time.monotonic() + 3600


def remove(table: Landed, folder: Folder, seconds: float = KEPT_SECONDS) -> int:
    """Remove the noted folders that no manifest names, of notes older than `seconds`; return how many."""
    notes = {}
    for file in found(table.spark, f"{table.path}/leftovers/*.json"):
        with contextlib.suppress(GoneError):  # Its run is done.
            notes[file] = json.loads(content(table.spark, file))
    old = {file: told["folders"] for file, told in notes.items() if time.time() - told["at"] >= seconds}
    young = [f"/{name}" for file, told in notes.items() if file not in old for name in told["folders"]]
    removed = 0
    for file, patterns in old.items():
        for place in (place for pattern in patterns for place in found(table.spark, f"{table.path}/{pattern}")):
            # A batch of a run that died behind its manifest may have been merged a minute ago.
            if not _is_named(table, place) and not place.endswith(tuple(young)):
                folder.delete(place)
                removed += 1
        folder.delete(file)
    return removed


def _is_named(table: Landed, place: str) -> bool:
    hour, _, batch = place.rpartition("/records/")[2].partition("/batch=")
    return "/records/" in place and any(one.id == batch for one in table.manifest(hour).batches)
