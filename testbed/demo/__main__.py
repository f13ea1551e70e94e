"""`make demo`: what ringproxy is for, shown on a real broker in under three minutes."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from yarl import URL

from ring.destination import Destination
from ring.ring import Ring
from testbed import SetupError
from testbed.broker import Broker, running_broker
from testbed.demo.group import group_act
from testbed.demo.group_oracle import Verdict as GroupVerdict
from testbed.demo.growth import growth_act
from testbed.demo.load import IN_FLIGHT, Load
from testbed.demo.oracle import History, Sent, Verdict, chi_squared, judge, moved
from testbed.demo.publisher import key_of
from testbed.demo.race import TURNS, Lane, Race, race
from testbed.demo.rings import Rings
from testbed.demo.screen import Advance, bar, say
from testbed.demo.series import series_act
from testbed.demo.topology import PASSWORD, WRITER, Topology, may_write_directly
from testbed.demo.world import World, new_world
from testbed.ending import status_of
from testbed.sidecar import Sidecar, running_sidecar

MESSAGES = 100_000
"""Messages over AMQP, of as many keys: through the sidecar, and again to the exchange itself."""
SAMPLE = 4_000
"""Messages by HTTP before and after each change, of as many keys, by which it is told which keys moved."""
KEYS = [key_of(number) for number in range(SAMPLE)]
WEIGHTS = {"orders.1": 1, "orders.2": 1, "orders.3": 2, "orders.4": 2}
FIFTH, FIRST = ("orders.5", 1), ("orders.1", 1)
BEFORE = 500
"""Messages by HTTP before each change."""
EXCHANGE, NATIVE = "orders", "orders-native"

SYNC_INTERVAL, SETTLE_TIME = 1.0, 0.5
# A change is followed within the next reading, the settling, and the reading that ends it.
GRACE = 2 * SYNC_INTERVAL + SETTLE_TIME + 1.0

# The upper 1% point of chi-squared with 3 degrees of freedom.
ONE_PERCENT = 11.345

Keys = dict[str, str]


def main() -> int:
    """Run the demo; 0 only if nothing was lost, doubled or misplaced."""
    say("A hash exchange keeps each key's messages in one queue, in order, until queues come or go: then keys move,")
    say("and their order breaks. See how few move with ringproxy, and that nothing confirmed is lost or misplaced.\n")
    say("Getting a RabbitMQ ...")
    with running_broker() as broker:
        return asyncio.run(demo(broker))


async def demo(broker: Broker) -> int:
    """Run the acts: the race of pika programs, changes under load, consumers, a pool of workers, growth in order."""
    vhost = f"ringproxy-demo-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="ringproxy-demo-") as folder:
        topology = Topology(broker, vhost, EXCHANGE, Path(folder, "topology.toml"))
        async with new_world(broker, vhost) as world:
            try:
                status = await acts(broker, vhost, world, topology)
            finally:
                await topology.forget_writer()
        status = max(status, conclude_group(await group_act(broker, f"{vhost}-group", Path(folder), say)))
        status = max(status, conclude_series(await series_act(broker, f"{vhost}-series", Path(folder), say)))
        return max(status, conclude_growth(await growth_act(broker, f"{vhost}-growth", Path(folder), say)))


async def acts(broker: Broker, vhost: str, world: World, topology: Topology) -> int:
    """Make the exchange from a file, publish to it, change it, and judge."""
    say(f"RabbitMQ {broker.version} ({broker.source})")
    await make_shards(topology)
    await world.declare(NATIVE, {native_name(queue): weight for queue, weight in WEIGHTS.items()})
    settings = {
        "broker-url": str(as_writer(broker, vhost)),
        "management-url": broker.management_url,
        "sync-interval": str(SYNC_INTERVAL),
        "settle-time": str(SETTLE_TIME),
    }
    with running_sidecar(settings) as sidecar:
        say(f"sidecar at amqp://{sidecar.amqp_address} and {sidecar.http_url}")
        raced = await pika_act(broker, vhost, world, sidecar)
        history, load = History(WEIGHTS, GRACE), Load(sidecar.http_url, vhost, EXCHANGE, KEYS)
        say("By HTTP now, each message answered once the broker has confirmed it.")
        with bar("messages", SAMPLE) as advance:
            await load.run(lambda: enough(len(load.sent), advance))
        ours = [latest(load.sent)]
        say("A fifth shard from the file, then the first one retired, while publishing goes on:")
        change = Change(topology, sidecar, history, Rings(sidecar.admin_url, vhost, EXCHANGE))
        ours += await change_under_load(load, change)
    say("The same on the exchange itself, for comparison:")
    natively = await native_changes(world)
    found = await world.drain([*WEIGHTS, FIFTH[0]], len(load.sent), lambda body: KEYS[int(body) % SAMPLE])
    print_moved(ours, natively)
    faults = [*load.problems, *told_and_moved(change.planned, ours)]
    if world.strange_keys:
        faults.append(f"{world.strange_keys} messages reached their consumer with another routing key")
    numbers = {queue: [int(body) for body in bodies] for queue, bodies in found.items()}
    return conclude(faults, judge(load.sent, numbers, history.eras()), raced)


async def make_shards(topology: Topology) -> None:
    """Make the exchange with its shards from a file, and the user who publishes to it."""
    text = topology.write(WEIGHTS)
    say("The exchange and its queues come from a file, through lanes that keep each message's routing key:\n")
    say("".join(f"    {line}\n" for line in text.splitlines()))
    plan = await topology.plan()
    say(f"  ring-proxy topology apply topology.toml: {(await topology.apply()).splitlines()[-1]}")
    right = await topology.permit_writer(plan["rights"])
    if may_write_directly(right):
        raise SetupError(f"a right that reaches every queue: {right}")
    say(f"  all publishers have this right alone: {right}\n")


def as_writer(broker: Broker, vhost: str) -> URL:
    """Return the broker's URL for the user who publishes."""
    return (URL(broker.amqp_url).with_user(WRITER).with_password(PASSWORD).with_path("/")) / quote(vhost, safe="")


async def pika_act(broker: Broker, vhost: str, world: World, sidecar: Sidecar) -> Verdict:
    """Run the same pika program through the sidecar and to the exchange itself; print the spread and the flaws."""
    say(f"An ordinary pika program publishes {MESSAGES:,} messages with confirms, through the sidecar's AMQP port and,")
    say(f"turn about, to the exchange itself, {MESSAGES // TURNS:,} a turn:")
    direct = URL(broker.amqp_url).with_path("/") / quote(vhost, safe="")
    host, _, port = sidecar.amqp_address.rpartition(":")
    proxied = as_writer(broker, vhost).with_scheme("amqp").with_host(host).with_port(int(port))
    through = Lane(str(proxied), EXCHANGE, {queue: queue for queue in WEIGHTS})
    native = Lane(str(direct), NATIVE, {queue: native_name(queue) for queue in WEIGHTS})
    with bar("messages", 2 * MESSAGES) as advance:
        result = await race(world, through, native, MESSAGES, advance)
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


@dataclass
class Change:
    """The changes of the exchange, with those who are told of them."""

    topology: Topology
    sidecar: Sidecar
    history: History
    rings: Rings
    planned: float = 0.0
    """The share of all keys that the plan of the fifth shard said would move."""

    async def grow(self) -> dict[str, int]:
        """Apply the file with a fifth shard, and return the new weights."""
        weights = {**WEIGHTS, FIFTH[0]: FIFTH[1]}
        self.topology.write(weights)
        (planned,) = (await self.topology.plan())["exchanges"]
        self.planned = planned["moved"]
        await self.topology.apply()
        return weights

    async def retire(self) -> dict[str, int]:
        """Take the first shard off the ring, and return the new weights; its messages stay for the judge."""
        await self.topology.retire(FIRST[0], self.sidecar.admin_url)
        return {queue: weight for queue, weight in {**WEIGHTS, FIFTH[0]: FIFTH[1]}.items() if queue != FIRST[0]}


async def change_under_load(load: Load, change: Change) -> list[Keys]:
    """Add the fifth shard and retire the first; where keys go after each, of a sample that is sent again."""
    stop = asyncio.Event()
    publishing = asyncio.create_task(load.run(stop.is_set))
    placed: list[Keys] = []
    try:
        for what, step in (("the fifth comes", change.grow), ("the first leaves", change.retire)):
            await more(load, publishing, BEFORE)
            begun = time.monotonic()
            weights = await step()
            change.history.changed(weights, begun, time.monotonic())
            await change.rings.until(weights)
            mark = time.monotonic()
            with bar(f"{what}, messages", SAMPLE + IN_FLIGHT) as advance:
                await more(load, publishing, SAMPLE + IN_FLIGHT, advance)
            placed.append(latest([message for message in load.sent if message.sent > mark]))
    finally:
        stop.set()
        await publishing
    return placed


def told_and_moved(planned: float, ours: list[Keys]) -> list[str]:
    """Print the share of the keys that the plan told beside the keys that moved; return what differs."""
    old, new = (
        Ring.build({Destination("queue", queue): weight for queue, weight in weights.items()})
        for weights in (WEIGHTS, {**WEIGHTS, FIFTH[0]: FIFTH[1]})
    )
    expected = {key for key in KEYS if old.owner_of(key.encode()) != new.owner_of(key.encode())}
    found = {key for key in ours[0].keys() & ours[1].keys() if ours[0][key] != ours[1][key]}
    say(f"  plan of the fifth shard: {planned:.2%} of all keys move, which are {len(expected)} of the {SAMPLE:,} here")
    say(f"  keys that moved: {len(found)}, {'the same' if found == expected else 'OTHERS'}\n")
    faults = [] if found == expected else ["the keys that moved are not those of the plan"]
    return faults if planned == new.moved_from(old) else [*faults, "the plan told another share than the rings have"]


def enough(done: int, advance: Advance) -> bool:
    """Tell how many messages of the sample are confirmed, and return whether all are."""
    advance(done)
    return done >= SAMPLE


async def more(load: Load, publishing: "asyncio.Task[None]", count: int, advance: Advance = lambda done: None) -> None:
    """Return once so many more messages are confirmed, or publishing ended early for a problem."""
    begun = len(load.sent)
    while (done := len(load.sent) - begun) < count and not publishing.done():
        advance(done)
        await asyncio.sleep(0.02)
    advance(len(load.sent) - begun)


async def native_changes(world: World) -> list[Keys]:
    """Where keys go on x-consistent-hash itself: before, after the fifth queue came, after the first left."""
    names = {queue: native_name(queue) for queue in (*WEIGHTS, FIFTH[0])}
    placed = []
    with bar("messages", 3 * SAMPLE) as advance:
        for step in range(3):
            if step == 1:
                await world.bind(NATIVE, names[FIFTH[0]], FIFTH[1])
            if step == 2:
                await world.unbind(NATIVE, names[FIRST[0]], FIRST[1])
            await world.publish_natively(NATIVE, KEYS)
            queues = [names[queue] for queue in (WEIGHTS if step == 0 else names)]
            found = await world.drain(queues, SAMPLE, bytes.decode)
            placed.append({body.decode(): queue for queue, bodies in found.items() for body in bodies})
            advance((step + 1) * SAMPLE)
    return placed


def latest(messages: Sequence[Sent]) -> Keys:
    """Where each key went last."""
    return {message.key: message.queue for message in messages}


def print_race(through: Lane, native: Lane, result: Race) -> bool:
    """Print the table of spreads; return whether ringproxy's is even. Keys and queues are always the same."""
    ours, total = {queue: len(numbers) for queue, numbers in result.through.items()}, sum(WEIGHTS.values())
    print(f"\n  {'queue':<22} {'weight':>6} {'expected':>9} {'ringproxy':>10} {'x-consistent-hash':>18}")
    for queue, weight in WEIGHTS.items():
        expected = MESSAGES * weight / total
        print(f"  {queue:<22} {weight:>6} {expected:>9,.0f} {ours[queue]:>10,} {result.native[queue]:>18,}")
    chi = [chi_squared(counts, WEIGHTS) for counts in (ours, result.native)]
    print(f"  {'chi-squared, 1% bound':<29} {ONE_PERCENT:>9} {chi[0]:>10.2f} {chi[1]:>18.2f}")
    print(f"  {'confirmed':<39} {len(through.confirmed):>10,} {len(native.confirmed):>18,}")
    print()
    return chi[0] <= ONE_PERCENT


def print_moved(ours: list[Keys], natively: list[Keys]) -> None:
    """Print the share of the keys that changed their queue at each change."""
    total = sum(WEIGHTS.values()) + FIFTH[1]
    # A queue that comes can take its share of the weight; of one that leaves, its own keys must go, and no other.
    both = ours[1].keys() & ours[2].keys()
    ideals = [FIFTH[1] / total, sum(ours[1][key] == FIRST[0] for key in both) / len(both)]
    print(f"\n  {'keys that change queue':<28} {'ideal':>7} {'ringproxy':>10} {'x-consistent-hash':>18}")
    for step, what in enumerate(("a fifth shard is added", "the first shard is retired")):
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
    print("Every message is once in a queue that a ring in force between its send and its confirm says,")
    print("and its consumer saw the routing key that it was published with.")
    return 0


def conclude_group(verdict: GroupVerdict) -> int:
    """Print what came of the consumers, and return the exit status."""
    for fault in verdict.faults[:10]:
        print(f"  FAULT: {fault}")
    print(f"{verdict.judged:,} messages confirmed, and looked for at the consumers: {len(verdict.faults)} faults.")
    if verdict.faults:
        return 1
    print(f"Each message reached a consumer, and each key came in order; {verdict.again} came again, marked as such.")
    return 0


def conclude_series(faults: list[str]) -> int:
    """Print what came of the pool of workers, and return the exit status."""
    for fault in faults[:10]:
        print(f"  FAULT: {fault}")
    print(f"Through the sidecar: {len(faults)} faults.")
    if faults:
        return 1
    print(
        "The failing order's customer waited and went on in order, all others went on, and no two orders of a customer"
    )
    print("were worked on at once.")
    return 0


def conclude_growth(faults: list[str]) -> int:
    """Print what came of the growth, and return the exit status."""
    for fault in faults[:10]:
        print(f"  FAULT: {fault}")
    print(f"Growth: {len(faults)} faults.")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(status_of("demo", main))
