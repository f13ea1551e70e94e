"""The orders of operators, as the session does them that has the first message of the key."""

# mypyc: compiled

from typing import Final

from proxy.groups.consuming import retries, settle
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.consuming.letters import payload_of
from proxy.groups.consuming.series import Held, HeldState
from proxy.groups.model import LinkState
from proxy.groups.operators import Act, Order

_REFUSED: Final = {
    HeldState.CLIENT.value: "its client works on the message now",
    HeldState.DEAD.value: "the message is a dead letter already, whose confirm is awaited",
}
"""By state, why no order can be done."""


def operate(g: Consuming, hidden: HiddenChannel, order: Order) -> str:
    """Do an order; return why it was not done, an empty string where it was."""
    link, consumer = hidden.link, hidden.consumer
    held = _first(hidden, order.key_hash)
    if held is None or link is None:
        return "no message of the key is here"
    if (held.fingerprint or retries.fingerprint(held.key, held.header, payload_of(held.body))) != order.fingerprint:
        return "another message is the first of its key by now"
    if link.state != LinkState.OPEN or consumer.leaving:
        return "its shard is about to move"
    if why := _REFUSED.get(held.state):
        return why
    if order.act == Act.RELEASE:
        retries.released(hidden, held)
    elif order.act == Act.SKIP:
        settle.skip(g, hidden, held)
    elif not g.rules.buries:
        return "groups_dead_letter of its sidecar names no exchange"
    else:
        held.window.series.bury(held)
        retries.bury(g, hidden, held)
    g.retrying[consumer] = None
    return ""


def _first(hidden: HiddenChannel, key_hash: str) -> Held | None:
    """Return the first message of a key, which all others of it wait for; None if none is here."""
    if hidden.window is None:
        return None
    key = bytes.fromhex(key_hash)
    for held in hidden.window.held.values():
        if held.key == key and held.state != HeldState.WAITING:
            return held
    return None
