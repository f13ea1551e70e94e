"""The measurements by AMQP as Markdown."""

from collections.abc import Iterator, Mapping, Sequence

from bench.amqp import COMPILED, CONSISTENT, LANES, RATES, RELAYED, STRAIGHT, Measured
from bench.rounds import Spread, Throughput
from bench.tables import Goal, at_least, at_most, goal_table, median, shown, table

SLOW_SINCE = 4, 3
"""The release of RabbitMQ from which its x-consistent-hash takes the broker several times as long as before."""

_BOTH = "{} ÷ {}, messages/s".format

Rounds = Mapping[str, Sequence[Throughput]]
"""The rounds at full rate, by the title of each way of a publish."""

MOST_IDLE = 80
"""The goal for the memory of an idle sidecar, in MiB."""


def goals(found: Measured) -> list[Goal]:
    """Return the goals of the compiled sidecar, with what was reached."""
    times_native, slowest = _times_native(found.version), min(RATES)
    above = zip(found.paced[slowest][COMPILED], found.paced[slowest][STRAIGHT], strict=True)
    idle = found.idle / 2**20
    return [
        at_least(_BOTH(COMPILED, STRAIGHT), 0.92, _rates(found.throughput, COMPILED, STRAIGHT)),
        at_least(_BOTH(COMPILED, CONSISTENT), times_native, _rates(found.throughput, COMPILED, CONSISTENT)),
        at_most(f"CPU of the sidecar, {COMPILED} ÷ CPU of HAProxy", 2, _cpus(found.throughput, COMPILED, RELAYED)),
        *lane_goals(found.throughput, found.version),
        at_most(
            f"p50 of the confirm above straight's, {slowest:,} messages/s, ms",
            0.1,
            Spread.of([ours.p50 - straight.p50 for ours, straight in above]),
        ),
        Goal("sidecar, idle with one ring: memory, MiB", f"under {MOST_IDLE}", f"{idle:.0f}", "", idle < MOST_IDLE),
    ]


def lane_goals(found: Rounds, version: str) -> list[Goal]:
    """Return the goals of the compiled sidecar where lanes lead to the queues, with what was reached."""
    return [
        at_least(_BOTH(LANES, STRAIGHT), 0.9, _rates(found, LANES, STRAIGHT)),
        at_least(_BOTH(LANES, CONSISTENT), _times_native(version), _rates(found, LANES, CONSISTENT)),
        at_most(f"CPU of the sidecar, {LANES} ÷ {COMPILED}", 1, _cpus(found, LANES, COMPILED)),
    ]


def _times_native(version: str) -> float:
    """Return the goal for the sidecar's messages a second, as a multiple of the native exchange's."""
    return 2.2 if tuple(int(part) for part in version.split(".")[:2]) >= SLOW_SINCE else 1.25


def markdown(found: Measured) -> str:
    """Return the goals and the tables as Markdown."""
    return "\n\n".join([goal_table(goals(found)), _throughput(found), *(_latency(found, rate) for rate in found.paced)])


def _rates(found: Rounds, ours: str, other: str) -> Spread:
    """Return the spread of the ratio of two ways' messages a second, within each round."""
    return Spread.of([one.rate / another.rate for one, another in _rounds(found, ours, other)])


def _cpus(found: Rounds, ours: str, other: str) -> Spread:
    """Return the spread of the ratio of two ways' CPU time of the proxy per message, within each round."""
    return Spread.of([(one.server or 0.0) / (another.server or 1.0) for one, another in _rounds(found, ours, other)])


def _rounds(found: Rounds, ours: str, other: str) -> Iterator[tuple[Throughput, Throughput]]:
    return zip(found[ours], found[other], strict=True)


def _throughput(found: Measured) -> str:
    rows = []
    for title, rounds in found.throughput.items():
        ratio = _rates(found.throughput, title, STRAIGHT)
        resident = found.resident.get(title)
        rows.append(
            [
                title,
                *shown(Spread.of([r.rate for r in rounds]), ",.0f"),
                *shown(ratio, ".2f"),
                _cpu([r.broker for r in rounds]),
                _cpu([r.server for r in rounds]),
                f"{resident / 2**20:.0f}" if resident else "",
            ]
        )
    rows += [[title, "not on this broker", *[""] * 6] for title in found.absent]
    heads = ["AMQP at full rate", "messages/s", "least to most", "÷ straight", "least to most"]
    return table([*heads, "broker CPU, µs a message", "proxy CPU, µs a message", "proxy memory, MiB"], rows)


def _cpu(figures: Sequence[float | None]) -> str:
    """Return the median of the figures that are known, with their range; empty where none is."""
    known = [figure for figure in figures if figure is not None]
    return f"{median(known, '.2f')} ({shown(Spread.of(known), '.2f')[1]})" if known else ""


def _latency(found: Measured, rate: int) -> str:
    rows = []
    for title, rounds in found.paced[rate].items():
        pairs = zip(rounds, found.paced[rate][STRAIGHT], strict=True)
        above = Spread.of([one.p50 - straight.p50 for one, straight in pairs])
        p50, p99 = Spread.of([one.p50 for one in rounds]), Spread.of([one.p99 for one in rounds])
        cpu = median([one.proxy for one in rounds])
        rows.append([title, *shown(p50, ".3f"), *shown(above, "+.3f"), *shown(p99, ".2f"), cpu])
    rows += [[title, "not on this broker", *[""] * 6] for title in found.absent]
    heads = [
        f"confirms at {rate:,} messages/s",
        "p50, ms",
        "least to most",
        "p50 above straight's, ms",
        "least to most",
    ]
    return table([*heads, "p99, ms", "least to most", "proxy CPU, µs a message"], rows)
