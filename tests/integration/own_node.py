"""A broker of a test module's own, whose settings and alarms its tests can change."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.broker import installation
from testbed.node import Node, start_epmd
from testbed.supervisor import Supervisor
from tests.integration.broker_api import DEADLINE_SECONDS

BROKER = os.environ.get("BROKER", "")

private_only = pytest.mark.skipif(
    BROKER.startswith(("amqp:", "docker:")), reason="this broker is not a private node of the testbed"
)

Control = Callable[..., None]


@contextmanager
def own_node(configuration: str) -> Iterator[tuple[Node, Control]]:
    """A running node with these lines in its configuration, and its rabbitmqctl."""
    rabbitmq = installation(BROKER)
    with Supervisor() as supervisor:
        epmd_port = start_epmd(rabbitmq, supervisor)
        node = Node(rabbitmq, supervisor, epmd_port)
        (node.folder / "conf.d" / "more.conf").write_text(configuration)
        node.start()
        control = str(Path(rabbitmq.server or "").with_name("rabbitmqctl"))
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(supervisor.folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

        def ctl(*arguments: str) -> None:
            command = rabbitmq.command([control, "--node", node.name, *arguments], supervisor.folder)
            log = supervisor.folder / "rabbitmqctl.log"
            assert supervisor.spawn(command, environment, log).wait(DEADLINE_SECONDS), log.read_text()

        yield node, ctl
