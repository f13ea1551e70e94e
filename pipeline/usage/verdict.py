"""The findings of `usage` for machines."""

from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.data.schema import OUTCOMES
from pipeline.findings import Finding
from pipeline.page.about import doubt
from pipeline.usage import scaling
from pipeline.usage.findings import Findings
from pipeline.verdict import of_records

_GOOD = ("confirmed", "passed", "sent")
"""The outcomes that ask for no look."""


def judged(found: Findings, aside: Aside = NOTHING_ASIDE) -> list[Finding]:
    """Return what asks for a look. `aside` counts what landing could not read."""
    whole, first = found.whole, found.destinations[0]
    told = of_records(found.missing, aside)
    for outcome in OUTCOMES:
        if outcome not in _GOOD and (count := whole[outcome]):
            share = count / whole.messages
            said = f"The outcome of {count:,} of {whole.messages:,} publishes is {outcome}."
            told.append(Finding(outcome, said, figures={"messages": count, "share": share}, count=count))
    sample = scaling.sample_of(whole)
    if sample and (said := doubt(sample, [scaling.part(first, whole), scaling.share(first, whole)])):
        told.append(Finding("vague", said))
    return told
