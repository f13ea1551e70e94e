"""The methods on open channels that this proxy looks at, by direction: one row for each, from method id to function.

A function takes the connection, the channel, the method's id, and the bytes with the frame's first index and the one
behind it. It returns the bytes that go on in the frame's place, or None for the frame as it is. Methods without a row
pass as they are. Channel 0 has no rows: `channel_zero` has its methods.
"""

from collections.abc import Callable
from typing import Final

from proxy.session import channel_zero, closing
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing import channel_reopening, requests, returns
from proxy.wire import frames

Handler = Callable[[Connection, Channel, int, bytes, int, int], bytes | None]

FROM_CLIENT: Final[dict[int, Handler]] = {
    # basic.publish is the client's loop's own: `client_loop`.
    frames.CHANNEL_OPEN: closing.client_opens,
    frames.CHANNEL_CLOSE: closing.client_closes,
    frames.CHANNEL_CLOSE_OK: closing.client_agrees,
    frames.EXCHANGE_DECLARE: requests.declare,
    frames.EXCHANGE_DELETE: requests.declare,
    frames.EXCHANGE_BIND: requests.declare,
    frames.EXCHANGE_UNBIND: requests.declare,
    frames.QUEUE_DECLARE: requests.declare,
    frames.QUEUE_BIND: requests.declare,
    frames.QUEUE_UNBIND: requests.declare,
    frames.QUEUE_DELETE: requests.declare,
    frames.CONFIRM_SELECT: requests.select,
    frames.TX_SELECT: requests.select,
    frames.TX_COMMIT: requests.end_transaction,
    frames.TX_ROLLBACK: requests.end_transaction,
    **dict.fromkeys(channel_zero.METHODS, channel_zero.misplaced),
}
"""The functions for methods that a client sends on a channel that is open, or that one side has closed."""

FROM_BROKER: Final[dict[int, Handler]] = {
    # basic.ack and basic.nack are the broker's loop's own: `broker_loop`.
    frames.CHANNEL_OPEN_OK: channel_reopening.broker_opened,
    frames.CHANNEL_CLOSE: closing.broker_closes,
    frames.CHANNEL_CLOSE_OK: closing.broker_agrees,
    frames.EXCHANGE_DECLARE_OK: requests.answered,
    frames.EXCHANGE_DELETE_OK: requests.answered,
    frames.EXCHANGE_BIND_OK: requests.answered,
    frames.EXCHANGE_UNBIND_OK: requests.answered,
    frames.QUEUE_DECLARE_OK: requests.answered,
    frames.QUEUE_BIND_OK: requests.answered,
    frames.QUEUE_UNBIND_OK: requests.answered,
    frames.QUEUE_DELETE_OK: requests.answered,
    frames.TX_COMMIT_OK: requests.answered,
    frames.TX_ROLLBACK_OK: requests.answered,
    frames.BASIC_RETURN: returns.begin,
}
"""The functions for methods that the broker sends on a channel of the client's."""
