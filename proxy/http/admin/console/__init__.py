"""The console: one page on the admin listener that shows what this sidecar does now, live, and changes nothing.

Three things are hard in it, and each has one place that answers for it.

**A snapshot that is cheap and bounded** (`snapshot.py`). A fleet of hundreds of sidecars may have as many pages open,
and an exchange may have thousands of queues. A snapshot is therefore made only while a page is open, once a second
however many are, from what the sidecar has in memory: no page has the management API read. With 60 exchanges it takes 1
ms of CPU, and 4 ms more for an exchange of 200 queues that somebody looks at (measured). It has an overview, the same
for all pages, and one detail for each exchange or group that somebody looks at. Each list in it has a limit, and says
how many there are in all. Before a page is opened, `history.py` keeps a few counts of the last ten minutes, and
`lag_history.py` the lag of groups of the last hour: who opens the page at night wants to see what came before. It
takes a quarter of a millisecond each 15 s for 60 exchanges, and a tenth for a group of 200 shards (measured). Counting
the publishes to each destination takes less than 1 ns of the 460 of a publish (measured, compiled), no more than asking
whether to count. Without the console there are no samples.

**Streams whose readers are slow** (`streams.py`). A queue of snapshots for each reader would grow with the slowest. A
stream has no queue: it writes the newest snapshot, waits until the socket has taken that, and goes on with the one that
is the newest then. At most `MOST_STREAMS` are open, fewer than the listener's connections, or pages would keep probes
out.

**A page that stays readable** (`static/`), by hand, without a framework and without a build. Names of exchanges, queues
and clients are chosen by strangers; they get into the page as text, and the page's policy lets no other script run.
"""
