"""Take one group of an exchange away: no longer promised, unbound, empty or dropped as told, and only then deleted.

The ring's bindings cease to promise the group its copies before its queues are unbound, so that no sidecar takes the
unbound queues for lost ones. Publishing goes on as before, since no lane and no fan of another group changes. Members
of the group keep their shards until the queues are gone, as those of a shard that has left the ring do.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from proxy.shards.apply import Say, StoppedError, stopped, take
from proxy.shards.broker import Broker, Lock, LockLostError
from proxy.shards.retire import twice, until
from proxy.shards.retirement import RetireError, check_generation, sources
from proxy.shards.state import State
from proxy.shards.steps import Bind, DeleteQueue, Removal, Step, Unbind
from proxy.topology.bindings import FANOUT, GROUP_NAME, RING_TYPES, Promise, TopologyError
from proxy.topology.management import ManagementError
from proxy.topology.names import natural, some
from ring.destination import Destination

_LOOKS, _PAUSE = 10, 1.0
"""How often it is looked whether the queues show as unbound, and the seconds in between."""

_HOW_TO_GO_ON = (
    "run it again: it goes on from here; if a lane was unbound from the exchange and not bound again, first add the "
    "group to the file and apply"
)


@dataclass(frozen=True)
class GroupRetirement:
    """A request to take one group of an exchange away."""

    vhost: str
    exchange: str
    group: str
    """The name of the group, as in `groups` of the topology file."""
    keep: bool
    """Whether the group's queues stay, with their messages."""
    drop: bool
    """Whether the group's queues are deleted together with their messages."""
    patience: float
    """Seconds to wait for the queues to be empty."""

    @property
    def name(self) -> str:
        """The name by which clients consume the group."""
        return f"{self.exchange}/{self.group}"


@dataclass(frozen=True)
class _Course:
    """The steps of one retirement, in order."""

    promising: tuple[Step, ...]
    """The steps after which no binding of the ring promises the group anything."""
    closing: tuple[Removal, ...]
    """The steps after which the group gets no copies."""
    deleting: tuple[DeleteQueue, ...]
    """The steps that delete the group's queues."""
    queues: tuple[str, ...]

    @property
    def steps(self) -> tuple[Step | Removal, ...]:
        return (*self.promising, *self.closing, *self.deleting)


def course_of(state: State, what: GroupRetirement) -> _Course:
    """Return the steps that take a group away. Raises RetireError for what would lose messages, or would never end."""
    exchange = state.exchanges.get(what.exchange)
    if not GROUP_NAME.fullmatch(what.group):
        raise RetireError(f"group {what.group!r} is no name of a group: give the one in groups of the topology file")
    if exchange is None or exchange.type not in RING_TYPES:
        raise RetireError(f"virtual host {what.vhost!r} has no hash exchange {what.exchange!r}")
    promising: list[Step] = []
    promised, lanes = set[str](), set[str]()
    for each in state.bindings.get(what.exchange, ()):
        if each.destination.kind == "exchange":
            lanes.add(each.destination.name)
        if each.promise is None or what.name not in dict(each.promise.groups):
            continue
        promised.add(dict(each.promise.groups)[what.name])
        others = tuple((name, queue) for name, queue in each.promise.groups if name != what.name)
        # Not the other way round: x-consistent-hash drops a destination that loses one of two bindings.
        promising.append(Unbind(what.exchange, each.destination, each.key, each.properties_key))
        promising.append(Bind(what.exchange, each.destination, each.key, Promise(each.promise.shard, others)))
    fans = {
        each.destination.name
        for lane in lanes
        for each in state.bindings.get(lane, ())
        if each.destination.kind != "queue"
    }
    _check_lanes(state, what)
    queues = sorted({*promised.intersection(state.queues), *_named(state, what, fans)}, key=natural)
    if not what.keep:
        _check(state, what, queues, fans)
    closing = tuple(
        Unbind(fan, each.destination, each.key, each.properties_key)
        for fan in sorted(fans, key=natural)
        for each in state.bindings.get(fan, ())
        if each.destination.kind == "queue" and each.destination.name in queues
    )
    # A quorum queue takes no condition. A classic one does, so it cannot lose what came since.
    deleting = tuple(DeleteQueue(name, not what.drop and state.queues[name].type == "classic") for name in queues)
    return _Course(tuple(promising), closing, () if what.keep else deleting, tuple(queues))


def _check_lanes(state: State, what: GroupRetirement) -> None:
    """Raise RetireError if a lane to the group is bound to no exchange: an earlier run was ended before it bound it.

    The weight and the promise of its binding have gone with the binding, and only the file has them.
    """
    bound = {each.destination.name for of in state.bindings.values() for each in of}
    pattern = _pattern(what)
    to_group = {s for s, of in state.bindings.items() if any(pattern.fullmatch(each.destination.name) for each in of)}
    for lane, bindings in state.bindings.items():
        found = state.exchanges.get(lane)
        if lane in bound or found is None or found.type != FANOUT:
            continue
        if any(each.destination.kind == "exchange" and each.destination.name in to_group for each in bindings):
            raise RetireError(
                f"lane {lane!r} is bound to no exchange, as after a run that was ended: add {what.group!r} to groups of"
                " the topology file, apply, take it out, and run this again"
            )


def _pattern(what: GroupRetirement) -> re.Pattern[str]:
    return re.compile(re.escape(f"{what.exchange}.{what.group}.") + "[1-9][0-9]*")


def _named(state: State, what: GroupRetirement, fans: Collection[str]) -> Iterable[str]:
    """Yield the queues that are the group's by their names: `orders.audit.3` for the group `audit` of `orders`.

    An earlier run may have unbound them. Where there is an exchange `orders.audit`, they may be its shards; then only
    those count to which a fan of this exchange leads.
    """
    pattern = _pattern(what)
    fanned = {each.destination.name for fan in fans for each in state.bindings.get(fan, ())}
    is_other = f"{what.exchange}.{what.group}" in state.exchanges
    return (name for name in state.queues if pattern.fullmatch(name) and (name in fanned or not is_other))


def _check(state: State, what: GroupRetirement, queues: Sequence[str], fans: Collection[str]) -> None:
    """Raise RetireError if queues of a group must not be deleted."""
    for name in queues:
        if found := _sources(state, [name], fans):
            raise RetireError(f"queue {name!r} also gets messages from exchange {found[0]!r}; unbind that first")
        if state.queues[name].type == "stream" and not what.drop:
            raise RetireError(f"queue {name!r} is a stream, which is never empty: use --keep, or --drop")


def _sources(state: State, queues: Collection[str], but: Collection[str] = ()) -> list[str]:
    """Return the exchanges that are bound to any of these queues, without those in `but`."""
    return sources(state, {Destination("queue", name) for name in queues}, but)


async def retire_group(broker: Broker, lock: Lock, what: GroupRetirement, say: Say) -> None:
    """Take a group away, and delete its queues unless `what` keeps them; shards, lanes and fans stay.

    Run again after it was stopped, it goes on where it was. Raises RetireError if nothing was changed, ManagementError
    or TopologyError if nothing could be read, and StoppedError once it has begun, also if the lock is lost.
    """
    state = (await broker.states([what.vhost]))[what.vhost]
    check_generation(state, what.exchange, "a group can be taken away as long as they are of the first one")
    course = course_of(state, what)
    if not course.steps:
        say(f"exchange {what.exchange} has no group {what.group}, and no queue of it: nothing to do")
        return
    if course.promising and len(state.weights(what.exchange)) == 1:
        say(f"exchange {what.exchange} leads nowhere for a moment: publishers without a sidecar should wait")
    done, is_waiting = 0, True
    try:
        for step in course.steps:
            is_waiting = True
            if done == len(course.promising) + len(course.closing):
                await _closed(broker, lock, what, course, say)
            await lock.check()
            is_waiting = False
            await take(broker, what.vhost, step)
            done += 1
            say(str(step))
    except (ManagementError, TopologyError, LockLostError) as error:
        raise stopped(course.steps, done, error, _HOW_TO_GO_ON, waiting=is_waiting) from error
    if what.keep:
        say(f"{some(list(map(repr, course.queues)))} get no more copies, and keep their messages")


async def _closed(broker: Broker, lock: Lock, what: GroupRetirement, course: _Course, say: Say) -> None:
    """Return once no exchange leads to the queues, and they are empty, unless their messages are to be dropped.

    Raises StoppedError if they are bound again, or not empty in time, and LockLostError.
    """
    for look in range(_LOOKS):
        state = (await broker.states([what.vhost]))[what.vhost]
        if not _sources(state, course.queues):
            break
        if look < _LOOKS - 1:
            await asyncio.sleep(_PAUSE)  # A node of a cluster may show a change later.
    _stop_if_bound(state, course)
    if what.drop:
        return

    async def left() -> str:
        await lock.check()
        state = (await broker.states([what.vhost]))[what.vhost]
        _stop_if_bound(state, course)
        return _left(state, course.queues)

    async def left_at_all() -> str:
        if found := await twice(left):
            return found
        for name in course.queues:
            if name in state.queues and (ready := await lock.count_ready(what.vhost, name)):
                return f"{name} has {ready} ready messages, which the management API does not count yet"
        return ""

    await until("the queues to be empty twice", left_at_all, say, what.patience, f"{_HOW_TO_GO_ON}, or with --drop")


def _stop_if_bound(state: State, course: _Course) -> None:
    """Raise StoppedError if an exchange leads to any queue that goes."""
    if found := _sources(state, course.queues):
        told = some([repr(name) for name in found], 3)
        raise StoppedError(
            [
                f"queues of the group were bound again, by exchange {told}, so they may get messages: not deleted",
                "take the group out of the topology file first, and run this again",
            ]
        )


def _left(state: State, queues: Iterable[str]) -> str:
    """Return what the management API shows in these queues; empty if there is nothing."""
    told = []
    for name in queues:
        found = state.queues.get(name)
        if found is not None and found.waiting is None:
            told.append(f"{name} is not counted yet")
        elif found is not None and found.waiting:
            told.append(f"{name} has {found.content}")
    return some(told, 3) if told else ""
