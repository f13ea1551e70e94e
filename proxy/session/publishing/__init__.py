"""The way of a client's publishes: where each goes, how its confirm comes back, and where returned ones go again.

| what happens | module |
|---|---|
| a publish to a ring's exchange gets the queue of its key, a number and its stamps | `publish.py` |
| the broker acks or nacks publishes, one by one or many at once | `confirms.py`, `unsettled.py` |
| a publish comes back, since its queue is gone | `returns.py`; what waits for a reading is in `parking.py` |
| the ring has another queue for it, now or after a reading | `placement.py`, `republishing.py` |
| a ring changes while publishes are unsettled | `order.py` |
| the broker closes the channel, since a lane is gone | `channel_reopening.py` |
| a declaration changes rings | `requests.py` |
"""
