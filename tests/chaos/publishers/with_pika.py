"""Publishes with pika, one message after the other, mandatory and with confirms."""

import itertools
import signal
import time
from types import FrameType

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, NackError, UnroutableError

from tests.chaos.publishers.notes import ANSWER_WITHIN, PAUSE, Notes, Task, task

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=2, socket_timeout=3, stack_timeout=5, blocked_connection_timeout=20
        )
    )


def give_up(signal_number: int, frame: FrameType | None) -> None:
    """End a wait from outside: pika's own for a confirm has no limit."""
    raise TimeoutError(f"no answer to a publish within {ANSWER_WITHIN:g} s")


def publish(channel: BlockingChannel, todo: Task, notes: Notes, name: str) -> None:
    """Until the connection is lost, or it is time to end."""
    while not notes.over:
        time.sleep(notes.wait())
        number, key = notes.next()
        sent, outcome = time.monotonic(), "unknown"
        signal.setitimer(signal.ITIMER_REAL, ANSWER_WITHIN)
        try:
            channel.basic_publish(todo.exchange, key, notes.body(number).encode(), PERSISTENT, mandatory=True)
            outcome = "confirmed"
        except UnroutableError:
            outcome = "returned"
        except NackError:
            outcome = "nacked"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            notes.write(name, number, key, sent, outcome)


def main() -> None:
    todo = task()
    signal.signal(signal.SIGALRM, give_up)
    ports = itertools.cycle(todo.ports)
    with Notes(todo) as notes:
        for incarnation in itertools.count(1):
            if notes.over:
                return
            try:
                connection = connect(next(ports))
                channel = connection.channel()
                channel.confirm_delivery()
                publish(channel, todo, notes, str(incarnation))
                connection.close()
            except (AMQPError, AMQPConnectorException, OSError):
                time.sleep(PAUSE)


if __name__ == "__main__":
    main()
