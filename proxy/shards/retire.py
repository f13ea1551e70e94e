"""Take one shard away: off the ring, agreed on by the fleet, closed, empty, and only then deleted."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from proxy.shards.apply import Say, StoppedError, stopped, take
from proxy.shards.broker import Broker, Lock, LockLostError
from proxy.shards.fleet import FleetError, disagreement, reachable
from proxy.shards.plan import moves_keys
from proxy.shards.state import FoundBinding, State
from proxy.shards.steps import DeleteExchange, DeleteQueue, Removal, Unbind
from proxy.topology.bindings import RING_TYPES, TopologyError
from proxy.topology.management import ManagementError
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import changes, fingerprint

BETWEEN_LOOKS = 31.0
"""Seconds between the two looks that must find a queue empty, and the fleet agreed.

The management API counts messages, and lists new connections, every `collect_statistics_interval`: 5 s, unless the
broker's configuration says otherwise. With up to 30 s, what the second look sees was counted after the first one. Over
AMQP a broker tells at once how many messages are ready, but not how many are delivered and not acked.
"""

_LOOKS = 10
"""The most looks, `_PAUSE` apart, until the management API must show that a binding is gone."""

_PAUSE = 1.0
"""Seconds between two looks at what is waited for."""


class RetireError(Exception):
    """A shard cannot be retired; the message says why. Nothing was changed."""


@dataclass(frozen=True)
class Retirement:
    """A request to retire one shard: the shard, and how its fleet is asked."""

    vhost: str
    exchange: str
    queue: str
    keep: bool
    """Whether the queue stays, with its lane and its messages."""
    sidecars: Sequence[str]
    """URLs of admin listeners that cannot be found by the broker's connections."""
    no_sidecars: bool
    """Whether to go on though no sidecar is connected to the cluster, and none was named."""
    patience: float
    """Seconds to wait for the fleet, and again for the queue to be empty."""


class _Course:
    """The course of one retirement: its steps in order, of which the first ones are taken."""

    def __init__(
        self,
        broker: Broker,
        lock: Lock,
        what: Retirement,
        state: State,
        found: Sequence[FoundBinding],
        lanes: Sequence[str],
        say: Say,
    ) -> None:
        """Take the bindings that lead to the queue, and its lanes, as `state` has them; no step is taken yet."""
        self._broker, self._lock, self._what, self._say = broker, lock, what, say
        self.off_the_ring: list[Removal] = [_unbinding(what.exchange, binding) for binding in found]
        """The steps by which sidecars, and RabbitMQ itself, cease to route to the queue."""
        self.closing: list[Removal] = []
        """The steps from which on the broker returns what still comes to a lane, and a sidecar routes that anew."""
        self.deleting: list[Removal] = []
        """The steps that delete the queue, once it is empty, and then its lanes."""
        if not what.keep:
            self.closing += [_unbinding(lane, each) for lane in lanes for each in state.bindings.get(lane, ())]
            if (queue := state.queues.get(what.queue)) is not None:
                # A quorum queue takes no condition. A classic one does, so it cannot lose what came since.
                self.deleting.append(DeleteQueue(what.queue, if_empty=queue.type == "classic"))
            self.deleting += [DeleteExchange(lane) for lane in lanes]
        self._done, self._is_waiting = 0, True

    async def take(self, steps: Sequence[Removal]) -> None:
        """Take the steps that come next. Raises LockLostError or ManagementError."""
        for step in steps:
            self._is_waiting = False
            await self._lock.check()
            await take(self._broker, self._what.vhost, step)
            self._done += 1
            self._is_waiting = True
            self._say(str(step))

    def stopped(self, error: Exception) -> StoppedError:
        """Return the error that tells how far the course has come, and how to go on."""
        steps = [*self.off_the_ring, *self.closing, *self.deleting]
        return stopped(steps, self._done, error, _how_to_go_on(self._what), waiting=self._is_waiting)


async def retire(broker: Broker, lock: Lock, what: Retirement, say: Say) -> None:
    """Take a shard away. Run again after it was stopped, it goes on where it was.

    Raises RetireError or FleetError if nothing was changed, ManagementError or TopologyError if nothing could be read,
    and StoppedError once it has begun.
    """
    state = (await broker.states([what.vhost]))[what.vhost]
    found = _bindings(state, what)
    lanes = _lanes(state, what, found)
    _check(state, what, found, lanes)
    if what.queue not in state.queues and not found and not lanes:
        say(f"there is no queue {what.queue}, and nothing of it: nothing to do")
        return
    fleet = await reachable(broker.api, what.sidecars, what.vhost, what.exchange)
    if not fleet and not what.no_sidecars:
        raise FleetError("no sidecar is connected to the cluster: use --no-sidecars if there is none that may publish")
    say(f"{len(fleet)} sidecars have to follow{': ' if fleet else ''}{', '.join(fleet)}")
    if found:
        before = state.weights(what.exchange)
        after = {d: w for d, w in before.items() if d != Destination("queue", what.queue)}
        slots = len(changes(before, after).slots) if moves_keys(before, after) else 0
        say(f"{slots / SLOTS:.4%} of the keys move ({slots:,} of {SLOTS:,} slots)")
    course = _Course(broker, lock, what, state, found, lanes, say)
    try:
        await _take_off(broker, lock, what, course, lanes, say)
        if what.keep:
            say(f"queue {what.queue} is off the ring, and stays with its messages")
        else:
            await _close(broker, lock, what, course, lanes, say)
    except (ManagementError, TopologyError, LockLostError) as error:
        raise course.stopped(error) from error


async def _take_off(
    broker: Broker, lock: Lock, what: Retirement, course: _Course, lanes: Sequence[str], say: Say
) -> None:
    """Take a shard off the ring, and wait until nobody routes to it any more."""
    await course.take(course.off_the_ring)
    await _shown_unbound(broker, what, _removed_destinations(what, lanes), lanes)
    await _until(what, "every sidecar to route by the ring without it", lambda: _behind(broker, what, lock, lanes), say)


async def _close(broker: Broker, lock: Lock, what: Retirement, course: _Course, lanes: Sequence[str], say: Say) -> None:
    """Close the lanes of a shard that is off the ring, wait until its queue is empty, and delete both."""
    await course.take(course.closing)
    if any(isinstance(step, DeleteQueue) for step in course.deleting):
        taken = _removed_destinations(what, lanes)
        await _shown_unbound(broker, what, taken)
        await _until(what, "the queue to be empty twice", lambda: _left(broker, what, lock, taken), say)
    await course.take(course.deleting)


def _bindings(state: State, what: Retirement) -> list[FoundBinding]:
    """Return the bindings of the ring that lead to the queue, or to its own lane if that leads nowhere any more."""
    ends = {Destination("queue", what.queue)}
    own = _own_lane(what)
    lane = state.exchanges.get(own) if own is not None else None
    if own is not None and lane is not None and lane.type == "fanout" and not state.bindings.get(own):
        ends.add(Destination("exchange", own))
    return [each for each in state.bindings.get(what.exchange, ()) if state.behind(each.destination) in ends]


def _own_lane(what: Retirement) -> str | None:
    """Return the name of the lane `EXCHANGE.lane.N` of a queue `EXCHANGE.N`; None for a queue of another name."""
    prefix, _, number = what.queue.rpartition(".")
    return f"{prefix}.lane.{number}" if prefix == what.exchange else None


def _lanes(state: State, what: Retirement, found: Sequence[FoundBinding]) -> list[str]:
    """Return the lanes of the queue: those on the ring, and those that an earlier run has left.

    A lane that was left is named EXCHANGE.lane.SOMETHING, nothing is bound to it, and it leads to this queue only. The
    lane EXCHANGE.lane.N of a queue EXCHANGE.N counts also if it leads nowhere any more.
    """
    lanes = dict.fromkeys(each.destination.name for each in found if each.destination.kind == "exchange")
    own = _own_lane(what)
    queue = Destination("queue", what.queue)
    fed = {each.destination for bindings in state.bindings.values() for each in bindings}
    for name, exchange in state.exchanges.items():
        leads_to = {each.destination for each in state.bindings.get(name, ())}
        leads_here = name.startswith(f"{what.exchange}.lane.") and leads_to == {queue}
        is_free = exchange.type == "fanout" and Destination("exchange", name) not in fed
        if is_free and (leads_here or (name == own and not leads_to)):
            lanes[name] = None
    return list(lanes)


def _removed_destinations(what: Retirement, lanes: Sequence[str]) -> frozenset[Destination]:
    """Return the destinations that go: the queue and its lanes."""
    return frozenset({Destination("queue", what.queue), *(Destination("exchange", lane) for lane in lanes)})


def _sources(state: State, taken: Collection[Destination], but: Collection[str] = ()) -> list[str]:
    """Return the exchanges that are bound to any of these destinations, without those in `but`."""
    return sorted(
        source
        for source, bindings in state.bindings.items()
        if source not in but and any(each.destination in taken for each in bindings)
    )


def _is_named_as_shard(what: Retirement) -> bool:
    """Return whether the queue's name alone tells that it is a shard of the exchange, such as `orders.3`."""
    return re.fullmatch(re.escape(what.exchange) + r"\.[0-9]+", what.queue) is not None


def _check(state: State, what: Retirement, found: Sequence[FoundBinding], lanes: Sequence[str]) -> None:
    """Raise RetireError for what would lose messages, or would never end."""
    exchange = state.exchanges.get(what.exchange)
    if exchange is None or exchange.type not in RING_TYPES:
        raise RetireError(f"virtual host {what.vhost!r} has no hash exchange {what.exchange!r}")
    if found and not state.weights(what.exchange).keys() - {Destination("queue", what.queue)}:
        raise RetireError(
            f"queue {what.queue!r} is the only one of exchange {what.exchange!r}, which would lose messages"
        )
    for source in _sources(state, _removed_destinations(what, lanes), (what.exchange, *lanes)):
        raise RetireError(f"queue {what.queue!r} also gets messages from exchange {source!r}; unbind that first")
    for lane in lanes:
        if fan := state.lane(lane).fan:
            raise RetireError(
                f"queue {what.queue!r} is of a shard with several groups, which share fan {fan!r}: this command cannot "
                "take such a shard away yet"
            )
    gone = state.queues.get(what.queue)
    if gone is not None and not (found or lanes or what.keep or _is_named_as_shard(what)):
        raise RetireError(
            f"exchange {what.exchange!r} is not bound to queue {what.queue!r}, and nothing tells that it was: delete "
            "the queue yourself if it is the one that you mean"
        )
    if gone is not None and gone.type == "stream" and not what.keep:
        raise RetireError(f"queue {what.queue!r} is a stream, which keeps its messages and is never empty: use --keep")


def _unbinding(source: str, found: FoundBinding) -> Unbind:
    return Unbind(source, found.destination, found.key, found.properties_key)


async def _shown_unbound(
    broker: Broker, what: Retirement, taken: Collection[Destination], but: Collection[str] = ()
) -> None:
    """Return once the management API shows that no exchange is bound to what goes, without those in `but`.

    A node of a cluster may show a change later. Raises StoppedError if a binding stays, or has come back.
    """
    for look in range(_LOOKS):
        state = (await broker.states([what.vhost]))[what.vhost]
        if not _sources(state, taken, but):
            return
        if look < _LOOKS - 1:
            await asyncio.sleep(_PAUSE)
    _stop_if_bound_again(state, what, taken, but)


def _stop_if_bound_again(
    state: State, what: Retirement, taken: Collection[Destination], but: Collection[str] = ()
) -> None:
    """Raise StoppedError if an exchange is bound to what goes, without those in `but`."""
    if sources := _sources(state, taken, but):
        names = ", ".join(map(repr, sources))
        raise StoppedError(
            [
                f"queue {what.queue!r} was bound again, by exchange {names}, so it may get messages: not deleted",
                "stop whoever binds it, such as a consumer that starts, and run this again",
            ]
        )


async def _behind(broker: Broker, what: Retirement, lock: Lock, lanes: Sequence[str]) -> str:
    """Return which sidecars still route by a ring with the queue; empty if two looks have found none.

    The second look sees the connections that the API did not list at the first one yet.
    """
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        await lock.check()
        state = (await broker.states([what.vhost]))[what.vhost]
        _stop_if_bound_again(state, what, _removed_destinations(what, lanes), lanes)
        exchange = await broker.api.exchange(what.vhost, what.exchange)
        if exchange is None:
            raise ManagementError("the exchange is gone")
        wanted = fingerprint(state.weights(what.exchange), exchange.type, str(exchange.hashed))
        if behind := await disagreement(broker.api, what.sidecars, what.vhost, what.exchange, wanted):
            return behind
    return ""


async def twice(look: Callable[[], Awaitable[str]]) -> str:
    """Return what one of two looks has found, `BETWEEN_LOOKS` apart; empty if both have found nothing."""
    if found := await look():
        return found
    await asyncio.sleep(BETWEEN_LOOKS)
    return await look()


async def _left(broker: Broker, what: Retirement, lock: Lock, taken: Collection[Destination]) -> str:
    """Return what is left in the queue; empty if two looks, and the broker itself at their end, have found nothing.

    Raises StoppedError if an exchange was bound to the queue, or to a lane of it, meanwhile.
    """
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        await lock.check()
        _stop_if_bound_again((await broker.states([what.vhost]))[what.vhost], what, taken)
        answer = await broker.api.page(
            ["queues", what.vhost, what.queue], ["messages_ready", "messages_unacknowledged"]
        )
        if answer is None:
            return ""
        ready, unacked = _counts(answer)
        if ready or unacked:
            return f"{ready} messages are ready and {unacked} not acked yet"
    ready = await lock.count_ready(what.vhost, what.queue)
    return f"{ready} messages are ready, which the management API does not count yet" if ready else ""


def _counts(answer: object) -> tuple[int, int]:
    """Return how many messages of a queue are ready, and how many are delivered and not acked."""
    counts = (
        [answer.get(name) for name in ("messages_ready", "messages_unacknowledged")] if isinstance(answer, dict) else []
    )
    ready, unacked = [*counts, None, None][:2]
    if type(ready) is not int or type(unacked) is not int:
        raise TopologyError("messages_ready, messages_unacknowledged: the management API does not count messages")
    return ready, unacked


async def _until(what: Retirement, goal: str, look: Callable[[], Awaitable[str]], say: Say) -> None:
    await until(goal, look, say, what.patience, _how_to_go_on(what))


async def until(goal: str, look: Callable[[], Awaitable[str]], say: Say, patience: float, how_to_go_on: str) -> None:
    """Look until there is nothing left to wait for. Raises StoppedError once the patience, in seconds, is over."""
    loop = asyncio.get_running_loop()
    end, told = loop.time() + patience, ""
    while True:
        try:
            left = await look()
        except (ManagementError, TopologyError) as error:
            left = str(error)
        if not left:
            return
        if left != told:
            say(f"waiting for {goal}: {left}")
        told = left
        if loop.time() > end:
            raise StoppedError([f"waited {patience:g} s for {goal}: {left}", how_to_go_on])
        await asyncio.sleep(_PAUSE)


def _how_to_go_on(what: Retirement) -> str:
    """Return what to do after a run that was stopped."""
    if what.keep or _is_named_as_shard(what):
        return "run it again: it goes on from here"
    return (
        f"run it again: it goes on from here while a lane named {what.exchange}.lane.* leads to the queue; after that "
        "delete the queue yourself once it is empty"
    )
