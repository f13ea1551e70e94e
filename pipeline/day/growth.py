"""The growth of keys, tenants and queues from day to day.

Each day keeps the largest counts of its own in a file, and is compared with the files of the days before it. Nothing of
an earlier day's records is read again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.files import content, found
from pipeline.findings import Finding
from pipeline.page.formats import count, key_text

KEPT = 1000
"""The most keys, tenants and queues of which a day keeps a count: those with the most messages."""

DAYS = 7
"""How many days before it a day is compared with."""

TIMES, SHARE, DEVIATIONS = 1.5, 0.01, 3
"""A count has grown if it is TIMES an earlier one, and more by SHARE of its exchange's messages and than by chance.

Chance is DEVIATIONS standard deviations of the difference of two Poisson counts.
"""

FILE = "counts.json"


@dataclass(frozen=True)
class Subject:
    """One thing that is counted."""

    what: str
    """One of `key`, `tenant` and `queue`."""
    vhost: str
    exchange: str
    name: str


@dataclass(frozen=True)
class Counts:
    """The messages of one day by subject, and by exchange the sample of its journal."""

    messages: Mapping[Subject, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    """By `what`, the most messages that a subject can have had which is not among them."""
    samples: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By virtual host and exchange."""
    separator: str | None = None
    """The text that ends a tenant in a key; None if tenants were not counted."""

    @classmethod
    def of(
        cls, rows: Iterable[tuple[Subject, int]], samples: Mapping[tuple[str, str], float], separator: str | None = None
    ) -> "Counts":
        """Return the counts of these rows, the KEPT largest of each kind."""
        messages, at_most = dict[Subject, int](), dict[str, int]()
        by_what: dict[str, list[tuple[Subject, int]]] = {}
        for subject, number in rows:
            by_what.setdefault(subject.what, []).append((subject, number))
        for what, some in by_what.items():
            some.sort(key=lambda one: -one[1])
            messages |= dict(some[:KEPT])
            at_most[what] = some[KEPT - 1][1] if len(some) >= KEPT else 0
        return cls(messages, at_most, samples, separator)

    def to_json(self) -> str:
        """Return the counts as their file has them."""
        rows = [{**asdict(subject), "messages": number} for subject, number in self.messages.items()]
        samples = [[*where, sample] for where, sample in self.samples.items()]
        told = {"v": 1, "separator": self.separator, "at_most": self.at_most, "samples": samples, "counts": rows}
        return json.dumps(told) + "\n"

    @classmethod
    def of_json(cls, text: bytes, where: str) -> "Counts":
        """Return the counts of a file. Raises PipelineError, which begins with `where`, for any other text."""
        try:
            told = json.loads(text)
            names = ("what", "vhost", "exchange", "name")
            messages = {Subject(*(row[name] for name in names)): int(row["messages"]) for row in told["counts"]}
            samples = {(vhost, exchange): float(sample) for vhost, exchange, sample in told["samples"]}
            at_most = {what: int(most) for what, most in told["at_most"].items()}
            return cls(messages, at_most, samples, told["separator"])
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{where}: no counts of a day: {error!r}: run that day again") from None


@dataclass(frozen=True)
class Grown:
    """A subject that has grown."""

    subject: Subject
    messages: int
    since: date
    """The newest of the days before, at most DAYS ago, that had so many fewer."""
    earlier: Mapping[date, tuple[int, bool]]
    """By day of those that were kept: its messages, and whether these are only the most that it can have had."""

    def on(self, day: date) -> str:
        """Return the messages of a day in words; a dash where none were kept."""
        if day not in self.earlier:
            return "-"
        messages, is_most = self.earlier[day]
        return f"at most {count(messages)}" if is_most and messages else count(messages)

    @property
    def added(self) -> int:
        """How many messages more it has than on the day `since`."""
        return self.messages - self.earlier[self.since][0]


def counted(spark: SparkSession, skew: str, records: DataFrame, separator: str | None) -> Counts:
    """Return the counts of a day, from the tables that `skew` has written, and with a separator from the records.

    The part of a key before the separator is its tenant. Counts of queues and tenants are estimates if the journal is a
    sample; a key is in the sample with all of its messages or not at all.
    """
    whole = {
        (row.vhost, row.exchange): row for row in spark.read.parquet(f"{skew}/rings").where("ring is null").collect()
    }
    rows: list[tuple[Subject, int]] = []
    for row in spark.read.parquet(f"{skew}/keys").where("ring is null").collect():
        name = f"slot {row.slot}" if row.key is None else key_text(bytes(row.key))
        rows.append((Subject("key", row.vhost, row.exchange, name), row.messages))
    for row in spark.read.parquet(f"{skew}/destinations").where("ring is null").collect():
        published = whole[row.vhost, row.exchange].published
        if published is not None:
            rows.append((Subject("queue", row.vhost, row.exchange, row.destination), round(row.share * published)))
    if separator is not None:
        rows += _tenants(records, separator)
    return Counts.of(rows, {where: row["sample"] for where, row in whole.items()}, separator)


def _tenants(records: DataFrame, separator: str) -> Iterator[tuple[Subject, int]]:
    key = F.col("key").cast("string")
    named = records.where(F.contains(key, F.lit(separator)))
    tenant = F.substring_index(key, separator, 1).alias("tenant")
    by_tenant = named.groupBy("vhost", "exchange", tenant).agg(F.sum(1 / F.col("sample")).alias("messages"))
    for row in by_tenant.orderBy(F.desc("messages"), "vhost", "exchange", "tenant").limit(KEPT).collect():
        yield Subject("tenant", row.vhost, row.exchange, row.tenant), round(row.messages)


def kept(spark: SparkSession, out: str, day: date) -> dict[date, Counts]:
    """Return the counts of the days before a day, at most DAYS of them, as far as they have been kept."""
    before = {}
    for one in (day - timedelta(days=n) for n in range(1, DAYS + 1)):
        for file in found(spark, f"{out}/{one:%Y-%m-%d}/{FILE}"):
            before[one] = Counts.of_json(content(spark, file), file)
    return before


def grown(now: Counts, before: Mapping[date, Counts]) -> list[Grown]:
    """Return the subjects that have more messages than on one of the days before, the largest growth first.

    Keys of an exchange are not compared with those of a day with another sample, nor tenants with those of a day with
    another separator: those are others.
    """
    totals: dict[tuple[str, str], int] = {}
    for subject, messages in now.messages.items():
        if subject.what == "queue":
            where = subject.vhost, subject.exchange
            totals[where] = totals.get(where, 0) + messages
    told = []
    for subject, messages in now.messages.items():
        where = subject.vhost, subject.exchange
        earlier = {
            day: (counts.messages.get(subject, counts.at_most.get(subject.what, 0)), subject not in counts.messages)
            for day, counts in before.items()
            if _is_comparable(subject, now, counts)
        }
        least = SHARE * totals.get(where, 0)
        fewer = [day for day, (its, _) in earlier.items() if _is_more(messages, its, least)]
        if fewer:
            told.append(Grown(subject, messages, max(fewer), earlier))
    return sorted(told, key=lambda one: -one.added)


def _is_comparable(subject: Subject, now: Counts, earlier: Counts) -> bool:
    if subject.what == "tenant":
        return now.separator == earlier.separator
    where = subject.vhost, subject.exchange
    return subject.what != "key" or earlier.samples.get(where, now.samples[where]) == now.samples[where]


def _is_more(messages: int, earlier: int, least: float) -> bool:
    more = messages - earlier
    return messages >= TIMES * earlier and more >= least and more > DEVIATIONS * (messages + earlier) ** 0.5


def findings(every: Sequence[Grown], day: date) -> list[Finding]:
    """Return the findings on what has grown."""
    return [_finding(one, day) for one in every]


def _finding(one: Grown, day: date) -> Finding:
    """Return the finding that a key, tenant or queue has grown, with its messages then, a day and a week before."""
    subject = one.subject
    said = (
        f"{subject.what.capitalize()} {subject.name} of exchange {subject.exchange} (virtual host {subject.vhost}) has"
        f" grown from {one.on(one.since)} messages on {one.since} to {count(one.messages)}."
    )
    named = {"vhost": subject.vhost, "exchange": subject.exchange, subject.what: subject.name}
    figures: dict[str, float | str | None] = {"messages": one.messages, "since": str(one.since)}
    for name, days in (("day_before", 1), ("week_before", 7)):
        figures[name] = one.earlier.get(day - timedelta(days=days), (None, False))[0]
    return Finding("grown", said, named, figures)
