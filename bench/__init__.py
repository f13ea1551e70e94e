"""The benchmarks: `python -m bench` runs them, and docs/performance.md shows their results."""


class BenchError(RuntimeError):
    """A measurement that failed, such as an answer other than 200; there is no figure then."""
