"""The playground of `make try`, as somebody plays with it in a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

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

    def status(self) -> int:
        """Read the rest, and return the status with which the playground ends."""
        end = time.monotonic() + STEP_SECONDS
        while self._read(end):
            pass
        os.close(self._terminal)
        return self.process.wait(STEP_SECONDS)

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


@pytest.fixture
def vhosts(broker: Broker) -> set[str]:
    return {each["name"] for each in BrokerApi(broker.management_url).ask("GET", "vhosts")}


def test_keys_kill_and_add_workers_and_fail_an_order_which_is_done_in_the_end(broker: Broker, vhosts: set[str]) -> None:
    player = Player(broker)
    try:
        player.until("console of sidecar 2: http://127.0.0.1:")
        player.until("orders confirmed")
        player.press("k")
        player.until("worker 1 was killed")
        player.press("a")
        player.until("worker 4 joins")
        player.press("f")
        player.until(" fails 5 times")
        player.until(", 2 failed tries")
        player.press("?")
        player.until("no such key")
        player.press("q")
        assert player.status() == 0, player.seen[-3000:]
    finally:
        player.process.kill()
        player.process.wait()
    assert "0 were done out of order, and 0 are not done." in player.seen
    assert "5 tries failed" in player.seen
    assert {each["name"] for each in BrokerApi(broker.management_url).ask("GET", "vhosts")} == vhosts


@private_only
def test_a_key_grows_the_exchange_by_two_shards_in_order() -> None:
    # The command asks every sidecar of a broker, so the broker is one without those of other tests.
    with own_node("") as (node, _):
        player = Player(node)
        try:
            player.until("orders confirmed")
            player.press("g")
            player.until("2 shards come")
            player.press("g")
            player.until("a change of the shards is under way")
            player.until("orders: generation 2 with 8 shards is all there is")
            player.press("q")
            assert player.status() == 0, player.seen[-3000:]
        finally:
            player.process.kill()
            player.process.wait()
    assert "0 were done out of order, and 0 are not done." in player.seen


def test_an_interrupt_leaves_nothing(broker: Broker, vhosts: set[str]) -> None:
    player = Player(broker)
    try:
        player.until("orders confirmed")
        player.process.send_signal(signal.SIGTERM)
        assert player.status() == 130, player.seen[-3000:]
    finally:
        player.process.kill()
        player.process.wait()
    assert {each["name"] for each in BrokerApi(broker.management_url).ask("GET", "vhosts")} == vhosts
