"""`ring-proxy group EXCHANGE release|skip|dead-letter KEY`: an operator's order, sent through the broker as a user."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.groups.operators import Act, Answer, Order
from proxy.settings.config import Settings
from proxy.settings.credentials import of_url
from proxy.settings.files import Files

ACTS: Final = {
    Act.RELEASE: "try the first message of a key in series at once, with all its tries again",
    Act.SKIP: "ack the first message of a key in series, which is lost, so that its key goes on",
    Act.DEAD_LETTER: "publish the first message of a key in series as a dead letter, so that its key goes on",
}
"""The parts of the command, and what each does."""

_DONE: Final = {
    Act.RELEASE: "released",
    Act.SKIP: "acked and so lost",
    Act.DEAD_LETTER: "publishing, and acking once that is confirmed,",
}
"""The words for what was done."""

_ANSWERED_WITHIN: Final = 5.0
"""Seconds in which a sidecar must answer."""

_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's name for the consumer of a channel that awaits answers."""


def run(settings: Settings, sidecar: str, vhost: str | None, exchange: str, act: Act, key: str) -> str:
    """Order what becomes of the first message of a key; return a line that says what was done.

    `sidecar` is the URL of an admin listener that tells of the key, and `key` its value or its hash. Without `vhost`
    it is the sidecar's default one. Raises QuestionError where it was not done, or where that is not known.
    """
    if vhost is None:
        vhost = str(rings(sidecar)["default_vhost"])
    answer = ask(sidecar, f"/groups/{quote(vhost, safe='')}/{quote(exchange, safe='')}/keys")
    try:
        order = _order(answer, act, key)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({error!r}); {WHICH}") from None
    if not (orders := answer.get("orders")):
        raise QuestionError(f"{sidecar}: takes no orders for the group {exchange!r}: its groups_operators is empty")
    why = asyncio.run(_sent(settings, vhost, str(orders), order))
    if why:
        raise QuestionError(f"{act}: not done: {why}")
    return f"{act}: {_DONE[act]} the message {order.fingerprint} of shard {order.shard}"


def _order(answer: Mapping[str, Any], act: Act, key: str) -> Order:
    """Return the order to do something to a key that waits, by a sidecar's answer about its keys.

    `key` is the key or its hash. Raises QuestionError if no key or several keys of the answer match.
    """
    found = [each for each in answer["keys"] if key in (each["key"], each["key_hash"])]
    if not found:
        elsewhere = ", ".join(sorted({str(each["host"]) for each in answer["elsewhere"] if each["host"]}))
        more = f"; other shards are at {elsewhere}" if elsewhere else ""
        raise QuestionError(f"KEY: {key!r} does not wait at this sidecar{more}")
    if len(found) > 1:
        hashes = ", ".join(each["key_hash"] for each in found)
        raise QuestionError(f"KEY: {key!r} is what is shown of several keys; give the hash of one of them: {hashes}")
    (one,) = found
    told = {name: one[name] for name in ("shard", "key_hash", "fingerprint")}
    return msgspec.convert(told | {"act": act}, Order)


async def _sent(settings: Settings, vhost: str, exchange: str, order: Order) -> str:
    """Publish an order and await its answer; return why it was not done.

    Raises QuestionError where that is not known.
    """
    # Imported only where they are needed: aio-pika takes 10 MiB of memory.
    import aio_pika
    from aio_pika.abc import AbstractIncomingMessage
    from aiormq.exceptions import PublishError

    from proxy.journal.stream import connector

    files = Files(settings)
    user, _ = of_url(settings.broker_url)
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(message: AbstractIncomingMessage) -> None:
        if not answered.done():
            answered.set_result(message.body)

    message = aio_pika.Message(msgspec.json.encode(order), user_id=user, reply_to=_REPLY_TO)
    try:
        async with files.logging_in():
            connection = await connector(settings, files, vhost, "ringproxy operator")()
    except OSError as error:
        raise QuestionError(f"broker_url: {error}") from None
    try:
        channel = await connection.channel(on_return_raises=True)
        await (await channel.get_queue(_REPLY_TO, ensure=False)).consume(take, no_ack=True)
        orders = await channel.get_exchange(exchange, ensure=False)
        await orders.publish(message, "", timeout=_ANSWERED_WITHIN)
        async with asyncio.timeout(_ANSWERED_WITHIN):
            return msgspec.json.decode(await answered, type=Answer).why
    except PublishError:
        why = "none has a member, or the log of the one that has says which right it lacks"
        raise QuestionError(f"no sidecar takes the orders of the exchange {exchange!r}: {why}") from None
    except (aio_pika.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError) as error:
        raise QuestionError(f"the broker refuses the order to the exchange {exchange!r}: {error}") from None
    except TimeoutError:
        why = f"no sidecar has answered in {_ANSWERED_WITHIN:g} s, so look at the key once more"
        raise QuestionError(f"{why}, and at whether groups_operators names the user {user!r}") from None
    finally:
        await connection.close()
