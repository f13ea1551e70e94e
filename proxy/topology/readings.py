"""The readings that publishes wait for, and messages that came back: AMQP and HTTP wait by the same rules.

A publish waits for `lookup_timeout` seconds in all, whatever it waits for, and is refused then. A message that came
back waits as long for each reading, and then goes by the rings as they are.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from proxy.topology.cluster import ClusterIdentity
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Name
from ring.destination import Destination


class Readings:
    """The scheduler's readings and the cluster's name, each waited for `lookup_timeout` seconds at most."""

    def __init__(
        self,
        scheduler: Scheduler,
        identity: ClusterIdentity,
        lookup_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the parts that are asked; `lookup_timeout` is in seconds, and `clock` gives the monotonic time."""
        self.scheduler, self.identity, self.lookup_timeout, self._clock = scheduler, identity, lookup_timeout, clock

    def left(self, since: float) -> float:
        """Return the seconds for which a publish may still wait that has waited since `since`, monotonic."""
        return since + self.lookup_timeout - self._clock()

    async def look_up(self, name: Name, since: float) -> None:
        """Return once an exchange is in the table and fresh. Raises Absent, or NotReadable once the time is over."""
        await self.scheduler.look_up(name, self.left(since))

    async def confirmed(self, cluster: str | None, told_at: float, since: float) -> str | None:
        """Return the present name of the cluster that a broker named at `told_at`; None if it is not the API's.

        The cluster may have been renamed, or the API asked too early: it is asked again.
        """
        return await self.identity.confirmed(cluster or "", told_at, self.left(since))

    async def read_ways_again(self, ways: Iterable[Name], missing: str, since: float) -> None:
        """Read the exchanges again by whose rings a publish would go to an exchange that has proved to be gone."""
        gone = {Destination("exchange", missing)}
        with suppress(TimeoutError):
            async with asyncio.timeout(self.left(since)):
                for name in ways:
                    await self.scheduler.read_again(name, "an exchange behind it is gone", gone)

    async def read_again(self, names: Iterable[Name], why: str, gone: Destination | None) -> bool:
        """Read exchanges again from which a message came back; return whether the readings have ended in time.

        `gone` is the destination that the message has shown to be gone; None if that is not known.
        """
        confirmed = {gone} if gone is not None else set[Destination]()
        try:
            async with asyncio.timeout(self.lookup_timeout):
                await asyncio.gather(*(self.scheduler.read_again(name, why, confirmed) for name in names))
        except TimeoutError:
            return False
        return True
