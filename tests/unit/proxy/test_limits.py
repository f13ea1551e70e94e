"""Limits: who is refused, who waits, and in which order."""

import asyncio

from proxy.limits import Limits


def test_requests_are_refused_at_the_limit() -> None:
    limits = Limits(2, 100)
    limits.take(1, 60)
    assert limits.full(1, 40) == ""
    assert limits.full(1, 41) == "60 bytes are in flight, max_in_flight_bytes is 100"
    limits.take(1, 40)
    assert limits.full(1, 0) == "2 messages are in flight, max_in_flight is 2"
    limits.give(2, 100)
    assert limits.full(1, 1000) == ""


def test_a_batch_has_half_whatever_bytes_requests_hold() -> None:
    limits = Limits(4, 100)
    limits.take(1, 100)
    assert limits.has_room
    limits.take_batched(10)
    assert limits.has_room
    limits.take_batched(10)
    assert not limits.has_room
    limits.give_batched(10)
    limits.take_batched(40)
    assert not limits.has_room


def test_a_batch_has_what_single_messages_leave() -> None:
    limits = Limits(8, 100)
    limits.take(7, 0)
    limits.take_batched(1)
    assert not limits.has_room
    limits.give(1, 0)
    assert limits.has_room


def test_one_message_of_a_batch_always_may() -> None:
    limits = Limits(1, 1)
    assert limits.has_room
    limits.take_batched(1000)
    assert not limits.has_room


async def test_those_who_wait_take_turns() -> None:
    limits = Limits(2, 100)
    limits.take_batched(1)
    order: list[int] = []

    async def wait(number: int, takes: bool) -> None:
        await limits.room()
        order.append(number)
        if takes:
            limits.take_batched(1)

    # The second lets his turn go, and the third is the next.
    tasks = [asyncio.create_task(wait(number, number != 1)) for number in range(4)]
    await asyncio.sleep(0)
    for number in (0, 2, 3):
        assert number not in order
        limits.give_batched(1)
        await asyncio.wait_for(tasks[number], 1)
    assert order == [0, 1, 2, 3]


async def test_who_leaves_passes_his_turn_on() -> None:
    limits = Limits(2, 100)
    limits.take_batched(1)
    first, second = (asyncio.create_task(limits.room()) for _ in range(2))
    await asyncio.sleep(0)
    limits.give_batched(1)
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert first.cancelled()
