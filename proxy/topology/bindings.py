"""Turn the management API's answers into exchanges, bindings and weights; say what was ignored and why. Pure: no I/O.

Each `parse_` function takes the bytes of an answer and raises TopologyError if the answer has another form. If it is no
JSON at all, or more than `proxy/topology/answers.py` takes, the function raises ValueError or RecursionError.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from msgspec import UNSET

from proxy.topology import answers
from proxy.topology.answers import Body, ExchangeArguments, ExchangePage, decode_answer
from proxy.topology.answers import TopologyError as TopologyError
from ring.destination import MAX_DESTINATIONS, MAX_WEIGHT, Destination, WeightError, parse_weight
from ring.hashed import HASHED_PROPERTIES, HashedValue

CONSISTENT_HASH = "x-consistent-hash"
MODULUS_HASH = "x-modulus-hash"
RING_TYPES = frozenset({CONSISTENT_HASH, MODULUS_HASH})
FANOUT = "fanout"
DIRECT = "direct"

GROUP_SUFFIX = ".group"
"""The end of the name of the exchange by which sidecars balance a consumer group: the group of `orders` has
`orders.group`. Only sidecars publish to it, since a message there is taken for one of theirs."""

ASKED_SUFFIX = ".asked"
"""The end of the name of the exchange by which they ask for each other's queues, to which only sidecars publish. It
follows the name of the exchange by which they balance: `orders.group.asked`."""

GROUP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
"""The name of a group beside the exchange's own. The group `audit` of `orders` is consumed as `orders/audit`, and is
balanced by `orders.group.audit`."""

ORDERS_SUFFIX = ".operators"
"""The end of the name of the exchange by which they get the orders of operators, likewise: `orders.group.operators`."""

MOST_BALANCED = 127
"""The most characters of the name of an exchange by which a group is balanced: the client library takes no more."""

PAUSES_SUFFIX = ".pauses"
"""The end of the name of the exchange for orders to pause and to resume, likewise: `orders.group.pauses`."""

MAX_BINDINGS = MAX_DESTINATIONS
"""The most bindings of an exchange that ringproxy takes: no ring has more destinations."""


@dataclass(frozen=True)
class Exchange:
    """One exchange as the management API describes it in one answer."""

    type: str
    """The exchange's type, for example `x-consistent-hash`."""
    internal: bool = False
    """Whether only other exchanges may publish to it; a client's publish is refused with 403."""
    hashed: HashedValue = HashedValue()
    """The part of a message that the exchange hashes."""
    publish_in: int | None = None
    """The number of messages published to the exchange so far, as the broker counts them; None if it does not say."""
    auto_delete: bool = False
    """Whether the broker deletes the exchange together with the exchange's last binding."""
    has_alternate: bool = False
    """Whether the exchange's arguments name an alternate exchange, which gets what the exchange cannot route."""
    policy: str = ""
    """The name of the policy that applies to the exchange; empty if none does."""
    balances: str = ""
    """The hash exchange whose consumer group sidecars balance by this exchange; empty for every other exchange."""


MOST_GROUPS = 32
"""The most groups of one exchange, the one without a name of its own included: each gets a copy of every message."""


class Promise(NamedTuple):
    """The arguments of a ring's binding to a lane: which shard the lane leads to, and the queues of the shard's groups.

    The shard is placed on the ring by this name, so that no queue of a group decides where keys go. Every message of
    the shard is promised to each of the queues. A later generation promises a shard to a group once it may consume it.
    """

    shard: str
    """The shard's name, that of a queue where there is only one group; empty if bindings to one lane contradict each
    other."""
    groups: tuple[tuple[str, str], ...] = ()
    """The queue of each group, with the name by which clients consume the group before it, sorted."""
    generation: int = 1
    """The generation that the binding belongs to; 0 if its arguments name one and are not readable."""
    of: int = 0
    """The number of shards that the generation was made with; 0 for generation 1, whose bindings do not tell."""

    @property
    def queues(self) -> frozenset[str]:
        return frozenset(queue for _, queue in self.groups)

    def as_arguments(self) -> dict[str, str | int | dict[str, str]]:
        """Return the arguments of a binding that makes this promise."""
        if self.generation == 1:
            return {SHARD_ARGUMENT: self.shard, GROUPS_ARGUMENT: dict(self.groups)}
        opened: dict[str, str | int | dict[str, str]] = {GROUPS_ARGUMENT: dict(self.groups)} if self.groups else {}
        return {GENERATION_ARGUMENT: self.generation, SHARDS_ARGUMENT: self.of, SHARD_ARGUMENT: self.shard, **opened}


SHARD_ARGUMENT = "x-ring-shard"
"""The argument of a ring's binding to a lane that names the shard."""

GROUPS_ARGUMENT = "x-ring-groups"
"""The argument of a ring's binding to a lane that has the queue of each group, by the name that clients consume."""

GENERATION_ARGUMENT = "x-ring-generation"
"""The argument of a ring's binding to a lane that has the number of the generation, from 2 on."""

SHARDS_ARGUMENT = "x-ring-shards"
"""The argument of a ring's binding to a lane that has the number of shards with which the generation was made."""

MAX_GENERATION = 10**9
"""The largest number of a generation."""

UNREADABLE = Promise("", generation=0)
"""The promise of a binding that names a generation, with arguments of another form. It belongs to no ring: to have it
count in generation 1 would send messages to a shard that nobody may consume yet."""


class Binding(NamedTuple):
    """One binding of an exchange, without other arguments than those of a promise."""

    destination: Destination
    key: str
    """The binding key, as the answer has it."""
    promise: Promise | None = None
    """The promise that the binding's arguments make; None if they make none."""


class Leads(Enum):
    """Where an exchange leads that a ring exchange is bound to."""

    TO_QUEUE = "to a queue"
    """The exchange is a lane: a fanout exchange with one binding, to one queue, or to the fan of the shard's groups."""
    NOWHERE = "nowhere"
    """The exchange is a lane without a binding, so the broker returns every mandatory publish to it."""
    ASIDE = "aside"
    """The exchange is a fanout exchange that is not a lane."""
    ELSEWHERE = "elsewhere"
    """The exchange is of another type than fanout, and routes by itself."""
    ABSENT = "absent"
    """The exchange does not exist, so the broker closes the channel of a publish to it."""


class Behind(NamedTuple):
    """The result of one reading of an exchange that a ring exchange is bound to."""

    leads: Leads
    queue: str = ""
    """The shard that a lane leads to: its only queue, or the name that the ring's binding promises; empty for every
    other exchange."""
    key: str = ""
    """The key of a lane's only binding; empty for every other exchange."""
    why: str = ""
    """Why a fanout exchange is not a lane, in words; empty for every other exchange."""
    internal: bool = False
    """Whether only other exchanges may publish to the exchange."""
    fan: str = ""
    """The exchange behind a lane that gives each group's queue a copy, or behind what is no lane as the ring's binding
    promises nothing; empty if there is none."""
    promise: Promise | None = None
    """The promise that the ring's binding to the exchange makes; None if it makes none."""
    missing: tuple[str, ...] = ()
    """The promised queues that a lane does not lead to, sorted: their groups lose messages, which nothing returns."""


class Fan(NamedTuple):
    """A reading of the exchange that a lane is bound to."""

    name: str
    exchange: Exchange | None
    """The exchange; None if it does not exist."""
    bindings: tuple[Binding, ...] = ()
    """The bindings whose source is the exchange; empty, because not read, if it is not a fanout exchange."""


NOTHING_BEHIND: Mapping[str, Behind] = MappingProxyType({})
"""The exchanges behind a ring exchange that is bound to queues only."""

_NO_WAY = {Leads.NOWHERE: "no queue is bound to this lane", Leads.ABSENT: "the exchange does not exist"}
"""Why a binding to an exchange gives no weight, by where the exchange leads."""


@dataclass(frozen=True)
class IgnoredBinding:
    """A binding that no ring counts: its key is not a weight, or the exchange that it leads to leads nowhere."""

    destination: Destination
    key: str
    reason: str
    """Why the binding is ignored, in words that follow its key and a colon."""


@dataclass(frozen=True)
class Bindings:
    """The bindings of one exchange, sorted into weights for a ring and bindings that need an operator's attention."""

    weights: Mapping[Destination, int] = field(default_factory=lambda: MappingProxyType({}))
    """The weight of each destination; of several bindings to one destination, the largest weight."""
    ignored: tuple[IgnoredBinding, ...] = ()
    """The bindings whose keys are not weights, in the order of the answer."""
    duplicates: tuple[Destination, ...] = ()
    """The destinations that are bound more than once. RabbitMQ itself counts only the first of these bindings, and
    removes the destination from its own ring as soon as any of them is unbound, so no log line advises an unbind.
    A queue with two lanes, or with a lane and a binding of its own, is such a destination, too."""
    lanes: Mapping[Destination, str] = field(default_factory=lambda: MappingProxyType({}))
    """By queue of `weights`, the lane that publishes to the queue go through; without the queues that have none."""


def parse_exchange(body: Body) -> Exchange:
    """Return the exchange in an answer to `GET /api/exchanges/{vhost}/{name}`."""
    return _exchange(decode_answer(answers.EXCHANGE, body, "exchange"))


def find_exchange(body: Body, name: str) -> Exchange | None:
    """Return an exchange from an answer to `GET /api/exchanges/{vhost}`; None if it is not among them."""
    items = decode_answer(answers.EXCHANGES, body, "exchanges")
    return next((_exchange(item) for item in items if item.name == name), None)


def _exchange(page: ExchangePage) -> Exchange:
    """Return the exchange that the management API's page shows. Raises TopologyError for arguments of no use."""
    arguments = page.arguments
    # x-modulus-hash hashes the routing key whatever its arguments say.
    hashes = page.type == CONSISTENT_HASH
    if not isinstance(arguments, ExchangeArguments):
        if arguments if not hashes else arguments is not UNSET:
            raise TopologyError(f"arguments: {_brief(arguments)} is not an object")
        arguments = ExchangeArguments()
    return Exchange(
        page.type,
        page.internal,
        _hashed(arguments) if hashes else HashedValue(),
        _publish_in(page.message_stats),
        auto_delete=page.auto_delete,
        has_alternate=arguments.alternate_exchange is not UNSET,
        policy=page.policy if isinstance(page.policy, str) else "",
    )


def parse_bindings(body: Body) -> tuple[Binding, ...]:
    """Return the bindings in an answer to `GET /api/exchanges/{vhost}/{name}/bindings/source`, without their arguments.

    One item of the wrong form makes the whole answer malformed, so that half an answer is never used.
    """
    items = decode_answer(answers.BINDINGS, body, "bindings")
    return _bindings(items)


def parse_bindings_with_arguments(body: Body) -> tuple[Binding, ...]:
    """Return those of the bindings in such an answer that have arguments."""
    items = decode_answer(answers.BINDINGS_WITH_ARGUMENTS, body, "bindings")
    return _bindings([item for item in items if item.arguments])


def _bindings(items: Sequence[answers.BindingItem | answers.BindingItemWithArguments]) -> tuple[Binding, ...]:
    """Return the bindings that a list of the management API shows. Raises TopologyError for more than MAX_BINDINGS."""
    if len(items) > MAX_BINDINGS:
        raise TopologyError(
            f"bindings: the exchange has {len(items)}, and ringproxy takes {MAX_BINDINGS} at most; unbind some"
        )
    return tuple(
        Binding(Destination(item.destination_type, item.destination), item.routing_key, _promise(item.arguments))
        for item in items
    )


def promise_of(shard: object, groups: object, generation: object = None, shards: object = None) -> Promise | None:
    """Return what a lane's binding says of its shard, groups and generation; None if nothing, or in another form.

    Those that name a generation, and have another form, make the promise `UNREADABLE`.
    """
    malformed = UNREADABLE if generation is not None else None
    groups = {} if groups is None else groups
    if not _is_name(shard) or not isinstance(groups, dict) or len(groups) > MOST_GROUPS:
        return malformed
    if not all(_is_name(name) and _is_name(queue) for name, queue in groups.items()):
        return malformed
    opened = tuple(sorted(groups.items()))
    if generation is None:
        return Promise(str(shard), opened)
    if not _is_count(generation, 2, MAX_GENERATION) or not _is_count(shards, 1, MAX_DESTINATIONS):
        return malformed
    return Promise(str(shard), opened, generation, shards)


def _is_count(value: object, least: int, most: int) -> TypeGuard[int]:
    return type(value) is int and least <= value <= most


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= 255


def _promise(arguments: object) -> Promise | None:
    """Return the promise of a binding with these arguments; None if they make none."""
    if not isinstance(arguments, answers.BindingArguments):
        return None
    return promise_of(arguments.shard, arguments.groups, arguments.generation, arguments.shards)


def promises_of(bindings: Iterable[Binding]) -> dict[str, Promise | None]:
    """Return the promise about each exchange among the destinations of bindings; None if they promise nothing of it.

    Bindings to one lane promise all their groups together. If they name different shards or generations, the shard of
    the promise is empty.
    """
    found: dict[str, Promise | None] = {}
    for destination, _, promise in bindings:
        if destination.kind != "exchange":
            continue
        promise = None if promise == UNREADABLE else promise
        before = found.get(destination.name)
        if promise is not None and before is not None:
            alike = (promise.shard, promise.generation) == (before.shard, before.generation)
            shard, groups = promise.shard if alike else "", tuple(sorted({*promise.groups, *before.groups}))
            promise = Promise(shard, groups, max(promise.generation, before.generation), max(promise.of, before.of))
        found[destination.name] = promise or before
    return found


def weigh(bindings: Iterable[Binding], exchange_type: str, behind: Mapping[str, Behind] = NOTHING_BEHIND) -> Bindings:
    """Return the weights that bindings give, the ignored bindings, destinations bound more than once, and the lanes.

    A binding to a lane gives its weight to the queue behind the lane; `behind` has the exchanges that were read, by
    name. A binding whose key is not a weight is listed as ignored, and so is one to an exchange that leads nowhere or
    does not exist. A destination with several weights has the largest; of an x-modulus-hash exchange it weighs as much
    as it has bindings, as there. A queue with several lanes gets its publishes through the one that sorts first.

    `bindings` are those of one generation. Further bindings to a lane of a later one open its shard to groups, and
    count as one with the first.
    """
    weights: dict[Destination, int] = {}
    times: Counter[Destination] = Counter()
    lanes: dict[Destination, str] = {}
    ignored: list[IgnoredBinding] = []
    duplicates: dict[Destination, None] = {}
    seen: set[Destination] = set()
    later: set[Destination] = set()
    for bound, key, promise in bindings:
        if promise == UNREADABLE:
            ignored.append(IgnoredBinding(bound, key, f"its arguments with {GENERATION_ARGUMENT} have another form"))
            continue
        found = behind.get(bound.name) if bound.kind == "exchange" else None
        destination = Destination("queue", found.queue) if found is not None and found.queue else bound
        opens = promise is not None and promise.generation > 1 and bound in later
        if destination in seen and not opens and not (exchange_type == MODULUS_HASH and bound in times):
            duplicates[destination] = None
        seen.add(destination)
        if promise is not None and promise.generation > 1:
            later.add(bound)
        try:
            weight = weight_of(key, exchange_type)
        except WeightError as error:
            ignored.append(IgnoredBinding(bound, key, str(error)))
            continue
        if found is not None and found.leads in _NO_WAY:
            ignored.append(IgnoredBinding(bound, key, _NO_WAY[found.leads]))
            continue
        if exchange_type == MODULUS_HASH:
            times[bound] += not opens
            weight = min(times[bound], MAX_WEIGHT)
        weights[destination] = max(weight, weights.get(destination, 0))
        if destination is not bound:
            lanes[destination] = min(bound.name, lanes.get(destination, bound.name))
    return Bindings(weights, tuple(ignored), tuple(duplicates), lanes)


def behind_of(
    exchange: Exchange | None,
    bindings: Sequence[Binding],
    alternate_policies: Collection[str],
    promise: Promise | None = None,
    fan: Fan | None = None,
) -> Behind:
    """Return where an exchange behind a ring leads, as one reading shows it; `exchange` is None if it does not exist.

    `bindings` are those whose source is the exchange. `alternate_policies` are the names of the policies that give
    exchanges an alternate exchange. `promise` is what the ring's binding says of the exchange, and `fan` the exchange
    that it is bound to, if it is bound to one. A fanout exchange is a lane only if a publish that it cannot deliver
    comes back: an alternate exchange would take that publish, and the broker would confirm it. An auto-delete exchange
    ends with its binding, and a publish to it then closes the channel instead of coming back.

    A lane leads to one queue, or to one fan. While groups are added it leads to both: RabbitMQ gives a queue one copy
    of a message by however many ways, so that the queue makes no difference as long as the fan leads to it, too.
    """
    if exchange is None:
        return Behind(Leads.ABSENT, promise=promise)
    if exchange.type != FANOUT:
        return Behind(Leads.ELSEWHERE, internal=exchange.internal, promise=promise)
    if fan is not None and fan.exchange is None:
        # Its bindings have gone with it, and the reading of the lane is older than that.
        bindings = [binding for binding in bindings if binding.destination != Destination("exchange", fan.name)]
        fan = None
    why = _no_lane(exchange, alternate_policies) or _no_way(bindings, promise, fan, alternate_policies)
    if why or exchange.internal:
        unpromised = fan.name if fan is not None and promise is None else ""
        return Behind(
            Leads.ASIDE, why=why or "it is internal", internal=exchange.internal, fan=unpromised, promise=promise
        )
    reached = {
        binding.destination.name
        for binding in (*bindings, *(fan.bindings if fan is not None else ()))
        if binding.destination.kind == "queue"
    }
    if not reached:
        return Behind(Leads.NOWHERE, promise=promise)
    direct = [binding.destination.name for binding in bindings if binding.destination.kind == "queue"]
    return Behind(
        Leads.TO_QUEUE,
        promise.shard if promise is not None else direct[0],
        bindings[0].key,
        fan=fan.name if fan is not None else "",
        promise=promise,
        missing=tuple(sorted(promise.queues - reached)) if promise is not None else (),
    )


def _no_lane(exchange: Exchange, alternate_policies: Collection[str]) -> str:
    """Return in words why a fanout exchange is neither a lane nor a fan, whatever it is bound to; empty if it may be
    one.
    """
    if exchange.balances:
        return f"only sidecars publish to it, to balance the group of {exchange.balances!r}"
    if exchange.has_alternate:
        return "its arguments name an alternate exchange"
    if exchange.policy in alternate_policies:
        return f"policy {exchange.policy!r} gives it an alternate exchange"
    if exchange.auto_delete:
        return "it is an auto-delete exchange"
    return ""


def _no_way(
    bindings: Sequence[Binding], promise: Promise | None, fan: Fan | None, alternate_policies: Collection[str]
) -> str:
    """Return in words why the bindings of a fanout exchange do not make it a lane; empty if they do."""
    if promise is not None and not promise.shard:
        return f"the bindings to it name different shards in {SHARD_ARGUMENT}, or different generations"
    direct = {binding.destination.name for binding in bindings if binding.destination.kind == "queue"}
    exchanges = [binding.destination for binding in bindings if binding.destination.kind == "exchange"]
    if fan is None or fan.exchange is None or len(set(exchanges)) > 1:
        if len(bindings) > 1:
            return f"it has {len(bindings)} bindings"
        return f"it is bound to {exchanges[0]}" if exchanges else ""
    bound_to = f"it is bound to exchange {fan.name!r}"
    if fan.exchange.type != FANOUT:
        return bound_to
    if why := _no_lane(fan.exchange, alternate_policies):
        return f"{bound_to}, of which is true: {why}"
    if further := [each.destination for each in fan.bindings if each.destination.kind == "exchange"]:
        return f"{bound_to}, and that to {further[0]}"
    if direct - {each.destination.name for each in fan.bindings}:
        return f"it has {len(bindings)} bindings"
    if promise is None and len(direct) != 1:
        return f"{bound_to}, and the binding to it has no argument {SHARD_ARGUMENT}"
    return ""


def balancing(exchange: str, group: str) -> str:
    """Return the name of the exchange by which sidecars balance a group of an exchange."""
    own = group.removeprefix(f"{exchange}/") if group != exchange else ""
    return f"{exchange}{GROUP_SUFFIX}{'.' if own else ''}{own}"


def grouped_by(exchange_name: str, exchange_type: str | None = None) -> str:
    """Return the name of the hash exchange whose group sidecars balance by an exchange of this name; empty for none.

    An exchange with another type than theirs has none. They balance one only if there is a hash exchange of the
    returned name.
    """
    beats = exchange_name.removesuffix(ASKED_SUFFIX)
    its_type = FANOUT if beats == exchange_name else DIRECT
    if exchange_type not in (None, its_type):
        return ""
    ring, _, group = beats.rpartition(f"{GROUP_SUFFIX}.")
    if beats.endswith(GROUP_SUFFIX):
        return beats.removesuffix(GROUP_SUFFIX)
    return ring if ring and GROUP_NAME.fullmatch(group) else ""


def weight_of(key: str, exchange_type: str) -> int:
    """Return the weight that one binding gives; 1 for x-modulus-hash, which ignores keys. Raises WeightError."""
    return 1 if exchange_type == MODULUS_HASH else parse_weight(key)


def parse_alternate_policies(body: Body) -> frozenset[str]:
    """Return the policies that give exchanges an alternate exchange, from an answer to `GET /api/policies/{vhost}`."""
    policies = decode_answer(answers.POLICIES, body, "policies")
    return frozenset(policy.name for policy in policies if policy.definition.alternate_exchange is not UNSET)


def parse_applied_policies(body: Body) -> Mapping[str, str]:
    """Return the policy of each exchange that has one, by its name, from an answer to `GET /api/exchanges/{vhost}`."""
    items = decode_answer(answers.APPLIED_POLICIES, body, "exchanges")
    return {item.name: item.policy for item in items if item.policy is not None}


def parse_cluster_name(body: Body) -> str:
    """Return the name in an answer to `GET /api/cluster-name`."""
    return decode_answer(answers.CLUSTER, body, "cluster-name").name


def parse_names(body: Body, what: str) -> frozenset[str]:
    """Return the `name` of each item of a list in an answer; the error calls the list `what`."""
    return frozenset(item.name for item in decode_answer(answers.NAMES, body, what))


def parse_nodes(body: Body) -> frozenset[str]:
    """Return the names of the nodes in the `cluster_state` fields of an answer to `GET /api/vhosts`.

    The result is empty for an API without that field.
    """
    vhosts = decode_answer(answers.VHOSTS, body, "virtual hosts")
    return frozenset(node for vhost in vhosts for node in vhost.cluster_state)


def default_names(cluster: str, nodes: Iterable[str]) -> frozenset[str]:
    """Return the names that the nodes report for their cluster while no operator has named it.

    Each node then reports its own node name, completed with the host's domain. `cluster` is the name that one node
    reported. The result is empty if that is not such a default name.
    """
    _, _, host = cluster.partition("@")
    _, dot, domain = host.partition(".")
    names = set()
    for node in nodes:
        name, _, at = node.partition("@")
        names.add(f"{name}@{host if at == 'localhost' else at if '.' in at else at + dot + domain}")
    return frozenset(names) if cluster in names else frozenset()


def dead_letters_by_own_name(body: Body) -> str | None:
    """Return what makes a queue dead-letter without a routing key of its own, from an answer to `GET /api/queues/...`.

    The result names the queue's argument or the policy; it is empty if the queue does not do so. A queue that does so,
    when it is published to through the default exchange, dead-letters under its own name instead of the original
    routing key. Each of the two keys may come from an argument or from a policy. The result is None while the answer
    says nothing of policies: RabbitMQ 3.10.8 says nothing before a queue's first statistics (observed). Raises
    TopologyError.
    """
    queue = decode_answer(answers.QUEUE, body, "queue")
    arguments, policy = queue.arguments, queue.effective_policy_definition
    cause = "its argument x-dead-letter-exchange" if arguments.exchange is not UNSET else ""
    if not cause and policy is UNSET:
        return None
    if not isinstance(policy, answers.QueuePolicy):
        if policy:
            raise TopologyError(f"effective_policy_definition: {_brief(policy)} is not an object")
        policy = answers.QueuePolicy()
    if not cause and policy.exchange is not UNSET:
        cause = f"policy {queue.policy!r}" if isinstance(queue.policy, str) and queue.policy else "a policy"
    return "" if arguments.key is not UNSET or policy.key is not UNSET else cause


def _hashed(arguments: ExchangeArguments) -> HashedValue:
    """Return what an x-consistent-hash exchange with these arguments hashes. Raises TopologyError."""
    header, name = arguments.hash_header, arguments.hash_property
    if isinstance(header, str) and header:
        return HashedValue("header", header)
    if isinstance(name, str) and name:
        if name not in HASHED_PROPERTIES:
            raise TopologyError(f"hash-property: {name!r} is not one of {', '.join(sorted(HASHED_PROPERTIES))}")
        return HashedValue("property", name)
    header = arguments.hash_on
    return HashedValue("header", header) if isinstance(header, str) and header else HashedValue()


def _publish_in(stats: object) -> int | None:
    """Return the number of messages published, from an exchange's `message_stats`; None if there is no such number.

    The field is missing until the first publish, and while statistics are off. No form of it raises an error, since a
    ring does not depend on statistics.
    """
    count = stats.get("publish_in") if isinstance(stats, dict) else None
    return count if type(count) is int and count >= 0 else None


def _brief(value: object) -> str:
    """Return a value as an error message shows it: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
