"""The driver's part of `whatif` on the number of shards and topology files: no Spark."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from pipeline.whatif.peak import growth
from pipeline.whatif.prediction import Demand
from pipeline.whatif.published import Published
from pipeline.whatif.shards import enough
from pipeline.whatif.topology_file import after, agree, changed, read_topology, to_toml
from proxy.shards.document import parse
from proxy.shards.shard import OwnTerms, Sharded
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import owners
from tests.pipeline.records import ring_of

FOUR = ring_of({f"orders.{n}": 1 for n in (1, 2, 3, 4)})
FILE = Sharded("[[exchange]] 1, 'orders'", "orders", numbers=(1, 2, 3, 4))
EVEN = np.full(20_000, 5)
"""The messages of each of 20,000 keys."""


def busiest(messages: np.ndarray) -> Published:
    slots = np.random.default_rng(1).choice(SLOTS, len(messages), replace=False)
    return Published.of(Demand(slots, messages, messages * 100))


def most(spec: RingSpec, of: Published) -> float:
    """Return the most messages of a queue for each unit of its weight."""
    weights = spec.weights
    got = np.bincount(owners(weights, of.demand.slots), of.demand.messages, len(weights))
    return float(max(n / weights[d] for n, d in zip(got, sorted(weights), strict=True)))


@given(limit=st.integers(8_000, 120_000), factor=st.sampled_from([None, 0.5, 1.0, 1.7, 3.0]))
def test_it_is_the_least_number_within_the_limit(limit: int, factor: float | None) -> None:
    of = busiest(EVEN)
    found = enough(FOUR, FILE, of, limit, factor)
    assert set(found.spec.weights) == {Destination("queue", f"orders.{n}") for n in range(1, found.later + 1)}
    assert not found.hot

    def holds(shards: int, times: float) -> bool:
        return most(ring_of({f"orders.{n}": 1 for n in range(1, shards + 1)}), of) * times <= limit

    for number, times in ((found.now, 1.0), (found.later, max(1.0, factor or 1.0))):
        assert holds(number, times)
        assert not any(holds(fewer, times) for fewer in range(max(1, number - 3), number))


def test_weights_are_capacities_and_new_shards_get_the_most_common_one() -> None:
    present = ring_of({"orders.1": 20, "orders.2": 10, "orders.4": 10})
    found = enough(present, replace(FILE, numbers=(1, 2, 4)), busiest(EVEN), 1_500, None)
    places = {each.name: weight for each, weight in found.spec.weights.items()}
    assert list(places)[:5] == ["orders.1", "orders.2", "orders.4", "orders.3", "orders.5"]
    assert places.pop("orders.1") == 20
    assert set(places.values()) == {10}
    assert most(found.spec, busiest(EVEN)) <= 1_500


def test_a_key_that_no_shard_holds_is_told_in_parts_and_does_not_make_more_shards() -> None:
    hot = np.append(EVEN, 70_000)
    found = enough(FOUR, FILE, busiest(hot), 30_000, None)
    assert list(found.hot.values()) == [3]
    assert list(found.hot) == [int(busiest(hot).demand.slots[-1])]
    assert found.later == 6  # 170,000 messages are in 6 shards of 30,000
    assert list(enough(FOUR, FILE, busiest(hot), 30_000, 2.0).hot.values()) == [5]


def test_a_key_that_no_shard_can_hold_later_counts_now() -> None:
    heavy = busiest(np.append(EVEN, 29_000))
    found = enough(FOUR, FILE, heavy, 30_000, 2.0)
    assert list(found.hot.values()) == [2]
    assert found.now == enough(FOUR, FILE, heavy, 30_000, None).now
    without = enough(FOUR, FILE, busiest(np.append(EVEN, 1)), 30_000, None)
    assert found.now > without.now


def test_a_key_that_fills_a_shard_by_itself_ends_the_search() -> None:
    with pytest.raises(PipelineError, match=r"not even \d+ shards of weight 1 are enough; the heaviest .* 9,999"):
        enough(FOUR, FILE, busiest(np.append(EVEN, 9_999)), 10_000, None)


def test_growth_is_by_the_line_through_whole_weeks() -> None:
    week = 24 * 7
    assert growth({0: 5, week - 1: 1}) is None
    assert growth(dict.fromkeys(range(2 * week - 1), 10)) is None
    assert growth(dict.fromkeys(range(2 * week), 10)) == pytest.approx(1.0)
    by_ten = {hour: 10 + hour // week for hour in range(3 * week)}
    assert growth(by_ten) == pytest.approx(1 + 90 / 7 / 12)
    assert growth({hour: 100 - 9 * (hour // week) for hour in range(10 * week)}) == 0.0
    # The rest of a week is the first.
    assert growth({hour - 50: n for hour, n in by_ten.items()} | {-60: 10**6}) == pytest.approx(1 + 90 / 7 / 12)


ARGUMENTS = st.dictionaries(
    st.sampled_from(["x-max-priority", "x-queue-leader-locator", "x-overflow"]), st.text("ab\x7f")
)


@given(
    st.sets(st.integers(1, 12), min_size=1),
    st.sampled_from([(), ("audit",), ("audit", "mail")]),
    st.dictionaries(st.integers(1, 12), st.builds(OwnTerms, weight=st.integers(2, 9), arguments=ARGUMENTS | st.none())),
    ARGUMENTS,
    st.sampled_from(["quorum", "classic"]),
)
def test_a_file_is_read_as_it_was_written(numbers, groups, own, arguments, queue_type) -> None:  # type: ignore[no-untyped-def]
    own = {number: terms for number, terms in own.items() if number in numbers}
    one = Sharded(
        "[[exchange]] 1, 'orders'",
        *("orders", "shop"),
        arguments={"hash-header": "customer"},
        numbers=tuple(sorted(numbers)),
        groups=groups,
        queue_arguments=arguments,
        queue_type=queue_type,
        own=own,
    )
    assert parse(tomllib.loads(to_toml(one))) == (one,)


def test_the_file_of_a_ring_keeps_all_else_of_the_exchange() -> None:
    one = replace(FILE, groups=("audit",), own={2: OwnTerms(weight=2, queue_type="classic")})
    six = ring_of({f"orders.{n}": 1 for n in range(1, 7)} | {"orders.3": 7})
    assert to_toml(changed(one, six)) == (
        '[[exchange]]\nname = "orders"\nvhost = "/"\nshards = 6\ngroups = ["audit"]\n\n'
        '[[exchange.shard]]\nnumber = 2\nqueue_type = "classic"\n\n'
        "[[exchange.shard]]\nnumber = 3\nweight = 7\n"
    )
    with pytest.raises(PipelineError, match=r"queue 'other' is no shard of the file: a shard is orders\.NUMBER"):
        changed(one, ring_of({"orders.1": 1, "other": 1}))


def test_the_queues_are_those_of_the_next_generation() -> None:
    two = ring_of({"orders.1": 1, "orders.2": 1})
    assert after(FILE, FOUR, FOUR).queues == {}
    second = after(replace(FILE, numbers=(1, 2)), FOUR, two)
    assert second.queues == {"orders.1": "orders.g2.1", "orders.2": "orders.g2.2"}
    assert after(replace(FILE, numbers=(1, 2)), second, two) == second
    assert after(FILE, second, FOUR).queues["orders.4"] == "orders.g3.4"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('shards = 4\ntype = "x-modulus-hash"', "type: x-modulus-hash has no weights"),
        ("shards_per_node = 2", "shards_per_node: write shards = N"),
        ("shards = 4\nretiring = [4]", "retiring: retire these shards first"),
        ("shards = 4\nlanes = false", "a shard has no lane"),
        ('shards = 4\n[[exchange.shard]]\nnumber = 1\nqueue = "mine"', "or a name of its own"),
        ("shards = 0", "shards: 0"),
    ],
)
def test_a_file_that_cannot_change_in_order_is_refused(tmp_path: Path, more: str, why: str) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(f'[[exchange]]\nname = "orders"\n{more}\n')
    with pytest.raises(PipelineError, match="--topology") as told:
        read_topology(str(file), "/", "orders")
    assert why in str(told.value)
    assert "\n" not in str(told.value)


def test_the_exchange_must_be_in_the_file_as_the_ring_is(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[[exchange]]\nname = "orders"\nshards = 4\n')
    one = read_topology(str(file), "/", "orders")
    agree(one, FOUR)
    agree(replace(one, numbers=(1,)), ring_of({"orders.1": 9}))
    with pytest.raises(PipelineError, match="no exchange 'orders' of virtual host 'shop'"):
        read_topology(str(file), "shop", "orders")
    with pytest.raises(PipelineError, match=r"of queue 'orders\.4' it has weight 1, and the present ring none"):
        agree(one, ring_of({f"orders.{n}": 1 for n in (1, 2, 3)}))
    with pytest.raises(PipelineError, match=r"of queue 'orders\.2' it has weight 1, and the present ring weight 5"):
        agree(one, ring_of({f"orders.{n}": 1 for n in (1, 2, 3, 4)} | {"orders.2": 5}))
