"""A process as the kernel knows it: CPU time, memory, loaded libraries."""

import re
import time
from pathlib import Path
from typing import NamedTuple


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, in user and kernel mode."""
    # The number that clock_getcpuclockid(3) gives. /proc/PID/stat says the same in steps of 10 ms, too coarse for a
    # relay that takes 0.1 s of a round.
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int) -> int:
    """Return the bytes that are resident now."""
    return _status(pid, "VmRSS")


def peak_memory(pid: int) -> int:
    """Return the most bytes that were ever resident at once."""
    return _status(pid, "VmHWM")


def _status(pid: int, what: str) -> int:
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found, pid
    return int(found[1]) * 1024


class HostTime(NamedTuple):
    """The time of all processors since the start of the machine, in ticks: all of it, and what the host took
    (steal).
    """

    all: int
    stolen: int

    @classmethod
    def now(cls) -> "HostTime":
        """Read the time from /proc/stat, whose columns are user, nice, system, idle, iowait, irq, softirq, steal."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return cls(sum(ticks), ticks[7])

    def stolen_since(self, before: "HostTime") -> float:
        """Return the part of the time since then that the host took, 0 to 1."""
        return (self.stolen - before.stolen) / max(self.all - before.all, 1)


def has_loaded(pid: int, part: str) -> bool:
    """Return whether process `pid` has loaded a library with `part` in its path, as the kernel lists its memory."""
    return part in Path(f"/proc/{pid}/maps").read_text()
