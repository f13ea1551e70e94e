"""A `ring-proxy run` beside a broker, for the demo and the benchmarks: started on free ports, always stopped."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import SetupError
from testbed.readiness import DIRECT

START_WITHIN = 20.0
STOP_WITHIN = 30.0
LISTENERS = ("http", "admin", "amqp")


@dataclass(frozen=True)
class Sidecar:
    """A running sidecar: its listeners, its process and its log."""

    http_url: str
    admin_url: str
    amqp_address: str
    """HOST:PORT for AMQP clients."""
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def amqp_url(self) -> str:
        """The URL for AMQP clients, with the credentials of a private node."""
        return f"amqp://guest:guest@{self.amqp_address}/"


@contextmanager
def running_sidecar(settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Iterator[Sidecar]:
    """Start a sidecar with these settings (flags without their dashes), on ports of the kernel's choice.

    `environment` is what it gets beside this process's own. At the end it gets SIGTERM. Raises SetupError, with its
    log, if it does not start or does not end with status 0.
    """
    with tempfile.TemporaryDirectory(prefix="ringproxy-sidecar-") as folder:
        log = Path(folder, "log")
        flags = {f"{what}-listen": "127.0.0.1:0" for what in LISTENERS} | dict(settings)
        command = [sys.executable, "-m", "proxy", "run", *(f"--{name}={value}" for name, value in flags.items())]
        with log.open("wb") as output:
            env = os.environ | (environment or {})
            process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
        try:
            http, admin, amqp = _started(process, log)
            yield Sidecar(f"http://{http}", f"http://{admin}", amqp, process, log)
        finally:
            process.terminate()
            try:
                status = process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
        if status != 0:
            raise SetupError(f"the sidecar ended with status {status}:\n{log.read_text()}")


def _started(process: "subprocess.Popen[bytes]", log: Path) -> list[str]:
    """HOST:PORT of each of its listeners, once it is ready to publish."""
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        addresses = [_listener(log, what) for what in LISTENERS]
        if all(addresses) and _ready(f"http://{addresses[1]}"):
            return addresses
        time.sleep(0.05)
    raise SetupError(f"the sidecar did not become ready within {START_WITHIN:g} s:\n{log.read_text()}")


def _listener(log: Path, what: str) -> str:
    marker = f" {what} listens on "
    for line in log.read_text().splitlines():
        if marker in line:
            return line.split(marker)[1].removeprefix("http://")
    return ""


def _ready(admin_url: str) -> bool:
    try:
        with DIRECT.open(f"{admin_url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
