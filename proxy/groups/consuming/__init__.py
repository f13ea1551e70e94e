"""The AMQP side of groups: a client that consumes from the name of an exchange, on a session of this sidecar.

The client sees one consumer on one channel. The broker sees a consumer for each shard that the member has, each on a
hidden channel whose number the handshake has kept back. `Consuming` has the hidden channels and members of a session,
and `GroupInterceptor` (`interceptor.py`) is what the session's loops over frames ask (`proxy/session/interceptor.py`).

| step | module |
|---|---|
| a basic.consume, cancel, qos or get comes | `consumer.py`; other methods on a group's name: `group_name.py` |
| the broker says whether the name is a queue's | `answers.py`; the events for the groups: `events.py` |
| the group decides what a member does | `attendant.py`, which has the event loop, has `actions.py` do it |
| a link opens, leaves and ends | `links.py`, by the table of `proxy/groups/model.py` |
| a delivery comes | `deliver.py` gives it the client's tag, and `tags.py` remembers whose it is |
| a marker comes, as the shard's generation ends | `markers.py` hides it, and lets the link go |
| the client acks, rejects or returns it | `settle.py` sends that on the hidden channel that the tag stands for |
"""
