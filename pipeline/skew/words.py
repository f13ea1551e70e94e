"""The findings of `skew` in sentences."""

from collections.abc import Sequence

from pipeline.data.gaps import Missing
from pipeline.page.formats import count, estimate, interval, p_value, percent, shortened
from pipeline.skew.findings import UNEVEN, Findings, HotKey

EVEN = 1.1
"""How much more than its fair share the busiest destination may have in a load that needs no explanation."""

_NAMED = 5
"""Keys that a sentence names."""


def of_all(every: Sequence[Findings]) -> str:
    """Return the answer at the top of the page: the hottest key, and whether it matters.

    The answer is on the exchange that most asks for it; `every` has some.
    """
    first = max((one for one in every if one.scope.across), key=_gravity)
    told = of_weights(first) if first.unfixable or first.maybe_unfixable else of_load(first)
    if not first.candidates:
        return f"Exchange {first.name}: {told[0].lower()}{told[1:]}"
    hottest, about = first.candidates[0], "about " if first.approximate else ""
    where = " in the sample" if first.scope.least < 1 else ""
    if first.unfixable == [hottest] and not first.maybe_unfixable:
        told = f"No weight can fix that: the fair share of {hottest.owner} is {percent(hottest.fair)}."
    return (
        f"Exchange {first.name}: {_named(hottest)} is the hottest{where}, with {about}{interval(*first.top(1))} of the "
        f"messages. {told} {first.doubt}"
    ).rstrip()


def is_uneven(found: Findings) -> bool:
    """Return whether the load is uneven; for a sample, by the estimate."""
    return found.max_over_fair.value > EVEN and not _is_too_few(found)


def of_ring(found: Findings) -> str:
    """Return a sentence that says whether distinct keys are spread as the weights say."""
    what = "slots that have messages" if found.by_slot else "distinct keys"
    if found.scope.rings > 1:
        return f"The bindings changed: the records name {found.scope.rings} rings. Each ring is judged below."
    if len(found.loads) == 1:
        return "The exchange has one queue, so there is nothing to spread."
    if (tested := found.chi_squared) is None:
        return f"{count(found.keys)} {what} are too few to judge the ring by."
    figures = f"chi-squared {estimate(tested.statistic)} of {tested.freedom} degrees of freedom, {p_value(tested.p)}"
    if tested.p < UNEVEN:
        return f"The ring is uneven: its {what} are not spread as the weights say ({figures})."
    return f"The ring is even: its {what} are spread as the weights say ({figures})."


def of_keys(found: Findings) -> str:
    """Return how uneven the keys are."""
    what = "slot" if found.by_slot else "key"
    about = "about " if found.approximate else ""
    where = " in the sample" if found.scope.least < 1 else ""
    return (
        f"The hottest {what}{where} has {about}{interval(*found.top(1))} of the messages, and the hottest ten have "
        f"{about}{interval(*found.top(10))}. The Gini coefficient of messages by {what} is {found.gini:.2f}: 0 if all "
        f"{what}s have as many messages, near 1 if one has them all."
    )


def of_load(found: Findings) -> str:
    """Return what load comes of ring and keys."""
    most, times = found.busiest, found.max_over_fair
    if not found.messages and found.scope.least < 1:
        return "No record is in the sample: whether the load is even cannot be told."
    figure = f"{most.destination} has {interval(*times, estimate)} times its fair share"
    if _is_too_few(found):
        return f"{_records(found)} to say whether the load is even: {figure}, the most of all."
    if times.value <= EVEN and times.high <= EVEN:
        return f"The load is even: {figure}, the most of all."
    if times.low <= EVEN:
        return f"The sample cannot tell whether the load is even: {figure}, the most of all."
    if found.scope.rings > 1:
        return f"The load is uneven: {figure}. The cause in each uneven ring is below."
    if found.chi_squared is not None and found.chi_squared.p < UNEVEN and found.keys_over_mean(most) > EVEN:
        return f"The load is uneven: {figure}. The ring causes that."
    return f"The load is uneven: {figure}. Its keys cause that, not the ring."


def of_uneven_rings(found: Findings, rings: Sequence[Findings]) -> list[str]:
    """Return what is at fault in each uneven ring where there are several, the one that most asks for it first."""
    if found.scope.rings == 1:
        return []
    uneven = sorted((ring for ring in rings if is_uneven(ring)), key=_gravity, reverse=True)
    told = [f"Ring {ring.scope.ring}: {of_load(ring)}" for ring in uneven[:_NAMED]]
    if len(uneven) > _NAMED:
        told.append(f"{count(len(uneven) - _NAMED)} more rings are uneven.")
    if not uneven and is_uneven(found):
        told.append("No ring is uneven by itself, as far as its records tell.")
    return told


def of_weights(found: Findings) -> str:
    """Return which keys no weight can fix, and of which the sample leaves that open."""
    what = "slot" if found.by_slot else "key"
    among = f" of the {count(len(found.candidates))} hottest" if found.approximate else ""
    told = [
        f"{verb} {'; '.join(outweighing(found, key) for key in some[:_NAMED])}"
        f"{f'; and {count(len(some) - _NAMED)} more' if len(some) > _NAMED else ''}."
        for verb, some in (
            ("No weight can fix", found.unfixable),
            ("Maybe no weight can fix", found.maybe_unfixable),
        )
        if some
    ]
    if told:
        return " ".join(told)
    if found.above_by_chance:
        key = found.above_by_chance[0]
        if found.is_little(key.fair):
            return f"{_records(found)} to say which {what} exceeds a fair share by itself."
        even = f"not even {outweighing(found, key)}"
        return f"No {what} exceeds its queue's fair share by more than chance explains, {even}."
    where = " in the sample" if found.scope.least < 1 else ""
    return f"No {what}{among}{where} exceeds its queue's fair share by itself."


def outweighing(found: Findings, key: HotKey) -> str:
    """Return the share of a key next to the fair share of its destination, as the beginning of a sentence."""
    return (
        f"{_named(key)}: it alone has {interval(*found.share(key))} of the messages, and the fair share of {key.owner} "
        f"is {percent(key.fair)}"
    )


def remedies(found: Findings) -> list[str]:
    """Return the sentences that say what helps against the load; empty if it needs no help."""
    if found.unfixable or found.maybe_unfixable:
        return [
            "A remedy: split such a key in the publisher, say into KEY/0 to KEY/7, or publish it to an exchange of"
            " its own. All messages of one key go to one queue. A new queue or other weights only take other keys away"
            " from that queue, and never a part of this key."
        ]
    return ["A remedy: other weights. The job whatif finds some."] if is_uneven(found) else []


def of_missing(missing: Missing) -> str:
    """Return whether the figures are of all that was journalled."""
    told = "No record is missing between the first and the last of each sidecar."
    if missing.records:
        told = f"{missing.records:,} records are missing from the journal. All figures are of those that are there."
    return f"{told} {missing}".strip()


def caveats(found: Findings) -> list[str]:
    """Return the sentences that say which figures are to be taken with care, and why; empty if there are none."""
    told = []
    if found.by_slot:
        told.append(
            "The journal has no keys: journal_key is none, or messages lack the hashed value. A slot stands for a key. "
            "Several keys can share a slot, and none can be named."
        )
    elif (named := sum(load.named for load in found.loads)) < (counted := sum(load.keys for load in found.loads)):
        told.append(f"The journal lacks some keys: {count(counted - named)} slots stand for those.")
    if found.scope.least < found.scope.largest:
        told.append(
            f"The sidecars' samples differ, from {percent(found.scope.least)} to {percent(found.scope.largest)} of the "
            "slots. Only keys in the smallest sample are judged."
        )
    if found.scope.least < 1:
        told.append(
            f"The journal is a sample of {percent(found.scope.least)} of the slots: all messages of a key, or none. "
            "Shares and loads are estimates of everything published. The range in parentheses has the true figure in "
            "95% of samples. A hot key outside the sample cannot be seen."
        )
        if found.doubt:
            told.append(found.doubt)
    if found.approximate:
        told.append(
            "Hot keys and their messages are estimates (approx_top_k). They depend on how records are laid out: the "
            "same records in other files, or in another order, can give other estimates."
        )
    if found.keys_share < 1:
        told.append(f"Distinct keys were counted in {percent(found.keys_share)} of the slots only.")
    return told


def _gravity(found: Findings) -> tuple[bool, bool, bool, float, int]:
    """Return what an exchange is ranked by: of those that ask for the same, more messages above fair come first."""
    above = found.busiest.fair * (found.max_over_fair.low - 1) * found.sample.total().value
    return bool(found.unfixable), bool(found.maybe_unfixable), is_uneven(found), above, found.messages


def _is_too_few(found: Findings) -> bool:
    return len(found.loads) > 1 and found.is_little(found.busiest.fair)


def _records(found: Findings) -> str:
    return f"{count(found.messages)} {'record is' if found.messages == 1 else 'records are'} too few"


def _named(key: HotKey) -> str:
    return f"{'' if key.key is None else 'key '}{shortened(str(key))}"
