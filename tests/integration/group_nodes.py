"""Groups without sessions: members whose links are consumers of aio-pika, in sidecars that are objects of the test."""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from yarl import URL

from proxy.groups.blocked import BlockedKey
from proxy.groups.groups import Groups
from proxy.groups.membership import Connect
from proxy.groups.model import Link, LinkAction, LinkEvent, LinkState, Member
from proxy.groups.operators import Order
from proxy.settings.config import Settings
from proxy.settings.patterns import Selection
from proxy.topology.management import Management
from proxy.topology.marker import LINK_PRIORITY
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Router
from testbed.broker import Broker
from testbed.node import Node as RabbitNode
from tests.integration.broker_api import DEADLINE_SECONDS

_numbers = itertools.count(1)


async def until(what: str, look: Callable[[], object], within: float = DEADLINE_SECONDS) -> None:
    """Return once `look` returns something true; fails the test where it does not in time."""
    deadline = time.monotonic() + within
    while not look():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.02)


class MemberSession:
    """The client of one member, which acks each message a moment later, and the links that its sidecar opens for it."""

    def __init__(self, vhost: str, connection: AbstractConnection, prefetch: int, groups: Groups) -> None:
        self.member = Member(f"member-{next(_numbers):03}", vhost, "orders", 1, b"tag")
        self.member.prefetch, self.member.since = prefetch, time.time()
        self.started = asyncio.Event()
        self.refused: tuple[int, str] | None = None
        self.acks = True
        """Whether messages are acked."""
        self.got: dict[str, list[tuple[int, bool]]] = {}
        """By shard, the number in each message and whether it was redelivered."""
        self._connection, self._groups = connection, groups
        self._channels: dict[Link, AbstractChannel] = {}
        self._opened: dict[Link, asyncio.Event] = {}
        self._unacked: dict[Link, list[float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Calls of the groups

    def start(self, member: Member) -> None:
        assert member is self.member
        self.started.set()

    def refuse(self, member: Member, code: int, text: str) -> None:
        self.refused = code, text
        self.started.set()

    def open(self, member: Member, shard: str) -> str:
        link = member.links[shard] = Link(member, shard)
        link.since = time.time()
        self._enter(link, LinkEvent.WANT)
        return ""

    def let_go(self, member: Member, shard: str) -> None:
        link = member.links[shard]
        self._enter(link, LinkEvent.LET_GO)
        self._look(link)

    def give_up(self, member: Member, shard: str) -> None:
        self._enter(member.links[shard], LinkEvent.GIVE_UP)

    def backlog(self, member: Member) -> None:
        return None

    def blocked_keys(self, member: Member, shard: str) -> list[BlockedKey]:
        return []

    def operate(self, member: Member, order: Order) -> str:
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
        return {link.shard: times[0] for link, times in self._unacked.items() if times and self._takes_acks(link)}

    # Work on links

    def _enter(self, link: Link, event: LinkEvent) -> None:
        action = link.enter(event, time.monotonic())
        if action is LinkAction.SUBSCRIBE:
            self._opened[link] = asyncio.Event()
            self._begin(self._open(link))
        elif action is LinkAction.CLOSE:
            self._begin(self._close(link))
        self._groups.link_changed(self.member)

    def _begin(self, doing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, link: Link) -> None:
        channel = self._channels[link] = await self._connection.channel(publisher_confirms=False)
        self._opened[link].set()
        await channel.set_qos(self.member.prefetch)
        queue = await channel.get_queue(link.shard, ensure=False)

        async def received(message: AbstractIncomingMessage) -> None:
            await self._received(link, message)

        await queue.consume(received, arguments={"x-priority": LINK_PRIORITY})
        self._enter(link, LinkEvent.CONSUMING)

    async def _close(self, link: Link) -> None:
        await self._opened[link].wait()
        await self._channels.pop(link).close()
        self._enter(link, LinkEvent.CLOSED)

    @staticmethod
    def _takes_acks(link: Link) -> bool:
        return link.state in (LinkState.OPENING, LinkState.OPEN, LinkState.LEAVING)

    def _look(self, link: Link) -> None:
        if link.state == LinkState.LEAVING and not link.unacked:
            self._enter(link, LinkEvent.SETTLED)

    async def _received(self, link: Link, message: AbstractIncomingMessage) -> None:
        if link.state not in (LinkState.OPENING, LinkState.OPEN):
            return
        link.delivered, link.delivered_at, link.unacked = link.delivered + 1, time.monotonic(), link.unacked + 1
        times = self._unacked.setdefault(link, [])
        times.append(link.delivered_at)
        self.got.setdefault(link.shard, []).append((int(message.body.split()[-1]), bool(message.redelivered)))
        if self.acks:
            await asyncio.sleep(0.01)
            if self._takes_acks(link):
                link.unacked -= 1
                times.pop(0)
                await message.ack()
                self._look(link)

    async def close(self) -> None:
        for link in list(self.member.links.values()):
            link.enter(LinkEvent.LOST, time.monotonic())
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await self._connection.close()


class Node:
    """One sidecar's groups, with a broker user, readings and members of its own."""

    def __init__(self, broker: Broker, vhost: str, groups: Groups) -> None:
        self._broker, self._vhost, self.groups = broker, vhost, groups
        self.members: list[MemberSession] = []

    async def join(self, prefetch: int = 5) -> MemberSession:
        session = MemberSession(self._vhost, await connect(self._broker, self._vhost), prefetch, self.groups)
        self.members.append(session)
        self.groups.join(session.member, session)
        await asyncio.wait_for(session.started.wait(), DEADLINE_SECONDS)
        return session

    async def leave(self, session: MemberSession) -> None:
        """The client closes its connection."""
        self.members.remove(session)
        await session.close()
        self.groups.leave(session.member)

    async def crash(self) -> None:
        """The process ends without a word: its sockets are closed and it does nothing more."""
        for group in self.groups.running.values():
            for task in group._tasks:
                task.cancel()
            group.room._task.cancel()
            await group.room.line.beats.drop()
        for session in self.members:
            await session.close()
        self.members.clear()


def address(broker: Broker | RabbitNode, vhost: str, port: int | None = None) -> str:
    """Return the URL of the broker, or of a sidecar's port in its place, as the broker's administrator."""
    url = urlsplit(broker.amqp_url)
    where = url.netloc if port is None else f"{url.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
    return urlunsplit((url.scheme, where, "/" + quote(vhost, safe=""), "", ""))


async def connect(broker: Broker, vhost: str) -> AbstractConnection:
    return await aio_pika.connect(address(broker, vhost))


@asynccontextmanager
async def node(broker: Broker, vhost: str, **settings: object) -> AsyncIterator[Node]:
    """Give one sidecar's groups; all connections are closed at the end."""
    made = Settings(
        broker_url=URL(broker.amqp_url),
        management_url=(URL(broker.management_url),),
        groups=("*",),
        **settings,  # type: ignore[arg-type]
    )

    def connector(name: str) -> Connect:
        return lambda: connect(broker, name)

    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Management(made.management_url, 5.0))
        router = Router(300.0, refuse_stale=False)
        reader = Reader(api, router, Selection(["*"], [], []), settle_time=0.2)
        scheduler = Scheduler(reader, router, interval=0.5)
        running = asyncio.create_task(scheduler.run())
        groups = Groups(made, scheduler, router, api, connector, uuid.uuid4().hex)
        here = Node(broker, vhost, groups)
        try:
            yield here
        finally:
            for session in here.members:
                await session.close()
            await groups.aclose()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
