"""Does what the schedule says, and writes down what that means for the judge."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from testbed.node import Node
from tests.chaos.arena import SETTLE_TIME, SLOW_READING, Arena
from tests.chaos.history import Hang, Span
from tests.chaos.management import Mood
from tests.chaos.network import Network
from tests.chaos.oracle import STANDSTILL
from tests.chaos.queues import CHANGING, EXCHANGE, FLAPS, GOING, LANED, End, Queues
from tests.chaos.schedule import ALONE, TRACKS, Fault, Kind
from tests.chaos.tracks import Act, Effect, Say, Tracks
from tests.integration.broker_api import BrokerApi, wait_until

BELIEVABLE = 0.6 * SETTLE_TIME
"""Seconds for which an empty list is told: one that lasts longer than the settle time is believed, as documented."""

TRUE_FOR = SLOW_READING
"""Seconds of the truth behind each empty list, in which every sidecar reads. Without them two lists are one that lasts
longer than the settle time: three readings within 1.7 s met nothing else once, and three queues left the ring.
"""

WEIGHTS = (1, 2, 3, 4)

HANGS = 8.0
"""Seconds for which the management API hangs at least: several of a request's time-outs."""

PLAIN = tuple(queue for queue in CHANGING if queue not in LANED)
"""The queues that take their binding along when they are deleted: a lane would stay."""

JUMPS = ("-30d", "-1h", "+1h", "+10y")


class Injector:
    """Does faults in several tracks at once: in each, one after the other."""

    def __init__(self, arena: Arena, queues: Queues, say: Say) -> None:
        self._arena, self._queues = arena, queues
        self._steady = asyncio.Lock()
        """Held while bindings change, and while a node is down: so that each change has happened, or has not."""
        self._down: Node | None = None
        acts: dict[Kind, Act] = {
            Kind.NODE_KILL: self._kill_node,
            Kind.MEMORY_ALARM: self._memory_alarm,
            Kind.API_DOWN: self._api,
            Kind.API_SLOW: self._api,
            Kind.API_TRUNCATED: self._api,
            Kind.API_LIES: self._api,
            Kind.API_HANGS: self._hang,
            Kind.SIDECAR_TERM: self._end_sidecar,
            Kind.SIDECAR_KILL: self._end_sidecar,
            Kind.CLOCK_JUMP: self._jump,
            Kind.BIND: self._bind,
            Kind.UNBIND: self._unbind,
            Kind.REWEIGHT: self._reweight,
            Kind.DELETE: self._delete,
            Kind.FLAP: self._flap,
        }
        self._tracks = Tracks(Network(arena).acts | acts, say)

    async def run(self, faults: list[Fault]) -> None:
        """Return when all is done, and all is well again."""
        await self._tracks.beside(faults, TRACKS)
        await self._tracks.one_by_one([fault for fault in faults if fault.kind in ALONE])

    @property
    def done(self) -> Counter[Kind]:
        """How many faults of each kind had an effect."""
        return self._tracks.done

    def _live(self) -> Node:
        return next(node for node in self._arena.nodes if node is not self._down)

    @asynccontextmanager
    async def _impaired(self) -> AsyncIterator[None]:
        """Bindings cannot be relied on to be readable meanwhile."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._queues.history.impaired.append(Span(begin, time.monotonic()))

    # The broker

    async def _kill_node(self, fault: Fault, chance: random.Random) -> Effect:
        """In a cluster the one that leads most of the queues."""
        async with self._steady, self._impaired():
            self._down = node = await asyncio.to_thread(self._leader)
            if len(self._arena.nodes) > 1:
                self._arena.front.target = self._live().management_url
            killed = time.monotonic()
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(fault.lasts)
            await asyncio.to_thread(node.start)
            wanted = self._queues.history.current
            kept = await asyncio.to_thread(self._queues.restore, node, killed)
            self._down = None
            lost = sorted(set(wanted.items()) - set(kept.items()))
            return Effect(f"{node.name}, which lost its bindings to {lost}" if lost else node.name)

    def _leader(self) -> Node:
        if len(self._arena.nodes) == 1:
            return self._arena.nodes[0]
        shown = BrokerApi(self._arena.nodes[0].management_url).ask("GET", "queues", "/")
        (name, _), *_ = Counter(queue["leader"] for queue in shown).most_common(1)
        return next(node for node in self._arena.nodes if node.name == name)

    async def _memory_alarm(self, fault: Fault, chance: random.Random) -> Effect:
        async with self._steady:
            node = chance.choice(self._arena.nodes)
            await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0")
            try:
                assert await asyncio.to_thread(_alarmed, node), f"{node.name} has no alarm"
                await asyncio.sleep(fault.lasts / 2)
            finally:
                await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0.8")
            await asyncio.to_thread(wait_until, "the end of the alarm", lambda: not _alarmed(node))
            return Effect(node.name)

    # The management API

    async def _api(self, fault: Fault, chance: random.Random) -> Effect:
        moods = {
            Kind.API_DOWN: Mood.DOWN,
            Kind.API_SLOW: Mood.SLOW,
            Kind.API_TRUNCATED: Mood.TRUNCATED,
            Kind.API_LIES: Mood.LYING,
        }
        front = self._arena.front
        before, begin = front.moody, time.monotonic()
        async with self._impaired():
            front.mood = moods[fault.kind]
            try:
                await asyncio.sleep(BELIEVABLE if fault.kind is Kind.API_LIES else 3 * fault.lasts)
            finally:
                if front.mood in (Mood.DOWN, Mood.TRUNCATED):  # neither gives anybody a whole answer
                    self._queues.history.down.append(Span(begin, time.monotonic()))
                front.mood = Mood.TRUE
        met = front.moody - before
        if fault.kind is Kind.API_LIES:
            await asyncio.sleep(TRUE_FOR)
        return Effect(f"{met} requests", met)

    async def _hang(self, fault: Fault, chance: random.Random) -> Effect:
        """Several queues go at the moment from which the API answers nothing, while their messages are on the way."""
        node, front, history = self._live(), self._arena.front, self._queues.history
        for queue in GOING:
            await asyncio.to_thread(self._queues.bind, node, queue, chance.choice(WEIGHTS))
        for member in self._arena.members:
            await asyncio.to_thread(member.now.wait_for_weights, "/", EXCHANGE, history.current)
        await asyncio.sleep(STANDSTILL)  # in which the judge sees who is well
        loop, before, begin = asyncio.get_running_loop(), front.moody, 0.0

        async def hangs() -> None:
            nonlocal begin
            begin, front.mood = time.monotonic(), Mood.HANGING

        def now() -> None:
            asyncio.run_coroutine_threadsafe(hangs(), loop).result()

        async with self._impaired():
            try:
                await asyncio.to_thread(self._queues.delete_together, node, GOING, now)
                await asyncio.sleep(max(begin + HANGS + fault.lasts - time.monotonic(), 0.0))
            finally:
                end, front.mood = time.monotonic(), Mood.TRUE
        history.down.append(Span(begin, end))
        history.hangs.append(Hang(begin, end, GOING))
        return Effect(f"{len(GOING)} queues, {front.moody - before} requests", front.moody - before)

    # The sidecars

    async def _end_sidecar(self, fault: Fault, chance: random.Random) -> Effect:
        at = chance.randrange(2)
        member = self._arena.members[at]
        await asyncio.to_thread(member.kill if fault.kind is Kind.SIDECAR_KILL else member.stop)
        await asyncio.sleep(fault.lasts / 3)
        await asyncio.to_thread(member.start)
        return Effect(f"sidecar {at}")

    async def _jump(self, fault: Fault, chance: random.Random) -> Effect:
        at, jump = chance.randrange(2), chance.choice(JUMPS)
        member = self._arena.members[at]
        member.clock.write_text(f"{jump}\n")
        await asyncio.sleep(fault.lasts)
        member.clock.write_text("+0\n")
        return Effect(f"sidecar {at}, {jump} and back")

    # Bindings

    async def _bind(self, fault: Fault, chance: random.Random) -> Effect:
        async with self._steady:
            return Effect(await asyncio.to_thread(self._bound, chance))

    async def _unbind(self, fault: Fault, chance: random.Random) -> Effect:
        async with self._steady:
            return Effect(await asyncio.to_thread(self._unbound, chance))

    async def _reweight(self, fault: Fault, chance: random.Random) -> Effect:
        async with self._steady:
            return Effect(await asyncio.to_thread(self._reweighted, chance))

    async def _delete(self, fault: Fault, chance: random.Random) -> Effect:
        """Deleted while it is published to, and soon back."""
        queue = chance.choice(CHANGING)
        async with self._steady:
            await asyncio.to_thread(self._queues.delete, self._live(), queue)
        await asyncio.sleep(fault.lasts / 2)
        async with self._steady:
            await asyncio.to_thread(self._queues.bind, self._live(), queue, chance.choice(WEIGHTS))
        return Effect(queue)

    async def _flap(self, fault: Fault, chance: random.Random) -> Effect:
        """Deleted and made anew within a second, several times, while every sidecar is well."""
        queue, at, weight = chance.choice(PLAIN), chance.randrange(2), chance.choice(WEIGHTS)
        async with self._steady:
            if queue not in self._queues.history.current:
                await asyncio.to_thread(self._queues.bind, self._live(), queue, weight)
            for member in self._arena.members:
                wanted = self._queues.history.current
                await asyncio.to_thread(member.now.wait_for_weights, "/", EXCHANGE, wanted)
            through = f"amqp://guest:guest@127.0.0.1:{self._arena.members[at].now.amqp_port}/"
            await asyncio.to_thread(self._queues.flap, self._live(), through, queue, weight)
        return Effect(f"{queue}, {FLAPS} times by sidecar {at}")

    def _bound(self, chance: random.Random) -> str:
        missing = [queue for queue in CHANGING if queue not in self._queues.history.current]
        if not missing:
            return f"none to bind, so {self._unbound(chance)}"
        queue, weight = chance.choice(missing), chance.choice(WEIGHTS)
        self._queues.bind(self._live(), queue, weight)
        return f"{queue} bound with {weight}"

    def _unbound(self, chance: random.Random) -> str:
        bound = self._changing()
        if not bound:
            return f"none to unbind, so {self._bound(chance)}"
        queue = chance.choice(bound)
        end = chance.choice(list(End)) if queue in LANED else End.NOTHING
        self._queues.unbind(self._live(), queue, end)
        return f"{queue} {end}"

    def _reweighted(self, chance: random.Random) -> str:
        """As it is done: unbound, and bound with the new weight."""
        bound = self._changing()
        if not bound:
            return f"none to change, so {self._bound(chance)}"
        queue = chance.choice(bound)
        before = self._queues.history.current[queue]
        after = chance.choice([weight for weight in WEIGHTS if weight != before])
        self._queues.unbind(self._live(), queue)
        self._queues.bind(self._live(), queue, after)
        return f"{queue} from {before} to {after}"

    def _changing(self) -> list[str]:
        """Return those of the queues that change that are bound now."""
        return [queue for queue in CHANGING if queue in self._queues.history.current]


def _alarmed(node: Node) -> bool:
    url = urlsplit(node.management_url)
    connection = HTTPConnection("127.0.0.1", url.port, timeout=5)
    connection.request("GET", "/api/health/checks/alarms", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    status = connection.getresponse().status
    connection.close()
    return status == 503
