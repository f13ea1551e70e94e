"""Beats: messages in JSON by which each sidecar tells the others which members of a group it has, and of their links.

A full beat tells all. A short one is a sign of life, and says nothing else. A sidecar decides by beats alone, its own
members included: it makes the beat that it would send, and looks at it beside those of the others.

A stranger who may publish to the exchange of the beats can send anything. Each field has a type and a limit for that
reason, and a body is decoded into these fields only: msgspec steps over all others.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from proxy.groups.attempts import MOST_ATTEMPTS, Attempt
from proxy.groups.model import LinkState

VERSION: Final = 10
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

TOLD: Final = (LinkState.OPENING, LinkState.OPEN, LinkState.LEAVING)
"""The states of links that beats tell of."""

# Their bytes are counted in `decode`: a character has up to four.
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Time = Annotated[float, Meta(ge=0, le=MAX_TIME)]
Fingerprint = Annotated[str, Meta(min_length=1, max_length=32)]
_FEW: Final = Meta(max_length=MOST_ATTEMPTS)


class BeatError(ValueError):
    """Raised for a message that is not a beat; its text names the wrong field."""


class OtherVersionError(BeatError):
    """Raised for a beat of a sidecar of another release, whose beats say something else."""

    def __init__(self, sidecar: str, version: int) -> None:
        """The id of the beat's sender, empty if it has none, and the version of its beats."""
        super().__init__(f"version: {version} is not {VERSION}")
        self.sidecar, self.version = sidecar, version


class LinkBeat(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One member's link to one shard, as `Link` has it."""

    state: Annotated[int, Meta(ge=1, le=3)]
    """OPENING, OPEN or LEAVING of `LinkState`."""
    since: Time
    unacked: Count
    wants: bool
    """Whether the sender's own assignment gives the shard to the member."""
    behind: Name
    """The id of the member that the sender takes for the shard's owner; empty where it is this member, or nobody."""


class MemberBeat(Struct, frozen=True, omit_defaults=True):
    """One member of the sending sidecar, as `Member` has it."""

    id: Id
    client: Name
    since: Time
    is_stalled: bool = False
    is_leaving: bool = False
    prefetch: Annotated[int, Meta(ge=0, le=MAX_PREFETCH)] = 0
    """The most unacknowledged messages of each of the member's links; 0 for a member without acks."""
    in_series: bool = False
    """Whether the member's client works on one message of a key at a time."""
    refused: Annotated[frozenset[Name], Meta(max_length=MAX_LINKS)] = frozenset()
    """The shards that the member may not have at present."""
    links: Annotated[dict[Name, LinkBeat], Meta(max_length=MAX_LINKS)] = {}
    """The member's links, by shard, and as LEAVING those that ended at a marker, until the next one is open."""

    @property
    def is_fit(self) -> bool:
        """Whether the member may get shards: it has neither stalled nor left."""
        return not self.is_stalled and not self.is_leaving


class Beat(Struct, frozen=True, omit_defaults=True, tag_field="version", tag=VERSION):
    """One message of a sidecar to all sidecars that have members of the same group."""

    sidecar: Id
    """The id of the sending process."""
    number: Count
    """The number of this beat, one more than that of the sender's last one."""
    host: Name = ""
    """The name of the machine that the sender runs on; empty in a short beat, as all further texts are."""
    queue: Name = ""
    """The name of the exclusive queue by which the sender gets beats."""
    ring: Name = ""
    """The digest of the sender's ring."""
    shards: Annotated[frozenset[Name], Meta(max_length=MAX_SHARDS)] | None = None
    """The shards of the sender's ring; None where nobody that it hears has another ring, and in a short beat."""
    members: Annotated[tuple[MemberBeat, ...], Meta(max_length=MAX_MEMBERS)] | UnsetType = UNSET
    """The sender's members; none where it has left the group. A short beat says nothing of them."""

    attempts: Annotated[dict[Name, Annotated[dict[Fingerprint, Attempt], Meta(max_length=MOST_ATTEMPTS)]], _FEW] = {}
    """By shard that a member of the sender owns, and by fingerprint, the tries of messages that were returned, or
    that a client held that crashed."""

    @property
    def told(self) -> tuple[MemberBeat, ...]:
        """The members that the beat tells of."""
        return () if self.members is UNSET else self.members

    @property
    def size(self) -> int:
        """How many members, links, refusals, shards and tried messages the beat tells of."""
        members = sum(1 + len(member.links) + len(member.refused) for member in self.told)
        return members + len(self.shards or ()) + sum(map(len, self.attempts.values()))


class _Head(Struct):
    """The fields that a beat of any release has."""

    version: int
    sidecar: Any = ""


_HEAD: Final = msgspec.json.Decoder(_Head)
_BEAT: Final = msgspec.json.Decoder(Beat)
_ENCODER: Final = msgspec.json.Encoder()


def digest(shards: Iterable[str]) -> str:
    """Return a digest of the shards of a ring, the same for the same shards in any order."""
    return hashlib.blake2b("\0".join(sorted(shards)).encode(), digest_size=8).hexdigest()


def cut(text: str) -> str:
    """Return the beginning of a text that is a name in a beat: it takes at most MAX_NAME bytes in UTF-8."""
    return text.encode("utf-8", "replace")[:MAX_NAME].decode("utf-8", "ignore")


def encode(beat: Beat) -> bytes:
    """Return a beat as JSON, without the members above MAX_MEMBERS and the links above MAX_LINKS."""
    if beat.size > MAX_MEMBERS:
        shards = None if beat.shards is None else frozenset(sorted(beat.shards)[:MAX_SHARDS])
        beat = msgspec.structs.replace(beat, shards=shards, members=tuple(_limited(beat.told)))
    return _ENCODER.encode(beat)


def _limited(members: Iterable[MemberBeat]) -> Iterator[MemberBeat]:
    """Yield members without those beyond MAX_MEMBERS, and without the links and refusals beyond MAX_LINKS in all."""
    room = MAX_LINKS
    for member in islice(members, MAX_MEMBERS):
        links = dict(islice(member.links.items(), room))
        refused = frozenset(sorted(member.refused)[: room - len(links)])
        room -= len(links) + len(refused)
        yield msgspec.structs.replace(member, links=links, refused=refused)


def decode(body: bytes) -> Beat:
    """Return the beat in the body of a message.

    Raises OtherVersionError for a beat of another release, and BeatError for anything else.
    """
    if len(body) > MAX_BYTES:
        raise BeatError(f"{len(body)} bytes are more than {MAX_BYTES}")
    head: _Head = _parsed(_HEAD, body)
    if head.version != VERSION:
        raise OtherVersionError(cut(head.sidecar) if isinstance(head.sidecar, str) else "", head.version)
    beat: Beat = _parsed(_BEAT, body)
    if beat.size > MAX_LINKS + MAX_MEMBERS + MAX_SHARDS + MOST_ATTEMPTS:
        raise BeatError(f"members: more than {MAX_LINKS} links and refusals in all")
    if len({member.id for member in beat.told}) < len(beat.told):
        raise BeatError("members: one id comes twice")
    for text in _names(beat):
        if len(text) > MAX_NAME // 4 and len(text.encode()) > MAX_NAME:
            raise BeatError(f"{text[:60]!r} has more than {MAX_NAME} bytes")
    return beat


def _parsed(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return a body's JSON as the decoder's type. Raises BeatError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BeatError(str(error)) from None
    except (ValueError, RecursionError):
        raise BeatError("it is no JSON") from None


def _names(beat: Beat) -> Iterator[str]:
    yield from (beat.sidecar, beat.host, beat.queue, beat.ring, *(beat.shards or ()), *beat.attempts)
    for member in beat.told:
        yield from (member.id, member.client, *member.refused, *member.links)
        yield from (link.behind for link in member.links.values())
