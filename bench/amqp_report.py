"""The measurements by AMQP as Markdown."""

from collections.abc import Callable, Sequence

from bench.amqp import COMPILED, CONSISTENT, RATES, RELAYED, STRAIGHT, Measured
from bench.rounds import Spread, Throughput
from bench.tables import Goal, at_least, at_most, goal_table, median, shown, table

SLOW_SINCE = 4, 3
"""The release of RabbitMQ from which its x-consistent-hash takes the broker several times as long as before."""

MOST_IDLE = 80
"""The goal for the memory of an idle sidecar, in MiB."""


def goals(found: Measured) -> list[Goal]:
    """Return the goals of the compiled sidecar, with what was reached."""
    both = f"{COMPILED} ÷ {{}}, messages/s".format
    release = tuple(int(part) for part in found.version.split(".")[:2])
    times_native = 2.2 if release >= SLOW_SINCE else 1.25
    slowest = min(RATES)
    above = zip(found.paced[slowest][COMPILED], found.paced[slowest][STRAIGHT], strict=True)
    idle = found.idle / 2**20
    return [
        at_least(both(STRAIGHT), 0.92, _ratio(found, STRAIGHT, lambda r: r.rate)),
        at_least(both(CONSISTENT), times_native, _ratio(found, CONSISTENT, lambda r: r.rate)),
        at_most(f"CPU of the sidecar, {COMPILED} ÷ CPU of HAProxy", 2, _ratio(found, RELAYED, lambda r: r.server)),
        at_most(
            f"p50 of the confirm above straight's, {slowest:,} messages/s, ms",
            0.1,
            Spread.of([ours.p50 - straight.p50 for ours, straight in above]),
        ),
        Goal("sidecar, idle with one ring: memory, MiB", f"under {MOST_IDLE}", f"{idle:.0f}", "", idle < MOST_IDLE),
    ]


def markdown(found: Measured) -> str:
    """Return the goals and the tables as Markdown."""
    return "\n\n".join([goal_table(goals(found)), _throughput(found), *(_latency(found, rate) for rate in found.paced)])


def _ratio(found: Measured, other: str, figure: Callable[[Throughput], float | None]) -> Spread:
    """Return the spread of a figure's ratio between the compiled sidecar and another way, within each round."""
    pairs = zip(found.throughput[COMPILED], found.throughput[other], strict=True)
    return Spread.of([(figure(ours) or 0.0) / (figure(theirs) or 1.0) for ours, theirs in pairs])


def _throughput(found: Measured) -> str:
    rows = []
    for title, rounds in found.throughput.items():
        to_straight = zip(rounds, found.throughput[STRAIGHT], strict=True)
        ratio = Spread.of([one.rate / straight.rate for one, straight in to_straight])
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
