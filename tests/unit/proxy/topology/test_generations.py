"""Generations: which bindings belong to which, and which generation is the ring."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.shards.shard import Sharded
from proxy.topology.bindings import UNREADABLE, Binding, Promise
from proxy.topology.generations import Current, Generation, current, divided, generations, queue_of, queues_behind
from ring.destination import Destination


def first(shard: int) -> Binding:
    """The binding to the lane of a shard of generation 1."""
    return Binding(Destination("exchange", f"orders.lane.{shard}"), "1")


def later(generation: int, shard: int, of: int, *groups: tuple[str, str]) -> Binding:
    """The binding to the lane of a shard of a later generation."""
    lane = Destination("exchange", f"orders.lane.g{generation}.{shard}")
    return Binding(lane, "1", Promise(f"orders.{shard}", groups, generation, of))


def numbers(found: Current) -> tuple[int, list[int]]:
    return found.ring.number, [each.number for each in found.others]


OLD = tuple(map(first, range(4)))


def test_an_exchange_without_later_generations_has_one() -> None:
    assert generations(()) == ()
    assert current(()) == Current(Generation())
    assert generations(OLD) == (Generation(1, OLD),)
    assert current(OLD) == Current(Generation(1, OLD))


@pytest.mark.parametrize("shards", [2, 4, 6])
def test_a_later_generation_is_the_ring_from_its_last_lane_on(shards: int) -> None:
    new = tuple(later(2, shard, shards) for shard in range(shards))
    for bound in range(1, shards):
        assert current((*OLD, *new[:bound])) == Current(Generation(1, OLD), (Generation(2, new[:bound], shards),))
    assert current((*OLD, *new)) == Current(Generation(2, new, shards), (Generation(1, OLD),))


def test_further_bindings_to_a_lane_complete_nothing() -> None:
    opened = [later(2, 0, 2), later(2, 0, 2, ("orders", "orders.g2.0"))]
    found = current([*OLD, *opened])
    assert numbers(found) == (1, [2])
    assert found.others[0].bound == 1


def test_a_queue_that_is_bound_without_a_lane_completes_nothing() -> None:
    direct = Binding(Destination("queue", "orders.g2.1"), "1", Promise("orders.1", (), 2, 2))
    assert numbers(current([*OLD, later(2, 0, 2), direct])) == (1, [2])


def test_a_generation_needs_as_many_shards_as_any_of_its_bindings_says() -> None:
    assert numbers(current([*OLD, later(2, 0, 1), later(2, 1, 3)])) == (1, [2])


def test_the_lowest_generation_is_the_ring_where_none_is_complete() -> None:
    assert numbers(current([later(3, 0, 2), later(2, 0, 2)])) == (2, [3])
    assert numbers(current([later(3, 0, 2), later(2, 0, 2), later(3, 1, 2)])) == (3, [2])


def test_a_binding_without_arguments_belongs_to_the_generation_of_its_lane() -> None:
    plain = later(2, 0, 1)._replace(promise=None)
    assert generations([*OLD, plain, later(2, 0, 1)])[1].bindings == (plain, later(2, 0, 1))
    assert generations([*OLD, plain]) == (Generation(1, (*OLD, plain)),)


def test_unreadable_bindings_belong_to_no_generation() -> None:
    wrong = Binding(Destination("exchange", "orders.lane.g2.0"), "1", UNREADABLE)
    found = current([*OLD, wrong])
    assert found == Current(Generation(1, OLD), (), (wrong,))
    assert found.bindings == (*OLD, wrong)


def test_a_generation_without_bindings_can_be_the_ring() -> None:
    assert divided(OLD, 2) == Current(Generation(2), (Generation(1, OLD),))


@given(
    st.lists(
        st.builds(later, st.integers(2, 4), st.integers(0, 3), st.integers(1, 4)) | st.builds(first, st.integers(0, 3))
    ),
    st.randoms(),
)
def test_the_order_of_bindings_makes_no_difference(bindings: list[Binding], random: Random) -> None:
    shuffled = random.sample(bindings, len(bindings))
    found, again = current(bindings), current(shuffled)
    assert numbers(found) == numbers(again)
    assert sorted(found.ring.bindings) == sorted(again.ring.bindings)
    assert sum(map(len, (each.bindings for each in (found.ring, *found.others)))) == len(bindings)


def test_queues_have_the_names_that_the_topology_file_gives_them() -> None:
    for name, number in itertools.product(("orders", "a.b", "é"), (1, 12)):
        for generation in (1, 2, 12):
            shard = Sharded("", name, groups=("audit",), generation=generation, made_with=3).shard(number)
            assert shard.promise is not None
            queue = f"{name}.{number}" if generation == 1 else f"{name}.g{generation}.{number}"
            assert shard.place == f"{name}.{number}"
            assert queue_of(shard.place, generation) == shard.queue == dict(shard.promise.groups)[name] == queue
    assert queues_behind(["orders.1", "orders"], 2) == {"orders.1": "orders.g2.1"}
    assert queues_behind(["orders.1"], 1) == {}
