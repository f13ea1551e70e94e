"""The part of a journal's time that a job looks at: `--from` and `--until`."""

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import NoRecordError, PipelineError

_MICROSECOND = timedelta(microseconds=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Period:
    """The part of a journal's time that a job looks at: from `since` on and before `until`, both in UTC.

    An end that is None does not limit it.
    """

    since: datetime | None = None
    until: datetime | None = None

    def __str__(self) -> str:
        """Return the period in words, as reports show it, such as "from 2026-11-21 17:00:00 UTC"."""
        limits = (("from", self.since), ("until", self.until))
        words = [f"{word} {at:%Y-%m-%d %H:%M:%S.%f}".removesuffix(".000000") for word, at in limits if at is not None]
        return f"{' '.join(words)} UTC" if words else "of all times"

    @property
    def is_limited(self) -> bool:
        """Whether the period leaves any time out."""
        return self != ALWAYS

    @property
    def has_whole_hours(self) -> bool:
        """Whether each end of the period is a whole hour or not given, so that no hour is partly in it."""
        return all(
            at is None or (at - _BEGINNING) % timedelta(hours=1) == timedelta() for at in (self.since, self.until)
        )

    @property
    def begins_an_hour(self) -> bool:
        """Whether the period has a beginning and this is a whole hour."""
        return self.since is not None and Period(self.since).has_whole_hours

    def beside(self, by: timedelta) -> "list[Period]":
        """Return the periods of that length right before its beginning and right after its end, where it has them."""
        before = [] if self.since is None else [Period(self.since - by, self.since)]
        return before if self.until is None else [*before, Period(self.until, min(self.until, _LAST - by) + by)]

    def wider(self, by: timedelta) -> "Period":
        """Return the period, longer by this time at each end that it has."""
        since = None if self.since is None else self.since - by
        return Period(since, None if self.until is None else min(self.until, _LAST - by) + by)

    def as_json(self) -> dict[str, str | None]:
        """Return the ends of the period as verdict.json has them: ISO 8601 texts, or None."""
        limits = {"from": self.since, "until": self.until}
        return {name: None if at is None else at.isoformat() for name, at in limits.items()}

    def holds(self, time: Column) -> Column:
        """Return whether a time, a column in microseconds since 1970 UTC, is in the period."""
        held = F.lit(True)
        if self.since is not None:
            held &= time >= (self.since - _BEGINNING) // _MICROSECOND
        if self.until is not None:
            held &= time < (self.until - _BEGINNING) // _MICROSECOND
        return held

    def holds_hour(self, hour: str) -> bool:
        """Return whether some of an hour is in the period; the hour is UTC, as `2026-11-21T17`."""
        since = self.since is None or hour >= f"{self.since:%Y-%m-%dT%H}"
        return since and (self.until is None or hour <= f"{self.until - _MICROSECOND:%Y-%m-%dT%H}")


def no_record(journal: str, within: Period) -> NoRecordError:
    """Return the error for a journal that has no record in a period."""
    return NoRecordError(f"{journal}: no record{f' {within}' if within.is_limited else ''}")


ALWAYS = Period()
"""The period without ends: all of a journal."""


def add_journal_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options `--journal`, `--from`, `--until` and `--day` to a parser."""
    where = "the journal: the sidecars' journal_dir, a copy of it, or the table that land has made of it"
    parser.add_argument("--journal", required=required, metavar="DIR", help=where)
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options `--from`, `--until` and `--day`, of jobs that read a journal's folder, to a parser."""
    form = "such as 2026-11-21, 2026-11-21T17 or 2026-11-21T17:30:00+01:00; in UTC if it has no offset"
    parser.add_argument(
        "--from", dest="since", type=_utc, metavar="TIME", help=f"read only records of TIME or later, {form}"
    )
    parser.add_argument("--until", type=_utc, metavar="TIME", help="read only records before TIME, in the same form")
    parser.add_argument(
        "--day",
        type=day_of,
        metavar="DAY",
        help="read only records of that day in UTC: yesterday, today, or a date such as 2026-11-21",
    )


def period_of(options: argparse.Namespace) -> Period:
    """Return the period of `--from` and `--until`, or of `--day`.

    Raises PipelineError if its end is not after its beginning, or where both are given.
    """
    if options.day is not None:
        if options.since is not None or options.until is not None:
            raise PipelineError("--day cannot be used with --from or --until")
        return Period(options.day, options.day + timedelta(days=1))
    period = Period(options.since, options.until)
    if period.since is not None and period.until is not None and period.since >= period.until:
        raise PipelineError(f"--until: {period.until:%Y-%m-%d %H:%M:%S} is not after --from")
    return period


def day_of(text: str) -> datetime:
    """Return the beginning of a day in UTC: yesterday, today, or a date. Raises ArgumentTypeError for another text."""
    if text in ("yesterday", "today"):
        now = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return now - timedelta(days=text == "yesterday")
    day = _utc(text)
    if text != f"{day:%Y-%m-%d}":
        raise argparse.ArgumentTypeError(f"{text!r} is no day: yesterday, today, or a date such as 2026-11-21")
    return day


def _utc(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-21T17") from None
    if at <= _BEGINNING:
        raise argparse.ArgumentTypeError(f"{text!r} is not after 1970")
    return at
