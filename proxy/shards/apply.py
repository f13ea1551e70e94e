"""Take the steps of a plan, one after the other, while the lock is held."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from proxy.shards.broker import Broker, Lock, LockLostError
from proxy.shards.plan import Plan, make_plan
from proxy.shards.shard import Sharded
from proxy.shards.steps import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Removal,
    Step,
    Unbind,
)
from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError, RefusedError

_LOOKS, _PAUSE = 10, 1.0
"""How often the result is looked at, and the seconds in between: a node of a cluster may show a change later."""

Say = Callable[[str], None]
"""A function that shows a line of progress."""


class StoppedError(Exception):
    """Something failed in the middle; `lines` say what, why, what was done, what was not, and how to go on."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Take the lines, at least one."""
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


async def apply(broker: Broker, lock: Lock, document: Sequence[Sharded], say: Say, *, moves: bool = True) -> Plan:
    """Take the steps that a file asks for, and return the plan that they were.

    Nothing is done if the plan has refusals. With `moves` off, StoppedError is raised if it would move keys. Raises
    StoppedError, DocumentError, ManagementError or TopologyError.
    """
    vhosts = [exchange.vhost for exchange in document]
    plan = make_plan(document, await broker.states(vhosts))
    if plan.refusals:
        return plan
    if not moves and any(planned.moves for planned in plan.exchanges):
        raise StoppedError(["keys would move out of order: somebody else has changed the shards meanwhile"])
    steps = plan.steps
    for done, (vhost, step) in enumerate(steps):
        try:
            await lock.check()
            await take(broker, vhost, step)
        except (ManagementError, LockLostError) as error:
            how = "nothing needs to be undone: once the cause is mended, apply again, and it goes on from here"
            raise stopped([each for _, each in steps], done, error, how) from error
        say(f"[{done + 1}/{len(steps)}] {step}{_where(vhost, vhosts)}")
    if steps:
        await _check(broker, document)
    return plan


async def _check(broker: Broker, document: Sequence[Sharded]) -> None:
    """Raise StoppedError unless the management API comes to show that all is as a file says; it may lag, or fail."""
    lines: list[str] = []
    for look in range(_LOOKS):
        if look:
            await asyncio.sleep(_PAUSE)
        try:
            left = make_plan(document, await broker.states(exchange.vhost for exchange in document))
        except (ManagementError, TopologyError) as error:
            lines = [str(error)]
        else:
            lines = [*(str(step) for _, step in left.steps), *left.refusals]
            if not lines:
                return
    raise StoppedError(
        [
            "all steps were taken, and the management API does not show that all is as the file says:",
            *(f"  {line}" for line in lines),
            "look again with: ring-proxy topology check; if something is left to do, apply again",
        ]
    )


def _where(vhost: str, vhosts: Sequence[str]) -> str:
    return f" in virtual host {vhost}" if len(set(vhosts)) > 1 else ""


async def take(broker: Broker, vhost: str, step: Step | Removal) -> None:
    """Take one step. Raises ManagementError: RefusedError if the broker refuses it."""
    method, path, body, query = _request_of(vhost, step)
    try:
        await broker.api.change(method, path, body, query)
    except RefusedError as error:
        if error.status != 404 or not isinstance(step, Removal):
            raise


class _Request(NamedTuple):
    """A request to the management API that takes a step, as `Management.change` wants it."""

    method: str
    path: list[str]
    body: Mapping[str, object] | None = None
    query: str = ""


def _request_of(vhost: str, step: Step | Removal) -> _Request:
    match step:
        case DeclareQueue():
            body: dict[str, object] = {"durable": True, "auto_delete": False, "arguments": dict(step.arguments)}
            if step.node is not None:
                body["node"] = step.node
            return _Request("PUT", ["queues", vhost, step.name], body)
        case DeclareExchange():
            body = {"type": step.type, "durable": True, "auto_delete": False, "internal": False}
            if step.node is not None:
                body["node"] = step.node
            return _Request("PUT", ["exchanges", vhost, step.name], body | {"arguments": dict(step.arguments)})
        case Bind():
            arguments = step.promise.as_arguments() if step.promise is not None else {}
            return _Request("POST", _binding(vhost, step), {"routing_key": step.key, "arguments": arguments})
        case Unbind():
            return _Request("DELETE", [*_binding(vhost, step), step.properties_key])
        case DeleteQueue():
            return _Request("DELETE", ["queues", vhost, step.name], None, "?if-empty=true" if step.if_empty else "")
        case DeleteExchange():
            return _Request("DELETE", ["exchanges", vhost, step.name])


def _binding(vhost: str, step: Bind | Unbind) -> list[str]:
    return ["bindings", vhost, "e", step.source, step.destination.kind[0], step.destination.name]


def stopped(
    steps: Sequence[Step | Removal], done: int, error: Exception, how_to_go_on: str, *, waiting: bool = False
) -> StoppedError:
    """Return the error for steps of which the first `done` were taken, and the next one was not.

    With `waiting` it was not begun either: something failed that comes before it.
    """
    why = str(error)
    if isinstance(error, RefusedError):
        why = f"the broker refused: {error.reason}"
        if error.status in (401, 403):
            why += f" ({_needed(steps[done])})"
    lines = [why if waiting else f"step {done + 1} of {len(steps)}, {steps[done]}: {why}"]
    lines += ["done:", *(f"  {each}" for each in steps[:done])] if done else ["done: nothing"]
    lines += ["not done:", *(f"  {each}" for each in steps[done:])] if steps[done:] else ["not done: nothing"]
    return StoppedError([*lines, how_to_go_on])


def _needed(step: Step | Removal) -> str:
    """Return the rights that a step needs, in words."""
    match step:
        case DeclareQueue():
            other = step.arguments.get("x-dead-letter-exchange")
            more = "" if other is None else f", read on it and write on {other or 'amq.default'!r}"
            return f"the user needs configure on {step.name!r}{more}"
        case DeclareExchange():
            other = step.arguments.get("alternate-exchange")
            more = f", read on it and write on {other!r}" if other else ""
            return f"the user needs configure on {step.name!r}{more}"
        case DeleteQueue() | DeleteExchange():
            return f"the user needs configure on {step.name!r}"
        case Bind() | Unbind():
            return f"the user needs read on {step.source!r} and write on {step.destination.name!r}"
