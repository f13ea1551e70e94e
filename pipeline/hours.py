"""The folders of a time, where files lie in `dt=2026-11-21/hour=17`: a journal's records, and the table of `usage`."""

import re

from pyspark.sql import SparkSession

from pipeline.filesystem import found
from pipeline.period import Period

_DAY = re.compile(r"dt=(\d{4}-\d\d-\d\d)")
_HOUR = re.compile(r"hour=([01]?\d|2[0-3])")

_NO_DAY = "{[^d._]*,d,d[^t]*,dt,dt[^=]*}"
"""A Hadoop pattern for names that are no day's folder and that Spark does not hide."""


def folders(spark: SparkSession, root: str, period: Period) -> list[str]:
    """Return the paths and patterns below `root` that have all files of a period; empty where there are none.

    No other hour's folder is listed: of a day that is in the period as a whole the day's folder is returned, of any
    other day those of its hours. Files in no such folder may be of any time, and are returned too.
    """
    if not period.is_limited:
        return [root]
    # Found in a pattern rather than named one by one: there may be as many as there are files.
    told = [f"{root}/{_NO_DAY}"] if found(spark, f"{root}/{_NO_DAY}") else []
    for name in _names(spark, f"{root}/dt=*"):
        day = _DAY.fullmatch(name)
        hours = [day is None or period.holds_hour(f"{day[1]}T{hour:02}") for hour in range(24)]
        if all(hours):
            told.append(f"{root}/{name}")
        elif any(hours):
            told += (f"{root}/{name}/{one}" for one in _names(spark, f"{root}/{name}/[^._]*") if _is_of(one, hours))
    return told


def _names(spark: SparkSession, pattern: str) -> list[str]:
    return sorted({path.rpartition("/")[2] for path in found(spark, pattern)})


def _is_of(name: str, hours: list[bool]) -> bool:
    hour = _HOUR.fullmatch(name)
    return hour is None or hours[int(hour[1])]
