"""What is known of a message that the broker refused, by where it went."""

import pytest

from proxy.amqp.fate import NACKED, UNROUTABLE
from proxy.amqp.routes import Choice, Route
from proxy.http.dispatch import Placed
from proxy.http.receipts import judged
from proxy.outcome import Outcome
from proxy.router import PassReason
from proxy.tally import Tally
from tests.unit.proxy.amqp.wire import QUEUES, known


def passed(exchange: str) -> Placed:
    return Placed(Route(("/", exchange), Tally(), PassReason.TYPE), None, PassReason.TYPE)


def routed(shadowed: bool = False) -> Placed:
    route = Route(("/", "orders"), Tally(), None, known(QUEUES))
    choice = Choice(route.targets[0], route, 5, False)
    return Placed(route, choice, PassReason.SHADOW if shadowed else None)


@pytest.mark.parametrize("placed", [routed(), passed("")])
def test_what_one_queue_refuses_is_nowhere(placed: Placed) -> None:
    assert judged(placed, NACKED) == NACKED


@pytest.mark.parametrize("placed", [passed("topic"), passed("amq.fanout"), routed(shadowed=True)])
def test_what_one_of_several_queues_refuses_may_be_in_another(placed: Placed) -> None:
    verdict = judged(placed, NACKED)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "another may have taken it" in verdict.detail


def test_what_no_queue_takes_says_which_is_missing() -> None:
    placed = routed()
    assert placed.where is not None
    assert judged(placed, UNROUTABLE).detail == f"there is no queue {placed.where.name!r}"
    assert judged(passed("topic"), UNROUTABLE).detail == "exchange 'topic' has no queue for it"
