"""Names in the order in which people read them."""

from proxy.topology.names import natural


def test_numbers_count_as_numbers() -> None:
    names = ["orders.10", "orders.2", "orders", "b", "orders.2.10", "orders.2.9", "9", "orders.²", "10"]
    assert sorted(names, key=natural) == [
        *("9", "10", "b", "orders", "orders.2", "orders.2.9", "orders.2.10", "orders.10", "orders.²"),
    ]


def test_names_that_differ_only_in_zeros_have_an_order() -> None:
    assert sorted(["a02", "a2", "a002"], key=natural) == sorted(["a2", "a002", "a02"], key=natural)
