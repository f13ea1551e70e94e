"""`ring-proxy group EXCHANGE pause|resume`: an operator's order about shards, kept in the broker for all sidecars."""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from proxy.commands.asking import QuestionError
from proxy.groups.pauses import Heeded, PauseOrder, Verb
from proxy.settings.config import Settings
from proxy.settings.credentials import of_url
from proxy.settings.files import Files
from proxy.topology.bindings import GROUP_NAME, PAUSES_SUFFIX, balancing

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

VERBS: Final = {
    Verb.PAUSE: "stop the consumers of all shards of the group, or of one, until they are resumed",
    Verb.RESUME: "have all shards of the group, or one, consumed again",
}
"""The parts of the command, and what each does."""

STATUSES: Final = {
    0: "the broker keeps the order, and every sidecar of the group has done it",
    1: "the broker keeps the order, and not every sidecar of the group has answered that it counts, or none has",
}

_ANSWERED_WITHIN: Final = 4.0
"""Seconds in which the sidecars must answer."""

_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's name for the consumer of a channel that awaits answers."""


class Told(NamedTuple):
    """The outcome of an order."""

    lines: Sequence[str]
    """The answer of each sidecar, for people."""
    status: int
    """The exit status."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the parts."""
    text = "only this shard, by the name of its queue (default: all shards, also those that come later)"
    command.add_argument("--shard", metavar="QUEUE", default="", help=text)
    # Without a default of its own: the one given before the part's name stays.
    text = "virtual host of the exchange (default: the path of broker_url)"
    command.add_argument("--vhost", metavar="NAME", default=argparse.SUPPRESS, help=text)


def run(settings: Settings, vhost: str | None, group: str, verb: Verb, shard: str) -> Told:
    """Have shards of a group paused or resumed; `shard` empty stands for all.

    Raises QuestionError where the order is not kept, or counts nowhere.
    """
    try:
        order = msgspec.convert(msgspec.to_builtins(PauseOrder(verb, group, time.time(), shard)), PauseOrder)
    except msgspec.ValidationError as error:
        raise QuestionError(f"{verb}: {error}") from None
    vhost = vhost or settings.default_vhost
    answers = asyncio.run(_sent(settings, vhost, order))
    if answers and all(answer.why for answer in answers):
        raise QuestionError(f"{verb}: {answers[0].host}: {answers[0].why}")
    what = f"shard {shard}" if shard else "all shards"
    lines = [f"{verb:<12} kept in virtual host {vhost}: {what} of the group {group}"]
    lines += sorted(f"{answer.host:<12} {_line(answer)}" for answer in answers)
    user, _ = of_url(settings.broker_url)
    if not answers:
        why = f"no sidecar with a member of {group} has a groups_operators that names {user!r}"
        lines.append(f"no answer    {why}: see that it does on all of them")
    sidecars = max((answer.sidecars for answer in answers), default=0)
    if (missing := sidecars - len(answers)) > 0:
        lines.append(
            f"no answer    {missing} of {sidecars} sidecars; see that groups_operators names {user!r} on all of them"
        )
    all_heed = bool(answers) and missing <= 0 and not any(answer.why for answer in answers)
    return Told(lines, 0 if all_heed else 1)


def _line(answer: Heeded) -> str:
    if answer.why:
        return f"goes on as before: {answer.why}"
    acks = f"; its clients have yet to ack {answer.unacked} messages of these" if answer.unacked else ""
    return f"paused: {', '.join(answer.paused) or 'none'}{acks}"


async def _balanced_by(connection: "AbstractConnection", group: str) -> str:
    """Return the name of the exchange by which a group is balanced, by whether there is an exchange of its name."""
    from aio_pika.exceptions import ChannelNotFoundEntity

    exchange, _, own = group.rpartition("/")
    if not exchange or not GROUP_NAME.fullmatch(own):
        return balancing(group, group)
    try:
        await (await connection.channel()).declare_exchange(group, passive=True)
    except ChannelNotFoundEntity:
        return balancing(exchange, group)
    return balancing(group, group)


async def _sent(settings: Settings, vhost: str, order: PauseOrder) -> list[Heeded]:
    """Have the broker keep an order, and return what sidecars answer. Raises QuestionError where it is not kept."""
    # Imported only where they are needed: aio-pika takes 10 MiB of memory.
    import aio_pika
    from aiormq.exceptions import PublishError

    from proxy.groups.pause_log import declare
    from proxy.journal.stream import connector

    files = Files(settings)
    user, _ = of_url(settings.broker_url)
    answers: list[Heeded] = []
    answered = asyncio.Event()

    async def take(message: "AbstractIncomingMessage") -> None:
        with contextlib.suppress(msgspec.DecodeError):
            answers.append(msgspec.json.decode(message.body, type=Heeded))
            if len(answers) >= max(answer.sidecars for answer in answers):
                answered.set()

    message = aio_pika.Message(
        msgspec.json.encode(order), user_id=user, reply_to=_REPLY_TO, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
    )
    try:
        async with files.logging_in():
            connection = await connector(settings, files, vhost, "ringproxy operator")()
    except OSError as error:
        raise QuestionError(f"broker_url: {error}") from None
    try:
        exchange = await _balanced_by(connection, order.group)
        for is_second in (False, True):
            channel = await connection.channel(on_return_raises=True)
            await (await channel.get_queue(_REPLY_TO, ensure=False)).consume(take, no_ack=True)
            pauses = await channel.get_exchange(f"{exchange}{PAUSES_SUFFIX}", ensure=False)
            try:
                await pauses.publish(message, "", mandatory=True, timeout=_ANSWERED_WITHIN)
                break
            except (PublishError, aio_pika.exceptions.ChannelNotFoundEntity):
                if is_second:
                    raise
                # No sidecar that heeds such orders has had a member of the group yet.
                await declare(await connection.channel(), exchange)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERED_WITHIN):
                await answered.wait()
        return answers
    except (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError) as error:
        raise QuestionError(f"the broker refuses the order: {error}") from None
    except TimeoutError:
        raise QuestionError(
            f"the broker has not confirmed the order in {_ANSWERED_WITHIN:g} s; give it again"
        ) from None
    finally:
        await connection.close()
