"""Look-ups: publishes that wait for an exchange to be read, and share a reading that is tried again while one waits."""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable

from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError, NotAskableError
from proxy.topology.reading import VhostNotListedError
from proxy.topology.table import Name, Router, Unread

LONGEST_PAUSE = 2.0
"""Seconds between the tries of a look-up, at most, where the API asked for no more."""


FIRST_AT_ONCE = 3
"""First readings at once: names are the clients' choice, and known rings need the management API's connections too."""


class Absent(Exception):  # noqa: N818 - an answer, not a fault
    """The exchange, or its virtual host, does not exist; the message says which."""


class VhostAbsent(Absent):
    """The virtual host does not exist, or the management user may not see it."""


class NotReadable(Exception):  # noqa: N818 - the caller turns it into its own answer
    """The exchange could not be read in time; the message says why."""


class _LookUp:
    """A look-up, and how many wait for it."""

    task: "asyncio.Task[None]"
    waiting = 0
    fault = ""
    known = False
    """The exchange became known by other means than a reading."""


class LookUps:
    """The look-ups under way."""

    def __init__(self, router: Router, read: Callable[[Name], Awaitable[None]]) -> None:
        """`read` makes a reading and swaps it in; it raises Absent, ManagementError or TopologyError."""
        self._router, self._read = router, read
        self.under_way: dict[Name, _LookUp] = {}
        self._turns = asyncio.Semaphore(FIRST_AT_ONCE)

    async def look_up(self, name: Name, within: float) -> None:
        """Returns once the exchange is in the table and fresh. Raises Absent, or NotReadable after `within` seconds.

        What was declared on it before this call is read back too; what comes later is for others to wait for.
        """
        asked, shared, declared_on = self._router.clock(), None, self._router.awaits_read_back(name)
        try:
            async with asyncio.timeout(within):
                # A second one where the first had started before something was declared.
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
            # (Or another one that waited has, before.)
            if not declared_on or isinstance(self._router.look(name, asked), Unread):
                fault = shared.fault if shared is not None else ""
                raise NotReadable(fault or "no answer of the management API in time") from None

    def known(self, name: Name) -> None:
        """Ends the look-up of an exchange that is in the table now though it could not be read; who waits goes on."""
        if (shared := self.under_way.get(name)) is not None:
            shared.known = True
            shared.task.cancel()

    def close(self) -> None:
        """Ends every look-up."""
        for shared in self.under_way.values():
            shared.task.cancel()

    def _joined(self, name: Name) -> _LookUp:
        """The look-up under way, or a new one."""
        shared = self.under_way.get(name)
        if shared is None:
            shared = self.under_way[name] = _LookUp()
            shared.task = asyncio.create_task(self._look(name, shared))
            # The first to be called: who waits for the task finds it gone, and asks for another one.
            shared.task.add_done_callback(functools.partial(self._ended, name))
        return shared

    async def _look(self, name: Name, shared: _LookUp) -> None:
        pause = 0.05
        while True:
            expected = self._router.awaits_read_back(name)
            try:
                return await self._read_in_turn(name, shared)
            except (ManagementError, TopologyError) as error:
                known = name in self._router.entries
                if known and expected and not self._router.awaits_read_back(name):
                    return None  # nothing new was declared: the last good entry serves on
                if isinstance(error, VhostNotListedError) and not known:
                    raise VhostAbsent(str(error)) from None
                if isinstance(error, NotAskableError):
                    raise NotReadable(str(error)) from None
                shared.fault = str(error)
                retry_after = error.retry_after if isinstance(error, ManagementError) else 0.0
            await asyncio.sleep(max(random.uniform(0, pause), retry_after))
            pause = min(pause * 2, LONGEST_PAUSE)
            if not shared.waiting:
                raise NotReadable(shared.fault)

    async def _read_in_turn(self, name: Name, shared: _LookUp) -> None:
        if name in self._router.entries:
            return await self._read(name)
        async with self._turns:
            if not shared.waiting:
                raise NotReadable("nobody waits for it any more")
            return await self._read(name)

    def _ended(self, name: Name, task: "asyncio.Task[None]") -> None:
        del self.under_way[name]
        if not task.cancelled():
            task.exception()  # seen, also where everybody who waited has left
