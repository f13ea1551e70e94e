"""`python -m testbed.second -- COMMAND...`: run the command on the machine's own RabbitMQ, where that is an older one.

The command gets BROKER=installed. Where the first choice is no RabbitMQ 4, or the machine has and gets no older one,
nothing is run, this says why in a line, and the exit status is 0.
"""

import os
import subprocess
import sys

from testbed import SetupError, container
from testbed.broker import MAJOR, installation, machines_own


def main() -> int:
    """Return the exit status of the command, or 0 where there is no second RabbitMQ."""
    if sys.argv[1:2] != ["--"] or len(sys.argv) < 3:
        sys.exit("usage: python -m testbed.second -- COMMAND...")
    if reason := why_none():
        print(f"no second RabbitMQ: {reason}", flush=True)
        return 0
    return subprocess.run(sys.argv[2:], env=os.environ | {"BROKER": "installed"}).returncode


def why_none() -> str:
    """Return why there is no second RabbitMQ, in a line; empty where there is one."""
    try:
        own = machines_own()
    except SetupError as error:
        return " ".join(str(error).split())
    if own.major >= MAJOR:
        return f"that of this machine is a RabbitMQ {own.major}"
    if not container.engine_answers() and installation("") == own:
        return "that of this machine was the first"
    return ""


if __name__ == "__main__":
    sys.exit(main())
