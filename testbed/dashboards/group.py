"""The dashboard of one consumer group."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from testbed.dashboards.page import choice, filtering, page
from testbed.dashboards.panels import Panel, Query, bars, graph, or_zero, tile

_NAMESPACE = 'namespace=~"$namespace"'
_JOB = f'{_NAMESPACE}, job=~"$job"'
_NAME = 'vhost="$vhost", exchange="$group"'
_NONE = "no sidecar has a member of this group"


def _of(metric: str) -> str:
    return f"ringproxy_group_{metric}{{{_JOB}, {_NAME}}}"


def _each(figure: str) -> str:
    """Return a figure of each shard: while it moves, two sidecars tell of it."""
    return f"max by (shard) ({_of(f'shard_{figure}')})"


_THERE = f"count({_of('members')})"
_SHRINKS = f"({_each('consume_rate')} - {_each('publish_rate')} > 0)"
_TIME_TO_EMPTY = (
    f"max({_each('ready')} / {_SHRINKS} or {_each('ready')} == 0) unless count({_each('ready')} > 0 unless {_SHRINKS})"
)
"""The time of the shard that is empty last: no member helps with another's. Nothing while one does not get empty."""


def _rate(counter: str) -> str:
    """Return how much counters of all sidecars grow a second."""
    return f"sum(rate({_of(counter)}[$__rate_interval]))"


def _wrong() -> list[Panel]:
    """Return what is wrong now."""
    return [
        tile(
            "Members",
            "Members whose clients are connected to sidecars.",
            f"sum({_of('members')}) or vector(0)",
            good=1,
            alert="RingproxyGroupWithoutMembers",
            words={0: "none"},
            none=_NONE,
        ),
        tile(
            "Shards not consumed",
            "Shards with messages that no member gets.",
            f"sum({_of('shards_waiting')})",
            bad=1,
            alert="RingproxyShardNotConsumed",
            none=_NONE,
        ),
        tile(
            "Shards that stand",
            "Shards of which nothing is delivered, as one message has failed for longer than groups_hold_max.",
            f"sum({_of('shards_standing')})",
            bad=1,
            alert="RingproxyShardStands",
            none=_NONE,
        ),
        tile(
            "Keys stopped",
            "Keys that stand still, as their first message was tried as often as it may be.",
            f"sum({_of('keys_stopped')})",
            bad=1,
            alert="RingproxyKeyBlocked",
            none=_NONE,
        ),
        tile(
            "Oldest return",
            "Time since the first return of the message that has failed for longest; the rest of its key waits.",
            f"max({_of('oldest_retried_seconds')})",
            bad=900,
            unit="s",
            alert="RingproxyKeyBlocked",
            none=_NONE,
        ),
        tile(
            "Oldest unacked",
            "Age of the oldest delivery that a member has neither acked nor rejected.",
            f"max({_of('oldest_unacked_seconds')})",
            bad=300,
            unit="s",
            alert="RingproxyMemberNotAcking",
            none=_NONE,
        ),
        tile(
            "Worst redelivery",
            "How often one message has come again, at most, in the last five minutes.",
            or_zero(f"max({_of('worst_redeliveries')})", _THERE),
            bad=21,
            alert="RingproxyPoisonMessage",
            none=_NONE,
        ),
        tile(
            "Crash loops",
            "Clients of the last 15 minutes that were lost with a message that an earlier one was lost with.",
            f"ceil(sum(increase({_of('crash_loops_total')}[15m])))",
            bad=1,
            alert="RingproxyCrashLoop",
            none=_NONE,
        ),
        tile(
            "Consumers refused",
            "Consumers that members lack, as the broker refuses them or a connection has no room.",
            f"sum({_of('links_refused')})",
            bad=1,
            alert="RingproxyConsumerRefused",
            none=_NONE,
        ),
        tile(
            "Do not hear others",
            "Sidecars that do not hear the other sidecars of the group: their members keep what they have.",
            f"sum({_of('connected')} == bool 0)",
            bad=1,
            alert="RingproxyGroupDisconnected",
            none=_NONE,
        ),
        tile(
            "Shards to move",
            "Shards that another member should have than has, or nobody; it is normal for seconds.",
            f"max({_of('shards_moving')})",
            bad=1,
            alert="RingproxyGroupUnbalanced",
            none=_NONE,
        ),
        tile(
            "Windows blocked",
            "Shards of which more than half of groups_window waits behind other messages of its keys.",
            f"sum({_of('windows_blocked')})",
            bad=1,
            alert="RingproxyWindowBlocked",
            none=_NONE,
        ),
        tile(
            "Lost for not acking",
            "Shards of the last 15 minutes that members lost, as they did not ack for groups_ack_timeout.",
            f"ceil(sum(increase({_of('stalled_links_total')}[15m])))",
            bad=1,
            alert="RingproxyMemberNotAcking",
            none=_NONE,
        ),
        tile(
            "Exact",
            "Whether RabbitMQ can balance the group in order; docs/explanation/groups.md says where it cannot.",
            f"min({_of('exact')})",
            good=1,
            words={1: "yes", 0: "no"},
            none=_NONE,
        ),
        tile(
            "Prefetches",
            "Different prefetches of the members, which should be 1: the larger gets more than its share.",
            f"max({_of('prefetches')})",
            bad=2,
            none=_NONE,
        ),
        tile("Paused shards", "Shards that an operator has paused.", f"max({_of('shards_paused')})", bad=1, none=_NONE),
    ]


def _lag() -> list[Panel]:
    """Return what waits, and for how long."""
    return [
        graph(
            "Lag",
            "Messages that wait, and that members have and have not acked.",
            Query(f"sum({_each('ready')})", "ready"),
            Query(f"sum({_each('unacked')})", "unacked"),
            stacked=True,
            none=_NONE,
        ),
        graph(
            "In and out",
            "Messages a second that come in, and that members are done with.",
            Query(f"sum({_each('publish_rate')})", "in"),
            Query(f"sum({_each('consume_rate')})", "out"),
            unit="mps",
            none=_NONE,
        ),
        graph(
            "Time to empty",
            "Time until no message waits at these rates; there is no line while a shard does not get empty.",
            Query(_TIME_TO_EMPTY, "until empty"),
            unit="s",
            none="a shard does not get empty, or no sidecar has a member of this group",
        ),
        bars(
            "Shards with the most messages",
            "Messages that are ready or unacked now, of ten shards.",
            Query(f"topk(10, {_each('ready')} + {_each('unacked')})", "{{shard}}"),
            none=_NONE,
        ),
        graph(
            "Growing shards",
            "Shards with messages to which more come than go.",
            Query(or_zero(f"count({_each('ready')} > 0 unless {_SHRINKS})", _THERE), "shards"),
            none=_NONE,
        ),
        graph(
            "Oldest unacked delivery",
            "Age of the oldest delivery that a member has neither acked nor rejected.",
            Query(f"max({_of('oldest_unacked_seconds')})", "the oldest"),
            unit="s",
            bad=300,
            alert="RingproxyMemberNotAcking",
            none=_NONE,
        ),
    ]


def _members() -> list[Panel]:
    """Return who has which share."""
    return [
        graph(
            "Members and shards",
            "Members, shards that they own, and shards that they should have.",
            Query(f"sum({_of('members')})", "members"),
            Query(f"sum({_of('shards_held')})", "shards owned"),
            Query(f"sum({_of('shards_wanted')})", "shards that should be"),
            none=_NONE,
        ),
        graph(
            "Moves",
            "Times that a member became the owner of a shard, and shards that are about to move or have no owner.",
            Query(f"sum(increase({_of('moves_total')}[$__rate_interval]))", "moved"),
            Query(f"max({_of('shards_moving')})", "to move"),
            none=_NONE,
            alert="RingproxyGroupUnbalanced",
        ),
        bars(
            "Shards by sidecar",
            "Shards that members own, of the ten sidecars with the most.",
            Query(
                f"topk(10, sum by (namespace, pod, instance) ({_of('shards_held')}))",
                "{{namespace}} {{pod}} {{instance}}",
            ),
            none=_NONE,
        ),
        graph(
            "Beats and orders",
            "Beats of other sidecars that did not come, and orders of operators that were done, a second.",
            Query(_rate("beats_lost_total"), "beats lost"),
            Query(_rate("orders_total"), "orders"),
            unit="cps",
            none=_NONE,
            alert="RingproxyGroupDisconnected",
        ),
        graph(
            "Memory of their sidecars",
            "Resident memory of the sidecar with the most, and of the middle one, of those with members.",
            *_process("process_resident_memory_bytes"),
            unit="bytes",
            none=_NONE,
        ),
        graph(
            "CPU of their sidecars",
            "Cores that the busiest sidecar with members uses, and the middle one; near 1 it is at its limit.",
            *_process("rate(process_cpu_seconds_total", "[$__rate_interval])"),
            none=_NONE,
        ),
    ]


def _process(before: str, after: str = "") -> tuple[Query, Query]:
    """Return a figure of processes: the largest, and the middle one, of the sidecars with members."""
    figure = f"({before}{{{_JOB}}}{after} and on (job, namespace, instance) {_of('members')})"
    return Query(f"max({figure})", "the most"), Query(f"quantile(0.5, {figure})", "half have less")


def _retries() -> list[Panel]:
    """Return what fails."""
    return [
        graph(
            "Keys that are held up",
            "Keys in series whose first message was returned and is not settled, and those that stand still.",
            Query(f"sum({_of('keys_retried')})", "retried"),
            Query(f"sum({_of('keys_stopped')})", "stopped"),
            none=_NONE,
            alert="RingproxyKeyBlocked",
        ),
        graph(
            "Returns and dead letters",
            "Messages a second that clients in series returned, and that did or could not become dead letters.",
            Query(_rate("returns_total"), "returned"),
            Query(_rate("dead_letters_total"), "dead letters"),
            Query(_rate("dead_letters_failed_total"), "failed dead letters"),
            unit="mps",
            none=_NONE,
            alert="RingproxyDeadLettersFail",
        ),
        bars(
            "Redeliveries by shard",
            "Deliveries a second that were marked as redelivered, of the ten shards with the most.",
            Query(
                f"topk(10, sum by (shard) (rate({_of('redeliveries_total')}[$__rate_interval])))"
                f' or label_replace(0 * {_THERE}, "shard", "no shard", "", "")',
                "{{shard}}",
            ),
            unit="mps",
            none=_NONE,
        ),
    ]


def dashboard() -> Dashboard:
    """Return the dashboard."""
    series = "ringproxy_group_members"
    return page(
        "group",
        "ringproxy / group",
        "One consumer group. A sidecar tells of a group while it has a member; without members there are only gaps.",
        variables=[
            filtering("namespace", "Namespace", "ringproxy_build_info"),
            filtering("job", "Job", f"ringproxy_build_info{{{_NAMESPACE}}}"),
            choice("vhost", "Virtual host", f"{series}{{{_JOB}}}", "vhost"),
            choice("group", "Group", f'{series}{{{_JOB}, vhost="$vhost"}}', "exchange"),
        ],
        alerts=f'namespace=~"$namespace|", job=~"$job|", {_NAME}',
        content={
            "What is wrong now": _wrong(),
            "Lag": _lag(),
            "Members and shards": _members(),
            "Retries": _retries(),
        },
    )
