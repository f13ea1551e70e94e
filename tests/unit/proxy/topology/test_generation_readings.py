"""A sidecar's readings of an exchange of which a later generation of shards is made, switched to, and left alone."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.groups.shard_readings import ending, queues_of
from proxy.topology.bindings import Promise
from proxy.topology.generations import OtherShard
from proxy.topology.ring_cache import RingCache
from ring.destination import Destination
from tests.unit.proxy.fake_management import FakeManagement, binding
from tests.unit.proxy.topology.scheduling import SETTLE, Clock, Made, X, scheduling, warnings


def lane(generation: int, shard: int) -> str:
    return f"x.lane.g{generation}.{shard}" if generation > 1 else f"x.lane.{shard}"


def queue(generation: int, shard: int) -> str:
    return f"x.g{generation}.{shard}" if generation > 1 else f"x.{shard}"


def first(shard: int, *, promised: bool = False) -> dict[str, Any]:
    """The binding of `x` to a lane of generation 1."""
    arguments = Promise(queue(1, shard), (("x", queue(1, shard)),)).as_arguments() if promised else {}
    return binding(lane(1, shard), "1", "exchange") | {"arguments": arguments}


def later(generation: int, shard: int, of: int, *groups: str, weight: str = "1") -> dict[str, Any]:
    """The binding of `x` to a lane of a later generation, open to some groups."""
    opened = tuple((group, queue(generation, shard).replace("x", group.replace("/", "."), 1)) for group in groups)
    promise = Promise(queue(1, shard), opened, generation, of)
    return binding(lane(generation, shard), weight, "exchange") | {"arguments": promise.as_arguments()}


def lanes(fake: FakeManagement, generation: int, shards: int) -> None:
    """Declare the lanes of a generation, each bound to its queue."""
    for shard in range(shards):
        fake.exchange(lane(generation, shard), binding(queue(generation, shard), ""), type="fanout")


def bind(fake: FakeManagement, *bindings: dict[str, Any]) -> None:
    fake.bindings["/", "x"] += bindings


def weights(shards: int) -> dict[Destination, int]:
    return {Destination("queue", queue(1, shard)): 1 for shard in range(shards)}


async def read(made: Made, times: int = 1) -> None:
    for _ in range(times):
        await made.scheduler._again(X, "test")


async def settle(made: Made, clock: Clock) -> None:
    """Read the exchange again until the removals that the first reading sees have settled."""
    for _ in range(5):
        await read(made)
        clock.now += SETTLE / 2


def group(made: Made, name: str = "x") -> list[str]:
    return queues_of(made.entry, name, "x")


def consumed(generation: int, shards: int) -> list[str]:
    return [queue(generation, shard) for shard in range(shards)]


@pytest.fixture
def grown(fake: FakeManagement) -> FakeManagement:
    """An exchange with four shards of generation 1, and the lanes of six of generation 2, none of them bound yet."""
    lanes(fake, 1, 4)
    lanes(fake, 2, 6)
    fake.exchange("x", *map(first, range(4)))
    return fake


async def test_nothing_changes_until_the_last_lane_is_bound(
    grown: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        before, changed = made.entry.known, []
        made.router.on_change.append(lambda: changed.append(made.entry))
        for shard in range(5):
            bind(grown, later(2, shard, 6))
            await settle(made, clock)
            assert made.entry.known is before
            assert not changed
        assert (made.entry.generation, [(each.number, each.of) for each in made.entry.others]) == (1, [(2, 6)])
        assert ending(made.entry) == frozenset()
        bind(grown, later(2, 5, 6))
        await read(made)
        assert made.weights() == weights(6)
        assert {queue.name: lane for queue, lane in made.entry.lanes.items()} == {
            queue(1, shard): lane(2, shard) for shard in range(6)
        }
        assert (made.entry.generation, made.entry.made_with, len(changed)) == (2, 6, 1)
        assert [each.number for each in made.entry.others] == [1]
        assert ending(made.entry) == frozenset(consumed(1, 4))
        assert ending(replace(made.entry, restored=True)) is None
        assert made.entry.bindings.duplicates == ()
        assert made.entry.bindings.ignored == ()
        assert made.entry.changes[-1].what.startswith("generation 2 of 6 shards: +queue 'x.4' weight 1")
        assert not warnings(caplog)
        await settle(made, clock)
        assert made.weights() == weights(6)
        assert len(changed) == 1


async def test_fewer_shards_count_at_once(fake: FakeManagement) -> None:
    lanes(fake, 1, 6)
    lanes(fake, 2, 4)
    fake.exchange("x", *map(first, range(6)))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        bind(fake, *(later(2, shard, 4) for shard in range(4)))
        await read(made)
        assert made.weights() == weights(4)
        assert made.entry.lanes[Destination("queue", queue(1, 0))] == lane(2, 0)
        assert group(made) == consumed(1, 6)


async def test_the_same_shards_anew_are_a_change(fake: FakeManagement) -> None:
    lanes(fake, 1, 2)
    lanes(fake, 2, 2)
    fake.exchange("x", first(0), first(1))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        ring, changed = made.entry.known, []
        made.router.on_change.append(lambda: changed.append(True))
        bind(fake, later(2, 0, 2), later(2, 1, 2))
        await read(made)
        assert ring is not None
        assert made.entry.known is not None
        assert made.entry.known.ring is ring.ring
        assert (ring.queues, made.entry.known.queues) == ({}, {queue(1, n): queue(2, n) for n in range(2)})
        assert made.entry.known.fingerprint == ring.fingerprint == ring.journalled != made.entry.known.journalled
        assert made.entry.changes[-1].what == "generation 2 of 2 shards"
        assert set(made.entry.lanes.values()) == {lane(2, 0), lane(2, 1)}
        assert changed


async def test_a_large_generation_is_read_in_one_reading(fake: FakeManagement) -> None:
    lanes(fake, 1, 2)
    lanes(fake, 2, 40)
    fake.exchange("x", first(0), first(1))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        bind(fake, *(later(2, shard, 40) for shard in range(40)))
        await read(made)
        assert made.weights() == weights(40)
        fake.requests.clear()
        await read(made)
        assert sum("x.lane." in path for path in fake.requests) == 2 * 8


async def test_a_generation_is_not_the_ring_as_long_as_one_lane_is_none(
    grown: FakeManagement, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    grown.bindings["/", lane(2, 3)].clear()
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        bind(grown, *(later(2, shard, 6) for shard in range(6)))
        await settle(made, clock)
        assert (made.entry.generation, made.weights()) == (1, weights(4))
        assert made.entry.others[0].misfits == (lane(2, 3),)
        assert [line for line in warnings(caplog) if "is not the ring yet" in line] == [
            "exchange 'x' in virtual host '/': generation 2 of 6 shards is bound and is not the ring yet, because "
            "these are no lanes: 'x.lane.g2.3'"
        ]
        grown.bindings["/", lane(2, 3)].append(binding(queue(2, 3), ""))
        await read(made)
        assert (made.entry.generation, made.weights()) == (2, weights(6))


async def test_a_new_sidecar_takes_the_complete_generation_whose_lane_is_broken(grown: FakeManagement) -> None:
    grown.bindings["/", lane(2, 3)].clear()
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.generation == 2
        assert made.weights() == {d: 1 for d in weights(6) if d.name != "x.3"}


async def test_a_reading_that_lacks_a_lane_does_not_go_back(grown: FakeManagement, clock: Clock) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.generation == 2
        good = list(grown.bindings["/", "x"])
        for missing in (1, 6):
            grown.bindings["/", "x"] = good[:-missing]
            await read(made)
            assert (made.entry.generation, made.entry.made_with, made.weights()) == (2, 6, weights(6))
            grown.bindings["/", "x"] = good
            await settle(made, clock)
            assert (made.entry.generation, made.weights()) == (2, weights(6))


@pytest.mark.parametrize("missing", [1, 6])
async def test_a_generation_that_is_unbound_for_good_is_left(grown: FakeManagement, clock: Clock, missing: int) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        del grown.bindings["/", "x"][-missing:]
        await read(made)
        clock.now += SETTLE / 2
        await read(made)
        assert made.entry.generation == 2
        clock.now += SETTLE
        await read(made)
        assert (made.entry.generation, made.weights()) == (1, weights(4))
        assert made.entry.changes[-1].what.startswith("generation 1: ")


async def test_a_broken_lane_of_the_ring_does_not_bring_the_older_one_back(grown: FakeManagement, clock: Clock) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        grown.bindings["/", lane(2, 3)].clear()
        await settle(made, clock)
        assert made.entry.generation == 2
        assert made.weights() == {d: 1 for d in weights(6) if d.name != "x.3"}


async def test_the_last_generation_is_the_ring_also_without_all_its_lanes(grown: FakeManagement, clock: Clock) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        del grown.bindings["/", "x"][:4]
        await read(made)
        assert (made.entry.generation, made.weights()) == (2, weights(6))
        await settle(made, clock)
        del grown.bindings["/", "x"][-1]
        await settle(made, clock)
        assert (made.entry.generation, made.weights()) == (2, weights(5))
        assert made.entry.others == ()


async def test_an_exchange_made_anew_begins_anew(grown: FakeManagement) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        grown.vhosts.discard("/")
        exchanges = grown.exchanges.pop(("/", "x"))
        bindings = grown.bindings.pop(("/", "x"))
        await read(made)
        grown.vhosts.add("/")
        grown.exchanges["/", "x"], grown.bindings["/", "x"] = exchanges, bindings[:4]
        await read(made)
        assert (made.entry.generation, made.weights()) == (1, weights(4))


@pytest.mark.parametrize("promised", [False, True])
async def test_a_group_consumes_the_old_queues_and_the_new_ones_once_they_are_open(
    fake: FakeManagement, clock: Clock, promised: bool
) -> None:
    lanes(fake, 1, 4)
    lanes(fake, 2, 6)
    fake.exchange("x", *(first(shard, promised=promised) for shard in range(4)))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert group(made) == consumed(1, 4)
        bind(fake, *(later(2, shard, 6) for shard in range(6)))
        await read(made)
        assert made.entry.generation == 2
        for shard in range(4):
            fake.bindings["/", lane(1, shard)].clear()
        await settle(made, clock)
        assert group(made) == consumed(1, 4)
        assert made.entry.closed_to("x") == {"x": [queue(1, shard) for shard in range(6)]}
        bind(fake, later(2, 4, 6, "x"))
        await read(made)
        assert group(made) == sorted([*consumed(1, 4), queue(2, 4)])
        assert made.entry.bindings.duplicates == ()
        assert made.weights() == weights(6)
        assert made.entry.closed_to("x") == {"x": [queue(1, shard) for shard in (0, 1, 2, 3, 5)]}
        bind(fake, *(later(2, shard, 6, "x") for shard in (0, 1, 2, 3, 5)))
        await read(made)
        assert group(made) == sorted([*consumed(1, 4), *consumed(2, 6)])
        assert made.entry.closed_to("x") == {}
        del fake.bindings["/", "x"][:4]
        await read(made)
        assert group(made) == sorted([*consumed(1, 4), *consumed(2, 6)]), "a passing lie"
        clock.now += SETTLE / 2
        await read(made)
        clock.now += SETTLE
        await read(made)
        assert group(made) == consumed(2, 6)
        assert made.entry.others == ()


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("promised", [False, True])
async def test_a_new_sidecar_finds_the_old_queues(grown: FakeManagement, promised: bool, fenced: bool) -> None:
    grown.bindings["/", "x"] = [first(shard, promised=promised) for shard in range(4)]
    bind(grown, *(later(2, shard, 6) for shard in range(6)))
    if fenced:
        for shard in range(4):
            grown.bindings["/", lane(1, shard)].clear()
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        assert made.entry.generation == 2
        found = promised or not fenced
        assert group(made) == (consumed(1, 4) if found else [])
        grown.requests.clear()
        await read(made)
        assert group(made) == (consumed(1, 4) if found else [])
        assert not [path for path in grown.requests if "x.lane." in path and "g2" not in path], "read once"


async def test_a_shard_is_open_to_one_group_and_not_yet_to_another(fake: FakeManagement) -> None:
    lanes(fake, 2, 2)
    lanes(fake, 3, 2)
    fake.exchange("x", *(later(2, shard, 2, "x", "x/audit") for shard in range(2)))
    bind(fake, *(later(3, shard, 2) for shard in range(2)), later(3, 1, 2, "x/audit"))
    async with scheduling(fake) as made:
        await made.scheduler.look_up(X, 10)
        assert (made.entry.generation, made.entry.made_with) == (3, 2)
        assert made.entry.groups == {"x", "x/audit"}
        assert group(made) == ["x.g2.0", "x.g2.1"]
        assert group(made, "x/audit") == ["x.audit.g2.0", "x.audit.g2.1", "x.audit.g3.1"]
        assert made.entry.closed_to("x") == {"x": ["x.0", "x.1"], "x/audit": ["x.0"]}


async def test_queues_that_were_bound_without_lanes_are_an_older_generation(grown: FakeManagement) -> None:
    grown.bindings["/", "x"] = [binding(queue(1, shard)) for shard in range(4)]
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        bind(grown, *(later(2, shard, 6) for shard in range(6)))
        await read(made)
        assert made.entry.generation == 2
        assert group(made) == consumed(1, 4)


async def test_the_weight_of_the_binding_counts_once(grown: FakeManagement) -> None:
    bind(grown, *(later(2, shard, 6, weight=str(shard + 1)) for shard in range(6)))
    bind(grown, later(2, 5, 6, "x", weight="6"))
    async with scheduling(grown) as made:
        await made.scheduler.look_up(X, 10)
        assert made.weights() == {Destination("queue", queue(1, shard)): shard + 1 for shard in range(6)}


async def test_a_ring_of_a_later_generation_is_restored(grown: FakeManagement, tmp_path: Path, clock: Clock) -> None:
    bind(grown, *(later(2, shard, 6) for shard in range(6)), later(2, 4, 6, "x"))
    cache = RingCache(tmp_path / "rings")
    async with scheduling(grown, cache=cache) as made:
        await made.scheduler.look_up(X, 10)
        kept = made.entry
    cache = RingCache(tmp_path / "rings")

    async def broken(_: object) -> Any:
        raise ConnectionResetError

    grown.fail(broken)
    async with scheduling(grown, cache=cache) as made:
        await made.scheduler.look_up(X, 10)
        assert made.router.entries[X].restored
        assert made.weights() == weights(6)
        assert made.entry.known is not None
        assert made.entry.known.queues == {queue(1, n): queue(2, n) for n in range(6)}
        for fact in ("generation", "made_with", "others", "lanes", "groups"):
            assert getattr(made.entry, fact) == getattr(kept, fact), fact
        assert group(made) == sorted([*consumed(1, 4), "x.g2.4"])
        assert made.entry.closed_to("x") == kept.closed_to("x")
        grown.mend()
        await read(made)
        assert (made.entry.generation, made.weights()) == (2, weights(6))
        assert group(made) == sorted([*consumed(1, 4), "x.g2.4"])
        assert not made.router.entries[X].restored
        assert made.entry.others[0].shards[Destination("exchange", lane(1, 0))] == OtherShard("x.0", (("x", "x.0"),))
