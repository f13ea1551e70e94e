"""Celery, as constraints-celery.txt names its packages, apart from the tests' own."""

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.integration.documents import ROOT
from tests.integration.node_packages import kept_folder

LOCK = ROOT / "constraints-celery.txt"


@cache
def celery_folder() -> Path:
    """Return the folder of the packages, for PYTHONPATH; it is kept between runs, and made if it is not there."""

    def install(folder: Path) -> None:
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-compile"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), "-r", str(LOCK)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, f"pip could not install what {LOCK.name} names: {run.stderr[-4000:]}"

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return kept_folder(f"celery-{version}-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}", install)
