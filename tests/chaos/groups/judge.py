"""The judge of groups: what publishers were told, against what members were delivered and acked.

The judge is pure. It knows nothing of the proxy, and of the broker only what AMQP promises.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from tests.chaos.groups.history import Begin, Calm, Delivery, End, History, Holder, How, Life, Settlement, Stall
from tests.chaos.groups.works import Worked, Works
from tests.chaos.oracle import Note, Told, title

BALANCED_WITHIN = 10.0
"""Seconds after the last fault, from which each shard has one member, and members have shards alike."""

OVERDUE = 0.8
"""The share of the limit for acks after which a message may have been taken from its member: clocks start earlier."""

TOLD_WITHIN = 2.0
"""Seconds from the end of a drained connection at the broker until its member has found out, at most."""

NOTICED_WITHIN = 5.0
"""Seconds from the end of a fault until a member has found that its connection is lost, at most."""

ACK_UNDER_WAY = 5.0
"""Seconds before the end of a connection in which an ack that the member sent may not have reached the queue.

A connection that is closed in good order, while nothing was done to it or to a node, loses no ack.
"""

LEADER_LOST = 1.0
"""Seconds before a node is killed in which an ack may not have reached the queue's leader; after it, `ACK_UNDER_WAY`.

If the shard moves to another member then, the channel of that ack is closed, and RabbitMQ forgets the ack.
"""

LEADER_BACK = 15.0
"""Seconds after the kill within which such a message comes again."""

WRITTEN_WITHIN = 0.1
"""Seconds from when a member writes down an ack until its library has sent it; it may be stopped in between."""

ARRIVES_WITHIN = 0.5
"""Seconds from the end of a fault until a member has read what waited for that end."""

CROSSES_WITHIN = 0.5
"""Seconds before a sidecar takes a shard from a member in which an ack that the member sent may not have reached it."""

WAKES_WITHIN = 3.0
"""Seconds in which a member that had stalled reads what was sent to it meanwhile."""


@dataclass(frozen=True)
class Limits:
    """The facts about the group that the judge must know beside its history."""

    shards: Sequence[str]
    shard_of: Callable[[str], str]
    """The shard of a routing key."""
    exchange: str | None = None
    """The exchange that deliveries must show, with the publisher's routing key; None where members consume shards."""
    ack_timeout: float = float("inf")
    """Seconds after which a message that is not acked is taken from its member."""
    balanced: bool = True
    """Whether shards must be spread over the members."""
    in_series: bool = False
    """Whether members consume in series: then workers write down when they begin, and keys are judged by their work."""
    window: int = 50
    """How many messages of a shard are in a sidecar at most, if they are in series."""
    moves: bool = False
    """Whether keys move to other shards in the run: then order, loss and work are judged, and no shard's holders."""
    tries: int = 0
    """How often a client in series gets a message before it is dead-lettered; 0 for any number."""


class Gap(NamedTuple):
    """A time in which a shard had no delivery, as it went from one holder to another."""

    seconds: float
    shard: str
    until: float
    """When the next holder got its first delivery."""


@dataclass
class Verdict:
    """The faults that were found, in words, and how much was looked at."""

    faults: list[str] = field(default_factory=list)
    delivered: Counter[Told] = field(default_factory=Counter)
    """Messages that a member got at least once, by what their publisher was told."""
    in_order: int = 0
    """Pairs of first deliveries of one key, in the order of their publishes."""
    redelivered: Counter[str] = field(default_factory=Counter)
    """Deliveries of a message that a member had got before, by the reason that allowed it."""
    unseen: int = 0
    """First deliveries that the broker marks as redelivered: what it had sent before reached no member."""
    takeovers: int = 0
    """Deliveries of a shard to another holder than the delivery before."""
    gaps: defaultdict[str, list[Gap]] = field(default_factory=lambda: defaultdict(list))
    """From the end of a shard's holder to the next one's first delivery, by how the holder ended."""
    slowest_balance: float = 0.0
    """The longest time, in seconds, from the end of faults to the last delivery of a shard that then moved."""
    worked: Worked = field(default_factory=Worked)
    """The work of members in series."""


def judge(history: History, limits: Limits) -> Verdict:
    """Judge a run of a group."""
    return _Judge(history, limits).judged()


@dataclass(slots=True)
class _Seen:
    """One delivery, and what has become of it."""

    delivery: Delivery
    settled: float | None = None
    given_back: str = ""
    """Why the broker may deliver the message again, if it is not for the end of the connection."""


class Backlogs:
    """The messages of each shard that members get in the end, and that are not done yet."""

    def __init__(self, history: History, limits: Limits, done_at: Callable[[Note], float | None]) -> None:
        """`done_at` says when a message was done; None if it is not so far."""
        self._done_at, self._window = done_at, limits.window
        delivered = {(delivery.publisher, delivery.number) for delivery in history.deliveries}
        self._left: defaultdict[str, deque[Note]] = defaultdict(deque)
        for note in sorted(history.notes, key=lambda note: note.sent):
            if (note.publisher, note.number) in delivered:
                self._left[limits.shard_of(note.key)].append(note)
        self._done: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        """Heaps of messages that are done: the latest time at which each came to its shard, and when it was done."""
        self._last: defaultdict[str, list[float]] = defaultdict(list)
        """Heaps of when the last messages were done, a window of them, that came before the oldest one."""

    def arrived(self, shard: str) -> float:
        """Return when the oldest of a shard came to a sidecar, at the earliest; infinite if there is none.

        It was published by then, and of the messages before it no window's number was left.
        """
        left, done, last = self._left[shard], self._done[shard], self._last[shard]
        while left and (at := self._done_at(left[0])) is not None:
            heappush(done, (left.popleft().latest, at))
        if not left:
            return float("inf")
        while done and done[0][0] <= left[0].sent:
            heappush(last, heappop(done)[1])
            if len(last) > self._window:
                heappop(last)
        return max(left[0].sent, last[0] if len(last) == self._window else left[0].sent)


class _Judge:
    def __init__(self, history: History, limits: Limits) -> None:
        self._history, self._limits = history, limits
        self._verdict = Verdict()
        self._ended: dict[Holder, tuple[float, End | None]] = {}
        """When and how connections ended."""
        self._dropped: dict[Holder, float] = {}
        """From when on the broker may have put back what a connection held."""
        self._acked_before: dict[Holder, float] = {}
        """Until when acks of a connection that ended have certainly reached the queue."""
        self._joined: dict[Holder, float] = {}
        self._slept: defaultdict[str, list[Stall]] = defaultdict(list)
        """By member, the times in which it read nothing for so long that its messages may have been taken from it."""
        self._seen: defaultdict[tuple[str, int], list[_Seen]] = defaultdict(list)
        self._held: defaultdict[str, dict[Holder, dict[int, _Seen]]] = defaultdict(lambda: defaultdict(dict))
        """Messages that are neither acked nor nacked, oldest first, by shard and holder."""
        self._shards: defaultdict[Holder, dict[int, str]] = defaultdict(dict)
        """The shards of unsettled deliveries, by tag."""
        self._first: dict[tuple[str, str, str], Note] = {}
        """The last message of a key that was delivered for the first time, by publisher, channel and key."""
        self._last_holder: dict[str, Holder] = {}
        self._last_at: dict[str, float] = {}
        """When the last delivery of each shard was made."""
        self._since: defaultdict[str, float] = defaultdict(lambda: float("-inf"))
        """When the holder before that of now got its last delivery of each shard: its messages came later than that."""
        self._overlaps: set[tuple[str, Holder, Holder]] = set()
        self._works = Works(limits.tries, self._taken, self._fault)
        self._of_tag: dict[tuple[Holder, int], tuple[_Seen, Note]] = {}
        """The deliveries to members in series, by tag."""
        has_windows = limits.in_series and not limits.moves
        self._backlogs = Backlogs(history, limits, self._works.done_at) if has_windows else None

    def judged(self) -> Verdict:
        for life in self._history.lives:
            self._lived(life)
        for stall in self._history.stalls:
            if stall.end - stall.begin >= OVERDUE * self._limits.ack_timeout:
                self._slept[stall.member].append(stall)
        notes = {(note.publisher, note.number): note for note in self._history.notes}
        self._replay(notes)
        for identity, note in notes.items():
            if identity in self._seen:
                self._verdict.delivered[note.outcome] += 1
            elif note.outcome == Told.CONFIRMED:
                self._fault(f"{title(note)} was confirmed and never delivered")
        if self._limits.in_series:
            self._verdict.worked = self._works.judge_ends(self._history.notes, self._history.dead_letters)
        for calm in self._history.calms:
            self._counted(calm)
            if self._limits.balanced:
                self._balanced(calm)
        return self._verdict

    def _replay(self, notes: Mapping[tuple[str, int], Note]) -> None:
        """Judge what members got and settled, in the order of time."""
        history = self._history
        events: list[Delivery | Begin | Settlement] = [*history.deliveries, *history.begins, *history.settlements]
        events.sort(key=lambda event: event.at)
        for event in events:
            if isinstance(event, Settlement):
                self._settled(event)
            elif isinstance(event, Begin):
                self._begun(event)
            elif (note := notes.get((event.publisher, event.number))) is None:
                self._fault(f"{event.publisher} {event.number} reached {_name(event.holder)}, and nobody published it")
            else:
                self._delivered(event, note)

    # Connections

    def _lived(self, life: Life) -> None:
        """Find out from when on what a connection holds may be delivered to others."""
        self._joined[life.holder] = life.joined
        self._ended[life.holder] = (life.end, life.how)
        if life.how is None:
            return
        dropped = life.end
        causes = self._causes(life)
        if life.how is End.CLOSED:
            # It may have been lost when the member was told to leave, which then has no chance to say so.
            dropped = min([at for at in causes if at >= life.end - NOTICED_WITHIN], default=dropped)
        if life.how is End.LOST:
            if not causes:
                self._fault(
                    f"{_name(life.holder)} lost its connection at {life.end:.3f}, and nothing had been done to it"
                )
            dropped = min(causes, default=life.end)
        self._dropped[life.holder] = dropped
        sure = life.how is End.CLOSED and not causes
        self._acked_before[life.holder] = dropped - (0.0 if sure else ACK_UNDER_WAY)

    def _causes(self, life: Life) -> list[float]:
        """Return from when on each fault may have ended a connection."""
        noticed = life.end
        for stall in self._history.stalls:
            if stall.member == life.holder.member and stall.begin <= life.end <= stall.end + WAKES_WITHIN:
                noticed = min(noticed, stall.begin)
        return [
            max(trouble.begin, life.joined if trouble.abrupt else noticed - TOLD_WITHIN)
            for trouble in self._history.troubles
            if life.holder.member in trouble.members
            and trouble.begin <= life.end
            and noticed <= trouble.end + NOTICED_WITHIN
        ]

    def _late(self, delivery: Delivery) -> bool:
        """Return whether a member may read this long after it was sent, when it is no more the member's."""
        if self._dropped.get(delivery.holder, float("inf")) <= delivery.at:
            return True
        return any(
            self._joined.get(delivery.holder, 0.0) <= stall.end
            and stall.begin <= delivery.at <= stall.end + WAKES_WITHIN
            for stall in self._slept[delivery.holder.member]
        )

    # Deliveries

    def _delivered(self, delivery: Delivery, note: Note) -> None:
        shard = self._limits.shard_of(note.key)
        shown = (delivery.exchange, delivery.key)
        if self._limits.exchange is not None and shown != (self._limits.exchange, note.key):
            self._fault(f"{title(note)} reached {_name(delivery.holder)} with exchange and key {shown}")
        before = self._seen[delivery.publisher, delivery.number]
        late = self._late(delivery)
        if not before:
            self._verdict.unseen += delivery.redelivered
            self._first_delivered(delivery, note)
        elif not late and not self._limits.moves:
            self._again(delivery, note, shard, before)
        seen = _Seen(delivery, given_back="read late" if late else "")
        before.append(seen)
        if self._limits.in_series:
            self._of_tag[delivery.holder, delivery.tag] = (seen, note)
        if late:
            return
        if not self._limits.moves:
            self._alone(delivery, note, shard)
        self._held[shard][delivery.holder][delivery.tag] = seen
        self._shards[delivery.holder][delivery.tag] = shard
        if self._limits.moves:
            return
        last = self._last_holder.setdefault(shard, delivery.holder)
        if last != delivery.holder:
            self._verdict.takeovers += 1
            self._since[shard] = self._last_at[shard]
            self._measure_gap(shard, last, delivery.at)
        self._last_at[shard] = delivery.at
        self._last_holder[shard] = delivery.holder

    def _measure_gap(self, shard: str, last: Holder, at: float) -> None:
        """Note how long a shard had no delivery as its holder ended, or gave the shard up."""
        end, how = self._ended.get(last, (float("inf"), None))
        since = max(end, self._last_at[shard]) if end <= at else self._last_at[shard]
        name = str(how) if how is not None and end <= at else "gave it up"
        self._verdict.gaps[name].append(Gap(at - since, shard, at))

    def _first_delivered(self, delivery: Delivery, note: Note) -> None:
        place = (note.publisher, note.channel, note.key)
        before = self._first.get(place)
        if before is None or before.number < note.number:
            self._verdict.in_order += before is not None
            self._first[place] = note
        else:
            self._fault(
                f"{title(note)} was delivered for the first time to {_name(delivery.holder)} at {delivery.at:.3f},"
                f" behind {title(before)}"
            )

    def _again(self, delivery: Delivery, note: Note, shard: str, before: Sequence[_Seen]) -> None:
        """Judge a delivery of a message that members have got before: each of them must have let it go."""
        reason = ""
        for seen in before:
            reason = self._let_go(seen, shard, delivery)
            if not reason and note.outcome == Told.UNKNOWN and not delivery.redelivered:
                reason = "published twice by a publisher that was told nothing"
            if not reason:
                then = "has not acked it" if seen.settled is None else f"acked it at {seen.settled:.3f}"
                self._fault(
                    f"{title(note)} was delivered again to {_name(delivery.holder)} at {delivery.at:.3f}:"
                    f" {_name(seen.delivery.holder)} got it at {seen.delivery.at:.3f} and {then}"
                )
                return
        self._verdict.redelivered[reason] += 1

    def _let_go(self, seen: _Seen, shard: str, again: Delivery) -> str:
        """Return why a message may be delivered once more as it is; empty if it may not."""
        holder, at = seen.delivery.holder, again.at
        if not seen.given_back and seen.settled is None:
            self._taken_back(shard, holder, at)
        if seen.given_back:
            return seen.given_back
        for stall in self._slept[holder.member]:
            if seen.settled is not None and stall.begin - WRITTEN_WITHIN <= seen.settled <= stall.end:
                return "acked as it stalled"
        if again.redelivered and self._was_given_up(seen, shard, at):
            return "acked as the shard was taken from its member"
        dropped = self._dropped.get(holder, float("inf"))
        reached = self._acked_before.get(holder, 0.0)
        if dropped <= at and (seen.settled is None or seen.settled >= reached):
            return "connection ended"
        is_moved = again.redelivered and (again.holder.member != holder.member or self._came_back(seen, shard, at))
        return "acked as the leader was lost" if is_moved and self._leader_was_lost(seen, at) else ""

    def _came_back(self, seen: _Seen, shard: str, at: float) -> bool:
        """Return whether the channel of a delivery was closed after its ack, though the same member has the shard."""
        ends = self._history.closed.get((seen.delivery.holder.member, shard), ())
        return seen.settled is not None and any(seen.settled <= end <= at for end in ends)

    def _was_given_up(self, seen: _Seen, shard: str, at: float) -> bool:
        """Return whether a sidecar took the shard from a member before the ack of a delivery had reached it.

        The sidecar must have done so after the delivery and before a time. Whether it was allowed to is judged by the
        messages that were not acked.
        """
        times = self._history.given_up.get((seen.delivery.holder.member, shard), ())
        return seen.settled is not None and any(
            seen.delivery.at <= given_up <= min(at, seen.settled + CROSSES_WITHIN) for given_up in times
        )

    def _leader_was_lost(self, seen: _Seen, at: float) -> bool:
        """Return whether the ack of a message that comes again at this time may have met a leader that was killed."""
        return seen.settled is not None and any(
            -LEADER_LOST <= seen.settled - kill <= ACK_UNDER_WAY and at - kill <= LEADER_BACK
            for kill in self._history.kills
        )

    def _alone(self, delivery: Delivery, note: Note, shard: str) -> None:
        """Judge whether no other holder has unsettled messages of the shard."""
        for holder, held in self._held[shard].items():
            if holder == delivery.holder or not held:
                continue
            if self._dropped.get(holder, float("inf")) <= delivery.at:
                held.clear()
            elif not self._taken_back(shard, holder, delivery.at):
                pair = (shard, holder, delivery.holder)
                if pair not in self._overlaps:
                    self._overlaps.add(pair)
                    oldest = next(iter(held.values())).delivery
                    self._fault(
                        f"{title(note)} was delivered to {_name(delivery.holder)} at {delivery.at:.3f} while"
                        f" {_name(holder)} held {len(held)} of {shard}, the oldest {oldest.publisher} {oldest.number}"
                        f" since {oldest.at:.3f}"
                    )

    def _taken_back(self, shard: str, holder: Holder, at: float) -> bool:
        """Return whether a holder's messages of a shard may have been taken from it, as it does not ack them."""
        held = self._held[shard][holder]
        if not held:
            return False
        oldest = next(iter(held.values())).delivery
        since = self._sent(oldest)
        if self._backlogs is not None:
            # In series it is the oldest message of the shard in the sidecar, be it with the member or not.
            arrived = max(self._backlogs.arrived(shard), self._since[shard], self._joined.get(holder, 0.0))
            since = min(since, arrived)
        if at - since < OVERDUE * self._limits.ack_timeout:
            return False
        for seen in held.values():
            seen.given_back = "not acked in time"
        held.clear()
        return True

    def _sent(self, delivery: Delivery) -> float:
        """Return when the sidecar sent a delivery at the earliest: the way to the member may have been stalled."""
        since = [
            trouble.begin
            for trouble in self._history.troubles
            if delivery.holder.member in trouble.members
            and trouble.begin <= delivery.at <= trouble.end + ARRIVES_WITHIN
        ]
        return min([delivery.at, *since])

    def _begun(self, begin: Begin) -> None:
        found = self._of_tag.get((begin.holder, begin.tag))
        if found is None:
            self._fault(f"{_name(begin.holder)} began the delivery {begin.tag} at {begin.at:.3f}, and never got it")
        else:
            self._works.begun(begin, found[1])

    def _taken(self, begin: Begin, at: float) -> str:
        """Return why a delivery at work may have been taken from its member by a time; empty if it may not."""
        seen, note = self._of_tag[begin.holder, begin.tag]
        if self._limits.moves and self._gave_up(begin.holder, begin.at, at):
            return "given up"
        if not seen.given_back:
            self._taken_back(self._limits.shard_of(note.key), begin.holder, at)
        if not seen.given_back and self._dropped.get(begin.holder, float("inf")) <= at:
            return "connection ended"
        return seen.given_back

    def _gave_up(self, holder: Holder, since: float, at: float) -> bool:
        """Return whether a sidecar took some shard from a member between two times; which one is not known here."""
        times = (each for (member, _), each in self._history.given_up.items() if member == holder.member)
        return any(since <= given_up <= at + CROSSES_WITHIN for given_up in chain.from_iterable(times))

    def _settled(self, settlement: Settlement) -> None:
        if found := self._of_tag.get((settlement.holder, settlement.tag)):
            self._works.ended(settlement, found[1])
        shards = self._shards[settlement.holder]
        tags = [settlement.tag] if settlement.tag in shards else []
        if settlement.how is How.MULTIPLE:
            tags = [tag for tag in shards if tag <= settlement.tag]
        for tag in tags:
            shard = shards.pop(tag)
            self._taken_back(shard, settlement.holder, settlement.at)
            seen = self._held[shard][settlement.holder].pop(tag, None)
            if seen is not None:
                seen.settled = settlement.at
                if settlement.how is How.NACK:
                    seen.given_back = "nacked"

    # Balance

    def _counted(self, calm: Calm) -> None:
        """Judge whether each shard had one consumer: of a group nobody else consumes, and RabbitMQ has kept none."""
        for shard, count in calm.consumers.items():
            if self._limits.exchange is not None and count != 1:
                self._fault(f"at {calm.end:.3f} {shard} had {count} consumers")

    def _balanced(self, calm: Calm) -> None:
        """Judge who got deliveries of which shard from some time after the last fault on."""
        got: dict[str, set[str]] = {shard: set() for shard in self._limits.shards}
        for delivery in self._history.deliveries:
            if calm.begin + BALANCED_WITHIN <= delivery.at <= calm.end:
                got[self._limits.shard_of(delivery.key)].add(delivery.holder.member)
        for delivery in self._history.deliveries:
            owners = got[self._limits.shard_of(delivery.key)]
            if calm.begin < delivery.at <= calm.end and len(owners) == 1 and delivery.holder.member not in owners:
                self._verdict.slowest_balance = max(self._verdict.slowest_balance, delivery.at - calm.begin)
        words = f"{BALANCED_WITHIN:g} s after the faults ended at {calm.begin:.3f}"
        for shard, members in got.items():
            if len(members) != 1:
                self._fault(f"{words} {shard} was consumed by {sorted(members) or 'nobody'}")
        counts = Counter(chain.from_iterable(got.values()))
        mean = len(got) / len(calm.members)
        for member in sorted(calm.members | counts.keys()):
            if abs(counts[member] - mean) >= 1 or member not in calm.members:
                self._fault(f"{words} {member} had {counts[member]} of {len(got)} shards among {len(calm.members)}")
        for shown in calm.shown:
            self._shown(shown, got, words)

    def _shown(self, shown: Mapping[str, str | None], got: Mapping[str, set[str]], words: str) -> None:
        """Judge whether a sidecar shows the shards spread over members as they are."""
        if any(owners and shown.get(shard) not in owners for shard, owners in got.items()):
            consumed = {shard: sorted(owners) for shard, owners in got.items()}
            self._fault(f"{words} a sidecar showed {dict(shown)}, and the shards were consumed by {consumed}")

    def _fault(self, words: str) -> None:
        self._verdict.faults.append(words)


def _name(holder: Holder) -> str:
    return f"{holder.member} (connection {holder.connection})"
