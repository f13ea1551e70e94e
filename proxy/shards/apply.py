"""Take the steps of a plan, one after the other, while the lock is held."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from proxy.shards.broker import Broker, Lock, LockLostError
from proxy.shards.plan import Plan, make_plan
from proxy.shards.shard import Sharded
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, Step, Unbind
from proxy.topology.management import ManagementError, RefusedError

_LOOKS, _PAUSE = 10, 1.0
"""How often the result is looked at, and the seconds in between: a node of a cluster may show a change later."""

Say = Callable[[str], None]
"""A function that shows a line of progress."""


class StoppedError(Exception):
    """A step failed; the message says which, why, what was done, what was not, and how to go on."""


async def apply(broker: Broker, lock: Lock, document: Sequence[Sharded], say: Say) -> Plan:
    """Take the steps that a file asks for, and return the plan that they were.

    Nothing is done if the plan has refusals. Raises StoppedError, DocumentError, ManagementError or TopologyError.
    """
    vhosts = [exchange.vhost for exchange in document]
    plan = make_plan(document, await broker.states(vhosts))
    if plan.refusals:
        return plan
    steps = plan.steps
    for done, (vhost, step) in enumerate(steps):
        try:
            await lock.check()
            await take(broker, vhost, step)
        except (ManagementError, LockLostError) as error:
            raise StoppedError(_stopped(steps, done, error)) from error
        say(f"[{done + 1}/{len(steps)}] {step}{_where(vhost, vhosts)}")
    if steps:
        await _check(broker, document)
    return plan


async def _check(broker: Broker, document: Sequence[Sharded]) -> None:
    """Raise StoppedError unless the management API comes to show that all is as a file says; it may lag."""
    for look in range(_LOOKS):
        left = make_plan(document, await broker.states(exchange.vhost for exchange in document))
        if not left.steps and not left.refusals:
            return
        if look < _LOOKS - 1:
            await asyncio.sleep(_PAUSE)
    lines = [*(str(step) for _, step in left.steps), *left.refusals]
    raise StoppedError("\n".join(["all steps were taken, and the management API does not show all of it:", *lines]))


def _where(vhost: str, vhosts: Sequence[str]) -> str:
    return f" in virtual host {vhost}" if len(set(vhosts)) > 1 else ""


async def take(broker: Broker, vhost: str, step: Step) -> None:
    """Take one step. Raises ManagementError: RefusedError if the broker refuses it."""
    method, path, body = request_of(vhost, step)
    try:
        await broker.api.change(method, path, body)
    except RefusedError as error:
        if error.status != 404 or not isinstance(step, Unbind):
            raise


def request_of(vhost: str, step: Step) -> tuple[str, list[str], Mapping[str, object] | None]:
    """Return the request to the management API that takes a step: its method, path and body."""
    match step:
        case DeclareQueue():
            body: dict[str, object] = {"durable": True, "auto_delete": False, "arguments": dict(step.arguments)}
            if step.node is not None:
                body["node"] = step.node
            return "PUT", ["queues", vhost, step.name], body
        case DeclareExchange():
            body = {"type": step.type, "durable": True, "auto_delete": False, "internal": False}
            return "PUT", ["exchanges", vhost, step.name], body | {"arguments": dict(step.arguments)}
        case Bind():
            body = {"routing_key": step.key, "arguments": {}}
            return "POST", _binding(vhost, step), body
        case Unbind():
            return "DELETE", [*_binding(vhost, step), step.properties_key], None


def _binding(vhost: str, step: Bind | Unbind) -> list[str]:
    return ["bindings", vhost, "e", step.source, step.destination.kind[0], step.destination.name]


def _stopped(steps: Sequence[tuple[str, Step]], done: int, error: Exception) -> str:
    """Return what to tell when a step has failed, in lines."""
    _, step = steps[done]
    why = str(error)
    if isinstance(error, RefusedError):
        why = f"the broker refused: {error.reason}"
        if error.status in (401, 403):
            why += f" ({_needed(step)})"
    lines = [f"step {done + 1} of {len(steps)}, {step}: {why}"]
    lines += ["done:", *(f"  {each}" for _, each in steps[:done])] if done else ["done: nothing"]
    lines += ["not done:", *(f"  {each}" for _, each in steps[done:])]
    lines.append("nothing needs to be undone: once the cause is mended, apply again, and it goes on from here")
    return "\n".join(lines)


def _needed(step: Step) -> str:
    """Return the rights that a step needs."""
    match step:
        case DeclareQueue():
            more = (
                ", write on its dead-letter exchange and read on it"
                if "x-dead-letter-exchange" in step.arguments
                else ""
            )
            return f"the user needs configure on {step.name!r}{more}"
        case DeclareExchange():
            other = step.arguments.get("alternate-exchange")
            more = f", read on it and write on {other!r}" if other else ""
            return f"the user needs configure on {step.name!r}{more}"
        case _:
            return f"the user needs read on {step.source!r} and write on {step.destination.name!r}"
