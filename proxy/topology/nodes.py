"""In which order the management API's URLs are asked: the one that answers, before those that lately did not. Pure."""

import time
from collections.abc import Callable, Sequence

from yarl import URL

from proxy.topology.table import NEVER

PASSED_OVER = 30.0
"""Seconds for which a node that did not answer is asked after the others only."""


class Node:
    """One URL of the management API, without its credentials."""

    def __init__(self, url: URL) -> None:
        """For the URL as the setting has it."""
        self.base = url.with_user(None).with_password(None).with_query(None).with_fragment(None)
        self.failed_at = NEVER
        """When it last did not answer, monotonic; NEVER where it has answered since."""
        self.why_foreign = ""
        """Why its cluster was found to be another one; empty where it was not."""

    def __str__(self) -> str:
        """Return its host and port."""
        return f"{self.base.host}:{self.base.port}"


class Nodes:
    """The nodes of one cluster, which are asked in turn. One of them, `current`, is asked for as long as it answers."""

    def __init__(self, urls: Sequence[URL], clock: Callable[[], float] = time.monotonic) -> None:
        """Takes at least one URL."""
        self.all = tuple(map(Node, urls))
        self.current: Node | None = None
        """The node that answered last; None before the first answer."""
        self.switches = 0
        """How often another node became the current one."""
        self._clock = clock

    def in_turn(self) -> list[Node]:
        """Return the nodes in the order in which one request asks them.

        The current one comes first, and the others follow in the order of the setting. Those that did not answer
        within the last `PASSED_OVER` seconds come after all of these.
        """
        since = self._clock() - PASSED_OVER
        return sorted(self.all, key=lambda node: (node.failed_at > since, node is not self.current))

    def is_other(self, node: Node) -> bool:
        """Whether another node has answered so far, so that this one may be of another cluster."""
        return self.current is not None and self.current is not node

    def answered(self, node: Node) -> None:
        """Note an answer of a node that was the current one as it was asked, or of the first node of all."""
        node.failed_at = NEVER
        if self.current is None:
            self.current = node

    def failed(self, node: Node) -> None:
        """Note that a node did not answer."""
        node.failed_at = self._clock()

    def switch(self, node: Node) -> None:
        """Make a node the current one, once it is known to be of the same cluster."""
        if self.current is not node:
            self.current = node
            self.switches += 1
