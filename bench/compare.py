"""Publishes to an exchange of your own broker, straight and through a sidecar, in turn, and prints both rates.

`python -m bench.compare BROKER_URL SIDECAR_URL EXCHANGE` takes two amqp:// URLs. It publishes transient messages of 128
bytes with 1,000 keys, again and again: use an exchange of virtual host / whose queues are for tests.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import BenchError, direct, wire
from bench.messages import KEYS
from bench.rounds import Spread, in_turn
from bench.tables import shown

ROUNDS, SECONDS = 5, 2.0
_TRANSIENT = 1


def main() -> int:
    """Print the rates and their ratio, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__, allow_abbrev=False)
    for name, told in (("broker", "the broker's amqp:// URL"), ("sidecar", "the sidecar's amqp:// URL")):
        parser.add_argument(name, help=told)
    parser.add_argument("exchange", help="a hash exchange that the sidecar routes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringproxy-bench-") as folder:
        messages = Path(folder, "messages")
        wire.save(messages, [direct.message(key, _TRANSIENT, options.exchange) for key in KEYS])
        urls = {"broker": options.broker, "sidecar": options.sidecar}
        ways = {title: partial(_rate, url, messages) for title, url in urls.items()}
        try:
            found = in_turn(ways, ROUNDS, SECONDS)
        except BenchError as error:
            print(f"compare: {str(error).splitlines()[-1]}", file=sys.stderr)
            return 1
    print(compared(found["broker"], found["sidecar"]))
    return 0


def compared(broker: Sequence[float], sidecar: Sequence[float]) -> str:
    """Return the rates of the rounds, and the ratio of the sidecar's to the broker's within a round, in words."""
    lines = [
        ("straight to the exchange, messages/s", broker, ",.0f"),
        ("through the sidecar, messages/s", sidecar, ",.0f"),
    ]
    lines.append(("ratio", [ours / native for ours, native in zip(sidecar, broker, strict=True)], ".2f"))
    return "\n".join("{}: {} ({})".format(title, *shown(Spread.of(each), form)) for title, each, form in lines)


def _rate(amqp_url: str, messages: Path, seconds: float) -> float:
    return direct.messages_per_second(amqp_url, messages, seconds)[0]


if __name__ == "__main__":
    sys.exit(main())
