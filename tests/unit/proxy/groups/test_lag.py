"""The lag of a shard and of several: what is not known is never told as nothing."""

import pytest

from proxy.groups.lag import Lag, lag_of, total


@pytest.mark.parametrize(
    ("figures", "seconds"),
    [
        ((90, 1, 2.0, 5.0), 30.0),
        ((90, 1, 5.0, 5.0), None),
        ((90, 1, 5.0, 2.0), None),
        ((90, 1, None, None), None),
        ((0, 1, 5.0, 2.0), 0.0),
        ((0, 1, None, None), 0.0),
        ((None, None, 2.0, 5.0), None),
    ],
)
def test_the_time_to_empty(figures: tuple[int | None, int | None, float | None, float | None], seconds: float) -> None:
    assert lag_of(*figures) == Lag(*figures, seconds)


def test_shards_together_are_empty_when_the_last_one_is() -> None:
    assert total([lag_of(90, 1, 2.0, 5.0), lag_of(0, 3, 4.0, 0.0)]) == Lag(90, 4, 6.0, 5.0, 30.0)
    assert total([lag_of(90, 1, 2.0, 5.0), lag_of(1, 0, 1.0, 1.0)]) == Lag(91, 1, 3.0, 6.0, None)
    assert total([]) == Lag(0, 0, 0, 0, 0)


def test_a_figure_that_one_shard_lacks_is_not_known_of_all() -> None:
    assert total([lag_of(90, 1, 2.0, 5.0), Lag()]) == Lag()
    assert total([lag_of(90, 1, None, None), lag_of(2, 2, 1.0, 1.0)]) == Lag(92, 3)


def test_the_lag_as_it_is_shown() -> None:
    assert lag_of(1, 2, 1.25, 4.0).shown() == {
        "ready": 1,
        "unacked": 2,
        "messages": 3,
        "publish_rate": 1.2,
        "consume_rate": 4.0,
        "seconds_to_empty": 0.4,
    }
    assert set(Lag().shown().values()) == {None}
