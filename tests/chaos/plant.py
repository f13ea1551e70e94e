"""Plants a loss, a misroute, a duplicate and a return in what a run found: the judge must see each in that run."""

from collections.abc import Mapping, Sequence

from tests.chaos.history import History, Limits, Rings
from tests.chaos.oracle import Copy, Fleet, Note, Told, flapped

PLANTED: tuple[str, ...] = ("was confirmed and is in no queue", "and not in [", "is 2 times in queues")
"""The faults that the judge must find in the copies."""

RETURNED = " flapped, and other queues stood"
"""The fault that the judge must find in a run in which a queue flapped, too."""


def returned(notes: Sequence[Note], history: History, limits: Limits, fleet: Fleet) -> list[Note]:
    """Return the notes; the first message of a queue that flapped came back, if any queue did.

    The judge calls a run red in which there is no such message.
    """
    rings = Rings(history, limits)
    for at, note in enumerate(notes):
        if any(flapped(note, flap, rings, fleet) for flap in history.flaps):
            return [*notes[:at], note._replace(outcome=Told.RETURNED), *notes[at + 1 :]]
    return list(notes)


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
