"""One broker for the whole run, a virtual host for each test, and sidecars that are always stopped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from testbed.broker import Broker, running_broker
from tests.integration.broker_api import BrokerApi, VirtualHost, fresh_name
from tests.integration.consuming import Behaviour, Connect, Declare, behaviour, consumers, shard
from tests.integration.sidecar import Sidecar
from tests.integration.topology import Topology
from tests.integration.wire_client import Client, port_of

USER = "ringproxy test"
PASSWORD = "pa/ss:w@rd%25 é"
"""Everything that a URL must encode; `SECRETS` are the forms in which it must never show."""
SECRETS = (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), "pa/ss", "pa%2Fss")

_BROKER = pytest.StashKey[str]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell which broker the integration tests ran on."""
    if broker := config.stash.get(_BROKER, ""):
        terminalreporter.write_sep("-", f"ran on RabbitMQ {broker}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take a worker's word for it, where tests run in several processes, each with a broker of its own."""
    if broker := getattr(node, "workeroutput", {}).get("broker"):
        node.config.stash[_BROKER] = broker


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The broker that BROKER chooses. Where there is none, this fails: nothing here is skipped for want of one."""
    with running_broker() as broker:
        ran_on = pytestconfig.stash[_BROKER] = f"{broker.version} ({broker.source})"
        getattr(pytestconfig, "workeroutput", {})["broker"] = ran_on
        yield broker


@dataclass(frozen=True)
class Login:
    """How a sidecar reaches the broker: as a user with a management tag and the right to publish, no more."""

    broker_url: str
    management_url: str
    vhost: str

    def settings(self, **changes: str) -> dict[str, str]:
        """Return the settings of a sidecar whose rings follow the bindings fast enough for tests."""
        urls = {"broker_url": self.broker_url, "management_url": self.management_url}
        return {**urls, "sync_interval": "0.5", "settle_time": "0.2"} | changes


@pytest.fixture(scope="session")
def api(broker: Broker) -> BrokerApi:
    return BrokerApi(broker.management_url)


@pytest.fixture(scope="session")
def login(broker: Broker, api: BrokerApi) -> Iterator[Login]:
    """Yield a user and a default virtual host for the sidecars of this run."""
    api.ask("PUT", "users", USER, body={"password": PASSWORD, "tags": "management"})
    home = VirtualHost(api, fresh_name(), [USER])
    yield Login(
        with_login(broker.amqp_url, USER, PASSWORD, "/" + quote(home.name, safe="")),
        with_login(broker.management_url, USER, PASSWORD),
        home.name,
    )
    home.delete()
    api.ask("DELETE", "users", USER)


@pytest.fixture(scope="session")
def client(broker: Broker) -> Client:
    """Yield the broker's administrator, who may do everything in every virtual host that he makes."""
    return Client.of(broker.amqp_url)


@pytest.fixture
def vhost(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield a virtual host of the test's own, with a name that needs percent-encoding."""
    made = VirtualHost(api, fresh_name(), [USER])
    yield made
    made.delete()


@pytest.fixture
def other_vhost(api: BrokerApi, login: Login) -> Iterator[VirtualHost]:
    """Yield one more virtual host of the test's own."""
    made = VirtualHost(api, fresh_name(), [USER])
    yield made
    made.delete()


@pytest.fixture(scope="session")
def sidecar(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """Yield the sidecar that most tests share, each with its own virtual host."""
    running = Sidecar(login.settings(sync_interval="15"), tmp_path_factory.mktemp("sidecar"), SECRETS)
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture
def topology(broker: Broker, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Topology:
    """Yield `ring-proxy topology` on the test's virtual host, as the broker's administrator."""
    return Topology(broker, vhost, tmp_path, capsys)


StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def start_sidecar(login: Login, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSidecar]:
    """Start sidecars with settings of the test's choice, and check each one's log once it has ended."""
    started: list[Sidecar] = []

    def start(**changes: str) -> Sidecar:
        started.append(Sidecar(login.settings(**changes), tmp_path_factory.mktemp("sidecar"), SECRETS))
        return started[-1]

    yield start
    try:
        for running in started:
            if running.process.poll() is None:
                running.stop()
            running.check_log()
    finally:
        for running in started:
            running.kill()


@pytest.fixture
def slow(start_sidecar: StartSidecar) -> Sidecar:
    """Start a sidecar that reads rings again only when something says so."""
    return start_sidecar(sync_interval="600")


def with_login(url: str, user: str, password: str, path: str | None = None) -> str:
    """Return the URL with these credentials."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"
    return urlunsplit(parts._replace(netloc=netloc, path=parts.path if path is None else path))


@pytest.fixture
def rabbitmq(broker: Broker) -> Behaviour:
    """Return what this version of RabbitMQ is known to do with consumers."""
    return behaviour(broker.version)


@pytest.fixture
def raising(rabbitmq: Behaviour) -> None:
    """Skip the test where nothing takes over while the active consumer lives."""
    if not rabbitmq.raises:
        pytest.skip("before RabbitMQ 4.0 a higher priority takes over nothing")


@pytest.fixture
def connect_consumer(broker: Broker, vhost: VirtualHost, client: Client) -> Iterator[Connect]:
    """Yield a function that opens a connection to the broker, which ends with the test."""
    vhost.permit(client.user, configure=".*", read=".*")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(consumers(client, port_of(broker.amqp_url), vhost.name))[0]


@pytest.fixture
def declare_shard(connect_consumer: Connect) -> Declare:
    """Return a function that declares a queue with single active consumer: name, kind, arguments."""
    return lambda name="q", kind="quorum", **arguments: shard(connect_consumer(), name, kind, **arguments)
