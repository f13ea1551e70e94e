"""Whose management API it is: no ring may be made of the bindings of another cluster than the broker's."""

import logging
from collections.abc import Callable

from proxy.management import Management, ManagementError
from proxy.topology import TopologyError, names_of

log = logging.getLogger(__name__)


class Identity:
    """The names of the management API's cluster, as far as it has said them."""

    def __init__(self, api: Management, changed: Callable[[], None]) -> None:
        """`changed` is called once its names are others than before."""
        self._api, self._changed = api, changed
        self.cluster: str | None = None
        """The name of the cluster; None where the management API has not said it, or cannot."""
        self._names: frozenset[str] = frozenset()
        """The cluster names its nodes report while nobody has set one: each node then reports its own."""
        self.asked = False
        """Whether it has answered once."""
        self.unreachable = "not asked yet"
        """Why it did not answer when last asked by `watch`; empty where it did."""

    async def ask(self) -> None:
        """Asks anew. Raises ManagementError or TopologyError."""
        before = self.cluster, self._names
        cluster = await self._api.cluster_name()
        unnamed = cluster is not None and "@" in cluster
        names = names_of(cluster, await self._api.nodes()) if cluster is not None and unnamed else frozenset()
        self.cluster, self._names, self.asked = cluster, names, True
        if (cluster, names) != before:
            self._changed()

    async def watch(self) -> None:
        """Asks anew, and tells the log where the management API answers no more, or again. Never raises for that."""
        try:
            await self.ask()
        except (ManagementError, TopologyError) as error:
            if str(error) != self.unreachable:
                log.warning("the management API does not answer: %s", error)
            self.unreachable = str(error)
        else:
            if self.unreachable:
                log.info("the management API answers")
            self.unreachable = ""

    def mismatch(self, broker: str | None) -> str:
        """Why a broker that gives its cluster this name is not the one whose bindings are read; empty where it is.

        While nobody has set a name, each node of a cluster gives it another: its own (observed on RabbitMQ 3.10.8).
        """
        if broker is None or self.cluster is None or broker == self.cluster or broker in self._names:
            return ""
        return f"the broker is of cluster {broker!r}, the management API of {self.cluster!r}"
