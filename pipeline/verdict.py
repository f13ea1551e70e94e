"""The verdict of a job for machines: `verdict.json`, the exit status, and the metrics of `--textfile`."""

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline import FINDINGS, FINE, NO_RECORD, NoRecordError
from pipeline.data.folder import Folder
from pipeline.data.gaps import NONE_MISSING, Missing
from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.findings import FAILING, KINDS, Finding
from pipeline.metrics import write_metrics

VERSION = 1
"""The version of `verdict.json`. New fields and kinds of findings do not change it."""

_EVERY, _NONE = "any", "none"


@dataclass(frozen=True)
class Verdict:
    """The verdict of one run of a job."""

    job: str
    findings: Sequence[Finding]
    figures: Mapping[str, float]
    """The main figures; `records` is how many were read."""
    paths: Mapping[str, str]
    """The report and the tables by name, as paths below the folder of the results."""
    more: Mapping[str, object] = field(default_factory=dict)
    """The period, and fields of the job's own."""

    def as_json(self, status: int) -> dict[str, object]:
        """Return the content of verdict.json."""
        told = {"v": VERSION, "job": self.job, "status": status, **self.more}
        findings = [asdict(finding) for finding in self.findings]
        return {**told, "figures": self.figures, "findings": findings, "paths": self.paths}


def paths(*tables: str) -> dict[str, str]:
    """Return the paths of these tables, and of the report, as a verdict has them."""
    return {"report": "report.html", **{table: table for table in tables}}


def conclude(verdict: Verdict, out: Folder, options: argparse.Namespace, status: int | None = None) -> int:
    """Write a verdict, and its metrics if the options ask for them; return the exit status.

    The status follows from the findings unless it is given.
    """
    if status is None:
        status = FINDINGS if any(finding.kind in options.fail_on for finding in verdict.findings) else FINE
    out.write_verdict(verdict.as_json(status))
    if options.textfile is not None:
        seconds = time.monotonic() - options.started
        write_metrics(
            options.textfile, verdict.job, status, seconds, verdict.figures.get("records", 0), verdict.findings
        )
    return status


@contextmanager
def results(spark: SparkSession, options: argparse.Namespace, more: Mapping[str, object]) -> Iterator[Folder]:
    """Yield the folder that `--out` names; if the block raises NoRecordError, write a verdict of that as well.

    `more` is the period, as `Verdict.more` has it. No verdict tells of other errors: the folder may be at fault.
    """
    out = Folder(spark, options.out)
    try:
        yield out
    except NoRecordError:
        out.write_verdict(Verdict(options.job, (), {"records": 0}, {}, more).as_json(NO_RECORD))
        raise


def of_records(missing: Missing = NONE_MISSING, aside: Aside = NOTHING_ASIDE) -> list[Finding]:
    """Return the findings on the records themselves: those that are missing, and those that cannot be read."""
    found = []
    if missing.records:
        said = f"{missing.records:,} records are missing from the journal."
        found.append(Finding("missing", said, figures={"before_oldest": missing.before}, count=missing.records))
    if aside:
        said = f"{aside}, which is in no figure."
        found.append(Finding("unreadable", said, figures=asdict(aside), count=aside.lines + aside.files))
    return found


def add_verdict_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options `--fail-on` and `--textfile` to a parser."""
    parser.add_argument(
        "--fail-on",
        type=_kinds,
        default=FAILING,
        metavar="KINDS",
        help="kinds of findings for which to exit with 1, with commas between them, or none, or any "
        f"(default: {as_argument(FAILING)})",
    )
    parser.add_argument(
        "--textfile", type=Path, metavar="FILE", help="file for the metrics of the run, as Prometheus reads them"
    )


def as_argument(kinds: Iterable[str]) -> str:
    """Return the value of `--fail-on` for these kinds."""
    return ",".join(sorted(kinds)) or _NONE


def _kinds(text: str) -> frozenset[str]:
    if text in (_EVERY, _NONE):
        return frozenset(KINDS) if text == _EVERY else frozenset()
    for name in text.split(","):
        if name not in KINDS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no kind of findings: give {_NONE}, {_EVERY}, or some of {', '.join(KINDS)}"
            )
    return frozenset(text.split(","))
