"""Requests whose -ok matters here: declarations, which are read back before the next publish, and publisher modes.

A declaration that asks for no -ok goes out asking for one, which is swallowed: only then is it known to be done (after
a nowait bind the management API missed it 58 times of 60, measured).
"""

from typing import NamedTuple

from proxy.session.channel import Channel, Pending
from proxy.session.connection import Connection
from proxy.session.events import Declared
from proxy.session.publishing import returns
from proxy.session.state import ChannelState
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
)
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    DECLARE_NOWAIT,
    EMPTY_TABLE,
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    EXCHANGE_UNBIND,
    EXCHANGE_UNBIND_OK,
    EXCLUSIVE_QUEUE,
    PASSIVE,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    QUEUE_UNBIND,
    QUEUE_UNBIND_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK_OK,
    TX_SELECT,
    method_frame,
)
from ring.destination import Destination


class _Form(NamedTuple):
    """The arguments of a declaring method: a reserved short, `names` short strings, then bits, then perhaps a table."""

    ok: int
    names: int
    nowait: int
    """The bit of the method that asks for no -ok; 0 for a method that has no bits."""


_FORMS = {
    EXCHANGE_DECLARE: _Form(EXCHANGE_DECLARE_OK, 2, DECLARE_NOWAIT),
    EXCHANGE_DELETE: _Form(EXCHANGE_DELETE_OK, 1, 2),
    EXCHANGE_BIND: _Form(EXCHANGE_BIND_OK, 3, 1),
    EXCHANGE_UNBIND: _Form(EXCHANGE_UNBIND_OK, 3, 1),
    QUEUE_DECLARE: _Form(QUEUE_DECLARE_OK, 1, DECLARE_NOWAIT),
    QUEUE_BIND: _Form(QUEUE_BIND_OK, 3, 1),
    QUEUE_UNBIND: _Form(QUEUE_UNBIND_OK, 3, 0),
    QUEUE_DELETE: _Form(QUEUE_DELETE_OK, 1, 4),
}
_CHANGE_NO_RING = (0, QUEUE_DECLARE)


def stored(name: bytes) -> bytes:
    """Return the name under which RabbitMQ keeps what a method declares, deletes, binds or unbinds as `name`.

    RabbitMQ takes CR and LF out of the names of exchanges and queues in these methods (`strip_cr_lf` in its
    rabbit_channel). It leaves them in binding keys, and in the names that a method publishes to, consumes from, gets
    from or purges.
    """
    return name.replace(b"\n", b"").replace(b"\r", b"") if b"\n" in name or b"\r" in name else name


def declare(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Note what the -ok will mean; return the frame with nowait cleared, or None if nowait was not set."""
    if channel.state != ChannelState.OPEN:
        return None
    form, arguments = _FORMS[method], Arguments(data, i, end, at=2)
    names = tuple([arguments.short_string() for _ in range(form.names)])
    before = arguments.read
    bits = arguments.bits() if form.nowait else 0
    table = arguments.rest
    passive = method in (EXCHANGE_DECLARE, QUEUE_DECLARE) and bits & PASSIVE
    if method == QUEUE_DECLARE and bits & EXCLUSIVE_QUEUE:
        # The queue is the connection's, and lives as long.
        c.handshake.terms = None
    swallow = bool(bits & form.nowait)
    request = Pending(form.ok, swallow, 0 if passive else method, names, table in (b"", EMPTY_TABLE))
    channel.ask(request)
    channel.declaring += request.method not in _CHANGE_NO_RING
    return method_frame(channel.id, method, before + bytes((bits & ~form.nowait,)) + table) if swallow else None


def meant(channel: Channel, queue: bytes) -> bytes:
    """Return the queue that a method of the client's names; an empty name stands for the last queue declared.

    Empty where it is not known which one that is.
    """
    if queue or channel.naming:
        return queue
    return channel.last_queue


def select(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take confirm.select or tx.select: from now on the broker answers publishes. Returns None, as it passes."""
    channel.select(transactional=method == TX_SELECT)
    return None


def end_transaction(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take tx.commit or tx.rollback, whose -ok settles what was published before it."""
    ok = TX_COMMIT_OK if method == TX_COMMIT else TX_ROLLBACK_OK
    channel.ask(Pending(ok, number=channel.confirms.number))


def answered(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take a broker's -ok, which belongs to the channel's first pending request: they are answered in order.

    Returns what the client gets instead; None if it gets the frame as it is, and b"" if it gets nothing: now, or ever
    if this proxy had asked for the -ok. An -ok waits behind the deferred ones. A declaration becomes an event.
    """
    if channel.deferred or (method == TX_COMMIT_OK and channel.unsettled_returns):
        # An -ok waits behind the first that waits, too.
        channel.deferred.append(data[i:end])
        return b""
    if not channel.pending or channel.pending[0].ok != method:
        return None
    request = channel.pending.popleft()
    channel.declaring -= request.method not in _CHANGE_NO_RING
    if method == QUEUE_DECLARE_OK:
        channel.naming -= 1
        channel.last_queue = Arguments(data, i, end).short_string()
    elif method == TX_COMMIT_OK:
        return returns.committed(c, channel, request.number)
    elif method == TX_ROLLBACK_OK:
        channel.confirms.forget(request.number)
    elif request.method and (declaration := _declaration(channel, request)) is not None:
        c.events.append(Declared(declaration))
    return b"" if request.swallow else None


def _declaration(channel: Channel, request: Pending) -> Declaration | None:
    """Return the declaration that a request has made; None if it touches no ring."""
    try:
        return _in_words(request, *(name.decode() for name in _as_stored(channel, request)))
    except UnicodeDecodeError:
        return None


def _as_stored(channel: Channel, request: Pending) -> tuple[bytes, ...]:
    """Return a request's names and binding key as RabbitMQ keeps them.

    An empty name of a queue stands for the last queue declared, and with it an empty key. RabbitMQ looks at that before
    it takes anything out of the name.
    """
    match request.method, request.names:
        case method, (queue,) if method == QUEUE_DELETE:
            return (stored(queue or channel.last_queue),)
        case method, (name, *others) if method in (EXCHANGE_DECLARE, EXCHANGE_DELETE):
            return stored(name), *others
        case method, (destination, source, key) if method in (QUEUE_BIND, QUEUE_UNBIND) and not destination:
            return stored(channel.last_queue), stored(source), key or channel.last_queue
        case _, (destination, source, key):
            return stored(destination), stored(source), key
        case _:
            return request.names


def _in_words(request: Pending, name: str, source: str = "", key: str = "") -> Declaration | None:
    """Return the declaration of a request with these names; None for a request that declares nothing of a ring.

    The `source` of an exchange that is declared is its type.
    """
    match request.method:
        case method if method == EXCHANGE_DECLARE:
            return ExchangeDeclared(name, source)
        case method if method == EXCHANGE_DELETE:
            return ExchangeDeleted(name)
        case method if method == QUEUE_DELETE:
            return QueueDeleted(name)
        case method if method in (EXCHANGE_BIND, EXCHANGE_UNBIND, QUEUE_BIND, QUEUE_UNBIND):
            kind = BindingAdded if method in (EXCHANGE_BIND, QUEUE_BIND) else BindingRemoved
            to = Destination("exchange" if method in (EXCHANGE_BIND, EXCHANGE_UNBIND) else "queue", name)
            return kind(source, to, key, request.plain)
        case _:
            return None
