"""A broker in memory: what exists after a step, and whether publishes to a ring can be lost."""

from dataclasses import replace

from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Step, Unbind
from proxy.topology.bindings import Promise
from ring.destination import Destination

EMPTY = State("/", nodes=("rabbit@a",), version=(4, 3, 6))


def after(state: State, *steps: Step) -> State:
    """Return what exists once these steps are taken."""
    for step in steps:
        state = _taken(state, step)
    return state


def _taken(state: State, step: Step) -> State:
    exchanges, queues, bindings = dict(state.exchanges), dict(state.queues), dict(state.bindings)
    match step:
        case DeclareQueue(name, arguments, node):
            assert name not in queues, f"{name} is declared again"
            kind = str(arguments["x-queue-type"])
            queues[name] = FoundQueue(kind, dict(arguments), ready=0, unacked=0, node=node or state.nodes[0])
        case DeclareExchange(name, kind, arguments):
            assert name not in exchanges, f"{name} is declared again"
            exchanges[name] = FoundExchange(kind, dict(arguments))
        case Bind(source, destination, key, promise):
            assert source in exchanges, f"{source} is bound before it is there"
            assert destination.name in (queues if destination.kind == "queue" else exchanges)
            bindings[source] = (*bindings.get(source, ()), _bound(destination, key, promise))
        case Unbind(source, destination, key, properties_key):
            left = tuple(each for each in bindings[source] if each[:3] != (destination, key, properties_key))
            assert len(left) < len(bindings[source]), f"{destination} is not bound"
            bindings[source] = left
    return replace(state, exchanges=exchanges, queues=queues, bindings=bindings)


def _bound(destination: Destination, key: str, promise: Promise | None) -> FoundBinding:
    return FoundBinding(destination, key, (key or "~") if promise is None else f"{key}~{promise}", promise)


def same(one: State, other: State) -> bool:
    """Return whether two states have the same exchanges, queues and bindings."""
    bound = [{name: set(of) for name, of in state.bindings.items() if of} for state in (one, other)]
    queues = [{name: (q.type, q.arguments) for name, q in state.queues.items()} for state in (one, other)]
    return one.exchanges == other.exchanges and queues[0] == queues[1] and bound[0] == bound[1]


def leaks(state: State, exchange: str) -> list[str]:
    """Return the destinations of a ring from which a message would reach no queue."""
    return [
        str(destination)
        for destination, *_ in state.bindings.get(exchange, ())
        if (destination.name not in state.queues if destination.kind == "queue" else state.lane_fault(destination.name))
    ]
