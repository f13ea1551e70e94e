"""Which faults a run has, in which order and for how long: a function of its seed and no more."""

import itertools
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kinds of faults."""

    CLIENT_RESET = "client leg: reset"
    CLIENT_VANISH = "client leg: half-open"
    CLIENT_STALL = "client leg: stalled"
    CLIENT_CUT = "client leg: cut in a frame"
    BROKER_RESET = "broker leg: reset"
    BROKER_VANISH = "broker leg: half-open"
    BROKER_STALL = "broker leg: stalled"
    BROKER_CUT = "broker leg: cut in a frame"
    NODE_KILL = "broker: node killed (-9)"
    MEMORY_ALARM = "broker: memory alarm"
    API_DOWN = "management API: down"
    API_SLOW = "management API: slow"
    API_TRUNCATED = "management API: truncated"
    API_LIES = "management API: empty list"
    API_HANGS = "management API: hangs, queues go"
    SIDECAR_TERM = "sidecar: SIGTERM"
    SIDECAR_KILL = "sidecar: SIGKILL"
    CLOCK_JUMP = "sidecar: clock jump"
    BIND = "bindings: queue bound"
    UNBIND = "bindings: queue unbound"
    REWEIGHT = "bindings: weight changed"
    DELETE = "queue deleted, and back"
    FLAP = "queue deleted again and again"
    MEMBER_JOIN = "member: joins"
    MEMBER_CLOSE = "member: closes"
    MEMBER_CANCEL = "member: cancels, then closes"
    MEMBER_KILL = "member: SIGKILL"
    MEMBER_STALL = "member: stops reading"
    MEMBER_HOLD = "member: stops acking"
    MEMBER_HOLDS_ON = "member: holds, a node goes, killed"


CHURN = (Kind.BIND, Kind.UNBIND, Kind.REWEIGHT, Kind.DELETE)
"""The kinds that change bindings: two of each to one of the others."""

NETWORK = tuple(kind for kind in Kind if " leg: " in kind)

ALONE = (Kind.API_HANGS, Kind.FLAP)
"""The faults that happen once all tracks are done: nobody could say otherwise for which fault a publisher stood still,
or got messages back.
"""

MEMBERS = tuple(kind for kind in Kind if kind.startswith("member:"))
"""The kinds that members of a group do, or have done to them."""

DECK = (*(kind for kind in Kind if kind not in MEMBERS), *CHURN)
"""The faults of a round for publishers."""

PROCESSES_OF_GROUPS = (Kind.NODE_KILL, Kind.SIDECAR_TERM, Kind.SIDECAR_KILL)

DECK_OF_GROUPS = (*MEMBERS, *MEMBERS, *NETWORK, *PROCESSES_OF_GROUPS)
"""The faults of a round for groups."""

TRACKS_OF_GROUPS = (MEMBERS, NETWORK, PROCESSES_OF_GROUPS)

TRACKS = (CHURN, NETWORK, tuple(kind for kind in DECK if kind not in CHURN + NETWORK + ALONE))
"""Each fault follows the one before of its own track, whatever the other tracks are at."""


class Fault(NamedTuple):
    """One fault. `pick` chooses whatever there is more than one of when it happens; times are seconds."""

    kind: Kind
    lasts: float
    pause: float
    """Until the next one."""
    pick: int


def schedule(seed: int, count: int, deck: Sequence[Kind] = DECK) -> list[Fault]:
    """Return `count` faults. Each round has every kind of the deck, in an order of its own."""
    chance = random.Random(seed)
    return [_fault(kind, chance) for kind in itertools.islice(_kinds(chance, deck), count)]


def _fault(kind: Kind, chance: random.Random) -> Fault:
    # Bindings change less often, or no message would have one possible queue.
    pause = chance.uniform(1.0, 3.0) if kind in CHURN else chance.uniform(0.2, 1.0)
    return Fault(kind, chance.uniform(0.3, 3.0), pause, chance.randrange(1 << 30))


def _kinds(chance: random.Random, deck: Sequence[Kind]) -> Iterator[Kind]:
    while True:
        kinds = list(deck)
        chance.shuffle(kinds)
        yield from kinds
