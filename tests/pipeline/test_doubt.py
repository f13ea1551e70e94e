"""The sentences of pages on a sample that tells too little, and the intervals on their bars."""

import re

import numpy as np
from matplotlib.container import ErrorbarContainer
from pyspark.sql import Row

from pipeline.data.gaps import Missing
from pipeline.page import plots
from pipeline.page.about import doubt
from pipeline.page.report import Grade, grade
from pipeline.skew import words
from pipeline.skew.findings import Findings, HotKey, Load, Scope
from pipeline.skew.report import _shares
from pipeline.skew.verdict import judged
from pipeline.stats.sampling import Estimate, Sample, slots_of
from pipeline.whatif.findings import find
from pipeline.whatif.prediction import Demand
from pipeline.whatif.published import Published
from pipeline.whatif.report import _loads, report
from pipeline.whatif.verdict import Limits, verdict
from pipeline.whatif.verdict import judged as judged_change
from ring.destination import Destination
from ring.hashing import SLOTS
from tests.pipeline.records import ring_of

DRAWN = slots_of(0.01)
ALIKE = np.full(300, 20)
UNEQUAL = np.ceil(10_000 / np.arange(1, 301)).astype(np.int64)
"""As Zipf's law has them, with an exponent of 1."""

UNKNOWN, VAGUE = "too few or too unequal", "more than a factor of three"


def sample(counts: np.ndarray) -> Sample:
    return Sample.of_slots(DRAWN, np.arange(len(counts)), counts)


def test_a_sample_says_by_its_own_tail_whether_its_intervals_hold() -> None:
    assert doubt(sample(ALIKE)) == ""
    assert UNKNOWN in doubt(sample(UNEQUAL))
    # Few keys are as bad, and their intervals wide; one hot key beside enough others is not.
    assert UNKNOWN in doubt(sample(ALIKE[:3]))
    assert VAGUE in doubt(sample(ALIKE[:3]))
    assert doubt(sample(np.append(ALIKE, 100_000))) == ""
    assert doubt(Sample.of_slots(SLOTS, np.arange(300), UNEQUAL)) == ""
    assert doubt(sample(ALIKE), [Estimate(2, 1, 3.1)]).endswith(f"a range spans {VAGUE}.")


def skewed(counts: np.ndarray) -> Findings:
    """Two queues of an exchange, each with half of the messages; the first has the hottest key."""
    queues, many = [Destination("queue", f"orders.{n}") for n in range(2)], int(counts.sum()) // 2
    loads = [Load(queue, 1, 0.5, 150, 150, many, many, (SLOTS - DRAWN) / 2) for queue in queues]
    scope = Scope("/", "orders", "ring", 2 * many, 0.01, 0.01, 0, 0, 1, True)
    hottest = HotKey(0, b"key", int(counts.max()), queues[0], 0.5)
    return Findings(scope, loads, [hottest], 10, [(1, 300)], sample(counts), False, 1.0)


def test_skew_says_so_and_is_not_good() -> None:
    good, bad = skewed(ALIKE), skewed(UNEQUAL)
    complete = Missing(0, 0)
    assert (grade(judged([good], complete)), grade(judged([bad], complete))) == (Grade.GOOD, Grade.LOOK)
    assert UNKNOWN not in words.of_all([good]) + " ".join(words.caveats(good))
    assert UNKNOWN in words.of_all([bad])
    assert UNKNOWN in " ".join(words.caveats(bad))
    bars = [one for one in _shares(bad).axes[0].containers if isinstance(one, ErrorbarContainer)]
    assert len(bars) == 2  # of all messages, and of the hottest key


def test_whatif_says_so_and_is_not_good() -> None:
    ring = ring_of({"orders.1": 1, "orders.2": 1})
    for counts, said in ((np.full(3000, 20), False), (UNEQUAL, True)):
        slots = np.linspace(0, DRAWN - 1, len(counts)).astype(np.int64)
        found = find(ring, ring, Published.of(Demand(slots, counts, counts), 0.01))
        told = verdict(found, Limits(None, None), sample=0.01, with_bytes=True)
        told |= {"left_out": {"hashed": 0, "ring": 0}, "shards": None}
        assert told["intervals_hold"] is not said
        page = report(found, told, judged_change(found, told), [], Row(key=b"k", slot=0, messages=1), "", {}).html()
        assert (UNKNOWN in page) is said
        assert not said or "To look at" in page
        # An estimated count has three digits, and it and the others have their intervals; also in the first lines.
        row = page.partition("<td>orders.1</td>")[2].partition("</tr>")[0]
        assert len(re.findall(r">[0-9,]+00 \([0-9,]+ to [0-9,]+\)<", row)) == 2
        assert len(re.findall(r">[0-9.]+% \([0-9.]+% to [0-9.]+%\)<", row)) == 2
        assert len(re.findall(r">[0-9.]+ \([0-9.]+ to [0-9.]+\)<", row)) == 2
        assert re.search(r"Busiest now: queue &#x27;orders\.1&#x27; with [0-9.]+% \([0-9.]+% to ", page)
        bars = [one for one in _loads(found).axes[0].containers if isinstance(one, ErrorbarContainer)]
        assert len(bars) == 2  # now and then


def test_an_interval_is_drawn_at_its_bar() -> None:
    _, axes = plots.new(2.0)
    plots.intervals(axes, [1, 2], [Estimate(5, 4, 7), Estimate(5, 5, 14)])
    (bars,) = axes.containers
    (lines,) = bars[2]
    assert [[tuple(end) for end in line] for line in lines.get_segments()] == [[(1, 4), (1, 7)], [(2, 5), (2, 14)]]
