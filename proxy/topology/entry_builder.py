"""Build a router entry from a reading and the weights in force: its ring, or a reason to pass, and what changed."""

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
"""The number of known queues of a ring whose dead-lettering each reading asks for again; new queues are always asked
for.

The number is small because eight queues made four fifths of what the readings of 1,000 sidecars cost the broker, which
was one core in all (measured)."""

_AT_ONCE = 4
"""The number of queues that are asked for at the same time."""

Weights = Mapping[Destination, int]
"""The weight of each destination."""


class EntryBuilder:
    """Builds the entries of all exchanges, for as long as the process reads any.

    Rings are built in a thread of its own, almost entirely without the GIL, so that the event loop is not held up.
    """

    def __init__(self, api: Management, selection: Selection, on_dead_letter: OnDeadLetter) -> None:
        """Start no thread yet. `on_dead_letter` is the setting that says what to do if queues dead-letter under their
        own name.
        """
        self._api, self._selection, self._on_dead_letter = api, selection, on_dead_letter
        self._builder = ThreadPoolExecutor(1, "ring-builder")

    def close(self) -> None:
        """End the thread once it has finished the ring that it may be building."""
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
        """Return the entry that replaces `before`, and the change of its ring, None if it is the same ring.

        `started` is when the reading started, in monotonic seconds. `weights` are the weights in force, which may have
        destinations that `bindings` lack. `why` is the reason for the reading, in words. Raises ManagementError or
        TopologyError.
        """
        mode = self._selection.mode(*name)
        known = before.known if before else None
        if exchange is not None:
            exchange_type, hashed = exchange.type, exchange.hashed
        else:
            # The exchange is gone, but that has not settled: the last ring serves on, without the confirmed removals.
            exchange_type = before.exchange_type if before else ""
            hashed = known.hashed if known else HashedValue()
        change, internal = None, False
        queues: Mapping[str, str | None] = {}
        if mode is Mode.PASS or not weights:
            known, change = None, lost(known, why)
        else:
            # Asked for the weights in force, which may have destinations that this reading lacks.
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
        """Return the entry of an exchange that was kept on disk; None if the present settings leave that exchange
        alone.

        `read_at` is when the exchange was read, in monotonic seconds.
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
        """Return why publishes are refused; empty if they are not, as is always so for an exchange that is not in mode
        route.
        """
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
        """Return why publishes are passed to the exchange itself; None if the ring routes them."""
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
        """Return whether a destination is an internal exchange, to which the broker refuses a publish with 403."""
        for destination in weights:
            if destination.kind == "exchange":
                exchange = await self._api.exchange(vhost, destination.name)
                if exchange is not None and exchange.internal:
                    return True
        return False

    async def _dead_letters(
        self, vhost: str, weights: Weights, before: Mapping[str, str | None]
    ) -> Mapping[str, str | None]:
        """Return what makes each bound queue dead-letter under its own name, in the form of `Entry.queues`.

        Queues that did so before are asked for first, since one such queue is enough to keep the exchange from being
        routed. If none of those asked for does so any more, all the others that did are asked for, too. So the exchange
        is routed again as soon as the last of them is mended, however many there are.
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
        """Ask how these queues dead-letter, and move them to the end of `answers`, so that the next reading asks for
        others.
        """
        for start in range(0, len(queues), _AT_ONCE):
            batch = queues[start : start + _AT_ONCE]
            read = await asyncio.gather(*(self._api.dead_letters_by_own_name(vhost, queue) for queue in batch))
            for queue, answer in zip(batch, read, strict=True):
                answers.pop(queue, None)
                answers[queue] = answer


def _same(known: KnownRing, weights: Weights, hashed: HashedValue, exchange_type: str) -> bool:
    """Return whether a ring was built from these inputs."""
    return (known.ring.as_weights(), known.hashed, known.exchange_type) == (weights, hashed, exchange_type)


def _next(
    old: KnownRing | None, weights: Weights, hashed: HashedValue, exchange_type: str, why: str
) -> tuple[KnownRing, Change]:
    """Return the ring that replaces `old`, and how it differs; runs in the thread that builds rings."""
    ring = Ring.build(weights) if old is None else old.ring.changed(weights)
    known = KnownRing.of(ring, hashed, exchange_type)
    return known, changed(old, known, why)
