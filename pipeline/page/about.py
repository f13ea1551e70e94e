"""The part of every report about its data: names and values at its head, and the doubt that a sample leaves."""

from collections.abc import Iterable, Mapping, Sequence

from pipeline.data.landed import NOTHING_ASIDE, Aside
from pipeline.data.period import Period
from pipeline.page.formats import count, moment
from pipeline.stats.sampling import Estimate, Sample

About = Mapping[str, str | Sequence[str]]
"""The names and values at the head of a report; a value is a text, or a list of them."""


def of_journal(
    journal: str,
    within: Period,
    found: tuple[int, int] | None,
    parameters: Mapping[str, object],
    aside: Aside = NOTHING_ASIDE,
) -> About:
    """Return the names and values for the head of a report on a journal.

    `journal` says where it is, `within` which time was asked for, `found` the times of the first and the last record
    that were read, in microseconds since 1970. `parameters` are the options that shape the result, by their names on
    the command line; those that are None, False or empty were not given. `aside` counts what landing could not read.
    """
    told: dict[str, str | Sequence[str]] = {"Journal": journal, "Period asked for": "all that there is"}
    if within.is_limited:
        told["Period asked for"] = str(within)
    if found is not None:
        first, last = found
        told["Period found"] = f"{moment(first)} to {moment(last)} UTC"
    if aside:
        told["Unreadable"] = f"{aside}, which is in no figure"
    return {**told, **of_parameters(parameters)}


def of_table(table: str, parameters: Mapping[str, object]) -> About:
    """Return the names and values for the head of a report on a table, a file's path, which has no times."""
    return {"Table": table, **of_parameters(parameters)}


def of_parameters(parameters: Mapping[str, object]) -> About:
    """Return the line of a report's head that names the parameters; none where none were given."""
    given = [f"{name} {_told(value)}".rstrip() for name, value in parameters.items() if _is_given(value)]
    return {"Parameters": given} if given else {}


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != []


def _told(value: object) -> str:
    match value:
        case True:
            return ""
        case int():
            return count(value)
        case list():
            return " ".join(map(str, value))
        case _:
            return str(value)


def doubt(sample: Sample, figures: Iterable[Estimate] = ()) -> str:
    """Return in words what a sample cannot tell of all messages and of these figures; empty if it tells enough.

    A page with such a sentence is not good.
    """
    if not sample.unseen:
        return ""
    told = []
    if not sample.holds:
        told.append(
            "The keys in the sample are too few or too unequal to tell how large the others are: the true figures may"
            " lie outside the ranges, more often than in 5 of 100 samples."
        )
    if any(figure.is_vague for figure in (sample.total(), *figures)):
        told.append("The sample is too small for a good answer: a range spans more than a factor of three.")
    return " ".join(told)
