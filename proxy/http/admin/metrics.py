"""All metrics, read at the time of a scrape. No label holds a routing key, message id or client."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from proxy import __version__
from proxy.http.admin import group_metrics
from proxy.http.admission.limits import Limits
from proxy.journal.journaling import Journaling
from proxy.publisher.pool import Publisher
from proxy.routing.counters import Counts
from proxy.session.end import End
from proxy.session.listener import Listener
from proxy.settings.files import Files
from proxy.settings.guesses import KINDS, RESULTS
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import WHATEVER_IS_BOUND, Router
from ring.compiled import kind
from ring.hashing import RING_FORMAT

if TYPE_CHECKING:
    from proxy.groups.groups import Groups


class ProxyCollector(Collector):
    """The collector of the proxy's own metrics: a new metric is a family that `collect` yields."""

    def __init__(
        self,
        counts: Counts,
        router: Router,
        scheduler: Scheduler,
        reader: Reader,
        publisher: Publisher,
        listener: Listener,
        journaling: Journaling,
        limits: Limits,
        files: Files,
        groups: "Groups | None",
    ) -> None:
        """Keep the parts that hold the figures; `groups` is None where the setting of that name is empty."""
        self._counts, self._router, self._scheduler, self._reader = counts, router, scheduler, reader
        self._limits, self._files, self._groups = limits, files, groups
        self._publisher, self._listener, self._journaling = publisher, listener, journaling

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the proxy's own, with its figures of now."""
        build = {"version": __version__, "ring_format": str(RING_FORMAT), "hot_loop": kind()}
        yield InfoMetricFamily("ringproxy_build", "Always 1; the labels say what runs.", build)
        yield from self._collect_publishes()
        yield from self._collect_sessions()
        yield from self._collect_rings()
        yield from self._collect_sync()
        yield from self._collect_journal()
        yield from self._collect_http()
        yield from self._collect_files()
        yield from group_metrics.collect(self._groups)

    def _collect_publishes(self) -> Iterator[Metric]:
        publishes = CounterMetricFamily(
            "ringproxy_publishes",
            "Publishes by outcome; an empty exchange stands for names that are not known to exist.",
            labels=["ingress", "vhost", "exchange", "outcome"],
        )
        for (ingress, name, outcome), count in self._counts.all_publishes().items():
            publishes.add_metric([ingress, *name, outcome], count)
        yield publishes
        passed = CounterMetricFamily(
            "ringproxy_passed",
            "Publishes that went to the exchange itself, by reason.",
            labels=["vhost", "exchange", "reason"],
        )
        for (name, reason), count in self._counts.all_passed().items():
            passed.add_metric([*name, reason], count)
        yield passed
        rerouted = CounterMetricFamily(
            "ringproxy_rerouted",
            "Messages that the broker returned and that were published again, where the ring sent them.",
            labels=["ingress", "vhost", "exchange"],
        )
        for (ingress, name), count in self._counts.all_rerouted().items():
            rerouted.add_metric([ingress, *name], count)
        yield rerouted
        shadowed = CounterMetricFamily(
            "ringproxy_shadowed",
            "Publishes to exchanges in shadow, by the destination that their ring would have chosen.",
            labels=["vhost", "exchange", "destination_type", "destination"],
        )
        for (name, destination), count in self._counts.all_shadowed().items():
            shadowed.add_metric([*name, destination.kind, destination.name], count)
        yield shadowed
        missing = CounterMetricFamily(
            "ringproxy_value_missing",
            "Messages without the header or property that their exchange hashes.",
            labels=["vhost", "exchange"],
        )
        for name, count in self._counts.all_value_missing().items():
            missing.add_metric(list(name), count)
        yield missing
        latency = HistogramMetricFamily(
            "ringproxy_confirm_latency_seconds",
            "Time from a publish to its confirm, nack or return; on an AMQP channel, of one publish at a time.",
            labels=["ingress"],
        )
        for ingress, histogram in (("http", self._counts.http_latency), ("amqp", self._counts.amqp_latency)):
            latency.add_metric([ingress], *histogram.buckets())
        yield latency
        in_flight = self._publisher.in_flight + self._listener.unsettled
        yield GaugeMetricFamily(
            "ringproxy_in_flight", "Messages that were sent and wait for the broker's confirm.", in_flight
        )

    def _collect_sessions(self) -> Iterator[Metric]:
        listener = self._listener
        yield GaugeMetricFamily("ringproxy_amqp_sessions", "AMQP sessions that are open now.", len(listener.sessions))
        yield CounterMetricFamily("ringproxy_amqp_sessions_opened", "AMQP sessions that began.", listener.opened)
        ends = CounterMetricFamily(
            "ringproxy_amqp_session_ends", "AMQP sessions that ended, by reason.", labels=["reason"]
        )
        for end in End:
            ends.add_metric([end.value], listener.ends[end])
        yield ends
        refusals = CounterMetricFamily(
            "ringproxy_amqp_refusals",
            "Sessions and channels that the sidecar closed, by reply code; 0 if the first line was not AMQP's.",
            labels=["code"],
        )
        for code, count in sorted(listener.shared.refusals.items()):
            refusals.add_metric([str(code)], count)
        yield refusals
        shared = listener.shared
        for what, counts in (("bytes", (shared.client_bytes, shared.broker_bytes)), ("frames", listener.frames)):
            family = CounterMetricFamily(
                f"ringproxy_amqp_{what}", f"AMQP {what} received, by who sent them.", labels=["leg"]
            )
            for leg, count in zip(("client", "broker"), counts, strict=True):
                family.add_metric([leg], count)
            yield family

    def _collect_rings(self) -> Iterator[Metric]:
        labels = ["vhost", "exchange"]
        destinations = GaugeMetricFamily("ringproxy_ring_destinations", "Destinations on the ring.", labels=labels)
        fingerprints = GaugeMetricFamily(
            "ringproxy_ring_fingerprint",
            "Always 1; the label names the ring in force. Equal fingerprints route equally.",
            labels=[*labels, "fingerprint"],
        )
        age = GaugeMetricFamily("ringproxy_ring_age_seconds", "Seconds since the last good reading.", labels=labels)
        routed = GaugeMetricFamily(
            "ringproxy_ring_routed",
            "1 if the ring routes publishes, 0 if they are passed or refused.",
            labels=labels,
        )
        ignored = GaugeMetricFamily(
            "ringproxy_ignored_bindings",
            "Bindings whose key is not a weight, 1 to 10,000, or to a lane without a queue; they get no messages.",
            labels=labels,
        )
        duplicates = GaugeMetricFamily(
            "ringproxy_duplicate_bindings", "Destinations bound more than once.", labels=labels
        )
        dead_letters = GaugeMetricFamily(
            "ringproxy_dead_letter_destinations",
            "Queues that would dead-letter under their own name.",
            labels=labels,
        )
        publish_in = CounterMetricFamily(
            "ringproxy_exchange_publish_in",
            "Messages that anyone published into the hash exchange, as the broker counts them.",
            labels=labels,
        )
        restored = GaugeMetricFamily(
            "ringproxy_ring_restored",
            "1 if the ring comes from ring_cache_dir and has not been read since the start.",
            labels=labels,
        )
        now = self._router.clock()
        for name, entry in self._router.entries.items():
            age.add_metric(list(name), max(now - entry.read_at, 0.0))
            restored.add_metric(list(name), entry.restored)
            ignored.add_metric(list(name), len(entry.bindings.ignored))
            duplicates.add_metric(list(name), len(entry.bindings.duplicates))
            dead_letters.add_metric(list(name), len(entry.dead_letters))
            routed.add_metric(list(name), entry.passed is None)
            if entry.known is not None:
                destinations.add_metric(list(name), len(entry.known.ring.destinations))
                fingerprints.add_metric([*name, entry.known.fingerprint], 1)
            if entry.publish_in is not None and entry.passed not in WHATEVER_IS_BOUND:
                publish_in.add_metric(list(name), entry.publish_in)
        yield from (destinations, fingerprints, age, restored, routed, ignored, duplicates, dead_letters, publish_in)
        changes = CounterMetricFamily("ringproxy_ring_changes", "Changes of the ring.", labels=labels)
        moved = CounterMetricFamily(
            "ringproxy_ring_moved_ratio",
            "Sum over all changes of the share of slots that moved, 0 to 1 each.",
            labels=labels,
        )
        for name, count in self._reader.changes.items():
            changes.add_metric(list(name), count)
            moved.add_metric(list(name), self._reader.moved.get(name, 0.0))
        yield from (changes, moved)

    def _collect_sync(self) -> Iterator[Metric]:
        results = CounterMetricFamily(
            "ringproxy_syncs", "Readings of exchanges from the management API, by result.", labels=["result"]
        )
        for result in ("ok", "absent", "failed"):
            results.add_metric([result], self._reader.results[result])
        yield results
        failing = GaugeMetricFamily("ringproxy_sync_failing", "Exchanges whose last reading failed.")
        failing.add_metric([], len(self._scheduler.faults))
        yield failing
        absent = GaugeMetricFamily(
            "ringproxy_named_exchange_absent",
            "1 if an exchange that route, shadow or groups names without a wildcard does not exist.",
            labels=["vhost", "exchange"],
        )
        for name, is_absent in self._scheduler.missing().items():
            absent.add_metric(list(name), is_absent)
        yield absent
        up = GaugeMetricFamily(
            "ringproxy_management_up", "1 if the management API answered when it was last asked for its cluster."
        )
        up.add_metric([], not self._reader.identity.unreachable)
        yield up
        connected = GaugeMetricFamily(
            "ringproxy_broker_connected", "1 if the connection for HTTP publishes is up.", labels=["vhost"]
        )
        for vhost, fault in self._publisher.faults().items():
            connected.add_metric([vhost], not fault)
        yield connected
        blocked = GaugeMetricFamily(
            "ringproxy_broker_blocked",
            "1 if the broker said that it takes no publishes (connection.blocked).",
            labels=["vhost"],
        )
        for vhost, why in self._publisher.blocked().items():
            blocked.add_metric([vhost], bool(why))
        yield blocked
        yield CounterMetricFamily(
            "ringproxy_broker_connects", "Broker connections for HTTP publishes that came up.", self._publisher.connects
        )

    def _collect_journal(self) -> Iterator[Metric]:
        journal, writer = self._journaling.journal, self._journaling.writer
        if journal is None or writer is None:
            return
        yield CounterMetricFamily(
            "ringproxy_journal_records", "Records that the journal took, dropped ones included.", journal.sequence
        )
        dropped = CounterMetricFamily(
            "ringproxy_journal_dropped", "Records that were not written, by reason.", labels=["reason"]
        )
        dropped.add_metric(["buffer"], journal.dropped)
        dropped.add_metric(["store"], writer.lost)
        dropped.add_metric(["full"], writer.refused)
        yield dropped
        failing = GaugeMetricFamily("ringproxy_journal_failing", "1 if the last records could not be written.")
        failing.add_metric([], bool(writer.fault))
        yield failing

    def _collect_http(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "ringproxy_http_responses", "HTTP answers by listener and status.", labels=["listener", "code"]
        )
        for listener, by_status in self._counts.http_answers.items():
            for status, count in by_status.items():
                answers.add_metric([listener, str(status)], count)
        yield answers
        credentials = CounterMetricFamily(
            "ringproxy_http_credentials_refused",
            "Credentials of HTTP clients that were wrong, or unchecked after too many wrong ones.",
            labels=["kind", "result"],
        )
        for kind_of in KINDS:
            for result in RESULTS:
                credentials.add_metric([kind_of, result], self._counts.credentials[kind_of, result])
        yield credentials
        yield GaugeMetricFamily(
            "ringproxy_http_in_flight_bytes",
            "Bytes of HTTP requests and answers in memory, as max_in_flight_bytes counts them.",
            self._limits.bytes,
        )

    def _collect_files(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "ringproxy_reload_failures",
            "Times that a changed file of a setting had a mistake.",
            labels=["setting"],
        )
        good = GaugeMetricFamily(
            "ringproxy_reload_ok",
            "1 if the files of a setting are in force as they are, 0 if their last good version is.",
            labels=["setting"],
        )
        for each in self._files.watched:
            failures.add_metric([each.setting], each.failures)
            good.add_metric([each.setting], not each.fault)
        yield from (failures, good)
        ends = GaugeMetricFamily(
            "ringproxy_certificate_expiry_timestamp_seconds",
            "When a certificate of the sidecar ends, in seconds since 1970.",
            labels=["setting"],
        )
        for setting, at in self._files.certificate_ends().items():
            ends.add_metric([setting], at)
        yield ends


def registry(collector: ProxyCollector) -> CollectorRegistry:
    """Return a registry of the proxy's own metrics, and those of the process and the interpreter."""
    made = CollectorRegistry()
    made.register(collector)
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made
