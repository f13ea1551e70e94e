"""Whether the sidecars stay small and answer for themselves, whatever is done to them: looked at all the time."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple, Protocol

from tests.integration.sidecar import Sidecar

MIB = 1 << 20

MOST_RESIDENT = 256 * MIB
"""Bytes: the memory limit of deploy/component; docs/reference/memory.md sums it up for more connections."""

LIVEZ_WITHIN = 5.0
"""Seconds for an answer to /livez: what the probe of deploy/component/sidecar.yaml waits."""

BETWEEN = 0.5


class Sample(NamedTuple):
    """One look at a sidecar."""

    sidecar: str
    at: float
    """Monotonic seconds."""
    resident: int
    """Bytes: the most of its process so far."""
    livez: float | None
    """Seconds until /livez was answered; None where it was not in time."""


class Looked(Protocol):
    """A sidecar that is started again and again."""

    running: bool
    """Whether it is ready, and not about to end."""

    @property
    def now(self) -> Sidecar:
        """The one that runs."""


async def observe(members: Sequence[Looked], samples: list[Sample]) -> None:
    """Add samples until cancelled."""
    while True:
        for number, member in enumerate(members):
            if member.running:
                sidecar = member.now
                sample = await asyncio.to_thread(_look, f"sidecar {number}", sidecar)
                if member.running and member.now is sidecar:
                    samples.append(sample)
        await asyncio.sleep(BETWEEN)


def _look(name: str, sidecar: Sidecar) -> Sample:
    begin = time.monotonic()
    connection = HTTPConnection("127.0.0.1", sidecar.admin_port, timeout=LIVEZ_WITHIN)
    try:
        connection.request("GET", "/livez")
        well = connection.getresponse().status == 200
    except (OSError, HTTPException):
        well = False
    finally:
        connection.close()
    took = time.monotonic() - begin
    try:
        resident = sidecar.memory("VmHWM")
    except (OSError, AssertionError):  # it has ended
        resident = 0
    return Sample(name, begin, resident, took if well else None)


class Health(NamedTuple):
    """The worst of one sidecar."""

    looks: int
    resident: int
    livez: float


def worst(samples: Iterable[Sample]) -> dict[str, Health]:
    """Return the worst of each sidecar, by name; of an answer that did not come in time, the time that it had."""
    found: dict[str, Health] = defaultdict(lambda: Health(0, 0, 0.0))
    for sample in samples:
        before, livez = found[sample.sidecar], LIVEZ_WITHIN if sample.livez is None else sample.livez
        found[sample.sidecar] = Health(
            before.looks + 1, max(before.resident, sample.resident), max(before.livez, livez)
        )
    return found


def unwell(samples: Sequence[Sample], names: Sequence[str]) -> list[str]:
    """Return what was wrong with the sidecars of these names, in words: the first of each kind for each of them."""
    faults = []
    for name in names:
        own = [sample for sample in samples if sample.sidecar == name]
        if not own:
            faults.append(f"{name} was never looked at, so this says nothing of its health")
        large = next((sample for sample in own if sample.resident > MOST_RESIDENT), None)
        if large:
            most = max(sample.resident for sample in own) // MIB
            faults.append(
                f"{name} had {large.resident // MIB} MiB resident at {large.at:.3f}, and {most} at the most,"
                f" where {MOST_RESIDENT // MIB} may be"
            )
        silent = [sample for sample in own if sample.livez is None]
        if silent:
            faults.append(
                f"{name} did not answer /livez within {LIVEZ_WITHIN:g} s at {silent[0].at:.3f}, and {len(silent)} times"
                f" of {len(own)}"
            )
    return faults
