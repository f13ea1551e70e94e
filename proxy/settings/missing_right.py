"""Rights for want of which the broker refuses something, read of its texts, and what grants them. Pure."""

import re
import shlex
from typing import Final, NamedTuple

from proxy.settings.rights import escaped, to_lanes

_REFUSAL: Final = re.compile(
    r"ACCESS_REFUSED - (configure|write|read) access to (exchange|queue) '(.*)' in vhost '(.*)' refused for user"
    r" '([^']*)'",
    re.DOTALL,
)
"""RabbitMQ's reply text. A stranger may have put the like into a name: the user behind the last vhost counts."""


class MissingRight(NamedTuple):
    """A right that a user lacks."""

    vhost: str
    user: str
    right: str
    """`configure`, `write` or `read`."""
    resource: str
    """The thing that it is a right on, in words, such as `exchange 'orders'`."""
    wanted: str
    """A regular expression for the names to grant it on, or words where that would be too long."""

    @property
    def remedy(self) -> str:
        """The sentence that tells an operator how to grant it; the patterns in force are not known here."""
        command = f"rabbitmqctl set_permissions -p {shlex.quote(self.vhost)} {shlex.quote(self.user)}"
        return f"Grant {self.right} on {self.wanted}: {command} CONFIGURE WRITE READ."


def missing_right(text: str) -> MissingRight | None:
    """Return the right that a reply text of the broker names; None if it names none, or was cut before its end.

    A user without the right on one lane mostly lacks it on all, so one lane stands for all of its exchange.
    """
    found = _REFUSAL.search(text)
    if found is None:
        return None
    right, kind, name, vhost, user = found.groups()
    if kind == "exchange" and (lanes := to_lanes(name)):
        return MissingRight(vhost, user, right, "the lanes of an exchange", lanes)
    name = name or "amq.default"  # as LavinMQ names the default exchange
    return MissingRight(vhost, user, right, f"{kind} {name!r}", f"^{escaped(name)}$")
