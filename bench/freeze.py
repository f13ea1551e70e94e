"""Full load on a sidecar while its broker is frozen, and how soon afterwards publishes are confirmed again."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

from bench import BenchError, messages
from bench.load import Client
from bench.process import peak_memory
from bench.tables import Goal, goal_table, table
from bench.wire import Answer
from bench.world import World
from proxy.settings.config import Settings

SINGLES, BATCHES = 64, 16
"""The numbers of connections that publish single messages and batches of 500: more than may be in flight."""

ALLOWED = frozenset({429, 503, 504})
"""The statuses other than 2xx that ask a client to try again."""

LIMIT = Settings().confirm_timeout + Settings().lookup_timeout + 1
"""The seconds within which every request must be answered."""

MOST_MEMORY = 256 << 20
"""The goal for the memory of the sidecar, in bytes."""

_BEFORE = 5.0
_CALM = 5.0
"""The seconds without a refusal that end the recovery."""
_RECOVERED_WITHIN = 60.0


@dataclass
class Answered:
    """The answers to one kind of request."""

    statuses: Counter[int] = field(default_factory=Counter)
    """How often each status came since the freeze began; 0 stands for a connection that ended without an answer."""
    slowest: float = 0.0
    """The seconds that the slowest answer took."""
    first_confirm: float | None = None
    """When the first confirm came after the freeze (time.perf_counter)."""
    last_refusal: float | None = None
    """When the last answer came that was no confirm."""

    def add(self, answer: Answer | None, took: float, *, thawed: bool) -> None:
        """Count an answer."""
        self.statuses[answer.status if answer else 0] += 1
        self.slowest = max(self.slowest, took)
        if answer is None or answer.status // 100 != 2:
            self.last_refusal = time.perf_counter()
        elif thawed and self.first_confirm is None:
            self.first_confirm = time.perf_counter()


@dataclass(frozen=True)
class Frozen:
    """The result of one freeze."""

    seconds: float
    """The seconds for which the broker was frozen."""
    statuses: Counter[int]
    """How often each status came since then; 0 stands for a connection that ended without an answer."""
    slowest: float
    """Seconds that the slowest answer took."""
    recovery: float | None
    """Seconds from the end of the freeze to the last refusal or the first confirms; None if refusals went on."""
    peak_before: int
    """The most memory of the sidecar up to the freeze, in bytes."""
    peak: int
    """The most memory of the sidecar up to the end."""


class Freeze:
    """One run with a frozen broker: clients of both kinds, and the answers that they get."""

    def __init__(self, world: World) -> None:
        """Make the clients, which do not run yet."""
        self._world = world
        self._thawed = False
        self.singles, self.batches = Answered(), Answered()
        single, batch = itertools.cycle(messages.singles()), itertools.cycle(messages.json_batches())
        url = world.sidecar.http_url
        self._clients = [Client(url, single, self._on_single) for _ in range(SINGLES)]
        self._clients += [Client(url, batch, self._on_batch) for _ in range(BATCHES)]

    async def run(self, seconds: float) -> Frozen:
        """Run full load, the freeze and the recovery, and return what was found."""
        pid = self._world.sidecar.process.pid
        running = [asyncio.create_task(client.run()) for client in self._clients]
        await asyncio.sleep(_BEFORE)
        if not {*self.singles.statuses, *self.batches.statuses} <= {200, 429}:
            raise BenchError(f"before the freeze: {self.singles.statuses}, {self.batches.statuses}")
        self.singles, self.batches = Answered(), Answered()
        peak_before = peak_memory(pid)
        with self._world.node.frozen():
            await asyncio.sleep(seconds)
        recovery = await self._recovery()
        for client in self._clients:
            client.stop()
        await asyncio.wait(running, timeout=LIMIT)
        slowest = max(self.singles.slowest, self.batches.slowest, *self._unanswered())
        statuses = self.singles.statuses + self.batches.statuses
        return Frozen(seconds, statuses, slowest, recovery, peak_before, peak_memory(pid))

    async def _recovery(self) -> float | None:
        self._thawed, begun = True, time.perf_counter()
        while time.perf_counter() < begun + _RECOVERED_WITHIN:
            await asyncio.sleep(0.1)
            marks = [begun]
            for kind in (self.singles, self.batches):
                if kind.first_confirm is None:
                    break
                marks += [kind.first_confirm, kind.last_refusal or begun]
            else:
                if time.perf_counter() > max(marks) + _CALM:
                    return max(marks) - begun
        return None

    def _unanswered(self) -> list[float]:
        """Return how long the requests have waited that were never answered."""
        now = time.perf_counter()
        return [now - client.waits_since for client in self._clients if client.waits_since is not None]

    def _on_single(self, answer: Answer | None, took: float) -> None:
        self.singles.add(answer, took, thawed=self._thawed)

    def _on_batch(self, answer: Answer | None, took: float) -> None:
        self.batches.add(answer, took, thawed=self._thawed)


def goals(frozen: Frozen) -> list[Goal]:
    """Return the goals of a freeze, with what was reached."""
    others = {status for status in frozen.statuses if status // 100 != 2 and status not in ALLOWED}
    recovery = "no" if frozen.recovery is None else f"after {frozen.recovery:.1f} s"
    mebibytes = f"{frozen.peak / 2**20:.0f}"
    statuses = ", ".join(map(str, sorted(others))) or "none"
    when = f"broker frozen for {frozen.seconds:g} s"
    return [
        Goal(f"{when}: most memory, MiB", f"under {MOST_MEMORY >> 20}", mebibytes, "", frozen.peak < MOST_MEMORY),
        Goal(f"{when}: answers other than 2xx, 429, 503, 504", "none", statuses, "", not others),
        Goal(f"{when}: slowest answer, s", f"at most {LIMIT:g}", f"{frozen.slowest:.1f}", "", frozen.slowest <= LIMIT),
        Goal(f"{when}: recovers by itself", "yes", recovery, "", frozen.recovery is not None),
    ]


def markdown(frozen: Frozen) -> str:
    """Return the goals of a freeze, and its answers by status, as Markdown."""
    rows = [[str(status or "no answer"), f"{count:,}"] for status, count in sorted(frozen.statuses.items())]
    before = f"{frozen.peak_before / 2**20:.0f} MiB before the freeze, {frozen.peak / 2**20:.0f} MiB at the end"
    told = f"Most memory of the sidecar: {before}."
    return "\n\n".join([goal_table(goals(frozen)), table(["status, from the freeze on", "answers"], rows), told])
