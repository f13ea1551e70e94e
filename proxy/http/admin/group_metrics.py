"""The metrics of consumer groups, read at the time of a scrape."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from proxy.groups.groups import Groups

_LABELS = ("vhost", "exchange")
_SHARD_LABELS = (*_LABELS, "shard")

_LAG = {
    "ready": "Messages of a shard that wait, told by the sidecar of its owner.",
    "unacked": "Messages of a shard that its consumer has not acked, told by the sidecar of its owner.",
    "publish_rate": "Messages a second that come into a shard, told by the sidecar of its owner.",
    "consume_rate": "Messages a second of a shard that are done, told by the sidecar of its owner.",
}
"""The figures of a shard's lag that are metrics, with their meanings."""


def collect(groups: "Groups | None") -> Iterator[Metric]:
    """Yield the metrics of the groups that have members at this sidecar; `groups` is None where there can be none."""
    members = GaugeMetricFamily("ringproxy_group_members", "Members of a group at this sidecar.", labels=_LABELS)
    held = GaugeMetricFamily("ringproxy_group_shards_held", "Shards that members at this sidecar hold.", labels=_LABELS)
    wanted = GaugeMetricFamily(
        "ringproxy_group_shards_wanted", "Shards that members at this sidecar should hold.", labels=_LABELS
    )
    moving = GaugeMetricFamily(
        "ringproxy_group_shards_moving",
        "Shards of the whole group that another member should hold than does.",
        labels=_LABELS,
    )
    waiting = GaugeMetricFamily(
        "ringproxy_group_shards_waiting",
        "Shards that members at this sidecar hold, or nobody, with messages that no member gets.",
        labels=_LABELS,
    )
    paused = GaugeMetricFamily(
        "ringproxy_group_shards_paused", "Shards of the whole group that an operator has paused.", labels=_LABELS
    )
    refused = GaugeMetricFamily(
        "ringproxy_group_links_refused",
        "Links of members at this sidecar that the broker has ended with an error, and that are not open again.",
        labels=_LABELS,
    )
    oldest = GaugeMetricFamily(
        "ringproxy_group_oldest_unacked_seconds",
        "Age of the oldest delivery that a member at this sidecar has not acked; 0 if there is none.",
        labels=_LABELS,
    )
    connected = GaugeMetricFamily(
        "ringproxy_group_connected", "1 if this sidecar hears the other sidecars of the group.", labels=_LABELS
    )
    prefetches = GaugeMetricFamily(
        "ringproxy_group_prefetches", "Different prefetches of the group's members, which should be 1.", labels=_LABELS
    )
    exact = GaugeMetricFamily(
        "ringproxy_group_exact", "1 if the broker can balance the group in order, as far as is known.", labels=_LABELS
    )
    retried = GaugeMetricFamily(
        "ringproxy_group_keys_retried",
        "Keys in series at this sidecar whose first message was returned at least once and is not settled.",
        labels=_LABELS,
    )
    stopped = GaugeMetricFamily(
        "ringproxy_group_keys_stopped",
        "Keys in series at this sidecar that stand still, as a message was tried as often as it may be.",
        labels=_LABELS,
    )
    standing = GaugeMetricFamily(
        "ringproxy_group_shards_standing",
        "Shards in series at this sidecar of which nothing is passed, as a message was held for groups_hold_max.",
        labels=_LABELS,
    )
    oldest_retried = GaugeMetricFamily(
        "ringproxy_group_oldest_retried_seconds",
        "Time since the first return of the message that was returned first of those not settled; 0 if there is none.",
        labels=_LABELS,
    )
    blocked = GaugeMetricFamily(
        "ringproxy_group_windows_blocked",
        "Links in series at this sidecar more than half of whose window waits behind other messages of its keys.",
        labels=_LABELS,
    )
    lags = {
        figure: GaugeMetricFamily(f"ringproxy_group_shard_{figure}", meaning, labels=_SHARD_LABELS)
        for figure, meaning in _LAG.items()
    }
    now = time.monotonic()
    for name, group in groups.running.items() if groups is not None else ():
        state = group.state
        members.add_metric(name, sum(not member.leaving for member in state.local.values()))
        held.add_metric(name, len(state.owned(is_first=False)))
        wanted.add_metric(name, sum(target in state.local for target in state.decision.targets.values()))
        moving.add_metric(name, len(state.decision.moves))
        waiting.add_metric(name, len(group.readings.waiting))
        paused.add_metric(name, len(state.paused_shards))
        refused.add_metric(name, sum(len(member.pauses) for member in state.local.values()))
        oldest.add_metric(name, now - group.oldest_unacked_at if group.oldest_unacked_at else 0.0)
        connected.add_metric(name, not group.room.fault and state.peers.hears(now))
        exact.add_metric(name, bool(group.readings.exactness.shards) and not group.readings.reasons)
        prefetches.add_metric(name, len(state.prefetches - {0}))
        backlogs = group.backlogs
        retried.add_metric(name, sum(each.retried for each in backlogs))
        stopped.add_metric(name, sum(each.stopped for each in backlogs))
        standing.add_metric(name, sum(each.standing for each in backlogs))
        blocked.add_metric(name, sum(each.blocked_windows for each in backlogs))
        first = min((each.since for each in backlogs if each.since), default=now)
        oldest_retried.add_metric(name, now - first)
        for shard in state.owned(is_first=state.is_first):
            lag = group.readings.lag(shard, now)
            for figure, metric in lags.items():
                if (value := getattr(lag, figure)) is not None:
                    metric.add_metric((*name, shard), value)
    yield from (
        members,
        held,
        wanted,
        moving,
        waiting,
        paused,
        refused,
        oldest,
        connected,
        exact,
        prefetches,
        *lags.values(),
    )
    yield from (retried, stopped, standing, oldest_retried, blocked)
    moves = CounterMetricFamily(
        "ringproxy_group_moves", "Shards that members at this sidecar have taken.", labels=_LABELS
    )
    stalled = CounterMetricFamily(
        "ringproxy_group_stalled_links",
        "Links of members at this sidecar that were ended since nothing was acked for groups_ack_timeout.",
        labels=_LABELS,
    )
    lost = CounterMetricFamily(
        "ringproxy_group_beats_lost", "Beats of other sidecars that did not come.", labels=_LABELS
    )
    dead = CounterMetricFamily(
        "ringproxy_group_dead_letters",
        "Messages of clients in series that this sidecar has published to groups_dead_letter.",
        labels=_LABELS,
    )
    failed = CounterMetricFamily(
        "ringproxy_group_dead_letters_failed",
        "Publishes to groups_dead_letter that the broker did not confirm: the key of each such message stands still.",
        labels=_LABELS,
    )
    returns = CounterMetricFamily(
        "ringproxy_group_returns",
        "Messages in series that clients of this sidecar have returned, to be tried again.",
        labels=_LABELS,
    )
    crashes = CounterMetricFamily(
        "ringproxy_group_crash_loops",
        "Clients of this sidecar in series that were lost with a message that an earlier one was lost with.",
        labels=_LABELS,
    )
    orders = CounterMetricFamily(
        "ringproxy_group_orders", "Orders of operators that this sidecar has done.", labels=_LABELS
    )
    for name, counted in groups.totals().items() if groups is not None else ():
        moves.add_metric(name, counted["moves"])
        stalled.add_metric(name, counted["stalled"])
        lost.add_metric(name, counted["lost"])
        dead.add_metric(name, counted["dead_letters"])
        failed.add_metric(name, counted["dead_letters_failed"])
        returns.add_metric(name, counted["returns"])
        orders.add_metric(name, counted["orders"])
        crashes.add_metric(name, counted["crashes"])
    yield from (moves, stalled, lost, dead, failed, returns, orders, crashes)
    again = CounterMetricFamily(
        "ringproxy_group_redeliveries",
        "Redeliveries of messages to members at this sidecar, of those shards that had any.",
        labels=_SHARD_LABELS,
    )
    worst = GaugeMetricFamily(
        "ringproxy_group_worst_redeliveries",
        "How many times one message of a shard came again, the most of those that did in the last five minutes.",
        labels=_SHARD_LABELS,
    )
    for name, shards in groups.redelivered(now).items() if groups is not None else ():
        for shard, redelivered in sorted(shards.items()):
            again.add_metric((*name, shard), redelivered.count)
            worst.add_metric((*name, shard), redelivered.recent(now))
    yield from (again, worst)
