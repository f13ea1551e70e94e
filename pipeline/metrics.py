"""The metrics of one run of a job, as a file for the textfile collector of Prometheus's node exporter."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from pipeline import PipelineError
from pipeline.findings import KINDS, Finding


def write_metrics(
    file: Path, job: str, status: int, seconds: float, records: float = 0, findings: Sequence[Finding] = ()
) -> None:
    """Write the file, whole or not at all. Raises PipelineError where it cannot be written.

    The label is not `job`: Prometheus has one of that name for each scrape, and would rename this one.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(f"ringproxy_pipeline_{name}", text, ["command"], registry=registry).labels(job).set(value)

    gauge("status", "Exit status of the last run: 0 fine, 1 findings, 2 fault, 3 no record.", status)
    gauge("records", "Records that the last run read.", records)
    gauge("duration_seconds", "Duration of the last run.", seconds)
    gauge("end_timestamp_seconds", "Time at which the last run ended, in seconds since 1970.", time.time())
    counts = Counter[str]()
    for finding in findings:
        counts[finding.kind] += finding.count
    by_kind = Gauge("ringproxy_pipeline_findings", "Findings by kind.", ["command", "kind"], registry=registry)
    for kind in KINDS:
        by_kind.labels(job, kind).set(counts[kind])
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise PipelineError(f"--textfile: {file}: cannot be written: {error.strerror}") from None
