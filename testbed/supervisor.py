"""Processes and a temporary folder that never outlive the Python process that asked for them, however it ends.

`Supervisor` starts this same file as a process in its own session. The supervisor's process is the parent of everything
spawned and adopts whatever its children leave behind (it is their subreaper), so killing its children until none is
left ends them all, without ever looking for a name. It does so when its starter closes the pipe between them or dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process:
    """A supervised process; its pid means no other one until the supervisor is closed."""

    def __init__(self, pid: int) -> None:
        """Hold the running process `pid`."""
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def wait(self, timeout: float) -> bool:
        """Wait until the process has ended, at most `timeout` seconds; say whether it has."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def __del__(self) -> None:
        """Close the descriptor."""
        if hasattr(self, "_pidfd"):
            os.close(self._pidfd)


class Supervisor:
    """The starter's side: a context manager with a temporary `folder`, and `spawn`."""

    def __init__(self) -> None:
        """Start the supervising process, which makes the folder."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in the starter's terminal must not reach it
        )
        self.folder = Path(self._answer()["folder"])
        # The nodes of a cluster are started by a thread each, which must not get each other's answers.
        self._asking = threading.Lock()

    def spawn(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
        """Start `command` with exactly the environment `env`, its output appended to `log`."""
        assert self._process.stdin
        with self._asking:
            json.dump({"command": list(command), "env": dict(env), "log": str(log)}, self._process.stdin)
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            return Process(self._answer()["pid"])

    def close(self) -> None:
        """Kill what is left of the processes, remove the folder, and wait until that is done."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Supervisor:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the supervisor process ended unexpectedly")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer


def _supervise(starter: int) -> None:
    """Spawn what standard input asks for until it ends or the starter does; then leave nothing."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = tempfile.mkdtemp(prefix="ringproxy-")
    try:
        _say({"folder": folder})
        for line in _lines_while_alive(starter):
            _say(_spawn(**json.loads(line)))
    finally:
        _kill_descendants()
        shutil.rmtree(folder)


def _lines_while_alive(starter: int) -> Iterator[bytes]:
    """Yield the lines of standard input; the starter's own children may hold its end open after its death."""
    try:
        pidfd = os.pidfd_open(starter)
    except ProcessLookupError:
        return
    buffer = b""
    while True:
        ready, _, _ = select.select([0, pidfd], [], [])
        data = os.read(0, 65536) if 0 in ready else b""
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        yield from lines


def _kill_descendants() -> None:
    """Kill every child, then those adopted from them, until none is left."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _spawn(command: list[str], env: dict[str, str], log: str) -> dict[str, Any]:
    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_prepare_child,
            )
    except OSError as error:
        return {"error": str(error)}
    process.returncode = 0  # keeps Popen from waiting for it: until the end its pid must mean no other process
    return {"pid": process.pid}


def _prepare_child() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should this supervisor itself be killed


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]))
