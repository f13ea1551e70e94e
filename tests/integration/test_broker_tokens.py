"""How RabbitMQ treats access tokens: when they end, when they allow less, and how long they may be."""

import base64
import http.client
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection
from pamqp.common import FieldTable

from testbed.node import Node
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.oauth import EVERYTHING, Signer, node_with_tokens
from tests.integration.own_node import private_only
from tests.integration.wire_client import Client, Wire, port_of

pytestmark = [private_only, pytest.mark.versions, pytest.mark.long]

LIFE = 3


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def node(signer: Signer) -> Iterator[Node]:
    with node_with_tokens(signer) as running:
        home = VirtualHost(BrokerApi(running.management_url), "/", [])
        home.queue("q")
        yield running


@pytest.fixture
def version(node: Node) -> tuple[int, ...]:
    told = BrokerApi(node.management_url).ask("GET", "overview")["rabbitmq_version"]
    return tuple(map(int, told.split(".")[:2]))


@contextmanager
def session(node: Node, token: str) -> Iterator[Wire]:
    capabilities: FieldTable = {"authentication_failure_close": True}
    with Client("anyone", token).session(port_of(node.amqp_url), "/", capabilities=capabilities) as wire:
        wire.channel(1)
        wire.publish(1, "", "q")
        wire.confirm(1)
        yield wire


def next_frame(wire: Wire) -> Frame:
    _, frame = wire.read()
    assert isinstance(frame, Frame)
    return frame


def test_a_connection_whose_token_ends(node: Node, signer: Signer, version: tuple[int, ...]) -> None:
    with session(node, signer.token(life=LIFE)) as wire:
        if version >= (4, 0):
            frame = next_frame(wire)
            assert isinstance(frame, Connection.Close)
            assert (frame.reply_code, frame.reply_text) == (320, "CONNECTION_FORCED - credential expired")
            return
        time.sleep(LIFE + 1)
        # A right that was checked before counts further on its channel for a while.
        wire.publish(1, "amq.fanout", "")
        frame = next_frame(wire)
        assert isinstance(frame, Channel.Close)
        assert frame.reply_code == 403


def test_a_connection_that_gets_another_token_in_time(node: Node, signer: Signer) -> None:
    with session(node, signer.token(life=LIFE)) as wire:
        wire.ask(0, Connection.UpdateSecret(signer.token(padding=40_000), "renewed"), Connection.UpdateSecretOk)
        time.sleep(LIFE + 1)
        wire.publish(1, "amq.fanout", "")
        wire.confirm(1, 2, 1)


def test_a_token_with_fewer_scopes(node: Node, signer: Signer, version: tuple[int, ...]) -> None:
    with session(node, signer.token()) as wire:
        less = signer.token(EVERYTHING.replace("write:*/* ", ""))
        wire.ask(0, Connection.UpdateSecret(less, "less"), Connection.UpdateSecretOk)
        wire.publish(1, "", "q")
        frame = next_frame(wire)
        assert isinstance(frame, Channel.Close if version >= (4, 0) else Basic.Ack)


def test_a_token_that_has_ended_renews_nothing(node: Node, signer: Signer, version: tuple[int, ...]) -> None:
    with session(node, signer.token()) as wire:
        wire.tell(0, Connection.UpdateSecret(signer.token(life=-5), "late"))
        frame = next_frame(wire)
        if version < (4, 0):
            assert isinstance(frame, Connection.UpdateSecretOk)
            return
        assert isinstance(frame, Connection.Close)
        assert frame.reply_code == 530


def test_how_long_a_token_may_be(node: Node, signer: Signer, version: tuple[int, ...]) -> None:
    """A frame of a login has 4,096 bytes at most, and 8,192 from RabbitMQ 4.1 on."""
    most = 8192 if version >= (4, 1) else 4096
    padding = (most - 700) * 3 // 4 - len(signer.token())  # base64 makes 4 bytes of 3
    with session(node, token := signer.token(padding=padding)):
        assert most - 1200 < len(token) < most
    with pytest.raises(EOFError), session(node, signer.token(padding=most)):
        pass


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_the_management_api_takes_tokens_without_further_settings(node: Node, signer: Signer, scheme: str) -> None:
    def asked(token: str) -> int:
        given = token if scheme == "Bearer" else base64.b64encode(f"anyone:{token}".encode()).decode()
        with closing(http.client.HTTPConnection("127.0.0.1", urlsplit(node.management_url).port or 0)) as connection:
            connection.request("GET", "/api/queues/%2F/q", headers={"Authorization": f"{scheme} {given}"})
            return connection.getresponse().status

    assert asked(signer.token()) == 200
    assert asked(signer.token(life=-5)) == 401
    assert asked(signer.token("write:*/* read:*/*")) == 401
