"""The outcomes that a publish can have: one vocabulary for HTTP answers, metrics and the journal."""

from enum import StrEnum


class Outcome(StrEnum):
    """The fate of one message, as far as it is known."""

    CONFIRMED = "confirmed"
    """The broker confirmed it, in the queue that the ring chose."""
    NACKED = "nacked"
    """The broker took it and refused to keep it."""
    UNROUTABLE = "unroutable"
    """The broker returned it: no queue was there to take it."""
    SENT = "sent"
    """Sent, and the client asked for no confirm."""
    PASSED = "passed"
    """Confirmed by the broker, but routed by the exchange itself, not by a ring."""
    REJECTED = "rejected"
    """Refused by this proxy before sending: a limit, or draining."""
    INVALID = "invalid"
    """Refused because the request itself is wrong; sending it again will not help."""
    UNAVAILABLE = "unavailable"
    """Never sent: no broker, or no ring known to be good."""
    UNKNOWN = "unknown"
    """Sent, and no answer came: it may be in a queue or not."""
