"""The Node packages that tests use, as package-lock.json names them."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from testbed.debian import ensure_package

LOCK = Path(__file__).parent / "clients" / "node" / "package-lock.json"


@cache
def node_modules() -> Path:
    """Return the folder of the packages, which is kept between runs; they are installed if it is not there."""
    for package in ("nodejs", "node"), ("npm", "npm"):
        ensure_package(*package)

    def install(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            for file in (LOCK, LOCK.with_name("package.json")):
                shutil.copy(file, made)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            run = subprocess.run(command, cwd=made, capture_output=True, text=True)
            assert run.returncode == 0, f"npm could not install what {LOCK.name} names: {run.stderr[-4000:]}"
            Path(made, "node_modules").rename(folder)

    return kept_folder(f"node-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}", install)


def kept_folder(name: str, install: Callable[[Path], None]) -> Path:
    """Return a folder that is kept between runs; if it is not there, `install` makes it: whole, or not at all."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringproxy"
    kept = cached / name
    if not kept.exists():
        cached.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached) as made:
            install(Path(made, name))
            # Another run may have been faster.
            with contextlib.suppress(OSError):
                Path(made, name).rename(kept)
    return kept
