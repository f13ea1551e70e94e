"""A model of a broker with single active consumers, of clients, and of beats that come late or never.

The groups in it are the real ones (`proxy.groups.group`), and so are the tables of their links. Modelled are RabbitMQ's
queues, with the rule by which RabbitMQ 4.3 keeps a consumer that is gone; the sessions, each command with a delay; the
clients; and the ways of the beats. `World.faults` collects what must not be, while time goes on.

A queue gives its messages to the consumer of the highest priority, and among equals to the one that came first. An
active consumer that holds messages when one of a higher priority waits gives way: it gets nothing more, and if its
channel ends before it has acked, RabbitMQ 4.3 keeps it. All links have the same priority, so this must never happen.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from proxy.groups.beats import Beat, decode, encode
from proxy.groups.decide import Act, Step
from proxy.groups.group import Group
from proxy.groups.model import Link, LinkAction, LinkEvent, LinkState, Member
from proxy.groups.pauses import PauseOrder, Pauses, Verb
from proxy.groups.peers import Question
from proxy.groups.timing import ACKS_EVERY, BEAT

PRIORITY = 1
"""The x-priority of all links."""

REST = 6.0
"""Seconds, and the acks, within which any shard with a fit member must be consumed again after a disturbance."""

_EPOCH = 1_800_000_000.0
_NEVER = float("inf")


class Consumer:
    """One consumer at the broker: a link's, from its basic.consume to the end of its channel."""

    def __init__(self, link: Link, session: "Session") -> None:
        self.link, self.session = link, session
        self.unacked: list[int] = []
        self.held: list[tuple[int, float]] = []
        """The messages that the client holds, each with the time when it came."""
        self.gives_way = False
        self.is_ended = False
        """Whether its channel has ended for the sidecar or the client; the broker may have yet to notice."""


class Queue:
    """One queue with single active consumer, and the rule by which RabbitMQ 4.3 keeps consumers that are gone."""

    def __init__(self, name: str) -> None:
        self.name, self.exists = name, True
        self.consumers: list[Consumer] = []
        self.has_command = False
        """Whether the command that put a marker consumes it once no member does, and nothing but the marker is left."""
        self.ready: list[int] = []
        self.sent = 0
        self.holding: set[Consumer] = set()
        """The consumers of which clients hold messages, by what the clients know."""
        self.kept = 0
        """How often the broker has kept a consumer that is gone."""
        self.still_since: float | None = None
        self.actives: list[tuple[float, str]] = []
        self.marker: int | None = None
        """The number of the marker, the last message; None where there is none."""
        self.opened = 0
        """How many consumers have come."""

    @property
    def active(self) -> Consumer | None:
        return self.consumers[0] if self.consumers else None

    @property
    def is_moving(self) -> bool:
        """Whether the queue has not just one consumer whose link is open."""
        return len(self.consumers) != 1 or self.consumers[0].link.state != LinkState.OPEN

    def add(self, consumer: Consumer, priority: int = PRIORITY) -> None:
        """A consumer comes; one of a higher priority has the active one give way."""
        if self.consumers and priority > PRIORITY and self.consumers[0].unacked:
            self.consumers[0].gives_way = True
        self.consumers.append(consumer)
        self.opened += 1

    def remove(self, consumer: Consumer) -> None:
        """A consumer's channel ends: what it held comes back where it was."""
        if consumer in self.consumers:
            if consumer.gives_way and consumer.unacked:
                self.kept += 1
                return
            self.consumers.remove(consumer)
            self.ready = sorted(consumer.unacked + self.ready)
            consumer.unacked = []


class Client:
    """How one member's client acks: after a time, each message or several at once; or not at all."""

    def __init__(self, slowest: float = 0.2, batch: int = 1) -> None:
        self.slowest, self.batch, self.acks = slowest, batch, True


class Session:
    """The session of one member: it does what the group says, and its commands take a moment to the broker."""

    def __init__(self, sidecar: "Sidecar", member: Member, client: Client, node: int, room: int) -> None:
        self.world, self.sidecar, self.member, self.client = sidecar.world, sidecar, member, client
        self.node, self.room = node, room
        self.is_over = False
        self.consumers: dict[Link, Consumer] = {}

    def _enter(self, link: Link, event: LinkEvent) -> None:
        world = self.world
        action = link.enter(event, world.now)
        world.changed = world.now
        consumer = self.consumers.get(link)
        if action is LinkAction.CLOSE and consumer is not None:
            world.ended(consumer)
            world.after(world.delay(), world.channel_ends, consumer)
        if action is LinkAction.SUBSCRIBE:
            made = self.consumers[link] = Consumer(link, self)
            world.after(world.delay(), world.consume, made)
        self.sidecar.changed(self.member)

    def open(self, shard: str) -> str:
        if self.is_over or len(self.member.links) >= self.room:
            return "no channel number is free"
        link = self.member.links[shard] = Link(self.member, shard)
        link.since = self.sidecar.clock()
        self._enter(link, LinkEvent.WANT)
        return ""

    def let_go(self, shard: str) -> None:
        link = self.member.links.get(shard)
        if link is None or self.is_over:
            return
        self._enter(link, LinkEvent.LET_GO)
        self._settled(link)

    def give_up(self, shard: str) -> None:
        if (link := self.member.links.get(shard)) is not None and not self.is_over:
            self._enter(link, LinkEvent.GIVE_UP)

    def _settled(self, link: Link) -> None:
        if link.state == LinkState.LEAVING and not link.unacked:
            self._enter(link, LinkEvent.SETTLED)

    # Messages of the broker

    def consuming(self, consumer: Consumer) -> None:
        if consumer.is_ended or self.is_over:
            return
        self.member.pauses.pop(consumer.link.shard, None)
        self._enter(consumer.link, LinkEvent.CONSUMING)

    def refused(self, consumer: Consumer, why: str) -> None:
        if not consumer.is_ended and not self.is_over:
            world, shard = self.world, consumer.link.shard
            world.ended(consumer)
            self.sidecar.group.refused(self.member, shard, why, world.now)
            pair = self.member.id, shard
            if pair not in world.denied and world.queues[shard].exists:
                # The broker has ceased to refuse the link while this refusal was on its way.
                world.paused[pair] = self.member.pauses[shard].until
            self._enter(consumer.link, LinkEvent.REFUSED)

    def closed(self, consumer: Consumer) -> None:
        if not self.is_over and self.member.links.get(consumer.link.shard) is consumer.link:
            self._enter(consumer.link, LinkEvent.CLOSED)

    def delivered(self, consumer: Consumer, number: int) -> None:
        link, world = consumer.link, self.world
        if consumer.is_ended or self.is_over or link.state != LinkState.OPEN:
            return
        if number == world.queues[link.shard].marker:
            link.is_marked = True
            self.let_go(link.shard)
            return
        world.passed(consumer, number)
        link.delivered += 1
        link.delivered_at = world.now
        link.unacked += 1
        consumer.held.append((number, world.now))
        if self.client.acks and len(consumer.held) >= self.client.batch:
            world.after(0.001 + world.random.random() * self.client.slowest, self.ack, consumer, number)

    def ack(self, consumer: Consumer, number: int) -> None:
        """The client acks all up to a message."""
        if consumer.is_ended or self.is_over or not self.client.acks:
            return
        settled = [message for message, _ in consumer.held if message <= number]
        del consumer.held[: len(settled)]
        if not consumer.held:
            self.world.queues[consumer.link.shard].holding.discard(consumer)
        consumer.link.unacked -= len(settled)
        self.world.after(self.world.delay(), self.world.acked, consumer, settled)
        self._settled(consumer.link)

    def end(self, *, notice: float | None = None) -> None:
        """The client's and the broker's connection end; the broker notices after so many seconds."""
        if self.is_over:
            return
        self.is_over = True
        for link in list(self.member.links.values()):
            link.enter(LinkEvent.LOST, self.world.now)
        for consumer in self.consumers.values():
            self.world.ended(consumer)
            late = self.world.random.uniform(0.005, 0.03) if notice is None else notice
            self.world.after(late, self.world.channel_ends, consumer)


class Sidecar:
    """One sidecar of the group."""

    def __init__(self, world: "World", name: str, skew: float = 0.0) -> None:
        self.world, self.name, self.skew = world, name, skew
        self.is_alive = self.has_queue = True
        self.group = Group(name, f"host of {name}", world.now)
        self.sessions: dict[str, Session] = {}
        self.ring = set(world.queues)
        self._queues = 0
        self._next = _NEVER
        """When the group is looked at next."""
        self._acks_at = 0.0
        self._pauses, self._read = Pauses(), 0
        if world.orders:
            self.group.awaits_pauses(world.now)
            world.after(0.05, self.read_orders)
        self.connect()

    def clock(self) -> float:
        return _EPOCH + self.world.now + self.skew

    def connect(self) -> None:
        """The connection for beats is there, with a new queue."""
        self._queues += 1
        self.has_queue = True
        self.group.connected(f"{self.name}.{self._queues}", self.world.now)
        self.look()

    def disconnect(self) -> None:
        self.has_queue = False
        self.group.connected("", self.world.now)

    def join(self, name: str, client: Client | None = None, room: int = 1_000_000, node: int = 0) -> Session:
        member = Member(name, "/", "orders", 1, b"tag")
        member.prefetch, member.since = self.world.prefetch, self.clock()
        session = self.sessions[name] = Session(self, member, client or Client(), node, room)
        self.group.follow(self.ring, self.world.now, self.world.now)
        self.group.joined(member, self.world.now)
        self.look()
        return session

    def cancel(self, name: str) -> None:
        """A client cancels: its links end once what it holds is acked."""
        session = self.sessions[name]
        session.member.leaving = True
        for shard in list(session.member.links):
            session.let_go(shard)
        self.group.left(session.member, self.world.now)
        self.look()

    def drop(self, name: str, notice: float | None = None) -> None:
        """A client's connection is lost."""
        session = self.sessions.pop(name)
        session.end(notice=notice)
        self.group.left(session.member, self.world.now)
        self.look()

    def kill(self) -> None:
        self.is_alive = self.has_queue = False
        for session in self.sessions.values():
            session.end()

    def follow(self, ring: set[str]) -> None:
        self.ring = set(ring)
        self.group.follow(self.ring, self.world.now, self.world.now)
        self.look()

    def changed(self, member: Member) -> None:
        self.group.changed(member, self.world.now)
        self.look()

    def look(self) -> None:
        """Have the group looked at when that is due."""
        due = max(self.group.due, self.world.now)
        if due < self._next:
            self._next = due
            self.world.at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        if not self.is_alive or self._next != due:
            return
        self._next, now = _NEVER, self.world.now
        if now < self.group.due:
            self.look()
            return
        if now >= self._acks_at:
            self._acks_at = now + ACKS_EVERY
            self.acks()
        tick = self.group.tick(now)
        for step in tick.steps:
            self._do(step)
        if tick.beat is not None and self.has_queue:
            self.world.publish(self, tick.beat)
        for question in tick.questions:
            self.world.ask(self, question)
        for shard in tick.counted:
            queue = self.world.queues[shard]
            count = len(queue.consumers) + (queue.has_command and queue.ready == [queue.marker])
            self.world.after(0.01, self._counted, shard, count)
        self.look()

    def _do(self, step: Step) -> None:
        if (session := self.sessions.get(step.member)) is None:
            return
        if step.act is Act.LET_GO:
            session.let_go(step.shard)
        elif why := session.open(step.shard):
            self.group.refused(session.member, step.shard, why, self.world.now, lacked_room=True)

    def _counted(self, shard: str, count: int) -> None:
        self.group.counted(shard, min(count, 1), self.world.now)
        self.look()

    def acks(self) -> None:
        """End the links whose clients have not acked in time."""
        now, world = self.world.now, self.world
        for session in self.sessions.values():
            for link in list(session.member.links.values()) if not session.is_over else ():
                consumer = session.consumers[link]
                if not consumer.held:
                    continue
                if now - consumer.held[0][1] > world.ack_timeout:
                    self.group.stalled(session.member, now + world.ack_timeout, now)
                    session.give_up(link.shard)
                elif link.state == LinkState.LEAVING and now - link.changed_at > world.leave_timeout:
                    session.give_up(link.shard)

    def read_orders(self) -> None:
        """Read the orders to pause that it has not read yet."""
        if self.is_alive:
            for order in self.world.orders[self._read :]:
                self._pauses.take(order, "operator")
            self._read = len(self.world.orders)
            self.group.paused(self._pauses, self.world.now)
            self.look()

    def heard(self, beat: Beat) -> None:
        if self.is_alive and self.has_queue:
            self.group.heard(beat, self.world.now)
            self.look()


class World:
    """The broker, the sidecars and the time."""

    def __init__(self, seed: int, shards: int = 12, prefetch: int = 10, every: float = 0.05) -> None:
        self.random, self.now = Random(seed), 0.0
        self.prefetch, self._every = prefetch, every
        self.is_calm = False
        """Whether a shard of which the only consumer's link is open gets a tenth of the messages."""
        self.changed = 0.0
        """When the last link or consumer changed."""
        self.queues = {f"s{number:02}": Queue(f"s{number:02}") for number in range(shards)}
        self.sidecars: dict[str, Sidecar] = {}
        self.ack_timeout, self.leave_timeout = 600.0, 30.0
        self.lost: dict[tuple[str, str], float] = {}
        """The share of beats that are lost, by sender and receiver; with two empty names, of all."""
        self.late = (0.002, 0.01)
        """The least and the most seconds of a beat's way."""
        self.alarm = False
        """Whether the broker takes no beats."""
        self.denied: set[tuple[str, str]] = set()
        """By member and shard, the links that the broker refuses."""
        self.paused: dict[tuple[str, str], float] = {}
        """By member and shard, when the pause ends that ran as the broker ceased to refuse the link."""
        self.hanging: set[tuple[str, str]] = set()
        """By member and shard, the links that the broker does not answer."""
        self.orders: list[PauseOrder] = []
        """The orders to pause and to resume, which the sidecars read one by one."""
        self.pauses = Pauses()
        """The pauses that follow from these."""
        self.ordered = 0.0
        """When the last of them was given."""
        self.silent: set[str] = set()
        """The queues of sidecars about which the broker gives no answer, as their node is away."""
        self.idle: set[str] = set()
        """The queues that get no messages."""
        self.faults: list[tuple[object, ...]] = []
        self.disturbed = 0.0
        self.over = 0.0
        """When the last disturbance that is known to end does so."""
        self.bound = REST
        self.log: list[tuple[float, str]] = []
        self.slowest = 0.0
        """The longest time that a shard with a fit member was not consumed."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._published = 0
        self._number = 0
        self.after(0.0, self._publish)
        self.after(0.05, self._judge)

    def at(self, time: float, do: Callable[..., None], *its: Any) -> None:
        self._number += 1
        heappush(self._heap, (time, self._number, do, its))

    def after(self, seconds: float, do: Callable[..., None], *its: Any) -> None:
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, do, its))

    def run(self, seconds: float) -> None:
        heap, until = self._heap, self.now + seconds
        while heap[0][0] <= until:
            self.now, _, do, its = heappop(heap)
            do(*its)
        self.now = until

    def delay(self) -> float:
        return 0.001 + 0.004 * self.random.random()

    def sidecar(self, name: str, skew: float = 0.0) -> Sidecar:
        found = self.sidecars[name] = Sidecar(self, name, skew)
        return found

    @property
    def sessions(self) -> list[Session]:
        return [
            each for it in self.sidecars.values() if it.is_alive for each in it.sessions.values() if not each.is_over
        ]

    def disturb(self, what: str) -> None:
        self.disturbed = self.changed = self.now
        self.log.append((round(self.now, 2), what))

    def fault(self, *what: object) -> None:
        self.faults.append((round(self.now, 2), *what))

    def order(self, verb: Verb, shard: str, late: Sequence[float] = (0.01,)) -> None:
        """An operator gives an order about a shard, or about all; each sidecar reads it some of these seconds later."""
        self.disturb(f"{verb} {shard or 'all'}")
        self.orders.append(PauseOrder(verb, "orders", self.now, shard))
        self.pauses.take(self.orders[-1], "operator")
        self.ordered = self.now
        for number, sidecar in enumerate(self.sidecars.values()):
            self.after(late[number % len(late)], sidecar.read_orders)

    # Beats.

    def publish(self, sender: Sidecar, beat: Beat) -> None:
        if self.alarm:
            return
        told = decode(encode(beat)) if self.random.random() < 0.02 else beat
        least, most = self.late
        for receiver in self.sidecars.values():
            if not receiver.is_alive or not receiver.has_queue:
                continue
            share = self.lost.get((sender.name, receiver.name), self.lost.get(("", ""), 0.0)) if self.lost else 0.0
            if not share or self.random.random() >= share:
                self.after(least + (most - least) * self.random.random(), receiver.heard, told)

    def ask(self, asker: Sidecar, question: Question) -> None:
        asked = self.sidecars.get(question.sidecar)
        is_there: bool | None = asked is not None and asked.has_queue and asked.group.queue == question.queue
        late = 0.01
        if question.queue in self.silent:
            is_there, late = None, 1.0

        def tell() -> None:
            if asker.is_alive:
                asker.group.answered(question, is_there, self.now)
                asker.look()

        self.after(late, tell)

    # Queues.

    def _publish(self) -> None:
        self._published += 1
        is_turn = not self.is_calm or self._published % 10 == 0
        for queue in self.queues.values():
            if len(queue.ready) < 100 and queue.exists and (is_turn or queue.is_moving) and queue.name not in self.idle:
                queue.ready.append(queue.sent)
                queue.sent += 1
                self._pump(queue)
        self.after(self._every, self._publish)

    def _pump(self, queue: Queue) -> None:
        if queue.ready and queue.consumers:
            consumer = queue.consumers[0]
            while queue.ready and len(consumer.unacked) < self.prefetch and not consumer.gives_way:
                number = queue.ready.pop(0)
                consumer.unacked.append(number)
                self.after(0.006, consumer.session.delivered, consumer, number)

    def consume(self, consumer: Consumer) -> None:
        queue, session = self.queues[consumer.link.shard], consumer.session
        if session.is_over:
            return
        if (session.member.id, queue.name) in self.hanging:
            self.after(0.5, self.consume, consumer)
            return
        if not queue.exists or (session.member.id, queue.name) in self.denied:
            self.after(self.delay(), session.refused, consumer, "403 ACCESS_REFUSED")
            return
        if consumer.is_ended:
            return
        queue.add(consumer)
        self._note(queue)
        self.after(self.delay(), session.consuming, consumer)
        self._pump(queue)

    def channel_ends(self, consumer: Consumer) -> None:
        """The broker sees the end of a channel."""
        queue = self.queues[consumer.link.shard]
        queue.remove(consumer)
        self._note(queue)
        self.after(self.delay(), consumer.session.closed, consumer)
        self._pump(queue)

    def ended(self, consumer: Consumer) -> None:
        """The channel of a consumer ends for its sidecar or client; the broker sees it later."""
        consumer.is_ended = True
        consumer.held.clear()
        self.queues[consumer.link.shard].holding.discard(consumer)

    def acked(self, consumer: Consumer, numbers: list[int]) -> None:
        for number in numbers:
            if number in consumer.unacked:
                consumer.unacked.remove(number)
        self._pump(self.queues[consumer.link.shard])

    def _note(self, queue: Queue) -> None:
        self.changed = self.now
        active = queue.active
        if active is not None and (not queue.actives or queue.actives[-1][1] != active.session.member.id):
            queue.actives.append((self.now, active.session.member.id))

    def lose_node(self, node: int, back_after: float, timeout: float) -> None:
        """A node is lost: its clients are gone at once, and its consumers only after a timeout, or as it is back."""
        self.disturb(f"node {node} is lost")
        for sidecar in self.sidecars.values():
            for name, session in list(sidecar.sessions.items()):
                if session.node == node and not session.is_over:
                    sidecar.drop(name, notice=min(back_after, timeout))

    def mark(self, shard: str) -> None:
        """A marker is put behind the messages of a shard, which gets no more."""
        queue = self.queues[shard]
        self.idle.add(shard)
        queue.marker = queue.sent
        queue.ready.append(queue.sent)
        queue.sent += 1
        self._pump(queue)

    def unmark(self, shard: str) -> None:
        """The marker is taken away, while no member has it, and the shard gets messages again."""
        queue = self.queues[shard]
        assert queue.ready == [queue.marker]
        queue.ready, queue.marker = [], None
        self.idle.discard(shard)
        self.disturb("a marker is taken away")

    # The judgement.

    def passed(self, consumer: Consumer, number: int) -> None:
        """A client gets a message: no other may hold one of the shard, and none before may be ready."""
        queue = self.queues[consumer.link.shard]
        queue.holding.add(consumer)
        if len(queue.holding) > 1:
            self.fault("two hold", queue.name, *sorted(each.session.member.id for each in queue.holding))
        if consumer.held and number < consumer.held[-1][0]:
            self.fault("out of order", queue.name, number)
        if queue.ready and queue.ready[0] < number:
            self.fault("passed over", queue.name, queue.ready[0], number)

    def _is_fit(self, session: Session, queue: Queue) -> bool:
        member = session.member
        pair = (member.id, queue.name)
        has_room = len(member.links) < session.room or queue.name in member.links
        may = pair not in self.denied and pair not in self.hanging and queue.name in session.sidecar.ring
        may = may and self.now >= self.paused.get(pair, 0.0)
        return may and has_room and session.client.acks and not member.leaving

    def _judge(self) -> None:
        for queue in self.queues.values():
            active = queue.active
            is_good = active is not None and not active.is_ended and self._consumes(active)
            if self.pauses.of(queue.name) is not None:
                is_good = True
                open_links = [
                    each for each in queue.consumers if each.link.state == LinkState.OPEN and not each.is_ended
                ]
                if open_links and self.now - self.ordered > self.bound:
                    self.fault("consumed though paused", queue.name, open_links[0].session.member.id)
            is_ending = queue.marker is not None and queue.ready[:1] == [queue.marker]
            if (
                is_good
                or is_ending
                or not queue.exists
                or not any(self._is_fit(session, queue) for session in self.sessions)
            ):
                queue.still_since = None
            elif queue.still_since is None:
                queue.still_since = self.now
            else:
                since = max(queue.still_since, self.disturbed)
                self.slowest = max(self.slowest, self.now - since)
                if self.now - since > self.bound:
                    self.fault("nobody consumes", queue.name, active and (active.session.member.id, active.link.state))
                    queue.still_since = self.now
        self.after(0.1, self._judge)

    @staticmethod
    def _consumes(active: Consumer) -> bool:
        """Return whether an active consumer goes on, or ends with its client's next acks."""
        state = active.link.state
        waits_for_acks = state == LinkState.LEAVING and active.unacked and active.session.client.acks
        return state == LinkState.OPEN or state == LinkState.OPENING or bool(waits_for_acks)

    @property
    def is_waiting(self) -> bool:
        """Whether a pause of a refused link or of a stalled member runs, or a link or a consumer is about to change.

        A sidecar notices with its next beat that a pause is over.
        """
        members = [session.member for session in self.sessions]
        noticed = self.now - 2 * BEAT
        return (
            any(noticed < pause.until for member in members for pause in member.pauses.values())
            or any(noticed < member.stalled_until for member in members)
            or any(link.state != LinkState.OPEN for member in members for link in member.links.values())
            or any(consumer.is_ended for queue in self.queues.values() for consumer in queue.consumers)
        )

    def counts(self) -> list[int]:
        """Return how many shards each member has that has not left, ascending."""
        found = Counter({each.member.id: 0 for each in self.sessions if not each.member.leaving})
        for queue in self.queues.values():
            if queue.active is not None:
                found[queue.active.session.member.id] += 1
        return sorted(found.values())

    def is_balanced(self) -> bool:
        """Return whether each shard has exactly one consumer, and the members' numbers differ by one at most."""
        counts = self.counts()
        return all(len(queue.consumers) == 1 for queue in self.queues.values()) and counts[-1] - counts[0] <= 1

    def moves(self, since: float) -> int:
        return sum(at > since for queue in self.queues.values() for at, _ in queue.actives[1:])
