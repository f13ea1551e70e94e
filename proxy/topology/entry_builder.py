"""Build a router entry from a reading and the weights in force: its ring, or a reason to pass, and what changed."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES, Behind, Bindings, Exchange, Leads, Promise, promise_of
from proxy.topology.changes import changed, dead_letters_refused, lost, of_generation
from proxy.topology.generations import Generation, OtherGeneration
from proxy.topology.management import Management
from proxy.topology.matching import UPSTREAM_TYPES, Upstream
from proxy.topology.reading import AT_ONCE, ask_each
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

Weights = Mapping[Destination, int]
"""The weight of each destination."""

FIRST = Generation()
"""The generation of exchanges whose shards have never been made anew."""


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
        mode: Mode,
        exchange: Exchange | None,
        bindings: Bindings,
        behind: Mapping[str, Behind],
        weights: Weights,
        before: Entry | None,
        started: float,
        why: str,
        upstream: Upstream | None = None,
        generation: Generation = FIRST,
        others: tuple[OtherGeneration, ...] = (),
    ) -> tuple[Entry, Change | None]:
        """Return the entry that replaces `before`, and the change of its ring, None if it is the same ring.

        `mode` is the exchange's, as the settings said when the reading began. `started` is when it began, in monotonic
        seconds. `behind` says where the exchanges behind the exchange lead. `weights` are the weights in force, which
        may have destinations that `bindings` lack. `why` is the reason for the reading, in words. `upstream` says how
        an upstream exchange routes; None for every other exchange. `generation` is that of the ring, and `others` are
        the others that are bound. Raises ManagementError or TopologyError.
        """
        known = before.known if before else None
        if exchange is not None:
            exchange_type, hashed = exchange.type, exchange.hashed
        else:
            # The exchange is gone, but that has not settled: the last ring serves on, without the confirmed removals.
            exchange_type = before.exchange_type if before else ""
            hashed = known.hashed if known else HashedValue()
        change: Change | None = None
        queues: Mapping[str, str | None] = {}
        kept = before.lanes.items() if before is not None else ()
        # A queue that is missing from the bindings, and in force yet, keeps its lane.
        lanes = {q: lane for q, lane in kept if q in weights and q not in bindings.weights} | dict(bindings.lanes)
        used = {*lanes.values(), *(d.name for d in weights if d.kind == "exchange")}
        behind = {name: found for name, found in behind.items() if name in used or found.leads is not Leads.ASIDE}
        if mode is Mode.PASS or not weights:
            known, change = None, lost(known, why)
        else:
            # Asked for the weights in force, which may have destinations that this reading lacks.
            published_to = [d.name for d in weights if d.kind == "queue" and d not in lanes]
            queues = await self._dead_letters(name[0], published_to, before.queues if before else {})
            if known is None or not _same(known, weights, hashed, exchange_type):
                known, change = await self._ring(known, weights, hashed, exchange_type, why)
            if known.generation != generation.number:
                known = replace(known, generation=generation.number)
            change = of_generation(before, generation, known, change, why)
        bound_aside = _bound_aside(weights, behind)
        passed = self._pass_reason(exchange_type, mode, known, queues, bound_aside)
        if upstream is not None:
            passed = PassReason.OVERLAP if upstream.conflict else None if upstream.rings else PassReason.NO_RING
        entry = Entry(
            mode=mode,
            exchange_type=exchange_type,
            upstream=upstream,
            known=known,
            passed=passed,
            refused=self._refused(passed, mode, queues),
            bindings=bindings,
            read_at=started,
            queues=queues,
            lanes=lanes,
            behind=behind,
            internal=exchange is not None and exchange.internal,
            balances=exchange.balances if exchange is not None else before.balances if before else "",
            publish_in=exchange.publish_in if exchange is not None else None,
            changes=before.changes if before else (),
            generation=generation.number,
            made_with=generation.of,
            others=others,
        )
        return (with_change(entry, change) if change else entry), change

    async def without(self, before: Entry, gone: Collection[Destination], why: str) -> tuple[Entry, Change]:
        """Return an entry without some destinations of its ring, and the change; any other destination stays.

        Nothing is read for that. `before` has a ring, of which at least one destination is left. `why` is the reason,
        in words.
        """
        known = before.known
        assert known is not None
        weights = {d: weight for d, weight in known.ring.as_weights().items() if d not in gone}
        ring, change = await self._ring(known, weights, known.hashed, known.exchange_type, why)
        ring = replace(ring, generation=known.generation)
        lanes = {queue: lane for queue, lane in before.lanes.items() if queue not in gone}
        bound = {d: weight for d, weight in before.bindings.weights.items() if d not in gone}
        ended = {before.lanes.get(d, d.name) for d in gone}
        entry = replace(
            before,
            known=ring,
            lanes=lanes,
            bindings=replace(before.bindings, weights=bound, lanes=lanes),
            behind={name: found for name, found in before.behind.items() if name not in ended},
        )
        return with_change(entry, change), change

    async def restored(self, saved: Saved, read_at: float) -> Entry | None:
        """Return the entry of an exchange that was kept on disk; None if the present settings leave that exchange
        alone.

        `read_at` is when the exchange was read, in monotonic seconds.
        """
        mode = self._selection.mode(*saved.name)
        if mode is Mode.PASS and saved.exchange_type in RING_TYPES:
            return None
        if saved.exchange_type in UPSTREAM_TYPES and self._selection.routes_by_name(*saved.name):
            return None  # which rings its messages go to is not kept
        known = None
        if saved.weights:
            known, _ = await self._ring(None, saved.weights, saved.hashed, saved.exchange_type, "restored")
            known = replace(known, generation=saved.generation)
        passed = self._pass_reason(saved.exchange_type, mode, known, saved.queues, saved.bound_aside)
        return Entry(
            mode=mode,
            exchange_type=saved.exchange_type,
            known=known,
            passed=passed,
            refused=self._refused(passed, mode, saved.queues),
            bindings=Bindings(saved.weights, lanes=saved.lanes),
            read_at=read_at,
            queues=saved.queues,
            lanes=saved.lanes,
            behind={
                lane: Behind(Leads.TO_QUEUE, queue.name, promise=_promised(queue.name, lane, saved))
                for queue, lane in saved.lanes.items()
            },
            internal=saved.internal,
            restored=True,
            generation=saved.generation,
            made_with=saved.made_with,
            others=saved.others,
        )

    async def _ring(
        self, old: KnownRing | None, weights: Weights, hashed: HashedValue, exchange_type: str, why: str
    ) -> tuple[KnownRing, Change]:
        """Return the ring that replaces `old`, built in the thread, and how it differs."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._builder, _next, old, weights, hashed, exchange_type, why)

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
        bound_aside: PassReason | None,
    ) -> PassReason | None:
        """Return why publishes are passed to the exchange itself; None if the ring routes them.

        `bound_aside` is the reason that an exchange among the destinations gives, if any does.
        """
        if exchange_type not in RING_TYPES:
            return PassReason.TYPE
        if mode is Mode.PASS:
            return PassReason.MODE_PASS
        if known is None:
            return PassReason.NO_BINDINGS
        if bound_aside is not None:
            return bound_aside
        if any(queues.values()) and self._on_dead_letter != "rewrite":
            return PassReason.DEAD_LETTER
        return PassReason.SHADOW if mode is Mode.SHADOW else None

    async def _dead_letters(
        self, vhost: str, published_to: Collection[str], before: Mapping[str, str | None]
    ) -> Mapping[str, str | None]:
        """Return what makes each queue dead-letter under its own name, in the form of `Entry.queues`.

        `published_to` are the queues that get publishes under their own names. A queue behind a lane gets them under
        their own routing keys, so it is not among them.

        Queues that did so before are asked for first, since one such queue is enough to keep the exchange from being
        routed. If none of those asked for does so any more, all the others that did are asked for, too. The exchange is
        therefore routed again as soon as the last of them is mended, however many there are.
        """
        queues = dict.fromkeys(published_to)
        answers = {queue: cause for queue, cause in before.items() if queue in queues}
        unsettled = [queue for queue in queues if answers.get(queue) is None]
        settled = sorted((q for q, cause in answers.items() if cause is not None), key=lambda q: not answers[q])
        suspects = [queue for queue in settled if answers[queue]]
        await self._look(vhost, [*unsettled, *settled[:DEAD_LETTER_READS]], answers)
        todo = suspects[DEAD_LETTER_READS:]
        while todo and not any(answers[queue] for queue in suspects if queue not in todo):
            await self._look(vhost, todo[:AT_ONCE], answers)
            todo = todo[AT_ONCE:]
        return answers

    async def _look(self, vhost: str, queues: Sequence[str], answers: dict[str, str | None]) -> None:
        """Ask how these queues dead-letter, and move them to the end of `answers`, so that the next reading asks for
        others.
        """
        read = await ask_each(lambda queue: self._api.dead_letters_by_own_name(vhost, queue), queues)
        for queue, answer in read.items():
            answers.pop(queue, None)
            answers[queue] = answer


def _bound_aside(weights: Weights, behind: Mapping[str, Behind]) -> PassReason | None:
    """Return why an exchange is passed because of the exchanges among its destinations; None if it need not be.

    An internal exchange takes no publishes: the broker refuses them with 403.
    """
    found = [behind[d.name] for d in weights if d.kind == "exchange" and d.name in behind]
    if any(each.internal for each in found):
        return PassReason.INTERNAL_DESTINATION
    return PassReason.NOT_A_LANE if any(each.leads is Leads.ASIDE for each in found) else None


def _promised(shard: str, lane: str, saved: Saved) -> Promise | None:
    """Return the promise about a lane that was kept on disk; None if none was."""
    groups = saved.groups.get(lane)
    if groups is None:
        return None
    later = (saved.generation, saved.made_with) if saved.generation > 1 else ()
    return promise_of(shard, dict(groups), *later)


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
