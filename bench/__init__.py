"""The benchmarks: `python -m bench` runs them, their results are in bench/results/, the plots in docs/images/."""


class BenchError(RuntimeError):
    """A measurement that failed, such as an answer other than 200; there is no figure then."""
