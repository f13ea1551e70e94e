"""The methods on open channels that this proxy looks at, by direction: one row for each, from method id to function.

A function takes the connection, the channel, the method's id, and the bytes with the frame's first index and the one
behind it. It returns the bytes that go on in the frame's place, or None for the frame as it is. Methods without a row
pass as they are. Channel 0 has no rows: `channel_zero` has its methods.
"""

from collections.abc import Callable
from typing import Final

from proxy.session import channel_zero, closing, consuming, pseudo_queue, reopening, requests, returns, settling
from proxy.session.channel import Channel
from proxy.session.connection import Connection
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
    frames.QUEUE_DECLARE: pseudo_queue.take,
    frames.QUEUE_BIND: pseudo_queue.take,
    frames.QUEUE_UNBIND: pseudo_queue.take,
    frames.QUEUE_DELETE: pseudo_queue.take,
    frames.CONFIRM_SELECT: requests.select,
    frames.TX_SELECT: requests.select,
    frames.TX_COMMIT: requests.end_transaction,
    frames.TX_ROLLBACK: requests.end_transaction,
    **dict.fromkeys(channel_zero.METHODS, channel_zero.misplaced),
}
"""The functions for methods that a client sends on a channel that is open, or that one side has closed."""

CONSUMING_FROM_CLIENT: Final[dict[int, Handler]] = {
    frames.BASIC_CONSUME: consuming.consume,
    frames.BASIC_CANCEL: consuming.cancel,
    frames.BASIC_QOS: consuming.qos,
    frames.BASIC_GET: pseudo_queue.take,
    frames.QUEUE_PURGE: pseudo_queue.take,
    frames.BASIC_ACK: settling.settle,
    frames.BASIC_NACK: settling.settle,
    frames.BASIC_REJECT: settling.settle,
    frames.BASIC_RECOVER: settling.recover,
    frames.BASIC_RECOVER_ASYNC: settling.recover,
}
"""The further functions for a client's methods where the setting `groups` is not empty."""

FROM_BROKER: Final[dict[int, Handler]] = {
    # basic.ack and basic.nack are the broker's loop's own: `broker_loop`.
    frames.CHANNEL_OPEN_OK: reopening.broker_opened,
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

CONSUMING_FROM_BROKER: Final[dict[int, Handler]] = {
    frames.BASIC_CONSUME_OK: consuming.consume_ok,
    frames.BASIC_CANCEL: consuming.cancelled,
    frames.BASIC_CANCEL_OK: consuming.cancel_ok,
    frames.BASIC_GET_EMPTY: consuming.get_empty,
}
"""The further functions for the broker's methods where the setting `groups` is not empty."""
