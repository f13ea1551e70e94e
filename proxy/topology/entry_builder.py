"""Make an entry of the router of a reading and the weights in force: the ring, a reason to pass, what changed."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES, Bindings, Exchange
from proxy.topology.changes import changed, dead_letters_refused, lost
from proxy.topology.management import Management
from proxy.topology.ring_cache import Saved
from proxy.topology.table import Change, Entry, KnownRing, Name, PassReason, with_change
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

DEAD_LETTER_READS = 2
"""Queues of a ring whose dead-lettering is looked at again with each reading; new ones are looked at in any case.

Few: with 1,000 sidecars eight of them made four fifths of what readings cost the broker, a core in all.
"""

_AT_ONCE = 4

Weights = Mapping[Destination, int]


class EntryBuilder:
    """Makes entries. Rings are built in threads of their own, nearly all of it without the GIL, so the loop goes on."""

    def __init__(self, api: Management, selection: Selection, on_dead_letter: OnDeadLetter) -> None:
        """`on_dead_letter` is the setting: what happens where queues would dead-letter under their own name."""
        self._api, self._selection, self._on_dead_letter = api, selection, on_dead_letter
        self._builder = ThreadPoolExecutor(1, "ring-builder")

    def close(self) -> None:
        """Ends the thread once it is done with the ring it may be building."""
        self._builder.shutdown(wait=False, cancel_futures=True)

    async def entry(
        self,
        name: Name,
        exchange: Exchange | None,
        bindings: Bindings,
        weights: Weights,
        before: Entry | None,
        started: float,
        why: str,
    ) -> tuple[Entry, Change | None]:
        """The entry that follows `before`, and how its ring changed; `started` is when the reading was, monotonic.

        `weights` are those in force, which may have more than `bindings`. Raises ManagementError or TopologyError.
        """
        mode = self._selection.mode(*name)
        known = before.known if before else None
        if exchange is not None:
            exchange_type, hashed = exchange.type, exchange.hashed
        else:
            # Gone, but not settled: the last ring serves on, but for what is confirmed to be gone.
            exchange_type = before.exchange_type if before else ""
            hashed = known.hashed if known else HashedValue()
        change, internal = None, False
        queues: Mapping[str, str | None] = {}
        if mode is Mode.PASS or not weights:
            known, change = None, lost(known, why)
        else:
            # Of what is in force, which may have destinations that the reading has not any more.
            queues = await self._dead_letters(name[0], weights, before.queues if before else {})
            internal = await self._any_internal(name[0], weights)
            if known is None or not _same(known, weights, hashed, exchange_type):
                loop = asyncio.get_running_loop()
                known, change = await loop.run_in_executor(
                    self._builder, _next, known, weights, hashed, exchange_type, why
                )
        passed = self._pass_reason(exchange_type, mode, known, queues, internal)
        entry = Entry(
            mode=mode,
            exchange_type=exchange_type,
            known=known,
            passed=passed,
            refused=self._refused(passed, mode, queues),
            bindings=bindings,
            read_at=started,
            queues=queues,
            internal=exchange is not None and exchange.internal,
            publish_in=exchange.publish_in if exchange is not None else None,
            changes=before.changes if before else (),
        )
        return (with_change(entry, change) if change else entry), change

    async def restored(self, saved: Saved, read_at: float) -> Entry | None:
        """Return the entry of what was kept on disk, decided by the settings of now; None where those keep no ring.

        `read_at` is when the reading was, monotonic.
        """
        mode = self._selection.mode(*saved.name)
        if mode is Mode.PASS and saved.exchange_type in RING_TYPES:
            return None
        known = None
        if saved.weights:
            loop = asyncio.get_running_loop()
            known, _ = await loop.run_in_executor(
                self._builder, _next, None, saved.weights, saved.hashed, saved.exchange_type, "restored"
            )
        passed = self._pass_reason(saved.exchange_type, mode, known, saved.queues, saved.internal_destination)
        return Entry(
            mode=mode,
            exchange_type=saved.exchange_type,
            known=known,
            passed=passed,
            refused=self._refused(passed, mode, saved.queues),
            bindings=Bindings(saved.weights),
            read_at=read_at,
            queues=saved.queues,
            internal=saved.internal,
            restored=True,
        )

    def _refused(self, passed: PassReason | None, mode: Mode, queues: Mapping[str, str | None]) -> str:
        """Return why publishes are refused, empty where they are not: never of an exchange that is only watched."""
        refuses = passed is PassReason.DEAD_LETTER and mode is Mode.ROUTE and self._on_dead_letter == "refuse"
        return dead_letters_refused(queues) if refuses else ""

    def _pass_reason(
        self,
        exchange_type: str,
        mode: Mode,
        known: KnownRing | None,
        queues: Mapping[str, str | None],
        internal: bool,
    ) -> PassReason | None:
        if exchange_type not in RING_TYPES:
            return PassReason.TYPE
        if mode is Mode.PASS:
            return PassReason.MODE_PASS
        if known is None:
            return PassReason.NO_BINDINGS
        if internal:
            return PassReason.INTERNAL_DESTINATION
        if any(queues.values()) and self._on_dead_letter != "rewrite":
            return PassReason.DEAD_LETTER
        return PassReason.SHADOW if mode is Mode.SHADOW else None

    async def _any_internal(self, vhost: str, weights: Weights) -> bool:
        """Whether an exchange bound as a destination is internal: a publish to it would be refused with 403."""
        for destination in weights:
            if destination.kind == "exchange":
                exchange = await self._api.exchange(vhost, destination.name)
                if exchange is not None and exchange.internal:
                    return True
        return False

    async def _dead_letters(
        self, vhost: str, weights: Weights, before: Mapping[str, str | None]
    ) -> Mapping[str, str | None]:
        """Return of each bound queue what makes it dead-letter under its own name, as `Entry.queues` has it.

        Queues that were found to do so before come first: while one of them does, the exchange is not routed. Once
        none of those that were looked at does any more, the rest of them are looked at too, so that the exchange is
        routed again as soon as the last queue is mended, however many there are.
        """
        queues = {d.name: None for d in weights if d.kind == "queue"}
        answers = {queue: cause for queue, cause in before.items() if queue in queues}
        unsettled = [queue for queue in queues if answers.get(queue) is None]
        settled = sorted((q for q, cause in answers.items() if cause is not None), key=lambda q: not answers[q])
        suspects = [queue for queue in settled if answers[queue]]
        await self._look(vhost, [*unsettled, *settled[:DEAD_LETTER_READS]], answers)
        todo = suspects[DEAD_LETTER_READS:]
        while todo and not any(answers[queue] for queue in suspects if queue not in todo):
            await self._look(vhost, todo[:_AT_ONCE], answers)
            todo = todo[_AT_ONCE:]
        return answers

    async def _look(self, vhost: str, queues: Sequence[str], answers: dict[str, str | None]) -> None:
        """Ask what these queues do with dead letters, and put the answers at the end: the others come first then."""
        for start in range(0, len(queues), _AT_ONCE):
            batch = queues[start : start + _AT_ONCE]
            read = await asyncio.gather(*(self._api.dead_letters_by_own_name(vhost, queue) for queue in batch))
            for queue, answer in zip(batch, read, strict=True):
                answers.pop(queue, None)
                answers[queue] = answer


def _same(known: KnownRing, weights: Weights, hashed: HashedValue, exchange_type: str) -> bool:
    return (known.ring.as_weights(), known.hashed, known.exchange_type) == (weights, hashed, exchange_type)


def _next(
    old: KnownRing | None, weights: Weights, hashed: HashedValue, exchange_type: str, why: str
) -> tuple[KnownRing, Change]:
    ring = Ring.build(weights) if old is None else old.ring.changed(weights)
    known = KnownRing.of(ring, hashed, exchange_type)
    return known, changed(old, known, why)
