"""The dashboard of one exchange."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from testbed.dashboards.fleet import FAILED, WRONGLY_PASSED
from testbed.dashboards.page import choice, filtering, page
from testbed.dashboards.panels import Panel, Query, bars, began_or_grew, graph, or_zero, tile

_NAMESPACE = 'namespace=~"$namespace"'
_JOB = f'{_NAMESPACE}, job=~"$job"'
_NAME = 'vhost="$vhost", exchange="$exchange"'
_ALERTS = f'namespace=~"$namespace|", job=~"$job|", {_NAME}'
_UNKNOWN = "no sidecar knows this exchange"
_NO_PUBLISHES = "nothing was published to this exchange"
_NO_RING = "this exchange has no ring"


def _of(metric: str, more: str = "") -> str:
    return f"{metric}{{{_JOB}, {_NAME}{more and ', ' + more}}}"


_PUBLISHES = _of("ringproxy_publishes_total")
_KNOWN = f"count({_of('ringproxy_ring_routed')})"
_NATIVE, _GROWN = (
    f"ringproxy:native_publishes:increase1h{{{_NAME}}}",
    f"ringproxy:exchange_publish_in:grown1h{{{_NAME}}}",
)


def _sum(counter: str) -> str:
    """Return how many counters counted in the last 10 minutes, 0 where there are none."""
    return or_zero(f"ceil(sum({began_or_grew(counter, '10m')}))", _KNOWN)


def _quantile(share: float) -> str:
    """Return the time within which this share of publishes is answered, of sidecars that publish to the exchange."""
    buckets = f"rate(ringproxy_confirm_latency_seconds_bucket{{{_JOB}}}[$__rate_interval])"
    publishing = f"on (job, namespace, instance) group by (job, namespace, instance) ({_PUBLISHES})"
    return f"histogram_quantile({share}, sum by (le, ingress) ({buckets} and {publishing}))"


def _wrong() -> list[Panel]:
    """Return what is wrong now."""
    failing = _of("ringproxy_publishes_total", f'outcome=~"{FAILED}"')
    return [
        tile(
            "Routed by",
            "Whether sidecars send publishes to the queues of the ring, or to the exchange itself. A percentage is the "
            "part of the slots that the ring has, by route_share.",
            f"min({_of('ringproxy_ring_routed')})",
            good=1,
            alert="RingproxyNotRouted",
            unit="percentunit",
            words={1: "the ring", 0: "the exchange"},
            none=_UNKNOWN,
        ),
        tile(
            "Different rings",
            "Rings that sidecars have of this exchange; 2 is normal for some seconds after a change.",
            f"count(count by (fingerprint) ({_of('ringproxy_ring_fingerprint')}))",
            bad=2,
            alert="RingproxyFleetDisagrees",
            none=_NO_RING,
        ),
        tile(
            "Age of the ring",
            "Time since the bindings were last read, by the sidecar where it is longest.",
            f"max({_of('ringproxy_ring_age_seconds')})",
            bad=300,
            unit="s",
            alert="RingproxyRingStale",
            none=_UNKNOWN,
        ),
        tile(
            "Publishes fail",
            "Share of publishes that are nacked, come back, find no broker or are refused.",
            or_zero(f"sum(rate({failing}[5m])) / (sum(rate({_PUBLISHES}[5m])) > 0)", _KNOWN),
            bad=0.01,
            unit="percentunit",
            alert="RingproxyPublishesFail",
            none=_UNKNOWN,
        ),
        tile(
            "Outcome unknown",
            "Messages of the last 10 minutes that were sent and never confirmed: each is in its queue or is not.",
            _sum(_of("ringproxy_publishes_total", 'outcome="unknown"')),
            bad=1,
            alert="RingproxyUnknownOutcomes",
            none=_UNKNOWN,
        ),
        tile(
            "Not routed",
            "Publishes of the last 10 minutes that no ring routed, so that RabbitMQ hashed their keys.",
            _sum(_of("ringproxy_passed_total", f'reason=~"{WRONGLY_PASSED}"')),
            bad=1,
            alert="RingproxyNotRouted",
            none=_UNKNOWN,
        ),
        tile(
            "Past the sidecars",
            "Share of what reached the exchange itself in the last hour that came without a sidecar.",
            f"{_NATIVE} / ({_GROWN} > 0) or 0 * {_GROWN}",
            bad=0.05,
            unit="percentunit",
            alert="RingproxyNativePublishers",
            none="deploy/alerts.yaml is not loaded",
        ),
        tile(
            "Named, and absent",
            "Whether settings name this exchange although it does not exist.",
            f"max({_of('ringproxy_named_exchange_absent')})",
            bad=1,
            alert="RingproxyNamedExchangeAbsent",
            words={0: "exists", 1: "is absent"},
            none="no setting names it",
        ),
        tile(
            "Would dead-letter",
            "Queues that would dead-letter under their own name: no ring routes the exchange as long as there are any.",
            f"max({_of('ringproxy_dead_letter_destinations')})",
            bad=1,
            alert="RingproxyNotRouted",
            none=_UNKNOWN,
        ),
        tile(
            "Without copies",
            "Queues of groups that no fan leads to: their groups lose messages.",
            f"max({_of('ringproxy_queues_without_copies')})",
            bad=1,
            alert="RingproxyQueueWithoutCopies",
            none=_UNKNOWN,
        ),
        tile(
            "Useless bindings",
            "Bindings that get no messages, or whose destination is bound more than once.",
            f"max({_of('ringproxy_ignored_bindings')} + {_of('ringproxy_duplicate_bindings')})",
            bad=1,
            none=_UNKNOWN,
        ),
        tile(
            "From the cache",
            "Sidecars that route by a ring of an earlier run, as they have not read the bindings since they started.",
            f"sum({_of('ringproxy_ring_restored')})",
            bad=1,
            alert="RingproxyManagementUnreadable",
            none=_UNKNOWN,
        ),
        tile(
            "Publishes a second",
            "Publishes of all outcomes, over AMQP and HTTP.",
            f"sum(rate({_PUBLISHES}[$__rate_interval]))",
            unit="mps",
            none=_NO_PUBLISHES,
        ),
        tile(
            "99 of 100 within",
            "Time to the confirm, of all publishes of the sidecars that publish here; the slower of AMQP and HTTP.",
            f"max({_quantile(0.99)} >= 0)",
            unit="s",
            none=_NO_PUBLISHES,
        ),
        tile(
            "Destinations", "Queues or lanes on the ring.", f"max({_of('ringproxy_ring_destinations')})", none=_NO_RING
        ),
        tile("Sidecars", "Sidecars that know this exchange.", _KNOWN, none=_UNKNOWN),
    ]


def _publishes() -> list[Panel]:
    """Return what becomes of publishes."""
    return [
        graph(
            "Publishes",
            "Publishes a second by outcome.",
            Query(f"sum by (outcome) (rate({_PUBLISHES}[$__rate_interval]))", "{{outcome}}"),
            unit="mps",
            stacked=True,
            none=_NO_PUBLISHES,
        ),
        bars(
            "Publishes that did not arrive",
            "Publishes in the time that is looked at, by outcome and where clients sent them.",
            Query(
                "sum by (outcome, ingress) ("
                + began_or_grew(_of("ringproxy_publishes_total", 'outcome!~"confirmed|passed|sent"'), "$__range")
                + ") > 0",
                "{{outcome}} over {{ingress}}",
            ),
            none="every publish arrived",
        ),
        graph(
            "Time to the confirm",
            "Half of the publishes, and 99 of 100, are answered within this time; of all exchanges of these sidecars.",
            Query(_quantile(0.5), "{{ingress}} p50"),
            Query(_quantile(0.99), "{{ingress}} p99"),
            unit="s",
            none=_NO_PUBLISHES,
        ),
        graph(
            "By ingress",
            "Publishes a second over AMQP and over HTTP.",
            Query(f"sum by (ingress) (rate({_PUBLISHES}[$__rate_interval]))", "{{ingress}}"),
            unit="mps",
            none=_NO_PUBLISHES,
        ),
        bars(
            "Busiest sidecars",
            "Publishes a second of the ten sidecars with the most.",
            Query(
                f"topk(10, sum by (namespace, pod, instance) (rate({_PUBLISHES}[$__rate_interval])))",
                "{{namespace}} {{pod}} {{instance}}",
            ),
            unit="mps",
            none=_NO_PUBLISHES,
        ),
        graph(
            "Into the exchange itself",
            "Messages a second that go into the exchange, as the broker counts them; a ring's are not among them.",
            Query(
                or_zero(f"max(rate({_of('ringproxy_exchange_publish_in_total')}[$__rate_interval]))", _KNOWN),
                "by anyone",
            ),
            Query(
                or_zero(f"sum(rate({_of('ringproxy_passed_total')}[$__rate_interval]))", _KNOWN), "passed by sidecars"
            ),
            unit="mps",
            none=_UNKNOWN,
            alert="RingproxyNativePublishers",
        ),
        bars(
            "Passed, by reason",
            "Publishes that sidecars passed to the exchange itself in the time that is looked at.",
            Query(f"sum by (reason) ({began_or_grew(_of('ringproxy_passed_total'), '$__range')}) > 0", "{{reason}}"),
            none="nothing was passed",
        ),
        graph(
            "Came back, and went out again",
            "Messages a second that the broker returned, as their queue was gone, and that sidecars published again.",
            Query(
                or_zero(f"sum(rate({_of('ringproxy_rerouted_total')}[$__rate_interval]))", _KNOWN), "published again"
            ),
            unit="mps",
            none=_UNKNOWN,
        ),
        graph(
            "Without the hashed value",
            "Messages a second that lack the header or property that the exchange hashes: all go to one queue.",
            Query(or_zero(f"sum(rate({_of('ringproxy_value_missing_total')}[$__rate_interval]))", _KNOWN), "messages"),
            unit="mps",
            none=_UNKNOWN,
        ),
    ]


def _ring() -> list[Panel]:
    """Return how the ring changed."""
    return [
        graph(
            "Destinations over time",
            "Queues or lanes on the ring: a step is a queue that came or left.",
            Query(f"max({_of('ringproxy_ring_destinations')})", "the most that a sidecar sees"),
            Query(f"min({_of('ringproxy_ring_destinations')})", "the fewest"),
            none=_NO_RING,
        ),
        graph(
            "Changes",
            "Changes of the ring, and the share of keys that they moved to another queue, as one sidecar counts them.",
            Query(f"max(increase({_of('ringproxy_ring_changes_total')}[$__rate_interval]))", "changes"),
            Query(f"max(increase({_of('ringproxy_ring_moved_ratio_total')}[$__rate_interval]))", "share moved"),
            none=_NO_RING,
        ),
        bars(
            "In shadow, by destination",
            "Publishes a second by the destination that the ring would have chosen, of the ten with the most.",
            Query(
                f"topk(10, sum by (destination) (rate({_of('ringproxy_shadowed_total')}[$__rate_interval])))",
                "{{destination}}",
            ),
            unit="mps",
            none="this exchange is not in shadow",
        ),
    ]


def dashboard() -> Dashboard:
    """Return the dashboard."""
    known = f"ringproxy_ring_routed{{{_JOB}}}"
    return page(
        "exchange",
        "ringproxy / exchange",
        "One exchange: whether its ring routes it, what becomes of its publishes, and how its ring changes.",
        variables=[
            filtering("namespace", "Namespace", "ringproxy_build_info"),
            filtering("job", "Job", f"ringproxy_build_info{{{_NAMESPACE}}}"),
            choice("vhost", "Virtual host", known, "vhost"),
            choice("exchange", "Exchange", f'ringproxy_ring_routed{{{_JOB}, vhost="$vhost"}}', "exchange"),
        ],
        alerts=_ALERTS,
        content={"What is wrong now": _wrong(), "Publishes": _publishes(), "Ring": _ring()},
    )
