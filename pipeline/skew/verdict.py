"""The findings of `skew` for machines."""

from collections.abc import Sequence

from pipeline.data.gaps import Missing
from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.findings import Finding, listed
from pipeline.skew import words
from pipeline.skew.findings import Findings, HotKey
from pipeline.verdict import of_records


def judged(every: Sequence[Findings], missing: Missing, aside: Aside = NOTHING_ASIDE) -> list[Finding]:
    """Return what asks for a look; an exchange of too few records to judge has nothing.

    `every` has the findings of all exchanges and rings, of which those of exchanges count.
    """
    told = of_records(missing, aside)
    for found in every:
        if found.scope.across:
            told += _of_exchange(found)
    return told


def _of_exchange(found: Findings) -> list[Finding]:
    subject = {"vhost": found.scope.vhost, "exchange": found.scope.exchange}
    told = []
    for kind, keys in (("hot_key", found.unfixable), ("maybe_hot_key", found.maybe_unfixable)):
        told += listed([_of_key(kind, found, key, subject) for key in keys])
    if words.is_uneven(found):
        destination = {"kind": found.busiest.destination.kind, "destination": found.busiest.destination.name}
        figures = dict(
            zip(("over_fair", "over_fair_low", "over_fair_high"), map(float, found.max_over_fair), strict=True)
        )
        told.append(Finding("uneven_load", words.of_load(found), subject | destination, figures))
    if found.doubt:
        told.append(Finding("vague", found.doubt, subject))
    return told


def _of_key(kind: str, found: Findings, key: HotKey, subject: dict[str, str]) -> Finding:
    share = dict(zip(("share", "share_low", "share_high"), map(float, found.share(key)), strict=True))
    figures = {"messages": key.messages, **share, "fair_share": key.fair}
    named = {"key": str(key), "kind": key.owner.kind, "destination": key.owner.name}
    return Finding(kind, f"{words.outweighing(found, key)}.", subject | named, figures)
