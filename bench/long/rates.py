"""The CPU time of the sidecar at low, fixed rates, and while nobody publishes: what a container asks for."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench import messages, wire
from bench.amqp import COMPILED, ways
from bench.contenders import CONNECTIONS
from bench.latency import latency
from bench.paced import confirm_latency
from bench.process import cpu_seconds
from bench.rounds import Spread, in_turn, told
from bench.tables import shown, table
from bench.world import World

RATES = 50, 500, 1_000, 2_000
"""Messages a second."""
IDLE, AMQP, HTTP = "nobody publishes", "AMQP, one connection", f"HTTP, one message a request, {CONNECTIONS} connections"
ROUNDS, SECONDS = 3, 4.0


class Spent(NamedTuple):
    """The figures of one round."""

    cores: float
    """CPU seconds of the sidecar a second."""
    each: float | None
    """CPU time of the sidecar a message, in microseconds; None where nobody publishes."""


def rates(world: World) -> str:
    """Measure the sidecar's CPU time at each rate, by AMQP and by HTTP; return the section."""
    pid, http = world.sidecar.process.pid, world.folder / "rates-http"
    wire.save(http, messages.singles())
    (amqp,) = (way for way in ways(world) if way.title == COMPILED)
    publishers: dict[tuple[str, int], Callable[[float], object]] = {(IDLE, 0): time.sleep}
    for rate in RATES:
        publishers[AMQP, rate] = partial(confirm_latency, amqp.amqp_url, rate, amqp.messages)
    for rate in RATES:
        publishers[HTTP, rate] = partial(latency, world.sidecar.http_url, http, rate=rate)
    measures = {f"{title}, {rate}": partial(spent, pid, rate, run) for (title, rate), run in publishers.items()}
    found = in_turn(measures, ROUNDS, SECONDS)
    rows = []
    for (title, rate), rounds in zip(publishers, found.values(), strict=True):
        each = [one.each for one in rounds if one.each is not None]
        cores = shown(Spread.of([one.cores for one in rounds]), ".3f")
        rows.append([title, f"{rate:,}", *(shown(Spread.of(each), ".0f") if each else ("", "")), *cores])
    heads = ["", "messages/s", "sidecar CPU, µs a message", "least to most", "cores", "least to most"]
    return f"{table(heads, rows)}\n\n{told(ROUNDS, SECONDS)}"


def spent(pid: int, rate: int, publish: Callable[[float], object], seconds: float) -> Spent:
    """Publish at a rate for some seconds, 0 for none, and return what a process spent until the last answer."""
    before = cpu_seconds(pid)
    publish(seconds)
    used = cpu_seconds(pid) - before
    return Spent(used / seconds, used / (rate * seconds) * 1e6 if rate else None)
