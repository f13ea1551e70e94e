"""Keys of groups in series that wait for one message, and figures of how many do. This module does no I/O."""

# mypyc: compiled

from typing import Final, NamedTuple

MOST_KEYS: Final = 1_000
"""The most keys that one report shows, those that wait for the longest."""

MOST_SHOWN: Final = 255
"""The most bytes of a key, or of a message's id, that a report shows."""


class BlockedKey(NamedTuple):
    """A key whose first message came back from a client, or has later ones of its key behind it."""

    since: float
    """When the message came to this sidecar, in monotonic seconds."""
    shard: str
    client: str
    """The member's client, as in `Member.client`."""
    key: str
    """The value that the exchange hashes, up to MOST_SHOWN bytes of it; empty for a message that lacks it."""
    key_hash: str
    """The 128-bit hash of the whole value, in hexadecimal digits; empty for a message that lacks the value."""
    state: str
    """The state of the message: a word of `series.WORDS`."""
    tries: int
    """How often clients have returned the message."""
    due: float | None
    """When the next try is due, in monotonic seconds; None for a message that waits for no try."""
    waiting: int
    """How many messages of the key are here that wait behind it."""
    message_id: str
    """The message's property message_id, up to MOST_SHOWN bytes of it; empty without one."""
    size: int
    """The bytes of the message's body."""
    fingerprint: str
    """The message's own among all of its shard (`retries.fingerprint`)."""
    crashes: int
    """How many clients were lost without a close while they held the message."""
    stands: bool
    """Whether the shard stands, as the message was held for too long."""


class Backlog(NamedTuple):
    """How much the keys of one member in series wait."""

    retried: int
    """The keys whose first message was returned at least once and is not settled."""
    stopped: int
    """The keys that stand still: their first message was tried as often as it may be."""
    since: float
    """When the first of `retried` was first returned, in monotonic seconds; 0 if there is none."""
    blocked_windows: int
    """The links more than half of whose window waits behind another message of its key."""
    standing: int = 0
    """The links whose shard stands, as a message was held for too long."""
