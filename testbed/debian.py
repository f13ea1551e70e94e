"""Debian packages this machine needs, installed as root when they are missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from testbed import SetupError

_SEARCH_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # a plain user's PATH lacks the last two


def ensure_package(package: str, binary: str) -> Path:
    """Return the path of `binary`; when missing, install Debian's `package` first, without starting its services."""
    if not shutil.which(binary, path=_SEARCH_PATH):
        install(package)
    found = shutil.which(binary, path=_SEARCH_PATH)
    if not found:
        raise SetupError(f"the package {package} brought no {binary}")
    return Path(found)


def ensure_installed(package: str) -> None:
    """Install Debian's `package` where it is missing: for one that brings no binary to look for."""
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    if not shutil.which("dpkg-query") or subprocess.run(query, capture_output=True, text=True).stdout != "installed":
        install(package)


def install(package: str) -> None:
    """Install a Debian package, needing root; its services start neither now nor at the next boot."""
    if not shutil.which("apt-get"):
        raise SetupError(f"{package} is missing, and this machine has no apt-get to install it")
    if os.geteuid() != 0:
        raise SetupError(f"{package} is missing, and only root can install it: sudo apt-get install {package}")
    print(f"installing the Debian package {package} ...", file=sys.stderr, flush=True)
    # In a session of its own, and waited for: an interrupt here must not cut dpkg short.
    process = subprocess.Popen([Path(__file__).parent / "apt-install", package], start_new_session=True)
    try:
        process.wait()
    finally:
        process.wait()
    if process.returncode != 0:
        raise SetupError(f"apt-get could not install {package} (see above)")
