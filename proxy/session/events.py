"""The requests of a session's sans-I/O core to its session: values in `Connection.events`."""

# mypyc: compiled

from typing import NamedTuple

from proxy.session.channel import Channel
from proxy.settings.missing_right import MissingRight
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


class Lacks(NamedTuple):
    """The client's user lacks a right that it needs on account of this proxy; it is also Refused."""

    right: MissingRight


class Missing(NamedTuple):
    """The broker has refused a publish of this proxy's because an exchange that rings lead to does not exist."""

    exchange: str


class NoQueue(NamedTuple):
    """A client consumes from a queue that does not exist, and nothing is known of an exchange of that name."""

    name: str


class Reopened(NamedTuple):
    """A client's channel was opened again unseen, after the broker had closed it because a lane is gone."""

    channel: Channel
    text: str
    """The broker's reason for closing the channel."""
    unanswered: int
    """How many publishes had no answer yet; their client gets nacks."""


Event = Declared | Stale | Refused | Lacks | Missing | NoQueue | Reopened
