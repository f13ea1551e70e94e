"""mermaid, which draws the drawings of the documents in a reader's browser: from npm, kept for later runs."""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

from testbed import SetupError
from testbed.debian import ensure_package
from testbed.suite import cache

VERSION = "11.13.0"
"""The newest version whose arrowheads the site's theme colours: from 11.14.0 on their ids have a prefix."""

INTEGRITY = "sha512-fEnci+Immw6lKMFI8sqzjlATTyjLkRa6axrEgLV2yHTfv8r+h1wjFbV6xeRtd4rUV1cS4EpR9rwp3Rci7TRWDw=="
"""npm's checksum of the package of that version."""


def mermaid_script() -> Path:
    """Return the path of mermaid.min.js, fetched if need be.

    Raises SetupError where npm cannot be had, or fetches another file than the expected one.
    """
    kept = cache() / f"mermaid-{VERSION}.min.js"
    if kept.exists():
        return kept
    ensure_package("nodejs", "node")
    npm = ensure_package("npm", "npm")
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        run = subprocess.run(
            [npm, "pack", "--silent", f"mermaid@{VERSION}"], cwd=folder, capture_output=True, text=True
        )
        if run.returncode != 0:
            raise SetupError(f"npm could not fetch mermaid {VERSION}: {run.stderr[-2000:]}")
        package = Path(folder, f"mermaid-{VERSION}.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if found != INTEGRITY:
            raise SetupError(f"npm's mermaid {VERSION} has the checksum {found}, and {INTEGRITY} is expected")
        with tarfile.open(package) as files:
            script = files.extractfile("package/dist/mermaid.min.js")
            assert script is not None
            made = Path(folder, "mermaid.min.js")
            made.write_bytes(script.read())
        made.rename(kept)
    return kept
