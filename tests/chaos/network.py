"""Faults of the network: on the way from clients to a sidecar, or from sidecars to a node."""

import random

from tests.chaos.arena import Arena
from tests.chaos.relay import Relay
from tests.chaos.schedule import Fault, Kind
from tests.chaos.tracks import Act, Effect


class Network:
    """Does to the connections of an arena what networks do."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.acts: dict[Kind, Act] = {
            Kind.CLIENT_RESET: self._reset,
            Kind.CLIENT_VANISH: self._vanish,
            Kind.CLIENT_STALL: self._stall,
            Kind.CLIENT_CUT: self._cut,
            Kind.BROKER_RESET: self._reset,
            Kind.BROKER_VANISH: self._vanish,
            Kind.BROKER_STALL: self._stall,
            Kind.BROKER_CUT: self._cut,
        }

    def leg(self, fault: Fault, chance: random.Random) -> tuple[str, Relay]:
        """Return the relay that a fault is done to, and its name."""
        if fault.kind.startswith("broker"):
            at = chance.randrange(len(self._arena.legs))
            return f"node {at}", self._arena.legs[at]
        at, listener = chance.randrange(2), chance.choice(("amqp", "http"))
        return f"sidecar {at}, {listener}", self._arena.members[at].relays[listener]

    async def _reset(self, fault: Fault, chance: random.Random) -> Effect:
        name, leg = self.leg(fault, chance)
        return Effect(name, leg.reset())

    async def _vanish(self, fault: Fault, chance: random.Random) -> Effect:
        name, leg = self.leg(fault, chance)
        return Effect(name, await leg.vanish(2 * fault.lasts))

    async def _stall(self, fault: Fault, chance: random.Random) -> Effect:
        name, leg = self.leg(fault, chance)
        return Effect(name, await leg.stall(fault.lasts))

    async def _cut(self, fault: Fault, chance: random.Random) -> Effect:
        name, leg = self.leg(fault, chance)
        towards_client = chance.random() < 0.5
        met = await leg.cut(1 + fault.lasts, towards_client=towards_client)
        return Effect(f"{name}, towards the {'client' if towards_client else 'broker'}", met)
