"""The events of a session that concern groups: members that join or leave, and queues with the name of a group."""

import logging
import time

from proxy.session.connection import Connection
from proxy.session.context import Shared
from proxy.session.events import DeclaredGroup, GroupEvent, JoinAsked, Left, LinkChanged, Shadowed
from proxy.session.group_actions import GroupActions

log = logging.getLogger(__name__)


def handle(event: GroupEvent, c: Connection, shared: Shared, actions: GroupActions, peer: str) -> None:
    """Hand an event of a session on to the groups, or log it.

    `actions` are what the groups may do with the session's members, and `peer` is the client's address.
    """
    groups = shared.groups
    if isinstance(event, Shadowed | DeclaredGroup):
        if shared.tells_first(c.vhost, event):
            text = "is a queue and the name of a group: the client uses the queue"
            if isinstance(event, DeclaredGroup):
                text = "is a group: queue.declare makes no queue of that name, and its arguments mean nothing"
            log.warning("client %s, virtual host %r: %r %s", peer, c.vhost, event.name, text)
    elif groups is None:
        pass
    elif isinstance(event, JoinAsked):
        name = c.handshake.connection_name.decode(errors="replace")
        event.member.client = f"{peer} {name}".rstrip()
        event.member.since = time.time()
        groups.join(event.member, actions)
    elif isinstance(event, Left):
        groups.leave(event.member)
    elif isinstance(event, LinkChanged):
        groups.link_changed(event.member)
    else:
        groups.link_refused(event.member, event.shard, event.code, event.text)
