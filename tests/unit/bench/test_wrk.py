"""The output of wrk's script."""

import pytest

from bench import BenchError
from bench.wrk import result


def line(answers: int = 300, refused: int = 0, broken: int = 0) -> str:
    said = f'{{"answers": {answers}, "seconds": 2.0, "refused": {refused}, "broken": {broken}}}'
    return f"Running 2s test\n  Requests/sec: 150.0\n{said}\n"


def test_the_rate_is_that_of_the_time_it_took() -> None:
    assert result(line()) == (150.0, 300)


@pytest.mark.parametrize("output", ["", "Running\n", line(refused=1), line(broken=1), line(answers=0)])
def test_there_is_no_rate_where_anything_went_wrong(output: str) -> None:
    with pytest.raises(BenchError):
        result(output)
