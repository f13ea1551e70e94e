"""The parts of the benchmark by name: each measures one thing on a world, and returns its tables as Markdown."""

import asyncio
from collections.abc import Callable, Mapping

from bench import amqp, amqp_report, freeze, http_report, keys
from bench.contenders import Stage
from bench.long import (
    changes,
    fleet,
    group_fleet,
    groups,
    growth,
    idle,
    in_process,
    journal,
    lanes,
    many,
    memory,
    ordered,
    plan,
    profile,
    rates,
    scenes,
    series,
    short,
    stamps,
    tls,
    traces,
)
from bench.rounds import in_turn, told
from bench.world import World

ROUNDS, SECONDS = 5, 2.0
_FREEZE = 60.0

Part = Callable[[World], str]


def _amqp(world: World) -> str:
    """Measure all ways of a publish by AMQP, at full rate and at fixed rates."""
    return f"{amqp_report.markdown(amqp.measured(world, ROUNDS, SECONDS))}\n\n{told(ROUNDS, SECONDS)}"


def _http(world: World) -> str:
    """Measure publishes by HTTP at full rate, beside the same by AMQP."""
    stage = Stage(world)
    connections = stage.best_batch_connections()
    contenders = stage.contenders(connections)
    found = in_turn({one.title: one.measure for one in contenders}, ROUNDS, SECONDS)
    resident = {one.title: one.memory() for one in contenders}
    return f"{http_report.throughput(found, connections, resident)}\n\n{told(ROUNDS, SECONDS)}"


def _http_latency(world: World) -> str:
    """Measure how long HTTP's answers take at a fixed rate of requests."""
    return f"{http_report.latency(in_turn(Stage(world).at_fixed_rate(), ROUNDS, SECONDS))}\n\n{told(ROUNDS, SECONDS)}"


def _freeze(world: World) -> str:
    """Freeze the broker under full load."""
    return freeze.markdown(asyncio.run(freeze.Freeze(world).run(_FREEZE)))


USUAL: Mapping[str, Part] = {
    "keys": keys.keys,
    "amqp": _amqp,
    "http": _http,
    "http-latency": _http_latency,
    "freeze": _freeze,
}
"""The parts that `make bench` measures, in under ten minutes."""

LONG: Mapping[str, Part] = {
    "queues": scenes.queues,
    "weights": scenes.weights,
    "sessions": many.sessions,
    "rates": rates.rates,
    "idle": idle.idle,
    "memory": memory.memory,
    "growth": growth.growth,
    "sizes": scenes.sizes,
    "quorum": scenes.quorum,
    "stamps": stamps.stamps,
    "lanes": lanes.lanes,
    "groups": groups.groups,
    "series": series.series,
    "short": short.short,
    "tls": tls.tls,
    "journal": journal.journal,
    "traces": traces.traces,
    "changes": changes.changes,
    "fleet": fleet.fleet,
    "group-fleet": group_fleet.group_fleet,
    "plan": plan.plan,
    "ordered": ordered.ordered,
    "process": in_process.in_process,
    "profile": profile.profile,
}
"""The further parts of `make bench FULL=1`, in about half an hour."""

PARTS: Mapping[str, Part] = {**USUAL, **LONG}

BROKERLESS = frozenset({"growth", "process"})
"""The parts in which no broker has a share: their results are of no version."""
