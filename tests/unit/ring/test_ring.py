"""Rings: who owns what, what a change moves, and fingerprints."""

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring.destination import Destination
from ring.hashing import SLOTS, hash64, index_at, slot_of
from ring.ring import Ring, changes, fingerprint, owners
from tests.properties import examples
from tests.unit.ring.test_scores import reference_neg_log2, splitmix64


def queue(name: str) -> Destination:
    return Destination("queue", name)


Weights = dict[Destination, int]

GOLDEN: dict[str, tuple[Weights, str, str]] = {
    "one": (
        {queue("a"): 1},
        "5647f05ec18958947d32874eeb788fa396a05d0bab7c1b71f112ceb7e9b31eee",
        "3138adf8a017e0d6",
    ),
    "readme": (
        {queue("q1"): 1, queue("q2"): 1, queue("q3"): 2, queue("q4"): 2},
        "dc584c2d8da2aca30dd13b6d23ccb485d6298d79e5f753342caa4b605017b413",
        "82a214b391fec423",
    ),
    "ten": (
        {queue(f"orders.{i}"): 1 for i in range(10)},
        "31cc27ff019f6f77b929cc5fab197226b57bce3fd6980eaa2278601e895a7c18",
        "167d236dbfefcfc6",
    ),
    "mixed": (
        {
            queue("orders.é"): 3,
            Destination("exchange", "orders.é"): 3,
            queue("b"): 10000,
            queue("c"): 1,
            queue("d"): 77,
        },
        "b9ba1d37769d642164c1986c1dcf9cd5658c11dd54c8272ea201e811c7efb656",
        "3309ee40d3ea6032",
    ),
    "hundred": (
        {queue(f"q{i}"): 1 + i % 7 for i in range(100)},
        "01fa9335cba468cb7b295f4479ae3482d5b59bfce5be09aa65615b76a4b85e1c",
        "9f67619af7a1f349",
    ),
}


def weights_of(most: int) -> st.SearchStrategy[Weights]:
    destinations = st.builds(
        Destination, st.sampled_from(["queue", "exchange"]), st.text("abcdé.", min_size=1, max_size=3)
    )
    return st.dictionaries(
        destinations, st.one_of(st.integers(1, 3), st.integers(1, 10_000)), min_size=1, max_size=most
    )


weight_maps = weights_of(12)


def table_hash(ring: Ring) -> str:
    return hashlib.sha256(ring.table.astype("<u2").tobytes()).hexdigest()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables(name: str) -> None:
    weights, table, print_ = GOLDEN[name]
    assert table_hash(Ring.build(weights)) == table
    assert fingerprint(weights, "x-consistent-hash", "routing_key") == print_


def test_golden_tables_without_simd() -> None:
    """The same tables from a numpy that may use none of this processor's vector extensions."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not found:
        pytest.fail("numpy found no SIMD extension to turn off: this machine cannot tell the two apart")
    program = (
        "import numpy as np; from tests.unit.ring.test_ring import GOLDEN, Ring, table_hash\n"
        "assert not np.show_config(mode='dicts')['SIMD Extensions'].get('found'), 'SIMD still on'\n"
        "for weights, table, _ in GOLDEN.values(): assert table_hash(Ring.build(weights)) == table\n"
        "print('equal')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "equal\n", run.stderr


def test_owners_are_those_of_a_reference_in_plain_integers() -> None:
    weights = GOLDEN["mixed"][0]
    ring = Ring.build(weights)
    seeds = {d: hash64(f"{d.kind}\0{d.name}".encode()) for d in weights}
    for slot in random.Random(5).sample(range(SLOTS), 300):
        drawn = {d: splitmix64(seeds[d], slot) for d in weights}
        order = sorted(weights, key=lambda d: (reference_neg_log2(drawn[d]) // weights[d], -drawn[d], d))
        assert ring.owner(slot) == order[0]
        assert ring.runner_up(slot) == order[1]


@settings(max_examples=8)
@given(weight_maps, st.randoms(use_true_random=False))
def test_order_of_insertion_never_matters(weights: Weights, rng: random.Random) -> None:
    items = list(weights.items())
    rng.shuffle(items)
    one, other = Ring.build(weights), Ring.build(dict(items))
    assert one.destinations == other.destinations
    assert (one.table == other.table).all()
    assert fingerprint(weights, "t", "h") == fingerprint(dict(items), "t", "h")


@examples(12)
@given(weights_of(7), weights_of(3))
def test_an_incremental_change_equals_a_full_build(before: Weights, after: Weights) -> None:
    """Each change starts from the ring of the one before: additions and other weights, then removals, then both."""
    ring = Ring.build(before)
    for goal in ({**before, **after}, {**dict(list(before.items())[1:]), **after, queue("new"): 2}, after):
        ring, built = ring.changed(goal), Ring.build(goal)
        assert ring.as_weights() == built.as_weights() == goal
        assert (ring.table == built.table).all()


def moved_slots(one: Ring, other: Ring) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which slots the two give to different destinations."""
    everyone = sorted({*one.destinations, *other.destinations})
    a, b = (np.array([everyone.index(d) for d in ring.destinations])[ring.table] for ring in (one, other))
    differs: np.ndarray[tuple[int], np.dtype[np.bool_]] = a != b
    return differs


def assert_changes_of_full_builds(before: Weights, after: Weights) -> None:
    one, other = Ring.build(before), Ring.build(after)

    found = changes(before, after)

    assert found.slots.tolist() == np.flatnonzero(moved_slots(one, other)).tolist()
    assert (found.sources == one.table[found.slots]).all()
    assert (found.targets == other.table[found.slots]).all()


@examples(20)
@given(weights_of(12), weights_of(2), st.sets(st.integers(0, 11), max_size=2))
def test_the_changes_are_those_between_two_full_builds(before: Weights, others: Weights, gone: set[int]) -> None:
    """The change adds a few destinations or gives them other weights, and takes a few away."""
    after = {d: weight for at, (d, weight) in enumerate(before.items()) if at not in gone} | others
    assert_changes_of_full_builds(before, after)


def test_the_changes_of_many_destinations_are_those_between_two_full_builds() -> None:
    before = {queue(f"q{at}"): 1 + at % 3 for at in range(60)}
    after = {**before, queue("q5"): 9, queue("q7"): 1, queue("new"): 2}
    del after[queue("q8")]
    assert_changes_of_full_builds(before, after)
    assert changes(before, dict(before)).slots.tolist() == []


@settings(max_examples=8)
@given(weight_maps.filter(lambda w: len(w) > 1), st.data())
def test_removing_moves_only_the_removed_ones_slots(weights: Weights, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(weights)))
    full = Ring.build(weights)
    less = Ring.build({d: w for d, w in weights.items() if d != gone})
    moved = moved_slots(full, less)
    assert (moved == (full.table == full.destinations.index(gone))).all()
    assert full.moved_from(less) == less.moved_from(full) == full.slots()[gone] / SLOTS
    for slot in np.flatnonzero(moved)[:5].tolist():
        assert less.owner(slot) == full.runner_up(slot)


@settings(max_examples=8)
@given(weight_maps, st.data())
def test_a_weight_change_moves_only_the_difference(weights: Weights, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(sorted(weights)))
    light, heavy = sorted([weights[changed], data.draw(st.integers(1, 10_000))])
    lighter, heavier = Ring.build({**weights, changed: light}), Ring.build({**weights, changed: heavy})
    index = lighter.destinations.index(changed)
    moved = lighter.table != heavier.table
    assert (heavier.table[moved] == index).all()
    assert not (lighter.table[moved] == index).any()


def test_a_thousand_queues_and_one_more() -> None:
    weights = {queue(f"q{i}"): 1 for i in range(1000)}
    ring = Ring.build(weights)
    more = ring.changed({**weights, queue("new"): 1})
    taken = more.slots()[queue("new")]
    assert more.moved_from(ring) == taken / SLOTS
    assert abs(taken - SLOTS / 1001) < 5 * (SLOTS / 1001) ** 0.5
    assert (more.changed(weights).table == ring.table).all()


def test_lookups() -> None:
    ring = Ring.build({queue("a"): 1, queue("b"): 5})
    for i in range(100):
        key = f"k{i}".encode()
        assert ring.owner_of(key) == ring.owner(slot_of(key))
        assert index_at(ring.owner_index, slot_of(key)) == ring.table[slot_of(key)]
    assert sum(ring.slots().values()) == SLOTS
    assert Ring.build({queue("a"): 1}).runner_up(7) is None
    with pytest.raises(ValueError, match="read-only"):
        ring.table[0] = 1


def test_a_destination_too_light_is_flagged() -> None:
    weights = {queue("light"): 1, queue("heavy"): 10_000, queue("heavy2"): 486}
    assert Ring.build(weights).too_light() == (queue("light"),)
    assert Ring.build({**weights, queue("heavy2"): 484}).too_light() == ()


@pytest.mark.parametrize("weights", [{}, {queue("a"): 0}, {queue("a"): 10_001}])
def test_impossible_rings(weights: Weights) -> None:
    with pytest.raises(ValueError, match=r"destinations, not 0|outside 1 to 10000"):
        Ring.build(weights)


def test_fingerprints_tell_every_part_apart() -> None:
    weights = {queue("a"): 1, queue("b"): 2}
    prints = {
        fingerprint(weights, "x-consistent-hash", "routing_key"),
        fingerprint(weights, "x-modulus-hash", "routing_key"),
        fingerprint(weights, "x-consistent-hash", "header:routing_key"),
        fingerprint({queue("a"): 1}, "x-consistent-hash", "routing_key"),
        fingerprint({queue("a"): 1, queue("b"): 3}, "x-consistent-hash", "routing_key"),
        fingerprint({queue("a"): 1, Destination("exchange", "b"): 2}, "x-consistent-hash", "routing_key"),
        fingerprint({queue("a1"): 1, queue("b"): 2}, "x-consistent-hash", "routing_key"),
    }
    assert len(prints) == 7


def test_the_owners_of_some_slots_are_those_of_the_whole_ring() -> None:
    weights = {Destination("queue", f"orders.{n}"): 1 + n % 3 for n in range(20)}
    slots = np.array([0, 7, SLOTS - 1, *range(1000, 90_000, 17)])
    assert owners(weights, slots).tolist() == Ring.build(weights).table[slots].tolist()
    assert owners(weights, slots[:0]).tolist() == []
    with pytest.raises(ValueError, match="a ring has 1 to 65536 destinations, not 0"):
        owners({}, slots)
