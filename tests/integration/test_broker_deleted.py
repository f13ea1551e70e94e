"""A consumer that comes as its queue is deleted: RabbitMQ may end the whole connection. No sidecar takes part."""

import logging
import time

import pytest
from pamqp.commands import Basic, Channel, Connection, Queue
from pamqp.common import FieldTable

from tests.integration.broker_api import fresh_name
from tests.integration.consuming import Connect, Consumer

pytestmark = [pytest.mark.long, pytest.mark.versions]

LOG = logging.getLogger(__name__)

TRIES = 40
"""How many queues are deleted; a consumer comes between 0 and 40 ms after the deletion of each began."""


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
        arguments: FieldTable = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        keeper.ask(1, Queue.Declare(0, name, durable=True, arguments=arguments), Queue.DeclareOk)
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
