"""The findings of jobs: each is of a kind, from which the grade of the report and the exit status follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_LISTED = 20
"""The most findings of one kind and exchange that a job names one by one."""


class Kind(NamedTuple):
    """A kind of findings: the things that it counts, and whether one of them makes a report bad."""

    counts: str
    is_bad: bool = False


KINDS = {
    "hot_key": Kind("keys that exceed their queue's fair share by themselves", is_bad=True),
    "maybe_hot_key": Kind("keys that may do so, as far as a sample tells"),
    "uneven_load": Kind("exchanges with a queue that has more than 1.1 times its fair share"),
    "nacked": Kind("publishes with this outcome"),
    "unroutable": Kind("publishes with this outcome"),
    "invalid": Kind("publishes with this outcome"),
    "unknown": Kind("publishes with this outcome"),
    "over_limit": Kind("limits that a change exceeds", is_bad=True),
    "undecided_limit": Kind("limits that lie within the interval of their figure"),
    "better_weights": Kind("changes for which other weights would be better"),
    "lost": Kind("confirmed messages that were not seen", is_bad=True),
    "wrong_queue": Kind("messages seen in a wrong queue", is_bad=True),
    "duplicated": Kind("messages with this flaw"),
    "out_of_order": Kind("messages with this flaw"),
    "unexpected": Kind("messages with this flaw"),
    "undetermined": Kind("messages with this flaw"),
    "unconfirmed": Kind("messages with this flaw"),
    "may_hide_loss": Kind("messages, records or other things that may hide a lost message"),
    "missing": Kind("records that the journal lacks"),
    "unreadable": Kind("lines and files that were set aside"),
    "vague": Kind("samples that tell too little"),
    "grown": Kind("keys, tenants and queues that have grown"),
    "late": Kind("older days that have got records since they were run"),
}
"""The kinds of findings of all jobs, by name; docs/reference/pipeline.md lists them."""

FAILING = frozenset(name for name, kind in KINDS.items() if kind.is_bad) | {"unreadable"}
"""The kinds for which a job ends with FINDINGS unless `--fail-on` names others."""


@dataclass(frozen=True)
class Finding:
    """One thing that a job has found."""

    kind: str
    sentence: str
    subject: Mapping[str, str] = field(default_factory=dict)
    """The names of the thing that it is about, such as `exchange` and `key`; empty for all that was read."""
    figures: Mapping[str, float | str | None] = field(default_factory=dict)
    count: int = 1
    """How many of the things that its kind counts it is about."""


def listed(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings of one kind, those beyond MOST_LISTED as one that counts them."""
    rest = findings[MOST_LISTED:]
    if not rest:
        return list(findings)
    more = sum(finding.count for finding in rest)
    shared = set(rest[0].subject.items()).intersection(*(finding.subject.items() for finding in rest))
    return [*findings[:MOST_LISTED], Finding(rest[0].kind, f"And {more:,} more.", dict(sorted(shared)), count=more)]
