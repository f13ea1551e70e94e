"""The connections for the groups of one virtual host, on a broker that does not answer."""

import asyncio
import logging

import pytest
from aio_pika.abc import AbstractConnection

from proxy.groups.membership import MOST_ANSWERS, Line


async def test_so_many_answers_are_on_their_way_at_once_and_others_are_not_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their askers have given orders without end, and the broker answers none of this sidecar's requests."""
    caplog.set_level(logging.WARNING)

    async def connect() -> AbstractConnection:
        await asyncio.Event().wait()
        raise AssertionError

    line = Line("/", connect)
    answers = [asyncio.create_task(line.answer("amq.rabbitmq.reply-to.x", b"{}")) for _ in range(MOST_ANSWERS + 5)]
    done, pending = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (5, MOST_ANSWERS)
    assert [record.getMessage() for record in caplog.records] == [
        f"virtual host '/': answers to operators are not sent, 1 so far, as {MOST_ANSWERS} others are on their way"
    ]
    await asyncio.wait(pending)
    # The broker has not answered in time, and there is room again.
    further = asyncio.create_task(line.answer("amq.rabbitmq.reply-to.x", b"{}"))
    done, pending = await asyncio.wait([further], timeout=0.1)
    assert (done, pending) == (set(), {further})
    await further
    await line.aclose()
