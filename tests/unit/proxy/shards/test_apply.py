"""How a file is applied where steps fail, or where the management API shows the result late or not at all."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.shards import apply as module
from proxy.shards.apply import StoppedError, apply, stopped
from proxy.shards.document import parse
from proxy.shards.plan import make_plan
from proxy.shards.state import State
from proxy.shards.steps import Bind, DeclareExchange, DeclareQueue, DeleteQueue, Removal, Step, Unbind
from proxy.topology.management import ManagementError, RefusedError
from ring.destination import Destination
from tests.unit.proxy.shards.model import EMPTY, after

DOCUMENT = parse({"exchange": [{"name": "orders", "shards": 1}]})
DONE = after(EMPTY, *(step for _, step in make_plan(DOCUMENT, {"/": EMPTY}).steps))
QUEUE = Destination("queue", "orders.1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)


class HeldLock:
    """A lock that stays held."""

    async def check(self) -> None:
        pass


async def applied(*answers: State | ManagementError) -> list[str]:
    """Apply the document where each reading of the virtual host gives the next answer; return what was said."""
    turns: Iterator[State | ManagementError] = iter(answers)

    async def states(_: Any) -> dict[str, State]:
        if isinstance(answer := next(turns), ManagementError):
            raise answer
        return {"/": answer}

    async def change(*_: Any) -> None:
        pass

    said: list[str] = []
    broker = SimpleNamespace(states=states, api=SimpleNamespace(change=change))
    await apply(cast("Any", broker), cast("Any", HeldLock()), DOCUMENT, said.append)
    return said


async def test_a_reading_that_fails_after_all_steps_is_no_failure_if_a_later_one_shows_the_result() -> None:
    said = await applied(EMPTY, ManagementError("/api/queues: 503"), EMPTY, DONE)

    assert len(said) == 5


async def test_where_no_reading_shows_the_result_it_is_told_that_all_steps_were_taken_and_how_to_go_on() -> None:
    with pytest.raises(StoppedError) as failed:
        await applied(EMPTY, *[ManagementError("/api/queues: 503")] * module._LOOKS)
    with pytest.raises(StoppedError) as late:
        await applied(*[EMPTY] * (1 + module._LOOKS))

    first, why, last = failed.value.lines
    assert first.startswith("all steps were taken, and the management API does not show")
    assert why == "  /api/queues: 503"
    assert last.startswith("look again with: ring-proxy topology check")
    assert late.value.lines[1] == "  declare queue orders.1"


@pytest.mark.parametrize(
    ("step", "needed"),
    [
        (DeclareQueue("q", {}, None), "configure on 'q'"),
        (DeclareQueue("q", {"x-dead-letter-exchange": "d"}, None), "configure on 'q', read on it and write on 'd'"),
        (
            DeclareQueue("q", {"x-dead-letter-exchange": ""}, None),
            "configure on 'q', read on it and write on 'amq.default'",
        ),
        (DeclareExchange("x", "fanout", {}), "configure on 'x'"),
        (Bind("x", QUEUE, "1"), "read on 'x' and write on 'orders.1'"),
        (Unbind("x", QUEUE, "1", "1"), "read on 'x' and write on 'orders.1'"),
        (DeleteQueue("q", if_empty=False), "configure on 'q'"),
    ],
)
def test_a_refusal_names_the_right_that_is_missing(step: Step | Removal, needed: str) -> None:
    error = stopped([step], 0, RefusedError("/api/x", 401, "Access refused."), "go on")

    assert error.lines == (
        f"step 1 of 1, {step}: the broker refused: Access refused. (the user needs {needed})",
        "done: nothing",
        "not done:",
        f"  {step}",
        "go on",
    )
