"""The requests of a session's sans-I/O core to its session: values in `Connection.events`."""

from typing import NamedTuple

from proxy.session.channel import Channel
from proxy.topology.declarations import Declaration
from proxy.topology.table import Name
from ring.destination import Destination


class Declared(NamedTuple):
    """The broker's -ok to a declaration is about to reach the client."""

    declaration: Declaration


class Stale(NamedTuple):
    """The ring of an exchange no longer fits: a message came back, or a channel was closed because of one."""

    name: Name
    destination: Destination | None
    """The destination that is gone; None if it is not known."""


class Refused(NamedTuple):
    """This proxy has closed the connection or a channel, for a reason that is logged and counted."""

    code: int
    text: str
    channel: Channel | None = None
    """The channel that the broker has yet to close; None if there is none."""


Event = Declared | Stale | Refused
