"""Short-lived clients: each connects, publishes one message with a confirm, and closes its connection.

`python -m bench.long.short AMQP_URL SECONDS FILE CLIENTS` prints how many such clients there were, and the seconds that
they took, CLIENTS of them at once.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench import BenchError, apart, direct, wire
from bench.far import far
from bench.long.scene import await_ring
from bench.messages import KEYS
from bench.rounds import Contender, Spread, Throughput, in_turn, told
from bench.tables import table
from bench.world import EXCHANGE, QUEUES, World, declare, running_compiled
from proxy.wire.frames import CHANNEL_CLOSE, CONNECTION_CLOSE, EMPTY_TABLE, U16, method_frame, shorted
from testbed.broker import installation
from testbed.debian import ensure_package
from testbed.node import Certificates, Node, private_node

ROUNDS, SECONDS = 5, 3.0

_BYE = U16.pack(200) + shorted(b"") + EMPTY_TABLE
_CLOSES = tuple(method_frame(*at, _BYE) for at in ((1, CHANNEL_CLOSE), (0, CONNECTION_CLOSE)))

STRAIGHT, PLAIN, KEPT = "no sidecar", "sidecar", "sidecar that keeps connections"
PLACES = {
    "TCP, same machine": ("amqp", 0.0),
    "TLS, same machine": ("amqps", 0.0),
    "TLS, 1 ms away": ("amqps", 0.001),
    "TLS, 10 ms away": ("amqps", 0.01),
}
CLIENTS = 1, 8


def short(world: World) -> str:
    """Measure short-lived clients of a broker of their own, with TLS and without, near and far; return the section."""
    with _node(world.folder) as node:
        straight, hashed = (world.folder / f"short-{name}" for name in ("straight", "hashed"))
        wire.save(straight, [direct.message(queue, 1) for queue in QUEUES])
        wire.save(hashed, [direct.message(key, 1, EXCHANGE) for key in KEYS])
        lines = []
        for place, (scheme, away) in PLACES.items():
            with ExitStack() as stack:
                url = urlsplit(node.amqps_url if scheme == "amqps" else node.amqp_url)
                port = stack.enter_context(far("127.0.0.1", url.port or 0, away)) if away else url.port
                broker = f"{scheme}://guest:guest@127.0.0.1:{port}/"
                settings = {"broker-url": broker}
                if scheme == "amqps":
                    settings["ca-file"] = str(world.folder / "tls.crt")
                sidecars = {
                    title: stack.enter_context(running_compiled(node, settings | more))
                    for title, more in ((PLAIN, {}), (KEPT, {"kept-connections": "20"}))
                }
                for each in sidecars.values():
                    await_ring(each.http_url, EXCHANGE)
                for clients in CLIENTS:
                    rate = partial(_rate, clients)
                    ways = [
                        Contender(STRAIGHT, partial(rate, broker, straight), node.pid, None),
                        *(
                            Contender(title, partial(rate, each.amqp_url, hashed), node.pid, each.process.pid)
                            for title, each in sidecars.items()
                        ),
                    ]
                    found = in_turn({way.title: way.measure for way in ways}, ROUNDS, SECONDS)
                    lines += [[place, str(clients), *row] for row in _rows(found)]
    heads = [
        "broker",
        "clients at once",
        "way",
        "clients/s",
        "÷ no sidecar",
        "least to most",
        "broker CPU, ms",
        "sidecar CPU, ms",
    ]
    return f"{table(heads, lines)}\n\n{told(ROUNDS, SECONDS)}"


def _rows(found: dict[str, list[Throughput]]) -> Iterator[list[str]]:
    for title, rounds in found.items():
        ratio = Spread.of([one.rate / other.rate for one, other in zip(rounds, found[STRAIGHT], strict=True)])
        broker = Spread.of([one.broker or 0 for one in rounds]).median / 1000
        server = [one.server for one in rounds if one.server is not None]
        yield [
            title,
            f"{Spread.of([one.rate for one in rounds]).median:.0f}",
            f"{ratio.median:.2f}",
            f"{ratio.least:.2f} to {ratio.most:.2f}",
            f"{broker:.2f}",
            f"{Spread.of(server).median / 1000:.2f}" if server else "",
        ]


@contextmanager
def _node(folder: Path) -> Iterator[Node]:
    """Run a node of this measurement's own that listens with TLS, too, and asks for no client certificates."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=localhost", "-days", "1"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    openssl = str(ensure_package("openssl", "openssl"))
    subprocess.run([openssl, "req", "-x509", *made, *names], check=True, capture_output=True)
    choice = installation(os.environ.get("BROKER", ""))
    with private_node(choice, Certificates(certificate, certificate, key)) as node:
        lines = "ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n"
        (node.folder / "conf.d" / "without-client-certificates.conf").write_text(lines)
        node.start()
        declare(node.amqp_url)
        yield node


def _rate(clients: int, amqp_url: str, messages: Path, seconds: float) -> tuple[float, int]:
    return apart.rate("bench.long.short", amqp_url, seconds, messages, clients)


def serve(amqp_url: str, messages: list[bytes], until: float) -> int:
    """Have one client after another until the time is over, in perf_counter's seconds; return their number."""
    for number, message in enumerate(itertools.cycle(messages)):
        if time.perf_counter() >= until:
            return number
        with direct.connect(amqp_url) as sock:
            confirms = direct.Confirmed()
            sock.sendall(message)
            while not confirms.upto:
                confirms.feed(direct.received(sock))
            for close in _CLOSES:
                sock.sendall(close)
                direct.received(sock)
    raise BenchError("there are no messages")


def main() -> None:
    """Run `python -m bench.long.short`."""
    amqp_url, seconds, file, clients = sys.argv[1:]
    messages, begun = wire.load(Path(file)), time.perf_counter()
    with ThreadPoolExecutor(int(clients)) as pool:
        runs = [pool.submit(serve, amqp_url, messages, begun + float(seconds)) for _ in range(int(clients))]
        count = sum(run.result() for run in runs)
    print(count, time.perf_counter() - begun)


if __name__ == "__main__":
    main()
