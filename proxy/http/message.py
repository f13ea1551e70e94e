"""A message that came over HTTP, ready to be published; pure."""

from typing import NamedTuple

from proxy.amqp.properties import Properties


class Message(NamedTuple):
    """One message, whichever endpoint took it."""

    key: bytes | None
    """Routing key, at most 255 bytes; None where none was given."""

    properties: Properties
    """Persistent unless asked otherwise. Messages may share one dict: nobody changes it."""

    body: bytes
