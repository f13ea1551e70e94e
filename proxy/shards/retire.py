"""Take one shard away: off the ring, agreed on by the fleet, closed, empty, and only then deleted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from proxy.shards.apply import Say, StoppedError, take
from proxy.shards.broker import Broker, Lock
from proxy.shards.fleet import disagreement, reachable
from proxy.shards.plan import moves_between, rings_between
from proxy.shards.state import FoundBinding, State
from proxy.shards.steps import Unbind
from proxy.topology.bindings import RING_TYPES, Exchange, TopologyError, parse_exchange
from proxy.topology.management import ManagementError, RefusedError
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import fingerprint

BETWEEN_LOOKS = 6.0
"""Seconds between the two looks that must find a queue empty, and the fleet agreed.

The management API counts messages, and lists new connections, every 5 s. So what the second look sees was counted after
the first one.
"""

_PAUSE = 1.0
"""Seconds between two looks at what is waited for."""


class RetireError(Exception):
    """A shard cannot be retired; the message says why. Nothing was changed."""


@dataclass(frozen=True)
class Retirement:
    """What to retire, and how."""

    vhost: str
    exchange: str
    queue: str
    keep: bool
    """Whether the queue stays, with its lane and its messages."""
    sidecars: Sequence[str]
    """URLs of admin listeners that cannot be found by the broker's connections."""
    patience: float
    """Seconds to wait for the fleet, and again for the queue to be empty."""


async def retire(broker: Broker, lock: Lock, what: Retirement, say: Say) -> None:
    """Take a shard away. Run again after it was stopped, it goes on where it was.

    Raises RetireError or FleetError if nothing was changed, and else StoppedError, ManagementError or TopologyError.
    """
    state = (await broker.states([what.vhost]))[what.vhost]
    found = _bindings(state, what)
    lanes = _lanes(state, what, found)
    _check(state, what, found, lanes)
    if what.queue not in state.queues and not found and not lanes:
        say(f"there is no queue {what.queue}, and nothing of it: nothing to do")
        return
    await reachable(broker.api, what.sidecars, what.vhost, what.exchange)
    if found:
        before = state.weights(what.exchange)
        after = {d: w for d, w in before.items() if d != Destination("queue", what.queue)}
        rings = rings_between(before, after)
        slots = sum(move.slots for move in moves_between(*rings)) if rings is not None else 0
        say(f"{slots / SLOTS:.4%} of the keys move ({slots:,} of {SLOTS:,} slots)")
    for binding in found:
        await _unbind(broker, lock, what, what.exchange, binding, say)
    await _until(
        what.patience, "every sidecar to route by the ring without it", lambda: _behind(broker, what, lock), say
    )
    if what.keep:
        say(f"queue {what.queue} is off the ring, and stays with its messages")
        return
    await _close(broker, lock, what, state, lanes, say)


async def _close(broker: Broker, lock: Lock, what: Retirement, state: State, lanes: Sequence[str], say: Say) -> None:
    """Close the lanes of a shard that is off the ring, wait until its queue is empty, and delete both."""
    for lane in lanes:
        # From here on the broker returns what still comes to the lane, and a sidecar routes that anew.
        for binding in state.bindings.get(lane, ()):
            await _unbind(broker, lock, what, lane, binding, say)
    if what.queue in state.queues:
        await _until(what.patience, "the queue to be empty twice", lambda: _left(broker, what, lock), say)
        # A quorum queue takes no condition. A classic one does, so it cannot lose what came since.
        condition = "?if-empty=true" if state.queues[what.queue].type == "classic" else ""
        await _delete(broker, lock, ["queues", what.vhost, what.queue], condition)
        say(f"delete queue {what.queue}")
    for lane in lanes:
        await _delete(broker, lock, ["exchanges", what.vhost, lane])
        say(f"delete exchange {lane}")


def _bindings(state: State, what: Retirement) -> list[FoundBinding]:
    """Return the bindings of the ring that lead to the queue."""
    queue = Destination("queue", what.queue)
    return [each for each in state.bindings.get(what.exchange, ()) if state.behind(each.destination) == queue]


def _lanes(state: State, what: Retirement, found: Sequence[FoundBinding]) -> list[str]:
    """Return the lanes of the queue: those on the ring, and the one that an earlier run has left.

    That one is known by its name only, so a lane of another name is then no lane for this.
    """
    lanes = dict.fromkeys(each.destination.name for each in found if each.destination.kind == "exchange")
    prefix, _, number = what.queue.rpartition(".")
    usual = f"{prefix}.lane.{number}"
    exchange = state.exchanges.get(usual)
    bound = {each.destination for each in state.bindings.get(usual, ())}
    is_fanout = exchange is not None and exchange.type == "fanout"
    if prefix == what.exchange and is_fanout and bound <= {Destination("queue", what.queue)}:
        lanes[usual] = None
    return list(lanes)


def _check(state: State, what: Retirement, found: Sequence[FoundBinding], lanes: Sequence[str]) -> None:
    """Raise RetireError for what would lose messages, or would never end."""
    exchange = state.exchanges.get(what.exchange)
    if exchange is None or exchange.type not in RING_TYPES:
        raise RetireError(f"virtual host {what.vhost!r} has no hash exchange {what.exchange!r}")
    if found and len(state.weights(what.exchange)) == 1:
        raise RetireError(
            f"queue {what.queue!r} is the only one of exchange {what.exchange!r}, which would lose messages"
        )
    taken = {Destination("queue", what.queue), *(Destination("exchange", lane) for lane in lanes)}
    for source, bindings in state.bindings.items():
        if source not in (what.exchange, *lanes) and any(each.destination in taken for each in bindings):
            raise RetireError(f"queue {what.queue!r} also gets messages from exchange {source!r}; unbind that first")
    gone = state.queues.get(what.queue)
    if gone is not None and gone.type == "stream" and not what.keep:
        raise RetireError(f"queue {what.queue!r} is a stream, which keeps its messages and is never empty: use --keep")


async def _unbind(broker: Broker, lock: Lock, what: Retirement, source: str, binding: FoundBinding, say: Say) -> None:
    lock.check()
    step = Unbind(source, binding.destination, binding.key, binding.properties_key)
    await take(broker, what.vhost, step)
    say(str(step))


async def _delete(broker: Broker, lock: Lock, path: Sequence[str], condition: str = "") -> None:
    lock.check()
    try:
        await broker.api.change("DELETE", path, query=condition)
    except RefusedError as error:
        if error.status != 404:
            raise


async def _behind(broker: Broker, what: Retirement, lock: Lock) -> str:
    """Return which sidecars still route by a ring with the queue; empty if two looks have found none.

    The second look sees the connections that the API did not list at the first one yet.
    """
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        lock.check()
        state = (await broker.states([what.vhost]))[what.vhost]
        exchange = _as_read(await broker.api.page(["exchanges", what.vhost, what.exchange], ["type", "arguments"]))
        wanted = fingerprint(state.weights(what.exchange), exchange.type, str(exchange.hashed))
        if behind := await disagreement(broker.api, what.sidecars, what.vhost, what.exchange, wanted):
            return behind
    return ""


def _as_read(answer: object) -> Exchange:
    if answer is None:
        raise ManagementError("the exchange is gone")
    return parse_exchange(answer)


async def _left(broker: Broker, what: Retirement, lock: Lock) -> str:
    """Return what is left in the queue; empty if two looks have found nothing."""
    for look in range(2):
        if look:
            await asyncio.sleep(BETWEEN_LOOKS)
        lock.check()
        answer = await broker.api.page(
            ["queues", what.vhost, what.queue], ["messages_ready", "messages_unacknowledged"]
        )
        if answer is None:
            return ""
        ready, unacked = _counts(answer)
        if ready or unacked:
            return f"{ready} messages are ready and {unacked} not acked yet"
    return ""


def _counts(answer: object) -> tuple[int, int]:
    """Return how many messages of a queue are ready, and how many are delivered and not acked."""
    counts = (
        [answer.get(name) for name in ("messages_ready", "messages_unacknowledged")] if isinstance(answer, dict) else []
    )
    ready, unacked = [*counts, None, None][:2]
    if type(ready) is not int or type(unacked) is not int:
        raise TopologyError("messages_ready, messages_unacknowledged: the management API does not count messages")
    return ready, unacked


async def _until(patience: float, what: str, look: Callable[[], Awaitable[str]], say: Say) -> None:
    """Look until there is nothing left to wait for. Raises StoppedError after `patience` seconds."""
    loop = asyncio.get_running_loop()
    until, told = loop.time() + patience, ""
    while True:
        try:
            left = await look()
        except (ManagementError, TopologyError) as error:
            left = str(error)
        if not left:
            return
        if left != told:
            say(f"waiting for {what}: {left}")
        told = left
        if loop.time() > until:
            raise StoppedError(f"waited {patience:g} s for {what}: {left}\nrun it again: it goes on from here")
        await asyncio.sleep(_PAUSE)
