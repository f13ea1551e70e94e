"""Let publishes wait until an exchange is read: they share one reading, which is retried while any of them waits."""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable

from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError, NotAskableError
from proxy.topology.reading import VhostNotListedError
from proxy.topology.table import Name, Router, Unread

LONGEST_LOOKUP_PAUSE = 2.0
"""The most seconds between two tries of a look-up, unless the API asked to wait longer."""


FIRST_AT_ONCE = 3
"""The number of unknown exchanges that are read at the same time. Clients choose these names, and the readings of known
rings need connections to the management API, too."""


class Absent(Exception):  # noqa: N818 - an answer, not a fault
    """The exchange, or its virtual host, does not exist; the message says which."""


class VhostAbsent(Absent):
    """The virtual host does not exist, or the management user may not see it."""


class NotReadable(Exception):  # noqa: N818 - the caller turns it into its own answer
    """The exchange could not be read in time, or cannot be read at all; the message says why."""


class _LookUp:
    """One look-up of one exchange that is under way, shared by all publishes that wait for it."""

    task: "asyncio.Task[None]"
    """The task that reads the exchange, and tries again while anybody waits."""
    waiting = 0
    """The number of callers that wait for the task."""
    fault = ""
    """How the last try failed; empty before the first failure."""
    known = False
    """Whether the exchange came into the table without a reading, restored from disk, so that the task was
    cancelled."""


class LookUps:
    """All look-ups that are under way, at most one for each exchange."""

    def __init__(
        self, router: Router, read: Callable[[Name], Awaitable[None]], looked_up: Callable[[Name], None]
    ) -> None:
        """Take `read`, which reads an exchange into the table, and raises Absent, ManagementError or TopologyError.

        `looked_up` is called with each exchange whose look-up has ended.
        """
        self._router, self._read, self._looked_up = router, read, looked_up
        self.under_way: dict[Name, _LookUp] = {}
        """The look-up under way for each exchange."""
        self._turns = asyncio.Semaphore(FIRST_AT_ONCE)

    async def look_up(self, name: Name, within: float) -> None:
        """Return once the exchange is in the table and fresh. Raises Absent, or NotReadable after `within` seconds.

        The entry then also shows what was declared on the exchange before this call; later declarations are not
        waited for.
        """
        asked, shared, declared_on = self._router.clock(), None, self._router.awaits_read_back(name)
        try:
            async with asyncio.timeout(within):
                # A second reading is needed if the shared one had started before the last declaration.
                while shared is None or self._router.awaits_read_back(name, asked):
                    shared = self._joined(name)
                    shared.waiting += 1
                    try:
                        # Shielded: a reading that takes longer than one caller waits is there for the next.
                        await asyncio.shield(shared.task)
                    except asyncio.CancelledError:
                        caller = asyncio.current_task()
                        if not shared.known or caller is None or caller.cancelling():
                            raise
                    finally:
                        shared.waiting -= 1
        except TimeoutError:
            self._router.release_uncertain(name, asked)
            # Another caller may have released the exchange before, so the table is asked and not the return value.
            if not declared_on or isinstance(self._router.look(name, asked), Unread):
                fault = shared.fault if shared is not None else ""
                raise NotReadable(fault or "no answer of the management API in time (lookup_timeout)") from None

    def known(self, name: Name) -> None:
        """End the look-up of an exchange that was restored into the table unread; its callers return at once."""
        if (shared := self.under_way.get(name)) is not None:
            shared.known = True
            shared.task.cancel()

    def close(self) -> None:
        """Cancel every look-up that is under way."""
        for shared in self.under_way.values():
            shared.task.cancel()

    def _joined(self, name: Name) -> _LookUp:
        """Return the look-up of the exchange that is under way, or start one."""
        shared = self.under_way.get(name)
        if shared is None or shared.task.done():  # done, but its callback has not run yet
            shared = self.under_way[name] = _LookUp()
            shared.task = asyncio.create_task(self._look(name, shared))
            # This callback is added first, so callers that wait for the task find it removed and start another.
            shared.task.add_done_callback(functools.partial(self._ended, name, shared))
        return shared

    async def _look(self, name: Name, shared: _LookUp) -> None:
        """Read the exchange until that succeeds or nobody waits. Raises Absent or NotReadable."""
        pause = 0.05
        while True:
            expected = self._router.awaits_read_back(name)
            try:
                return await self._read_in_turn(name, shared)
            except (ManagementError, TopologyError) as error:
                entry = self._router.entries.get(name)
                known = entry is not None
                if known and expected and not self._router.awaits_read_back(name):
                    return None  # Nothing new was declared, as far as is known: the last good entry serves on.
                if entry is not None and entry.restored and not isinstance(self._router.look(name), Unread):
                    return None  # Another reading has failed, too, and the exchange was restored from disk.
                if isinstance(error, VhostNotListedError) and not known:
                    raise VhostAbsent(str(error)) from None
                if isinstance(error, NotAskableError):
                    raise NotReadable(str(error)) from None
                shared.fault = str(error)
                retry_after = error.retry_after
            await asyncio.sleep(max(random.uniform(0, pause), retry_after))
            pause = min(pause * 2, LONGEST_LOOKUP_PAUSE)
            if not shared.waiting:
                raise NotReadable(shared.fault)

    async def _read_in_turn(self, name: Name, shared: _LookUp) -> None:
        """Read the exchange once: at once if it is known, else when one of `FIRST_AT_ONCE` turns is free.

        Raises Absent, NotReadable, ManagementError or TopologyError.
        """
        if name in self._router.entries:
            return await self._read(name)
        async with self._turns:
            if not shared.waiting:
                raise NotReadable("nobody waits for it any more")
            return await self._read(name)

    def _ended(self, name: Name, shared: _LookUp, task: "asyncio.Task[None]") -> None:
        if self.under_way.get(name) is shared:
            del self.under_way[name]
        self._looked_up(name)
        if not task.cancelled():
            task.exception()  # Retrieved, so that asyncio does not log it if every caller has left.
