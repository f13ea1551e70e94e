"""The news of a session's interceptor for the groups, and for the log: values in `Consuming.events`."""

# mypyc: compiled

from typing import NamedTuple

from proxy.groups.consuming.letters import Letter
from proxy.groups.consuming.series import Held
from proxy.groups.model import Member
from proxy.session.channel import Channel


class JoinAsked(NamedTuple):
    """A client consumes from the name of a group, which no queue has: its member asks to join."""

    member: Member


class Left(NamedTuple):
    """A member has ended, in whatever way."""

    member: Member


class LinkChanged(NamedTuple):
    """A link of a member has changed its state."""

    member: Member


class LinkRefused(NamedTuple):
    """The broker has ended a member's link to a shard."""

    member: Member
    shard: str
    code: int
    """The broker's reply code; 0 if it has cancelled the consumer, whose queue is gone or has moved."""
    text: str


class LinkBroken(NamedTuple):
    """The broker closes the connection, since the queue of a link cannot be consumed."""

    member: Member
    shard: str
    text: str


class DeadLetterDue(NamedTuple):
    """A message of a member in series was tried as often as it may; `settle.dead_lettered` awaits what became of it."""

    held: Held
    letter: Letter


class Shadowed(NamedTuple):
    """A client uses a queue that has the name of a group: the queue wins."""

    name: str


class DeclaredGroup(NamedTuple):
    """A client has declared a queue with the name of a group, and has got the group's totals; no queue was made."""

    name: str


class ShardsAsked(NamedTuple):
    """A method of the client's waits until it is known whether an exchange has a group, and which shards."""

    channel: Channel
    name: str


GroupEvent = (
    JoinAsked | Left | LinkChanged | LinkRefused | LinkBroken | DeadLetterDue | Shadowed | DeclaredGroup | ShardsAsked
)
