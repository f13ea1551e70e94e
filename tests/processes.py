"""The questions of tests about the processes that they start."""

import signal
from pathlib import Path


def take_interrupts() -> None:
    """Give SIGINT its default action in a child that is about to run its program: a `preexec_fn`.

    A shell without job control starts its background jobs with SIGINT ignored, and whatever they start inherits that.
    Without this, a test that interrupts its child depends on how the run of tests was started.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def has_ended(pid: int) -> bool:
    """Return whether no process of this pid runs any more; one that its parent has not waited for has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
