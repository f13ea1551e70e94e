"""The judge of the sidecars' health is shown each kind of wrong, planted among samples where all else is right."""

import asyncio
import http.server
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos import health
from tests.chaos.health import LIVEZ_WITHIN, MIB, MOST_RESIDENT, Health, Sample, observe, unwell, worst
from tests.integration.sidecar import Sidecar

NAMES = ["sidecar 0", "sidecar 1"]
SAMPLES = [Sample(name, 100.0 + n, 90 * MIB + n, 0.01 * n) for n in range(5) for name in NAMES]


def test_sidecars_that_are_well() -> None:
    assert unwell(SAMPLES, NAMES) == []
    assert worst(SAMPLES) == dict.fromkeys(NAMES, Health(5, 90 * MIB + 4, 0.04))


def test_one_that_is_too_large() -> None:
    at = MOST_RESIDENT // MIB
    small, large, larger = (Sample("sidecar 1", 200.0 + n, MOST_RESIDENT + n * MIB, 0.1) for n in range(3))
    (fault,) = unwell([*SAMPLES, small, large, larger], NAMES)
    assert fault == f"sidecar 1 had {at + 1} MiB resident at 201.000, and {at + 2} at the most, where {at} may be"


def test_one_that_does_not_answer() -> None:
    silent = Sample("sidecar 0", 200.0, 90 * MIB, None)
    (fault,) = unwell([*SAMPLES, silent], NAMES)
    assert fault == f"sidecar 0 did not answer /livez within {LIVEZ_WITHIN:g} s at 200.000, and 1 times of 6"
    assert worst([silent])["sidecar 0"].livez == LIVEZ_WITHIN


def test_one_that_nobody_looked_at() -> None:
    (fault,) = unwell([sample for sample in SAMPLES if sample.sidecar == "sidecar 0"], NAMES)
    assert fault.startswith("sidecar 1 was never looked at")


class Listener(http.server.BaseHTTPRequestHandler):
    """An admin listener whose process is well, or not."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Sick(Listener):
    status = 500


class Member:
    """A sidecar that looks as a process of its own would."""

    def __init__(self, port: int, resident: int) -> None:
        self.running = True
        self.now = cast(Sidecar, SimpleNamespace(admin_port=port, memory=lambda _: resident))


@pytest.mark.parametrize(("listener", "well"), [(Listener, True), (Sick, False), (None, False)])
async def test_each_that_runs_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, listener: type[Listener] | None, well: bool
) -> None:
    monkeypatch.setattr(health, "BETWEEN", 0.01)
    samples: list[Sample] = []
    with http.server.HTTPServer(("127.0.0.1", 0), listener or Listener) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        members = [Member(server.server_port, 5 * MIB), Member(server.server_port, 7 * MIB)]
        members[0].running = False
        if listener is None:
            server.shutdown()
            server.server_close()
        observing = asyncio.create_task(observe(members, samples))
        async with asyncio.timeout(30):
            while len(samples) < 3:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        observing.cancel()
        server.shutdown()
        serving.join()
    assert {(sample.sidecar, sample.resident, sample.livez is not None) for sample in samples} == {
        ("sidecar 1", 7 * MIB, well)
    }
