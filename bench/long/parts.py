"""The long parts by name, which is also that of their section in the document."""

from collections.abc import Callable, Mapping
from functools import partial

from bench import amqp, amqp_report
from bench.long import changes, fleet, growth, in_process, journal, many, memory, profile, scenes, stamps, tls
from bench.long.scene import ROUNDS, SECONDS
from bench.tables import goal_table
from bench.world import World, running_world

SUITES = "sid", "trixie"
"""The Debian suites on whose RabbitMQ the parts of these names run, whichever broker BROKER names."""


def _by_amqp(suite: str, world: World) -> str:
    """Measure all ways of a publish by AMQP on a suite's RabbitMQ; return the section."""
    del world  # another has the same processes around it
    with running_world(suite) as other:
        found = amqp.measured(other, ROUNDS, SECONDS)
    told = f"RabbitMQ {found.version}, medians of {ROUNDS} rounds of {SECONDS:g} s:"
    return "\n\n".join([told, goal_table(amqp_report.goals(found)), amqp_report.markdown(found)])


LONG: Mapping[str, Callable[[World], str]] = {
    "stamps": stamps.stamps,
    "quorum": scenes.quorum,
    "sizes": scenes.sizes,
    "sessions": many.sessions,
    "queues": scenes.queues,
    "weights": scenes.weights,
    "tls": tls.tls,
    "growth": growth.growth,
    "memory": memory.memory,
    "changes": changes.changes,
    "fleet": fleet.fleet,
    "process": in_process.in_process,
    "journal": journal.journal,
    "profile": profile.profile,
    **{suite: partial(_by_amqp, suite) for suite in SUITES},
}
