"""Whose management API it is: no ring may be made of the bindings of another cluster than the broker's."""

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
"""Seconds between the end of one question whose API it is and the next that a doubtful broker causes."""

FORMER_FOR = 5.0
"""Seconds after an answer with a name for which a broker of that name is still taken for the API's cluster, renamed."""

MOST_FORMER = 100
"""Former names of one cluster that are remembered."""


class ClusterIdentity:
    """The names of the management API's cluster, now and before it was renamed, as far as the API has said them.

    A broker tells its cluster's name once, as a connection to it begins. So a connection that is older than a renaming
    goes by a former name. That counts only for connections that began before the API last reported that name, or
    within `FORMER_FOR`, and only while the API goes on to report a node that it reported then: another cluster has
    other nodes, and one that takes over a name that was given up is met by connections that begin later.
    """

    def __init__(self, api: Management, changed: Callable[[], None]) -> None:
        """`changed` is called once its names are others than before."""
        self._api, self._changed = api, changed
        api.why_foreign = self.why_foreign
        self.cluster: str | None = None
        """The name of the cluster; None where the management API has not said it, or cannot."""
        self._own: frozenset[str] = frozenset()
        """The cluster's name; while nobody has set one, all that its nodes report, for each then reports its own."""
        self._nodes: frozenset[str] = frozenset()
        """The cluster's nodes, as of when its name was new."""
        self._former: dict[str, float] = {}
        """Names of before, and until when a broker that told one told of this cluster; monotonic."""
        self.named_at = NEVER
        """When the question was asked that the present name was the first answer to; monotonic."""
        self.asked = False
        """Whether it has answered once."""
        self._assumed = False
        """Whether the names are those of rings that were kept on disk, as the API has not answered yet."""
        self.unreachable = "not asked yet"
        """Why it did not answer when last asked by `watch`; empty where it did."""
        self.asked_until = NEVER
        """When the last question came to its end, answered or not; monotonic."""
        self._lock = asyncio.Lock()
        self._answered = self._tried = NEVER
        """When the last question that was answered was asked, and when the last one was; monotonic."""
        self._fault: ManagementError | TopologyError | None = None
        """How the last question failed; None where it did not."""

    @property
    def names(self) -> tuple[str | None, frozenset[str], frozenset[str]]:
        """The cluster's name, all names that its brokers go by, and its nodes."""
        return self.cluster, self._own, self._nodes

    def assume(self, cluster: str | None, names: frozenset[str], nodes: frozenset[str]) -> None:
        """Takes the cluster for the API's whose rings were kept, until the API has answered."""
        self.cluster, self._own, self._nodes, self._assumed = cluster, names, nodes, True
        self._changed()

    def is_of(self, cluster: str | None, names: frozenset[str], nodes: frozenset[str]) -> bool:
        """Whether a cluster that was known by these is the API's: by name, or renamed with a node of before."""
        if cluster is None or self.cluster is None:
            return cluster is self.cluster
        return self.cluster == cluster or not names.isdisjoint(self._own) or not nodes.isdisjoint(self._nodes)

    async def ask(self, since: float | None = None) -> None:
        """Asks anew unless it was asked after `since`, monotonic: this call's time where it is None.

        Calls at one time share one question. Raises ManagementError or TopologyError.
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
        """Return why a node that has not been asked so far is of another cluster; empty where it is not.

        A cluster that was renamed meanwhile is known by a node that it had before.
        """
        if not self.asked or cluster == self.cluster or cluster in self._own or not nodes.isdisjoint(self._nodes):
            return ""
        return f"it is of cluster {cluster!r}, and the node that answered before of {self.cluster!r}"

    async def _ask(self, started: float) -> None:
        switches = self._api.switches
        cluster = await self._api.cluster_name()
        unnamed = cluster is not None and "@" in cluster
        nodes = self._nodes
        if cluster is not None and (unnamed or self._assumed or cluster != self.cluster):
            nodes = await self._api.nodes()
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
                known = "which is the same, renamed" if self._former else "which is another"
                log.warning("the management API's cluster was %r, and is now %r, %s", before[0], cluster, known)
        self.cluster, self._own, self._nodes = cluster, own, nodes
        self._answered, self.asked, self._assumed = started, True, False
        if (cluster, own) != before or answered == NEVER:
            self._changed()

    def _keep_former(self, own: frozenset[str], nodes: frozenset[str]) -> None:
        """Remembers the names that the cluster has no more; forgets all of them where it is another cluster."""
        if nodes.isdisjoint(self._nodes):
            self._former.clear()
            return
        self._former |= dict.fromkeys(self._own, self._answered + FORMER_FOR)
        for name in own:
            self._former.pop(name, None)
        for name in list(self._former)[:-MOST_FORMER]:
            del self._former[name]

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

    def mismatch(self, broker: str | None, told_at: float = float("inf")) -> str:
        """Why a broker that gave its cluster this name is not the one whose bindings are read; empty where it is.

        `told_at` is when it did, monotonic: former names count only for what was told while they were in use. While
        nobody has set a name, each node of a cluster gives it another: its own (observed on RabbitMQ 3.10.8).
        """
        if self._assumed and self.cluster is None and broker is not None:
            return f"the broker is of cluster {broker!r}, the rings that were kept of one without a name"
        if broker is None or self.cluster is None or broker in self._own or told_at <= self._former.get(broker, NEVER):
            return ""
        return f"the broker is of cluster {broker!r}, the management API of {self.cluster!r}"

    async def confirmed(self, broker: str, told_at: float, within: float) -> str | None:
        """The present name of the cluster that a broker called `broker` at `told_at`; None where it is another one.

        Asks the management API, for `within` seconds at most, where it has not been asked since the broker told.
        """
        if self.mismatch(broker, told_at) and self._answered <= told_at:
            with suppress(ManagementError, TopologyError, TimeoutError):
                async with asyncio.timeout(within):
                    await self._ask_in_turn(told_at)
        if self.mismatch(broker, told_at):
            return None
        return broker if self.cluster is None or broker in self._own else self.cluster

    async def _ask_in_turn(self, since: float) -> None:
        """Asks unless it was asked after `since`, a while after the last question; not if that has failed just now."""
        pause = self.asked_until + ASK_DISTANCE - time.monotonic()
        if pause > 0 and not self._lock.locked():
            if self._fault is not None:
                return
            await asyncio.sleep(pause)
        await self.ask(since)
