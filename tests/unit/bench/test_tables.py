"""Tables and charts show the figures they are given."""

from bench.rounds import Spread
from bench.tables import at_least, at_most, bars, chart, goal_table, median, table


def test_the_median_decides_about_a_goal() -> None:
    spread = Spread(0.92, 0.5, 1.5)
    assert [at_least("", least, spread).met for least in (0.92, 0.93)] == [True, False]
    assert [at_most("", most, spread).met for most in (0.92, 0.91)] == [True, False]


def test_a_missed_goal_shows_in_bold() -> None:
    rows = goal_table([at_least("speed", 2, Spread(1, 1, 3)), at_most("cost", 2, Spread(1, 1, 3))]).splitlines()[2:]
    assert rows == [
        "| speed | at least 2 | 1.00 | 1.00 to 3.00 | **no** |",
        "| cost | at most 2 | 1.00 | 1.00 to 3.00 | yes |",
    ]


def test_a_bar_is_dark_to_the_least_and_light_to_the_most() -> None:
    chart = bars("messages/s", {"one": Spread(1500, 1000, 2000), "other": Spread(500, 500, 500)}, ",.0f")
    assert chart.splitlines() == [
        "```text",
        "messages/s",
        f"one    {'█' * 20}{'░' * 20} 1,500",
        f"other  {'█' * 10} 500",
        "```",
    ]


def test_a_chart_leaves_out_whose_figure_is_not_known() -> None:
    rounds: dict[str, list[tuple[float, float | None]]] = {
        "one": [(1.0, None), (3.0, None), (4.0, None)],
        "other": [(2.0, 7.0)],
        "third": [(1.0, None), (1.0, 3.5)],
    }
    assert chart("rate", rounds, lambda one: one[0], ".1f") == bars(
        "rate", {"one": Spread(3, 1, 4), "other": Spread(2, 2, 2), "third": Spread(1, 1, 1)}, ".1f"
    )
    assert chart("cost", rounds, lambda one: one[1], ".1f") == bars(
        "cost", {"other": Spread(7, 7, 7), "third": Spread(3.5, 3.5, 3.5)}, ".1f"
    )


def test_what_is_not_known_has_no_median() -> None:
    assert (median([3.0, None, 1.0, 2.0]), median([None])) == ("2.0", "")


def test_an_empty_cell_is_as_narrow_as_it_can_be() -> None:
    assert table(["a", "b"], [["", "1"], ["x", ""]]).splitlines()[2:] == ["| | 1 |", "| x | |"]
