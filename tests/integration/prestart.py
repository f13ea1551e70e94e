"""Sidecars as forks of a process that has imported what `ring-proxy run` imports.

Importing takes two thirds of a second of CPU, more than most tests take, and hundreds of tests start a sidecar. A fork
runs the command's own `main` with an environment and a log of its own. Tests of the command start it as users do.
"""

import atexit
import ctypes
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

import proxy
from ring.compiled import kind

PR_SET_PDEATHSIG = 1

KIND = "PRESTART_KIND"
"""The variable that tells the process which is forked how the tests' modules run: `compiled` or `python`."""


class Prestarted:
    """A sidecar's process, as `subprocess.Popen` shows one: as much of that as tests use."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """Start it with exactly this environment, and both its outputs in the log."""
        self._status, theirs = os.pipe()
        self.returncode: int | None = None
        """The exit status, or minus the number of the signal that ended it; None until it is waited for."""
        try:
            with log.open("wb") as output:
                socket.send_fds(_server(), [json.dumps(dict(environment)).encode()], [theirs, output.fileno()])
        finally:
            os.close(theirs)
        self.pid = self._line()

    def _line(self) -> int:
        """Return the number in the next line of the server: the pid, and at the end the exit status."""
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._status, 1)
            assert read, "the process that starts sidecars has ended"
            line += read
        return int(line)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("ring-proxy run", timeout or 0)
            self.returncode = self._line()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    """Start the process that is forked, at the first use; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    places = str(Path(proxy.__file__).parents[1]), str(Path(__file__).parents[2])
    # The same modules, compiled or not, that the tests import: `-m` puts the sources first unless the path is safe.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(places),
        "PYTHONSAFEPATH": "1",
        "PYTHONWARNINGS": "default",
    }
    environment[KIND] = kind()
    command = [sys.executable, "-m", "tests.integration.prestart"]
    process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(asked: socket.socket) -> None:
    """Fork a sidecar for each message, and tell its pid and later its exit status, until the other side ends."""
    import uvloop  # noqa: F401 - what forks shall find imported, as all below

    from proxy.app import run  # noqa: F401
    from proxy.cli import main  # noqa: F401

    assert kind() == os.environ[KIND], "forks would run other modules than the tests import"
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake)
    told: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(told)
        if asked.fileno() in ready:
            message, files, _, _ = socket.recv_fds(asked, 1 << 18, 2)
            if not message:
                return
            status, log = files
            pid = os.fork()
            if pid == 0:
                _become_sidecar(json.loads(message), log, [asked.detach(), woken, wake, status, *told.values()])
            os.close(log)
            told[pid] = status
            os.write(status, b"%d\n" % pid)


def _tell_ends(told: dict[int, int]) -> None:
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        file = told.pop(pid)
        os.write(file, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(file)


def _become_sidecar(environment: Mapping[str, str], log: int, others: Iterable[int]) -> None:
    """Run the command in this process, which has been forked, and end it as the interpreter would."""
    from proxy.cli import main

    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for file in others:
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["ring-proxy", "run"]
        status = main(["run"])
        # Threads that do not end, and what was never awaited, show as they do at an interpreter's end.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        gc.collect()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=os.dup(0)))
