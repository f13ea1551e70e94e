"""A scheduler and its reader at work on a management API that a test rules, and a clock that only the test moves."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from proxy.settings.config import OnDeadLetter
from proxy.settings.patterns import Selection
from proxy.topology import scheduler as scheduler_module
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.ring_cache import RingCache
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, Router, Unread
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, Gate

Name = tuple[str, str]

X: Name = ("/", "x")
OF_X = "/api/exchanges/%2F/x"
BINDINGS_OF_X = f"{OF_X}/bindings/source"
SETTLE = 2.0
LONG = 1000.0
A, B, C = (Destination("queue", name) for name in "abc")


class Clock:
    """Stands for `time` in the scheduler and the reader, so that only what a test says lets time pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        # Never the same twice, as a real clock: what is asked later is told from what was asked before.
        self.now += 1e-6
        return self.now


@dataclass
class Made:
    """A scheduler, its reader, and the table that they keep."""

    scheduler: Scheduler
    reader: Reader
    router: Router
    selection: Selection

    @property
    def entry(self) -> Entry:
        return self.router.entries[X]

    def waits(self) -> bool:
        """Whether a publish to X would have to wait for a reading."""
        return isinstance(self.router.look(X), Unread)

    def routes(self, name: Name = X) -> bool:
        """Whether publishes go by the exchange's ring."""
        entry = self.router.look(name)
        return isinstance(entry, Entry) and entry.known is not None and entry.passed is None

    def weights(self, name: Name = X) -> dict[Destination, int] | None:
        """Return the weights of the ring in force; None where there is none."""
        entry = self.router.entries.get(name)
        return entry.known.ring.as_weights() if entry and entry.known else None


@asynccontextmanager
async def scheduling(
    fake: FakeManagement,
    *,
    running: bool = False,
    interval: float = LONG,
    settle_time: float = SETTLE,
    route: tuple[str, ...] = ("*",),
    shadow: tuple[str, ...] = (),
    pass_: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    on_dead_letter: OnDeadLetter = "pass",
    named: tuple[Name, ...] = (),
    others: tuple[FakeManagement, ...] = (),
    cache: RingCache | None = None,
    answer_within: float = 10.0,
) -> AsyncIterator[Made]:
    """Without `running`, readings are made only where a test asks for them. `others` are further nodes.

    `answer_within` is in seconds, for each request to the API.
    """
    async with Management([node.url for node in (fake, *others)], answer_within) as api:
        router = Router(LONG, refuse_stale=False, clock=lambda: float(vars(scheduler_module)["time"].monotonic()))
        selection = Selection(route, shadow, pass_, groups)
        reader = Reader(
            api,
            router,
            selection,
            settle_time=settle_time,
            on_dead_letter=on_dead_letter,
            cache=cache,
            max_age=LONG,
        )
        scheduler = Scheduler(reader, router, interval=interval, named=named)
        task = asyncio.create_task(scheduler.run()) if running else None
        yield Made(scheduler, reader, router, selection)
        if task is not None:
            assert not task.done(), "run() ended by itself"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            if "LookUps._look" in repr(other) or "Scheduler._" in repr(other):
                other.cancel()
        reader.close()


async def reading_again(made: Made, fake: FakeManagement) -> tuple[Gate, asyncio.Task[None]]:
    """Read X again, which was read before: the gate holds back the answer about its bindings."""
    await made.scheduler.look_up(X, 10)
    gate = Gate(fake)
    fake.fail(gate, BINDINGS_OF_X)
    task = asyncio.create_task(made.scheduler.read_again(X, "test"))
    await eventually(lambda: gate.waiting == 1)
    return gate, task


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
