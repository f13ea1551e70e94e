"""The Node packages that tests use, as package-lock.json names them."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from testbed.debian import ensure_package

LOCK = Path(__file__).parent / "clients" / "node" / "package-lock.json"


@cache
def node_modules() -> Path:
    """Return the folder of the packages, which is kept between runs; they are installed if it is not there."""
    for package in ("nodejs", "node"), ("npm", "npm"):
        ensure_package(*package)
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringproxy"
    kept = cached / f"node-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    if not kept.exists():
        cached.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached) as made:
            for file in (LOCK, LOCK.with_name("package.json")):
                shutil.copy(file, made)
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            run = subprocess.run(install, cwd=made, capture_output=True, text=True)
            assert run.returncode == 0, f"npm could not install what {LOCK.name} names: {run.stderr[-4000:]}"
            # Whole or not at all. Another run may have been faster.
            with contextlib.suppress(FileExistsError):
                Path(made, "node_modules").rename(kept)
    return kept
