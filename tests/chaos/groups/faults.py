"""Does to a group what the schedule says, and writes down what that means for the judge."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from testbed.node import Node
from tests.chaos.arena import Arena
from tests.chaos.groups.history import History, Stall, Trouble
from tests.chaos.groups.members import Group
from tests.chaos.network import Network
from tests.chaos.schedule import NETWORK, TRACKS_OF_GROUPS, Fault, Kind
from tests.chaos.tracks import Act, Effect, Say, Tracks

ACK_TIMEOUT = 5.0
"""Seconds after which sidecars take a message from a member that does not ack it."""

WANTED, MOST = 6, 8
"""Members that there are at least once a fault is over, and at most."""

HARMLESS = (Kind.CLIENT_STALL, Kind.BROKER_STALL)
"""Faults that cost nobody a connection: they last less long than any time-out."""


class Injector:
    """Does faults on several tracks at once."""

    def __init__(self, arena: Arena, group: Group, history: History, say: Say, *, direct: bool) -> None:
        """With `direct`, members consume the shards themselves, by connections to the nodes."""
        self._arena, self._group, self._history, self._direct = arena, group, history, direct
        self._network = Network(arena)
        self._node = asyncio.Lock()
        """Held while a node is down: without the majority of its nodes, a queue stands still."""
        acts: dict[Kind, Act] = dict.fromkeys(NETWORK, self._on_the_way)
        acts |= {
            Kind.NODE_KILL: self._kill_node,
            Kind.SIDECAR_TERM: self._end_sidecar,
            Kind.SIDECAR_KILL: self._end_sidecar,
            Kind.MEMBER_JOIN: self._join,
            Kind.MEMBER_CLOSE: self._leave,
            Kind.MEMBER_CANCEL: self._leave,
            Kind.MEMBER_KILL: self._leave,
            Kind.MEMBER_STALL: self._stall,
            Kind.MEMBER_HOLD: self._hold,
            Kind.MEMBER_HOLDS_ON: self._hold_on,
        }
        self._tracks = Tracks(acts, say)

    @property
    def done(self) -> Counter[Kind]:
        """How many faults of each kind had an effect."""
        return self._tracks.done

    async def run(self, faults: Sequence[Fault]) -> None:
        """Return when all is done, and all is well again."""
        await self._tracks.beside(faults, TRACKS_OF_GROUPS)
        self._group.check()

    # Between members and the broker

    async def _on_the_way(self, fault: Fault, chance: random.Random) -> Effect:
        begin = time.monotonic()
        _, leg = self._network.leg(fault, random.Random(fault.pick))
        effect = await self._network.acts[fault.kind](fault, chance)
        if fault.kind not in HARMLESS:
            self._trouble(begin, *(at for at, sidecar in enumerate(self._sidecars) if sidecar == leg.port))
            if leg in self._arena.legs:
                self._trouble(begin, None)
        return effect

    @property
    def _sidecars(self) -> list[int]:
        """The ports by which members reach the sidecars; none where they do not."""
        return [] if self._direct else [member.relays["amqp"].port for member in self._arena.members]

    def _trouble(self, begin: float, *sidecars: int | None, abrupt: bool = True) -> None:
        """Note a fault that has just ended, for the members of these sidecars; None stands for all members."""
        for sidecar in sidecars:
            self._history.troubles.append(Trouble(begin, time.monotonic(), self._group.names(sidecar), abrupt))

    async def _kill_node(self, fault: Fault, chance: random.Random) -> Effect:
        async with self._without_a_node(chance) as node:
            await asyncio.sleep(fault.lasts)
        return Effect(node.name)

    @asynccontextmanager
    async def _without_a_node(self, chance: random.Random) -> AsyncIterator[Node]:
        """Kill a node, one at a time, and start it at the end."""
        async with self._node:
            nodes, begin = self._arena.nodes, time.monotonic()
            node = chance.choice(nodes)
            others = [other for other in nodes if other is not node]
            if others:
                self._arena.front.target = others[0].management_url
            self._history.kills.append(time.monotonic())
            await asyncio.to_thread(node.kill)
            yield node
            await asyncio.to_thread(node.start)
            self._trouble(begin, None)

    async def _end_sidecar(self, fault: Fault, chance: random.Random) -> Effect:
        at, begin = chance.randrange(2), time.monotonic()
        sidecar, killed = self._arena.members[at], fault.kind is Kind.SIDECAR_KILL
        await asyncio.to_thread(sidecar.kill if killed else sidecar.stop)
        await asyncio.sleep(fault.lasts / 3)
        await asyncio.to_thread(sidecar.start)
        if not self._direct:
            self._trouble(begin, at, abrupt=killed)
        return Effect(f"sidecar {at}")

    # Members

    async def _join(self, fault: Fault, chance: random.Random) -> Effect:
        if len(self._group.running) >= MOST:
            return await self._leave(fault, chance)
        return Effect((await self._group.joins()).name)

    async def _leave(self, fault: Fault, chance: random.Random) -> Effect:
        member = chance.choice(self._group.running)
        # The broker's own clients are out of order once they cancel with messages unacked, as many libraries do when
        # they close: so members of shards leave as one does that crashes.
        if fault.kind is Kind.MEMBER_KILL or self._direct:
            await asyncio.to_thread(self._group.kill, member)
        else:
            await self._group.ends(member, "cancel" if fault.kind is Kind.MEMBER_CANCEL else "close")
        await asyncio.sleep(fault.lasts)
        words = member.name
        if len(self._group.running) < WANTED:
            words += f", and {(await self._group.joins()).name} joins"
        return Effect(words)

    async def _stall(self, fault: Fault, chance: random.Random) -> Effect:
        """Half of the stalls last longer than the time for acks."""
        member = chance.choice(self._group.running)
        seconds = fault.lasts + chance.choice((0.0, 1.2 * ACK_TIMEOUT))
        begin = time.monotonic()
        member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        member.process.send_signal(signal.SIGCONT)
        self._history.stalls.append(Stall(member.name, begin, time.monotonic()))
        return Effect(f"{member.name}, for {seconds:.1f} s")

    async def _hold(self, fault: Fault, chance: random.Random) -> Effect:
        member = chance.choice(self._group.running)
        seconds = fault.lasts + 1.2 * ACK_TIMEOUT
        member.tell("hold")
        await asyncio.sleep(seconds)
        member.tell("ack")
        return Effect(f"{member.name}, for {seconds:.1f} s")

    async def _hold_on(self, fault: Fault, chance: random.Random) -> Effect:
        """A member holds messages while a node that was away comes back, and then its process is killed.

        With consumers of different priorities RabbitMQ 4.3 keeps that member's consumer.
        """
        member = chance.choice(self._group.running)
        async with self._without_a_node(chance) as node:
            await asyncio.sleep(fault.lasts)
            member.tell("hold")
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self._group.kill, member)
        words = f"{member.name}, as {node.name} came back"
        if len(self._group.running) < WANTED:
            words += f", and {(await self._group.joins()).name} joins"
        return Effect(words)
