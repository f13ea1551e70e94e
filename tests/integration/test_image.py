"""The image, built from the Dockerfile itself by buildah, and run the way deploy/component/sidecar.yaml has it run.

No registry is asked for the images that it starts from: a Debian of the same release, made by debootstrap, stands in
for them, with Debian's Python and with or without its C compiler. The test does not see whether they can be pulled, and
what else they hold.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testbed import suite
from testbed.debian import ensure_package
from testbed.node import free_ports
from testbed.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEADLINE_SECONDS = 30

COMPILER = "gcc", "libc6-dev", "python3-dev"

# Debian as debootstrap has made it, with a compiler, and without all that came for the compiler only.
FULL = """
FROM scratch
COPY . /
"""
SLIM = """
FROM localhost/{full}
RUN apt-mark auto '.*' && apt-mark manual python3 && apt-get autoremove --purge --yes
"""

# The image adds to Debian what python's official images add, as far as the Dockerfile uses it.
STAND_IN = r"""
FROM localhost/{debian}
COPY --from=pip . /usr/local/lib/python{python}/dist-packages/pip
RUN rm /usr/lib/python{python}/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python \
    && printf '#!/bin/sh\nexec python -m pip "$@"\n' > /usr/local/bin/pip && chmod 755 /usr/local/bin/pip
"""

# Mounts and processes are the namespaces' own and end with their first process, which ends with this one.
CONFINED = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]

# Run a command in a container the way the kubelet would with the manifest's securityContext; its pid there is 1.
ENTER = """
set -e
container=$1 store=$2 user=$3; shift 3
root=$(buildah $store mount "$container")
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups --no-new-privs \
    --inh-caps=-all --bounding-set=-all env -i "$@"
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can build and run the image here: that part was not checked"
)


class Base(NamedTuple):
    """The Python and the Debian that the image has, and that its modules are compiled with."""

    python: str
    suite: str


@dataclass(frozen=True)
class Image:
    """A container of the image, and the image's configuration."""

    store: tuple[str, ...]
    container: str
    user: str
    environment: tuple[str, ...]
    command: tuple[str, ...]
    stop_signal: signal.Signals

    def enter(self, *command: str, settings: Mapping[str, str] | None = None) -> list[str]:
        """Make `command` run in the container, confined as the manifest has it."""
        environment = *self.environment, *(f"{name}={value}" for name, value in (settings or {}).items())
        arguments = [self.container, " ".join(self.store), self.user, *environment, *command]
        return [*CONFINED, "sh", "-c", ENTER, "enter", *arguments]

    def output(self, *command: str) -> str:
        """Return what `command` prints there; it must succeed."""
        return checked(self.enter(*command))


def checked(command: Sequence[str | Path], script: str = "") -> str:
    """Run the command, that must succeed, with `script` as its standard input, and return what it prints."""
    run = subprocess.run(command, input=script, capture_output=True, text=True)
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
    return run.stdout


@pytest.fixture(scope="module")
def base() -> Base:
    found = re.findall(r"^FROM python:(3\.\d+)-((?:slim-)?)(\w+)\b", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(found) == 2, "the Dockerfile's bases are not such that a Debian release can stand in for them"
    (python, full, release), slim = found
    assert (full, slim) == ("", (python, "slim-", release))
    return Base(python, release)


def pinned(file: str, python: str) -> dict[str, str]:
    """The requirements, with their hashes, that a file made by `make lock` has for that Python, by package."""
    pins: dict[str, str] = {}
    pattern = re.compile(r"^([\w.-]+)(==\S+)(?: ; (.+?))?((?: \\\n +--hash=\S+)+)$", re.MULTILINE)
    for name, version, marker, hashes in pattern.findall((ROOT / file).read_text()):
        if not marker or Marker(marker).evaluate({"python_full_version": f"{python}.0", "python_version": python}):
            pins[canonicalize_name(name)] = f"{name}{version}{hashes}\n"
    return pins


@pytest.fixture(scope="module")
def wheels(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the Dockerfile's steps may install, so that they need no network, whose set-up is each machine's own."""
    folder = tmp_path_factory.mktemp("wheels")
    pins = pinned("constraints-build.txt", base.python) | pinned("constraints-runtime.txt", base.python)
    (folder / "requirements.txt").write_text("".join(pins.values()))
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    for_base = ["--python-version", base.python, "--only-binary", ":all:", "--no-deps"]
    checked([*download, *for_base, "--dest", folder, "--requirement", folder / "requirements.txt"])
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return folder


@pytest.fixture(scope="module")
def store(base: Base) -> Iterator[tuple[str, ...]]:
    """buildah's options for a store of its own, with what stands in for the images that the Dockerfile starts from."""
    ensure_package("buildah", "buildah")
    kept = suite.cache() / "images"
    full, slim = f"{base.suite}-{'-'.join(COMPILER)}", f"{base.suite}-python3"
    with Supervisor() as supervisor:
        runroot = "--runroot", f"{supervisor.folder}/run"
        keep_debian(base.suite, full, slim, ("--root", str(kept), *runroot))
        options = "--root", f"{supervisor.folder}/store", *runroot, "--storage-opt", f"overlay.imagestore={kept}"
        pip = Path(sysconfig.get_path("purelib"), "pip")
        for debian, tag in (full, base.suite), (slim, f"slim-{base.suite}"):
            stand_in = STAND_IN.format(debian=debian, python=base.python)
            named = ["--tag", f"docker.io/library/python:{base.python}-{tag}", "--build-context", f"pip={pip}"]
            checked([*building(options), *named, "--file", "-", supervisor.folder], stand_in)
        yield options


def dockerfile() -> str:
    """The Dockerfile without the digests that a release pins its bases by: what stands in for them has others."""
    return re.sub("^(FROM [^@ ]+)@sha256:[0-9a-f]+", r"\1", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def image(store: tuple[str, ...], wheels: Path) -> Image:
    checked([*building(store), *offline(wheels), "--tag", "ringproxy", "--file", "-", ROOT], dockerfile())
    buildah = [*CONFINED, "buildah", *store]
    container = checked([*buildah, "from", "--pull-never", "ringproxy"]).strip()
    config = json.loads(checked([*buildah, "inspect", "--type", "image", "ringproxy"]))["OCIv1"]["config"]
    return Image(
        store,
        container,
        config["User"],
        tuple(config["Env"]),
        (*config["Entrypoint"], *config["Cmd"]),
        signal.Signals[config["StopSignal"]],
    )


def building(store: Sequence[str]) -> list[str]:
    """The command that builds an image in that store of what is there."""
    return [*CONFINED, "buildah", *store, "bud", "--isolation", "chroot", "--pull-never", "--layers=false"]


def offline(wheels: Path) -> list[str]:
    """The options with which pip, while an image is built, finds all in that folder."""
    return ["--volume", f"{wheels}:/wheels:ro", "--volume", f"{wheels}/pip.conf:/etc/pip.conf:ro"]


def keep_debian(release: str, full: str, slim: str, store: Sequence[str]) -> None:
    """Make the Debian with a compiler and the one without, so named, where the store does not have them yet."""
    inspect = [*CONFINED, "buildah", *store, "inspect", "--type", "image", slim]
    with suite.lock("images"):
        if subprocess.run(inspect, capture_output=True).returncode != 0:
            with suite.made(suite.cache() / "images.partial", release, *COMPILER) as folder:
                for name, dockerfile in (full, FULL), (slim, SLIM.format(full=full)):
                    named = ["--force-rm", "--tag", f"localhost/{name}"]
                    checked([*building(store), *named, "--file", "-", folder], dockerfile)


def test_all_that_the_image_installs_can_be_had_with_the_pinned_hashes(base: Base, wheels: Path) -> None:
    """The part that needs no root: pip has checked the hashes."""
    found = {canonicalize_name(wheel.name.split("-")[0]) for wheel in wheels.glob("*.whl")}
    assert found == {*pinned("constraints-build.txt", base.python), *pinned("constraints-runtime.txt", base.python)}


def test_the_hot_modules_are_compiled_by_the_packages_that_are_tested(base: Base) -> None:
    build = pinned("constraints-build.txt", base.python)
    assert build.items() <= pinned("constraints.txt", base.python).items()
    assert {canonicalize_name(Requirement(each).name) for each in PROJECT["build-system"]["requires"]} <= build.keys()


@pytest.mark.long
@needs_root
def test_the_environment_holds_what_the_proxy_needs_at_run_time_and_no_more(base: Base, image: Image) -> None:
    program = "from importlib.metadata import distributions; print(*(each.name for each in distributions()))"
    found = {canonicalize_name(name) for name in image.output("python", "-c", program).split()}
    assert found == {*pinned("constraints-runtime.txt", base.python), PROJECT["project"]["name"]}


@pytest.mark.long
@needs_root
def test_a_process_of_the_image_can_change_nothing(image: Image) -> None:
    """Neither the tests after this one nor the manifest would prove much otherwise."""
    program = """
import os, re
from pathlib import Path
assert os.getuid() and os.getgid() and os.getpid() == 1 and not os.getgroups()
status = Path("/proc/self/status").read_text()
assert re.findall(r"^Cap(?:Prm|Eff|Bnd):\\s*([0-9a-f]+)", status, re.M) == ["0" * 16] * 3
assert re.search(r"^NoNewPrivs:\\s*1$", status, re.M)
for folder in Path("/tmp"), Path("/opt/ringproxy"):
    try:
        (folder / "file").touch()
    except OSError as error:
        print(error.strerror)
"""
    assert image.output("python", "-c", program) == "Read-only file system\n" * 2


@pytest.mark.long
@needs_root
def test_all_modules_are_compiled_to_bytecode(image: Image) -> None:
    """A read-only image could not keep what it compiled: every start would compile again."""
    program = """
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path
modules = list(Path(sysconfig.get_path("purelib")).rglob("*.py"))
print(len(modules) > 100, *(path for path in modules if not Path(cache_from_source(path)).exists()))
"""
    assert image.output("python", "-c", program) == "True\n"


@pytest.mark.long
@needs_root
def test_the_image_places_keys_as_this_python_does(image: Image) -> None:
    """Its Python and its numpy are other versions than those of the other tests, and its hash is compiled."""
    program = (
        "import hashlib; from ring.destination import Destination; from ring.hashing import slot_of\n"
        "from ring.ring import Ring\n"
        "ring = Ring.build({Destination('queue', f'q{n}'): 1 + n for n in range(10)})\n"
        "print(hashlib.sha256(ring.table.astype('<u2').tobytes()).hexdigest())\n"
        "print(*(slot_of(b'%d' % n) for n in range(99)))"
    )
    assert image.output("python", "-c", program) == checked([sys.executable, "-c", program])


@pytest.mark.long
@needs_root
def test_the_image_tells_its_version_and_that_it_is_compiled(image: Image) -> None:
    said = image.output(image.command[0], "--version")
    assert re.fullmatch(rf"ringproxy {re.escape(PROJECT['project']['version'])}, ring format \d+, compiled\n", said)
    pure = image.output("env", "RINGPROXY_PURE=1", image.command[0], "--version")
    assert pure == said.replace("compiled", "python")


@pytest.mark.long
@needs_root
def test_every_hot_module_is_compiled(image: Image) -> None:
    """The build itself looks at one only."""
    hot = re.findall(r'"((?:ring|proxy)/[\w/]+)\.py"', (ROOT / "setup.py").read_text())
    assert {"proxy/session/client_loop", "ring/hashing"} <= set(hot)
    program = (
        "import sys; from importlib import import_module\n"
        "print(*(name for name in sys.argv[1:] if not import_module(name).__file__.endswith('.so')))"
    )
    assert image.output("python", "-c", program, *(name.replace("/", ".") for name in hot)) == "\n"


@pytest.mark.long
@needs_root
def test_no_image_is_made_of_modules_that_were_not_compiled(store: tuple[str, ...], wheels: Path) -> None:
    whole = dockerfile()
    changed = whole.replace("RINGPROXY_COMPILE=1 ", "")
    assert changed != whole
    command = [*building(store), *offline(wheels), "--target", "build", "--file", "-", str(ROOT)]
    run = subprocess.run(command, input=changed, capture_output=True, text=True)
    assert f"Successfully installed {PROJECT['project']['name']}" in run.stdout, run.stderr
    assert run.returncode != 0


@pytest.mark.long
@needs_root
def test_the_image_shows_its_settings(image: Image) -> None:
    shown = tomllib.loads(image.output(image.command[0], "config"))
    assert shown["http_listen"] == "127.0.0.1:15680"


@pytest.mark.long
@needs_root
def test_the_image_starts_without_a_broker_and_stops_when_told_to(image: Image, tmp_path: Path) -> None:
    ingress, admin, broker, management = free_ports(4)
    settings = {
        "RINGPROXY_HTTP_LISTEN": f"127.0.0.1:{ingress}",
        "RINGPROXY_ADMIN_LISTEN": f"0.0.0.0:{admin}",
        "RINGPROXY_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{broker}/",
        "RINGPROXY_MANAGEMENT_URL": f"http://guest:guest@127.0.0.1:{management}",
    }
    log = tmp_path / "log"
    with log.open("w") as output, started(image.enter(*image.command, settings=settings), output) as process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while status(admin, "/startupz") != http.HTTPStatus.OK:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        assert status(admin, "/livez") == http.HTTPStatus.OK
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), image.stop_signal)
        assert process.wait(DEADLINE_SECONDS) == 0, log.read_text()


@contextmanager
def started(command: Sequence[str], output: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process, that is killed at the end if it still runs."""
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


def status(port: int, path: str) -> int | None:
    """The status with which a port answers a GET of the path; None if it does not answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
