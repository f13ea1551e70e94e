"""A cluster of private nodes on this machine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from testbed.installation import Installation
from testbed.node import Node, start_epmd
from testbed.supervisor import Supervisor


@contextmanager
def private_cluster(
    installation: Installation, size: int, advanced: str = "[].\n", running: int | None = None
) -> Iterator[list[Node]]:
    """Give the nodes of one cluster (one node is a cluster, too), and leave nothing of them behind.

    The first `running` of them run, all by default; the others join the cluster once they are started.
    `advanced` is the text of each node's advanced.config: Erlang terms, for what rabbitmq.conf has no setting for.
    """
    with Supervisor() as supervisor:
        epmd_port = start_epmd(installation, supervisor)
        nodes = [Node(installation, supervisor, epmd_port) for _ in range(size)]
        lines = ["cluster_formation.peer_discovery_backend = classic_config"]
        lines += [f"cluster_formation.classic_config.nodes.{n} = {node.name}" for n, node in enumerate(nodes, 1)]
        for node in nodes:
            (node.folder / "conf.d" / "cluster.conf").write_text("\n".join(lines) + "\n")
            (node.folder / "advanced.config").write_text(advanced)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Node.start, nodes[:running]))
        yield nodes
