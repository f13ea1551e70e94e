"""Compare a wanted exchange with what exists, and return the steps that lead from one to the other, in order. Pure.

The order keeps every prefix of the steps safe: a ring gets a lane only once the lane leads to its queue, and loses a
destination only once the lane, or the queue, that replaces it is bound. A run that is killed between two steps leaves a
ring that loses nothing, and the steps that are then computed anew end the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from proxy.shards.defaults import DISCONNECTED_TIMEOUT, UNLIMITED_SINCE, declared_arguments
from proxy.shards.nodes import Leaders, lost_nodes, node_warnings
from proxy.shards.shard import Shard, Sharded
from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State, lane_misfit
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Step, Unbind
from proxy.topology.bindings import CONSISTENT_HASH, MODULUS_HASH, Promise
from ring.destination import Destination, WeightError, parse_weight

AT_DECLARATION = frozenset(
    {
        "x-queue-type",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-quorum-initial-group-size",
        "x-initial-cluster-size",
    }
)
"""Arguments that count only when a queue is declared, or that `FoundQueue.type` tells: they are not compared."""


_BOUND = 4
"""The index of the phase that changes the exchange's own bindings."""


@dataclass(frozen=True)
class Difference:
    """How one wanted exchange differs from what exists."""

    exchange: Sharded
    shards: tuple[Shard, ...]
    phases: tuple[tuple[Step, ...], ...]
    """The steps to take, in order, by phase: the queues, the lanes, the lanes' bindings, the exchange, what changes the
    exchange's own bindings, and last the ways that fans have replaced. Some of them may not be possible if there are
    refusals."""
    refusals: tuple[str, ...]
    """The changes that are impossible, or that are never made unasked, each in a line with the way out."""
    warnings: tuple[str, ...]
    """The things that exist as the file wants them and may still lose messages or surprise, each in a line."""
    before: Mapping[Destination, int]
    """The weights of the ring as it is."""
    after: Mapping[Destination, int]
    """The weights of the ring once the steps are done."""
    names: frozenset[str] = frozenset()
    """The exchanges that get messages of this one: its alternate exchange, and the dead-letter exchanges of shards."""
    running: frozenset[str] = frozenset()
    """The nodes that run."""
    gone: frozenset[str] = frozenset()
    """The nodes that do not run, and lead shards or have replicas of them."""

    @property
    def bound(self) -> tuple[Step, ...]:
        """The steps that change the exchange's own bindings."""
        return self.phases[_BOUND]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(chain.from_iterable(self.phases))


def compare(exchange: Sharded, state: State, beside: frozenset[str] = frozenset()) -> Difference:
    """Return how an exchange of a file differs from what exists in its virtual host, in the generation that is there.

    `beside` are the names of the exchanges that the file makes in that virtual host.
    """
    found = state.generations(exchange.name)
    if found:
        exchange = replace(exchange, generation=max(found), made_with=state.made_with(exchange.name, max(found)))
    return compare_generation(exchange, state, beside, is_changing=len(found) > 1)


def compare_generation(
    exchange: Sharded,
    state: State,
    beside: frozenset[str] = frozenset(),
    *,
    is_changing: bool = False,
    is_new: bool = False,
) -> Difference:
    """Return how one generation of an exchange differs from what exists.

    With `is_changing` nothing may be changed, since another generation is being made. With `is_new` it is this one: no
    group may consume its shards yet.
    """
    before = state.weights(exchange.name)
    bound = [state.behind(each.destination) for each in state.bindings.get(exchange.name, ())]
    existing = [number for destination in bound if (number := _number_of(exchange, destination)) is not None]
    shards = exchange.shards(existing, len(state.nodes))
    comparison = _Comparison(exchange, shards, state, beside, is_new=is_new)
    comparison.run()
    if is_changing:
        comparison.refuse_while_changing()
    retiring = {
        d: w for d, w in before.items() if d.kind == "queue" and exchange.number_of(d.name) in exchange.retiring
    }
    after = retiring | {Destination("queue", shard.place): shard.weight for shard in shards}
    phases = comparison.phases()
    if len(after) == 1 and not phases[_BOUND]:
        # The weight of the only shard is never changed.
        after = {destination: before.get(destination, weight) for destination, weight in after.items()}
    return Difference(
        exchange,
        shards,
        phases,
        tuple(comparison.refusals),
        tuple(comparison.warnings),
        before,
        after,
        comparison.names(),
        frozenset(state.nodes),
        lost_nodes({shard.queue: q for shard in shards if (q := state.queues.get(shard.queue)) is not None}, state),
    )


def _number_of(exchange: Sharded, destination: Destination) -> int | None:
    """Return the number of the shard that has this queue, or this lane; None if no shard of the exchange can."""
    of = exchange.number_of if destination.kind == "queue" else exchange.number_of_lane
    return of(destination.name)


class _Comparison:
    """One comparison: what it has found so far, sorted by the phases in which the steps are taken."""

    def __init__(
        self, exchange: Sharded, shards: Sequence[Shard], state: State, beside: frozenset[str], *, is_new: bool
    ) -> None:
        self.exchange, self.shards, self.state, self.beside, self.is_new = exchange, shards, state, beside, is_new
        self.refusals: list[str] = []
        self.warnings: list[str] = []
        self._queues: list[Step] = []
        self._lanes: list[Step] = []
        self._lane_bindings: list[Step] = []
        self._rings: list[Step] = []
        self._added: list[Step] = []
        self._replaced: list[Step] = []
        self._overtaken: list[Step] = []
        self._leaders = Leaders(shards, state)
        self._sources: dict[str, set[str]] = {}
        """By queue, the exchanges that are bound to it; empty where no group beside the exchange's own is wanted."""
        for source, bindings in state.bindings.items() if exchange.groups else ():
            for each in bindings:
                if each.destination.kind == "queue":
                    self._sources.setdefault(each.destination.name, set()).add(source)
        self._by_lane = {shard.lane: Destination("queue", shard.place) for shard in shards if shard.lane is not None}

    def phases(self) -> tuple[tuple[Step, ...], ...]:
        bound = [*self._added, *self._replaced]
        return tuple(map(tuple, (self._queues, self._lanes, self._lane_bindings, self._rings, bound, self._overtaken)))

    def names(self) -> frozenset[str]:
        """Return the exchanges that get what the exchange cannot route, and what its shards dead-letter."""
        named = [self.exchange.arguments.get("alternate-exchange"), *map(self._dead_letter_exchange, self.shards)]
        return frozenset(name for name in named if isinstance(name, str))

    def run(self) -> None:
        if self.exchange.per_node is not None and not self.state.nodes:
            self._refuse("shards_per_node:", "the management API tells of no running node; try again")
        known = {shard.number for shard in self.shards} | self.exchange.retiring
        for number in sorted(self.exchange.own.keys() - known):
            self._warn(f"shard {number}:", "its [[exchange.shard]] has no effect, since there is no such shard yet")
        self._ring()
        for shard in self.shards:
            for queue in shard.queues:
                self._queue(shard._replace(queue=queue))
            if shard.lane is not None:
                self._lane(shard, shard.lane)
        self._groups()
        self._alternate()
        self._dead_letters()
        self._bindings()
        for subject, why in node_warnings(self.exchange, self.shards, self.state, self._leaders):
            self._warn(subject, why)

    def _refuse(self, subject: str, why: str) -> None:
        self.refusals.append(f"{self.exchange.place}: {subject} {why}")

    def _warn(self, subject: str, why: str) -> None:
        self.warnings.append(f"{self.exchange.place}: {subject} {why}")

    def refuse_while_changing(self) -> None:
        """Refuse all changes, since a new generation of shards is being made."""
        self._refuse(
            "shards:",
            f"generation {self.exchange.generation} is being made; end that first, with the file that it was begun "
            "with: ring-proxy topology apply --ordered",
        )

    def _ring(self) -> None:
        wanted = self.exchange
        found = self.state.exchanges.get(wanted.name)
        if found is None:
            self._rings.append(DeclareExchange(wanted.name, wanted.type, wanted.arguments))
            if self.state.exchange_types is not None and wanted.type not in self.state.exchange_types:
                self._refuse(
                    f"type {wanted.type!r}:",
                    "RabbitMQ does not have it, since its plugin is off; on each node run: "
                    f"rabbitmq-plugins enable {_PLUGINS[wanted.type]}",
                )
            return
        subject = f"exchange {wanted.name!r}"
        if found.sharded is not None:
            self._warn(
                subject,
                f"has the {found.sharded}, which binds its queues again whenever a node starts; once every shard has a "
                "lane, clear the policy, which unbinds them all",
            )
        if found.type != wanted.type:
            self._refuse(
                subject, f"is of type {found.type}, which no exchange can change to {wanted.type}; {_NEW_NAME}"
            )
        elif unlike := _unlike(found.arguments, wanted.arguments):
            self._refuse(subject, f"{unlike}, which no exchange can change; {_NEW_NAME}")
        elif not found.lasting:
            self._refuse(subject, f"is not durable, or is deleted by itself, which no exchange can change; {_NEW_NAME}")
        elif found.internal:
            self._refuse(subject, f"is internal, so that nobody may publish to it; {_NEW_NAME}")

    def _queue(self, shard: Shard) -> None:
        arguments = declared_arguments(shard, self.state.version)
        subject = f"queue {shard.queue!r}"
        if (limit := arguments.get("x-delivery-limit")) is not None and shard.type == "quorum":
            self._limit(subject, limit, "x-dead-letter-exchange" in arguments)
        found = self.state.queues.get(shard.queue)
        if found is None:
            self._queues.append(DeclareQueue(shard.queue, arguments, self._leaders.take()))
            return
        if not found.bindings_known:
            self._refuse(subject, "is down, and RabbitMQ does not list its bindings; start its node")
            return
        if found.type != shard.type:
            self._refuse(subject, f"is a {found.type} queue, which no queue can change to {shard.type}; {_NEW_SHARD}")
            return
        if "x-delivery-limit" not in found.arguments and "x-delivery-limit" not in shard.arguments:
            # The default of this file is for new queues. A queue that exists with another one is only reported, since a
            # policy can set it.
            arguments = _without(arguments, "x-delivery-limit")
            self._default_limit(subject, shard, found)
        existing = found.arguments
        if DISCONNECTED_TIMEOUT not in found.arguments or DISCONNECTED_TIMEOUT not in shard.arguments:
            # Its default is for new queues, too. `_disconnected` tells which shards have none.
            existing, arguments = _without(existing, DISCONNECTED_TIMEOUT), _without(arguments, DISCONNECTED_TIMEOUT)
        if unlike := _unlike(existing, arguments):
            self._refuse(subject, f"{unlike}, which no queue can change; {_NEW_SHARD}")
        elif not found.lasting:
            self._refuse(subject, f"is not durable, exclusive, or deleted by itself; {_NEW_SHARD}")

    def _limit(self, subject: str, limit: Any, dead_letters: bool) -> None:
        """Tell a delivery limit that deletes messages."""
        if type(limit) is not int:
            self._refuse(subject, f"x-delivery-limit: {limit!r} is not a whole number")
        elif limit < 0 and self.state.version < UNLIMITED_SINCE:
            version = ".".join(map(str, self.state.version))
            self._refuse(
                subject, f"x-delivery-limit: {limit} makes RabbitMQ {version} delete a message at its first return"
            )
        elif limit >= 0 and not dead_letters:
            self._warn(
                subject, f"deletes a message after {limit} returns: it has x-delivery-limit and no dead-letter exchange"
            )

    def _default_limit(self, subject: str, shard: Shard, found: FoundQueue) -> None:
        """Tell that an existing queue has the broker's own delivery limit, which deletes messages."""
        dead_letters = {"x-dead-letter-exchange", "dead-letter-exchange"} & {*found.arguments, *found.policy}
        if (
            shard.type != "quorum"
            or self.state.version < UNLIMITED_SINCE
            or dead_letters
            or "delivery-limit" in found.policy
        ):
            return
        self._warn(
            subject,
            "deletes a message after 20 returns, RabbitMQ's default: give it a policy with delivery-limit -1, or a "
            "dead-letter exchange",
        )

    def _alternate(self) -> None:
        """Tell an alternate exchange that does not exist."""
        name = self.exchange.arguments.get("alternate-exchange")
        if isinstance(name, str) and self._absent(name):
            tell = self._warn if self.exchange.name in self.state.exchanges else self._refuse
            tell("alternate_exchange:", f"exchange {name!r} does not exist, so that it gets no message; {_DECLARE}")

    def _dead_letters(self) -> None:
        """Tell each dead-letter exchange that does not exist once, for all the shards that name it."""
        shards: dict[str, list[Shard]] = {}
        for shard in self.shards:
            name = self._dead_letter_exchange(shard)
            if isinstance(name, str) and self._absent(name):
                shards.setdefault(name, []).append(shard)
        for name, of in shards.items():
            tell = self._warn if all(shard.queue in self.state.queues for shard in of) else self._refuse
            tell(
                f"{len(of)} shards, such as {of[0].queue!r}:",
                f"their dead-letter exchange {name!r} does not exist, so that RabbitMQ deletes each message that "
                f"they dead-letter; {_DECLARE}",
            )

    def _dead_letter_exchange(self, shard: Shard) -> Any:
        """Return the dead-letter exchange that a shard has, or will have; None for none."""
        if (found := self.state.queues.get(shard.queue)) is None:
            return shard.arguments.get("x-dead-letter-exchange")
        # As RabbitMQ does, the argument is taken before the policy.
        return found.arguments.get("x-dead-letter-exchange", found.policy.get("dead-letter-exchange"))

    def _absent(self, exchange: str) -> bool:
        return exchange != "" and exchange not in self.state.exchanges and exchange not in self.beside

    def _fanout(self, subject: str, name: str, way_out: str) -> bool:
        """Compare a lane or a fan to what exists; return whether it is there, or can be made."""
        found: FoundExchange | None = self.state.exchanges.get(name)
        if found is None:
            self._lanes.append(DeclareExchange(name, "fanout", {}))
        elif why := lane_misfit(found):
            self._refuse(subject, f"{why}; {way_out}")
            return False
        elif not found.lasting:
            self._refuse(subject, f"is not durable; {way_out}")
            return False
        elif found.arguments:
            self._refuse(subject, f"has arguments, {', '.join(found.arguments)}; {way_out}")
            return False
        return True

    def _lane(self, shard: Shard, lane: str) -> None:
        subject = f"lane {lane!r}"
        queue = Destination("queue", shard.queue)
        if not self._fanout(subject, lane, _NEW_LANE):
            return
        bound = self.state.bindings.get(lane, ())
        if shard.fan is not None:
            self._fan(shard, lane, shard.fan, bound)
            return
        if self._leads_to_fan(shard, bound):
            return
        if strangers := [each for each in bound if each.destination != queue] or bound[1:]:
            others = ", ".join(f"{each.destination}, key {each.key!r}" for each in strangers)
            self._refuse(subject, f"has a binding besides that to its queue: {others}; unbind it, or {_NEW_LANE}")
        elif not bound:
            self._lane_bindings.append(Bind(lane, queue, ""))

    def _fan(self, shard: Shard, lane: str, fan: str, bound: Sequence[FoundBinding]) -> None:
        """Compare a lane and its fan to what exists.

        The fan leads to each queue before the lane leads to it. RabbitMQ gives a queue one copy by both ways, so the
        lane's way to the queue goes last, once the ring's binding has said which shard the lane leads to.
        """
        if not self._fanout(f"fan {fan!r}", fan, _DELETE):
            return
        fanned = self.state.bindings.get(fan, ())
        for each in fanned:
            if each.destination.kind == "exchange":
                self._refuse(f"fan {fan!r}", f"is bound to {each.destination}, so that no sidecar uses it; unbind that")
            elif each.destination.name not in shard.queues:
                self._warn(f"{each.destination}", f"is of no group of the file, and gets copies by fan {fan!r}")
        led = {each.destination.name for each in fanned}
        for name in shard.queues:
            if name not in led:
                self._lane_bindings.append(Bind(fan, Destination("queue", name), ""))
                if name != shard.queue and (sources := self._sources.get(name)):
                    self._refuse(
                        f"groups: queue {name!r}",
                        f"gets the messages of exchange {min(sources)!r}, which would mix with the group's; give the "
                        "group another name, or unbind that",
                    )
        ways = [each for each in bound if each.destination == Destination("queue", shard.queue)]
        to_fan = [each for each in bound if each.destination == Destination("exchange", fan)]
        if strangers := [each for each in bound if each not in ways and each not in to_fan]:
            others = ", ".join(f"{each.destination}, key {each.key!r}" for each in strangers)
            self._refuse(f"lane {lane!r}", f"has a binding besides that to its fan: {others}; unbind it")
            return
        if not to_fan:
            self._lane_bindings.append(Bind(lane, Destination("exchange", fan), ""))
        self._overtaken += [_unbinding(lane, each) for each in ways]

    def _kept_promise(self, shard: Shard) -> Promise | None:
        """Return the promise that the ring's bindings to a shard's lane make now; None if they make none."""
        return self.state.promise(self.exchange.name, shard.lane) if shard.lane is not None else None

    def _promise(self, shard: Shard) -> Promise | None:
        """Return the promise that the ring's binding to a shard's lane should make; None if it should make none."""
        bound = self.state.bindings.get(shard.lane, ()) if shard.lane is not None else ()
        if shard.promise is None and self._leads_to_fan(shard, bound):
            # Without one, no reading of the lane would tell which shard it leads to.
            return Promise(shard.queue, ((self.exchange.name, shard.queue),))
        return shard.promise

    def _leads_to_fan(self, shard: Shard, bound: Sequence[FoundBinding]) -> bool:
        """Return whether a lane with these bindings leads to the shard's fan only.

        The fan stays when the last group but the exchange's own has gone: no change is needed where nothing is wrong.
        """
        fan = Destination("exchange", f"{self.exchange.name}.fan.{self.exchange.label(shard.number)}")
        queue = Destination("queue", shard.queue)
        fanned = {each.destination for each in self.state.bindings.get(fan.name, ())}
        return queue in fanned and {each.destination for each in bound} == {fan}

    def _groups(self) -> None:
        """Refuse groups that exist and are not in the file, and tell what adding some, or a full queue, would do."""
        name, wanted = (
            self.exchange.name,
            {self.exchange.name, *(f"{self.exchange.name}/{g}" for g in self.exchange.groups)},
        )
        kept = [promise for shard in self.shards if (promise := self._kept_promise(shard)) is not None]
        for group in sorted({group for promise in kept for group, _ in promise.groups} - wanted):
            own = group.removeprefix(f"{name}/")
            self._refuse(
                "groups:",
                f"group {own!r} exists and is not in the file: add it to groups, or take it away with: ring-proxy "
                f"topology retire-group {name} {own}",
            )
        if not self.exchange.groups:
            return
        full = [shard for shard in self.shards if str(shard.arguments.get("x-overflow", "")).startswith("reject-")]
        if full:
            self._warn(
                "x-overflow:",
                "a full queue of one group refuses a publish that the other groups have got, and each further try "
                "gives them the message again; use drop-head, or a dead-letter exchange",
            )
        if len(self.state.nodes) > 1 and any(isinstance(step, Bind) for step in self._lane_bindings):
            self._warn(
                "groups:",
                "on a cluster another node may come to know a binding later: a new group has every message from when "
                "apply says so",
            )

    def _bindings(self) -> None:
        by_queue: dict[Destination, list[FoundBinding]] = {}
        for found in self.state.of_generation(self.exchange.name, self.exchange.generation):
            by_queue.setdefault(self._queue_of(found.destination), []).append(found)
        wanted = {Destination("queue", shard.place) for shard in self.shards}
        for destination in by_queue.keys() - wanted:
            self._stranger(destination)
        alone = len(by_queue) == 1 and len(wanted) == 1
        for shard in self.shards:
            self._placed(shard, by_queue.get(Destination("queue", shard.place), []), alone)

    def _queue_of(self, destination: Destination) -> Destination:
        """Return the queue that a binding of the ring is for: of a wanted lane without bindings that of its shard."""
        if destination.kind == "exchange" and destination.name in self._by_lane:
            return self._by_lane[destination.name]
        return self.state.behind(destination)

    def _stranger(self, destination: Destination) -> None:
        """Refuse what is bound to the exchange and not in the file, unless it is being retired."""
        number = _number_of(self.exchange, destination)
        name = self.exchange.name
        if number is not None and number in self.exchange.retiring:
            if destination.kind == "exchange":
                self._unusable(destination.name, number)
            return
        if number is None:
            self._refuse(
                f"{destination}",
                f"is bound to exchange {name!r} and is not a shard of this file; name it in an "
                "[[exchange.shard]], or unbind it",
            )
            return
        if self.exchange.generation > 1:
            self._refuse(
                "shards:",
                f"shard {number} exists, {destination}, and is not in the file; the shards of a later generation "
                "change with: ring-proxy topology apply --ordered",
            )
            return
        key = "shards" if self.exchange.numbers is not None else "shards_per_node"
        self._refuse(
            f"{key}:",
            f"shard {number} exists, {destination}, and is not in the file; to take it away, add {number} to "
            f"retiring, apply, and run: ring-proxy topology retire {name} {self.exchange.shard(number).queue}",
        )

    def _unusable(self, lane: str, number: int) -> None:
        """Tell a lane of a retiring shard that no message can take to the shard."""
        if self.state.bindings.get(lane):
            why = f"{self.state.lane_fault(lane)}; sidecars do not use it as a lane"
        else:
            why = (
                "leads to no queue, and RabbitMQ still gives it a share of the messages; run: ring-proxy topology "
                f"retire {self.exchange.name} {self.exchange.shard(number).queue}"
            )
        self._warn(f"lane {lane!r} of the retiring shard {number}", why)

    def _placed(self, shard: Shard, found: Sequence[FoundBinding], alone: bool) -> None:
        """Compare the bindings of the ring to one shard; `alone` if the ring has and will have no other."""
        destination = Destination("exchange", shard.lane) if shard.lane else Destination("queue", shard.queue)
        kept = [each for each in found if each.destination == destination]
        others = [each for each in found if each.destination != destination]
        name = self.exchange.name
        promise = self._promise(shard)
        if self.exchange.generation > 1 and shard.promise is not None:
            self._placed_later(shard, shard.promise, kept)
            return
        told = all(each.promise == promise for each in kept)
        if self.exchange.type == MODULUS_HASH:
            self._bound_often(shard, destination, kept, promise)
        elif not kept:
            self._added.append(Bind(name, destination, str(shard.weight), promise))
        elif not told or (not alone and not _weighs(kept, shard.weight)):
            if alone:
                self._warn(
                    f"exchange {name!r}",
                    "leads nowhere while its only shard is bound anew: publishers without a sidecar should wait",
                )
            # Not the other way round: as soon as a destination loses one of its bindings, x-consistent-hash drops it
            # from its own ring, and does not take it in again (measured, 3.10.8 and 4.3.6).
            self._replaced += [_unbinding(name, each) for each in kept]
            self._replaced.append(Bind(name, destination, str(shard.weight), promise))
        elif not any(map(_is_weight, kept)):
            # Not replaced either: until the new binding is there, the exchange would lead nowhere.
            self._warn(
                str(destination),
                f"is bound to exchange {name!r} with the key {kept[0].key!r}, which is no weight, so sidecars have no "
                "ring of it: stop the publishers, unbind it, and apply",
            )
        self._replaced += [_unbinding(name, each) for each in others]

    def _placed_later(self, shard: Shard, promise: Promise, kept: Sequence[FoundBinding]) -> None:
        """Compare the bindings of the ring to one shard of a later generation.

        A further binding promises more groups, and none is replaced: x-consistent-hash would drop the lane.
        """
        name, lane = self.exchange.name, Destination("exchange", str(shard.lane))
        kept_promise = self._kept_promise(shard)
        if self.is_new:
            promise = promise._replace(groups=())
        if not kept and not self.is_new:
            self._refuse(
                f"shard {shard.number}:",
                f"generation {promise.generation} was made without it; the shards of a later generation change with: "
                "ring-proxy topology apply --ordered",
            )
        elif not kept or (not self.is_new and kept_promise != promise):
            self._added.append(Bind(name, lane, str(shard.weight), promise))
        if kept and {each.key for each in kept} != {str(shard.weight)}:
            self._refuse(
                f"shard {shard.number}:",
                f"its weight is {kept[0].key}, and not {shard.weight}; weights of a later generation change with: "
                "ring-proxy topology apply --ordered",
            )

    def _bound_often(
        self, shard: Shard, destination: Destination, kept: Sequence[FoundBinding], promise: Promise | None
    ) -> None:
        """Compare the bindings of x-modulus-hash to one destination, which weighs as much as it has bindings."""
        name, taken = self.exchange.name, {each.key for each in kept}
        fit = [each for each in kept if each.promise == promise]
        free = (key for key in map(str, count(1)) if key not in taken)
        self._added += [Bind(name, destination, next(free), promise) for _ in range(shard.weight - len(fit))]
        unfit = [each for each in kept if each.promise != promise]
        self._replaced += [_unbinding(name, each) for each in (*unfit, *fit[shard.weight :])]


def _unbinding(source: str, found: FoundBinding) -> Unbind:
    return Unbind(source, found.destination, found.key, found.properties_key)


def _weighs(found: Sequence[FoundBinding], weight: int) -> bool:
    """Return whether the bindings of x-consistent-hash to one destination give it this weight, and only this."""
    try:
        return [parse_weight(each.key) for each in found] == [weight]
    except WeightError:
        return False


def _is_weight(found: FoundBinding) -> bool:
    """Return whether the key of a binding of x-consistent-hash is a weight that sidecars take."""
    try:
        parse_weight(found.key)
    except WeightError:
        return False
    return True


_NEW_NAME = "choose another name, or delete it first"
_NEW_SHARD = (
    "make a new generation: shards with other numbers that have what you want, this one in retiring, then retire it"
)
_NEW_LANE = "give the shard another lane"
_DELETE = "delete it"
_DECLARE = "declare that exchange first"
_PLUGINS = {CONSISTENT_HASH: "rabbitmq_consistent_hash_exchange", MODULUS_HASH: "rabbitmq_sharding"}


def _without(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {each: value for each, value in arguments.items() if each != name}


def _unlike(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return how the arguments of something that exists differ from the wanted ones; empty if they are the same.

    Those in AT_DECLARATION are not compared, and a single active consumer that was found as false counts as none.
    """
    if found.get("x-single-active-consumer") is False:
        found = _without(found, "x-single-active-consumer")
    differences = []
    for name in sorted((found.keys() | wanted.keys()) - AT_DECLARATION):
        mine, other = found.get(name), wanted.get(name)
        if (type(mine), mine) != (type(other), other):
            is_now = "has no" if mine is None else "has"
            value = "" if mine is None else f" = {mine!r}"
            instead = "the file has none" if other is None else f"the file says {other!r}"
            differences.append(f"{is_now} {name}{value} where {instead}")
    return ", ".join(differences)
