"""The proposed ring: a file's, the present one with edits, or that of as many shards as are enough."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline.data.rings import RingSpec, read_ring
from pipeline.page.formats import key_text
from pipeline.whatif.findings import Findings
from pipeline.whatif.peak import Peak
from pipeline.whatif.shards import Enough, enough
from pipeline.whatif.topology import checked, edited
from pipeline.whatif.topology_file import after, agree, changed
from proxy.shards.shard import Sharded

_MOST_HOT = 20
"""The most slots beyond the limit whose keys are told."""


@dataclass(frozen=True)
class Proposal:
    """A proposed ring."""

    spec: RingSpec
    exchange: Sharded | None
    """The exchange as a topology file wants it; None if no file was given."""
    enough: Enough | None
    """How many shards are enough; None if that was not asked for."""


def propose(options: argparse.Namespace, exchange: Sharded | None, present: RingSpec, peak: Peak | None) -> Proposal:
    """Return what the options propose. `exchange` is that of the topology file, and `peak` the busiest hour.

    Raises PipelineError for what does not fit the present ring.
    """
    found: Enough | None = None
    if exchange is not None:
        agree(exchange, present)
    if options.proposed:
        spec = checked(present, read_ring(options.proposed, present))
    elif options.add or options.remove or options.weight:
        spec = checked(present, edited(present, options.add, options.remove, options.weight))
    else:
        assert exchange is not None, "which _check sees to"
        assert peak is not None, "which _check sees to"
        growth = options.growth if options.growth is not None else peak.growth
        found = enough(present, exchange, peak.published, options.max_per_hour, growth)
        spec = found.spec
    if exchange is None:
        return Proposal(spec, None, found)
    exchange = changed(exchange, spec)
    return Proposal(after(exchange, present, spec), exchange, found)


def hot_keys(peak: Peak, of: Enough) -> list[Row]:
    """Return the heaviest slots that no shard can hold: `slot`, the slot's `messages` and its heaviest `key`."""
    its = peak.keys.where(F.col("slot").isin(list(of.hot)))
    each = its.groupBy("slot").agg(F.sum("messages").alias("messages"), F.max_by("key", "messages").alias("key"))
    return each.orderBy(F.desc("messages"), "slot").limit(_MOST_HOT).collect()


def as_json(peak: Peak | None, of: Enough | None, hot: list[Row], found: Findings) -> Mapping[str, Any]:
    """Return the fields `peak` and `shards` of verdict.json, null for what was not asked for."""
    told: dict[str, Any] = {"peak": None, "shards": None}
    if peak is not None and found.per_hour is not None:
        value, *ends = found.per_hour
        hour = f"{datetime.fromtimestamp(peak.begin // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        told["peak"] = {"hour": hour, "messages": peak.published.messages.total, "per_weight": value, "interval": ends}
    if of is not None:
        keys = [
            {"key": key_text(row.key), "slot": row.slot, "messages": row.messages, "parts": of.hot[row.slot]}
            for row in hot
        ]
        told["shards"] = {"now": of.now, "in_90_days": of.later, "growth": of.growth, "hot": keys}
    return told
