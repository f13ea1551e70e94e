"""Another Debian release, and RabbitMQ from it: a folder made by debootstrap, kept between runs."""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import SetupError
from testbed.debian import ensure_package, install
from testbed.installation import Installation

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Whatever becomes of the caller, nothing debootstrap started or mounted is left: its first process dies with the
# caller, that process's namespace dies with it, and the mounts with the namespace.
_CONFINED = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def installation(suite: str) -> Installation:
    """Return the RabbitMQ of a Debian suite such as `sid`, building its folder the first time, which needs root."""
    if not re.fullmatch("[a-z]+", suite):
        raise SetupError(f"BROKER={suite} is not amqp://..., docker:TAG, installed, or the name of a Debian suite")
    if os.geteuid() != 0:
        raise SetupError(f"Debian {suite} needs root, to change into a folder with that release")
    root = cache() / f"debian-{suite}"
    with lock(f"debian-{suite}"):
        if not root.exists():
            with made(cache() / f"debian-{suite}.partial", suite, "rabbitmq-server") as folder:
                (folder / "etc/hosts").touch()  # where a node's own is mounted
                folder.rename(root)
    return Installation(root, f"Debian {suite} in {root}")


def cache() -> Path:
    """Return the folder of what is made once and kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringproxy"


@contextmanager
def made(folder: Path, suite: str, *packages: str) -> Iterator[Path]:
    """Make the folder a Debian of that suite with those packages; unless it is moved from there, it is removed."""
    debootstrap = ensure_package("debootstrap", "debootstrap")
    if not _KEYRING.exists():
        install("debian-archive-keyring")
    mirror = debian_mirror()
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    wanted = f"Debian {suite} with {' and '.join(packages)}"
    print(f"making {wanted} from {mirror}, once; this takes a minute or more", file=sys.stderr, flush=True)
    options = ["--variant=minbase", f"--include={','.join(packages)}", "--force-check-gpg", f"--keyring={_KEYRING}"]
    try:
        _run_debootstrap([str(debootstrap), *options, suite, str(folder), mirror])
        shutil.rmtree(folder / "var/cache/apt/archives")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_debootstrap(command: list[str]) -> None:
    """Run debootstrap, showing where it is: the first line of each kind, of hundreds."""
    kinds: set[str] = set()
    tail: deque[str] = deque(maxlen=20)
    env = os.environ | _apt_proxy() | {"LC_ALL": "C"}
    with subprocess.Popen([*_CONFINED, *command], env=env, text=True, stdout=-1, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                tail.append(line)
                kind = " ".join(line.split()[:2])
                if line.startswith("I:") and kind not in kinds:
                    kinds.add(kind)
                    print("debootstrap", line.rstrip(), file=sys.stderr, flush=True)
        except BaseException:
            process.kill()
            process.stdout.read()  # ends when the last process of the namespace has
            raise
    if process.returncode != 0:
        raise SetupError(f"debootstrap failed:\n{''.join(tail)}")


def debian_mirror() -> str:
    """Return the Debian mirror this machine's apt uses."""
    query = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    for uri in re.findall(r"^Debian\|Debian\|(.*)$", found, re.MULTILINE):
        if uri.startswith(("http://", "https://", "file:")):
            return str(uri)
        if uri.startswith("mirror+file:"):
            return Path(uri.removeprefix("mirror+file:")).read_text().split()[0]
    raise SetupError(
        "apt knows no mirror of Debian here (on Debian, run apt-get update first; another distribution's mirrors do not"
        " carry Debian's suites): use BROKER=docker:TAG or BROKER=amqp://... instead"
    )


def _apt_proxy() -> dict[str, str]:
    """Return the web proxy apt is told to use, in the way other programs are told."""
    query = ["apt-config", "shell", "http_proxy", "Acquire::http::Proxy", "https_proxy", "Acquire::https::Proxy"]
    found = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    settings = dict(setting.split("=", 1) for setting in shlex.split(found))
    return {name: proxy for name, proxy in settings.items() if proxy != "DIRECT"}


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock of that name, that two runs do not make the same."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
