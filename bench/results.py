"""The files of results: one for each part and release of RabbitMQ, of Markdown tables that people and plots read."""

import os
import platform
import subprocess
from datetime import date
from pathlib import Path

from bench.process import HostTime
from bench.tables import Table, tables

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "bench" / "results"


def commit(folder: Path = ROOT) -> str:
    """Return the commit of a folder as `git describe` names it; empty where it is not under git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def file_name(part: str, version: str) -> str:
    """Return the name of a part's file for a version of the broker, which is empty where it has no share."""
    return "-".join([part, *([".".join(version.split(".")[:2])] if version else [])]) + ".md"


def document(part: str, command: str, conditions: str, text: str) -> str:
    """Return the content of a file of results: its title, what was measured with what, and the tables."""
    return f"# {part}\n\n`{command}`, {date.today().isoformat()}{conditions}.\n\n{text}\n"


def newest(part: str, folder: Path = FOLDER) -> Path:
    """Return the file of a part's results, on the newest release of the broker where there are several."""
    found = [path for path in folder.glob(f"{part}-*.md") if _release(part, path)]
    return max(found, key=lambda path: _release(part, path), default=folder / file_name(part, ""))


def _release(part: str, path: Path) -> tuple[int, ...]:
    """Return the release that a file's name ends with; empty for a file of another part, whose name begins alike."""
    numbers = path.stem.removeprefix(f"{part}-").split(".")
    return tuple(map(int, numbers)) if all(number.isdigit() for number in numbers) else ()


class Result:
    """The tables in a file of results."""

    def __init__(self, path: Path) -> None:
        """Read the file."""
        self.path = path
        self._tables = tables(path.read_text())

    def table(self, head: str, at: int = 0) -> Table:
        """Return the table whose column `at` has this head."""
        return next(table for table in self._tables if table.heads[at : at + 1] == [head])


def machine(load: float, before: HostTime) -> str:
    """Return the machine in words, with its load when the benchmark began, and what the host took since `before`."""
    stolen = f"{HostTime.now().stolen_since(before):.0%} of their time taken by the host"
    loads = f"load average {load:.1f} when it all began, {os.getloadavg()[0]:.1f} at the end of this part"
    return f"{os.cpu_count()} cores ({_processor()}), {stolen}, {loads}"


def _processor() -> str:
    """Return the name of the processor as far as the kernel knows it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
