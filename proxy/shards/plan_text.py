"""A plan as text for people, and as JSON. Pure."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from proxy.shards.defaults import DISCONNECTED_TIMEOUT
from proxy.shards.journal import Moved
from proxy.shards.plan import Plan, Planned
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Step, Unbind
from ring.destination import Destination
from ring.hashing import SLOTS

FORMAT = 1
"""The version of the JSON form; a field may be added without a new version."""

_USERS = (
    "  WRITER publishes; READER consumes from the queues, and MEMBER from the exchange's name, as a group;",
    "  SIDECAR is in broker_url of the sidecars that MEMBER consumes by; TOPOLOGY applies the file",
)

Journalled = Mapping[tuple[str, str], Moved]
"""By virtual host and name of an exchange: how many of its messages move, as its journal tells."""


def as_text(plan: Plan, journalled: Journalled = MappingProxyType({})) -> list[str]:
    """Return a plan in lines for people. A line may have a newline in it, where a name has: whoever prints escapes."""
    lines: list[str] = []
    for planned in plan.exchanges:
        exchange = planned.difference.exchange
        lines += _exchange_lines(planned, journalled.get((exchange.vhost, exchange.name)))
    if plan.refusals:
        lines += ["cannot be done:", *(f"  {line}" for line in plan.refusals), ""]
    if plan.warnings:
        lines += ["take care:", *(f"  {line}" for line in plan.warnings), ""]
    lines += ["rights that the users need (each line replaces all rights of that user in the virtual host):", *_USERS]
    if plan.rights == plan.rights_applied:
        lines += [f"  {line}" for line in plan.rights]
    else:
        lines += ["  set these before you apply the file:", *(f"    {line}" for line in plan.rights)]
        lines += ["  set these once it is applied and sidecars have noticed:"]
        lines += [f"    {line}" for line in plan.rights_applied]
    if plan.rights_ordered:
        lines += ["  for apply --ordered, set these instead before you begin:"]
        lines += [f"    {line}" for line in plan.rights_ordered]
    return [*lines, "", summary(plan)]


def drift(plan: Plan) -> Iterator[str]:
    """Yield a line for each way in which what exists differs from the file."""
    for vhost, step in plan.steps:
        yield f"virtual host {vhost}: to do: {_described(step)}"
    yield from plan.refusals
    yield from plan.warnings


def summary(plan: Plan) -> str:
    """Return the last line of a plan."""
    if plan.refusals:
        return f"{len(plan.refusals)} cannot be done, so apply would do nothing"
    steps = len(plan.steps)
    return f"{steps} {'step' if steps == 1 else 'steps'} to do" if steps else "nothing to do"


def _exchange_lines(planned: Planned, journalled: Moved | None) -> Iterator[str]:
    exchange = planned.difference.exchange
    yield f"exchange {exchange.name} in virtual host {exchange.vhost}: {len(planned.difference.shards)} shards"
    for step in planned.difference.steps:
        yield f"  {_sign(step)} {_described(step)}"
    if planned.moves:
        yield from _move_lines(planned)
        if journalled is not None:
            yield _journal_line(journalled)
    elif not planned.difference.before:
        yield "  no key moves: the exchange has no ring yet"
    else:
        yield "  no key moves"
    yield from _weight_lines(planned)
    if any(shard.type != "stream" for shard in planned.difference.shards):
        yield (
            "  consumer timeout: the broker's own, 30 minutes unless it is configured otherwise, or the argument "
            "x-consumer-timeout; a delivery that is not acked by then is returned to the queue"
        )
    yield from _disconnected_lines(planned)
    yield ""


def _weight_lines(planned: Planned) -> Iterator[str]:
    """Yield a line about shards that get another weight, and are off the ring for a moment."""
    steps = planned.difference.bound
    unbound = {step.destination for step in steps if isinstance(step, Unbind)}
    count = sum(isinstance(step, Bind) and step.destination in unbound for step in steps)
    if count:
        yield (
            f"  weights: {count} shards are unbound and bound again, one after the other; if more than a sidecar's "
            "settle_time passes in between, as when apply is killed there, the keys of that shard move to other queues "
            "and back; those of publishers without a sidecar do so at once"
        )


def _disconnected_lines(planned: Planned) -> Iterator[str]:
    """Yield a line about what new shards do when the node of a consumer is lost, and what that costs."""
    steps = planned.difference.steps
    made = {step.arguments.get(DISCONNECTED_TIMEOUT) for step in steps if isinstance(step, DeclareQueue)}
    for milliseconds in sorted(each for each in made if type(each) is int):
        yield (
            f"  lost consumers: after {milliseconds / 1000:g} s without its node, a consumer of a new shard loses the "
            f"shard to the next one ({DISCONNECTED_TIMEOUT}); if only the network is cut, it may still work on "
            "messages that the next one then gets"
        )


def _move_lines(planned: Planned) -> Iterator[str]:
    slots = sum(move.slots for move in planned.moves)
    yield f"  {planned.moved:.4%} of the keys move ({slots:,} of {SLOTS:,} slots):"
    given: dict[Destination, int] = {}
    for move in planned.moves:
        given[move.source] = given.get(move.source, 0) + move.slots
    width = max(len(source.name) for source in given)
    yield f"    {'from':<{width}}  {'of all keys':>11}  {'waiting':>9}"
    for source, share in given.items():
        waiting = planned.waiting[source]
        yield f"    {source.name:<{width}}  {share / SLOTS:>11.4%}  {_count(waiting):>9}"
    at_risk = [source.name for source in given if planned.waiting[source] != 0]
    if at_risk:
        yield (
            "  order at risk: a key that moves may be consumed from its new queue before its messages in the old one; "
            f"messages wait in {', '.join(at_risk)}"
        )
    else:
        yield "  order: nothing waits in the queues that lose keys"


def _journal_line(moved: Moved) -> str:
    if moved.a_day is None:
        return f"  journal: {moved.messages} messages of the exchange, too few to tell how many a day move"
    share = moved.moved / moved.messages
    about, more = (
        ("at least", ", the first ones of the newest hour, which has more") if moved.is_part else ("about", "")
    )
    return (
        f"  journal: {about} {moved.a_day:,} messages a day move, {share:.1%} of {moved.messages:,} messages in "
        f"{moved.hours:.1f} h{more}"
    )


def _count(waiting: int | None) -> str:
    return "unknown" if waiting is None else f"{waiting:,}"


def _sign(step: Step) -> str:
    return "-" if isinstance(step, Unbind) else "+"


def _described(step: Step) -> str:
    """Return a step as a plan shows it, with its arguments."""
    match step:
        case DeclareQueue(arguments=arguments, node=node):
            shown = ", ".join(f"{name}={_value(value)}" for name, value in arguments.items())
            return f"{step}: {shown}{f', on {node}' if node else ''}"
        case DeclareExchange(arguments=arguments) if arguments:
            return f"{step}: {', '.join(f'{name}={_value(value)}' for name, value in arguments.items())}"
        case _:
            return str(step)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_json(plan: Plan, journalled: Journalled = MappingProxyType({})) -> Mapping[str, Any]:
    """Return a plan as an object for JSON."""
    return {
        "v": FORMAT,
        "steps": len(plan.steps),
        "exchanges": [_exchange_json(planned, journalled) for planned in plan.exchanges],
        "refusals": list(plan.refusals),
        "warnings": list(plan.warnings),
        "rights": list(plan.rights),
        "rights_applied": list(plan.rights_applied),
        "rights_ordered": list(plan.rights_ordered),
    }


def _exchange_json(planned: Planned, journalled: Journalled) -> Mapping[str, Any]:
    exchange = planned.difference.exchange
    moved = journalled.get((exchange.vhost, exchange.name))
    told = None
    if moved is not None:
        told = {
            "messages": moved.messages,
            "moved": moved.moved,
            "hours": moved.hours,
            "moved_a_day": moved.a_day,
            "is_part": moved.is_part,
        }
    return {
        "vhost": exchange.vhost,
        "exchange": exchange.name,
        "shards": [
            {
                "number": s.number,
                "queue": s.queue,
                "lane": s.lane,
                "weight": s.weight,
                **({"fan": s.fan, "groups": dict(s.promise.groups)} if s.promise is not None else {}),
            }
            for s in planned.difference.shards
        ],
        "steps": [step_json(step) for step in planned.difference.steps],
        "moved": planned.moved,
        "moves": [
            {"from": _destination(move.source), "to": _destination(move.target), "slots": move.slots}
            for move in planned.moves
        ],
        "waiting": {source.name: count for source, count in planned.waiting.items()},
        "journal": told,
    }


def step_json(step: Step) -> Mapping[str, Any]:
    """Return a step as an object for JSON; `step` names its kind."""
    fields = step._asdict()
    if "destination" in fields:
        fields["destination"] = _destination(fields["destination"])
    if "promise" in fields:
        promise = fields.pop("promise")
        fields["arguments"] = promise.as_arguments() if promise is not None else {}
    if "arguments" in fields:
        fields["arguments"] = dict(fields["arguments"])
    kinds = {DeclareQueue: "declare_queue", DeclareExchange: "declare_exchange", Bind: "bind", Unbind: "unbind"}
    return {"step": kinds[type(step)], **fields}


def _destination(destination: Destination) -> Mapping[str, str]:
    return {"type": destination.kind, "name": destination.name}
