"""The driver's look at the broker before a batch: what is waited for, and what ends the job at once. Without Spark."""

import pytest
from pyspark.sql.types import StructType

from pipeline import PipelineError
from pipeline.data.rings import to_json
from pipeline.publish.options import parse
from pipeline.publish.pacing import Patience
from pipeline.publish.pinned import pinned, pinned_in_time
from pipeline.publish.source import RingProxy, Task
from tests.integration import generations
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login
from tests.integration.relay import management_front, relay
from tests.pipeline.publishing import options_of
from tests.pipeline.records import ring_of

pytestmark = pytest.mark.versions

QUEUES = {"q0": 1, "q1": 2}
SCHEMA = StructType().add("key", "string").add("body", "string")


@pytest.fixture
def options(login: Login, vhost: VirtualHost) -> dict[str, str]:
    vhost.ring("orders", QUEUES)
    return options_of(login, vhost, "orders")


@pytest.mark.parametrize("what", ["broker_url", "management_url"])
def test_a_batch_waits_for_a_broker_that_is_away_and_only_a_first_look_does_not(
    options: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(patience: Patience) -> float:
        pauses.append(patience)
        between.open()
        return 0.0

    pauses: list[Patience] = []
    monkeypatch.setattr(Patience, "pause", pause)
    with relay(options[what]) as (between, url):
        away = options | {what: url}
        stream = RingProxy(away).streamWriter(SCHEMA, overwrite=False)
        between.cut()
        with pytest.raises(PipelineError):
            RingProxy(away).writer(SCHEMA, overwrite=False)
        assert pauses == []
        (task,) = stream.__getstate__().values()
        assert isinstance(task, Task)
        assert task.routes.queues == ("q0", "q1")
        assert len(pauses) == 1
        if what == "broker_url":
            between.cut()
            RingProxy(away | {"ring": to_json(ring_of(QUEUES))}).writer(SCHEMA, overwrite=False)
            assert len(pauses) == 2


def test_a_management_api_in_trouble_is_asked_again_for_as_long_as_rows_would_be_tried(
    options: dict[str, str],
) -> None:
    with management_front(options["management_url"]) as front:
        front.answer("", 503)
        with pytest.raises(PipelineError) as raised:
            pinned_in_time(parse(options | {"management_url": front.url, "retry_timeout": "0.2"}))
        assert len(front.asked) > 1
    assert str(raised.value).startswith("management API: ")
    assert str(raised.value).endswith(" 503; it was waited for, for 0.2 s (retry_timeout)")


def test_what_waiting_does_not_help_ends_a_batch_at_once(
    options: dict[str, str], vhost: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**changed: str) -> str:
        with pytest.raises(PipelineError) as raised:
            pinned_in_time(parse(options | changed))
        return str(raised.value)

    def unexpected(patience: Patience) -> float:
        raise AssertionError("it waits")

    def by_nobody(url: str) -> str:
        scheme, _, rest = url.partition("://")
        return f"{scheme}://nobody:wrong@{rest.partition('@')[2]}"

    monkeypatch.setattr(Patience, "pause", unexpected)
    ring = to_json(ring_of(QUEUES))
    assert "ACCESS_REFUSED" in told(broker_url=by_nobody(options["broker_url"]))
    assert "401" in told(management_url=by_nobody(options["management_url"]))
    vhost.delete_queue("q1")
    assert told(ring=ring) == f"queue 'q1' is missing in {vhost.name!r}"


def test_the_queues_of_a_later_generation_are_looked_at(login: Login, vhost: VirtualHost) -> None:
    """The ring has the names that the shards had in the first generation, whose queues are gone."""
    vhost.exchange("orders")
    generations.declare(vhost, 2, 2, x_queue_type="quorum")
    for shard in range(2):
        generations.bind(vhost, 2, shard, 2)
    spec = pinned(parse(options_of(login, vhost, "orders")))
    assert spec.queues == dict(zip(generations.queues(1, 2), generations.queues(2, 2), strict=True))
