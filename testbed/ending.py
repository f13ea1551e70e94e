"""How the demos end: by themselves or by a signal, and always with what they have started."""

import signal
import sys
from collections.abc import Callable

from testbed import SetupError


def status_of(name: str, run: Callable[[], int]) -> int:
    """Run a demo, and return the exit status: its own, 2 if something is missing, 130 for a signal.

    SIGTERM and SIGHUP end it as Ctrl-C does. `name` begins the line that says why it ended.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return run()
    except SetupError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; broker and sidecars are stopped", file=sys.stderr)
        return 130


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
