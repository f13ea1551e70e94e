"""Tell whether a broker belongs to the management API's cluster: bindings of another cluster must not route its
publishes.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from proxy.topology.bindings import TopologyError, default_names
from proxy.topology.management import Management, ManagementError
from proxy.topology.table import NEVER

log = logging.getLogger(__name__)

ASK_DISTANCE = 1.0
"""The least seconds between the end of one request for the cluster's name and the next that a broker in doubt
causes."""

FORMER_FOR = 5.0
"""Seconds, after the API last reported a name, for which a broker that reports that name counts as the renamed
cluster."""

MOST_FORMER = 100
"""The most former names of the cluster that are remembered."""


class ClusterIdentity:
    """The present and former names of the management API's cluster, as the API has reported them to this process.

    A broker reports its cluster's name once, when a connection to it begins. A connection that is older than a renaming
    therefore goes by a former name. A former name counts for connections that began before the API last reported it, or
    within `FORMER_FOR` seconds after that, and only while the API still reports one of the nodes of that time. A
    different cluster has different nodes, and if it takes over the name, connections to it begin later.
    """

    def __init__(self, api: Management) -> None:
        """Know no name yet."""
        self._api = api
        api.why_foreign = self.why_foreign
        self.on_change: list[Callable[[], None]] = []
        """The functions that are called each time the names have changed."""
        self.cluster: str | None = None
        """The present name of the cluster; None if the management API has not reported it, or has no page for it."""
        self._own: frozenset[str] = frozenset()
        """All names that brokers of the cluster report: one name, or one for each node while no operator has set a
        name."""
        self._nodes: frozenset[str] = frozenset()
        """The cluster's nodes, as the management API last listed them or, before it has answered, as assumed.

        The API is asked for them when it reports a new name, and again with each report of a default name.
        """
        self._former: dict[str, float] = {}
        """Each former name, and the monotonic time until which a broker's report of it counts."""
        self.named_at = NEVER
        """When the request was made whose answer first had the present name, in monotonic seconds; NEVER before any
        answer."""
        self.asked = False
        """Whether the management API has answered at least once."""
        self._assumed = False
        """Whether the names come from rings kept on disk, because the API has not answered yet."""
        self.unreachable = "not asked yet"
        """Why the API did not answer the last request of `watch`; empty if it did."""
        self.asked_until = NEVER
        """When the last request ended, answered or not, in monotonic seconds."""
        self._lock = asyncio.Lock()
        self._answered = self._tried = NEVER
        """When the last answered request was made, and when the last request of all was; monotonic seconds."""
        self._fault: ManagementError | TopologyError | None = None
        """How the last request failed; None if it did not."""

    @property
    def names(self) -> tuple[str | None, frozenset[str], frozenset[str]]:
        """The cluster's name (or None), all names that its brokers report, and its nodes, as `RingCache` keeps them."""
        return self.cluster, self._own, self._nodes

    def assume(self, cluster: str | None, names: frozenset[str], nodes: frozenset[str]) -> None:
        """Take the cluster whose rings were kept on disk for the API's, until the API has answered."""
        self.cluster, self._own, self._nodes, self._assumed = cluster, names, nodes, True
        self._notify()

    def is_of(self, cluster: str | None, names: frozenset[str], nodes: frozenset[str]) -> bool:
        """Return whether a cluster with this name, these brokers' names and these nodes is the API's, perhaps renamed
        since.
        """
        if cluster is None or self.cluster is None:
            return cluster is self.cluster
        return self.cluster == cluster or not names.isdisjoint(self._own) or not nodes.isdisjoint(self._nodes)

    async def ask(self, since: float | None = None) -> None:
        """Ask the API for the cluster's name, unless a request was made after `since`; by default, after this call
        began.

        Calls at the same time share one request. Raises ManagementError or TopologyError.
        """
        since = time.monotonic() if since is None else since
        async with self._lock:
            if self._tried <= since:
                self._tried, self._fault = time.monotonic(), None
                try:
                    await self._ask(self._tried)
                except (ManagementError, TopologyError) as error:
                    self._fault = error
                finally:
                    self.asked_until = time.monotonic()
            if self._fault is not None:
                raise self._fault

    def why_foreign(self, cluster: str | None, nodes: frozenset[str]) -> str:
        """Return why another node of the management API belongs to another cluster than before; empty if it does not.

        `cluster` and `nodes` are what that node reports. A cluster that was renamed meanwhile is recognized by a node
        that it had before.
        """
        if not self.asked or cluster == self.cluster or cluster in self._own or not nodes.isdisjoint(self._nodes):
            return ""
        return f"it belongs to cluster {cluster!r}, and the node that answered before to {self.cluster!r}"

    async def _ask(self, started: float) -> None:
        """Ask for the cluster's name, and for its nodes if the name is new, and remember the answers.

        Raises ManagementError or TopologyError.
        """
        switches = self._api.switches
        cluster = await self._api.cluster_name()
        unnamed = cluster is not None and "@" in cluster
        nodes = self._nodes
        if cluster is not None and (unnamed or self._assumed or cluster != self.cluster):
            nodes = await self._api.nodes()
        # Name and nodes must come from one node of the API, or they could be of two clusters.
        if self._api.switches != switches:
            raise ManagementError("/api/cluster-name: another node of management_url answers now")
        own = frozenset[str]() if cluster is None else frozenset({cluster})
        if cluster is not None and unnamed:
            own |= default_names(cluster, nodes)
        before, answered = (self.cluster, self._own), self._answered
        if own != self._own:
            self.named_at = started
            self._keep_former(own, nodes)
            if before[0] is not None and cluster is not None and cluster not in before[1]:
                known = "which is the same one, renamed" if self._former else "which is another one"
                log.warning(
                    "the management API belonged to cluster %r, and now belongs to %r, %s", before[0], cluster, known
                )
        self.cluster, self._own, self._nodes = cluster, own, nodes
        self._answered, self.asked, self._assumed = started, True, False
        if (cluster, own) != before or answered == NEVER:
            self._notify()

    def _notify(self) -> None:
        for callback in self.on_change:
            callback()

    def _keep_former(self, own: frozenset[str], nodes: frozenset[str]) -> None:
        """Remember the names that the cluster no longer has; forget all former names if it is another cluster."""
        if nodes.isdisjoint(self._nodes):
            self._former.clear()
            return
        self._former |= dict.fromkeys(self._own, self._answered + FORMER_FOR)
        for name in own:
            self._former.pop(name, None)
        for name in list(self._former)[:-MOST_FORMER]:
            del self._former[name]

    async def watch(self) -> None:
        """Ask for the cluster's name, and log when the API has stopped or resumed answering. A failed request does not
        raise.
        """
        try:
            await self.ask()
        except (ManagementError, TopologyError) as error:
            if str(error) != self.unreachable:
                log.warning("the management API does not answer, so rings stay as they are: %s", error)
            self.unreachable = str(error)
        else:
            if self.unreachable:
                log.info("the management API answers")
            self.unreachable = ""

    def is_same(self, broker: str | None, other: str | None) -> bool:
        """Return whether a broker that reports the name `broker` now is of the cluster for which one reported `other`.

        The other one may have been a node that is gone meanwhile, while no operator has set a name.
        """
        return broker == other or (broker in self._own and (other in self._own or other in self._former))

    def mismatch(self, broker: str | None, told_at: float = float("inf")) -> str:
        """Return why a broker that reports this name for its cluster is not of the API's cluster; empty if it is.

        `told_at` is when the broker reported it, in monotonic seconds: a former name counts only if it was reported
        while the name was in use. While no operator has set a name, each node reports another one, made of its own name
        (observed on RabbitMQ 3.10.8). `broker` is None if the broker reported no name.
        """
        if self._assumed and self.cluster is None and broker is not None:
            return f"the broker belongs to cluster {broker!r}, the rings in ring_cache_dir to one without a name"
        if broker is None or self.cluster is None or broker in self._own or told_at <= self._former.get(broker, NEVER):
            return ""
        return f"the broker belongs to cluster {broker!r}, the management API to {self.cluster!r}"

    async def confirmed(self, broker: str, told_at: float, within: float) -> str | None:
        """Return the present name of the cluster that a broker called `broker` at `told_at`; None if it is another
        cluster.

        If the name does not match, and the management API has not answered since the broker reported it, the API is
        asked again, for `within` seconds at most.
        """
        if self.mismatch(broker, told_at) and self._answered <= told_at:
            with suppress(ManagementError, TopologyError, TimeoutError):
                async with asyncio.timeout(within):
                    await self._ask_in_turn(told_at)
        if self.mismatch(broker, told_at):
            return None
        return broker if self.cluster is None or broker in self._own else self.cluster

    async def _ask_in_turn(self, since: float) -> None:
        """Ask for the cluster's name, at least `ASK_DISTANCE` seconds after the last request; not if that has just
        failed.
        """
        pause = self.asked_until + ASK_DISTANCE - time.monotonic()
        if pause > 0 and not self._lock.locked():
            if self._fault is not None:
                return
            await asyncio.sleep(pause)
        await self.ask(since)
