"""The cost of traces for a sidecar, by AMQP: at full rate, where spans are limited, and where every message has one."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from bench.amqp import COMPILED, Way, contender, ways
from bench.long.journal import compared, compared_costs, counted
from bench.long.rates import spent
from bench.long.scene import await_ring
from bench.paced import confirm_latency
from bench.rounds import in_turn
from bench.tables import table
from bench.world import EXCHANGE, World, running_compiled
from proxy.tracing.tracer import MOST_A_SECOND
from testbed.sidecar import Sidecar

ROUNDS, SECONDS = 30, 1.0
"""The rounds and their seconds at full rate: many and short, since the difference is less than rounds differ by."""

RATE = MOST_A_SECOND // 2
"""Messages a second at which every message has a span."""

PACED_ROUNDS, PACED_SECONDS = 10, 2.0

SHARES: Mapping[str, str] = {"no traces": "", "traces of 1%": "0.01", "traces of all": "1"}
"""The share of the messages that is traced, by title; empty for none."""


def traces(world: World) -> str:
    """Measure sidecars with and without traces in turn; return the section, with the spans that were dropped."""
    (usual,) = (way for way in ways(world) if way.title == COMPILED)
    # The bare handler reads a batch of spans and answers 200: an endpoint costs no less.
    endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{world.bare_url}/", "OTEL_EXPORTER_OTLP_TIMEOUT": "10"}
    with ExitStack() as stack:
        sidecars: dict[str, Sidecar] = {}
        for title, share in SHARES.items():
            settings = {"trace-sample": share} if share else {}
            sidecars[title] = stack.enter_context(running_compiled(world.node, settings, endpoint))
            await_ring(sidecars[title].http_url, EXCHANGE)
        every = {title: Way(title, one.amqp_url, usual.messages, one.process.pid) for title, one in sidecars.items()}
        full = in_turn({title: contender(world, way).measure for title, way in every.items()}, ROUNDS, SECONDS)
        paced = {
            title: partial(spent, one.process.pid, RATE, partial(confirm_latency, one.amqp_url, RATE, usual.messages))
            for title, one in sidecars.items()
        }
        at_rate = in_turn(paced, PACED_ROUNDS, PACED_SECONDS)
        costs = {title: [one.each for one in rounds if one.each is not None] for title, rounds in at_rate.items()}
        names = "ringproxy_spans_total", "ringproxy_spans_dropped_total"
        spans = [[title, *(counted(one, name) for name in names)] for title, one in sidecars.items() if SHARES[title]]
    return "\n\n".join(
        [
            f"At full rate, {ROUNDS} rounds of {SECONDS:g} s, at most {MOST_A_SECOND:,} spans a second:",
            compared(full),
            f"At {RATE} messages/s, {PACED_ROUNDS} rounds of {PACED_SECONDS:g} s:",
            compared_costs(costs),
            table(["", "spans", "of them dropped"], spans),
        ]
    )
