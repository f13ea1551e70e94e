"""`make demo`: what ringproxy is for, shown on a real broker in under three minutes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from urllib.parse import quote

from yarl import URL

from testbed import SetupError
from testbed.broker import Broker, running_broker
from testbed.demo.load import IN_FLIGHT, Load
from testbed.demo.oracle import History, Sent, Verdict, chi_squared, judge, moved
from testbed.demo.publisher import key_of
from testbed.demo.race import TURNS, Lane, Race, race
from testbed.demo.rings import Rings
from testbed.demo.world import World, new_world
from testbed.sidecar import Sidecar, running_sidecar

MESSAGES = 100_000
"""Messages over AMQP, of as many keys: through the sidecar, and again to the exchange itself."""
SAMPLE = 4_000
"""Messages by HTTP before and after each change, of as many keys, by which it is told which keys moved."""
KEYS = [key_of(number) for number in range(SAMPLE)]
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
    """Run the demo; 0 only if nothing was lost, doubled or misplaced."""
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
    """Run the three acts: the race of pika programs, changes while publishing goes on, the judgement."""
    vhost = f"ringproxy-demo-{os.getpid()}"
    settings = {
        "broker-url": broker.amqp_url,
        "management-url": broker.management_url,
        "sync-interval": str(SYNC_INTERVAL),
        "settle-time": str(SETTLE_TIME),
    }
    async with new_world(broker, vhost) as world:
        await world.declare(EXCHANGE, WEIGHTS)
        await world.declare(NATIVE, {native_name(queue): weight for queue, weight in WEIGHTS.items()})
        with running_sidecar(settings) as sidecar:
            say(f"RabbitMQ {broker.version} ({broker.source})")
            say(f"sidecar at amqp://{sidecar.amqp_address} and {sidecar.http_url}")
            raced = await pika_act(broker, vhost, world, sidecar)
            history, load = History(WEIGHTS, GRACE), Load(sidecar.http_url, vhost, EXCHANGE, KEYS)
            say("By HTTP now, each message answered once the broker has confirmed it.")
            await load.run(lambda: len(load.sent) >= SAMPLE, progress)
            ours = [latest(load.sent)]
            say("Binding a fifth queue, then unbinding the first, while publishing goes on:")
            ours += await change_under_load(load, world, history, Rings(sidecar, vhost, EXCHANGE))
        say("The same on the exchange itself, for comparison:")
        natively = await native_changes(world)
        found = await world.drain([*WEIGHTS, FIFTH[0]], len(load.sent))
    print_moved(ours, natively)
    numbers = {queue: [int(body) for body in bodies] for queue, bodies in found.items()}
    return conclude(load.problems, judge(load.sent, numbers, history.eras()), raced)


async def pika_act(broker: Broker, vhost: str, world: World, sidecar: Sidecar) -> Verdict:
    """Run the same pika program through the sidecar and to the exchange itself; print rates, spread and flaws."""
    say(f"An ordinary pika program publishes {MESSAGES:,} messages with confirms, through the sidecar's AMQP port and,")
    say(f"turn about, to the exchange itself, {MESSAGES // TURNS:,} a turn:")
    direct = URL(broker.amqp_url).with_path("/") / quote(vhost, safe="")
    host, _, port = sidecar.amqp_address.rpartition(":")
    proxied = direct.with_scheme("amqp").with_host(host).with_port(int(port))
    through = Lane(str(proxied), EXCHANGE, {queue: queue for queue in WEIGHTS})
    native = Lane(str(direct), NATIVE, {queue: native_name(queue) for queue in WEIGHTS})
    result = await race(world, through, native, MESSAGES, say)
    verdict = judge(through.sent(), result.through, History(WEIGHTS, GRACE).eras())
    verdict.faults[:0] = through.problems + native.problems
    if result.native.total() != len(native.confirmed):
        verdict.faults.append(f"{NATIVE}: {len(native.confirmed)} confirmed, {result.native.total()} in its queues")
    if not print_race(through, native, result):
        verdict.faults.append("the spread through the sidecar is uneven")
    return verdict


def native_name(queue: str) -> str:
    """Return the queue of the exchange that is used without the sidecar."""
    return f"native-{queue}"


async def change_under_load(load: Load, world: World, history: History, rings: Rings) -> list[Keys]:
    """Bind the fifth queue and unbinds the first; where keys go after each, of a sample that is sent again."""
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
    """Return once so many more messages are confirmed, or publishing ended early for a problem."""
    goal = len(load.sent) + count
    while len(load.sent) < goal and not publishing.done():  # noqa: ASYNC110 - nothing tells of each message
        await asyncio.sleep(0.02)


async def native_changes(world: World) -> list[Keys]:
    """Where keys go on x-consistent-hash itself: before, after the fifth queue came, after the first left."""
    names = {queue: native_name(queue) for queue in (*WEIGHTS, FIFTH[0])}
    placed = []
    for step in range(3):
        if step == 1:
            await world.bind(NATIVE, names[FIFTH[0]], FIFTH[1])
        if step == 2:
            await world.unbind(NATIVE, names[FIRST[0]], FIRST[1])
        await world.publish_natively(NATIVE, KEYS)
        queues = [names[queue] for queue in (WEIGHTS if step == 0 else names)]
        found = await world.drain(queues, SAMPLE)
        placed.append({body.decode(): queue for queue, bodies in found.items() for body in bodies})
        progress((step + 1) * SAMPLE)
    return placed


def latest(messages: Sequence[Sent]) -> Keys:
    """Where each key went last."""
    return {message.key: message.queue for message in messages}


def print_race(through: Lane, native: Lane, result: Race) -> bool:
    """Print the table of rates and spreads; return whether ringproxy's is even. Keys and queues are always the same."""
    ours, total = {queue: len(numbers) for queue, numbers in result.through.items()}, sum(WEIGHTS.values())
    print(f"\n  {'queue':<22} {'weight':>6} {'expected':>9} {'ringproxy':>10} {'x-consistent-hash':>18}")
    for queue, weight in WEIGHTS.items():
        expected = MESSAGES * weight / total
        print(f"  {queue:<22} {weight:>6} {expected:>9,.0f} {ours[queue]:>10,} {result.native[queue]:>18,}")
    chi = [chi_squared(counts, WEIGHTS) for counts in (ours, result.native)]
    print(f"  {'chi-squared, 1% bound':<29} {ONE_PERCENT:>9} {chi[0]:>10.2f} {chi[1]:>18.2f}")
    print(f"  {'confirmed':<39} {len(through.confirmed):>10,} {len(native.confirmed):>18,}")
    print(f"  {'messages/s, median':<39} {through.rate:>10,.0f} {native.rate:>18,.0f}")
    if native.rate:
        print(f"  ringproxy has {through.rate / native.rate:.0%} of the rate of the exchange itself\n")
    return chi[0] <= ONE_PERCENT


def print_moved(ours: list[Keys], natively: list[Keys]) -> None:
    """Print the share of the keys that changed their queue at each change."""
    total = sum(WEIGHTS.values()) + FIFTH[1]
    # A queue that comes can take its share of the weight; of one that leaves, its own keys must go, and no other.
    both = ours[1].keys() & ours[2].keys()
    ideals = [FIFTH[1] / total, sum(ours[1][key] == FIRST[0] for key in both) / len(both)]
    print(f"\n  {'keys that change queue':<28} {'ideal':>7} {'ringproxy':>10} {'x-consistent-hash':>18}")
    for step, what in enumerate(("a fifth queue is bound", "the first queue is unbound")):
        shares = [moved(placed[step], placed[step + 1]) for placed in (ours, natively)]
        print(f"  {what:<28} {ideals[step]:>7.1%} {shares[0]:>10.1%} {shares[1]:>18.1%}")
    print(f"  (of {SAMPLE:,} keys)\n")


def conclude(problems: list[str], verdict: Verdict, raced: Verdict) -> int:
    """Print the last lines, and return the exit status."""
    faults = [*raced.faults, *problems, *verdict.faults]
    for fault in faults[:10]:
        print(f"  FAULT: {fault}")
    print(
        f"{raced.judged:,} messages confirmed over AMQP and {verdict.judged:,} by HTTP, each looked for in every queue:"
        f" {len(faults)} faults.\n{raced.by_one_ring + verdict.by_one_ring:,} had one possible queue, the others were"
        " sent while a change took effect."
    )
    if 2 * verdict.by_one_ring < verdict.judged:
        print("  FAULT: most messages by HTTP could have been in several queues, so this says little")
        return 1
    if faults:
        return 1
    print("Every message is once in a queue that a ring in force between its send and its confirm says.")
    return 0


def say(text: str) -> None:
    """Print one line on what happens now."""
    print(text, flush=True)


def progress(count: int) -> None:
    """How far it is, on one line of a terminal, now and then elsewhere."""
    if sys.stdout.isatty():
        print(f"\r  {count:,}", end="\r", flush=True)
    elif count % 4_000 == 0:
        say(f"  {count:,}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
