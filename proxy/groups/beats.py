"""Beats: messages in JSON by which each sidecar tells the others which members of a group it has, and of their links.

A full beat tells all. A short one is a sign of life, and says nothing else. What a beat tells is also what a sidecar
decides by, its own members included: it makes the beat that it would send, and looks at it beside those of the others.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from proxy.groups.model import LinkState

VERSION: Final = 6
"""The version of beats. It changes with any change of what a beat says, since the sidecars of a group must agree."""

MAX_BYTES: Final = 2 * 1024 * 1024
"""The most bytes of one beat."""

MAX_MEMBERS: Final = 2_000
"""The most members that one beat tells of."""

MAX_LINKS: Final = 20_000
"""The most links, and the most refusals, that one beat tells of, counted over all of its members."""

MAX_SHARDS: Final = 20_000
"""The most shards of a ring that one beat names."""

MAX_NAME: Final = 255
"""The most bytes of a name in a beat; AMQP has the same limit for the name of a queue."""

MAX_PREFETCH: Final = 2**16 - 1
"""The highest prefetch, as of basic.qos."""

MAX_TIME: Final = 1e11
"""The latest time in a beat, in seconds since 1970."""

_TOLD: Final = (LinkState.OPENING, LinkState.OPEN, LinkState.LEAVING)
"""The states of links that beats tell of."""


class BeatError(ValueError):
    """Raised for a message that is not a beat; its text names the wrong field and the value."""


class OtherVersionError(BeatError):
    """Raised for a beat of a sidecar of another release, whose beats say something else."""

    def __init__(self, sidecar: str, version: int) -> None:
        """The id of the beat's sender, empty if it has none, and the version of its beats."""
        super().__init__(f"version: {version} is not {VERSION}")
        self.sidecar, self.version = sidecar, version


class LinkBeat(NamedTuple):
    """One member's link to one shard, as a beat describes it."""

    state: int
    """OPENING, OPEN or LEAVING of `LinkState`."""
    since: float
    """When the link was opened, in seconds since 1970 by the sender's clock."""
    unacked: int
    """How many messages of it the member's client holds."""
    wants: bool
    """Whether the sender's own assignment gives the shard to the member."""
    behind: str
    """The id of the member that the sender takes for the shard's owner; empty where it is this member, or nobody."""


@dataclass(frozen=True)
class MemberBeat:
    """One member of the sending sidecar, as a beat describes it."""

    id: str
    client: str
    """The client's address and its connection's name, as reports show it."""
    since: float
    """When the member joined, in seconds since 1970."""
    is_stalled: bool = False
    is_leaving: bool = False
    """Whether the client has cancelled the member, which is told of until all its links have ended."""
    prefetch: int = 0
    """The most unacknowledged messages of each of the member's links; 0 for a member without acks."""
    refused: frozenset[str] = frozenset()
    """The shards that the member may not have at present."""
    links: dict[str, LinkBeat] = field(default_factory=dict)
    """The member's links, by shard."""

    @property
    def is_fit(self) -> bool:
        """Whether the member may get shards: it has neither stalled nor left."""
        return not self.is_stalled and not self.is_leaving


@dataclass(frozen=True)
class Beat:
    """One message of a sidecar to all sidecars that have members of the same group."""

    sidecar: str
    """The id of the sending process."""
    number: int
    """The number of this beat; the sender counts from 1."""
    host: str = ""
    """The name of the machine that the sender runs on; empty in a short beat."""
    queue: str = ""
    """The name of the exclusive queue by which the sender gets beats; empty in a short beat."""
    ring: str = ""
    """The digest of the sender's ring; empty in a short beat."""
    shards: frozenset[str] | None = None
    """The shards of the sender's ring; None where nobody that it hears has another ring, and in a short beat."""
    members: tuple[MemberBeat, ...] | None = ()
    """The sender's members; none where it has left the group. None in a short beat, which says nothing of them."""

    @property
    def size(self) -> int:
        """How many members, links, refusals and shards the beat tells of."""
        members = self.members or ()
        return sum(1 + len(member.links) + len(member.refused) for member in members) + len(self.shards or ())


def digest(shards: Iterable[str]) -> str:
    """Return a digest of the shards of a ring, the same for the same shards in any order."""
    return hashlib.blake2b("\0".join(sorted(shards)).encode(), digest_size=8).hexdigest()


def encode(beat: Beat) -> bytes:
    """Return a beat as JSON, without the members above MAX_MEMBERS and the links above MAX_LINKS."""
    body: dict[str, Any] = {"version": VERSION, "sidecar": beat.sidecar, "number": beat.number}
    if beat.members is not None:
        body |= {"host": cut(beat.host), "queue": beat.queue, "ring": beat.ring}
        body["shards"] = sorted(beat.shards)[:MAX_SHARDS] if beat.shards is not None else None
        body["members"] = _encoded(beat.members)
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _encoded(members: tuple[MemberBeat, ...]) -> list[dict[str, Any]]:
    room, found = MAX_LINKS, []
    for member in members[:MAX_MEMBERS]:
        links = {shard: list(link) for shard, link in list(member.links.items())[:room]}
        refused = sorted(member.refused)[: room - len(links)]
        room -= len(links) + len(refused)
        found.append(
            {
                "id": member.id,
                "client": cut(member.client),
                "since": member.since,
                "stalled": member.is_stalled,
                "leaving": member.is_leaving,
                "prefetch": member.prefetch,
                "refused": refused,
                "links": links,
            }
        )
    return found


def cut(text: str) -> str:
    """Return the beginning of a text, cut so that it takes at most MAX_NAME bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:MAX_NAME].decode("utf-8", "ignore")


def decode(body: bytes) -> Beat:
    """Return the beat in the body of a message.

    Raises OtherVersionError for a beat of another release, and BeatError for anything else.
    """
    if len(body) > MAX_BYTES:
        raise BeatError(f"{len(body)} bytes are more than {MAX_BYTES}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BeatError("it is no JSON") from None
    if not isinstance(found, dict):
        raise BeatError(f"{_shown(found)} is no object")
    version = found.get("version")
    if type(version) is int and version != VERSION:
        sidecar = found.get("sidecar")
        raise OtherVersionError(cut(sidecar) if isinstance(sidecar, str) else "", version)
    if type(version) is not int:
        raise BeatError(f"version: {_shown(version)} is not {VERSION}")
    sidecar, number = _name(found, "sidecar", least=1), _count(found.get("number"), "number", 2**53)
    if "members" not in found:
        return Beat(sidecar, number, members=None)
    beat = Beat(
        sidecar,
        number,
        _name(found, "host"),
        _name(found, "queue"),
        _name(found, "ring"),
        _shards(found.get("shards")),
        _members(found["members"]),
    )
    if beat.size > MAX_LINKS + MAX_MEMBERS + MAX_SHARDS:
        raise BeatError(f"members: more than {MAX_LINKS} links and refusals in all")
    return beat


def _members(found: object) -> tuple[MemberBeat, ...]:
    if not isinstance(found, list) or len(found) > MAX_MEMBERS:
        raise BeatError(f"members: no list of at most {MAX_MEMBERS}")
    members = tuple(_member(member) for member in found)
    if len({member.id for member in members}) < len(members):
        raise BeatError("members: one id comes twice")
    return members


def _member(found: object) -> MemberBeat:
    if not isinstance(found, dict):
        raise BeatError(f"members: {_shown(found)} is no object")
    links = found.get("links")
    if not isinstance(links, dict) or len(links) > MAX_LINKS:
        raise BeatError(f"links: no object of at most {MAX_LINKS}")
    return MemberBeat(
        _name(found, "id", least=1),
        _name(found, "client"),
        _seconds(found.get("since"), "since"),
        _flag(found.get("stalled"), "stalled"),
        _flag(found.get("leaving"), "leaving"),
        _count(found.get("prefetch"), "prefetch", MAX_PREFETCH),
        _names(found.get("refused"), "refused", MAX_LINKS),
        {_text(shard, "links"): _link(link) for shard, link in links.items()},
    )


def _link(found: object) -> LinkBeat:
    if not isinstance(found, list) or len(found) != len(LinkBeat._fields):
        raise BeatError(f"links: {_shown(found)} is no list of {len(LinkBeat._fields)} values")
    state, since, unacked, wants, behind = found
    if type(state) is not int or state not in _TOLD:
        raise BeatError(f"links: state: {_shown(state)} is none of {', '.join(str(int(each)) for each in _TOLD)}")
    return LinkBeat(
        state,
        _seconds(since, "links: since"),
        _count(unacked, "links: unacked", 2**53),
        _flag(wants, "links: wants"),
        _text(behind, "links: behind"),
    )


def _shards(found: object) -> frozenset[str] | None:
    return None if found is None else _names(found, "shards", MAX_SHARDS)


def _names(found: object, name: str, most: int) -> frozenset[str]:
    if not isinstance(found, list) or len(found) > most:
        raise BeatError(f"{name}: no list of at most {most}")
    return frozenset(_text(each, name) for each in found)


def _name(found: Mapping[str, Any], name: str, least: int = 0) -> str:
    text = _text(found.get(name), name)
    if len(text) < least:
        raise BeatError(f"{name}: it is empty")
    return text


def _text(found: object, name: str) -> str:
    try:
        is_good = isinstance(found, str) and len(found.encode()) <= MAX_NAME
    except UnicodeEncodeError:  # half of a surrogate pair, which no name in AMQP can have
        is_good = False
    if not isinstance(found, str) or not is_good:
        raise BeatError(f"{name}: {_shown(found)} is no text of at most {MAX_NAME} bytes")
    return found


def _count(found: object, name: str, most: int) -> int:
    if type(found) is not int or not 0 <= found <= most:
        raise BeatError(f"{name}: {_shown(found)} is no whole number from 0 to {most}")
    return found


def _seconds(found: object, name: str) -> float:
    # Neither infinity nor what is no number is within the limits.
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MAX_TIME:
        raise BeatError(f"{name}: {_shown(found)} is no number from 0 to {MAX_TIME:g}")
    return float(found)


def _flag(found: object, name: str) -> bool:
    if not isinstance(found, bool):
        raise BeatError(f"{name}: {_shown(found)} is neither true nor false")
    return found


def _shown(found: object) -> str:
    return repr(found)[:60]
