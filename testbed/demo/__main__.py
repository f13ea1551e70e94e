"""`make demo`: what ringproxy is for, shown on a real broker in under three minutes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

import aiohttp

from ring.destination import Destination
from ring.ring import fingerprint
from testbed import SetupError
from testbed.broker import Broker, running_broker
from testbed.demo.load import IN_FLIGHT, Load
from testbed.demo.oracle import History, Sent, Verdict, chi_squared, counted, judge, moved
from testbed.demo.world import HASH, World, new_world
from testbed.sidecar import Sidecar, running_sidecar

MESSAGES = 20_000
KEYS = [f"order-{n}" for n in range(MESSAGES)]
SAMPLE = 10_000
"""Messages after each change, of as many keys, by which it is told which keys moved."""
WEIGHTS = {"orders.1": 1, "orders.2": 1, "orders.3": 2, "orders.4": 2}
FIFTH, FIRST = ("orders.5", 1), ("orders.1", 1)
EXCHANGE, NATIVE = "orders", "orders-native"

SYNC_INTERVAL, SETTLE_TIME = 1.0, 0.5
# What a change may take to be followed: the next reading, the settling, and the reading that ends it.
GRACE = 2 * SYNC_INTERVAL + SETTLE_TIME + 1.0

# The upper 1% point of chi-squared with 3 degrees of freedom.
ONE_PERCENT = 11.345

Keys = dict[str, str]


def main() -> int:
    """Runs the demo; 0 only if nothing was lost, doubled or misplaced."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    say("A hash exchange keeps each key's messages in one queue, in order, until queues come or go: then keys move,")
    say("and their order breaks. See how few move with ringproxy, and that nothing confirmed is lost or misplaced.\n")
    say("Getting a RabbitMQ ...")
    try:
        with running_broker() as broker:
            return asyncio.run(demo(broker))
    except SetupError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndemo: interrupted; broker and sidecar are stopped", file=sys.stderr)
        return 130


async def demo(broker: Broker) -> int:
    """The three acts: an even spread, changes while publishing goes on, the judgement."""
    vhost = f"ringproxy-demo-{os.getpid()}"
    settings = {
        "broker-url": broker.amqp_url,
        "management-url": broker.management_url,
        "sync-interval": str(SYNC_INTERVAL),
        "settle-time": str(SETTLE_TIME),
    }
    async with new_world(broker, vhost) as world:
        await world.declare(EXCHANGE, WEIGHTS)
        with running_sidecar(settings) as sidecar:
            say(f"RabbitMQ {broker.version} ({broker.source}); sidecar at {sidecar.http_url}")
            history, load = History(WEIGHTS, GRACE), Load(sidecar.http_url, vhost, EXCHANGE, KEYS)
            say(f"Publishing {MESSAGES:,} messages by HTTP, each answered once the broker has confirmed it:")
            began = time.monotonic()
            await load.run(lambda: len(load.sent) >= MESSAGES, progress)
            rate = len(load.sent) / (time.monotonic() - began)
            ours = [latest(load.sent)]
            even = print_spread(ours[0], rate)
            say("Binding a fifth queue, then unbinding the first, while publishing goes on:")
            ours += await change_under_load(load, world, history, Rings(sidecar, vhost))
        say("The same on the exchange itself, for comparison:")
        natively = await native_changes(world)
        found = await world.drain([*WEIGHTS, FIFTH[0]], len(load.sent))
    print_moved(ours, natively)
    numbers = {queue: [int(body) for body in bodies] for queue, bodies in found.items()}
    return conclude(load, judge(load.sent, numbers, history.eras()), even)


class Rings:
    """What the sidecar's admin listener says of its ring."""

    def __init__(self, sidecar: Sidecar, vhost: str) -> None:
        """Of the demo's exchange."""
        self._url = f"{sidecar.admin_url}/rings/{vhost}/{EXCHANGE}"

    async def until(self, weights: dict[str, int]) -> None:
        """Returns once the ring of these weights is in force."""
        wanted = fingerprint({Destination("queue", q): w for q, w in weights.items()}, HASH, "routing_key")
        async with aiohttp.ClientSession() as session, asyncio.timeout(30):
            while True:
                async with session.get(self._url) as response:
                    if (await response.json())["ring"] == wanted:
                        return
                await asyncio.sleep(0.02)


async def change_under_load(load: Load, world: World, history: History, rings: Rings) -> list[Keys]:
    """Binds the fifth queue and unbinds the first; where keys go after each, of a sample that is sent again."""
    stop = asyncio.Event()
    publishing = asyncio.create_task(load.run(stop.is_set, progress))
    placed = []
    weights = dict(WEIGHTS)
    try:
        for change, (queue, weight) in ((world.bind, FIFTH), (world.unbind, FIRST)):
            await more(load, publishing, 500)
            begun = time.monotonic()
            await change(EXCHANGE, queue, weight)
            if change == world.bind:
                weights[queue] = weight
            else:
                del weights[queue]
            history.changed(weights, begun, time.monotonic())
            await rings.until(weights)
            mark = time.monotonic()
            await more(load, publishing, SAMPLE + IN_FLIGHT)
            placed.append(latest([message for message in load.sent if message.sent > mark]))
    finally:
        stop.set()
        await publishing
    return placed


async def more(load: Load, publishing: "asyncio.Task[None]", count: int) -> None:
    """Returns once so many more messages are confirmed, or publishing ended early for a problem."""
    goal = len(load.sent) + count
    while len(load.sent) < goal and not publishing.done():  # noqa: ASYNC110 - nothing tells of each message
        await asyncio.sleep(0.02)


async def native_changes(world: World) -> list[Keys]:
    """Where keys go on x-consistent-hash itself: before, after the fifth queue came, after the first left."""
    names = {queue: f"native-{queue}" for queue in (*WEIGHTS, FIFTH[0])}
    await world.declare(NATIVE, {names[queue]: weight for queue, weight in WEIGHTS.items()})
    placed = []
    for step in range(3):
        if step == 1:
            await world.bind(NATIVE, names[FIFTH[0]], FIFTH[1])
        if step == 2:
            await world.unbind(NATIVE, names[FIRST[0]], FIRST[1])
        await world.publish_natively(NATIVE, KEYS[:SAMPLE])
        queues = [names[queue] for queue in (WEIGHTS if step == 0 else names)]
        found = await world.drain(queues, SAMPLE)
        placed.append({body.decode(): queue for queue, bodies in found.items() for body in bodies})
        progress((step + 1) * SAMPLE)
    return placed


def latest(messages: Sequence[Sent]) -> Keys:
    """Where each key went last."""
    return {message.key: message.queue for message in messages}


def print_spread(placed: Keys, rate: float) -> bool:
    """The table of how the keys spread, and whether they do so evenly. Keys and queues are always the same."""
    counts, total = counted(placed), sum(WEIGHTS.values())
    print(f"\n  {'queue':<10} {'weight':>6} {'expected':>9} {'got':>7}")
    for queue, weight in WEIGHTS.items():
        print(f"  {queue:<10} {weight:>6} {len(placed) * weight / total:>9,.0f} {counts[queue]:>7,}")
    chi = chi_squared(counts, WEIGHTS)
    fits = "even" if chi <= ONE_PERCENT else "UNEVEN"
    print(f"  chi-squared {chi:.2f}, 1% bound {ONE_PERCENT}: {fits}; {rate:,.0f} messages/s\n")
    return chi <= ONE_PERCENT


def print_moved(ours: list[Keys], natively: list[Keys]) -> None:
    """The table of which share of the keys changed queue at each change."""
    total = sum(WEIGHTS.values()) + FIFTH[1]
    # A queue that comes can take its share of the weight; of one that leaves, its own keys must go, and no other.
    both = ours[1].keys() & ours[2].keys()
    ideals = [FIFTH[1] / total, sum(ours[1][key] == FIRST[0] for key in both) / len(both)]
    print(f"\n  {'keys that change queue':<28} {'ideal':>7} {'ringproxy':>10} {'x-consistent-hash':>18}")
    for step, what in enumerate(("a fifth queue is bound", "the first queue is unbound")):
        shares = [moved(placed[step], placed[step + 1]) for placed in (ours, natively)]
        print(f"  {what:<28} {ideals[step]:>7.1%} {shares[0]:>10.1%} {shares[1]:>18.1%}")
    print(f"  (of {SAMPLE:,} keys)\n")


def conclude(load: Load, verdict: Verdict, even: bool) -> int:
    """The last lines, and the exit status."""
    for fault in [*load.problems, *verdict.faults][:10]:
        print(f"  FAULT: {fault}")
    faults = len(load.problems) + len(verdict.faults)
    print(
        f"{verdict.judged:,} confirmed messages, each looked for in every queue: {faults} faults."
        f" {verdict.by_one_ring:,} had one possible queue, the others were sent while a change took effect."
    )
    if 2 * verdict.by_one_ring < verdict.judged:
        print("  FAULT: most messages could have been in several queues, so this says little")
        return 1
    if faults or not even:
        return 1
    print("Every message is once in a queue that a ring in force between its send and its confirm says.")
    return 0


def say(text: str) -> None:
    """One line of what happens now."""
    print(text, flush=True)


def progress(count: int) -> None:
    """How far it is, on one line of a terminal, now and then elsewhere."""
    if sys.stdout.isatty():
        print(f"\r  {count:,}", end="\r", flush=True)
    elif count % 10_000 == 0:
        say(f"  {count:,}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
