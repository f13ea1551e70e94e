"""The verdict on a proposed ring, for machines: docs/reference/pipeline.md has the fields."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.findings import Finding
from pipeline.page.about import doubt
from pipeline.page.formats import estimate, interval
from pipeline.stats.sampling import Estimate
from pipeline.verdict import of_records
from pipeline.whatif.findings import Findings, OverFair
from pipeline.whatif.published import Counts, Share


@dataclass(frozen=True)
class Limits:
    """The limits of what a proposed ring may do; None for no limit."""

    max_moved: float | None
    """Share of the messages."""
    max_over_fair: float | None
    """The busiest destination's messages per weight over the mean per weight."""
    max_per_hour: float | None = None
    """A destination's messages in the busiest hour for each unit of its weight."""

    def passed(self, found: Findings) -> list[str]:
        """Return the limits that the estimates are over."""
        return [name for name, limit, told in self._judged(found) if told.value > limit]

    def uncertain(self, found: Findings) -> list[str]:
        """Return the limits that lie within the interval of what they limit: what was not sampled may decide."""
        return [name for name, limit, told in self._judged(found) if (told.low > limit) != (told.high > limit)]

    def _judged(self, found: Findings) -> list[tuple[str, float, Estimate]]:
        given, told = asdict(self), limited(found)
        return [(name, given[name], estimate) for name, estimate in told.items() if given[name] is not None]


def limited(found: Findings) -> dict[str, Estimate]:
    """Return the figures that limits limit, by the names of the limits."""
    told = {"max_moved": found.moved.of_messages, "max_over_fair": found.max_over_fair.proposed}
    return told if found.per_hour is None else told | {"max_per_hour": found.per_hour}


def verdict(found: Findings, limits: Limits, *, sample: float, with_bytes: bool) -> dict[str, Any]:
    """Return the content of verdict.json, in which all figures of bytes are null if the demand has no bytes."""
    passed, messages, size = limits.passed(found), found.published.messages, found.published.bytes

    def if_bytes(value: Any) -> Any:
        return value if with_bytes else None

    def part(share: Share) -> dict[str, Any]:
        return {
            "messages": share.messages,
            "bytes": if_bytes(share.bytes),
            "of_messages": share.of_messages.value,
            "of_bytes": if_bytes(share.of_bytes.value),
        }

    def part_interval(share: Share) -> dict[str, Any]:
        return {"of_messages": _interval(share.of_messages), "of_bytes": if_bytes(_interval(share.of_bytes))}

    return {
        "verdict": "over" if passed else "within",
        "over": passed,
        "uncertain": limits.uncertain(found),
        "hot_keys_may_be_unseen": sample < 1,
        "limits": asdict(limits),
        "present": found.present.fingerprint,
        "proposed": found.proposed.fingerprint,
        "sample": sample,
        "intervals_hold": messages.sample.holds,
        "counted": {"messages": _counted(messages), "bytes": if_bytes(_counted(size))},
        "messages": messages.total,
        "bytes": if_bytes(size.total),
        "moved": part(found.moved),
        "native_moved": part(found.native),
        "max_over_fair": {name: told.value for name, told in _over_fair(found.max_over_fair)},
        "weights_help": found.weights_help,
        "advised_weights": [[d.kind, d.name, weight] for d, weight in found.advice.spec.weights.items()],
        "advised_moved": part(found.advised_moves),
        "intervals": {
            "messages": _interval(messages.sample.total()),
            "bytes": if_bytes(_interval(size.sample.total())),
            "moved": part_interval(found.moved),
            "max_over_fair": {name: _interval(told) for name, told in _over_fair(found.max_over_fair)},
            "advised_moved": part_interval(found.advised_moves),
        },
    }


def judged(found: Findings, told: Mapping[str, Any], aside: Aside = NOTHING_ASIDE) -> list[Finding]:
    """Return what asks for a look: `told` is the verdict, and `aside` counts what landing could not read."""
    figures = limited(found)
    findings = of_records(aside=aside)
    for kind, verb, which in (("over_limit", "is over", "over"), ("undecided_limit", "may be over", "uncertain")):
        for name in told[which]:
            limit, value = told["limits"][name], figures[name]
            said = f"The figure of {name}, {interval(*value, estimate)}, {verb} its limit of {limit:g}."
            numbers = {"limit": limit, "value": value.value, "low": value.low, "high": value.high}
            findings.append(Finding(kind, said, {"limit": name}, numbers))
    if found.weights_help:
        figure = {name: told["max_over_fair"][name] for name in ("proposed", "advised")}
        findings.append(Finding("better_weights", "Other weights would even the load better.", figures=figure))
    over_fair = (found.max_over_fair.present, found.max_over_fair.proposed)
    if said := doubt(found.published.messages.sample, [*over_fair, found.moved.of_messages]):
        findings.append(Finding("vague", said))
    return findings


def _over_fair(told: OverFair) -> list[tuple[str, Estimate]]:
    return [("present", told.present), ("proposed", told.proposed), ("advised", told.advised), ("least", told.least)]


def _counted(counts: Counts) -> int:
    return int(counts.counted.sum())


def _interval(told: Estimate) -> list[float | None]:
    """Return the ends of an interval, as JSON has them: null for one without end."""
    return [bound if math.isfinite(bound) else None for bound in (told.low, told.high)]
