"""The measurements by HTTP as Markdown: what was reached of each goal, and the figures behind it."""

from collections.abc import Iterator, Mapping, Sequence

from bench import contenders
from bench.contenders import (
    BARE,
    DIRECT,
    DIRECT_TRANSIENT,
    JSON,
    JSON_TRANSIENT,
    MANAGEMENT,
    ONE_BY_ONE,
    ONE_BY_ONE_TRANSIENT,
    SINGLE,
    SINGLE_TRANSIENT,
)
from bench.latency import RATE, Latency
from bench.messages import BATCH
from bench.rounds import Spread, Throughput
from bench.tables import Goal, at_least, goal_table, median, shown, table

Rates = Mapping[str, Sequence[Throughput]]
"""The rounds at full rate, by contender."""
Latencies = Mapping[str, Sequence[Latency]]
"""The rounds at a fixed rate, by contender."""


def throughput(found: Rates, batch_connections: int, resident: Mapping[str, int]) -> str:
    """Return the goals and the tables at full rate.

    `resident` has the resident bytes, at the end, of the process that took the requests, by contender.
    """
    rows = []
    for title, rounds in found.items():
        rates = shown(Spread.of([r.rate for r in rounds]), ",.0f")
        cpu = [median([r.broker for r in rounds]), median([r.server for r in rounds])]
        rows.append([title, *rates, *cpu, f"{resident[title] / 2**20:.0f}"])
    heads = ["", "messages/s", "least to most", "broker CPU, µs a message", "sidecar CPU, µs a message", "memory, MiB"]
    tried = ", ".join(map(str, contenders.BATCH_CONNECTIONS))
    note = f"Connections of the batches: {batch_connections}, the best of {tried}."
    note += " In the bare handler's row it is its own CPU time, not the sidecar's. Memory is what was resident at the"
    note += " end of what takes the requests: the sidecar, the bare handler or the broker."
    return "\n\n".join([goal_table(throughput_goals(found)), table(heads, rows), note, _without_http(found)])


def throughput_goals(found: Rates) -> list[Goal]:
    """Return the goals at full rate, with what was reached."""
    singles = f"messages, {contenders.CONNECTIONS} connections"
    return [
        at_least(title, least, _ratio(found, one, other))
        for least, title, one, other in (
            (0.7, f"batches of {BATCH} messages ÷ AMQP, straight to the queues", JSON, DIRECT),
            (0.7, f"batches of {BATCH} transient messages ÷ the same of AMQP", JSON_TRANSIENT, DIRECT_TRANSIENT),
            (0.4, f"single {singles} ÷ bare handler", SINGLE, BARE),
            (0.4, f"single transient {singles} ÷ bare handler", SINGLE_TRANSIENT, BARE),
            (6.0, f"single {singles} ÷ management API", SINGLE, MANAGEMENT),
        )
    ]


def latency(found: Latencies) -> str:
    """Return the goals and the table at a fixed rate."""
    rows = []
    for title, rounds in found.items():
        p50, p99 = (shown(Spread.of(figures), ".2f") for figures in zip(*rounds, strict=True))
        rows.append([title, *p50, *p99])
    heads = [f"at {RATE:,} requests/s", "p50, ms", "least to most", "p99, ms", "least to most"]
    return f"{goal_table(latency_goals(found))}\n\n{table(heads, rows)}"


def latency_goals(found: Latencies) -> Iterator[Goal]:
    """Yield the goals at a fixed rate, with what was reached."""
    for index, most in ((0, 1.0), (1, 3.0)):
        for single, which in ((SINGLE, ""), (SINGLE_TRANSIENT, ", transient messages")):
            both = zip(found[single], found[BARE], strict=True)
            more = Spread.of([a[index] - b[index] for a, b in both])
            title = f"{('p50', 'p99')[index]} above the bare handler's, {RATE:,} requests/s{which}, ms"
            yield Goal(title, f"under {most:g}", *shown(more, ".2f"), more.median < most)


def _without_http(found: Rates) -> str:
    """Return how far single messages could get at all: as many under way by AMQP, which the broker can confirm."""
    rows = []
    for one, single in ((ONE_BY_ONE, SINGLE), (ONE_BY_ONE_TRANSIENT, SINGLE_TRANSIENT)):
        for above, below in ((one, BARE), (one, MANAGEMENT), (single, one)):
            if one in found:
                rows.append([f"{above} ÷ {below}", *shown(_ratio(found, above, below), ".2f")])
    return table(["without HTTP", "ratio", "least to most"], rows)


def _ratio(found: Rates, one: str, other: str) -> Spread:
    """Return the spread of the ratio of two contenders' rates within each round."""
    return Spread.of([a.rate / b.rate for a, b in zip(found[one], found[other], strict=True)])
