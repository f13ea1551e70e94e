"""The redrive: each dead letter is read, published again, confirmed and only then acked, one at a time.

A run that is interrupted anywhere loses nothing: what is unacked goes back to its place in the queue, and the next run
goes on with it. A letter may come twice, if the run ends between the confirm and the ack; the next run marks each
letter that is redelivered. One at a time keeps the letters of a key in order, whatever the ring hashes: the key alone
would not tell. A letter that no queue takes holds back the later ones of its shard, since they may have its key, and
those of its routing key, which may come from another shard after a change of the ring.

Letters that stay are held unacked until the end, for the queue to go on, and then go back by a bare close.
With one consumer that keeps the order, with basic.get or a nack it does not: 12 of 12 runs on quorum queues of
RabbitMQ 3.10.8 and 4.3.6 came back in another one. The prefetch thereby limits how many may stay. A small one comes
first: what was delivered and not read counts as redelivered, should the run be killed.

An exclusive queue is the lock: RabbitMQ does not honour exclusive consumers of quorum queues (observed). It belongs to
the connection that publishes. If it belonged to the one that consumes, a run could lose that one, and with it the lock,
and still publish the letters that it had got: behind those of the next run, and unmarked.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.redrive.client import Client, Delivery, RefusedError
from proxy.redrive.letter import deliveries_of, origin_of, redriven
from proxy.wire.frames import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, Fault

LOCK: Final = "ring-proxy.redrive"
"""The exclusive queue by which one redriver at a time is at work in a virtual host."""

_TAKEN_WITHIN: Final = 5.0
"""Seconds in which the lock must be taken: RabbitMQ deletes the queue some time after its connection has closed."""

_PAUSE: Final = 0.25
"""Seconds between two tries to take the lock."""

_MOST_REFUSED: Final = 1_000
"""The most letters, each of another shard, that may be refused in a run."""

_MANY_DELIVERIES: Final = 10
"""Deliveries of one letter from which on its queue's delivery limit may be near: 20 by default on RabbitMQ 4."""

_WINDOWS: Final = (200, 65_535)
"""The prefetches: the second one, AMQP's largest, is taken if all of the first one stays."""

_IDLE: Final = 1.0
"""Seconds without a delivery after which the queue is asked whether it is empty."""

_STILL: Final = 30
"""The most times in a row that a queue may have messages and deliver none."""

_EVERY: Final = 1_000
"""Letters between two lines of progress."""


class RedriveError(Exception):
    """The redrive cannot begin, or cannot go on; the message says why, and what to do."""


class Redrive:
    """One run of the redrive of one group, and its counts."""

    def __init__(self, consumer: Client, publisher: Client, vhost: str, exchange: str, queue: str) -> None:
        """Take two open connections through a sidecar, and the names of the group's exchange and of the queue."""
        self._consumer, self._publisher = consumer, publisher
        self._vhost, self._exchange, self._queue = vhost, exchange, queue
        self._where = f"virtual host {vhost!r}"
        self.has_begun = False
        """Whether the queue may be read."""
        self.published = 0
        """Letters that were published again and confirmed."""
        self.maybe_twice = 0
        """Letters among them that may have been published by an earlier run too."""
        self.refused = 0
        """Letters that no queue took."""
        self.behind = 0
        """Letters that stay because an earlier one of their shard, or of their routing key, was refused."""
        self.others = 0
        """Letters of other groups."""
        self.strange = 0
        """Messages without the headers of a dead letter."""
        self._stopped: set[bytes] = set()
        """The shards whose letters stay from now on."""
        self._stopped_keys: set[bytes] = set()
        """The routing keys whose letters stay from now on."""
        self._is_warned = False

    async def run(self, most: int | None, tell: Callable[[str], None], complain: Callable[[str], None]) -> None:
        """Redrive `most` letters, or all that are in the queue now. Raises RedriveError and LostError.

        `tell` gets what goes on, and `complain` each letter that is refused.
        """
        await self._lock()
        queue = _name(self._queue)
        await self._find_group()
        ready = await self._ready(queue)
        tell(
            f"{self._exchange} in virtual host {self._vhost}: {ready} ready in {self._queue}. Each letter comes behind"
            " what its key has seen since, at least once, and to every group of the exchange."
        )
        wanted = ready if most is None else min(ready, most)
        try:
            # With a small count few letters are delivered that are not read.
            for window in _WINDOWS if most is None else (min(most, _WINDOWS[0]), *_WINDOWS):
                self.refused = self.behind = self.others = self.strange = 0
                self._stopped.clear()
                self._stopped_keys.clear()
                await self._consumer.consume(queue, window)
                self.has_begun = True
                is_full = await self._read(queue, ready - self.published, window, wanted, tell, complain)
                await self._consumer.release()
                if not is_full:
                    return
                await self._ready(queue)
        except RefusedError as error:
            raise RedriveError(self._unreadable(error)) from None
        raise RedriveError(
            f"--queue: the first {_WINDOWS[-1]} messages of {self._queue!r} stay, which are the most of one run; give"
            " each group a queue of its own"
        )

    async def _read(
        self,
        queue: bytes,
        ready: int,
        window: int,
        wanted: int,
        tell: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> bool:
        """Redrive the letters among so many messages, until `wanted` are published.

        Return whether all of the window stays, though there are more. Raises RedriveError, LostError and RefusedError.
        """
        idle = stay = 0
        for read in range(1, ready + 1):
            if self.published >= wanted:
                return False
            if stay >= window:
                return True
            while (delivery := await self._consumer.delivery(_IDLE)) is None:
                # Some may have expired, or somebody else has taken them.
                if not (await self._publisher.counts(queue)).ready:
                    return False
                idle += 1
                if idle >= _STILL:
                    raise RedriveError(
                        f"--queue: {self._queue!r} delivers nothing, though it has messages; end its other consumers"
                    )
            idle = 0
            if not await self._on(delivery, complain):
                stay += 1
            if read % _EVERY == 0:
                tell(f"{read} of {ready} read, {self.published} published again")
        return False

    async def _on(self, got: Delivery, complain: Callable[[str], None]) -> bool:
        """Publish one letter again, ack it and return true; or count why it stays and return false.

        Raises RedriveError once no queue takes the letters of many shards.
        """
        origin = origin_of(got.header)
        if origin is None:
            self.strange += 1
        elif origin.group != _name(self._exchange):
            self.others += 1
        elif origin.shard in self._stopped or got.key in self._stopped_keys:
            self.behind += 1
        elif why := await self._refusal(got):
            self.refused += 1
            self._stopped.add(origin.shard)
            self._stopped_keys.add(got.key)
            complain(f"the letter of {_quoted(origin.shard)} with the key {_quoted(got.key)} stays: {why}")
            if len(self._stopped) >= _MOST_REFUSED:
                raise RedriveError(f"no queue takes the letters of {_MOST_REFUSED} shards")
        else:
            self._consumer.ack(got.tag)
            self.published += 1
            self.maybe_twice += got.redelivered
            return True
        if not self._is_warned and (times := deliveries_of(got.header)) >= _MANY_DELIVERIES:
            self._is_warned = True
            complain(
                f"queue {self._queue!r} has delivered a message that stays {times + 1} times; it drops one beyond its"
                " delivery limit, 20 by default on RabbitMQ 4: set its delivery-limit to -1 by a policy"
            )
        return False

    async def _refusal(self, got: Delivery) -> str:
        """Publish a letter again; return why no queue took it, empty where one did. Raises RedriveError."""
        try:
            header = redriven(got.header, maybe_twice=got.redelivered)
            return await self._publisher.publish(_name(self._exchange), got.key, header, got.body)
        except Fault as fault:
            return str(fault)
        except RefusedError as error:
            if error.code == NOT_FOUND:
                raise RedriveError(f"exchange {self._exchange!r} or a lane of it is gone: {error}") from None
            if error.code == ACCESS_REFUSED:
                raise RedriveError(f"the user needs write where the sidecar publishes: {error}") from None
            return str(error)

    async def _lock(self) -> None:
        """Take the lock. Raises RedriveError if another redriver has it."""
        until = asyncio.get_running_loop().time() + _TAKEN_WITHIN
        while True:
            try:
                return await self._publisher.lock(LOCK.encode())
            except RefusedError as error:
                if error.code == ACCESS_REFUSED:
                    raise RedriveError(f"the user needs configure on the queue {LOCK!r}, the lock: {error}") from None
                if error.code != RESOURCE_LOCKED:
                    raise RedriveError(f"no lock: {error}") from None
                if asyncio.get_running_loop().time() > until:
                    raise RedriveError(
                        f"{self._where}: another redriver is at work, as it holds the queue {LOCK!r}; wait for its end"
                    ) from None
            await asyncio.sleep(_PAUSE)

    async def _find_group(self) -> None:
        """Raise RedriveError unless the connection leads to a sidecar that has the group, which is the exchange's own.

        Only a sidecar knows the name: RabbitMQ has no such queue, and hashes in another way than the ring.
        """
        try:
            await self._publisher.counts(_name(self._exchange))
        except RefusedError as error:
            raise RedriveError(
                f"{self._where}: broker_url leads to no sidecar with the group {self._exchange!r}: it must be the"
                f" amqp_listen of a sidecar whose groups name that exchange, and the exchange must be there: {error}"
            ) from None
        try:
            await self._publisher.find_exchange(_name(self._exchange))
        except RefusedError as error:
            raise RedriveError(
                f"EXCHANGE: {self._exchange!r} is one of several groups of an exchange, and a publish reaches them all:"
                f" its letters stay; have a program of the group read {self._queue!r} ({error})"
            ) from None

    async def _ready(self, queue: bytes) -> int:
        """Return how many messages are ready in the queue of dead letters, once nobody consumes it.

        The letters that an ended run held come back when the queue has heard of its end, some time after the lock is
        free. A consumer that comes before would get later letters first. Raises RedriveError.
        """
        until = asyncio.get_running_loop().time() + _TAKEN_WITHIN
        while True:
            try:
                ready, consumers = await self._publisher.counts(queue)
            except RefusedError as error:
                if error.code == NOT_FOUND:
                    raise RedriveError(
                        f"--queue: {self._where} has no queue {self._queue!r}; name one that is bound to"
                        " groups_dead_letter"
                    ) from None
                raise RedriveError(self._unreadable(error)) from None
            if not consumers:
                return ready
            if asyncio.get_running_loop().time() > until:
                raise RedriveError(
                    f"--queue: {self._queue!r} has {consumers} consumers, and the letters that they hold would come out"
                    " of order; end them"
                )
            await asyncio.sleep(_PAUSE)

    def _unreadable(self, error: RefusedError) -> str:
        if error.code == ACCESS_REFUSED:
            return f"--queue: the user needs read on the queue {self._queue!r}: {error}"
        return f"--queue: queue {self._queue!r} cannot be read: {error}"

    def summary(self) -> str:
        """Return what was done and what stays, in a line."""
        twice = f" ({self.maybe_twice} marked x-ring-maybe-twice)" if self.maybe_twice else ""
        parts = [f"{self.published} published again{twice}"]
        for count, what in (
            (self.refused, "refused"),
            (self.behind, "behind a refused one of their shard or key"),
            (self.others, "of other groups"),
            (self.strange, "without the headers of a dead letter"),
        ):
            if count:
                parts.append(f"{count} {what}")
        return f"{parts[0]}; left in the queue: {', '.join(parts[1:]) or 'none of those read'}"


def _name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _quoted(text: bytes) -> str:
    return repr(text.decode(errors="backslashreplace"))
