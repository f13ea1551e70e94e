"""Limits: who is refused, who waits, and in which order."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.http.admission.limits import Limits


def room(limits: Limits) -> bool:
    return limits.has_room


def test_requests_are_refused_at_the_limit() -> None:
    limits = Limits(2, 100)
    limits.take(2, 60)
    assert limits.full(40) == ""
    assert limits.full(41) == "60 bytes are in flight, max_in_flight_bytes is 100"
    limits.take(1, 40)
    assert limits.full(0) == "3 messages are in flight, max_in_flight is 2"
    limits.give(3, 100)
    assert limits.full(1000) == ""


def test_a_request_that_holds_bytes_is_refused_more_only_beside_others() -> None:
    limits = Limits(2, 100)
    limits.take(1, 80)
    assert limits.full(1000, 80) == ""
    limits.take(1, 10)
    assert limits.full(10, 80) == ""
    assert limits.full(11, 80) == "90 bytes are in flight, max_in_flight_bytes is 100"
    # Its message was let in before.
    limits.take(1, 0)
    assert limits.full(10, 80) == ""


def test_a_batch_has_half_whatever_bytes_requests_hold() -> None:
    limits = Limits(4, 100)
    limits.take(1, 100)
    assert room(limits)
    limits.take_batched(10)
    assert room(limits)
    limits.take_batched(10)
    assert not room(limits)
    limits.give_batched(10)
    limits.take_batched(40)
    assert not room(limits)


def test_batches_leave_half_of_the_bytes_whatever_their_requests_hold() -> None:
    limits = Limits(100, 100)
    limits.take_for_batch(30)
    assert limits.full(7, batch=True) == ""
    why = "requests with batches hold 30 bytes, and may hold 37.5% of max_in_flight_bytes"
    assert limits.full(8, batch=True) == why
    assert limits.full(70) == ""
    # The only one may go on, as far as there is room.
    assert limits.full(70, 30, batch=True) == ""
    limits.take(0, 1)
    assert limits.full(70, 30, batch=True) == "31 bytes are in flight, max_in_flight_bytes is 100"
    limits.give(0, 1)
    # Its messages have what is left, but one may always go.
    limits.take_batched(10)
    assert room(limits)
    limits.take_batched(10)
    assert not room(limits)
    limits.give_batched(10)
    limits.give_batched(10)
    limits.take_for_batch(70)
    assert room(limits)
    limits.give_for_batch(100)
    assert (limits.messages, limits.bytes) == (0, 0)


async def test_a_batch_waits_until_anothers_request_has_ended() -> None:
    limits = Limits(100, 100)
    limits.take_for_batch(50)
    limits.take_batched(1)
    waiting = asyncio.create_task(limits.room())
    await idle()
    assert not waiting.done()
    limits.give_for_batch(50)
    await asyncio.wait_for(waiting, 1)


def test_a_batch_has_what_single_messages_leave() -> None:
    limits = Limits(8, 100)
    limits.take(7, 0)
    limits.take_batched(1)
    assert not room(limits)
    limits.give(1, 0)
    assert room(limits)


def test_one_message_of_a_batch_always_may() -> None:
    limits = Limits(1, 1)
    assert room(limits)
    limits.take_batched(1000)
    assert not room(limits)


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


async def idle() -> None:
    """Everything that can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_none_starves_beside_others_that_take_all_they_can() -> None:
    limits = Limits(20, 1000)
    taken: Counter[int] = Counter()

    async def batch(number: int) -> None:
        while True:
            if not limits.has_room:
                await limits.room()
            limits.take_batched(1)
            taken[number] += 1

    tasks = [asyncio.create_task(batch(number)) for number in range(4)]
    for _ in range(100):
        await idle()
        assert limits.messages == 10
        for _ in range(10):
            limits.give_batched(1)
    assert taken.total() == 1000
    assert all(200 <= taken[number] <= 300 for number in range(4)), taken
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_who_comes_later_goes_later() -> None:
    limits = Limits(2, 100)
    limits.take_batched(1)

    async def come() -> None:
        await limits.room()
        limits.take_batched(1)

    first = asyncio.create_task(come())
    await idle()
    limits.give_batched(1)
    # There is room, but it is the first one's.
    assert not room(limits)
    second = asyncio.create_task(come())
    await asyncio.wait_for(first, 1)
    await idle()
    assert not second.done()
    limits.give_batched(1)
    await asyncio.wait_for(second, 1)


steps = st.lists(
    st.tuples(st.sampled_from(["come", "come", "end", "end", "leave", "request", "answer"]), st.integers(0, 9)),
    max_size=60,
)


@given(steps, st.integers(1, 12), st.integers(1, 40))
def test_nobody_waits_while_there_is_room_and_nobody_overtakes(
    steps: list[tuple[str, int]], most: int, most_bytes: int
) -> None:
    asyncio.run(life(steps, most, most_bytes))


async def life(steps: list[tuple[str, int]], most: int, most_bytes: int) -> None:
    limits = Limits(most, most_bytes)
    under_way: list[int] = []
    """Sizes."""
    waiting: list[asyncio.Task[None]] = []
    admitted: list[int] = []
    held: list[int] = []
    came = 0

    async def come(number: int, size: int) -> None:
        await limits.room()
        few = len(under_way) * 2 < most and limits.messages < most
        assert not under_way or (few and sum(under_way) * 2 < most_bytes)
        limits.take_batched(size)
        under_way.append(size)
        admitted.append(number)

    for what, number in steps:
        match what:
            case "come":
                waiting.append(asyncio.create_task(come(came, number)))
                came += 1
            case "end" if under_way:
                limits.give_batched(under_way.pop(number % len(under_way)))
            case "leave" if waiting:
                waiting[number % len(waiting)].cancel()
            case "request":
                limits.take(1, number)
                held.append(number)
            case "answer" if held:
                limits.give(1, held.pop())
        if number % 2:
            await idle()
            waiting = [task for task in waiting if not task.done()]
            assert not (waiting and limits._has_room())
            assert (limits.messages, limits.bytes) == (len(held) + len(under_way), sum(held) + sum(under_way))
    await idle()
    while waiting := [task for task in waiting if not task.done()]:
        assert under_way
        limits.give_batched(under_way.pop())
        await idle()
    assert admitted == sorted(admitted)


async def test_higher_limits_let_in_who_waits_and_lower_ones_end_nothing() -> None:
    limits = Limits(2, 100)
    limits.take_batched(10)
    waiting = asyncio.create_task(limits.room())
    await asyncio.sleep(0)
    limits.resize(1, 10)
    await asyncio.sleep(0)
    assert not waiting.done()
    limits.resize(3, 100)
    await waiting
    limits.take(3, 50)
    limits.resize(2, 20)
    assert limits.full(0) == "4 messages are in flight, max_in_flight is 2"
    limits.give(2, 0)
    assert limits.full(1) == "60 bytes are in flight, max_in_flight_bytes is 20"
