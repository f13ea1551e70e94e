"""Faults one after the other on a track, and tracks beside each other."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.schedule import Fault, Kind

Say = Callable[[str], None]


class Effect(NamedTuple):
    """The effect of a fault, in words, and how many connections or requests it met: with none it does not count."""

    words: str
    met: int = 1


Act = Callable[[Fault, random.Random], Awaitable[Effect]]
"""A function that does faults of one kind; its chance is drawn from the fault's `pick`."""


class Tracks:
    """Does faults, says each, and counts those that had an effect."""

    def __init__(self, acts: Mapping[Kind, Act], say: Say) -> None:
        self._acts, self._say = acts, say
        self.done: Counter[Kind] = Counter()

    async def beside(self, faults: Sequence[Fault], tracks: Sequence[Sequence[Kind]]) -> None:
        """Do the faults of each track, one after the other, and the tracks at the same time."""
        async with asyncio.TaskGroup() as tasks:
            for kinds in tracks:
                tasks.create_task(self.one_by_one([fault for fault in faults if fault.kind in kinds]))

    async def one_by_one(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            begun = time.monotonic()
            words, met = await self._acts[fault.kind](fault, random.Random(fault.pick))
            self._say(f"{begun:.3f} to {time.monotonic():.3f}  {fault.kind}: {words}{'' if met else ': met nothing'}")
            self.done[fault.kind] += met > 0
            await asyncio.sleep(fault.pause)
