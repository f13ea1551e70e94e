"""A broker in memory: what exists after a step, and whether publishes to a ring can be lost."""

from dataclasses import replace

from proxy.shards.state import FoundBinding, FoundExchange, FoundQueue, State
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Step, Unbind

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
        case Bind(source, destination, key):
            assert source in exchanges, f"{source} is bound before it is there"
            assert destination.name in (queues if destination.kind == "queue" else exchanges)
            bindings[source] = (*bindings.get(source, ()), FoundBinding(destination, key, key or "~"))
        case Unbind(source, destination, key, properties_key):
            gone = FoundBinding(destination, key, properties_key)
            assert gone in bindings[source], f"{gone} is not bound"
            bindings[source] = tuple(each for each in bindings[source] if each != gone)
    return replace(state, exchanges=exchanges, queues=queues, bindings=bindings)


def same(one: State, other: State) -> bool:
    """Return whether two states have the same exchanges, queues and bindings."""
    bound = [{name: set(of) for name, of in state.bindings.items() if of} for state in (one, other)]
    queues = [{name: (q.type, q.arguments) for name, q in state.queues.items()} for state in (one, other)]
    return one.exchanges == other.exchanges and queues[0] == queues[1] and bound[0] == bound[1]


def leaks(state: State, exchange: str) -> list[str]:
    """Return the destinations of a ring from which a message would reach no queue."""
    return [
        str(destination)
        for destination, _, _ in state.bindings.get(exchange, ())
        if (destination.name not in state.queues if destination.kind == "queue" else state.lane_fault(destination.name))
    ]
