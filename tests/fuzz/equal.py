"""The outcomes of random inputs, as lines: `python -m tests.fuzz.equal SEED ROUNDS [CASE ...]`, compiled and not.

tests/unit/test_compiled.py runs it as both and compares. The inputs are those of the harnesses, mutated, and such as
have numbers at the edges of what integers of 31, 32, 62, 63 and 64 bits hold.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from random import Random
from unittest.mock import patch

from ring.compiled import kind
from tests.fuzz import equal_amqp, equal_http, equal_journal, equal_ring
from tests.fuzz.said import Say, shown

CASES: Mapping[str, Callable[[Random, Say], None]] = {
    "session": equal_amqp.fuzzed_session,
    "handshake": equal_amqp.handshakes,
    "edges": equal_amqp.edges,
    "content": equal_amqp.contents,
    "table": equal_amqp.tables,
    "frames": equal_amqp.least,
    "lookup": equal_amqp.lookups,
    "confirms": equal_amqp.confirms,
    "client": equal_http.fuzzed_client,
    "publishing": equal_http.clients,
    "properties": equal_http.values,
    "items": equal_http.items,
    "dispatch": equal_http.dispatched,
    "batch": equal_http.batches,
    "limits": equal_http.limits,
    "journalled": equal_journal.sessions,
    "buffers": equal_journal.buffers,
    "rings": equal_ring.rings,
}


def said(name: str, seed: str) -> list[str]:
    """Return what came out of one case."""
    lines: list[str] = []
    CASES[name](Random(f"{name} {seed}"), lambda thing: lines.append(shown(thing)))
    return lines


def main(seed: str, rounds: int, names: Collection[str]) -> None:
    """Say all: first what runs, then of each case its name and what came out of it, a line each."""
    print(kind())
    chosen = patch("proxy.process.identity.process_id", lambda: "of all")
    with patch("secrets.randbits", lambda bits: 0x1234567), chosen:
        for number in range(rounds):
            for name in names:
                print(f"== {name} {seed}-{number}")
                print(*said(name, f"{seed}-{number}"), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] or CASES)
