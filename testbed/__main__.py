"""`python -m testbed [-- COMMAND...]`: run the command with a broker in BROKER, or hold a broker until interrupted.

`python -m testbed --prepare` instead installs what the broker of BROKER needs, and starts nothing.
"""

import os
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

from testbed import SetupError
from testbed.broker import Broker, prepare, running_broker


def main() -> int:
    """Return the command's exit status."""
    command = sys.argv[1:]
    if command != ["--prepare"] and command and (command[0] != "--" or len(command) < 2):
        sys.exit("usage: [BROKER=...] python -m testbed [--prepare | -- COMMAND...]")
    signal.signal(signal.SIGTERM, _exit)
    try:
        if command == ["--prepare"]:
            prepare()
            return 0
        with running_broker() as broker:
            return _run(command[1:], broker) if command else _hold(broker)
    except SetupError as error:
        sys.exit(f"testbed: {error}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(command: list[str], broker: Broker) -> int:
    env = os.environ | {"BROKER": broker.amqp_url, "BROKER_MANAGEMENT_URL": broker.management_url}
    with subprocess.Popen(command, env=env) as process:
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                continue  # Ctrl-C reaches the command too, which decides what it means
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _hold(broker: Broker) -> NoReturn:
    print(f"RabbitMQ {broker.version} ({broker.source})", f"AMQP        {broker.amqp_url}", sep="\n")
    print(f"management  {broker.management_url}", "Ctrl-C stops it.", sep="\n", flush=True)
    while True:
        signal.pause()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
