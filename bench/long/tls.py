"""The cost of TLS between client and sidecar."""

import subprocess
from pathlib import Path

from bench.amqp import COMPILED, Way, contender
from bench.long.scene import Scene, raced, rows
from bench.world import EXCHANGE, QUEUES, World, running_compiled
from testbed.debian import ensure_package

ENCRYPTED = f"{COMPILED}, TLS from the client"


def tls(world: World) -> str:
    """Measure the sidecar with and without TLS from the client; return the section."""
    cert, key = certificate(world.folder)
    with running_compiled(world.node, {"tls-cert-file": str(cert), "tls-key-file": str(key)}) as sidecar:
        straight, _, plain = Scene("", EXCHANGE, QUEUES).ways(world)
        url = sidecar.amqp_url.replace("amqp:", "amqps:")
        encrypted = Way(ENCRYPTED, url, plain.messages, sidecar.process.pid)
        return rows({"": raced([contender(world, way) for way in (straight, plain, encrypted)])}, "")


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a new certificate for localhost and its key, as files in the folder."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    openssl = ensure_package("openssl", "openssl")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=localhost", "-days", "1"]
    command = [str(openssl), "req", "-x509", *made, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
