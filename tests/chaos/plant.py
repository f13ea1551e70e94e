"""Plants a loss, a misroute and a duplicate in what a run found: the judge must see each, in that very run."""

from collections.abc import Mapping, Sequence

from tests.chaos.history import History, Limits, Rings
from tests.chaos.oracle import Copy, Fleet, Note, Told

PLANTED = ("was confirmed and is in no queue", "and not in [", "is 2 times in queues")
"""What the judge must say."""


def planted(
    notes: Sequence[Note], copies: Sequence[Copy], history: History, limits: Limits, fleet: Fleet
) -> list[Copy]:
    """Return the copies, with one taken away, one in a queue where no ring put it, and one there twice.

    The first three for which one queue alone was right, which was not deleted about then.
    """
    rings = Rings(history, limits)
    by_id: Mapping[tuple[str, int], Note] = {(note.publisher, note.number): note for note in notes}
    deleted = {deletion.queue for deletion in history.deletions}
    victims: list[int] = []
    for at, copy in enumerate(copies):
        note = by_id[copy.publisher, copy.number]
        judged = note.outcome == Told.CONFIRMED and note.publisher not in fleet.native and copy.queue not in deleted
        alone = judged and rings.owners(note.key, note.sent, note.latest) == {copy.queue}
        if alone and rings.kept(note.key, note.sent, note.latest) <= {copy.queue}:
            victims.append(at)
        if len(victims) == len(PLANTED):
            break
    lost, strayed, doubled = victims
    other = next(copy.queue for copy in copies if copy.queue != copies[strayed].queue)
    changed = {strayed: [copies[strayed]._replace(queue=other)], lost: [], doubled: [copies[doubled]] * 2}
    return [copy for at, original in enumerate(copies) for copy in changed.get(at, [original])]
