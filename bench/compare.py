"""Publishes to an exchange of your own broker, straight and through a sidecar, in turn, and prints both rates.

`python -m bench.compare BROKER_URL SIDECAR_URL EXCHANGE` takes two amqp:// URLs. It publishes transient messages of 128
bytes with 1,000 keys, again and again: use an exchange of virtual host `/` whose queues
are for tests.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench import BenchError, direct, wire
from bench.amqp import COMPILED, CONSISTENT
from bench.long.scene import TRANSIENT, raced, rows
from bench.messages import KEYS
from bench.rounds import Contender


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__, allow_abbrev=False)
    for name, told in (("broker", "the broker's amqp:// URL"), ("sidecar", "the sidecar's amqp:// URL")):
        parser.add_argument(name, help=told)
    parser.add_argument("exchange", help="a hash exchange that the sidecar routes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringproxy-bench-") as folder:
        messages = Path(folder, "messages")
        wire.save(messages, [direct.message(key, TRANSIENT, options.exchange) for key in KEYS])
        ways = {CONSISTENT: options.broker, COMPILED: options.sidecar}
        try:
            print(rows({options.exchange: raced([_contender(*way, messages) for way in ways.items()])}, "exchange"))
        except BenchError as error:
            print(f"compare: {error}", file=sys.stderr)
            return 1
    return 0


def _contender(title: str, amqp_url: str, messages: Path) -> Contender:
    """Return a contender whose processes are elsewhere, so that their CPU time is not known."""
    return Contender(title, partial(direct.messages_per_second, amqp_url, messages), None, None)


if __name__ == "__main__":
    sys.exit(main())
