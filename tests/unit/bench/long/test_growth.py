"""Measurements of rings, on small ones."""

from bench.long import growth


def test_every_figure_of_a_case_is_measured_in_every_round() -> None:
    case = growth.measured(3, 10)
    assert (case.pop("queues"), case.pop("heaviest")) == (3, 10)
    assert set(case) == {"asked", "build", "stall", "added", "removed", "reweighted"}
    assert all(len(figures) == growth.ROUNDS and min(figures) > 0 for figures in case.values())


def test_one_stall_that_is_too_long_misses_the_goal() -> None:
    figures = {"build": [200.0], "added": [10.0], "removed": [10.0], "reweighted": [10.0]}
    for stalls, met in (([1.0, 10.0, 2.0], True), ([1.0, 10.1, 2.0], False)):
        cases = [(queues, heaviest) for queues in (100, 1000) for heaviest in (1, 10_000)]
        found = [{"queues": queues, "heaviest": most, "stall": stalls, **figures} for queues, most in cases]
        by_title = {goal.title: goal for goal in growth._goals(found)}
        stall = by_title.pop("1,000 queues of equal weight: longest stall of the event loop in all builds, ms")
        assert (stall.reached, stall.spread, stall.met) == (f"{max(stalls):.1f}", f"1.0 to {max(stalls):.1f}", met)
        assert all(goal.met for goal in by_title.values())
