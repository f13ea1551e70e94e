"""Consumer groups: who consumes which shard, and how a shard moves. This text is the theory of operation.

A client says basic.consume on the name of a sharded exchange, and becomes a member of its group. All sidecars together
give each shard, one queue, to one member, spread the shards evenly, and move them as members come and go. Each key's
messages stay in order, since a key has one shard, and a shard one consumer at a time.

Invariants
----------

1. **All links have the same priority.** A link is one member's consumer on one shard, on a channel that the client does
   not know of. RabbitMQ 4.3 has an active consumer give way to one of a higher priority, and keeps it for good if its
   channel ends meanwhile. Among equals that cannot happen, in whatever order things happen.
2. **A member has links to the shards whose target or owner it is, and to no others.** The owner is the member whose
   open link is the oldest; the target is the member that should have the shard. A group therefore costs the broker one
   consumer for each shard, and a second one only while the shard moves.
3. **Single active consumer on the queue is the fence.** RabbitMQ gives a shard's messages to the consumer that came
   first, until that is gone. If two sidecars believe different things, one link waits. The beliefs of sidecars cost
   balance, and never order.
4. **A link ends by a channel.close without a cancel**, once what its client holds is acked, or when the client is
   gone. The broker puts what is not acked back where it was. A basic.cancel with messages unacked would put them out
   of order. The channel does not close before all acks have reached the queue (`model.py`), unless the link is given
   up.

Who tells whom
--------------

::

    client -- basic.consume, acks --> session --- changes of links ---> RunningGroup --- beats ---> all sidecars
       ^                                 ^                                |     ^                        |
       +---------- deliveries -----------+---------- open, let go --------+     +------ beats -----------+

* A session's interceptor (`consuming/`) has the links of its client's members, and enters each change of a link into
  the table in `model.py`. It tells the group that something has changed, and nothing more.
* `running.py` is the shell of one group: the task, the log, and the connection for beats (`membership.py`).
* `shard_readings.py` reads the shards from the management API, for reports, alerts and starved
  links. Balance and order need no answer of it.
* `group.py` is all that one sidecar knows of a group, without I/O: its own members, `peers.py` with those of the
  others, and when something is due. `timing.py` has all times on one axis.
* `pauses.py` says which shards operators have paused, and `broken.py` which ones cost a client its connection.
* `decide.py` is pure: it takes what all beats tell, this sidecar's own included, and returns the owner and the target
  of each shard, and which links this sidecar's members open and let go.
* `assignment.py` spreads shards over members, evenly and with the fewest moves, the same in every sidecar.
* `consuming/links.py` opens a member's link, and closes it once the client has acked.
* `beats.py` is what a sidecar tells the others: the members it has, and of each link its state, since when it is open,
  how many messages the client holds, whether the member should have the shard as this sidecar sees it (`wants`), and
  behind which owner it waits (`behind`).

How a shard moves
-----------------

Every sidecar computes the same targets from the same beats. Then, for a shard whose owner is A and whose target is B:

1. B's sidecar opens a link, which waits at the broker behind A's. The beat says OPEN, wants, behind A.
2. A's sidecar hears that. It passes nothing on any more by A's link, which is LEAVING, and waits until A's client has
   acked what it got. Two sidecars that know different things do not let go in turns for ever, since A lets go only of
   what B wants behind it.
3. The last ack is in: A's sidecar has all acks reach the queue, and closes the channel. The broker makes B's link the
   active one, with the messages that A's client never got first. The change takes 1 to 5 ms (measured on 3.10.8, 4.0.5
   and 4.3.6, quorum and classic queues), and more by some commits of the queue where acks may be under way.
4. A's next beat tells nothing of a link any more: B is the owner.

If A dies at any point, its channel ends, and B has the shard as soon as the broker sees it: at once, or for a lost
machine after missed heartbeats. A's other shards get new targets once A counts as gone, of a lost machine after four
beats. These targets open links, which wait until the broker, too, has noticed. If B dies, A closes all the same, and
opens a link again, as the target of any shard does. If A's client does not ack for `groups_leave_timeout` seconds, A's
link is closed and its messages come again, to B.

Who is there
------------

Each sidecar has an exclusive queue on the exchange of the group's beats, and beats at least once a second. All sidecars
hear all beats, so a fleet of more than 10 beats less often (`timing.py`). Two others watch each sidecar, those that
come next in the order of ids. When it was silent for 1.5 s, they ask the broker whether its queue is there. If the
queue is not there twice, the sidecar is gone, and so are its members. Those who watched it then send its farewell, a
beat that tells of no member, in its place: so all know it at once. A sidecar that was taken for gone and lives hears
its own farewell, and beats again. One that has left out four beats is gone in any case. RabbitMQ ends the links of a
sidecar that is gone by itself, so nothing waits for that but the decision who opens the next ones.

A sidecar that does not get its own beats back, as in a memory alarm, is deaf: it keeps all links that it has, takes
nobody for gone, and opens links only to shards of which the broker says that they have no consumer.

Starved links
-------------

RabbitMQ has a quorum queue's deliveries made by the replica on the consumer's node. If that replica does not run, the
queue takes publishes, counts the consumer as active, and sends it nothing for ever (measured on 4.3.6). Where readings
show for a minute that messages of a shard wait, and its owner has none, the owner's sidecar gives the link up. The
next consumer in the queue's line may be by another node, as of a command that drains the shard. The member counts as
refused there for ten minutes, as long as another one may have the shard.

Pauses
------

Operators pause and resume shards by orders in a stream of the broker (`pause_log.py`, judged by `pausing.py`). A paused
shard has no target: nobody opens a link to it, and its owner lets it go with nobody behind. It still counts for the
member that would have it, so neither a pause nor its end moves another shard. A sidecar that has just started opens
nothing until it has read the orders, or for 2 s. One that does not know of a pause takes the shard for an orphan, and
the others tell of a move that does not end.

Markers
-------

A marker is the last message of a shard whose generation ends (`consuming/markers.py`). A's link that gets one is let go
with nobody behind it once all before the marker is settled. The command that put the marker waits in the shard's line,
and is the next consumer. It deletes the queue, or takes the marker away and leaves. RabbitMQ may end the connection of
whoever consumes during the deletion, so A's sidecar asks the broker, over its own connection, how many consumers the
shard has. A opens the next link once that was none twice. A's beats tell of a link that is LEAVING until then: A stays
the owner, and nobody opens a link to a shard that a member which stays in its group is leaving (`_ends` in
`decide.py`). A cancel by the broker begins a short wait, since a queue that is being deleted cancels its consumers. If
A goes, another member of its sidecar has the wait in its place. If its whole sidecar goes, nobody has: a member that
consumes in the moment of the deletion may then lose its connection.

Where it ends
-------------

Each lack of exactness is told with its reason (`shard_readings.py`): queues without single active consumer, consumers
beside the group, members with different prefetches. Without acks (`no_ack`) there is no promise: the next member is
active while the last one's client still reads.
"""
