"""The memory of a sidecar that rings and idle sessions take."""

from contextlib import ExitStack

from bench import direct
from bench.long.scene import await_ring
from bench.process import memory as resident
from bench.tables import Goal, goal_table, table
from bench.world import EXCHANGE, QUEUES, World, declare, running_compiled

RINGS = 1, 11, 51
SESSIONS = 1, 100, 1000

_MOST_EACH = 3.0
"""The goal for the memory of one more ring, in MiB."""


def memory(world: World) -> str:
    """Measure the memory of a sidecar with rings and idle sessions; return the section."""
    exchanges = [EXCHANGE, *(f"{EXCHANGE}.ring{number}" for number in range(1, max(RINGS)))]
    for exchange in exchanges[1:]:
        declare(world.node.amqp_url, exchange, QUEUES)
    rings, sessions = {}, {}
    with running_compiled(world.node, {"max-sessions": "2000"}) as sidecar, ExitStack() as stack:
        pid = sidecar.process.pid
        for number, exchange in enumerate(exchanges, 1):
            await_ring(sidecar.http_url, exchange)
            if number in RINGS:
                rings[number] = resident(pid)
        for number in range(1, max(SESSIONS) + 1):
            stack.enter_context(direct.connect(sidecar.amqp_url))
            if number in SESSIONS:
                sessions[number] = resident(pid)
    spans = [(RINGS[0], RINGS[1]), (RINGS[1], RINGS[2])]
    each_session = (sessions[SESSIONS[-1]] - sessions[SESSIONS[1]]) / (SESSIONS[-1] - SESSIONS[1]) / 2**10
    goals = []
    for first, last in spans:
        each = (rings[last] - rings[first]) / (last - first) / 2**20
        title = f"each ring more, from {first} to {last}, MiB"
        goals.append(Goal(title, f"at most {_MOST_EACH:g}", f"{each:.2f}", "", each <= _MOST_EACH))
    rows = [[f"{number} ring{'s' * (number > 1)}", "", _mebibytes(size)] for number, size in rings.items()]
    rows += [[f"{RINGS[-1]} rings", f"{number:,}", _mebibytes(size)] for number, size in sessions.items()]
    heads = table(["", "idle sessions", "sidecar, resident, MiB"], rows)
    return f"{goal_table(goals)}\n\n{heads}\n\nEach session more: {each_session:.1f} KiB."


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}"
