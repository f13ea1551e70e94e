"""The limit of open files that a sidecar is started with, and what it makes of it."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import SECRETS, Login
from tests.integration.sidecar import Sidecar

StartLimited = Callable[..., Sidecar]


@pytest.fixture
def start_limited(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartLimited]:
    """Starts sidecars after these commands of a shell, and stops them."""
    started: list[Sidecar] = []

    def start(before: str, **changes: str) -> Sidecar:
        folder = tmp_path_factory.mktemp("sidecar")
        started.append(Sidecar(login.settings(**changes), folder, SECRETS, before=before))
        return started[-1]

    try:
        yield start
        for sidecar in started:
            sidecar.stop()
    finally:
        for sidecar in started:
            sidecar.kill()


def warnings(sidecar: Sidecar) -> list[str]:
    return [
        line for line in sidecar.log().splitlines() if " WARNING proxy.process.descriptors: file descriptors" in line
    ]


def test_the_soft_limit_is_raised_to_the_hard_one(start_limited: StartLimited, vhost: VirtualHost) -> None:
    """More clients are served than it would have allowed."""
    vhost.ring("orders", ["q"])
    sidecar = start_limited("ulimit -Sn 128; ulimit -Hn 4096", max_sessions="100", max_http_connections="2000")
    assert sidecar.metric("process_max_fds") == 4096
    with ExitStack() as clients:
        for port in [sidecar.port] * 100 + [sidecar.amqp_port] * 60:
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert sidecar.publish("orders", "k", vhost=vhost.name).status == 200
        assert sidecar.metric("process_open_fds") > 128
    assert warnings(sidecar) == []


def test_settings_that_need_more_than_the_hard_limit_are_told(start_limited: StartLimited) -> None:
    sidecar = start_limited("ulimit -n 512", max_sessions="100", max_http_connections="2000")
    sidecar.wait_ready()
    assert sidecar.metric("process_max_fds") == 512
    (line,) = warnings(sidecar)
    assert "these settings may need 2601, and the hard limit is 512" in line
    assert "200 for max_sessions = 100, max_http_connections = 2000, 401 for all else" in line
    assert "LimitNOFILE=" in line
