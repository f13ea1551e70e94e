"""The words and the grade of `skew`, for exchanges whose counts are given; Spark only computes chi-squared."""

from collections.abc import Sequence

import pytest

from pipeline.data.gaps import Missing
from pipeline.page.report import Grade, grade
from pipeline.skew import words
from pipeline.skew.findings import Findings, HotKey, Load, Scope
from pipeline.skew.report import report
from pipeline.skew.verdict import judged
from pipeline.stats.sampling import Sample, slots_of
from ring.destination import Destination
from ring.hashing import SLOTS

COMPLETE = Missing(0, 0)

pytestmark = pytest.mark.usefixtures("spark")


def exchange(
    name: str, messages: list[int], hot: Sequence[int] = (), *, ring: str = "", rings: int = 1, more_keys: int = 0
) -> Findings:
    """An exchange, or one `ring` of it: equal weights, so many messages each; of the first, `hot` and `more_keys`."""
    destinations = [Destination("queue", f"{name}.{n}") for n in range(len(messages))]
    fair = 1 / len(messages)
    keys = [1000 + (more_keys if n == 0 else 0) for n in range(len(messages))]
    loads = [Load(d, 1, fair, k, k, n, 0, 0) for d, n, k in zip(destinations, messages, keys, strict=True)]
    candidates = [HotKey(n, b"key-%d" % n, count, destinations[0], fair) for n, count in enumerate(hot)]
    scope = Scope("/", name, ring or "r", sum(messages), 1.0, 1.0, 0, 0, rings, not ring)
    sample = Sample.of(SLOTS, [(sum(messages), 1)])
    return Findings(scope, loads, candidates, 10, [(1, sum(keys))], sample, False, 1.0)


def test_a_tiny_exchange_takes_neither_the_lead_nor_the_grade() -> None:
    tiny = exchange("tiny", [2, 2, 1, 1, *[0] * 6])
    assert tiny.max_over_fair.value > 3.3
    assert words.of_load(tiny).startswith("6 records are too few to say whether the load is even: ")
    assert grade(judged([tiny], COMPLETE)) is Grade.GOOD
    large = exchange("large", [302_000_000, *[77_555_555] * 9])
    assert words.of_all([tiny, large]).startswith("Exchange large (virtual host /): the load is uneven: ")
    assert grade(judged([tiny, large], COMPLETE)) is Grade.LOOK
    # Fifty are enough to say so; but the many messages of the large one ask for more.
    small = exchange("small", [25, 25, *[0] * 8])
    assert words.of_load(small).startswith("The load is uneven: ")
    assert grade(judged([small], COMPLETE)) is Grade.LOOK
    assert words.of_all([small, large]).startswith("Exchange large")
    # An uneven exchange comes before an even one, however large.
    even = exchange("even", [10**9 + 10**7, *[10**9] * 9])
    assert words.of_all([even, small]).startswith("Exchange small")


@pytest.mark.parametrize(("queues", "hot"), [(10, 6), (10, 5), (100, 3), (100, 6)])
def test_six_records_of_one_key_name_no_key_that_no_weight_can_fix(queues: int, hot: int) -> None:
    found = exchange("orders", [hot, 6 - hot, *[0] * (queues - 2)], [hot])
    assert (found.unfixable, found.maybe_unfixable) == ([], [])
    assert words.of_weights(found) == "6 records are too few to say which key exceeds a fair share by itself."
    assert grade(judged([found], COMPLETE)) is Grade.GOOD
    # Five for each queue are enough.
    enough = exchange("orders", [5 * queues // 2, *[5 * queues // 2] * 1, *[0] * (queues - 2)], [5 * queues // 2])
    assert [key.key for key in enough.unfixable] == [b"key-0"]


def test_a_key_above_its_fair_share_by_what_chance_makes_is_no_matter_of_few_records() -> None:
    found = exchange("orders", [100_010, *[99_998] * 5, *[100_000] * 4], [100_010])
    assert found.messages == 1_000_000
    assert found.unfixable == []
    assert words.of_weights(found) == (
        "No key exceeds its queue's fair share by more than chance explains, not even key 'key-0': it alone has"
        " 10.0% of the messages, and the fair share of queue 'orders.0' is 10.0%."
    )


def test_of_each_uneven_ring_it_is_told_what_is_at_fault() -> None:
    across = exchange("orders", [900, 500, 500], rings=3)
    hot, even = exchange("orders", [600, 200, 200], ring="aa"), exchange("orders", [300, 297, 303], ring="bb")
    tiny = exchange("orders", [6, 0, 0], ring="cc")
    amiss = exchange("orders", [60, 20, 20], ring="dd", more_keys=1000)
    assert words.of_load(across).endswith("The cause in each uneven ring is below.")
    assert words.of_uneven_rings(across, [amiss, tiny, even, hot]) == [
        "Ring aa: The load is uneven: queue 'orders.0' has 1.80 times its fair share. Its keys cause that, not the"
        " ring.",
        "Ring dd: The load is uneven: queue 'orders.0' has 1.80 times its fair share. The ring causes that.",
    ]
    assert "<p>Ring aa: The load is uneven: " in report([across, hot, even], COMPLETE, {}).html()
    assert words.of_uneven_rings(across, [even, tiny]) == ["No ring is uneven by itself, as far as its records tell."]
    assert words.of_uneven_rings(across, [hot] * 7)[-1] == "2 more rings are uneven."
    # One that has a single ring says so of itself.
    assert words.of_uneven_rings(exchange("orders", [600, 200, 200]), [hot]) == []


def test_the_page_has_each_queue_s_load_and_what_helps() -> None:
    hot = exchange("orders", [600, 200, 200], [500])
    page = report([hot], COMPLETE, {}).html()
    figures = ("1", "33.3%", "1,000", "600", "60.0%", "1.80")
    cells = "".join(f'<td class="number">{figure}</td>' for figure in figures)
    assert f"<td>queue &#x27;orders.0&#x27;</td>{cells}</tr>" in page
    assert "A remedy: split such a key in the publisher" in page
    uneven, even = exchange("orders", [600, 200, 200]), exchange("orders", [300, 297, 303])
    assert words.remedies(uneven) == ["A remedy: other weights. The job whatif finds some."]
    assert words.remedies(even) == []


def test_no_record_in_the_sample_is_no_even_load() -> None:
    [load] = exchange("orders", [0]).loads
    loads = [load, Load(Destination("queue", "b"), 1, 0.5, 0, 0, 0, 0, 0)]
    scope = Scope("/", "orders", "r", 7, 0.01, 1.0, 0, 0, 1, True)
    found = Findings(scope, loads, [], 10, [], Sample.of(slots_of(0.01), []), False, 1.0)
    assert words.of_load(found) == "No record is in the sample: whether the load is even cannot be told."
