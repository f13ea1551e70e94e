"""The dashboard of all sidecars."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from testbed.dashboards.page import filtering, firing, link_to, page
from testbed.dashboards.panels import Panel, Query, bars, began_or_grew, graph, heat, or_zero, rows, tile

_NAMESPACE = 'namespace=~"$namespace"'
_JOB = f'{_NAMESPACE}, job=~"$job"'
SIDECARS = f'{_JOB}, instance=~"$instance"'
ALERTS = 'namespace=~"$namespace|", job=~"$job|"'
"""Labels of alerts. Some alerts are of the whole broker, and have neither of the two."""

SCRAPED = f"count(ringproxy_build_info{{{SIDECARS}}})"
FAILED = "nacked|unroutable|unavailable|rejected"
WRONGLY_PASSED = "dead_letter|internal_destination|not_a_lane|cycle|overlap|copies"
_NOBODY = "no sidecar is scraped"
_NO_GROUP = "no sidecar has a member of a group"


def _of(metric: str, more: str = "") -> str:
    return f"{metric}{{{SIDECARS}{more and ', ' + more}}}"


def _ours(metric: str) -> str:
    """Return a metric of processes, of those that are sidecars."""
    return f"({_of(metric)} and on (job, namespace, instance) ringproxy_build_info)"


def _count(expression: str) -> str:
    return or_zero(f"count({expression})", SCRAPED)


def _sum(expression: str) -> str:
    return or_zero(f"ceil(sum({expression}))", SCRAPED)


def _rate(counter: str) -> str:
    return f"rate({counter}[5m])"


_PUBLISHES = _of("ringproxy_publishes_total")
_UNAVAILABLE = _of("ringproxy_publishes_total", 'outcome="unavailable"')
_ANSWERS = _of("ringproxy_http_responses_total", 'listener="http"')
_BUCKETS = _of("ringproxy_confirm_latency_seconds_bucket")
_MEMBERS = _of("ringproxy_group_members")
_LAG = " + ".join(
    f"max by (vhost, exchange, shard) ({_of(f'ringproxy_group_shard_{what}')})" for what in ("ready", "unacked")
)
"""Messages of each shard: while it moves, two sidecars tell of it."""

_EACH = "by (job, namespace, instance)"
_BLOCKED = (
    f"max {_EACH} ({_of('ringproxy_broker_blocked')}) == 1"
    f" or (sum {_EACH} (min_over_time({_of('ringproxy_in_flight')}[2m])) > 0"
    f" unless sum {_EACH} (increase({_PUBLISHES}[2m])) > 0)"
    f" or (sum {_EACH} (increase({_UNAVAILABLE}[2m])) > 0"
    f" unless on (job, namespace, instance) ({_of('ringproxy_broker_connected')} == 0"
    f" or {_of('ringproxy_management_up')} == 0 or {_of('ringproxy_sync_failing')} > 0))"
)
_TO_EXCHANGE = link_to(
    "exchange", "This exchange", vhost="${__field.labels.vhost}", exchange="${__field.labels.exchange}"
)


def _wrong() -> list[Panel]:
    """Return what is wrong now."""
    by_exchange = "sum by (job, namespace, vhost, exchange)"
    failing = _of("ringproxy_publishes_total", f'outcome=~"{FAILED}"')
    return [
        tile(
            "Sidecars",
            "Sidecars that Prometheus scrapes now.",
            f"{SCRAPED} or vector(0)",
            good=1,
            alert="RingproxyNotScraped",
            none=_NOBODY,
        ),
        tile(
            "Not scraped",
            "Sidecars of the last day that do not answer now; one whose target is gone does not count.",
            f"sum({_of('up')} == bool 0"
            f" and on (job, namespace, instance) last_over_time({_of('ringproxy_build_info')}[1d]))",
            bad=1,
            alert="RingproxyNotScraped",
            none=_NOBODY,
        ),
        tile(
            "Without a broker",
            "Sidecars that have no connection to the broker for HTTP publishes.",
            _count(f"min by (job, namespace, instance) ({_of('ringproxy_broker_connected')}) == 0"),
            bad=1,
            alert="RingproxyBrokerDisconnected",
            none=_NOBODY,
        ),
        tile(
            "Broker blocks",
            "Sidecars from which the broker takes no publishes, or whose publishes it does not confirm.",
            _count(_BLOCKED),
            bad=1,
            alert="RingproxyBrokerBlocked",
            none=_NOBODY,
        ),
        tile(
            "Management API",
            "Sidecars that cannot read the management API, or an exchange of it.",
            _count(f"{_of('ringproxy_management_up')} == 0 or {_of('ringproxy_sync_failing')} > 0"),
            bad=1,
            alert="RingproxyManagementUnreadable",
            none=_NOBODY,
        ),
        tile(
            "Oldest ring",
            "Time since the bindings were last read, of the exchange and sidecar where it is longest.",
            f"max({_of('ringproxy_ring_age_seconds')})",
            bad=300,
            unit="s",
            alert="RingproxyRingStale",
            none="no exchange is known yet",
        ),
        tile(
            "Fleet disagrees",
            "Exchanges that sidecars route differently; some seconds after a change it is normal.",
            _count(
                "count by (vhost, exchange) (count by (vhost, exchange, fingerprint)"
                f" ({_of('ringproxy_ring_fingerprint')})) > 1"
                f" or max by (vhost, exchange) ({_of('ringproxy_ring_routed')})"
                f" > min by (vhost, exchange) ({_of('ringproxy_ring_routed')})"
            ),
            bad=1,
            alert="RingproxyFleetDisagrees",
            none=_NOBODY,
        ),
        tile(
            "Publishes fail",
            "Share of publishes that are nacked, come back, find no broker or are refused, of the worst exchange.",
            or_zero(
                f"max({by_exchange} ({_rate(failing)}) / ({by_exchange} ({_rate(_PUBLISHES)}) > 0))",
                SCRAPED,
            ),
            bad=0.01,
            unit="percentunit",
            alert="RingproxyPublishesFail",
            none=_NOBODY,
        ),
        tile(
            "Outcome unknown",
            "Messages of the last 10 minutes that were sent and never confirmed: each is in its queue or is not.",
            _sum(began_or_grew(_of("ringproxy_publishes_total", 'outcome="unknown"'), "10m")),
            bad=1,
            alert="RingproxyUnknownOutcomes",
            none=_NOBODY,
        ),
        tile(
            "Not routed",
            "Publishes of the last 10 minutes that no ring routed, so that RabbitMQ hashed their keys.",
            _sum(began_or_grew(_of("ringproxy_passed_total", f'reason=~"{WRONGLY_PASSED}"'), "10m")),
            bad=1,
            alert="RingproxyNotRouted",
            none=_NOBODY,
        ),
        tile(
            "Permission missing",
            "Channels that the broker closed with 403 in the last 10 minutes.",
            _sum(began_or_grew(_of("ringproxy_amqp_refusals_total", 'code="403"'), "10m")),
            bad=1,
            alert="RingproxyPermissionMissing",
            none=_NOBODY,
        ),
        tile(
            "Without copies",
            "Queues of groups that no fan leads to: their groups lose messages.",
            f"sum(max by (vhost, exchange) ({_of('ringproxy_queues_without_copies')}))",
            bad=1,
            alert="RingproxyQueueWithoutCopies",
            none="no exchange is known yet",
        ),
        tile(
            "Shards not consumed",
            "Shards of groups with messages that no member gets.",
            f"sum({_of('ringproxy_group_shards_waiting')})",
            bad=1,
            alert="RingproxyShardNotConsumed",
            none=_NO_GROUP,
        ),
        tile(
            "Groups without members",
            "Groups that had members within the last day, and have none now.",
            f"count({by_exchange} (last_over_time({_MEMBERS}[1d])))"
            f" - (count({by_exchange} ({_MEMBERS}) > 0) or vector(0))",
            bad=1,
            alert="RingproxyGroupWithoutMembers",
            none=_NO_GROUP,
        ),
        tile(
            "Keys stopped",
            "Keys in series that stand still, as their first message was tried as often as it may be.",
            f"sum({_of('ringproxy_group_keys_stopped')})",
            bad=1,
            alert="RingproxyKeyBlocked",
            none=_NO_GROUP,
        ),
        tile(
            "Oldest unacked",
            "Age of the oldest delivery that a member of any group has neither acked nor rejected.",
            f"max({_of('ringproxy_group_oldest_unacked_seconds')})",
            bad=300,
            unit="s",
            alert="RingproxyMemberNotAcking",
            none=_NO_GROUP,
        ),
        tile(
            "Shards that stand",
            "Shards of which nothing is delivered, as one message has failed for longer than groups_hold_max.",
            f"sum({_of('ringproxy_group_shards_standing')})",
            bad=1,
            alert="RingproxyShardStands",
            none=_NO_GROUP,
        ),
        tile(
            "Worst redelivery",
            "How often one message of any group has come again, at most, in the last five minutes.",
            or_zero(f"max({_of('ringproxy_group_worst_redeliveries')})", f"count({_MEMBERS})"),
            bad=21,
            alert="RingproxyPoisonMessage",
            none=_NO_GROUP,
        ),
        tile(
            "Crash loops",
            "Clients of the last 15 minutes that were lost with a message that an earlier one was lost with.",
            f"ceil(sum(increase({_of('ringproxy_group_crash_loops_total')}[15m])))",
            bad=1,
            alert="RingproxyCrashLoop",
            none=_NO_GROUP,
        ),
        tile(
            "Consumers refused",
            "Consumers that members lack, as the broker refuses them or a connection has no room.",
            f"sum({_of('ringproxy_group_links_refused')})",
            bad=1,
            alert="RingproxyConsumerRefused",
            none=_NO_GROUP,
        ),
        tile(
            "Do not hear others",
            "Sidecars that do not hear the other sidecars of a group: their members keep what they have.",
            f"sum({_of('ringproxy_group_connected')} == bool 0)",
            bad=1,
            alert="RingproxyGroupDisconnected",
            none=_NO_GROUP,
        ),
        tile(
            "Journals lose",
            "Sidecars whose journals have dropped records in the last 10 minutes, or cannot be written.",
            _count(
                f"sum by (job, namespace, instance) (increase({_of('ringproxy_journal_dropped_total')}[10m])) > 0"
                f" or max by (job, namespace, instance) ({_of('ringproxy_journal_failing')}) == 1"
            ),
            bad=1,
            alert="RingproxyJournalLoses",
            none=_NOBODY,
        ),
        tile(
            "Files not read",
            "Sidecars that go on with the last good content of a file that has a mistake now.",
            _count(f"min by (job, namespace, instance) ({_of('ringproxy_reload_ok')}) == 0"),
            bad=1,
            alert="RingproxyReloadFailed",
            none=_NOBODY,
        ),
        tile(
            "Certificate ends in",
            "Time until the first certificate of a sidecar expires.",
            f"min({_of('ringproxy_certificate_expiry_timestamp_seconds')}) - time()",
            good=7 * 24 * 3600,
            unit="s",
            alert="RingproxyCertificateEnds",
            none="no sidecar has a certificate",
        ),
        rows(
            "Alerts that fire",
            "The alerts of deploy/alerts.yaml, as this Prometheus evaluates them.",
            f"sum by (alertname, severity, namespace, job, vhost, exchange, reason, setting) ({firing(ALERTS)})",
            none="no alert fires, or this Prometheus does not have the rules of deploy/alerts.yaml",
            links={
                "exchange": link_to(
                    "exchange", "This exchange", vhost="${__data.fields.vhost}", exchange="${__data.fields.exchange}"
                ),
                "vhost": link_to(
                    "group",
                    "The group of this exchange",
                    vhost="${__data.fields.vhost}",
                    group="${__data.fields.exchange}",
                ),
            },
        ),
    ]


def _quantile(share: float) -> str:
    """Return the time within which this share of publishes is answered."""
    return f"histogram_quantile({share}, sum by (le, ingress) (rate({_BUCKETS}[$__rate_interval])))"


def _traffic() -> list[Panel]:
    """Return what becomes of publishes, how long it takes, and what clients do."""
    return [
        graph(
            "Publishes",
            "Publishes a second by outcome.",
            Query(f"sum by (outcome) (rate({_PUBLISHES}[$__rate_interval]))", "{{outcome}}"),
            unit="mps",
            stacked=True,
            none="nothing was published",
        ),
        bars(
            "Publishes that did not arrive",
            "Publishes in the time that is looked at, by exchange and outcome; an unknown exchange has no name.",
            Query(
                "topk(10, sum by (vhost, exchange, outcome) ("
                + began_or_grew(_of("ringproxy_publishes_total", 'outcome!~"confirmed|passed|sent"'), "$__range")
                + ") > 0)",
                "{{vhost}} {{exchange}}: {{outcome}}",
            ),
            none="every publish arrived",
            link=_TO_EXCHANGE,
        ),
        bars(
            "Busiest exchanges",
            "Publishes a second of the ten exchanges with the most.",
            Query(
                f"topk(10, sum by (vhost, exchange) (rate({_PUBLISHES}[$__rate_interval])))", "{{vhost}} {{exchange}}"
            ),
            unit="mps",
            none="nothing was published",
            link=_TO_EXCHANGE,
        ),
        graph(
            "Time to the confirm",
            "Half of the publishes, and 99 of 100, are answered by the broker within this time.",
            Query(_quantile(0.5), "{{ingress}} p50"),
            Query(_quantile(0.99), "{{ingress}} p99"),
            unit="s",
            none="nothing was published",
        ),
        heat(
            "Times to the confirm",
            "How many publishes took how long; a second band far above the first is often one slow queue.",
            f"sum by (le) (increase({_BUCKETS}[$__rate_interval]))",
            unit="s",
            none="nothing was published",
        ),
        graph(
            "Waiting for confirms",
            "Messages that were sent and are not confirmed; if they stay and nothing is published, the broker blocks.",
            Query(f"sum({_of('ringproxy_in_flight')})", "all sidecars"),
            Query(f"max({_of('ringproxy_in_flight')})", "the one with the most"),
            none=_NOBODY,
        ),
        graph(
            "Passed to the exchange itself",
            "Publishes a second, by reason: type is normal, no_ring of an upstream exchange, shadow in a migration.",
            Query(f"sum by (reason) (rate({_of('ringproxy_passed_total')}[$__rate_interval]))", "{{reason}}"),
            unit="mps",
            none="nothing was passed",
            alert="RingproxyNotRouted",
        ),
        graph(
            "AMQP sessions",
            "Sessions now; at max_sessions a sidecar refuses further ones.",
            Query(f"sum({_of('ringproxy_amqp_sessions')})", "all sidecars"),
            Query(f"max({_of('ringproxy_amqp_sessions')})", "the one with the most"),
            Query(f"sum({_of('ringproxy_kept_connections')})", "kept connections without one"),
            none=_NOBODY,
        ),
        graph(
            "Ends of AMQP sessions",
            "Sessions a second that ended, by reason; client is normal.",
            Query(
                f"sum by (reason) (rate({_of('ringproxy_amqp_session_ends_total')}[$__rate_interval]))", "{{reason}}"
            ),
            unit="cps",
            none=_NOBODY,
        ),
        bars(
            "Refused over AMQP",
            "Sessions and channels that sidecars closed in the time that is looked at, by reply code; 0: no AMQP.",
            Query(
                f"sum by (code) ({began_or_grew(_of('ringproxy_amqp_refusals_total'), '$__range')}) > 0",
                "code {{code}}",
            ),
            none="nobody was refused",
        ),
        graph(
            "HTTP answers",
            "Answers a second to who publishes, by status.",
            Query(
                f"sum by (code) (rate({_ANSWERS}[$__rate_interval]))",
                "{{code}}",
            ),
            unit="reqps",
            none="nobody has asked over HTTP",
        ),
        graph(
            "Refused credentials",
            "Wrong or unchecked credentials of HTTP clients a second.",
            Query(
                f"sum by (kind, result) (rate({_of('ringproxy_http_credentials_refused_total')}[$__rate_interval]))",
                "{{kind}} {{result}}",
            ),
            unit="cps",
            none=_NOBODY,
        ),
    ]


def _rings() -> list[Panel]:
    """Return how old rings are, and which changed."""
    return [
        graph(
            "Age of the oldest rings",
            "Time since the last good reading of an exchange; above sync_interval, readings fail.",
            Query(f"max({_of('ringproxy_ring_age_seconds')})", "the oldest"),
            Query(f"quantile(0.5, {_of('ringproxy_ring_age_seconds')})", "half are younger"),
            unit="s",
            bad=300,
            alert="RingproxyRingStale",
            none="no exchange is known yet",
        ),
        graph(
            "Readings of exchanges",
            "Readings a second from the management API, by result.",
            Query(f"sum by (result) (rate({_of('ringproxy_syncs_total')}[$__rate_interval]))", "{{result}}"),
            unit="cps",
            none=_NOBODY,
        ),
        bars(
            "Rings that changed",
            "Changes in the time that is looked at, of the ten exchanges with the most, as one sidecar counts them.",
            Query(
                "topk(10, max by (vhost, exchange)"
                f" ({began_or_grew(_of('ringproxy_ring_changes_total'), '$__range')}) > 0)",
                "{{vhost}} {{exchange}}",
            ),
            none="no ring changed",
            link=_TO_EXCHANGE,
        ),
    ]


def _groups() -> list[Panel]:
    """Return the state of the groups with the most."""
    return [
        graph(
            "Lag",
            "Messages of groups that are ready or unacked, of the ten groups with the most.",
            Query(f"topk(10, sum by (vhost, exchange) ({_LAG}))", "{{vhost}} {{exchange}}"),
            none=_NO_GROUP,
        ),
        graph(
            "Members",
            "Members of each group, of the ten largest ones.",
            Query(f"topk(10, sum by (vhost, exchange) ({_MEMBERS}))", "{{vhost}} {{exchange}}"),
            none=_NO_GROUP,
            alert="RingproxyGroupWithoutMembers",
        ),
        bars(
            "Messages that wait",
            "Messages that are ready or unacked now, of the ten groups with the most.",
            Query(f"topk(10, sum by (vhost, exchange) ({_LAG}))", "{{vhost}} {{exchange}}"),
            none=_NO_GROUP,
            link=link_to("group", "This group", vhost="${__field.labels.vhost}", group="${__field.labels.exchange}"),
        ),
        graph(
            "Shards that are to move",
            "Shards that another member should have than has, of the ten groups with the most.",
            Query(
                f"topk(10, max by (vhost, exchange) ({_of('ringproxy_group_shards_moving')}))", "{{vhost}} {{exchange}}"
            ),
            none=_NO_GROUP,
            alert="RingproxyGroupUnbalanced",
        ),
        graph(
            "Redeliveries",
            "Deliveries a second that were marked as redelivered, of all groups.",
            Query(
                or_zero(
                    f"sum(rate({_of('ringproxy_group_redeliveries_total')}[$__rate_interval]))", f"count({_MEMBERS})"
                ),
                "redeliveries",
            ),
            unit="mps",
            none=_NO_GROUP,
            alert="RingproxyPoisonMessage",
        ),
        graph(
            "Sidecars that do not hear the others",
            "Sidecars with members of a group whose beats of the others are missing, and beats lost a second.",
            Query(f"sum({_of('ringproxy_group_connected')} == bool 0)", "sidecars and groups"),
            Query(f"sum(rate({_of('ringproxy_group_beats_lost_total')}[$__rate_interval]))", "beats lost a second"),
            none=_NO_GROUP,
            alert="RingproxyGroupDisconnected",
        ),
    ]


def _sidecars() -> list[Panel]:
    """Return what the processes use."""
    memory, cpu = _ours("process_resident_memory_bytes"), f"rate({_of('process_cpu_seconds_total')}[$__rate_interval])"
    cpu = f"({cpu} and on (job, namespace, instance) ringproxy_build_info)"
    files = f"({_ours('process_open_fds')} / {_of('process_max_fds')})"
    return [
        graph(
            "Memory",
            "Resident memory of the sidecar with the most, and of the middle one; the container's limit ends it.",
            Query(f"max({memory})", "the most"),
            Query(f"quantile(0.5, {memory})", "half have less"),
            unit="bytes",
            none=_NOBODY,
        ),
        graph(
            "CPU",
            "Cores that the busiest sidecar uses, and the middle one; near 1 a sidecar is at its limit.",
            Query(f"max({cpu})", "the busiest"),
            Query(f"quantile(0.5, {cpu})", "half use less"),
            none=_NOBODY,
        ),
        bars(
            "Sidecars with the most memory",
            "Resident memory of the ten sidecars with the most.",
            Query(f"topk(10, max by (namespace, pod, instance) ({memory}))", "{{namespace}} {{pod}} {{instance}}"),
            unit="bytes",
            none=_NOBODY,
        ),
        graph(
            "Versions",
            "Sidecars by version; hot_loop is python where the modules are not compiled, which is slower.",
            Query(f"count by (version, hot_loop) ({_of('ringproxy_build_info')})", "{{version}} {{hot_loop}}"),
            stacked=True,
            none=_NOBODY,
        ),
        graph(
            "AMQP bytes",
            "Bytes a second that sidecars receive, from clients and from the broker.",
            Query(f"sum by (leg) (rate({_of('ringproxy_amqp_bytes_total')}[$__rate_interval]))", "from the {{leg}}"),
            unit="Bps",
            none=_NOBODY,
        ),
        graph(
            "HTTP requests in memory",
            "Bytes of requests and answers; at max_in_flight_bytes a sidecar answers 503.",
            Query(f"max({_of('ringproxy_http_in_flight_bytes')})", "the sidecar with the most"),
            unit="bytes",
            none=_NOBODY,
        ),
        graph(
            "File descriptors",
            "Share of the descriptors a sidecar may have, of the one with the most.",
            Query(f"max({files})", "the most"),
            unit="percentunit",
            none=_NOBODY,
        ),
        graph(
            "Connections for HTTP publishes",
            "Connections to the broker that came up, a second; many mean that they break.",
            Query(f"sum(rate({_of('ringproxy_broker_connects_total')}[$__rate_interval]))", "connections"),
            unit="cps",
            none=_NOBODY,
            alert="RingproxyBrokerDisconnected",
        ),
        graph(
            "Journal",
            "Records a second that journals took, and that they dropped, by reason.",
            Query(f"sum(rate({_of('ringproxy_journal_records_total')}[$__rate_interval]))", "taken"),
            Query(
                f"sum by (reason) (rate({_of('ringproxy_journal_dropped_total')}[$__rate_interval]))",
                "dropped: {{reason}}",
            ),
            unit="cps",
            none="no sidecar keeps a journal",
            alert="RingproxyJournalLoses",
        ),
    ]


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return page(
        "fleet",
        "ringproxy / fleet",
        "All sidecars: what is wrong now comes first. A coloured tile has a link to its alert's section.",
        variables=[
            filtering("namespace", "Namespace", "ringproxy_build_info"),
            filtering("job", "Job", f"ringproxy_build_info{{{_NAMESPACE}}}"),
            filtering("instance", "Sidecar", f"ringproxy_build_info{{{_JOB}}}"),
        ],
        alerts=ALERTS,
        content={
            "What is wrong now": _wrong(),
            "Publishes and clients": _traffic(),
            "Rings": _rings(),
            "Groups": _groups(),
            "Sidecars": _sidecars(),
        },
    )
