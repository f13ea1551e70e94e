"""How sessions end: why, and what their clients are told."""

from enum import Enum

SHUTTING_DOWN = "ringproxy is shutting down"


class End(Enum):
    """Why a session ended; the first reason counts."""

    CLIENT = "client"
    """The client left."""
    BROKER = "broker"
    """The broker closed it, or did not answer in time."""
    UNREACHABLE = "unreachable"
    """No broker took the connection."""
    PROTOCOL = "protocol"
    """The client sent bytes that are not AMQP 0-9-1 as the specification has it."""
    SHUTDOWN = "shutdown"
    """This proxy ends."""
    DEFECT = "defect"
    """This proxy failed; its log has the traceback."""
