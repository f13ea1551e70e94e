"""What is measured of rings, on small ones."""

from bench.long import growth


def test_every_figure_of_a_case_is_measured_in_every_round() -> None:
    case = growth.measured(3, 10)
    assert (case.pop("queues"), case.pop("heaviest")) == (3, 10)
    assert set(case) == {"asked", "build", "stall", "added", "removed", "reweighted"}
    assert all(len(figures) == growth.ROUNDS and min(figures) > 0 for figures in case.values())
