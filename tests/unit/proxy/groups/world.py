"""A model of a broker's single active consumers, and sidecars that tell each other beats late or never."""

import heapq
import itertools
import time
from collections import Counter
from random import Random

from proxy.groups.beat import decode, encode
from proxy.groups.claims import lowest, priority
from proxy.groups.decision import Act
from proxy.groups.member import Link, LinkState, Member
from proxy.groups.state import GroupState

STEP = 0.05
"""Seconds of one turn of the world."""


GHOST = "ghost"
"""The member of consumers that the broker keeps although their channels have ended."""


class Shard:
    """One quorum queue with single active consumer, on which messages always wait.

    Whoever has the highest priority gets messages, but only once the one before has acked all that it got. As
    RabbitMQ 4.3 does, it keeps a consumer whose channel ends while it holds messages and another one is to take over.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.links: list[Link] = []
        """The consumers, in the order in which they have subscribed."""
        self.active: Link | None = None
        self.is_giving_way = False
        """Whether the active one gets nothing more until it has acked all: one was above it, and may be gone."""
        self._last = ""
        self.takeovers: list[tuple[str, str]] = []
        """Each change of the active consumer from one member to another."""

    def subscribe(self, link: Link) -> None:
        self.links.append(link)
        self.look()

    def close(self, link: Link) -> None:
        """The link's channel is closed: what it held is ready again."""
        if self.active is link and link.unacked and self.is_giving_way:
            self.links.append(Link(Member(GHOST, "/", "orders", 0, b""), self.name, 0, link.priority))
        self.links.remove(link)
        link.unacked = 0
        if self.active is link:
            self.active = None
        self.look()

    def look(self) -> None:
        best = max(self.links, key=lambda link: (link.priority, -self.links.index(link)), default=None)
        if self.active is None:
            self.active, self.is_giving_way = best, False
        elif not self.active.unacked:
            self.is_giving_way = False
            if best is not None and best.priority > self.active.priority:
                self.active = best
        else:
            self.is_giving_way |= best is not None and best.priority > self.active.priority
        if self.active is not None:
            if self._last not in ("", self.active.member.id):
                self.takeovers.append((self._last, self.active.member.id))
            self._last = self.active.member.id

    def deliver(self, now: float) -> None:
        link = self.active
        prefetch = link.member.prefetch if link is not None and not link.is_probe else 1
        # What comes by a link whose member has left is withheld from the client.
        is_there = link is not None and link.state != LinkState.LEAVING
        if link is not None and is_there and link.unacked < prefetch and not self.is_giving_way:
            link.unacked += 1
            link.delivered += 1
            link.delivered_at = now


class Sidecar:
    """One sidecar: the state that is tested, with sessions that do at once what it says."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.state = GroupState(name, f"host of {name}")
        self.is_deaf = False
        """Whether no beat reaches this sidecar, and none of its own reaches others."""
        self.next_beat = world.now
        self.raises = 0

    def join(self, member_id: str, prefetch: int = 5) -> Member:
        member = Member(member_id, "/", "orders", 1, b"tag")
        member.prefetch = prefetch
        for shard in sorted(self.world.ring & self.world.shards.keys()):
            self.subscribe(member, shard, 0)
        self.state.joined(member, self.world.now)
        return member

    def leave(self, member_id: str) -> None:
        """A member's client cancels: each link stays until the client has acked what it holds."""
        member = self.state.local[member_id]
        for link in list(member.links.values()):
            if link.unacked:
                del member.links[link.shard]
                link.state = LinkState.LEAVING
                member.leaving.append(link)
        self.state.left(member_id, self.world.now)
        self.close(member)
        self.settle()

    def release(self, member: Member, shard: str, until: float) -> None:
        """A member's client does not ack: its links to the shard end, and another one waits behind all others."""
        for link in [link for link in member.held if link.shard == shard]:
            link.state = LinkState.ENDED
            self.world.shards[shard].close(link)
        if (present := member.links.pop(shard, None)) is not None:
            self.world.shards[shard].close(present)
        self.subscribe(member, shard, 0)
        self.state.released(member.id, shard, until, self.world.now)

    def settle(self) -> None:
        """End the links of members that have left and whose clients have acked all.

        What the broker has sent and the client has not got goes back first if the link gives way.
        """
        for member in (*self.state.local.values(), *self.state.leaving.values()):
            for link in [link for link in member.leaving if link.state == LinkState.LEAVING and not link.unacked]:
                link.state = LinkState.ENDED
                self.world.shards[link.shard].close(link)

    def close(self, member: Member) -> None:
        for shard, link in list(member.links.items()):
            self.world.shards[shard].close(link)
        member.links.clear()

    def subscribe(self, member: Member, shard: str, link_priority: int, *, is_probe: bool = False) -> None:
        before = member.links.pop(shard, None)
        link = member.links[shard] = Link(member, shard, 0, link_priority or lowest(self.world.now), self.world.now)
        link.state, link.is_probe = (LinkState.PROBING if is_probe else LinkState.OPEN), is_probe
        self.world.shards[shard].subscribe(link)
        if before is not None:
            assert not before.unacked, "a link that holds unacked messages is replaced"
            self.world.shards[shard].close(before)

    def hand_over(self, member: Member, shard: str) -> None:
        link = member.links.pop(shard)
        if link.unacked:
            link.state = LinkState.LEAVING
            member.leaving.append(link)
        else:
            self.world.shards[shard].close(link)

    def turn(self) -> None:
        now = self.world.now
        self.state.movable = frozenset(self.world.shards)
        held = {link.shard for shard in self.world.shards.values() for link in shard.links if link.unacked}
        self.state.idle_at = dict.fromkeys(self.world.shards.keys() - held, now)
        self.state.kept_at = dict.fromkeys(self.world.shards, now)
        self.settle()
        self.state.follow(self.world.ring & self.world.shards.keys(), now, now)
        if now < min(self.next_beat, self.state.due):
            return
        for step in self.state.tick(now).steps:
            if step.act is Act.CLAIM:
                continue
            member = self.state.local[step.member]
            if step.act is Act.HAND_OVER:
                self.hand_over(member, step.shard)
                continue
            self.raises += step.act is Act.RAISE
            raised = priority(step.epoch, step.member) if step.act is Act.RAISE else step.priority
            self.subscribe(member, step.shard, raised, is_probe=step.is_probe)
        for member in self.state.local.values():
            for shard, link in list(member.links.items()):
                if link.is_probe and link.delivered and not link.unacked:
                    self.subscribe(member, shard, link.priority + 1)
        self.follow()
        self.beat()
        self.next_beat = now + self.state.every

    def follow(self) -> None:
        for step in self.state.followers(self.world.now):
            self.subscribe(self.state.local[step.member], step.shard, step.priority, is_probe=step.is_probe)

    def beat(self) -> None:
        if not self.is_deaf:
            self.world.send(encode(self.state.beat(self.world.now)))


class World:
    """The broker, the sidecars and the beats that are on their way."""

    def __init__(self, shards: int, random: Random, *, latest: float = 0.05, lost: float = 0.0) -> None:
        """Beats take up to `latest` seconds; the share `lost` of those to other sidecars never comes."""
        self.random, self.latest, self.lost = random, latest, lost
        self.now = 1000.0
        self.shards = {f"orders.{number:02}": Shard(f"orders.{number:02}") for number in range(shards)}
        self.ring = set(self.shards)
        """The shards that are bound to the exchange."""
        self.sidecars: dict[str, Sidecar] = {}
        self._on_their_way: list[tuple[float, int, str, bytes]] = []
        self._numbers = itertools.count()
        self.stuck: set[str] = set()
        """The members that ack nothing."""

    def sidecar(self, name: str) -> Sidecar:
        made = self.sidecars[name] = Sidecar(self, name)
        return made

    def crash(self, name: str) -> None:
        """A sidecar ends without a word; the broker closes its connections."""
        sidecar = self.sidecars.pop(name)
        for member in sidecar.state.local.values():
            sidecar.close(member)
        for member in (*sidecar.state.local.values(), *sidecar.state.leaving.values()):
            for link in member.held:
                self.shards[link.shard].close(link)

    def send(self, body: bytes) -> None:
        sender = decode(body, time.time()).sidecar
        for name in self.sidecars:
            if name == sender or self.random.random() >= self.lost:
                at = self.now + self.random.uniform(0.001, self.latest)
                heapq.heappush(self._on_their_way, (at, next(self._numbers), name, body))

    def turn(self) -> None:
        self.now += STEP
        while self._on_their_way and self._on_their_way[0][0] <= self.now:
            _, _, name, body = heapq.heappop(self._on_their_way)
            sidecar = self.sidecars.get(name)
            if sidecar is None or sidecar.is_deaf:
                continue
            if sidecar.state.heard(decode(body, time.time()), self.now):
                sidecar.beat()
            if not sidecar.state.is_followed:
                sidecar.follow()
        for sidecar in list(self.sidecars.values()):
            sidecar.turn()
        for shard in self.shards.values():
            shard.deliver(self.now)
            for link in shard.links:
                if link.unacked and link.member.id not in {*self.stuck, GHOST} and self.random.random() < 0.5:
                    link.unacked -= self.random.randint(1, link.unacked)
            shard.look()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.turn()

    @property
    def members(self) -> dict[str, Member]:
        return {member.id: member for sidecar in self.sidecars.values() for member in sidecar.state.local.values()}

    def actives(self) -> dict[str, str]:
        return {name: shard.active.member.id for name, shard in self.shards.items() if shard.active is not None}

    def counts(self) -> list[int]:
        found = Counter(self.actives().values())
        return sorted(found[member] for member in self.members)

    def is_balanced(self) -> bool:
        counts = self.counts()
        return not counts or (sum(counts) == len(self.shards) and counts[-1] - counts[0] <= 1)

    def takeovers(self) -> int:
        return sum(len(shard.takeovers) for shard in self.shards.values())

    def forget(self) -> None:
        """Count takeovers and raises from now on."""
        for shard in self.shards.values():
            shard.takeovers.clear()
        for sidecar in self.sidecars.values():
            sidecar.raises = 0

    def raises(self) -> int:
        return sum(sidecar.raises for sidecar in self.sidecars.values())
