"""The times of a group, in seconds, on one axis.

The waits of a sidecar's decisions stand here, so that one look shows which of them must be shorter than which. Those of
the connection for beats stand in `membership.py`.

    0.02   0.3        1     1.5   2     2.5        4     5          30            600       660
     |      |         |      |    |      |         |     |           |             |         |
     |      |         |      |    |      |         |     |           |             |         broker's own timeout
     |      |         |      |    |      |         |     |           |             no ack: the member is stalled
     |      |         |      |    |      |         |     |           LEAVING ends without acks
     |      |         |      |    |      |         |     an opening link counts as refused
     |      |         |      |    |      |         a silent sidecar is gone, whatever the broker says of its queue
     |      |         |      |    |      its queue is not there twice: the sidecar is gone
     |      |         |      |    a shard that nobody tells of is an orphan; a sidecar without its own echo is deaf
     |      |         |      the sign of life is late: the broker is asked for the sidecar's queue
     |      |         sign of life
     |      members have come or gone: the calm before the decision
     news are told

A late sign of life must be noticed before the sidecar counts as gone, and a deaf sidecar must notice that it is deaf
before it takes the others for gone: 1.5 and 2 beats are both less than 4.

Every sidecar hears every other one, so the messages of a fleet grow with its square: 200 sidecars that beat each second
would have the broker deliver 40,000 beats a second. A fleet of more than 10 sidecars therefore beats less often
(`between_beats`), and a sidecar counts as deaf or gone later. If it is killed, that is found as fast as in a small
fleet all the same: two others watch each sidecar, ask for its queue whenever it was silent for 1.5 s, and tell all once
it is gone. The number of these questions grows with the fleet, and not with its square.
"""

from typing import Final

SOON: Final = 0.02
"""From a change of a link until the beat that tells of it, so that several changes are told together."""

CALM: Final = 0.3
"""From the last member that came or went until the decision, so that many changes lead to one decision."""

LONGEST_CALM: Final = 2.0
"""From the first of such changes until the decision, though there are always further ones."""

BEAT: Final = 1.0
"""From one sign of life of a sidecar to the next, in a fleet of up to `HEARD_A_SECOND`."""

HEARD_A_SECOND: Final = 10
"""The most signs of life that one sidecar hears each second."""

NEWS_A_SECOND: Final = 200
"""The most beats with news that one sidecar hears each second, while many sidecars come or go."""

LATE: Final = 1.5 * BEAT
"""From a sidecar's last sign of life, or from the broker's answer that its queue is there, until those who watch it ask
for its queue. The others ask after so many times the seconds between two beats of the fleet. To have a killed sidecar
found later, lengthen this one."""

ASK_AGAIN: Final = 0.5 * BEAT
"""From one question about a sidecar's queue to the next; two answers that it is not there make the sidecar gone."""

ORPHANED: Final = 2 * BEAT
"""From the last word of a link that is open, or may open soon, until one sidecar opens one: see `tries`."""

DEAF: Final = BEAT
"""From the time at which the next beat of its own was due to come back until a sidecar counts as deaf: it then keeps
all that it has."""

COUNT_AFTER: Final = 3 * BEAT
"""From that time until a deaf sidecar looks for shards that nobody consumes."""

BEATS_UNTIL_GONE: Final = 4
"""The number of beats that a sidecar has left out when it counts as gone, whatever the broker says of its queue: the
last resort, after 4 s in a fleet of up to `HEARD_A_SECOND`."""

COUNT_EVERY: Final = 2 * BEAT
"""From one question how many consumers shards have to the next one, while a sidecar is deaf or no answer comes."""

ANSWERED_WITHIN: Final = 1.0
"""From a question to the broker until it counts as not answered."""

PAUSES_WITHIN: Final = 2 * BEAT
"""From a group's start until its members open links though it is not known which shards are paused."""

OPENED_WITHIN: Final = 5.0
"""From a link's basic.consume until the link counts as refused: its connection may hang."""

FIRST_LINK_PAUSE: Final = 1.0
LONGEST_LINK_PAUSE: Final = 60.0
"""From a refusal of a link to the next try: the pause doubles from the first to the longest."""

LONGEST_ENDING: Final = 8.0
"""From the end of a link at a marker to the next count of the shard's consumers, at most: the pause doubles, too. One
sidecar counts, so it may be shorter than the one above."""

COUNT_AGAIN: Final = 0.5
"""From a count of no consumer of a shard that ended at a marker to the next one, after which it may be opened.
RabbitMQ 4.3.6 ends the connection of whoever consumes within 40 ms of a queue's deletion (measured)."""

LONGEST_CONSUMED: Final = 60.0
"""From the end of a link at a marker until the next one is opened though somebody consumes the shard, by its own name
or as a command that hangs: it then waits in the line."""

STARVED: Final = 60.0
"""From the reading by which messages of a shard wait, though its owner has none of them, until its link
ends, and the next consumer gets the shard."""

STARVED_FOR: Final = 600.0
"""From that until the former owner may have the shard again though another one may have it, too."""

LOOK_EVERY: Final = 0.25 * BEAT
"""From one look for sidecars that are late or gone to the next."""

ACKS_EVERY: Final = 1.0
"""From one look for deliveries that are not acked in time to the next."""

LONGEST_FULL: Final = 15.0
"""From one full beat without news to the next, at most: a large group tells less often what nothing has changed of."""

TIMEOUT_ABOVE: Final = 60.0
"""By how much the broker's consumer timeout of a link is above the setting `groups_ack_timeout`: the last net."""


def between_beats(sidecars: int) -> float:
    """Return the seconds from one sign of life of a sidecar to the next, in a fleet of so many."""
    return max(BEAT, BEAT * sidecars / HEARD_A_SECOND)


def between_news(sidecars: int) -> float:
    """Return the least seconds from one full beat of a sidecar to the next, in a fleet of so many."""
    return max(SOON, sidecars / NEWS_A_SECOND)


def tries(orphaned: float) -> int:
    """Return how many sidecars are to open a link to a shard of which nobody has told a link for these seconds.

    One at first, and twice as many after each `ORPHANED` in which nobody has begun to open one. If all tried at once,
    a fleet that starts, or a broker that is slow, would have as many links to open as shards and sidecars multiply to:
    50 sidecars with 400 shards were then not balanced within 600 s.
    """
    return int(2.0 ** min(orphaned // ORPHANED - 1, 30)) if orphaned > ORPHANED else 0
