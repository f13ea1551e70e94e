"""The playground of `make try`, as somebody plays with it in a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.broker import Broker
from testbed.node import Node
from tests.integration.broker_api import BrokerApi
from tests.integration.own_node import own_node, private_only

STEP_SECONDS = 60.0


class Player:
    """Somebody at a terminal, who presses keys and reads the screen."""

    def __init__(self, broker: Broker | Node) -> None:
        """Start the playground on a broker."""
        self._terminal, theirs = pty.openpty()
        where = {"BROKER": broker.amqp_url, "BROKER_MANAGEMENT_URL": broker.management_url, "TERM": "xterm"}
        command = [sys.executable, "-m", "testbed.playground"]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | where, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def until(self, words: str) -> None:
        """Read the screen until it shows some words."""
        end = time.monotonic() + STEP_SECONDS
        while words not in self.seen:
            assert self._read(end), f"no {words!r} in {self.seen[-3000:]}"

    def quit(self) -> None:
        """Leave the playground, which has done all orders in order."""
        self.press("q")
        self.ends(0)
        assert "0 were done out of order, and 0 are not done." in self.seen

    def ends(self, status: int) -> None:
        """Read the rest, up to the end of the playground with this status."""
        end = time.monotonic() + STEP_SECONDS
        while self._read(end):
            pass
        os.close(self._terminal)
        assert self.process.wait(STEP_SECONDS) == status, self.seen[-3000:]

    def _read(self, end: float) -> bool:
        """Read what comes next; return False once the playground has ended, or at a time."""
        if not select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            part = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += part.decode(errors="replace")
        return bool(part)


@contextmanager
def playing(broker: Broker | Node) -> Iterator[Player]:
    """Yield somebody who sees the playground at work, and leaves nothing in the broker."""
    api = BrokerApi(broker.management_url)
    before = {each["name"] for each in api.ask("GET", "vhosts")}
    player = Player(broker)
    try:
        player.until("orders confirmed")
        yield player
    finally:
        player.process.kill()
        player.process.wait()
    assert {each["name"] for each in api.ask("GET", "vhosts")} == before


def test_keys_kill_and_add_workers_and_fail_an_order_which_is_done_in_the_end(broker: Broker) -> None:
    with playing(broker) as player:
        assert "console of sidecar 2: http://127.0.0.1:" in player.seen
        player.press("k")
        player.until("worker 1 was killed")
        player.press("a")
        player.until("worker 4 joins")
        player.press("f")
        player.until(" fails 5 times")
        player.until(", 2 failed tries")
        player.press("?")
        player.until("no such key")
        player.quit()
    assert "5 tries failed" in player.seen


@private_only
def test_a_key_grows_the_exchange_by_two_shards_in_order() -> None:
    # The command asks every sidecar of a broker, so the broker is one without those of other tests.
    with own_node("") as (node, _), playing(node) as player:
        player.press("g")
        player.until("2 shards come")
        player.press("g")
        player.until("a change of the shards is under way")
        player.until("orders: generation 2 with 8 shards is all there is")
        player.quit()


def test_an_interrupt_leaves_nothing(broker: Broker) -> None:
    with playing(broker) as player:
        player.process.send_signal(signal.SIGTERM)
        player.ends(130)
