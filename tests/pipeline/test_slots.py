"""Ring, proxy and Spark send a key to the same destination."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.stats.slots import MAX_KEY, destination_of_slot, slot_of_key
from proxy.routing.counters import Counters
from proxy.routing.route import Route
from proxy.settings.patterns import Mode
from proxy.topology.bindings import CONSISTENT_HASH, Bindings
from proxy.topology.table import Entry, KnownRing
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import slot_of
from ring.ring import Ring

X = ("/", "orders")
GOLDEN = [
    (b"", 0, "orders.1"),
    (b"key-1", 1041192, "orders.1"),
    (b"key-2", 905733, "orders.2"),
    (b"a", 546133, "orders.3"),
    ("é".encode(), 823687, "orders.3"),
    (b"\xff\x00", 350330, "orders.3"),
    (b"x" * 255, 858646, "orders.3"),
    # Canonical forms of headers: a number, and a table.
    (b"19.99", 534460, "orders.2"),
    (b'{"a":{"n":7.5},"b":[true,null,"x y"]}', 762011, "orders.2"),
]
ORDERS = {Destination("queue", f"orders.{n}"): n for n in (1, 2, 3)}

keys = st.binary(max_size=MAX_KEY) | st.text(max_size=80).map(str.encode).filter(lambda key: len(key) <= MAX_KEY)
weights = st.dictionaries(
    st.builds(
        Destination,
        st.sampled_from(("queue", "exchange")),
        st.text(min_size=1, max_size=20).filter(lambda name: name != X[1]),
    ),
    st.integers(1, 10_000),
    min_size=1,
    max_size=5,
)


def by_spark(spark: SparkSession, ring: Ring, given: list[bytes]) -> list[tuple[int, Destination]]:
    frame = spark.createDataFrame(list(enumerate(given)), "n int, key binary").withColumn(
        "slot", slot_of_key(F.col("key"))
    )
    rows = frame.withColumn("to", destination_of_slot(spark, ring, F.col("slot"))).orderBy("n").collect()
    return [(row.slot, Destination(row.to.kind, row.to.name)) for row in rows]


def by_proxy(ring: Ring, given: list[bytes]) -> list[tuple[int, Destination]]:
    entry = Entry(
        Mode.ROUTE, CONSISTENT_HASH, KnownRing.of(ring, HashedValue(), CONSISTENT_HASH), None, Bindings(), 0.0
    )
    route = Route(X, Counters(), None, entry)
    found = []
    for key in given:
        choice = route.choose(key, b"", 0, 0)
        assert choice is not None
        found.append((choice.slot, choice.target.destination))
    return found


def test_golden(spark: SparkSession) -> None:
    ring = Ring.build(ORDERS)
    expected = [(slot, Destination("queue", name)) for _, slot, name in GOLDEN]
    given = [key for key, _, _ in GOLDEN]
    assert [(slot_of(key), ring.owner_of(key)) for key in given] == expected
    assert by_proxy(ring, given) == expected
    assert by_spark(spark, ring, given) == expected


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(given=st.lists(keys, min_size=1, max_size=200), weights=weights)
def test_any_key_by_any_ring(spark: SparkSession, given: list[bytes], weights: dict[Destination, int]) -> None:
    ring = Ring.build(weights)
    expected = [(slot_of(key), ring.owner_of(key)) for key in given]
    assert by_proxy(ring, given) == expected
    assert by_spark(spark, ring, given) == expected


def test_text_is_hashed_as_its_utf_8(spark: SparkSession) -> None:
    texts = ["", "é", "\0", "\U0001f407 orders", "a" * MAX_KEY]
    rows = spark.createDataFrame([(text,) for text in texts], "key string").select("key", slot_of_key(F.col("key")))
    assert [tuple(row) for row in rows.collect()] == [(text, slot_of(text.encode())) for text in texts]


def test_no_key_has_no_slot_and_no_destination(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,), (b"a",)], "key binary").withColumn("slot", slot_of_key(F.col("key")))
    rows = frame.select(destination_of_slot(spark, Ring.build(ORDERS), F.col("slot")).alias("to")).collect()
    assert [row.to for row in rows] == [None, ("queue", "orders.3")]


@pytest.mark.parametrize("count", [1, 300])
def test_rings_of_one_and_of_many(spark: SparkSession, count: int) -> None:
    ring = Ring.build({Destination("queue", f"q-{n}"): 1 for n in range(count)})
    given = [f"customer-{n}".encode() for n in range(2000)]
    assert by_spark(spark, ring, given) == [(slot_of(key), ring.owner_of(key)) for key in given]
