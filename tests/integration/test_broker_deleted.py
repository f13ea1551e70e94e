"""A consumer or the end of a client in the moment in which a queue is deleted. No sidecar takes part."""

import logging
import time
from collections import Counter

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue
from pamqp.common import FieldTable

from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name, wait_until
from tests.integration.consuming import Connect, Consumer

pytestmark = [pytest.mark.long, pytest.mark.versions]

LOG = logging.getLogger(__name__)

TRIES = 40
"""How many queues are deleted; a consumer comes between 0 and 40 ms after the deletion of each began."""

OTHERS = 5
"""How many queues are declared while one is deleted, so that the node has something to do."""

ARGUMENTS: FieldTable = {"x-queue-type": "quorum", "x-single-active-consumer": True}


def end_of(member: Consumer) -> int:
    """Wait for the broker's word that a consumer has ended; return the reply code, or 0 for basic.cancel."""

    def look() -> int | None:
        for channel, value in member.methods:
            if isinstance(value, Basic.Cancel):
                return 0
            if isinstance(value, Channel.Close | Connection.Close):
                assert (channel, value.reply_code) in ((1, 404), (0, 541))
                return value.reply_code
        return None

    return member.until("the end of a consumer", look)


def test_half_a_second_after_the_deletion_of_a_queue_a_consumer_costs_only_its_channel(
    connect_consumer: Connect,
) -> None:
    """Within the first 40 ms it may cost the connection, with 541: the log has how often.

    A member that let a shard go at a marker therefore counts consumers twice, half a second apart, before it consumes.
    """
    keeper, found = connect_consumer(), {541: 0, 404: 0, 0: 0}
    keeper.open(1)
    for number in range(TRIES):
        name = fresh_name("deleted")
        keeper.ask(1, Queue.Declare(0, name, durable=True, arguments=ARGUMENTS), Queue.DeclareOk)
        member = connect_consumer()
        member.open(1)
        keeper.tell(1, Queue.Delete(0, name))
        time.sleep(number / TRIES * 0.04)
        member.tell(1, Basic.Consume(0, name, "m"))
        keeper.expect(1, Queue.DeleteOk)
        found[end_of(member)] += 1
        time.sleep(0.5)
        late = connect_consumer()
        late.open(1)
        late.tell(1, Basic.Consume(0, name, "late"))
        assert late.refusal()[:2] == (1, 404)
        late.drop()
        member.drop()
    LOG.info("of %d consumers as their queues were deleted, by the reply code: %s", TRIES, found)


@pytest.mark.parametrize("over", ["the management API", "AMQP"])
def test_a_deletion_whose_client_goes_away(
    over: str, connect_consumer: Connect, api: BrokerApi, vhost: VirtualHost
) -> None:
    """Over AMQP the deletion is done. A request to the management API ends with its client.

    A queue that such a request leaves half deleted is listed as running, and a consumer of it loses its connection,
    with 541. A further deletion ends that. The log has how often.
    """
    keeper, found = connect_consumer(), Counter[int]()
    keeper.open(1)
    for number in range(TRIES):
        name, pause = fresh_name("deleted"), number / TRIES * 0.04
        keeper.ask(1, Queue.Declare(0, name, durable=True, arguments=ARGUMENTS), Queue.DeclareOk)
        for other in range(OTHERS):
            keeper.tell(1, Queue.Declare(0, f"{name} {other}", durable=True, arguments=ARGUMENTS))
        if over == "AMQP":
            client = connect_consumer()
            client.open(1)
            client.tell(1, Queue.Delete(0, name))
            time.sleep(pause)
            client.drop()
        else:
            api.abandon("DELETE", "queues", vhost.name, name, after=pause)
        for _ in range(OTHERS):
            keeper.expect(1, Queue.DeclareOk)
        time.sleep(0.3)
        late = connect_consumer()
        late.open(1)
        late.tell(1, Basic.Consume(0, name, "late"))
        code = late.until("an answer", lambda late=late: answer_of(late))  # type: ignore[misc]
        found[code] += 1
        late.drop()
        assert code == 404 or over != "AMQP"
        if code:
            api.ask("DELETE", "queues", vhost.name, name)
            wait_until("its end", lambda name=name: not api.ask("GET", "queues", vhost.name, name))  # type: ignore[misc]
    LOG.info("of %d queues whose deletion over %s was abandoned, by a consumer's reply code: %s", TRIES, over, found)


def answer_of(consumer: Consumer) -> int | None:
    """Return the reply code with which the broker refused a consumer, 0 if it did not; None if it has not answered."""
    for _, value in consumer.methods:
        if isinstance(value, Channel.Close | Connection.Close):
            return value.reply_code
        if isinstance(value, Basic.ConsumeOk):
            return 0
    return None
