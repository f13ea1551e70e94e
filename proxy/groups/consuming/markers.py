"""Markers: messages behind the last one of a shard whose generation ends, by which its members let it go.

`ring-proxy topology apply --ordered` puts a marker into each shard of the generation that ends, once nothing can come
behind it any more, and waits as one more consumer. A marker came through the default exchange, without a body and
without stamps, and `x-ring-marker` among its headers is an integer.

No client gets a marker, and the sidecar neither acks nor rejects it: it goes back to its queue with the end of the
link, for the command. (A member without acks has taken it out of the queue by then.) The link is let go once all before
the marker is settled. LEAVING means that already, since the client gets nothing that comes behind. In series, messages
wait in the window, and so does what was returned: the link goes on until nothing is held, also of messages that came
behind the marker, and only then is let go. `Member.rest` has the pause after the link's end.

A user with the right to write to the default exchange can publish what looks like a marker, and it would stop the shard
for good. A real one comes only once every sidecar routes by a later generation. A marker in a shard whose generation
does not end, as this sidecar has read the bindings, is therefore acked, like a probe. Should it have been real, the
command, which waits in the line, finds its marker gone and puts another one.
"""

# mypyc: compiled

import logging

from proxy.groups.consuming import links
from proxy.groups.consuming.hidden import Consuming, HiddenChannel
from proxy.groups.model import Link, LinkState
from proxy.wire import content
from proxy.wire.frames import BASIC_ACK, END, U32, u64

log = logging.getLogger(__name__)


def is_marker(method: bytes, data: bytes, i: int, end: int) -> bool:
    """Return whether a message without a body is a marker.

    `method` is the frame of its basic.deliver, and its content header is in `data` from `i` to `end`.
    """
    return not method[21 + method[11]] and content.is_marker(data, i + 7, end - 1)


def take(g: Consuming, hidden: HiddenChannel) -> None:
    """Take a marker, of which `hidden` has the method: the client gets nothing of it, and its link is let go."""
    link, window = hidden.link, hidden.window
    assert link is not None
    if link.member.ending is not None and link.shard not in link.member.ending:
        _tell_strange(link)
        take_probe(g, hidden)
        return
    method, hidden.frame = hidden.frame, b""
    hidden.end()
    if window is None:
        link.unacked -= not link.member.no_ack
    if link.state != LinkState.OPEN and link.state != LinkState.LEAVING:
        return
    member = link.member
    if not link.is_marked and link.shard not in member.endings:
        log.info(
            "group %r, virtual host %r: shard %r ends with its generation: member %s lets it go once all is settled",
            *(member.group, member.vhost, link.shard, member.client or member.id),
        )
    link.is_marked = True
    if window is None:
        g.due.append(links.end_when_settled(g, hidden, link))
    else:
        window.marker = window.marker or u64(method, 12 + method[11])
        g.due.append(end_if_drained(g, hidden))


def _tell_strange(link: Link) -> None:
    """Log a marker of a shard whose generation does not end, the first one of each shard."""
    member = link.member
    if link.shard not in member.strange:
        member.strange.add(link.shard)
        log.warning(
            "group %r, virtual host %r: markers come in shard %r, whose generation does not end, and are taken away: "
            "somebody with the right to write on amq.default publishes them",
            *(member.group, member.vhost, link.shard),
        )


def take_probe(g: Consuming, hidden: HiddenChannel) -> None:
    """Ack a probe, of which `hidden` has the method, and give the client nothing of it.

    A node has routed it that did not know yet that the lane leads nowhere. Another sender loses it, and nothing more.
    """
    method, hidden.frame = hidden.frame, b""
    hidden.end()
    link = hidden.link
    assert link is not None
    if link.member.no_ack:
        return
    if hidden.window is None:
        link.unacked -= 1
    if not hidden.ended:
        hidden.answers += 1
        ack = hidden.settle_start + U32.pack(BASIC_ACK) + method[12 + method[11] : 20 + method[11]] + bytes((0, END))
        g.due.append(ack + links.settled(g, hidden, link))


def end_if_drained(g: Consuming, hidden: HiddenChannel) -> bytes:
    """Return what ends a link in series by which a marker came, and of which nothing is held any more; empty if not."""
    link, window = hidden.link, hidden.window
    if window is None or not window.marker or window.held or link is None or link.state != LinkState.OPEN:
        return b""
    return hidden.take_acks() + links.end_when_settled(g, hidden, link)
