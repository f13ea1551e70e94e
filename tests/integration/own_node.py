"""A broker of a test module's own, whose settings and alarms its tests can change."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import pytest

from testbed.broker import installation
from testbed.node import PLUGINS, Node, start_epmd
from testbed.supervisor import Supervisor
from tests.integration.broker_api import BrokerApi, VirtualHost
from tests.integration.wire_client import port_of

BROKER = os.environ.get("BROKER", "")

private_only = pytest.mark.skipif(
    BROKER.startswith(("amqp:", "docker:")), reason="this broker is not a private node of the testbed"
)

Control = Callable[..., None]


@contextmanager
def own_node(
    configuration: str, advanced: str = "[].\n", files: Mapping[str, bytes] = MappingProxyType({}), *plugins: str
) -> Iterator[tuple[Node, Control]]:
    """Yield a running node with these lines in its configuration, and its rabbitmqctl.

    `advanced` is the text of its advanced.config: Erlang terms, for what the configuration has no setting for. `files`
    are put into its folder, which the configuration calls `FOLDER`; `plugins` run besides those of every node.
    """
    rabbitmq = installation(BROKER)
    with Supervisor() as supervisor:
        node = Node(rabbitmq, supervisor, start_epmd(rabbitmq, supervisor))
        (node.folder / "conf.d" / "more.conf").write_text(configuration.replace("FOLDER", str(node.folder)))
        (node.folder / "enabled_plugins").write_text(f"[{','.join((*PLUGINS, *plugins))}].\n")
        for name, content in files.items():
            (node.folder / name).write_bytes(content)
        (node.folder / "advanced.config").write_text(advanced)
        node.start()
        yield node, node.control


def urls(*nodes: Node) -> dict[str, str]:
    """Return the settings of a sidecar that connects to any of a cluster's nodes that it can reach."""
    return {
        "broker_url": nodes[0].amqp_url,
        "broker_addresses": ",".join(f"127.0.0.1:{port_of(node.amqp_url)}" for node in nodes),
        "management_url": ",".join(node.management_url for node in nodes),
    }


def home_of(node: Node, queues: Iterable[str]) -> VirtualHost:
    """Return the node's default virtual host, with the ring `orders` of these queues, which are empty."""
    made = VirtualHost(BrokerApi(node.management_url), "/", [])
    made.ring("orders", queues)
    made.drain_all()
    return made
