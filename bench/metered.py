"""HAProxy before the broker's management API, which counts requests and the bytes of their answers."""

import csv
import io
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.relay import await_listening
from testbed.debian import ensure_package
from testbed.node import free_ports
from testbed.readiness import DIRECT

_CONFIGURATION = """\
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen counts
    bind 127.0.0.1:{counts}
    stats enable
    stats uri /
backend api
    server broker {broker}
"""

_FRONTEND = """\
frontend {name}
    bind 127.0.0.1:{port}
    default_backend api
"""


class Asked(NamedTuple):
    """The requests through one door so far, and the bytes of their answers."""

    requests: int
    answered: int

    def since(self, before: "Asked") -> "Asked":
        """Return what has come since then."""
        return Asked(self.requests - before.requests, self.answered - before.answered)


class Meter(NamedTuple):
    """A running HAProxy with one URL, a door, for each kind of asker."""

    urls: dict[str, str]
    """The URL of each door, with the credentials of the broker's own."""
    counts_url: str

    def asked(self) -> dict[str, Asked]:
        """Return what was asked through each door."""
        with DIRECT.open(f"{self.counts_url}/;csv", timeout=10) as response:
            rows = csv.DictReader(io.StringIO(response.read().decode().removeprefix("# ")))
            return {
                row["pxname"]: Asked(int(row["req_tot"]), int(row["bout"]))
                for row in rows
                if row["svname"] == "FRONTEND" and row["pxname"] in self.urls
            }


@contextmanager
def metered(management_url: str, doors: Sequence[str]) -> Iterator[Meter]:
    """Have Debian's HAProxy before the management API at this URL, with doors of these names."""
    binary = ensure_package("haproxy", "haproxy")
    counts, *ports = free_ports(1 + len(doors))
    api = urlsplit(management_url)
    text = _CONFIGURATION.format(counts=counts, broker=f"{api.hostname}:{api.port}")
    text += "".join(_FRONTEND.format(name=name, port=port) for name, port in zip(doors, ports, strict=True))
    with tempfile.TemporaryDirectory(prefix="ringproxy-meter-") as folder:
        file = Path(folder, "haproxy.cfg")
        file.write_text(text)
        with subprocess.Popen([binary, "-db", "-q", "-f", file], stdin=subprocess.DEVNULL) as process:
            try:
                await_listening(process, counts)
                credentials = f"{api.username}:{api.password}"
                urls = {
                    name: f"{api.scheme}://{credentials}@127.0.0.1:{port}"
                    for name, port in zip(doors, ports, strict=True)
                }
                yield Meter(urls, f"http://127.0.0.1:{counts}")
            finally:
                process.kill()
