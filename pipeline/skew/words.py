"""What `skew` has found, in sentences."""

from pipeline.gaps import Missing
from pipeline.skew.findings import UNEVEN, Findings, HotKey

EVEN = 1.1
"""Max over mean up to which a load needs no explanation."""


def of_ring(found: Findings) -> str:
    """Whether distinct keys are spread as the weights say."""
    what = "slots that have messages" if found.by_slot else "distinct keys"
    if len(found.loads) == 1:
        return "The ring has one destination: there is nothing to spread."
    if (tested := found.chi_squared) is None:
        return f"{found.keys:,} {what} are too few to judge the ring by."
    figures = f"chi-squared {tested.statistic:.1f} of {tested.freedom} degrees of freedom, p = {tested.p:.3g}"
    if tested.p < UNEVEN:
        return f"The ring is uneven: its {what} are not spread as the weights say ({figures})."
    return f"The ring is even: its {what} are spread as the weights say ({figures})."


def of_keys(found: Findings) -> str:
    """How uneven the keys are."""
    what = "slot" if found.by_slot else "key"
    about = "about " if found.approximate else ""
    return (
        f"The hottest {what} makes {about}{found.top(1):.1%} of the messages, the hottest ten "
        f"{about}{found.top(10):.1%}; Gini coefficient {found.gini:.2f}."
    )


def of_load(found: Findings) -> str:
    """What comes of both."""
    most = max(found.loads, key=lambda load: load.messages / load.weight)
    told = f"{most.destination} has {found.max_over_mean:.2f} times the mean load for its weight"
    if found.max_over_mean <= EVEN:
        return f"The load is even: {told}, the most of all."
    if found.chi_squared is not None and found.chi_squared.p < UNEVEN and found.keys_over_mean(most) > EVEN:
        return f"The load is uneven: {told}; the ring is at fault."
    return f"The load is uneven: {told}; that is the keys' doing, not the ring's."


def of_weights(found: Findings) -> str:
    """Which keys no weight can fix."""
    hot = found.unfixable
    if not hot:
        what = "slot" if found.by_slot else "key"
        among = f" of the {len(found.hot)} hottest" if found.approximate else ""
        return f"No {what}{among} exceeds its destination's fair share by itself."
    named = ", ".join(_outweighing(found, key) for key in hot[:5])
    others = f" and {len(hot) - 5} more" if len(hot) > 5 else ""
    return f"No weight can fix {named}{others}."


def of_missing(missing: Missing) -> str:
    """Whether the figures are of all that was journalled."""
    told = "No record is missing in between."
    if missing.records:
        told = f"{missing.records:,} records are missing from the journal: all figures are of those that are there."
    return f"{told} {missing}".strip()


def caveats(found: Findings) -> list[str]:
    """What figures to take with care."""
    told = []
    if found.by_slot:
        told.append(
            "The journal has no keys (journal_key is none, or messages lack the hashed value): a slot stands for a "
            "key. Some keys share one, and keys cannot be named."
        )
    elif unnamed := found.keys - sum(load.named for load in found.loads):
        told.append(f"{unnamed:,} slots stand for keys that are not in the journal.")
    if found.scope.least < found.scope.largest:
        told.append(
            f"Samples differ, {found.scope.least:g} to {found.scope.largest:g}: "
            "only keys that are in the smallest are looked at."
        )
    if found.scope.least < 1:
        told.append(
            f"The journal is a sample: a share of {found.scope.least:g} of the keys is in it, whole. Keys' shares are "
            "of all messages, and a hot key may be outside; in the loads, one that is inside weighs more than in all."
        )
    if found.approximate:
        told.append("Hot keys and their messages are estimates (approx_top_k).")
    if found.keys_share < 1:
        told.append(f"Distinct keys are those of a share of {found.keys_share:.2g} of the slots.")
    return told


def _outweighing(found: Findings, key: HotKey) -> str:
    return (
        f"{'' if key.key is None else 'key '}{key}: it alone is {found.share(key):.1%} of the messages, "
        f"the fair share of {key.owner} is {found.fair_share(key.owner):.1%}"
    )
