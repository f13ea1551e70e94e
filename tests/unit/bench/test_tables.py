"""Tables show the figures they are given, and give them back."""

from bench.rounds import Spread
from bench.tables import at_least, at_most, goal_table, median, number, shown, table, tables


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


def test_what_is_not_known_has_no_median() -> None:
    assert (median([3.0, None, 1.0, 2.0]), median([None])) == ("2.0", "")


def test_an_empty_cell_is_as_narrow_as_it_can_be() -> None:
    assert table(["a", "b"], [["", "1"], ["x", ""]]).splitlines()[2:] == ["| | 1 |", "| x | |"]


def test_tables_are_read_as_they_were_written() -> None:
    one = table(["a", "", "least to most"], [["x", *shown(Spread(1500, 1000, 2000.5), ",.1f")], ["y", "", ""]])
    other = table(["b"], [["9.7%"]])
    first, second = tables(f"# title\n\ntext | with a bar\n\n{one}\n\n{other}\n")
    assert (first.heads, second.heads) == (["a", "", "least to most"], ["b"])
    assert first.rows == [["x", "1,500.0", "1,000.0 to 2,000.5"], ["y", "", ""]]
    assert first.spread(["x"], "") == Spread(1500, 1000, 2000.5)
    assert (first.column(0), second.number(["9.7%"], "b")) == (["x", "y"], 9.7)


def test_a_cell_has_the_number_that_it_begins_with() -> None:
    assert [number(cell) for cell in ("1,234.5 (1 to 2)", "+0.111", "-3", "54%")] == [1234.5, 0.111, -3, 54]
