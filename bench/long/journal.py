"""What the journal costs."""

import re
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from bench.amqp import COMPILED, Way, contender
from bench.long.scene import Scene, raced, rows
from bench.tables import table
from bench.world import EXCHANGE, QUEUES, World, running_compiled
from testbed.sidecar import Sidecar

SAMPLES = {"a journal of 1%": "0.01", "a journal of all": "1"}
"""By title: the share of the keys."""


def journal(world: World) -> str:
    """Sidecars with and without one, in turn; and what of the records was dropped."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, _, plain = Scene("", EXCHANGE, QUEUES).ways(world)
        ways, sidecars = [plain], {}
        for title, sample in SAMPLES.items():
            settings = {"journal-dir": str(folder / sample), "journal-sample": sample}
            sidecar = sidecars[title] = stack.enter_context(running_compiled(world.node, settings))
            ways.append(Way(f"{COMPILED}, {title}", sidecar.amqp_url, plain.messages, sidecar.process.pid))
        found = rows({"": raced([contender(world, way) for way in ways])}, "")
        dropped = [[title, *_records(sidecar)] for title, sidecar in sidecars.items()]
    return f"{found}\n\n{table(['', 'records', 'of them dropped'], dropped)}"


def _records(sidecar: Sidecar) -> tuple[str, str]:
    """Taken and dropped, by its metrics."""
    with urllib.request.urlopen(f"{sidecar.admin_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    def total(name: str) -> str:
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, flags=re.M)
        return f"{sum(map(float, found)):,.0f}"

    return total("ringproxy_journal_records_total"), total("ringproxy_journal_dropped_total")
