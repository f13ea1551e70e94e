"""The work around a session's interceptor that needs the event loop: see `interceptor.py`.

This module stays Python: an interpreted class cannot inherit from a compiled one, and attendants are interpreted.
"""

from proxy.session.interceptor import Interceptor


class Attendant:
    """The attendant of a session without an interceptor, and the base of all others."""

    interceptor: Interceptor | None = None
    kept_back = 0
    """How many channel numbers are to be kept back from the client, where the broker offers enough."""

    def go_on(self) -> None:
        """See to what the interceptor has noted; called after each read, and never from within a loop over frames."""

    def drain(self) -> None:
        """Begin to end what the interceptor does, as this proxy shuts down; the client is read on meanwhile."""

    @property
    def may_close(self) -> bool:
        """Whether nothing is lost if the session closes now; asked after `drain`."""
        return True

    def client_lost(self) -> None:
        """Note that the client is gone without having closed its connection; it may be called more than once."""

    def lost(self) -> None:
        """Note that the session is over."""
