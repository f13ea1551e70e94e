"""The memory of a sidecar that serves nobody: one ring of 8 queues, and all three listeners."""

import urllib.error
from collections.abc import Mapping

from bench import BenchError
from bench.long.tls import certificate
from bench.process import memory, peak_memory
from bench.tables import Goal, goal_table, table
from bench.world import EXCHANGE, World, running_compiled
from testbed.readiness import DIRECT

_MOST = 45
"""The goal for a sidecar without a group and without TLS, in MiB."""


def idle(world: World) -> str:
    """Measure idle sidecars of the compiled build: without a group, with one, and with TLS; return the section."""
    cert, key = certificate(world.folder)
    kinds: Mapping[str, Mapping[str, str]] = {
        "one ring of 8 queues": {},
        "and a group of it": {"groups": EXCHANGE},
        "and TLS on the listeners": {"tls-cert-file": str(cert), "tls-key-file": str(key)},
    }
    rows, found = [], {}
    for title, settings in kinds.items():
        with running_compiled(world.node, settings) as sidecar:
            # The admin listener has no TLS, and has the exchange read as a publish would.
            try:
                with DIRECT.open(f"{sidecar.admin_url}/rings/%2F/{EXCHANGE}", timeout=30) as response:
                    known = b'"destinations"' in response.read()
            except urllib.error.HTTPError as error:
                error.close()
                known = False
            if not known:
                raise BenchError(f"{title}: the sidecar has no ring of {EXCHANGE}")
            pid = sidecar.process.pid
            found[title] = memory(pid) / 2**20
            rows.append([title, f"{found[title]:.1f}", f"{peak_memory(pid) / 2**20:.1f}"])
    reached = next(iter(found.values()))
    goal = Goal("an idle sidecar, MiB", f"at most {_MOST}", f"{reached:.1f}", "", reached <= _MOST)
    return f"{goal_table([goal])}\n\n{table(['', 'resident, MiB', 'most so far, MiB'], rows)}"
