"""The sentence in which every report says that a sample tells too little for its intervals, or for a good answer."""

from collections.abc import Iterable

from pipeline.sampling import Estimate, Sample


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
