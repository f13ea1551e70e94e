"""Merging the small batches of an hour, so that a stream's many batches do not become many small files.

Eight batches that have been merged equally often become one that has been merged once more, three times at most: each
record is written four times in all, however many batches an hour has.
"""

from collections import defaultdict
from dataclasses import replace

from pipeline.data.folder import Folder
from pipeline.data.landed import Batch, Landed, Manifest
from pipeline.land import leftovers
from pipeline.land.landing import new_id

TOGETHER = 8
MOST_LEVEL = 3

A_FILE = 4_000_000
"""Records of a file, at most: some 100 MB."""


def merge(table: Landed, folder: Folder, hour: str) -> int:
    """Merge batches of an hour where TOGETHER of them have one level; return how many batches were merged."""
    count = 0
    while group := _group(table.manifest(hour)):
        _merge(table, folder, hour, group)
        count += len(group)
    return count


def _group(manifest: Manifest) -> list[Batch]:
    """Return batches to be merged; none where too few have one level."""
    levels = defaultdict[int, list[Batch]](list)
    for batch in manifest.batches:
        levels[batch.level].append(batch)
    every = [group for level, group in sorted(levels.items()) if level < MOST_LEVEL and len(group) >= TOGETHER]
    return every[0] if every else []


def _merge(table: Landed, folder: Folder, hour: str, group: list[Batch]) -> None:
    records = sum(batch.records for batch in group)
    merged = Batch(new_id(), records, group[0].level + 1)
    leftovers.note(folder, merged.id, [f"records/{hour}/batch={merged.id}"])
    rows = table.records([table.folder(hour, batch.id) for batch in group])
    together = rows.coalesce(-(-records // A_FILE)).sortWithinPartitions("proxy", "seq")
    together.write.parquet(table.folder(hour, merged.id))
    # Readers that have read the manifest before go on reading the old ones.
    leftovers.note(folder, f"{merged.id}-merged", [f"records/{hour}/batch={batch.id}" for batch in group])

    swapped = False

    def swap(manifest: Manifest) -> Manifest | None:
        nonlocal swapped
        swapped = set(group) <= set(manifest.batches)
        if not swapped:
            return None  # Another run has merged some of them.
        return replace(manifest, batches=(*(one for one in manifest.batches if one not in group), merged))

    table.change(folder, hour, swap)
    if swapped:
        leftovers.done(folder, merged.id)
