"""How fast it is: `python -m bench`, told of in docs/performance.md."""


class BenchError(RuntimeError):
    """A measurement that failed, such as an answer other than 200; there is no figure then."""
