"""The end of an auto-delete exchange that some bind a queue to while others take the last binding away.

The exchange of a group's beats is used like that, so it is not auto-delete. No sidecar takes part.
"""

import asyncio
import contextlib
import secrets
import time

import aio_pika
import pytest
from aiormq.exceptions import ChannelNotFoundEntity, ConnectionInternalError

from testbed import SetupError
from testbed.readiness import answering_version
from tests.integration.broker_api import BrokerApi
from tests.integration.consuming import behaviour
from tests.integration.own_node import own_node, private_only

pytestmark = [private_only, pytest.mark.long, pytest.mark.versions]

MEMBERS = 4
SECONDS = 60.0
"""How long they come and go. The fault came after 0.4 to 8 s in four tries."""


async def come_and_go(url: str, until: float, *, auto_delete: bool) -> None:
    """Bind a queue to the exchange and delete the queue, again and again. Raises the error of a broken exchange."""
    async with await aio_pika.connect(url) as connection:
        while time.monotonic() < until:
            # It may be deleted between its declaration and the binding.
            with contextlib.suppress(ChannelNotFoundEntity):
                channel = await connection.channel(publisher_confirms=False)
                exchange = await channel.declare_exchange(
                    "beats", "fanout", durable=not auto_delete, auto_delete=auto_delete
                )
                queue = await channel.declare_queue(secrets.token_hex(8), exclusive=True, auto_delete=True)
                await queue.bind(exchange)
                await queue.delete(if_unused=False, if_empty=False)
                await channel.close()


async def broken_after(url: str, *, auto_delete: bool) -> float | None:
    """Return after how many seconds the exchange was broken, and check that it stays so; None if it was not."""
    began = time.monotonic()
    took = None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(MEMBERS):
                group.create_task(come_and_go(url, began + SECONDS, auto_delete=auto_delete))
    except* ConnectionInternalError:
        took = time.monotonic() - began
    if took is not None:
        with pytest.raises(ConnectionInternalError):
            await come_and_go(url, time.monotonic() + 1, auto_delete=auto_delete)
    return took


def test_an_auto_delete_exchange_is_broken_for_good_on_4_3_and_the_node_does_not_start_again() -> None:
    """RabbitMQ keeps a record without an exchange. Its plugin for sharding reads all exchanges when a node starts."""
    with own_node("") as (node, _):
        is_concerned = behaviour(answering_version(node.amqp_url, node.management_url)).breaks_auto_delete
        took = asyncio.run(broken_after(node.amqp_url, auto_delete=True))
        print(f"broken after {took} s")
        assert (took is not None) == is_concerned
        node.stop()
        if not is_concerned:
            node.start()
            return
        with pytest.raises(SetupError, match="rabbit_policy:get/2"):
            node.start()


def test_an_exchange_that_stays_is_not_broken() -> None:
    with own_node("") as (node, _):
        assert asyncio.run(broken_after(node.amqp_url, auto_delete=False)) is None
        node.stop()
        node.start()
        assert BrokerApi(node.management_url).ask("GET", "exchanges", "/", "beats")["durable"]
