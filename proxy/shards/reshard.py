"""Change the generation of an exchange's shards, from its first step to its last, while the lock is held.

`generation.py` has the theory, and says what is left to do; this module does it, and waits for what must come first.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError

from proxy.settings.parse import Address
from proxy.shards.apply import Say, StoppedError, take
from proxy.shards.broker import Broker, Lock, LockLostError, NodeConnection, answered
from proxy.shards.consumers import FIELDS, Consumer, parse
from proxy.shards.difference import compare_generation
from proxy.shards.drain import Line, Queue, closed, delete
from proxy.shards.fleet import FleetError, ask_all, unfit, unsettled
from proxy.shards.generation import (
    DRAINED,
    STEPS,
    Change,
    Permission,
    begun,
    change_of,
    differs,
    has_no_limit,
    is_drained,
    next_of,
    refusals,
    strangers,
    taken_back,
    unpermitted,
)
from proxy.shards.progress import Progress
from proxy.shards.shard import Sharded
from proxy.shards.state import State
from proxy.shards.steps import Bind, DeclareExchange, DeleteExchange, DeleteQueue, Removal, Step, Unbind
from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError, RefusedError
from proxy.topology.names import natural
from ring.ring import fingerprint

_SWITCHED_WITHIN = 20.0
"""Seconds that sidecars have to take the new ring before the old lanes are closed. Later ones learn it by returns."""

_COUNTED_WITHIN = 11.0
"""Seconds in which the management API counts what is published to an exchange: nodes tell it, and it keeps what they
tell, every 5 s."""

_LISTED_WITHIN = 6.0
"""Seconds until the management API lists each connection that was there before."""

_PAUSE = 1.0
"""Seconds between two looks at what is waited for."""

_LOOK_EVERY = 5.0
"""Seconds between two looks at what is left in the old queues."""

_LIST_KEPT = 2.0
"""Seconds for which one list of the consumers is good enough for all queues."""

_LOST_AFTER = 60.0
"""Seconds after which a queue that was drained before is deleted as it is: with no process, or no majority."""

_AT_ONCE = 100
"""The most old queues in whose lines this process stands at once, each with a channel of its own."""


class Node(NamedTuple):
    """A node of the cluster, and where it takes AMQP connections."""

    name: str
    address: Address


@dataclass(frozen=True)
class Manner:
    """How a change is made: how the fleet is asked, where nodes are reached, and how long is waited."""

    sidecars: Sequence[str] = ()
    """URLs of admin listeners that cannot be found by the broker's connections."""
    no_sidecars: bool = False
    """Whether to go on though no sidecar is connected to the cluster, and none was named."""
    nodes: Mapping[str, Address] = field(default_factory=dict)
    """Where nodes are reached, by name; the others are reached at their own host and port."""
    patience: float = 600.0
    """Seconds to wait for the fleet to have settled what it has published."""
    unconfirmed: bool = False
    """Whether to go on though clients publish without confirms."""
    by_empty: bool = False
    """Whether programs may consume old queues by their own names: each of these is drained once they have stopped."""


async def reshard(broker: Broker, lock: Lock, exchange: Sharded, manner: Manner, say: Say) -> None:
    """Bring one exchange to the shards and weights that its file says, in order for each key.

    Run again after it was stopped, it goes on where it was. Raises StoppedError with what hinders it, ManagementError,
    TopologyError or OSError.
    """
    course = _Course(broker, lock, exchange, manner, say)
    state = await course.state()
    if lines := refusals(exchange, state):
        raise StoppedError([*lines, "nothing was changed"])
    target = begun(exchange, state)
    if target is None:
        if not differs(exchange, state):
            say(f"{exchange.name}: has these shards already: nothing to do")
            return
        target = next_of(exchange, state)
    course.target = target
    faults: list[BaseException] = []
    try:
        await course.run(state)
    except* (ManagementError, TopologyError, LockLostError, FleetError, AMQPError, OSError) as failed:
        faults += _each(failed)
    if faults:
        raise StoppedError([*dict.fromkeys(map(str, faults)), *course.how_to_go_on()]) from faults[0]


async def abort(broker: Broker, lock: Lock, exchange: Sharded, say: Say) -> None:
    """Take back a generation that is being made and is not the ring yet.

    Raises StoppedError if it cannot be taken back, ManagementError, TopologyError or LockLostError.
    """
    state = (await broker.states([exchange.vhost]))[exchange.vhost]
    target = begun(exchange, state)
    if target is None:
        say(f"{exchange.name}: no change is under way: nothing to do")
        return
    steps, why_not = taken_back(target, state)
    for queue in (step.name for step in steps if isinstance(step, DeleteQueue)):
        if not why_not and (count := await lock.count_ready(exchange.vhost, queue)):
            why_not = f"queue {queue!r} has {count} messages of programs without a sidecar"
    if why_not:
        raise StoppedError([f"{exchange.name}: {why_not}", "nothing was changed"])
    for step in steps:
        await lock.check()
        await take(broker, exchange.vhost, step)
        say(f"  {step}")


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions of a group, and of the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error


def _is_quorum(queue: str, state: State) -> bool:
    # One that the management API leaves out may be one: those are drained with more care.
    return queue not in state.queues or state.queues[queue].type == "quorum"


_LIMITS = (
    "an old queue is drained once each program that consumes it by its own name has stopped, and has acked all",
    "a program that consumes a new queue before this command names it gets messages out of order",
    "a program that begins to consume an old queue meanwhile may get an empty message with the header x-ring-marker",
)
"""The limits of waiting for programs that consume queues by their own names."""

_GO_ON = "run it again: it goes on from here"


class _Course:
    """One change on its way."""

    def __init__(self, broker: Broker, lock: Lock, exchange: Sharded, manner: Manner, say: Say) -> None:
        self.broker, self.lock, self.manner, self.say = broker, lock, manner, say
        self.target = exchange
        self._phase = ""
        self._seen: State | None = None
        """The state at the last look. The management API may leave a queue out whose node is away."""
        self._of_programs: frozenset[str] = frozenset()
        """The old queues that programs may consume by their own names, of groups without a member."""
        self._listed: tuple[float, tuple[Consumer, ...]] | None = None
        """When the consumers were listed last, in monotonic seconds, and they."""
        self._listing = asyncio.Lock()
        self._early: set[str] = set()
        """The new queues of which was told that a program consumes them too soon."""

    async def state(self) -> State:
        """Return what exists now."""
        self._seen = (await self.broker.states([self.target.vhost]))[self.target.vhost]
        return self._seen

    def how_to_go_on(self) -> list[str]:
        """Return how far the change has come, and what to do after it was stopped, in lines."""
        if not self._phase:
            return ["nothing was changed"]
        return [f"it was stopped at: {self._phase}", _GO_ON]

    def phase(self, step: int, text: str) -> None:
        self._phase = f"{self.target.name}: step {step} of {STEPS}: {text}"
        self.say(self._phase)

    async def take(self, steps: Sequence[Step | Removal]) -> None:
        for step in steps:
            await self.lock.check()
            await take(self.broker, self.target.vhost, step)
            self.say(f"  {step}")

    async def run(self, state: State) -> None:
        """Take all steps that are left."""
        name, number = self.target.name, self.target.generation
        old = sorted(state.generations(name))[0]
        is_resumed = self.target.generation in state.generations(name)
        if not is_resumed:
            change = change_of(self.target, state)
            await self._refuse_unpermitted(change)
            await self._refuse_native()
            await self._refuse_strangers(change, state)
        await self._ask_fleet()
        nodes = await self._nodes(state)
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(self._connection(node)) for node in nodes]
            await self._make(state)
            state = await self.state()
            change = change_of(self.target, state)
            if is_resumed:
                await self._refuse_strangers(change, state)
            self.phase(2, f"closes the lanes of generation {old}")
            if not self._is_closed(change, state):
                # No queue is drained yet, so a mark is of a queue that had the same name before.
                await self.take([DeleteExchange(queue) for queue in change.left(()) if is_drained(queue, state)])
                await self._switched()
            await self._close(change, state)
            for node, connection in zip(nodes, connections, strict=True):
                await closed(await connection.open(), [each.lane for each in change.old])
                self.say(f"  {node.name} returns what is sent to them")
            await self._settled()
            self.phase(4, f"drains {len(change.left(()))} queues of generation {old}")
            await self._drain(change, connections, old)
        if (left := (await self.state()).generations(name)) != (number,):
            raise StoppedError([f"{name}: lanes of the generations {left} are bound; {_GO_ON}"])
        self.say(f"{name}: generation {number} with {len(change.new)} shards is all there is")

    async def _ask_fleet(self) -> None:
        """Raise FleetError unless each sidecar can be asked, and can tell what is settled."""
        manner = self.manner
        answers = await ask_all(self.broker.api, manner.sidecars, self.target.vhost, self.target.name)
        if not answers and not manner.no_sidecars:
            raise FleetError("no sidecar is connected to the cluster: use --no-sidecars if there is none")
        if why := ", ".join(unfit(answers, unconfirmed=manner.unconfirmed)):
            raise FleetError(f"sidecars whose publishes nobody can wait for: {why}")

    async def _refuse_unpermitted(self, change: Change) -> None:
        """Raise StoppedError if a user who may use old shards may not use new ones."""
        try:
            answer = await self.broker.api.page(["vhosts", self.target.vhost, "permissions"], ["user", "write", "read"])
        except ManagementError as error:
            self.say(f"take care: whether all users have the rights on the new shards is not known: {error}")
            return
        listed = answer if isinstance(answer, list) else []
        permissions = [
            Permission(*(str(each.get(name, "")) for name in ("user", "write", "read")))
            for each in listed
            if isinstance(each, dict)
        ]
        if lines := unpermitted(change, permissions):
            raise StoppedError([*lines, "nothing was changed"])

    async def _refuse_strangers(self, change: Change, state: State) -> None:
        """Raise StoppedError if an old queue has a consumer that does not come through a sidecar, or is not waited for.

        The limits of waiting for programs are told.
        """
        consumers, left = await self._consumers(), change.left(())
        linked = {each.queue for each in consumers if each.is_link}
        # A member that comes back would take a queue before whoever waits in the line of programs.
        with_members = {group for queue, (group, _) in left.items() if queue in linked}
        self._of_programs = frozenset(
            queue
            for queue, (group, _) in left.items()
            if self.manner.by_empty and group not in with_members and _is_quorum(queue, state)
        )
        if lines := strangers(change, consumers, self._of_programs):
            how = "--drained-by empty waits for the programs of quorum queues"
            if self.manner.by_empty:
                how = (
                    "programs are waited for at quorum queues that no member of a group consumes: a classic queue does "
                    "not tell what a program holds that has stopped, and members take a queue before programs"
                )
            raise StoppedError([*lines, how, *self.how_to_go_on()])
        if self.manner.by_empty:
            for line in _LIMITS:
                self.say(f"take care: {line}")

    async def _consumers(self) -> tuple[Consumer, ...]:
        """Return the consumers of the virtual host, as the management API has listed them a moment ago."""
        async with self._listing:
            now = time.monotonic()
            if self._listed is None or now - self._listed[0] > _LIST_KEPT:
                answer = await self.broker.api.page(["consumers", self.target.vhost], FIELDS)
                self._listed = now, tuple(parse(answer))
            return self._listed[1]

    async def _consumers_of(self, queue: str) -> list[Consumer]:
        return [each for each in await self._consumers() if each.queue == queue]

    async def _refuse_native(self) -> None:
        """Raise StoppedError if anybody publishes to the exchange itself: RabbitMQ's own ring knows no generations."""
        counts = []
        for look in range(2):
            if look:
                await asyncio.sleep(_COUNTED_WITHIN)
            exchange = await self.broker.api.exchange(self.target.vhost, self.target.name)
            counts.append(exchange.publish_in or 0 if exchange is not None else 0)
        if counts[1] > counts[0]:
            raise StoppedError(
                [
                    f"{counts[1] - counts[0]} messages were published to exchange {self.target.name!r} itself within "
                    f"{_COUNTED_WITHIN:g} s, by programs without a sidecar or by sidecars that pass them on",
                    "RabbitMQ's own ring knows no generations, and would put their keys out of order",
                    "have them publish through sidecars that route the exchange; nothing was changed",
                ]
            )

    async def _make(self, state: State) -> None:
        """Declare the new generation, and bind the exchange to it."""
        difference = compare_generation(self.target, state, is_new=True)
        if difference.refusals:
            raise StoppedError([*difference.refusals, "nothing was changed"])
        if difference.steps:
            self.phase(1, f"makes generation {self.target.generation}")
            await self.take(difference.steps)

    def _is_closed(self, change: Change, state: State) -> bool:
        return not any(state.bindings.get(each.lane) for each in change.old)

    async def _switched(self) -> None:
        """Wait for a while until all sidecars route by the new ring."""
        end, told = time.monotonic() + _SWITCHED_WITHIN, ""
        while time.monotonic() < end:
            if not (behind := await self._behind()):
                return
            if behind != told:
                self.say(f"  waits until each sidecar has the new ring: {behind}")
                told = behind
            await asyncio.sleep(_PAUSE)

    async def _behind(self) -> str:
        """Return which sidecars do not route by the new ring yet, or have unsettled publishes; empty if none is so.

        Where that cannot be known now, such as of a sidecar that has just died, the text says why.
        """
        api, manner, target = self.broker.api, self.manner, self.target
        at = target.vhost, target.name
        try:
            state = await self.state()
            exchange = await api.exchange(*at)
            if exchange is None:
                return f"exchange {target.name!r} is gone"
            wanted = fingerprint(state.weights(target.name), exchange.type, str(exchange.hashed))
            return await unsettled(api, manner.sidecars, *at, wanted, unconfirmed=manner.unconfirmed)
        except (FleetError, ManagementError, TopologyError) as error:
            return str(error)

    async def _close(self, change: Change, state: State) -> None:
        """Unbind each old lane, from its queue first where a group is being added."""
        ways = [
            Unbind(each.lane, found.destination, found.key, found.properties_key)
            for each in change.old
            for found in sorted(state.bindings.get(each.lane, ()), key=lambda found: found.destination.kind != "queue")
        ]
        await self.take([*change.promised(state), *ways])

    async def _settled(self) -> None:
        """Return once nothing is unsettled of what sidecars have published by an earlier ring."""
        self.phase(3, "waits until all that was published before is settled")
        await asyncio.sleep(_LISTED_WITHIN)
        end, told = time.monotonic() + self.manner.patience, ""
        while behind := await self._behind():
            if time.monotonic() > end:
                raise FleetError(f"waited {self.manner.patience:g} s for the fleet: {behind}")
            if behind != told:
                self.say(f"  {behind}")
                told = behind
            await self.lock.check()
            await asyncio.sleep(_PAUSE)

    async def _drain(self, change: Change, connections: Sequence[NodeConnection], generation: int) -> None:
        """Drain all old queues, delete each that is empty, and open new shards as soon as they may be.

        Whether a queue is gone is told by the broker's answers to this process alone: a list of the management API may
        lack a queue that is there.
        """
        state = await self.state()
        room, changed = asyncio.Semaphore(_AT_ONCE), asyncio.Event()
        gone: set[str] = set()

        async def drain(queue: str) -> None:
            is_quorum = _is_quorum(queue, state)
            may_look = partial(self._may_look, queue)
            terms = Queue(queue, generation, is_quorum, may_look, has_programs=queue in self._of_programs)
            line = Line(connections, terms, self._consumers_of)
            was_drained = is_drained(queue, state)
            while True:
                drained = line.drained(room, self.say)
                channel = await (self._drained_again(line, drained) if was_drained else drained)
                if channel is None and not was_drained:
                    break
                was_drained = True
                try:
                    await self._delete(channel, queue, generation, state)
                except (AMQPError, OSError) as error:
                    self.say(f"  {queue}: {error}")
                    await asyncio.sleep(_LOOK_EVERY)
                else:
                    self.say(f"  {queue} is drained, and deleted")
                    break
                finally:
                    if channel is not None:
                        with suppress(Exception):
                            await answered(channel.close())
            gone.add(queue)
            changed.set()

        async with asyncio.TaskGroup() as tasks:
            for queue in change.left(gone):
                tasks.create_task(drain(queue))
            progress = Progress(len(change.left(gone)))
            while await self._advance(change, gone, progress):
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _LOOK_EVERY)
                changed.clear()

    def _may_look(self, queue: str) -> bool:
        return self._seen is not None and has_no_limit(queue, self._seen)

    async def _delete(self, channel: AbstractChannel | None, queue: str, generation: int, state: State) -> None:
        """Delete a queue that was drained, with a mark beside it until it is gone: see `DRAINED`.

        `channel` has the queue's only consumer; it is None for a queue that nobody can consume any more.
        """
        await self.lock.check()
        vhost, mark = self.target.vhost, DeclareExchange(queue, "fanout", {DRAINED: generation})
        is_free = queue not in state.exchanges or is_drained(queue, state)
        if is_free:
            try:
                await take(self.broker, vhost, mark)
            except RefusedError:
                is_free = False
        if channel is not None:
            await delete(channel, queue)
        else:
            await take(self.broker, vhost, DeleteQueue(queue, if_empty=False))
        if is_free:
            await take(self.broker, vhost, DeleteExchange(queue))

    async def _drained_again(
        self, line: Line, drained: Coroutine[Any, Any, AbstractChannel | None]
    ) -> AbstractChannel | None:
        """Return what `Line.drained` does of a queue that was drained before; None if it can never be."""
        finding = asyncio.create_task(drained)
        losing = asyncio.create_task(self._is_lost(line))
        try:
            await asyncio.wait({finding, losing}, return_when=asyncio.FIRST_COMPLETED)
            return finding.result() if finding.done() else losing.result()
        finally:
            finding.cancel()
            losing.cancel()
            await asyncio.gather(finding, losing, return_exceptions=True)

    async def _is_lost(self, line: Line) -> None:
        """Return once a quorum queue has had no process, or no majority of its replicas, for `_LOST_AFTER`.

        All nodes run meanwhile.
        """
        since = time.monotonic()
        while time.monotonic() - since < _LOST_AFTER:
            await asyncio.sleep(_LOOK_EVERY)
            if not line.has_no_process and not await self._lacks_a_majority(line.queue):
                since = time.monotonic()

    async def _lacks_a_majority(self, queue: str) -> bool:
        """Return whether the management API says that half or fewer of a queue's replicas run."""
        try:
            found = await self.broker.api.page(["queues", self.target.vhost, queue], ["members", "online"])
        except (ManagementError, TopologyError):
            return False
        told = found if isinstance(found, dict) else {}
        members, online = told.get("members"), told.get("online")
        return isinstance(members, list) and isinstance(online, list) and 2 * len(online) <= len(members)

    async def _advance(self, change: Change, gone: set[str], progress: Progress) -> bool:
        """Open new shards and remove old lanes as far as old queues are gone; return whether any is left."""
        await self.lock.check()
        state, left = await self.state(), change.left(gone)
        opened = list(change.opened(state, gone))
        await self.take(opened)
        if self.manner.by_empty:
            await self._tell_programs(change, state, opened)
        busy = {place for _, place in left.values()}
        for each in change.old:
            if each.place not in busy:
                # The binding to a lane goes with the lane, so that a run that is killed in between finds the fan.
                await self.take([DeleteExchange(name) for name in (each.fan, each.lane) if name in state.exchanges])
        if left:
            counts = [queue.waiting or 0 for name in left if (queue := state.queues.get(name)) is not None]
            if line := progress.line(len(left), sum(counts), time.monotonic(), time.time()):
                self.say(f"  {line}")
        return bool(left)

    async def _tell_programs(self, change: Change, state: State, opened: Sequence[Bind]) -> None:
        """Say which new queues programs may consume from now on, and which are consumed too soon."""
        free = {queue for bind in opened if bind.promise is not None for _, queue in bind.promise.groups}
        for queue in sorted(free, key=natural):
            self.say(f"  {queue} may be consumed by its name: all before it is done")
        promises = (state.promise(self.target.name, each.lane) for each in change.new)
        free.update(queue for promise in promises if promise is not None for _, queue in promise.groups)
        closed = {queue for each in change.new for _, queue in each.promise.groups} - free - self._early
        for each in await self._consumers() if closed else ():
            if each.queue in closed - self._early and each.is_program:
                self._early.add(each.queue)
                self.say(
                    f"  {each.queue} is consumed by {each.tag[:60]!r} before the old queues are done: its keys come "
                    "out of order; stop it"
                )

    async def _nodes(self, state: State) -> list[Node]:
        """Return the nodes of the cluster. Raises StoppedError if one does not run: what it routes is not known."""
        answer = await self.broker.api.page(["nodes"], ["name", "running"])
        names = [each["name"] for each in answer if isinstance(each, dict)] if isinstance(answer, list) else []
        if down := sorted(set(names) - set(state.nodes)):
            raise StoppedError(
                [
                    f"node {down[0]} of the cluster does not run, so nobody knows what it may route when it is back",
                    "start it, or take it out of the cluster: rabbitmqctl forget_cluster_node; then run this again",
                ]
            )
        if len(state.nodes) == 1 and state.nodes[0] not in self.manner.nodes:
            return [Node(state.nodes[0], self.broker.settings.brokers[0])]
        listeners = await self._listeners()
        if hidden := sorted(set(state.nodes) - listeners.keys() - self.manner.nodes.keys()):
            raise StoppedError([f"node {hidden[0]} lists no listener for AMQP as broker_url has it: name it by --node"])
        return [
            Node(name, self.manner.nodes.get(name) or Address(name.partition("@")[2], listeners[name]))
            for name in state.nodes
        ]

    async def _listeners(self) -> dict[str, int]:
        """Return by node the port at which it takes AMQP, with TLS if the broker's URL says so."""
        answer = await self.broker.api.page(["overview"], ["listeners"])
        wanted = "amqp/ssl" if self.broker.files.broker_tls is not None else "amqp"
        found: dict[str, int] = {}
        listed = answer.get("listeners") if isinstance(answer, dict) else None
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and each.get("protocol") == wanted and isinstance(each.get("port"), int):
                found.setdefault(str(each.get("node")), each["port"])
        return found

    @asynccontextmanager
    async def _connection(self, node: Node) -> AsyncIterator[NodeConnection]:
        connection = NodeConnection(self.broker, self.target.vhost, f"apply --ordered, {node.name}", node.address)
        await connection.open()
        try:
            yield connection
        finally:
            await connection.close()
