"""The examples of RabbitMQ's plugin README run as they are, with the sidecar where they expect the broker."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.broker import Broker
from tests.integration.broker_api import BrokerApi, VirtualHost, wait_until
from tests.integration.conftest import StartSidecar
from tests.integration.sidecar import Sidecar
from tests.integration.wire_client import Client, port_of

pytestmark = [pytest.mark.long, pytest.mark.versions]

PROGRAM = Path(__file__).parent / "clients" / "python" / "plugin_readme.py"
USUAL_PORT = 5672
MESSAGES = 100_000
WEIGHTS = {"q1": 1, "q2": 1, "q3": 2, "q4": 2}
EXCHANGES = ["e", "e2", "e3"]
ONE_PERCENT = 11.35
"""The upper 1% point of chi-squared with 3 degrees of freedom, from the README's table."""


def is_free(port: int) -> bool:
    """Whether nobody listens there, by IPv4 or IPv6."""
    try:
        socket.create_connection(("localhost", port), 1).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.fixture(scope="module")
def default_vhost(api: BrokerApi, client: Client) -> Iterator[VirtualHost]:
    """The virtual host `/`, in which the examples purge queues: nothing there may have their names."""
    assert (client.user, client.password) == ("guest", "guest"), "the examples log in as guest, which BROKER has not"
    vhost = VirtualHost(api, "/", [])
    exchanges = {exchange["name"] for exchange in api.ask("GET", "exchanges", "/", query="columns=name")}
    taken = sorted({*vhost.queues(), *exchanges} & {*WEIGHTS, *EXCHANGES})
    assert not taken, f"the virtual host / of BROKER has {taken} of its own, which the examples would change"
    yield vhost
    for queue in set(WEIGHTS) & set(vhost.queues()):
        vhost.delete_queue(queue)
    for exchange in EXCHANGES:
        vhost.delete_exchange(exchange)


@pytest.fixture
def in_front(broker: Broker, start_sidecar: StartSidecar) -> Sidecar:
    """A sidecar on the broker's usual port, or where that is taken on another."""
    urls = {"broker_url": broker.amqp_url, "management_url": broker.management_url}
    return start_sidecar(**urls, amqp_listen=f"127.0.0.1:{USUAL_PORT if is_free(USUAL_PORT) else 0}")


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_example_runs_and_its_counts_follow_the_weights(
    default_vhost: VirtualHost, in_front: Sidecar, broker: Broker, client: Client, exchange: str
) -> None:
    environment = os.environ | {"AMQP_PORT": str(in_front.amqp_port)}
    run = subprocess.run([sys.executable, PROGRAM, exchange], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")

    with client.pika(port_of(broker.amqp_url), default_vhost.name) as channel:

        def counts() -> list[int]:
            answers = [channel.queue_declare(queue, passive=True) for queue in WEIGHTS]
            return [answer.method.message_count for answer in answers]

        # No confirms: some may still be on their way.
        wait_until("all messages", lambda: sum(counts()) == MESSAGES)
        found = counts()
        _, properties, _ = channel.basic_get("q1", auto_ack=True)
    assert properties is not None
    assert properties.headers is not None
    assert properties.headers["x-ring-exchange"] == exchange
    ideal = [MESSAGES * weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
    chi_squared = sum((have - want) ** 2 / want for have, want in zip(found, ideal, strict=True))
    print(exchange, dict(zip(WEIGHTS, found, strict=True)), f"chi-squared {chi_squared:.2f}")
    assert chi_squared < ONE_PERCENT
