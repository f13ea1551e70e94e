"""The ledger of the playground."""

from testbed.playground.ledger import Ledger


def with_orders(**counts: int) -> Ledger:
    ledger = Ledger()
    for key, count in counts.items():
        for number in range(1, count + 1):
            assert ledger.publish(key, at=float(number)) == number
            ledger.confirm(key, number)
    return ledger


def test_orders_that_are_done_in_order_have_no_faults() -> None:
    ledger = with_orders(a=2, b=1)
    for key, number in (("a", 1), ("b", 1), ("a", 2)):
        ledger.tried(key, number, succeeded=True, at=5.0)
    assert (ledger.faults, ledger.left(), ledger.tries, ledger.failed, ledger.again) == ([], 0, 3, 0, 0)


def test_an_order_that_is_done_before_an_earlier_one_is_a_fault() -> None:
    ledger = with_orders(a=3)
    ledger.tried("a", 1, succeeded=True, at=5.0)
    ledger.tried("a", 3, succeeded=True, at=5.0)
    assert ledger.faults == ["a: order 3 was done before order 2"]


def test_a_failed_try_holds_its_key_and_is_no_fault() -> None:
    ledger = with_orders(a=2, b=1)
    ledger.tried("a", 1, succeeded=False, at=5.0)
    ledger.tried("b", 1, succeeded=True, at=5.0)
    assert (ledger.faults, ledger.left(), ledger.failed) == ([], 2, 1)
    assert list(ledger.waiting(2.5, seconds=1.0)) == ["a"]
    assert list(ledger.waiting(1.5, seconds=1.0)) == []
    ledger.tried("a", 1, succeeded=True, at=6.0)
    assert list(ledger.waiting(6.5, seconds=1.0)) == []


def test_an_order_that_is_done_once_more_is_counted_and_is_no_fault() -> None:
    ledger = with_orders(a=2)
    for number in (1, 2, 1):
        ledger.tried("a", number, succeeded=True, at=5.0)
    assert (ledger.faults, ledger.left(), ledger.again) == ([], 0, 1)
