"""The history of the members of groups in one run, as they and whoever did it wrote it down; times are monotonic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tests.chaos.oracle import Note


class Holder(NamedTuple):
    """One connection of one member: what it has not acked goes back to the queues when the connection ends."""

    member: str
    connection: int
    """Counts the connections of this member."""


class Delivery(NamedTuple):
    """A message as a member's client library handed it over."""

    at: float
    holder: Holder
    tag: int
    redelivered: bool
    exchange: str
    key: str
    publisher: str
    number: int


class How(StrEnum):
    """How a member settles messages; the value begins the line that the member writes just before it does so."""

    ACK = "a"
    MULTIPLE = "m"
    """All messages up to this delivery tag are acked."""
    NACK = "n"
    """The message is to come again: from its queue, or in series later from the sidecar."""


class Settlement(NamedTuple):
    """A member is about to ack or nack."""

    at: float
    holder: Holder
    tag: int
    how: How


class Begin(NamedTuple):
    """A worker of a member in series begins to work on a delivery, until the member acks or nacks it."""

    at: float
    holder: Holder
    tag: int
    attempt: int
    """The number of the try, as the sidecar tells it; 1 if it tells none."""


class DeadLetter(NamedTuple):
    """A message that a sidecar has given up, as it was found in the dead-letter queue."""

    publisher: str
    number: int
    key: str
    """The routing key."""
    attempt: int
    """The header `x-ring-attempt`; 0 if it is missing."""
    group: str = ""
    """The header `x-ring-group`; empty if it is missing."""


class End(StrEnum):
    """How a connection ends."""

    CLOSED = "closed"
    """The member's library closes it in good order."""
    LOST = "lost"
    """The member finds that its connection or its channel is gone."""
    KILLED = "killed"
    """The member's process ends at once, and says nothing."""


class Life(NamedTuple):
    """One connection of a member, from its consume-ok."""

    holder: Holder
    joined: float
    end: float
    """When the member is about to close it, or finds it lost, or is about to be killed; infinite while it lasts."""
    how: End | None
    """None while it lasts."""


class Trouble(NamedTuple):
    """A fault between members and the broker, which may cost these members their connections."""

    begin: float
    end: float
    members: frozenset[str]
    abrupt: bool = True
    """Whether messages may go back to their queues at once, or only shortly before the member is told."""


class Stall(NamedTuple):
    """A member reads nothing for a time."""

    member: str
    begin: float
    end: float


class Calm(NamedTuple):
    """A time without faults, in which these were the members."""

    begin: float
    end: float
    members: frozenset[str]
    shown: Sequence[Mapping[str, str | None]] = ()
    """The report of each sidecar with members at the end: the member of each shard; None for nobody."""
    consumers: Mapping[str, int] = {}
    """How many consumers each shard had at the end, as the broker counted them."""
    group: str = ""
    """The group that these are the members and shards of."""


@dataclass
class History:
    """All of a run. Deliveries and settlements of one member stand in the order in which that member wrote them."""

    notes: Sequence[Note] = ()
    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    """When nodes of the broker were killed."""
    calms: list[Calm] = field(default_factory=list)
    closed: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)
    """By member and shard, when sidecars saw the end of the channel by which they consumed the shard for the member."""
    given_up: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)
    """By member and shard, when sidecars took a shard with all that was unacked from the member."""
    begins: list[Begin] = field(default_factory=list)
    """Those of members in series."""
    dead_letters: Sequence[DeadLetter] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    """The group of each member."""

    def read(self, member: str, lines: Iterable[str], killed: float | None) -> None:
        """Add what a member wrote, who was killed at this time if it was; `consumers/member.py` says how."""
        joined: dict[int, float] = {}
        ended: set[int] = set()
        for line in lines:
            if not line.endswith("\n"):  # the process was killed as it wrote this
                break
            what, at, connection, *rest = line.split()
            time, holder = float(at), Holder(member, int(connection))
            if what == "d":
                tag, redelivered, exchange, key, publisher, number = rest
                self.deliveries.append(
                    Delivery(time, holder, int(tag), redelivered == "1", exchange, key, publisher, int(number))
                )
            elif what in list(How):
                self.settlements.append(Settlement(time, holder, int(rest[0]), How(what)))
            elif what == "b":
                self.begins.append(Begin(time, holder, int(rest[0]), int(rest[1])))
            elif what == "j":
                joined[holder.connection] = time
            elif what in ("c", "l") and holder.connection in joined and holder.connection not in ended:
                ended.add(holder.connection)
                how = End.CLOSED if what == "c" else End.LOST
                self.lives.append(Life(holder, joined[holder.connection], time, how))
        end = (float("inf"), None) if killed is None else (killed, End.KILLED)
        unended = [Life(Holder(member, open_), since, *end) for open_, since in joined.items() if open_ not in ended]
        self.lives.extend(unended)
