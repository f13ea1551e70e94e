"""Lanes beside plain queues: what they cost the broker, and what a relay or a sidecar on the way costs."""

import itertools

from bench import amqp, direct, wire
from bench.amqp import COMPILED, CONSISTENT, RELAYED, STRAIGHT, Way, contender, ways
from bench.amqp_report import lane_goals
from bench.long.scene import TRANSIENT, raced, rows
from bench.long.stamps import ID
from bench.messages import KEYS
from bench.tables import goal_table
from bench.world import LANES, World
from proxy.wire.frames import MANDATORY

STRAIGHT_TO_LANES, RELAYED_TO_LANES = "straight to the lanes", "HAProxy, to the lanes"
"""Publishes of the bytes that a sidecar writes: mandatory, and stamped with x-ring-id."""

_ROUNDS = 5


def lanes(world: World) -> str:
    """Measure publishes to lanes and to plain queues: straight, through HAProxy, and through the sidecar."""
    file = world.folder / "lanes-stamped"
    messages = [
        direct.message(key, TRANSIENT, lane, bits=MANDATORY, entries=ID)
        for key, lane in zip(KEYS, itertools.cycle(LANES), strict=False)
    ]
    wire.save(file, messages)
    by_title = {way.title: way for way in ways(world)}
    compared = [
        by_title[STRAIGHT],
        Way(STRAIGHT_TO_LANES, world.node.amqp_url, file, None),
        by_title[RELAYED],
        Way(RELAYED_TO_LANES, world.relay.amqp_url, file, world.relay.pid),
        by_title[COMPILED],
        by_title[amqp.LANES],
        by_title[CONSISTENT],
    ]
    found = raced([contender(world, way) for way in compared], _ROUNDS)
    return f"{goal_table(lane_goals(found, world.version))}\n\n{rows({'': found}, '', _ROUNDS)}"
