"""The rules of a group in series: how long its messages are tried, and where they go then."""

# mypyc: compiled

from typing import Final, NamedTuple

from proxy.settings.tries import LONGEST_SPREAD, tries_take

MOST_BEHIND: Final = 1 << 30
"""The most bytes that come behind a message that is held, on a broker that keeps them until it is settled."""

NEW_LOG: Final = (4, 3)
"""The first version of RabbitMQ whose quorum queues do not keep what came behind an unacked message."""


class Rules(NamedTuple):
    """The settings of groups in series. All times are in seconds."""

    window: int = 200
    """The prefetch of each link."""
    delay: float = 1.0
    """The time from a message's first return until it is tried again; it doubles with each further one."""
    longest: float = 60.0
    """The longest such time."""
    limit: int = 0
    """The most tries of a message; 0 for any number."""
    dead_letters: bool = False
    """Whether a message that was tried so often is published as a dead letter; if not, its key stands still."""
    buries: bool = False
    """Whether there is an exchange for dead letters, so that an operator may have a message published there."""
    crashes: int = 3
    """The crashes of clients that held a message, the last one alone, after which it is not tried again."""
    hold: float | None = None
    """The longest time from a message's first return for which its shard goes on; 0 for any, None for the default."""
    behind: int = 0
    """The most bytes that come behind such a message; 0 for any number."""
    spares: bool = False
    """Whether a message with that many crashes is tried again all the same, after the longest delay."""


def limits(rules: Rules, version: tuple[int, int]) -> Rules:
    """Return the rules for a broker of this version, of which RabbitMQ before 4.3 bears less."""
    if rules.hold == 0:
        return rules
    is_new = version >= NEW_LOG
    hold = rules.hold
    if hold is None:
        hold = max(3600.0 if is_new else 600.0, tries_take(rules.delay, rules.longest, rules.limit))
    return rules._replace(hold=hold, behind=0 if is_new else MOST_BEHIND)


def spread(key: bytes) -> float:
    """Return by how much the delays of a key are longer than the rules say: a factor from 1 to LONGEST_SPREAD.

    A thousand keys that failed together, as they do when a database is away, are not tried together again: others'
    messages would wait behind them. `key` is the hash of a key, and empty for a message without one.
    """
    return 1.0 + (LONGEST_SPREAD - 1.0) * key[0] / 255.0 if key else 1.0
