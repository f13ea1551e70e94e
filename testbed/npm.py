"""Single files of npm's packages, kept for later runs."""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

from testbed import SetupError
from testbed.debian import ensure_package
from testbed.suite import cache


def npm_file(package: str, version: str, integrity: str, path: str) -> Path:
    """Return the path of a copy of one file of a package, fetched if need be; `integrity` is npm's checksum of it.

    Raises SetupError where npm cannot be had, or fetches another package than the expected one.
    """
    name = Path(path)
    kept = cache() / f"{package}-{version}{''.join(name.suffixes)}"
    if kept.exists():
        return kept
    ensure_package("nodejs", "node")
    npm = ensure_package("npm", "npm")
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        run = subprocess.run(
            [npm, "pack", "--silent", f"{package}@{version}"], cwd=folder, capture_output=True, text=True
        )
        if run.returncode != 0:
            raise SetupError(f"npm could not fetch {package} {version}: {run.stderr[-2000:]}")
        packed = Path(folder, f"{package}-{version}.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if found != integrity:
            raise SetupError(f"npm's {package} {version} has the checksum {found}, and {integrity} is expected")
        with tarfile.open(packed) as files:
            script = files.extractfile(f"package/{path}")
            assert script is not None
            made = Path(folder, name.name)
            made.write_bytes(script.read())
        made.rename(kept)
    return kept
