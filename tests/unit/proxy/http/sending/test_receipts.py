"""The receipt of a message that the broker refused, by where it went."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.http.admission.limits import Limits
from proxy.http.sending.batch import MESSAGES, Batch
from proxy.http.sending.dispatch import ExchangeHandle, Placement
from proxy.http.sending.receipts import judged, place, receipt
from proxy.outcome import Outcome
from proxy.publisher.channel import NACKED, UNROUTABLE
from proxy.publisher.pool import ConnectionGroup
from proxy.routing.counters import Counters
from proxy.routing.route import Choice, Route
from proxy.topology.table import PassReason
from ring.destination import Destination
from tests.unit.proxy.http.sending.test_batch import FakeDispatch
from tests.unit.proxy.session.wire import QUEUES, known

REFERENCE = (Path(__file__).parents[5] / "docs/reference/http.md").read_text()


def passed(exchange: str) -> Placement:
    return Placement(Route(("/", exchange), Counters(), PassReason.TYPE), None, PassReason.TYPE)


def routed(shadowed: bool = False) -> Placement:
    route = Route(("/", "orders"), Counters(), None, known(QUEUES))
    choice = Choice(route.targets[0], route, 5, b"k", False, False)
    return Placement(route, choice, PassReason.SHADOW if shadowed else None)


def confirmed(text: str) -> dict[str, Any]:
    """The result of a message whose id is that, and the name of the destination."""
    return {"id": text, "outcome": Outcome.CONFIRMED, **place(Destination("exchange", text), 65535, "f" * 16)}


@pytest.mark.parametrize("placement", [routed(), passed("")])
def test_what_one_queue_refuses_is_nowhere(placement: Placement) -> None:
    assert judged(placement, NACKED) == NACKED


@pytest.mark.parametrize("placement", [passed("topic"), passed("amq.fanout"), routed(shadowed=True)])
def test_what_one_of_several_queues_refuses_may_be_in_another(placement: Placement) -> None:
    verdict = judged(placement, NACKED)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "another queue may have it" in verdict.detail


def test_what_no_queue_takes_says_which_is_missing() -> None:
    placement = routed()
    assert placement.where is not None
    assert judged(placement, UNROUTABLE).detail == f"there is no queue {placement.where.name!r}"
    assert judged(passed("topic"), UNROUTABLE).detail == "exchange 'topic' has no queue for the message"


@given(st.text(max_size=255).filter(lambda text: len(text.encode()) <= 255), st.text())
@example("\x01" * 255, "\N{GRINNING FACE}" * 1000)
def test_a_result_is_no_longer_than_is_documented(text: str, detail: str) -> None:
    (most,) = re.findall(r"A result in a batch's answer has\s+at most ([\d,]+) bytes", REFERENCE)
    batch = Batch(
        FakeDispatch(), Limits(1, 1), ExchangeHandle(("/", text), ConnectionGroup("/", (), False), b""), 1, MESSAGES
    )
    batch.refuse(text, None, detail)
    (failed,) = batch.results()

    for result in (failed | {"outcome": max(Outcome, key=len)}, {"id": text} | receipt(passed(text)), confirmed(text)):
        assert len(json.dumps(result)) + len(", ") <= int(most.replace(",", ""))
