"""The order and the length of names in reports."""

from pipeline.page.formats import natural, shortened


def test_numbers_in_names_count_as_numbers() -> None:
    names = ["orders.10", "orders.2", "orders.1", "orders", "orders.02", "orders.2.b", "orders.2.a", "10", "9", ""]
    expected = ["", "9", "10", "orders", "orders.1", "orders.02", "orders.2", "orders.2.a", "orders.2.b", "orders.10"]
    assert sorted(names, key=natural) == expected


def test_a_long_name_keeps_its_ends() -> None:
    assert shortened("x" * 48) == "x" * 48
    assert shortened("a" * 100 + "b" * 100) == "a" * 24 + "…" + "b" * 23
