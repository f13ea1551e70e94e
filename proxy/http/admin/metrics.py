"""All metrics, read at the time of a scrape. No label holds a routing key, message id or client."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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
from proxy.settings.reload import SettingsInForce
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import WHATEVER_IS_BOUND, Router
from proxy.tracing.tracing import Tracing
from ring.compiled import kind
from ring.hashing import RING_FORMAT

if TYPE_CHECKING:
    from proxy.groups.groups import Groups


_Values = TypeVar("_Values", bound=tuple[str, ...])


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    figures: Mapping[_Values, float],
) -> Metric:
    """Return a family of metrics with its figures, which are given by the values of its labels."""
    family = kind(name, text, labels=labels)
    for values, figure in figures.items():
        family.add_metric(values, figure)
    return family


_counter, _gauge = partial(_family, CounterMetricFamily), partial(_family, GaugeMetricFamily)


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
        tracing: Tracing,
        in_force: SettingsInForce,
    ) -> None:
        """Keep the parts that hold the figures; `groups` is None where the setting of that name is empty."""
        self._counts, self._router, self._scheduler, self._reader = counts, router, scheduler, reader
        self._limits, self._files, self._groups, self._in_force = limits, files, groups, in_force
        self._publisher, self._listener, self._journaling = publisher, listener, journaling
        self._tracing = tracing

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the proxy's own, with its figures of now."""
        build = {"version": __version__, "ring_format": str(RING_FORMAT), "hot_loop": kind()}
        yield InfoMetricFamily("ringproxy_build", "Always 1; the labels say what runs.", build)
        yield from self._collect_publishes()
        yield from self._collect_sessions()
        yield from self._collect_rings()
        yield from self._collect_readings()
        yield from self._collect_broker()
        yield from self._collect_journal()
        yield from self._collect_traces()
        yield from self._collect_http()
        yield from self._collect_files()
        yield from group_metrics.collect(self._groups)

    def _collect_publishes(self) -> Iterator[Metric]:
        """Yield what became of publishes, by ingress, exchange and outcome, and how long confirms took."""
        counts = self._counts
        yield _counter(
            "ringproxy_publishes",
            "Publishes by outcome; an empty exchange stands for names that are not known to exist.",
            ["ingress", "vhost", "exchange", "outcome"],
            {(ingress, *name, outcome): n for (ingress, name, outcome), n in counts.all_publishes().items()},
        )
        yield _counter(
            "ringproxy_passed",
            "Publishes that went to the exchange itself, by reason.",
            ["vhost", "exchange", "reason"],
            {(*name, reason): n for (name, reason), n in counts.all_passed().items()},
        )
        yield _counter(
            "ringproxy_rerouted",
            "Messages that the broker returned and that were published again, where the ring sent them.",
            ["ingress", "vhost", "exchange"],
            {(ingress, *name): n for (ingress, name), n in counts.all_rerouted().items()},
        )
        yield _counter(
            "ringproxy_shadowed",
            "Publishes to exchanges in shadow, by the destination that their ring would have chosen.",
            ["vhost", "exchange", "destination_type", "destination"],
            {(*name, where.kind, where.name): n for (name, where), n in counts.all_shadowed().items()},
        )
        yield _counter(
            "ringproxy_value_missing",
            "Messages without the header or property that their exchange hashes.",
            ["vhost", "exchange"],
            counts.all_value_missing(),
        )
        latency = HistogramMetricFamily(
            "ringproxy_confirm_latency_seconds",
            "Time from a publish to its confirm, nack or return; on an AMQP channel, of one publish at a time.",
            labels=["ingress"],
        )
        for ingress, histogram in (("http", counts.http_latency), ("amqp", counts.amqp_latency)):
            latency.add_metric([ingress], *histogram.buckets())
        yield latency
        in_flight = self._publisher.in_flight + self._listener.unsettled
        yield GaugeMetricFamily(
            "ringproxy_in_flight", "Messages that were sent and wait for the broker's confirm.", in_flight
        )

    def _collect_sessions(self) -> Iterator[Metric]:
        """Yield how many AMQP sessions there are, how they ended, and how many bytes and frames they carried."""
        listener = self._listener
        yield GaugeMetricFamily("ringproxy_amqp_sessions", "AMQP sessions that are open now.", len(listener.sessions))
        yield CounterMetricFamily("ringproxy_amqp_sessions_opened", "AMQP sessions that began.", listener.opened)
        yield _counter(
            "ringproxy_amqp_session_ends",
            "AMQP sessions that ended, by reason.",
            ["reason"],
            {(end.value,): listener.ends[end] for end in End},
        )
        yield _counter(
            "ringproxy_amqp_refusals",
            "Sessions and channels that the sidecar closed, by reply code; 0 if the first line was not AMQP's.",
            ["code"],
            {(str(code),): count for code, count in sorted(listener.shared.refusals.items())},
        )
        shared = listener.shared
        kept = shared.kept
        yield GaugeMetricFamily(
            "ringproxy_kept_connections",
            "Broker connections without a session that wait for the next client.",
            len(kept) if kept is not None else 0,
        )
        yield CounterMetricFamily(
            "ringproxy_kept_connections_reused",
            "AMQP sessions that got a kept broker connection.",
            kept.reused if kept is not None else 0,
        )
        legs = {"bytes": (shared.client_bytes, shared.broker_bytes), "frames": listener.frames}
        for what, (client, broker) in legs.items():
            yield _counter(
                f"ringproxy_amqp_{what}",
                f"AMQP {what} received, by who sent them.",
                ["leg"],
                {("client",): client, ("broker",): broker},
            )

    def _collect_rings(self) -> Iterator[Metric]:
        """Yield the state of each exchange that is known: its ring, its age, and what is wrong with its bindings."""
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
            "Share of the slots that the ring routes: 1, or as route_share says; 0 if publishes are passed or refused.",
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
        missing = GaugeMetricFamily(
            "ringproxy_queues_without_copies",
            "Queues that groups consume and no fan leads to, so that the groups lose messages.",
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
        now, share = self._router.clock(), self._in_force.now.route_share / 100
        for name, entry in self._router.entries.items():
            age.add_metric(name, max(now - entry.read_at, 0.0))
            restored.add_metric(name, entry.restored)
            ignored.add_metric(name, len(entry.bindings.ignored))
            duplicates.add_metric(name, len(entry.bindings.duplicates))
            dead_letters.add_metric(name, len(entry.dead_letters))
            missing.add_metric(name, sum(map(len, entry.incomplete.values())))
            routed.add_metric(name, share if entry.passed is None else 0.0)
            if entry.known is not None:
                destinations.add_metric(name, len(entry.known.ring.destinations))
                fingerprints.add_metric([*name, entry.known.fingerprint], 1)
            if entry.publish_in is not None and entry.passed not in WHATEVER_IS_BOUND:
                publish_in.add_metric(name, entry.publish_in)
        yield from (destinations, fingerprints, age, restored, routed, ignored, duplicates, dead_letters)
        yield from (missing, publish_in)
        reader = self._reader
        yield _counter("ringproxy_ring_changes", "Changes of the ring.", labels, reader.changes)
        yield _counter(
            "ringproxy_ring_moved_ratio",
            "Sum over all changes of the share of slots that moved, 0 to 1 each.",
            labels,
            {name: reader.moved.get(name, 0.0) for name in reader.changes},
        )

    def _collect_readings(self) -> Iterator[Metric]:
        """Yield how readings of exchanges through the management API ended, and whether that API answers."""
        yield _counter(
            "ringproxy_syncs",
            "Readings of exchanges from the management API, by result.",
            ["result"],
            {(result,): self._reader.results[result] for result in ("ok", "absent", "failed")},
        )
        yield GaugeMetricFamily(
            "ringproxy_sync_failing", "Exchanges whose last reading failed.", len(self._scheduler.faults)
        )
        yield _gauge(
            "ringproxy_named_exchange_absent",
            "1 if an exchange that route, shadow or groups names without a wildcard does not exist.",
            ["vhost", "exchange"],
            self._scheduler.missing(),
        )
        yield GaugeMetricFamily(
            "ringproxy_management_up",
            "1 if the management API answered when it was last asked for its cluster.",
            not self._reader.identity.unreachable,
        )

    def _collect_broker(self) -> Iterator[Metric]:
        """Yield the state of the broker connections over which HTTP publishes go, by virtual host."""
        yield _gauge(
            "ringproxy_broker_connected",
            "1 if the connection for HTTP publishes is up.",
            ["vhost"],
            {(vhost,): not fault for vhost, fault in self._publisher.faults().items()},
        )
        yield _gauge(
            "ringproxy_broker_blocked",
            "1 if the broker said that it takes no publishes (connection.blocked).",
            ["vhost"],
            {(vhost,): bool(why) for vhost, why in self._publisher.blocked().items()},
        )
        yield CounterMetricFamily(
            "ringproxy_broker_connects", "Broker connections for HTTP publishes that came up.", self._publisher.connects
        )

    def _collect_journal(self) -> Iterator[Metric]:
        """Yield how many records the journal took and dropped; nothing without a journal."""
        journal, writer = self._journaling.journal, self._journaling.writer
        if journal is None or writer is None:
            return
        yield CounterMetricFamily(
            "ringproxy_journal_records", "Records that the journal took, dropped ones included.", journal.sequence
        )
        yield _counter(
            "ringproxy_journal_dropped",
            "Records that were not written, by reason.",
            ["reason"],
            {("buffer",): journal.dropped, ("store",): writer.lost, ("full",): writer.refused},
        )
        yield GaugeMetricFamily(
            "ringproxy_journal_failing", "1 if the last records could not be written.", bool(writer.fault)
        )

    def _collect_traces(self) -> Iterator[Metric]:
        """Yield how many spans ended, and how many were dropped; nothing where nothing is traced."""
        tracer, export = self._tracing.tracer, self._tracing.export
        if tracer is None or export is None:
            return
        yield CounterMetricFamily(
            "ringproxy_spans",
            "Spans of the sample, dropped ones included.",
            export.ends + tracer.dropped + tracer.limited,
        )
        yield _counter(
            "ringproxy_spans_dropped",
            "Spans that were not exported, by reason.",
            ["reason"],
            {
                ("open",): tracer.dropped,
                ("rate",): tracer.limited,
                ("queue",): export.full,
                ("sdk",): export.refused,
                ("endpoint",): export.failed,
            },
        )
        yield GaugeMetricFamily(
            "ringproxy_spans_failing", "1 if the endpoint did not take the last spans.", export.is_failing
        )

    def _collect_http(self) -> Iterator[Metric]:
        """Yield the answers of both HTTP listeners, and what their requests hold."""
        answers = self._counts.http_answers.items()
        yield _counter(
            "ringproxy_http_responses",
            "HTTP answers by listener and status.",
            ["listener", "code"],
            {(listener, str(status)): n for listener, by_status in answers for status, n in by_status.items()},
        )
        yield _counter(
            "ringproxy_http_credentials_refused",
            "Credentials of HTTP clients that were wrong, or unchecked after too many wrong ones.",
            ["kind", "result"],
            {each: self._counts.credentials[each] for each in itertools.product(KINDS, RESULTS)},
        )
        yield GaugeMetricFamily(
            "ringproxy_http_in_flight_bytes",
            "Bytes of HTTP requests and answers in memory, as max_in_flight_bytes counts them.",
            self._limits.bytes,
        )

    def _collect_files(self) -> Iterator[Metric]:
        """Yield whether the files that settings name are in force, and when certificates end."""
        yield _counter(
            "ringproxy_reload_failures",
            "Times that a changed file of a setting had a mistake.",
            ["setting"],
            {(each.setting,): each.failures for each in self._files.renewed()},
        )
        yield _gauge(
            "ringproxy_reload_ok",
            "1 if the files of a setting are in force as they are, 0 if their last good version is.",
            ["setting"],
            {(each.setting,): not each.fault for each in self._files.renewed()},
        )
        yield _counter(
            "ringproxy_reload_successes",
            "Times that files of a setting were read again and had no mistake.",
            ["setting"],
            {(each.setting,): each.successes for each in self._files.renewed()},
        )
        yield _gauge(
            "ringproxy_reload_success_timestamp_seconds",
            "When the files of a setting were last read without a mistake, in seconds since 1970.",
            ["setting"],
            {(each.setting,): each.read_at for each in self._files.renewed()},
        )
        yield GaugeMetricFamily(
            "ringproxy_reload_needs_restart",
            "Settings that have another value in the settings file, and need a restart.",
            len(self._in_force.restart),
        )
        yield _gauge(
            "ringproxy_certificate_expiry_timestamp_seconds",
            "When a certificate of the sidecar ends, in seconds since 1970.",
            ["setting"],
            {(setting,): at for setting, at in self._files.certificate_ends().items()},
        )


def registry(collector: ProxyCollector) -> CollectorRegistry:
    """Return a registry of the proxy's own metrics, and those of the process and the interpreter."""
    made = CollectorRegistry()
    made.register(collector)
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made
