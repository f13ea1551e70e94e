"""The command `ring-proxy topology`: its arguments, and what each of its parts does and prints."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from proxy.process.logs import catch_all, escaped, install
from proxy.settings.config import Settings
from proxy.settings.parse import Address, ConfigError, parse_address, parse_number
from proxy.shards import plan_text
from proxy.shards.apply import StoppedError, apply
from proxy.shards.broker import LockedError, LockLostError, locked, reached
from proxy.shards.document import DocumentError, load
from proxy.shards.export import ExportError, export
from proxy.shards.fence import fence
from proxy.shards.fleet import FleetError
from proxy.shards.generation import standing
from proxy.shards.journal import JournalError, moved_of_plan
from proxy.shards.plan import Plan, make_plan
from proxy.shards.reshard import Manner, abort, reshard
from proxy.shards.retire import Retirement, retire
from proxy.shards.retire_group import GroupRetirement, retire_group
from proxy.shards.retirement import RetireError
from proxy.shards.watch import watch
from proxy.topology.bindings import TopologyError
from proxy.topology.management import ManagementError

CHANGES, FAILED = 1, 2
"""Exit statuses: there is something to do; nothing could be told, or not all could be done."""

SETTINGS = (
    *("broker_url", "broker_password_file", "broker_addresses", "management_url", "management_password_file"),
    *("ca_file", "client_cert_file", "client_key_file", "management_timeout"),
)
"""The settings that the parts take as flags; the others of a configuration file do nothing here."""


_PATIENCE = 600.0
"""Seconds that `retire` waits unless it is told otherwise."""


WATCHING = ("sync_interval", "admin_listen", "host_names", "log_level", "log_format")
"""The settings that `apply` takes besides, for `--watch`."""


class Part(NamedTuple):
    """One part of the command, such as `ring-proxy topology plan`."""

    name: str
    do: Callable[[Settings, argparse.Namespace], Awaitable[int]]
    """Does the part, and returns its exit status."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    help: str
    statuses: Mapping[int, str]
    """The meaning of each exit status of the part, but for those that every command has."""
    settings: tuple[str, ...] = SETTINGS
    """The settings that the part takes as flags."""


def run(part: Part, settings: Settings, options: argparse.Namespace) -> int:
    """Run one part, and return its exit status. A fault that stops it goes to standard error, a line for each."""

    async def done() -> int:
        return await part.do(settings, options)

    try:
        return asyncio.run(done())
    except BrokenPipeError:
        raise  # The reader of the output has seen enough, which is no fault of this command.
    except (DocumentError, StoppedError) as error:
        _complain(*error.lines)
    except (RetireError, FleetError) as error:
        _complain(str(error), "nothing was changed")
    except (ManagementError, TopologyError, LockedError, LockLostError, ExportError, JournalError, OSError) as error:
        _complain(str(error))
    return FAILED


def _complain(*lines: str) -> None:
    for line in lines:
        print(f"ring-proxy: {escaped(line)}", file=sys.stderr)


def _say(line: str) -> None:
    print(escaped(line), flush=True)


def _tell(line: str) -> None:
    """Print a line of progress at once, or nothing any more if its reader is gone: what was begun goes on."""
    try:
        _say(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _read(settings: Settings, file: Path) -> Plan:
    document = load(file)
    async with reached(settings) as broker:
        return make_plan(document, await broker.states(exchange.vhost for exchange in document))


async def _plan(settings: Settings, options: argparse.Namespace) -> int:
    plan = await _read(settings, options.file)
    journalled = {} if options.journal is None else moved_of_plan(options.journal, plan)
    if options.json:
        print(json.dumps(plan_text.as_json(plan, journalled), indent=2))
    else:
        for line in plan_text.as_text(plan, journalled):
            _say(line)
    if plan.refusals:
        return FAILED
    return CHANGES if plan.steps else 0


async def _check(settings: Settings, options: argparse.Namespace) -> int:
    plan = await _read(settings, options.file)
    for line in plan_text.drift(plan):
        _say(line)
    _say(plan_text.summary(plan))
    return CHANGES if plan.steps or plan.refusals else 0


async def _apply(settings: Settings, options: argparse.Namespace) -> int:
    if options.watch:
        if options.abort:
            _complain("--watch: it does not go with --abort, which takes one change back")
            return FAILED
        install(settings.log_level, settings.log_format)
        catch_all()
        await watch(settings, options.file, _manner(options) if options.ordered else None)
        return 0
    if options.ordered or options.abort:
        return await _apply_ordered(settings, options)
    document = load(options.file)
    async with (
        reached(settings) as broker,
        locked(broker, (exchange.vhost for exchange in document), "apply") as lock,
    ):
        plan = await apply(broker, lock, document, _tell)
        if not plan.refusals:
            await fence(broker, document, _tell)
    if plan.refusals:
        _complain(*plan.refusals, "nothing was changed")
        return FAILED
    for warning in plan.warnings:
        _tell(f"take care: {warning}")
    _tell(f"{len(plan.steps)} steps done" if plan.steps else "nothing to do")
    return 0


async def _apply_ordered(settings: Settings, options: argparse.Namespace) -> int:
    document, manner = load(options.file), _manner(options)
    async with (
        reached(settings) as broker,
        locked(broker, (exchange.vhost for exchange in document), "apply --ordered") as lock,
    ):
        for exchange in document:
            if options.abort:
                await abort(broker, lock, exchange, _tell)
            else:
                await reshard(broker, lock, exchange, manner, _tell)
    return 0


def _manner(options: argparse.Namespace) -> Manner:
    by_empty = options.drained_by == "empty"
    nodes = dict(options.node)
    return Manner(options.sidecar, options.no_sidecars, nodes, options.timeout, options.unconfirmed, by_empty)


async def _status(settings: Settings, options: argparse.Namespace) -> int:
    vhost = options.vhost or settings.default_vhost
    async with reached(settings) as broker:
        state = (await broker.states([vhost]))[vhost]
    if options.exchange not in state.exchanges:
        _complain(f"virtual host {vhost!r} has no exchange {options.exchange!r}")
        return FAILED
    for line in standing(options.exchange, state):
        _say(line)
    return CHANGES if len(state.generations(options.exchange)) > 1 else 0


async def _export(settings: Settings, options: argparse.Namespace) -> int:
    vhost = options.vhost or settings.default_vhost
    async with reached(settings) as broker:
        states = await broker.states([vhost])
    print(export(states[vhost], options.exchange), end="")
    return 0


async def _retire(settings: Settings, options: argparse.Namespace) -> int:
    vhost = options.vhost or settings.default_vhost
    what = Retirement(
        vhost, options.exchange, options.queue, options.keep, options.sidecar, options.no_sidecars, options.timeout
    )
    async with reached(settings) as broker, locked(broker, [vhost], "retire") as lock:
        await retire(broker, lock, what, _tell)
    return 0


async def _retire_group(settings: Settings, options: argparse.Namespace) -> int:
    vhost = options.vhost or settings.default_vhost
    what = GroupRetirement(vhost, options.exchange, options.group, options.keep, options.drop, options.timeout)
    async with reached(settings) as broker, locked(broker, [vhost], "retire-group") as lock:
        await retire_group(broker, lock, what, _tell)
    return 0


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", type=Path, help="the topology file")


def _add_apply(command: argparse.ArgumentParser) -> None:
    _add_file(command)
    text = "go on until SIGTERM: look every sync_interval, and give nodes that have joined their shards"
    command.add_argument("--watch", action="store_true", help=text)
    text = (
        "change the number of shards, or their weights, with each key's order kept, by a new generation of shards that "
        "groups consume once the old ones are drained"
    )
    command.add_argument("--ordered", action="store_true", help=text)
    text = "take back a generation that --ordered has begun to make, as long as no sidecar routes by it"
    command.add_argument("--abort", action="store_true", help=text)
    text = "with --ordered, go on though clients publish without confirms, whose late messages may come out of order"
    command.add_argument("--unconfirmed", action="store_true", help=text)
    text = (
        "with --ordered, when an old queue is done: by a marker behind its messages, which only groups understand; or "
        "once it is empty and the programs that consume it by its own name have stopped (default: marker)"
    )
    command.add_argument("--drained-by", choices=("marker", "empty"), default="marker", help=text)
    text = "with --ordered, where a node of the cluster takes AMQP, if not at the host in its name"
    command.add_argument("--node", metavar="NODE=HOST:PORT", action="append", type=_node, default=[], help=text)
    _add_fleet(command)


def _add_plan(command: argparse.ArgumentParser) -> None:
    _add_file(command)
    command.add_argument("--json", action="store_true", help="print the plan as JSON")
    text = "a journal_dir of sidecars: tell how many messages a day move, as its newest 24 hours say"
    command.add_argument("--journal", metavar="DIR", type=Path, help=text)


def _add_retire(command: argparse.ArgumentParser) -> None:
    command.add_argument("exchange", metavar="EXCHANGE", help="name of the exchange")
    command.add_argument("queue", metavar="QUEUE", help="name of the shard's queue")
    _add_vhost(command)
    command.add_argument(
        "--keep", action="store_true", help="take the shard off the ring, and leave its queues with their messages"
    )
    _add_fleet(command)


def _add_fleet(command: argparse.ArgumentParser) -> None:
    """Add the arguments by which the sidecars of a fleet are asked."""
    text = (
        "admin listener of a sidecar that does not answer at its host and the default port; may be given several times"
    )
    command.add_argument("--sidecar", metavar="URL", action="append", default=[], help=text)
    text = "go on though no sidecar is connected to the cluster"
    command.add_argument("--no-sidecars", action="store_true", help=text)
    text = f"seconds to wait for the sidecars, and to retire a shard again for its queues (default: {_PATIENCE:g})"
    command.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=_PATIENCE, help=text)


def _node(text: str) -> tuple[str, Address]:
    """Return a node and its address. Raises ArgumentTypeError."""
    name, equals, address = text.partition("=")
    try:
        if not equals or "@" not in name:
            raise ConfigError(f"{text!r} is not NODE=HOST:PORT, such as rabbit@a=10.0.0.1:5672")
        return name, parse_address(address)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_retire_group(command: argparse.ArgumentParser) -> None:
    command.add_argument("exchange", metavar="EXCHANGE", help="name of the exchange")
    command.add_argument("group", metavar="GROUP", help="name of the group, such as audit for orders/audit")
    _add_vhost(command)
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--keep", action="store_true", help="unbind the group's queues, and leave them with their messages"
    )
    what.add_argument("--drop", action="store_true", help="delete the group's queues together with their messages")
    text = f"seconds to wait for the queues to be empty (default: {_PATIENCE:g})"
    command.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=_PATIENCE, help=text)


def _seconds(text: str) -> float:
    """Return a number of seconds. Raises ArgumentTypeError."""
    try:
        return parse_number(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("exchange", metavar="EXCHANGE", help="name of the exchange")
    _add_vhost(command)


def _add_vhost(command: argparse.ArgumentParser) -> None:
    text = "virtual host of the exchange (default: the path of broker_url)"
    command.add_argument("--vhost", metavar="NAME", help=text)


_DRIFT = {0: "there is nothing to do", 1: "there is something to do"}

PARTS = (
    Part(
        "plan",
        _plan,
        _add_plan,
        "show what a file would change, which keys would move, which messages wait in their old queues, and the rights "
        "that users need",
        _DRIFT,
    ),
    Part(
        "apply",
        _apply,
        _add_apply,
        "make the changes that plan shows",
        {0: "exchanges, queues and bindings are as the file says; with --watch, a signal ended the command"},
        SETTINGS + WATCHING,
    ),
    Part(
        "check",
        _check,
        _add_file,
        "compare a file with what exists, and print a line for each difference",
        {0: "exchanges, queues and bindings are as the file says", 1: "something differs"},
    ),
    Part(
        "retire",
        _retire,
        _add_retire,
        "take a shard off the ring, wait until every sidecar follows and its queue is empty, and delete the queue",
        {0: "the shard is gone, or with --keep off the ring"},
    ),
    Part(
        "retire-group",
        _retire_group,
        _add_retire_group,
        "take a group of an exchange away: unbind its queues, wait until they are empty, and delete them",
        {0: "the group is gone, or with --keep gets no more messages"},
    ),
    Part(
        "status",
        _status,
        _add_export,
        "show which generation of shards an exchange has, and how far a change to another one is",
        {0: "no change is under way", 1: "a change is under way"},
    ),
    Part(
        "export",
        _export,
        _add_export,
        "print a topology file for an exchange that exists",
        {0: "the file was printed"},
    ),
)
"""Every part of `ring-proxy topology`."""
