"""Keep the order in which the management API's nodes are asked: those that lately failed come last. Pure."""

import time
from collections.abc import Callable, Sequence

from yarl import URL

from proxy.topology.table import NEVER

PASSED_OVER = 30.0
"""Seconds for which a node that did not answer is only asked after the others."""


class Node:
    """One node of the management API, known by its URL from the setting `management_url`."""

    def __init__(self, url: URL) -> None:
        """Take the URL as the setting has it; its credentials are left out of `base`."""
        self.base = url.with_user(None).with_password(None).with_query(None).with_fragment(None)
        """The URL without credentials, query and fragment."""
        self.failed_at = NEVER
        """When the node last failed to answer, in monotonic seconds; NEVER if it has answered since."""
        self.why_foreign = ""
        """Why the node was found to belong to another cluster; empty if it was not."""

    def __str__(self) -> str:
        """Return the host and port of the URL, as log lines show a node."""
        return f"{self.base.host}:{self.base.port}"


class Nodes:
    """The nodes of one cluster's management API. One of them, `current`, is asked for as long as it answers."""

    def __init__(self, urls: Sequence[URL], clock: Callable[[], float] = time.monotonic) -> None:
        """Take the URLs, at least one, in the order of the setting; `clock` gives monotonic seconds."""
        self.all = tuple(map(Node, urls))
        """All nodes, in the order of the setting."""
        self.current: Node | None = None
        """The node that is asked first; None before the first answer."""
        self.switches = 0
        """The number of times that another node became the current one."""
        self._clock = clock

    def in_turn(self) -> list[Node]:
        """Return the nodes in the order in which one request asks them.

        The current one comes first, and the others follow in the order of the setting. Those that did not answer
        within the last `PASSED_OVER` seconds come after all of these.
        """
        since = self._clock() - PASSED_OVER
        return sorted(self.all, key=lambda node: (node.failed_at > since, node is not self.current))

    def is_other(self, node: Node) -> bool:
        """Return whether another node is the current one, so that this node may belong to another cluster."""
        return self.current is not None and self.current is not node

    def answered(self, node: Node) -> None:
        """Note that a node answered. The first node to answer becomes the current one."""
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
