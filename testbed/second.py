"""`python -m testbed.second -- COMMAND...`: run the command on the machine's own RabbitMQ, where that is an older one.

The command gets BROKER=installed. If the machine's own RabbitMQ is the first choice already, or is a RabbitMQ 4,
nothing is run, this says why in a line, and the exit status is 0. If the machine has none and gets none, the exit
status is 1.
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
    try:
        reason = why_none()
    except SetupError as error:
        sys.exit(f"no second RabbitMQ: {' '.join(str(error).split())}")
    if reason:
        print(f"no second RabbitMQ: {reason}", flush=True)
        return 0
    return subprocess.run(sys.argv[2:], env=os.environ | {"BROKER": "installed"}).returncode


def why_none() -> str:
    """Return why there is no second RabbitMQ, in a line; empty if there is one.

    Raises SetupError if the machine has no RabbitMQ and none can be installed.
    """
    own = machines_own()
    if own.major >= MAJOR:
        return f"that of this machine is a RabbitMQ {own.major}"
    if not container.engine_answers() and installation("") == own:
        return "that of this machine was the first"
    return ""


if __name__ == "__main__":
    sys.exit(main())
