"""The broker's own cost for the headers that a sidecar puts into each message, which no proxy can undercut."""

from bench import direct, wire
from bench.amqp import CONSISTENT, RELAYED, STRAIGHT, Way, contender, ways
from bench.long.scene import TRANSIENT, raced, rows
from bench.messages import KEYS
from bench.world import EXCHANGE, QUEUES, World
from proxy.wire.content import STAMP_ID_FIELD, stamp_of_exchange
from proxy.wire.frames import MANDATORY, U32, U64

ID = STAMP_ID_FIELD + U64.pack(1 << 60)
"""The encoded entry of the stamp x-ring-id."""


def stamps(world: World) -> str:
    """One publisher straight to the queues, its messages as they are and with more and more of that.

    Beside it what a bare relay leaves, and what the exchange does by itself.
    """
    compared: list[Way] = []
    for title, bits, entries in (
        (STRAIGHT, 0, [None] * len(KEYS)),
        ("mandatory", MANDATORY, [None] * len(KEYS)),
        ("mandatory, x-ring-id", MANDATORY, [ID] * len(KEYS)),
        ("mandatory, x-ring-id, x-ring-exchange, x-ring-routing-key", MANDATORY, [_all(key.encode()) for key in KEYS]),
    ):
        file = world.folder / f"stamps-{len(compared)}"
        messages = [
            direct.message(QUEUES[n % len(QUEUES)], TRANSIENT, bits=bits, entries=given)
            for n, given in enumerate(entries)
        ]
        wire.save(file, messages)
        compared.append(Way(title, world.node.amqp_url, file, None))
    compared += [way for way in ways(world) if way.title in (RELAYED, CONSISTENT)]
    return rows({"": raced([contender(world, way) for way in compared])}, "")


def _all(key: bytes) -> bytes:
    """Return the encoded entries of all three stamps for a routing key."""
    return stamp_of_exchange(EXCHANGE.encode()) + U32.pack(len(key)) + key + ID
