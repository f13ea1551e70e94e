"""The cost of the journal for a sidecar."""

import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import direct, wire
from bench.amqp import COMPILED, Way, contender
from bench.long.scene import TRANSIENT, await_ring
from bench.rounds import Throughput, in_turn
from bench.tables import table
from bench.world import EXCHANGE, World, running_compiled
from testbed.readiness import DIRECT
from testbed.sidecar import Sidecar

ROUNDS, SECONDS = 40, 1.0
"""The rounds and their seconds: more and shorter than elsewhere, since the difference is less than rounds differ by."""

KEYS = [f"key-{number}" for number in range(20_000)]
"""The keys are so many that a sample of a hundredth of the slots has about a hundredth of the keys."""

SAMPLES = {"no journal": None, "a journal of 1%": "0.01", "a journal of all": "1"}
"""The share of the keys that is journalled, by title; None for no journal."""


def journal(world: World) -> str:
    """Measure sidecars with and without a journal in turn; return the section, with the records that were dropped."""
    messages = world.folder / "journal-keys"
    wire.save(messages, [direct.message(key, TRANSIENT, EXCHANGE) for key in KEYS])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sidecars = {}
        for title, sample in SAMPLES.items():
            settings = {"journal-dir": str(folder / sample), "journal-sample": sample} if sample else {}
            sidecars[title] = stack.enter_context(running_compiled(world.node, settings))
            await_ring(sidecars[title].http_url, EXCHANGE)
        ways = {
            title: contender(world, Way(f"{COMPILED}, {title}", sidecar.amqp_url, messages, sidecar.process.pid))
            for title, sidecar in sidecars.items()
        }
        found = in_turn({title: way.measure for title, way in ways.items()}, ROUNDS, SECONDS)
        names = "ringproxy_journal_records_total", "ringproxy_journal_dropped_total"
        written = [
            [title, *(counted(one, name) for name in names)] for title, one in sidecars.items() if SAMPLES[title]
        ]
    return f"{compared(found)}\n\n{table(['', 'records', 'of them dropped'], written)}"


def compared(found: dict[str, list[Throughput]]) -> str:
    """Return a table of ratios to the first sidecar, taken within each round, with the middle half of the rounds."""
    first, *others = found.items()
    heads = ["", f"messages/s ÷ {first[0]}", "middle half", f"sidecar CPU a message ÷ {first[0]}", "middle half"]
    cells = []
    for title, rounds in others:
        pairs = list(zip(rounds, first[1], strict=True))
        rates = [one.rate / other.rate for one, other in pairs]
        costs = [one.server / other.server for one, other in pairs if one.server and other.server]
        cells.append([title, *_quartiles(rates), *_quartiles(costs)])
    return table(heads, cells)


def compared_costs(found: Mapping[str, Sequence[float]]) -> str:
    """Return a table of a sidecar's CPU time a message, in microseconds, beside ratios as those of `compared`."""
    first, *others = found.items()
    heads = ["", "sidecar CPU, µs a message", f"÷ {first[0]}", "middle half"]
    cells = [[first[0], f"{statistics.median(first[1]):.0f}", "", ""]]
    for title, costs in others:
        ratios = [one / other for one, other in zip(costs, first[1], strict=True)]
        cells.append([title, f"{statistics.median(costs):.0f}", *_quartiles(ratios)])
    return table(heads, cells)


def _quartiles(figures: Sequence[float]) -> tuple[str, str]:
    low, middle, high = statistics.quantiles(figures, n=4)
    return f"{middle:.3f}", f"{low:.2f} to {high:.2f}"


def counted(sidecar: Sidecar, name: str) -> str:
    """Return the sum of a sidecar's counters of one name, over all labels."""
    with DIRECT.open(f"{sidecar.admin_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, flags=re.M)
    return f"{sum(map(float, found)):,.0f}"
