"""HAProxy in front of the broker's AMQP port, on one thread: what it costs to carry the bytes and do nothing else."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from testbed import SetupError
from testbed.debian import ensure_package
from testbed.node import free_ports

_START_WITHIN = 10.0

_CONFIGURATION = """\
global
    nbthread 1
    maxconn 3000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen amqp
    bind 127.0.0.1:{port}
    server broker {broker}
"""


class Relay(NamedTuple):
    """A running HAProxy."""

    amqp_url: str
    pid: int


@contextmanager
def running_relay(amqp_url: str) -> Iterator[Relay]:
    """Debian's HAProxy before the broker at this URL; its own URL has the same credentials."""
    binary = ensure_package("haproxy", "haproxy")
    (port,) = free_ports(1)
    broker = urlsplit(amqp_url)
    with tempfile.TemporaryDirectory(prefix="ringproxy-relay-") as folder:
        file = Path(folder, "haproxy.cfg")
        file.write_text(_CONFIGURATION.format(port=port, broker=f"{broker.hostname}:{broker.port}"))
        with subprocess.Popen([binary, "-db", "-q", "-f", file], stdin=subprocess.DEVNULL) as process:
            try:
                await_listening(process, port)
                credentials = f"{broker.username}:{broker.password}"
                yield Relay(f"amqp://{credentials}@127.0.0.1:{port}{broker.path}", process.pid)
            finally:
                process.kill()


def await_listening(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Return once a process listens on a port. Raises SetupError."""
    deadline = time.monotonic() + _START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SetupError("HAProxy did not start (see above)")
