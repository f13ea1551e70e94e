"""What the kernel knows of a process: CPU time, memory, loaded libraries."""

import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of all its threads so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> int:
    """The bytes that are resident now."""
    return _status(pid, "VmRSS")


def peak_memory(pid: int) -> int:
    """The most bytes that were ever resident at once."""
    return _status(pid, "VmHWM")


def _status(pid: int, what: str) -> int:
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found, pid
    return int(found[1]) * 1024


def uses_uvloop(pid: int) -> bool:
    """Whether a Python process has uvloop loaded: seen from outside, it cannot be told wrongly."""
    return "/uvloop/" in Path(f"/proc/{pid}/maps").read_text()
