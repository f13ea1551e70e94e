"""The attempts of a sidecar's members to open links and to raise shards, and when each may be repeated. No I/O."""

from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.groups.decision import HEAL

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds until a link that the broker has ended is opened again: the pause doubles from the first to the longest."""

ASK_AGAIN: Final = 10.0
"""Seconds after which a session is asked again for a link that it has not opened, for example for want of a channel."""

MOST_DOUBLINGS: Final = 6
"""How often the pause after a raise without effect doubles, at most; the first pause is twice HEAL seconds."""

Key = tuple[str, str]
"""The id of a member of this sidecar, and a shard."""


class Refusal(NamedTuple):
    """The broker's refusal of one member's link to one shard."""

    since: float
    """When the first of the refusals in a row came, in monotonic seconds."""
    why: str
    """The broker's reply code and text."""


class Pause(NamedTuple):
    """The pause before the next attempt to open a link."""

    until: float
    """In monotonic seconds."""
    length: float
    """In seconds."""


class Raise(NamedTuple):
    """The last raise of one shard for one member of this sidecar."""

    at: float
    """In monotonic seconds."""
    in_vain: int
    """How many raises in a row before it had no effect."""


class Attempts:
    """All attempts of one group's members; it lives as long as the sidecar has members of the group."""

    def __init__(self) -> None:
        """Begin without any attempt."""
        self.refused: dict[Key, Refusal] = {}
        """The links that the broker has ended with an error and that are not open again. Other modules only read it."""
        self._pauses: dict[Key, Pause] = {}
        self._raises: dict[Key, Raise] = {}

    @property
    def not_before(self) -> dict[Key, float]:
        """When links may be opened again, in monotonic seconds."""
        return {key: pause.until for key, pause in self._pauses.items()}

    @property
    def not_raised_before(self) -> dict[Key, float]:
        """When shards may be raised again whose last raise had no effect, in monotonic seconds."""
        vain = {key: last for key, last in self._raises.items() if last.in_vain}
        return {key: last.at + HEAL * 2 ** min(last.in_vain, MOST_DOUBLINGS) for key, last in vain.items()}

    def raised_at(self, member: str, shard: str) -> float | None:
        """Return when a shard was last raised for a member, in monotonic seconds; None if it never was."""
        last = self._raises.get((member, shard))
        return last.at if last is not None else None

    def ended(self, member: str, shard: str, why: str, now: float) -> bool:
        """Note that the broker has ended a link, with an error or, if `why` is empty, by a cancel.

        The next attempt is made after a pause. Returns whether the error is news.
        """
        self._pause(member, shard, now, longer=True)
        refusal = self.refused.get((member, shard), Refusal(now, ""))
        if why:
            self.refused[member, shard] = refusal._replace(why=why)
        return why not in ("", refusal.why)

    def missing(self, member: str, shard: str) -> None:
        """Note that a shard does not exist: whether a link may be opened does not depend on the time then."""
        self._pauses.pop((member, shard), None)

    def handed_over(self, member: str, shard: str) -> None:
        """Note that a member has given a shard up, so that it may wait for it again at once."""
        self._pauses.pop((member, shard), None)

    def asked(self, member: str, shard: str, now: float) -> None:
        """Note that a session was asked for a link."""
        self._pause(member, shard, now, longer=False)

    def raised(self, member: str, shard: str, now: float, *, was_in_vain: bool) -> None:
        """Note that a shard is raised for a member, and whether the last raise had no effect."""
        last = self._raises.get((member, shard))
        self._raises[member, shard] = Raise(now, last.in_vain + 1 if last is not None and was_in_vain else 0)

    def forget(self, member: str) -> None:
        """Forget the attempts of a member that has left."""
        for known in (self.refused, self._pauses, self._raises):
            for key in [key for key in known if key[0] == member]:
                del known[key]

    def prune(self, now: float, lacks: Callable[[str, str], bool], is_shard: Callable[[str], bool]) -> None:
        """Forget what is over.

        `lacks` says of a member and a shard whether the member's link is to be opened, and is not open; `is_shard` says
        whether the group has a shard.
        """
        self.refused = {key: refusal for key, refusal in self.refused.items() if lacks(*key)}
        self._pauses = {
            key: pause for key, pause in self._pauses.items() if now < pause.until + LONGEST_PAUSE or lacks(*key)
        }
        self._raises = {key: last for key, last in self._raises.items() if is_shard(key[1])}

    def _pause(self, member: str, shard: str, now: float, *, longer: bool) -> None:
        before = self._pauses.get((member, shard), Pause(0.0, FIRST_PAUSE / 2)).length
        length = min(2 * before, LONGEST_PAUSE) if longer else before
        self._pauses[member, shard] = Pause(now + (length if longer else ASK_AGAIN), length)
