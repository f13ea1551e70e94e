"""Beats: messages in JSON by which each sidecar tells the others which members of a group it has and what they hold."""

import json
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from proxy.groups.claims import MAX_EPOCH

VERSION: Final = 5
"""The version of beats. It changes with any change of what a beat says, since the sidecars of a group must agree."""

AHEAD: Final = 100 * 365 * 86_400
"""The most seconds by which an epoch, which begins at a time since 1970, may be ahead of this machine's clock."""

MAX_BYTES: Final = 2 * 1024 * 1024
"""The most bytes of one beat."""

MAX_MEMBERS: Final = 2_000
"""The most members that one beat tells of."""

MAX_LINKS: Final = 20_000
"""The most links that one beat tells of, counted over all of its members."""

MAX_NAME: Final = 255
"""The most bytes of a name in a beat; AMQP has the same limit for the name of a queue."""

MAX_PREFETCH: Final = 2**16 - 1
"""The highest prefetch, as of basic.qos."""

MAX_EVERY: Final = 60.0
"""The most seconds between two beats of a sidecar."""


class BeatError(ValueError):
    """Raised for a message that is not a beat; its text names the wrong field and the value."""


class OtherVersionError(BeatError):
    """Raised for a beat of a sidecar of another release, whose beats say something else."""

    def __init__(self, sidecar: str, version: int) -> None:
        """The id of the beat's sender, empty if it has none, and the version of its beats."""
        super().__init__(f"version: {version} is not {VERSION}")
        self.sidecar, self.version = sidecar, version


class LinkBeat(NamedTuple):
    """One member's consumer on one shard (a link), as a beat describes it."""

    claim: int
    """The epoch of the member's claim to the shard; 0 if the member does not hold the shard."""
    epoch: int
    """The highest epoch of the shard that the sender knows of."""
    delivered_ago: float | None
    """Seconds since the member last got a message of the shard; None if that was never, or long ago."""
    unacked: int
    priority: int = 0
    """The x-priority of the link if the member holds the shard, or is to hold it next; 0 otherwise."""
    is_probe: bool = False
    """Whether the broker gives the link one message only, since another consumer may hold earlier ones."""
    hands_over: bool = False
    """Whether the member holds the shard and gives it up: its client gets no more, and has yet to ack what it has."""


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
    """Whether the member has left. It is told of while its client holds unacked messages, and at least once."""
    prefetch: int = 0
    """The most unacknowledged messages of each of the member's links; 0 for a member without acks."""
    links: dict[str, LinkBeat] = field(default_factory=dict)
    """The member's links, by shard: those to shards that it holds or is to hold, and those that have lately got a
    message.

    Of a member that has left, those by which its client holds unacked messages.
    """


@dataclass(frozen=True)
class Beat:
    """One message of a sidecar to all sidecars that have members of the same group."""

    sidecar: str
    """The id of the sending process."""
    host: str
    """The name of the machine that the sender runs on."""
    number: int
    """The number of this beat; the sender counts from 1."""
    every: float
    """Seconds until the sender's next beat at the latest."""
    members: tuple[MemberBeat, ...]
    """The sender's members. A sender that has none that is there, or holds messages, has left the group."""

    @property
    def size(self) -> int:
        """How many members and links the beat tells of."""
        return len(self.members) + sum(len(member.links) for member in self.members)

    @property
    def is_last(self) -> bool:
        """Whether the sender has left the group with this beat."""
        return all(member.is_leaving and not member.links for member in self.members)


def encode(beat: Beat) -> bytes:
    """Return a beat as JSON, without the members above MAX_MEMBERS and the links above MAX_LINKS."""
    left = MAX_LINKS
    members = []
    for member in beat.members[:MAX_MEMBERS]:
        links = {shard: list(link) for shard, link in list(member.links.items())[:left]}
        left -= len(links)
        members.append(
            {
                "id": member.id,
                "client": cut(member.client),
                "since": member.since,
                "stalled": member.is_stalled,
                "leaving": member.is_leaving,
                "prefetch": member.prefetch,
                "shards": links,
            }
        )
    body = {
        "version": VERSION,
        "sidecar": beat.sidecar,
        "host": cut(beat.host),
        "number": beat.number,
        "every": beat.every,
        "members": members,
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def cut(text: str) -> str:
    """Return the beginning of a text, cut so that it takes at most MAX_NAME bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:MAX_NAME].decode("utf-8", "ignore")


def decode(body: bytes, time: float) -> Beat:
    """Return the beat in the body of a message that came at a time, in seconds since 1970.

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
    members = found.get("members")
    if not isinstance(members, list) or len(members) > MAX_MEMBERS:
        raise BeatError(f"members: no list of at most {MAX_MEMBERS}")
    latest = min(int(time) + AHEAD, MAX_EPOCH)
    made = tuple(_member(member, latest) for member in members)
    if len({member.id for member in made}) < len(made):
        raise BeatError("members: one id comes twice")
    if sum(len(member.links) for member in made) > MAX_LINKS:
        raise BeatError(f"members: more than {MAX_LINKS} shards in all")
    return Beat(
        _name(found, "sidecar", least=1),
        _name(found, "host"),
        _count(found.get("number"), "number", 2**53),
        _seconds(found.get("every"), "every", MAX_EVERY),
        made,
    )


def _member(found: object, latest: int) -> MemberBeat:
    """Return a member of a beat, in which no epoch is above `latest`."""
    if not isinstance(found, dict):
        raise BeatError(f"members: {_shown(found)} is no object")
    links = found.get("shards")
    if not isinstance(links, dict) or len(links) > MAX_LINKS:
        raise BeatError(f"shards: no object of at most {MAX_LINKS}")
    return MemberBeat(
        _name(found, "id", least=1),
        _name(found, "client"),
        _seconds(found.get("since"), "since", 1e11),
        _flag(found.get("stalled"), "stalled"),
        _flag(found.get("leaving"), "leaving"),
        _count(found.get("prefetch"), "prefetch", MAX_PREFETCH),
        {_checked(shard, "shards", least=1): _link(shard, link, latest) for shard, link in links.items()},
    )


def _link(shard: str, found: object, latest: int) -> LinkBeat:
    if not isinstance(found, list) or len(found) != len(LinkBeat._fields):
        raise BeatError(f"shards: {_shown(shard)}: {_shown(found)} is no list of {len(LinkBeat._fields)}")
    claim, epoch, ago, unacked, priority, is_probe, hands_over = found
    return LinkBeat(
        _count(claim, "claim", latest),
        _count(epoch, "epoch", latest),
        None if ago is None else _seconds(ago, "delivered", 1e9),
        _count(unacked, "unacked", 2**53),
        _count(priority, "priority", 2**63 - 1),
        _flag(is_probe, "probe"),
        _flag(hands_over, "hands over"),
    )


def _name(found: dict[str, Any], field_name: str, least: int = 0) -> str:
    return _checked(found.get(field_name), field_name, least)


def _checked(value: object, field_name: str, least: int) -> str:
    try:
        is_good = isinstance(value, str) and least <= len(value.encode()) <= MAX_NAME
    except UnicodeEncodeError:  # half of a surrogate pair, which no name in AMQP can have
        is_good = False
    if not isinstance(value, str) or not is_good:
        raise BeatError(f"{field_name}: {_shown(value)} is no text of {least} to {MAX_NAME} bytes")
    return value


def _flag(value: object, field_name: str) -> bool:
    if not isinstance(value, bool):
        raise BeatError(f"{field_name}: {_shown(value)} is neither true nor false")
    return value


def _count(value: object, field_name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise BeatError(f"{field_name}: {_shown(value)} is no whole number from 0 to {most}")
    return value


def _seconds(value: object, field_name: str, most: float) -> float:
    # Neither infinity nor what is no number is within the limits.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise BeatError(f"{field_name}: {_shown(value)} is no number from 0 to {most:g}")
    return float(value)


def _shown(value: object) -> str:
    return repr(value)[:60]
