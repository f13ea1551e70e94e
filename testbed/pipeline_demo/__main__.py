"""`make pipeline-demo`: what the data pipeline answers of real sidecars' journals, whole and sampled, in 3 minutes."""

import asyncio
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from yarl import URL

from testbed.broker import Broker, running_broker
from testbed.browser import running_browser
from testbed.debian import ensure_package
from testbed.demo.rings import Rings
from testbed.demo.world import World, new_world
from testbed.ending import status_of
from testbed.java import ensure_java
from testbed.pipeline_demo import sample
from testbed.pipeline_demo.jobs import Jobs
from testbed.pipeline_demo.pages import looked_at
from testbed.pipeline_demo.resharding import Resharding
from testbed.pipeline_demo.running import Runner, notebook
from testbed.pipeline_demo.traffic import DOUBLED, LEFT_OUT, Consumer, Publisher, channel_to, keys, write_rows
from testbed.sidecar import Sidecar, running_sidecar

EXCHANGE = "orders"
WEIGHTS = {"orders.1": 1, "orders.2": 1, "orders.3": 1, "orders.4": 1}
FIFTH, HEAVIER = ("orders.5", 1), ("orders.2", 1, 2)
"""The queue that is added, and the one whose weight changes, from and to what."""

MESSAGES = 2000
"""The messages of each stretch over AMQP, and as many again by HTTP."""
STREAM = "journal"
"""The stream queue of the sidecar that journals to one, which is a second one."""
ROWS = 5000
"""To publish straight to the queues."""


def main() -> int:
    """Run the demo; 0 only if every job ran, found what is known to be there, and a browser shows its report."""
    begun = time.monotonic()
    ensure_java()
    ensure_package("chromium", "chromium")
    say("Getting a RabbitMQ ...")
    with running_broker() as broker, tempfile.TemporaryDirectory(prefix="ringproxy-pipeline-") as folder:
        faults = asyncio.run(demo(broker, Path(folder)))
    for fault in faults:
        print(f"  FAULT: {fault}")
    print(f"{'All of it held' if not faults else f'{len(faults)} faults'}, in {time.monotonic() - begun:.0f} s.")
    return 1 if faults else 0


async def demo(broker: Broker, folder: Path) -> list[str]:
    """Traffic, the jobs on its journal, and their reports in a browser; what did not hold."""
    vhost = f"ringproxy-pipeline-{os.getpid()}"
    direct = URL(broker.amqp_url).with_path("/") / quote(vhost, safe="")
    settings = {
        "broker-url": broker.amqp_url,
        "management-url": broker.management_url,
        "sync-interval": "1",
        "settle-time": "0.5",
        "journal-dir": str(folder / "journal"),
    }
    jobs = Jobs(folder, vhost, EXCHANGE)
    async with (
        # Two sessions, of which the other one is the night's: while one starts or plans, the other computes.
        notebook(folder / "notebook.log") as here,
        new_world(broker, vhost) as world,
        channel_to(str(direct)) as channel,
    ):
        await world.declare(EXCHANGE, WEIGHTS)
        await world.declare(sample.EXCHANGE, sample.WEIGHTS)
        consumer, publisher, paid = Consumer(channel), Publisher(EXCHANGE), Publisher(sample.EXCHANGE)
        for queue in WEIGHTS:
            await consumer.consume(queue)
        trips = Resharding(broker, vhost, folder, channel)
        await trips.make()
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        with running_sidecar(settings) as sidecar:
            say(f"RabbitMQ {broker.version} ({broker.source}); a sidecar that journals to files")
            await traffic(publisher, consumer, world, sidecar, direct)
            await paid.by_http(sidecar.http_url, vhost, sample.payments())
            await trips.publish(sidecar)
        with running_sidecar(settings | sample.settings(folder)) as sidecar:
            await Publisher(sample.EXCHANGE).by_http(sidecar.http_url, vhost, sample.payments())
        await consumer.until(len(publisher.confirmed))
        consumer.write(folder / "seen.parquet", LEFT_OUT, DOUBLED)
        say(f"{len(publisher.confirmed):,} messages confirmed, {len(consumer.seen):,} seen by their consumer,")
        say(f"which then forgets {LEFT_OUT} of them and notes {DOUBLED} twice;")
        say(f"{len(paid.confirmed):,} payments; and again by a sidecar that journals {sample.SAMPLE:.0%} of the keys;")
        say(f"{trips.confirmed:,} trips\n")

        # No job publishes, and no other sidecar runs, while shards change.
        await asyncio.gather(trips.plan(jobs, here), bulk(jobs, here, broker, direct, folder, consumer))
        streaming = {name: value for name, value in settings.items() if name != "journal-dir"}
        with running_sidecar(streaming | {"broker-url": str(direct), "journal-stream": STREAM}) as sidecar:
            await Publisher(EXCHANGE).by_http(sidecar.http_url, vhost, keys(MESSAGES, seed=5))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sample.run(jobs, here, folder, vhost))
            tasks.create_task(jobs.reconcile(here, LEFT_OUT, DOUBLED))
            tasks.create_task(jobs.land(here, str(direct), STREAM, MESSAGES))
            with running_sidecar(settings) as sidecar:
                await trips.change(jobs, sidecar)
            night = await trips.night(jobs, day)
    jobs.usage(night / "usage", len(publisher.confirmed) + len(paid.confirmed) + trips.confirmed)
    jobs.skew(night / "skew")
    sample.compared(jobs, folder, night)
    say("The reports in a browser:")
    with running_browser() as browser:
        looks = [
            looked_at(browser, folder / job / "report.html", plotted=plotted) for job, plotted in jobs.reports.items()
        ]
        for job, (shown, faults) in zip(jobs.reports, await asyncio.gather(*looks), strict=True):
            say(f"  {job.replace(day, 'DAY'):<16} {shown}")
            jobs.faults += faults
    return jobs.faults


async def bulk(jobs: Jobs, by: Runner, broker: Broker, direct: URL, folder: Path, consumer: Consumer) -> None:
    """Publish rows straight to the queues, where each must arrive once."""
    write_rows(folder / "rows", ROWS)
    before = len(consumer.seen)
    await jobs.publish(by, str(direct), broker.management_url)
    await consumer.until(before + ROWS)
    arrived = [str(row.message_id) for row in consumer.seen[before:]]
    if sorted(arrived) != sorted(f"row-{n}" for n in range(ROWS)):
        jobs.faults.append(f"publish: of {ROWS} rows, {len(set(arrived))} arrived, {len(arrived)} messages")


async def traffic(publisher: Publisher, consumer: Consumer, world: World, sidecar: Sidecar, direct: URL) -> None:
    """Three stretches over AMQP and by HTTP: before and after a weight changes, and while a queue is added."""
    vhost, rings = direct.path.removeprefix("/"), Rings(sidecar.admin_url, direct.path.removeprefix("/"), EXCHANGE)
    host, _, port = sidecar.amqp_address.rpartition(":")
    weights = dict(WEIGHTS)
    async with channel_to(str(direct.with_scheme("amqp").with_host(host).with_port(int(port)))) as channel:

        async def publish(stretch: int) -> None:
            # Each ingress has keys of its own: two at once would put a key's messages in no order.
            await asyncio.gather(
                publisher.by_amqp(channel, keys(MESSAGES, stretch, hot=5 / 8)),
                publisher.by_http(sidecar.http_url, vhost, keys(MESSAGES, stretch, "web-")),
            )

        await publish(1)
        queue, before, after = HEAVIER
        await world.unbind(EXCHANGE, queue, before)
        await world.bind(EXCHANGE, queue, after)
        weights[queue] = after
        await rings.until(weights)
        await publish(2)
        stretch = asyncio.create_task(publish(3))
        await world.bind(EXCHANGE, *FIFTH)
        weights[FIFTH[0]] = FIFTH[1]
        await consumer.consume(FIFTH[0])
        await rings.until(weights)
        await stretch
        await publish(4)


def say(text: str) -> None:
    """Print one line on what happens now."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(status_of("pipeline-demo", main))
