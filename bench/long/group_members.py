"""Sidecars of one group that are members and nothing else, many in one process; `group_fleet` starts and asks them.

`python -m bench.long.group_members AMQP_URL MANAGEMENT_URL EXCHANGE COUNT` reads the ring, prints `ready`, and obeys
one command a line, each with an answer of one line of JSON:

* `join`: all its sidecars start and have one member each;
* `state`: returns the links, when one has last changed, and the beats sent until now;
* `messages`: returns what members have got since the last such command.

The groups are the sidecar's own (`proxy.groups`), each with a connection for beats. Three parts differ from a
sidecar's: a link is a consumer of aio-pika on a connection of its member's, in place of a session with a client behind
it; all sidecars of the process share the reading of the ring; and for some seconds after `join`, the shards' own
figures come from no reading (see `Readings`).
"""

import asyncio
import contextlib
import json
import logging
import sys
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import aio_pika
import uvloop
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from yarl import URL

from proxy.groups.blocked import BlockedKey
from proxy.groups.groups import Groups
from proxy.groups.membership import Room
from proxy.groups.model import Link, LinkAction, LinkEvent, LinkState, Member
from proxy.groups.operators import Order
from proxy.settings.config import Settings
from proxy.settings.patterns import Selection
from proxy.topology.management import MAX_PAGE, Management
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Router

PREFETCH: Final = 20

_PRIORITY: Final = 1
"""The x-priority of every link of a group."""

_RING_WITHIN: Final = 240.0
"""Seconds within which the ring must have been read and built."""

_LOOK_WITHIN: Final = 20.0
"""Seconds after the start of the sidecars in which no shard is read for its figures."""


class Readings(Management):
    """The management API, where the first readings of shards are answered by the process itself.

    Each sidecar reads all shards of its group once when it starts. One such reading takes the broker about 1 ms a
    shard, and 200 sidecars and 400 shards would keep it busy for minutes; `group_fleet` measures one reading by itself.
    """

    spared = 0
    """How many readings the process has answered by itself."""
    asked = 0
    """How many readings the broker has answered."""
    until = float("inf")
    """Until when readings are answered by the process itself, in monotonic seconds."""

    async def page(self, path: Sequence[str], columns: Sequence[str], most: int = MAX_PAGE) -> object | None:
        """Return the JSON of a page."""
        if time.monotonic() > self.until:
            self.asked += 1
            return await super().page(path, columns, most)
        self.spared += 1
        if path[0] == "overview":
            return {"rabbitmq_version": "4.3.6"}
        return {"type": "quorum", "arguments": {"x-single-active-consumer": True, "x-delivery-limit": -1}}


class Got:
    """The counts and times of the members of this process, as `group_fleet` asks for them."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.changed = 0.0
        """When a link last changed its state, in monotonic seconds."""
        self.sent = self.sent_bytes = 0
        """How many beats all sidecars of the process have sent, and their bytes."""
        self.messages: list[tuple[float, str, bool]] = []
        """When each message came, its body, and whether it was redelivered."""


class OneMember:
    """One sidecar with one member, which acks each message at once, and the links that its group opens for it."""

    def __init__(self, number: int, exchange: str, settings: Settings, shared: "Shared", got: Got) -> None:
        """Nothing is connected yet."""
        self._url, self._got = str(settings.broker_url), got
        self.groups = Groups(
            settings, shared.scheduler, shared.router, shared.api, lambda _: self._connected, uuid.uuid4().hex
        )
        self.member = Member(uuid.uuid4().hex, "/", exchange, 1, b"tag")
        self.member.prefetch, self.member.client = PREFETCH, f"127.0.0.1:{50_000 + number} member-{number}"
        self._connection: AbstractConnection | None = None
        self._channels: dict[Link, AbstractChannel] = {}
        self._opened: dict[Link, asyncio.Event] = {}
        self._one_by_one = asyncio.Lock()
        """Held while a channel is opened or closed: aiormq may give a number again before the broker has freed it."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def _connected(self) -> AbstractConnection:
        # Without heartbeats: where the machine has too much to do, the broker would give up connections that live.
        return await aio_pika.connect(URL(self._url).update_query(heartbeat=0))

    async def join(self) -> None:
        """Connect, and ask to join the group."""
        self._connection = await self._connected()
        self.member.since = time.time()
        self.groups.join(self.member, self)

    async def close(self) -> None:
        """Leave the group in order."""
        for link in list(self.member.links.values()):
            link.enter(LinkEvent.LOST, time.monotonic())
        if self._connection is not None:
            await self._connection.close()
        self.groups.leave(self.member)
        await self.groups.aclose()

    # The actions that its group calls for.

    def start(self, member: Member) -> None:
        """Begin: there is no client to tell."""

    def refuse(self, member: Member, code: int, text: str) -> None:
        """End the process, as every member of the benchmark must be let in."""
        raise SystemExit(f"a member was refused: {code} {text}")

    def open(self, member: Member, shard: str) -> str:
        """Open a link."""
        link = member.links[shard] = Link(member, shard)
        link.since = time.time()
        self._enter(link, LinkEvent.WANT)
        return ""

    def let_go(self, member: Member, shard: str) -> None:
        """Have a link end: nothing is unacked between two turns of the event loop."""
        self._enter(member.links[shard], LinkEvent.LET_GO)
        if member.links[shard].state == LinkState.LEAVING:
            self._enter(member.links[shard], LinkEvent.SETTLED)

    def give_up(self, member: Member, shard: str) -> None:
        """Have a link end at once."""
        self._enter(member.links[shard], LinkEvent.GIVE_UP)

    def backlog(self, member: Member) -> None:
        """Return None: no member is in series."""

    def blocked_keys(self, member: Member, shard: str) -> list[BlockedKey]:
        """Return no keys: no member is in series."""
        return []

    def operate(self, member: Member, order: Order) -> str:
        """Return why an operator's order is not done."""
        return "no member is in series"

    def has_nothing(self, member: Member, shard: str) -> bool:
        return not member.links[shard].unacked

    def is_with_client(self, member: Member, shard: str) -> bool:
        return True

    def hangs_since(self, member: Member) -> float:
        return 0.0

    def fingerprints(self, member: Member, shard: str) -> frozenset[str]:
        return frozenset()

    def oldest_unacked(self, member: Member) -> dict[str, float]:
        """Return nothing, as each message is acked at once."""
        return {}

    def _enter(self, link: Link, event: LinkEvent) -> None:
        now = time.monotonic()
        action = link.enter(event, now)
        self._got.changed = now
        if action is LinkAction.SUBSCRIBE:
            self._opened[link] = asyncio.Event()
            self._begin(self._open(link))
        elif action is LinkAction.CLOSE:
            self._begin(self._close(link))
        self.groups.link_changed(self.member)

    def _begin(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise SystemExit(f"a link failed: {error!r}")

    async def _open(self, link: Link) -> None:
        assert self._connection is not None
        async with self._one_by_one:
            channel = self._channels[link] = await self._connection.channel(publisher_confirms=False)
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(link.shard, ensure=False)

        async def received(message: AbstractIncomingMessage) -> None:
            if link.state in (LinkState.OPENING, LinkState.OPEN):
                self._got.messages.append((time.monotonic(), message.body.decode(), bool(message.redelivered)))
                link.delivered, link.delivered_at = link.delivered + 1, time.monotonic()
                await message.ack()

        await queue.consume(received, arguments={"x-priority": _PRIORITY})
        self._opened[link].set()
        if link.state in (LinkState.OPENING, LinkState.LEAVING):
            self._enter(link, LinkEvent.CONSUMING)

    async def _close(self, link: Link) -> None:
        await self._opened.pop(link).wait()
        async with self._one_by_one:
            await self._channels.pop(link).close()
        self._enter(link, LinkEvent.CLOSED)


class Shared:
    """The reading of the ring, and the API behind it, that all sidecars of the process share."""

    def __init__(self, api: Readings, settings: Settings, exchange: str) -> None:
        """Nothing is read yet."""
        self.api = api
        self.router = Router(settings.ring_max_age, refuse_stale=False)
        selection = Selection(settings.route, settings.shadow, settings.pass_)
        reader = Reader(api, self.router, selection, settle_time=settings.settle_time)
        self.scheduler = Scheduler(reader, self.router, interval=settings.sync_interval, named=[("/", exchange)])


def _count_beats(got: Got) -> None:
    send = Room.send

    def counting(room: Room, body: bytes) -> None:
        got.sent, got.sent_bytes = got.sent + 1, got.sent_bytes + len(body)
        send(room, body)

    Room.send = counting  # type: ignore[method-assign,assignment]


async def _obey(command: str, sidecars: Sequence[OneMember], api: Readings, got: Got) -> dict[str, Any]:
    if command == "join":
        api.until = time.monotonic() + _LOOK_WITHIN
        await asyncio.gather(*(sidecar.join() for sidecar in sidecars))
        return {}
    if command == "messages":
        messages, got.messages = got.messages, []
        return {"messages": messages}
    links = [[(link.shard, link.state) for link in sidecar.member.links.values()] for sidecar in sidecars]
    return {
        "open": [[shard for shard, state in its if state == LinkState.OPEN] for its in links],
        "moving": sum(state != LinkState.OPEN for its in links for _, state in its),
        "changed": got.changed,
        "sent": got.sent,
        "sent_bytes": got.sent_bytes,
        "spared": api.spared,
        "asked": api.asked,
    }


async def _run(amqp_url: str, management_url: str, exchange: str, count: int) -> None:
    settings = Settings(broker_url=URL(amqp_url), management_url=(URL(management_url),), groups=(exchange,))
    got = Got()
    _count_beats(got)
    async with Readings(settings.management_url, 30.0) as api:
        shared = Shared(api, settings, exchange)
        await shared.scheduler.look_up(("/", exchange), _RING_WITHIN)
        following = asyncio.create_task(shared.scheduler.run())
        sidecars = [OneMember(number, exchange, settings, shared, got) for number in range(count)]
        print("ready", flush=True)
        while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
            print(json.dumps(await _obey(command, sidecars, api, got)), flush=True)
        await asyncio.gather(*(sidecar.close() for sidecar in sidecars))
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def main() -> None:
    """Run the command `python -m bench.long.group_members`."""
    amqp_url, management_url, exchange, count = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR)
    uvloop.run(_run(amqp_url, management_url, exchange, int(count)))


if __name__ == "__main__":
    main()
