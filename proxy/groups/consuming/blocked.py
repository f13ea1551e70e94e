"""The keys in series that wait, as reports show them."""

# mypyc: compiled

from typing import Final

from proxy.groups.blocked import MOST_SHOWN, Backlog, BlockedKey
from proxy.groups.consuming.deliver import value_of
from proxy.groups.consuming.hidden import Consumer, HiddenChannel
from proxy.groups.consuming.letters import payload_of
from proxy.groups.consuming.retries import fingerprint
from proxy.groups.consuming.series import WORDS, Held, HeldState
from ring.hashed import HashedValue

_MESSAGE_ID: Final = HashedValue("property", "message_id")


def backlog(consumer: Consumer) -> Backlog | None:
    """Return how much the keys of a member wait; None if it is not in series."""
    series = consumer.series
    if series is None:
        return None
    half = series.rules.window // 2
    windows = [hidden.window for hidden in consumer.hidden]
    blocked = sum(window is not None and window.waiting > half for window in windows)
    standing = sum(bool(window is not None and window.overdue) for window in windows)
    return Backlog(len(series.retried), series.stopped, next(iter(series.retried.values()), 0.0), blocked, standing)


def blocked_keys(hidden: HiddenChannel) -> list[BlockedKey]:
    """Return the keys of a link that wait for one message; empty for a link that is not in series."""
    window = hidden.window
    if window is None or hidden.link is None:
        return []
    return [
        _shown(hidden, hidden.link.shard, held)
        for held in window.held.values()
        if held.state != HeldState.WAITING and held.key and (held.tries or held.crashes or held.after is not None)
    ]


def _shown(hidden: HiddenChannel, shard: str, held: Held) -> BlockedKey:
    """Return what an operator is shown of the key whose first message is `held`."""
    waiting, after = 0, held.after
    while after is not None:
        waiting, after = waiting + 1, after.after
    hashed = hidden.consumer.hashed
    frames = (held.frames, 0, held.header_at, held.body_at)
    key = value_of(hashed, *frames) if hashed is not None else None
    body = payload_of(held.body)
    return BlockedKey(
        held.at,
        shard,
        hidden.consumer.member.client,
        _text(key or b""),
        held.key.hex(),
        WORDS[HeldState(held.state)],
        held.tries,
        held.due if held.state == HeldState.RETRY else None,
        waiting,
        _text(value_of(_MESSAGE_ID, *frames) or b""),
        len(body),
        held.fingerprint or fingerprint(held.key, held.header, body),
        held.crashes,
        held in held.window.overdue,
    )


def _text(value: bytes) -> str:
    return value[:MOST_SHOWN].decode(errors="replace")
