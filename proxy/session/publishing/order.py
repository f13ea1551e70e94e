"""The order of a key's publishes on one channel while rings change: later ones wait for the answers of earlier ones.

Theory of operation
-------------------

A publish that comes back goes to the queue that the ring names by then. A later publish of its key must not be in that
queue before it. Three facts make one rule enough:

- The broker returns publishes of one channel to one place in the order in which they were sent. They go out again on
  one channel, in that order.
- As long as the ring stays the same, a later publish of the key goes the way of the one that comes back, and comes back
  behind it.
- A later publish can therefore only overtake if the channel has taken another ring meanwhile, or if the queue was
  deleted and made anew, of which nobody learns in time.

The rule: **a channel takes another ring of an exchange once all that it has published before is settled.** Until then
its next publish to that exchange waits, and the rest of the channel behind it. The wait is as long as one answer of the
broker's, unless a queue hangs, or a message that came back is under way again. A channel does not wait long for a queue
that hangs: after ORDERED_WITHIN it goes on, and what it had published until then is `overtaken`. If one of those comes
back, it does not go out again: its client is told that it failed, and so it is not behind later ones of its key.

Nothing waits on a channel without confirms, on which nobody learns what is settled, and in a transaction, whose
publishes the broker answers only at its end. Their rings are remembered all the same, for who asks whether a publish by
an earlier ring is unsettled (`earlier`). Among messages to an upstream exchange those with CC or BCC pass, and are
not held up either.
"""

# mypyc: compiled

from typing import Final

from proxy.routing.route import PASSED
from proxy.session.publishing.confirms import Confirms

MOST_EXCHANGES: Final = 256
"""The most exchanges whose rings a channel remembers; a publish to one more waits until all before it is settled."""

OTHERS: Final = b""
"""Stands for the exchanges beyond MOST_EXCHANGES of a channel that cannot wait: the default exchange has no ring."""


class Order:
    """The rings that the unsettled publishes of a channel went by; it lives as long as the channel."""

    __slots__ = ("_digests", "digest", "mixed", "overtaken")

    def __init__(self) -> None:
        """Start without a publish."""
        self.digest = ""
        """The digest (`Route.digest`) of the last publish."""
        self._digests: dict[bytes, str] | None = None
        """By exchange, the digest of the unsettled publishes to it, or of the last publish where none waits for others;
        made with the first."""
        self.mixed = 0
        """The number up to which publishes may have gone by other digests than those in `_digests`, as none waited."""
        self.overtaken = 0
        """The number of the last publish that later ones have not waited for; 0 if there is none."""

    def may_take(self, exchange: bytes, digest: str, confirms: Confirms, transactional: bool) -> bool:
        """Take the digest of the next publish to an exchange; return False if the publish must wait before that.

        It is asked for each publish whose digest is not that of the publish before.
        """
        known = self._digests
        before = known.get(exchange) if known is not None else None
        if before is digest:
            pass
        elif not confirms.answered or transactional:
            self._note(exchange, digest, before, confirms)
        else:
            if self.is_settled(confirms):
                known = self._digests = {}
                before = None
            if before is None:
                # No publish that passes is remembered: the broker returns none to this proxy.
                if not digest.startswith(PASSED):
                    if known is None:
                        known = self._digests = {}
                    if len(known) >= MOST_EXCHANGES:
                        return False
                    known[exchange] = digest
            elif before != digest:
                return False
            elif known is not None:
                known[exchange] = digest
        self.digest = digest
        return True

    def _note(self, exchange: bytes, digest: str, before: str | None, confirms: Confirms) -> None:
        """Remember by which ring a publish goes that does not wait."""
        if digest.startswith(PASSED):
            return
        known = self._digests
        if known is None:
            known = self._digests = {}
        if before is not None and before != digest:
            self.mixed = confirms.number
        if before is None and len(known) >= MOST_EXCHANGES:
            exchange = OTHERS
        known[exchange] = digest

    def has_published(self, exchange: bytes) -> bool:
        """Return whether a publish to an exchange went by its ring, on a channel without confirms."""
        return self._digests is not None and (exchange in self._digests or OTHERS in self._digests)

    def earlier(self, exchange: bytes, digest: str | None, confirms: Confirms) -> int:
        """Return the number up to which unsettled publishes to an exchange may have gone by another digest than this.

        None stands for a digest that nobody knows.
        """
        last = self._digests.get(exchange) if self._digests is not None else None
        return max(self.overtaken, self.mixed) if last is None or last == digest else confirms.number

    def is_settled(self, confirms: Confirms) -> bool:
        """Return whether all publishes of the channel are settled, but for those that were given up."""
        if not confirms.unsettled or confirms.low >= self.overtaken or not self.overtaken:
            return not confirms.unsettled
        return not confirms.open.within(self.overtaken + 1, confirms.number)

    def give_up(self, number: int) -> None:
        """Let the next publish wait no longer for those up to `number`."""
        self.overtaken, self._digests = number, None
