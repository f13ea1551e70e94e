"""`python -m tests.chaos --seed=N --faults=N`: faults under load, and a judgement (docs/development/chaos.md)."""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import uvloop

from ring import compiled
from testbed.broker import installation
from testbed.cluster import private_cluster
from testbed.node import Node
from tests.chaos.arena import AGES, FLEET, LIMITS, PROGRAMS, SYNC_INTERVAL, arena, libraries
from tests.chaos.faults import Injector
from tests.chaos.health import MIB, Sample, observe, unwell, worst
from tests.chaos.hostile import Attacks
from tests.chaos.oracle import Fleet, Note, Told, Verdict, judge
from tests.chaos.plant import PLANTED, RETURNED, planted, returned
from tests.chaos.queues import EXCHANGE, Queues
from tests.chaos.schedule import Fault, Kind, schedule
from tests.chaos.watch import watch

WARM, CALM = 2.0, 6.0
"""Seconds of publishing before the first fault and after the last."""

ENOUGH_DELETED = 3
"""Bound queues deleted while their ring could be read: of one of them at least some messages come back."""

SHARP = 0.25
"""The share of the judged messages for which one queue alone must have been possible. The hang of the management API
alone lasts for a third of a short run's single-node half, in which every ring of the time before stays possible.
"""

SHOWN = 20

ADVANCED = "[{rabbit, [{quorum_commands_soft_limit, 100000}]}].\n"
"""The configuration of each node: a quorum queue that is deleted while a channel has reached this limit at it stops
RabbitMQ before 3.12 from reading that connection, for ever (docs/development/chaos.md, "What long runs have found"). No
publisher here reaches it.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description="Faults under load, and a judgement.")
    parser.add_argument("--seed", type=int, required=True, help="seed of the schedule")
    parser.add_argument("--faults", type=int, required=True, help="how many, half of them on a single node")
    arguments = parser.parse_args()
    libraries()
    faults = schedule(arguments.seed, arguments.faults)
    half = (len(faults) + 1) // 2
    choice = os.environ.get("BROKER", "")
    if choice.startswith(("amqp:", "docker:")):
        sys.exit(f"nodes are killed and clustered here, and BROKER={choice} is none of the testbed's own")
    rabbitmq = installation(choice)
    folder = Path(tempfile.mkdtemp(prefix="ringproxy-chaos-"))
    begun = time.monotonic()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        clusters = [private_cluster(rabbitmq, size, ADVANCED) for size in (1, 3)]
        single, three = pool.map(stack.enter_context, clusters)
        took = time.monotonic() - begun
        say(f"seed {arguments.seed}, {len(faults)} faults, {rabbitmq.source}; set up in {took:.0f} s")
        say(f"the sidecars' hot loop: {compiled.kind()}")
        say(f"notes and logs are in {folder}, and stay there unless all is green")
        wrong = uvloop.run(run("a single node, classic queues", single, "classic", faults[:half], folder / "single"))
        for node in single:
            node.kill()
        wrong += uvloop.run(run("three nodes, quorum queues", three, "quorum", faults[half:], folder / "three"))
    for fault in wrong:
        say(f"  FAULT: {fault}")
    say(f"{'RED' if wrong else 'green'} after {time.monotonic() - begun:.0f} s")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


async def run(title: str, nodes: list[Node], kind: str, faults: list[Fault], folder: Path) -> list[str]:
    """One arena, from declaring queues to the verdict: what was wrong, in words that name the arena."""
    say(f"\n{title}: {len(faults)} faults")
    queues = Queues(kind)
    queues.declare(nodes[0])
    async with arena(nodes, folder) as made:
        injector = Injector(made, queues, say)
        samples: list[Sample] = []
        watching = [
            asyncio.create_task(watch(made.front.port, queues.history)),
            asyncio.create_task(observe(made.members, samples)),
        ]
        made.start_clients()
        await asyncio.sleep(WARM)
        await injector.run(faults)
        calm = time.monotonic()
        await asyncio.sleep(CALM)
        await asyncio.to_thread(made.end_clients)
        for task in watching:
            task.cancel()
        for member in made.members:
            await asyncio.to_thread(member.end)
        await asyncio.to_thread(queues.drain, nodes)
        notes = [note for name in PROGRAMS for note in made.noted(name)]
    (folder / "history").write_text(json.dumps(asdict(queues.history), indent=1))
    with (folder / "copies").open("w") as file:
        file.writelines(f"{copy.publisher} {copy.number} {copy.queue} {copy.exchange!r}\n" for copy in queues.copies)
    faults_of_health = attacked(made.attacks(), samples)
    rerouted = sum(member.rerouted for member in made.members)
    fleet = replace(FLEET, answered=kind == "classic")
    wrong = report(notes, queues, fleet, injector.done, calm, rerouted, faults_of_health)
    for fault in wrong[:SHOWN]:
        say(f"  FAULT: {fault}")
    return [f"{title}: {fault}" for fault in wrong[:SHOWN]]


def attacked(attacks: Counter[str], samples: list[Sample]) -> list[str]:
    """Print what the hostile client did and how the sidecars were; what was wrong, in words."""
    say(f"\n  {attacks.total():,} attacks without a login: {dict(sorted(attacks.items()))}")
    for name, health in sorted(worst(samples).items()):
        say(
            f"  {name}: at most {health.resident // MIB} MiB resident, /livez within {health.livez * 1000:.0f} ms"
            f" ({health.looks} looks)"
        )
    missing = [kind.__name__ for kind in Attacks(EXCHANGE).kinds if not attacks[kind.__name__]]
    nothing = [f"no attack of these kinds was made, so this says nothing of them: {missing}"] if missing else []
    return nothing + unwell(samples, [f"sidecar {number}" for number in range(len(AGES))])


def report(
    notes: list[Note],
    queues: Queues,
    fleet: Fleet,
    done: Counter[Kind],
    calm: float,
    rerouted: int,
    others: list[str],
) -> list[str]:
    """Print the verdict; what was wrong, in words, be it that the judge does not find what is planted.

    `calm` is when all was well again; `rerouted` counts messages that came back and that sidecars published again;
    `others` are faults that were found elsewhere.
    """
    verdict = judge(notes, queues.copies, queues.history, LIMITS, fleet)
    recovered = {note.publisher for note in notes if note.sent > calm and note.outcome == Told.CONFIRMED}
    recovered |= {name for name, gave_up in verdict.unanswered.items() if gave_up > calm}
    hung = [f"{name} was confirmed nothing once all was well again" for name in PROGRAMS if name not in recovered]
    faults = [*others, *verdict.faults, *hung]
    if verdict.by_one_ring < SHARP * verdict.routed:
        faults.append("of too few messages one queue alone was possible, so this says little")
    if not rerouted and queues.history.seen_deletions(SYNC_INTERVAL) >= ENOUGH_DELETED:
        faults.append("queues were deleted, and no sidecar published a message again, so this says nothing of that")
    print_tables(verdict, done, queues)
    if queues.history.flaps:
        say(f"  {verdict.flapped:,} messages of queues that were deleted again and again were answered in time")
    for name in verdict.unanswered:
        say(f"  {name} gave up a publish that RabbitMQ had not answered")
    for name, longest in verdict.standstills.items():
        say(f"  {name} stood still for {longest:.1f} s at the most while the management API hung")
    say(f"  {rerouted:,} messages that came back were published again, each try counted")
    say(f"  {len(faults)} faults of the proxy")
    if faults:
        return faults
    copies = planted(notes, queues.copies, queues.history, LIMITS, fleet)
    with_return = returned(notes, queues.history, LIMITS, fleet)
    found = judge(with_return, copies, queues.history, LIMITS, fleet).faults
    wanted, what = PLANTED, "a loss, a misroute and a duplicate"
    if queues.history.flaps:
        wanted, what = (*PLANTED, RETURNED), "a loss, a misroute, a duplicate and a return"
    if not all(any(words in fault for fault in found) for words in wanted):
        return [f"{what} were planted here, and the judge found only {found[:SHOWN]}"]
    say(f"  {what} planted in this run are found")
    return []


def print_tables(verdict: Verdict, done: Counter[Kind], queues: Queues) -> None:
    say("")
    for kind, count in sorted(done.items()):
        say(f"  {kind:<30} {count:>5}")
    say(f"  {'all faults':<30} {done.total():>5}\n")
    say(f"  {'publisher':<18}" + "".join(f"{told:>11}" for told in Told))
    total: Counter[Told] = Counter()
    for name, outcomes in verdict.outcomes.items():
        say(f"  {name:<18}" + "".join(f"{outcomes[told]:>11,}" for told in Told))
        total += outcomes
    say(f"  {'all':<18}" + "".join(f"{total[told]:>11,}" for told in Told))
    say(f"  {'found in a queue':<18}" + "".join(f"{verdict.found[told]:>11,}" for told in Told))
    say(f"  {total.total():,} publishes; {len(queues.history.changes)} changes of bindings")
    say(f"  {queues.history.impaired_for():.0f} s in which bindings could not be read, or not soon")
    say(f"  {verdict.stale_for:.1f} s in which every ring was too old, and nothing could be routed through sidecar 0")
    say(f"  {verdict.by_one_ring:,} of {verdict.routed:,} confirmed messages had one possible queue;")
    say(f"  {verdict.in_order:,} pairs were in order, {verdict.moved:,} were not and need not be;")
    say(f"  {verdict.duplicates:,} messages were there twice, as they may be;")
    say(f"  {verdict.exempt.total():,} confirmed messages went with their queue: {dict(verdict.exempt)}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
