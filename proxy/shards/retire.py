"""Take one shard away: off the ring, agreed on by the fleet, closed, empty, and only then deleted."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from proxy.shards.apply import Say, StoppedError, stopped, take
from proxy.shards.broker import Broker, Lock, LockLostError
from proxy.shards.fleet import FleetError, disagreement, reachable
from proxy.shards.plan import moves_keys
from proxy.shards.retirement import Parts, Removals, Shard, check, parts_of, removals, sources
from proxy.shards.state import State, content, neither
from proxy.shards.steps import Removal
from proxy.topology.bindings import TopologyError
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


@dataclass(frozen=True)
class Retirement:
    """A request to retire one shard: the shard, and how its fleet is asked."""

    vhost: str
    exchange: str
    queue: str
    keep: bool
    """Whether the queues stay, with their lane and their messages."""
    sidecars: Sequence[str]
    """URLs of admin listeners that cannot be found by the broker's connections."""
    no_sidecars: bool
    """Whether to go on though no sidecar is connected to the cluster, and none was named."""
    patience: float
    """Seconds to wait for the fleet, and again for the queues to be empty."""

    @property
    def shard(self) -> Shard:
        return Shard(self.exchange, self.queue)


class _Course:
    """The course of one retirement: its steps in order, of which the first ones are taken."""

    def __init__(self, broker: Broker, lock: Lock, what: Retirement, parts: Parts, steps: Removals, say: Say) -> None:
        """Take the parts of the shard that exist, and the steps that take them away; none is taken yet."""
        self.broker, self.lock, self.what, self.parts, self.steps, self.say = broker, lock, what, parts, steps, say
        self._done, self._is_waiting = 0, True

    async def take(self, steps: Sequence[Removal]) -> None:
        """Take the steps that come next. Raises LockLostError or ManagementError."""
        for step in steps:
            self._is_waiting = False
            await self.lock.check()
            await take(self.broker, self.what.vhost, step)
            self._done += 1
            self._is_waiting = True
            self.say(str(step))

    def stopped(self, error: Exception) -> StoppedError:
        """Return the error that tells how far the course has come, and how to go on."""
        how = _how_to_go_on(self.what)
        return stopped(self.steps.steps, self._done, error, how, waiting=self._is_waiting)

    async def state(self) -> State:
        """Return what exists now."""
        return (await self.broker.states([self.what.vhost]))[self.what.vhost]

    async def until(self, goal: str, look: Callable[[], Awaitable[str]]) -> None:
        await until(goal, look, self.say, self.what.patience, _how_to_go_on(self.what))


async def retire(broker: Broker, lock: Lock, what: Retirement, say: Say) -> None:
    """Take a shard away. Run again after it was stopped, it goes on where it was.

    Raises RetireError or FleetError if nothing was changed, ManagementError or TopologyError if nothing could be read,
    and StoppedError once it has begun.
    """
    state = (await broker.states([what.vhost]))[what.vhost]
    parts = parts_of(state, what.shard)
    check(state, what.shard, parts, keep=what.keep)
    if not parts:
        say(f"there is no queue {what.queue}, and nothing of it: nothing to do")
        return
    fleet = await reachable(broker.api, what.sidecars, what.vhost, what.exchange)
    if not fleet and not what.no_sidecars:
        raise FleetError("no sidecar is connected to the cluster: use --no-sidecars if there is none that may publish")
    have_to = "1 sidecar has to" if len(fleet) == 1 else f"{len(fleet)} sidecars have to"
    say(f"{have_to} follow{': ' if fleet else ''}{', '.join(fleet)}")
    if parts.bindings:
        before = state.weights(what.exchange)
        after = {d: w for d, w in before.items() if d != Destination("queue", what.queue)}
        slots = len(changes(before, after).slots) if moves_keys(before, after) else 0
        say(f"{slots / SLOTS:.4%} of the keys move ({slots:,} of {SLOTS:,} slots)")
    course = _Course(broker, lock, what, parts, removals(state, what.shard, parts, keep=what.keep), say)
    try:
        await _take_off(course)
        if what.keep:
            say(_kept(parts.queues))
        else:
            await _close(course)
    except (ManagementError, TopologyError, LockLostError) as error:
        raise course.stopped(error) from error


def _kept(queues: Sequence[str]) -> str:
    if queues[1:]:
        return f"queues {', '.join(queues)} are off the ring, and stay with their messages"
    return f"queue {', '.join(queues)} is off the ring, and stays with its messages"


async def _take_off(course: _Course) -> None:
    """Take a shard off the ring, and wait until nobody routes to it any more."""
    await course.take(course.steps.off_the_ring)
    await _shown_unbound(course, course.parts.exchanges)
    await course.until("every sidecar to route by the ring without it", lambda: _behind(course))


async def _close(course: _Course) -> None:
    """Close the lanes of a shard that is off the ring, wait until its queues are empty, and delete all of it."""
    await course.take(course.steps.closing)
    if queues := course.parts.queues:
        await _shown_unbound(course, course.parts.fans)
        goal = f"the queue{'s' if queues[1:] else ''} to be empty twice"
        await course.until(goal, lambda: _left(course))
    await course.take(course.steps.deleting)


async def _shown_unbound(course: _Course, but: Collection[str]) -> None:
    """Return once the management API shows that no exchange is bound to what goes, without those in `but`.

    A node of a cluster may show a change later. Raises StoppedError if a binding stays, or has come back.
    """
    for look in range(_LOOKS):
        state = await course.state()
        if not sources(state, course.parts.destinations, but):
            return
        if look < _LOOKS - 1:
            await asyncio.sleep(_PAUSE)
    _stop_if_bound_again(state, course, but)


def _stop_if_bound_again(state: State, course: _Course, but: Collection[str]) -> None:
    """Raise StoppedError if an exchange is bound to what goes, without those in `but`."""
    if found := sources(state, course.parts.destinations, but):
        names, queue = ", ".join(map(repr, found)), course.what.queue
        raise StoppedError(
            [
                f"queue {queue!r} was bound again, by exchange {names}, so it may get messages: not deleted",
                "stop whoever binds it, such as a consumer that starts, and run this again",
            ]
        )


async def _behind(course: _Course) -> str:
    """Return which sidecars still route by a ring with the queue; empty if two looks have found none.

    The second look sees the connections that the API did not list at the first one yet. Raises StoppedError if the
    shard is bound again, LockLostError, ManagementError (as if the exchange is gone) or TopologyError.
    """
    what, api = course.what, course.broker.api
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        await course.lock.check()
        state = await course.state()
        _stop_if_bound_again(state, course, course.parts.exchanges)
        exchange = await api.exchange(what.vhost, what.exchange)
        if exchange is None:
            raise ManagementError("the exchange is gone")
        wanted = fingerprint(state.weights(what.exchange), exchange.type, str(exchange.hashed))
        if behind := await disagreement(api, what.sidecars, what.vhost, what.exchange, wanted):
            return behind
    return ""


async def twice(look: Callable[[], Awaitable[str]]) -> str:
    """Return what one of two looks has found, `BETWEEN_LOOKS` apart; empty if both have found nothing."""
    if found := await look():
        return found
    await asyncio.sleep(BETWEEN_LOOKS)
    return await look()


async def _left(course: _Course) -> str:
    """Return what is left in the queues; empty if two looks, and the broker itself at their end, have found nothing.

    Raises StoppedError if an exchange was bound to a queue, or to a lane of it, meanwhile, and LockLostError.
    """
    what, there = course.what, list(course.parts.queues)
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        await course.lock.check()
        _stop_if_bound_again(await course.state(), course, course.parts.fans)
        for name in list(there):
            answer = await course.broker.api.page(
                ["queues", what.vhost, name], ["messages", "messages_ready", "messages_unacknowledged"]
            )
            if answer is None:
                there.remove(name)
                continue
            if any(counts := _counts(answer)):
                return f"{name} has {content(*counts)}"
    for name in there:
        if ready := await course.lock.count_ready(what.vhost, name):
            return f"{name} has {ready} messages ready, which the management API does not count yet"
    return ""


def _counts(answer: object) -> tuple[int, int, int]:
    """Return how many messages of a queue are ready, how many delivered and not acked, and how many neither of the two.

    `answer` is the management API's page about the queue. Raises TopologyError if it has no such numbers.
    """
    found = answer if isinstance(answer, dict) else {}
    ready, unacked = found.get("messages_ready"), found.get("messages_unacknowledged")
    if type(ready) is not int or type(unacked) is not int:
        raise TopologyError("messages_ready, messages_unacknowledged: the management API does not count messages")
    return ready, unacked, neither(found.get("messages"), ready, unacked)


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
    if what.keep or what.shard.number:
        return "run it again: it goes on from here"
    return (
        f"run it again: it goes on from here while a lane named {what.exchange}.lane.*, or a fan named "
        f"{what.exchange}.fan.*, leads to the queue; after that delete the queue yourself once it is empty"
    )
