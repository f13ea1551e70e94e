"""The RabbitMQ to use: the one the variable BROKER chooses, or the first that can be had."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from testbed import SetupError, container, suite
from testbed.debian import install
from testbed.installation import MACHINE, Installation
from testbed.node import private_node
from testbed.readiness import NOT_READY, answering_version

MAJOR = 4
"""The major version of RabbitMQ that comes first; releases before it are out of support."""

SUITE = "sid"
"""The Debian suite that has the newest RabbitMQ, where the machine's own is older than `MAJOR`."""


_COUNTS = """
collect_statistics_interval = 1000
management.sample_retention_policies.global.minute = 1
management.sample_retention_policies.basic.minute = 1
management.sample_retention_policies.detailed.10 = 1
"""
"""Lines of a private node's configuration: it counts each second, where RabbitMQ's default makes who waits wait 5 s."""


@dataclass(frozen=True)
class Broker:
    """A broker that answers: how to reach it, the version it reports, and where it comes from."""

    amqp_url: str
    management_url: str
    version: str
    source: str


@contextmanager
def running_broker(choice: str | None = None) -> Iterator[Broker]:
    """Give the broker of `choice`, the variable BROKER unless given, and stop it at the end if it was started here.

    A choice is `amqp://...` (management in BROKER_MANAGEMENT_URL), `docker:TAG`, `installed`, the name of a Debian
    suite such as `sid`, or empty for the first that can be had of: Docker's image, an installed RabbitMQ 4, that of
    Debian sid (which needs root), an older installed RabbitMQ, and one installed with apt-get.
    """
    with _broker(os.environ.get("BROKER", "") if choice is None else choice) as broker:
        yield broker


def _broker(choice: str) -> AbstractContextManager[Broker]:
    if choice.startswith("amqp://"):
        return _named(choice)
    if choice.startswith("docker:"):
        return _docker(choice.removeprefix("docker:"))
    if not choice and container.engine_answers():
        return _docker(container.DEFAULT_TAG)
    return _private(installation(choice))


def installation(choice: str) -> Installation:
    """Return the RabbitMQ that a private node runs on: the machine's own, or a Debian suite's.

    `choice` is `installed`, the name of a suite, or empty for the newest that can be had. Raises SetupError.
    """
    if choice == "installed":
        return machines_own()
    if choice:
        return suite.installation(choice)
    if MACHINE.major >= MAJOR:
        return MACHINE
    newest = suites_newest()
    return machines_own() if newest is None else newest


def prepare() -> None:
    """Install the RabbitMQ of private nodes where BROKER does not name another, for the processes that follow."""
    choice = os.environ.get("BROKER", "")
    if not choice.startswith(("amqp:", "docker:")):
        installation(choice)


@cache
def suites_newest() -> Installation | None:
    """Return the RabbitMQ of `SUITE`; None, once this has said why in a line, where that cannot be had.

    The answer is kept for the process, which does not try again what has failed.
    """
    try:
        return suite.installation(SUITE)
    except SetupError as error:
        reason = " ".join(str(error).split())
        print(f"no RabbitMQ {MAJOR}, so what is installed is used: {reason}", file=sys.stderr, flush=True)
        return None


def machines_own() -> Installation:
    """Return the machine's own RabbitMQ, which is installed where it is missing and this is root; else SetupError."""
    if not MACHINE.server:
        try:
            install("rabbitmq-server")
        except SetupError as error:
            message = f"no RabbitMQ: no Docker engine answers, and {error}; or name a running one: BROKER=amqp://..."
            raise SetupError(message) from error
    return MACHINE


@contextmanager
def _named(amqp_url: str) -> Iterator[Broker]:
    management_url = os.environ.get("BROKER_MANAGEMENT_URL") or default_management_url(amqp_url)
    try:
        version = answering_version(amqp_url, management_url)
    except NOT_READY as error:
        raise SetupError(
            f"BROKER names {amqp_url} (management {management_url}), which does not answer: {error}"
        ) from error
    yield Broker(amqp_url, management_url, version, "named by BROKER")


@contextmanager
def _docker(tag: str) -> Iterator[Broker]:
    with container.rabbitmq(tag) as (amqp_url, management_url, version):
        yield Broker(amqp_url, management_url, version, f"Docker image {container.IMAGE}:{tag}")


@contextmanager
def _private(rabbitmq: Installation) -> Iterator[Broker]:
    with private_node(rabbitmq) as node:
        (node.folder / "conf.d" / "counts.conf").write_text(_COUNTS)
        version = node.start()
        yield Broker(node.amqp_url, node.management_url, version, rabbitmq.source)


def default_management_url(amqp_url: str) -> str:
    """Where the management API of a broker is unless one says otherwise: same host and credentials, port 15672."""
    credentials, at, _ = urlsplit(amqp_url).netloc.rpartition("@")
    host = urlsplit(amqp_url).hostname or "localhost"
    return f"http://{credentials}{at}{f'[{host}]' if ':' in host else host}:15672"
