"""The overview of one moment: this sidecar, each exchange that it knows and each group that has members here.

It holds values only. `snapshot.py` makes it, `findings.py` judges it, and the page shows it.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from proxy.settings.missing_right import MissingRight

Late = dict[tuple[str, str, str], dict[str, int]]
"""By kind, virtual host and exchange or group, the growth of each count within the last ten minutes."""


class ExchangeState(Struct, kw_only=True):
    """One exchange."""

    vhost: str
    exchange: str
    type: str
    state: str
    """How publishes go: `routed`, `shadowed`, `passed`, `not routed` (it should be routed and cannot), or `refused`."""
    why: str
    """Why they are not routed, as metrics name it, or in words which part of them is; empty if all are."""
    destinations: int
    age_seconds: float
    stale: bool
    restored: bool
    ring: str
    """The fingerprint; empty without a ring."""
    changed_at: float | None
    """When the ring last changed, in seconds since 1970."""
    moved: float
    """The share of the slots that moved then."""
    rates: Mapping[str, float]
    """Publishes a second now, by outcome."""
    late: Mapping[str, int]
    """Publishes of the last ten minutes, by outcome."""
    dead_letters: Sequence[tuple[str, str]]
    """The queues that would dead-letter under their own name, the first of them, each with the cause."""
    not_lanes: Sequence[tuple[str, str]]
    without_copies: Sequence[str]
    change: Mapping[str, int] | None = None
    """The change of its generation that is under way, as `/rings` has it; None if none is."""


class GroupState(Struct, kw_only=True):
    """One consumer group that has members at this sidecar."""

    vhost: str
    exchange: str
    members: int
    """Members at all sidecars."""
    here: int
    """Members at this sidecar."""
    shards: int
    ready: int | None
    unacked: int | None
    publish_rate: float | None
    consume_rate: float | None
    seconds_to_empty: float | None
    exact: bool | None
    reasons: Sequence[str]
    membership: str
    moving: int
    moving_seconds: float
    """How long the shard has been to move that has waited for the longest."""
    moving_why: str
    waiting: Sequence[str]
    paused: int
    refused: Sequence[tuple[str, str, str]]
    """The first of the refused links: client, shard and why."""
    refused_count: int
    oldest_unacked_seconds: float
    oldest_unacked_of: str
    oldest_unacked_shard: str
    worst: int
    """How often one message came again within five minutes, the most."""
    worst_shard: str
    keys_retried: int
    keys_stopped: int
    oldest_retried_seconds: float
    standing: int
    windows_blocked: int
    late: Mapping[str, int]
    """Events of the last ten minutes, as the metrics of groups count them."""


class Fault(Struct):
    """An exchange that could not be read."""

    vhost: str
    exchange: str
    fault: str


class Overview(Struct, kw_only=True):
    """All of one moment."""

    at: float
    """In seconds since 1970."""
    checks: Mapping[str, str]
    """Each check of `/readyz` with why it fails; empty if it holds."""
    disconnected: Mapping[str, str]
    """By virtual host, why the connection for HTTP publishes is down."""
    blocked: Mapping[str, str]
    management: str
    """Why the management API does not answer; empty if it does."""
    faults: Sequence[Fault]
    absent: Sequence[tuple[str, str]]
    own_rights: Sequence[MissingRight]
    """The rights for want of which this sidecar's own publishes are refused."""
    rights: Sequence[MissingRight]
    """The rights for want of which clients were refused in the last ten minutes, the newest first."""
    refused_403: int
    """Channels and connections that were closed with 403 in the last ten minutes."""
    nowhere: Mapping[str, int]
    """Publishes of the last ten minutes to exchanges that are not known, by outcome."""
    succeeded: int
    """Publishes of the last ten minutes that succeeded, to any exchange."""
    journal: str
    reloads: Mapping[str, str]
    certificates: Mapping[str, float]
    """By setting, the days until a certificate ends, of those that end within seven."""
    exchanges: Sequence[ExchangeState]
    groups: Sequence[GroupState]
