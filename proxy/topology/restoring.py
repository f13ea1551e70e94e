"""Entries of the last good rings that were kept on disk, where the management API cannot be read."""

import asyncio
import logging

from proxy.topology.changes import title
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.entry_builder import EntryBuilder
from proxy.topology.ring_cache import RingCache, Saved
from proxy.topology.table import Entry, Name, Router

log = logging.getLogger(__name__)


class EntryRestorer:
    """Makes stale entries of what is kept, of their true age. Used once a reading has failed, and never before."""

    def __init__(
        self, cache: RingCache, entry_builder: EntryBuilder, router: Router, identity: ClusterIdentity, max_age: float
    ) -> None:
        """`max_age` is the setting `ring_max_age`."""
        self._cache, self._entry_builder, self._router = cache, entry_builder, router
        self._identity, self._max_age = identity, max_age
        self._all: asyncio.Task[dict[Name, Saved]] | None = None

    async def names(self) -> list[Name]:
        """Return the exchanges that are kept of one cluster, the newest first; it then counts as the API's.

        The cluster is that of the newest file, until the management API says its own.
        """
        if self._all is None:
            self._all = asyncio.create_task(self._load_all())
        return list(await asyncio.shield(self._all))

    async def _load_all(self) -> dict[Name, Saved]:
        try:
            found = await asyncio.to_thread(self._cache.load_all)
        except Exception:
            log.exception("a defect while rings were restored; none is")
            found = []
        if found and not self._identity.asked:
            newest = found[0]
            self._identity.assume(newest.cluster, newest.cluster_names, newest.cluster_nodes)
        return {saved.name: saved for saved in found}

    async def entry(self, name: Name) -> Entry | None:
        """Return an entry of what is kept of an exchange; None where there is nothing, or of another cluster."""
        if self._identity.asked:
            self._all = None  # was for a start without the API, and may be large
            saved = await asyncio.to_thread(self._cache.load, name)
        else:
            await self.names()
            saved = self._all.result().get(name) if self._all is not None else None
        if saved is None:
            return None
        if not self._identity.is_of(saved.cluster, saved.cluster_names, saved.cluster_nodes):
            log.warning("%s: what is kept is of cluster %r, and is not used", title(name), saved.cluster)
            return None
        age = self._cache.age(saved)
        if age is None:
            # How far the clock was off cannot be told, so that no age is too great.
            log.warning("%s: what is kept is of the future, and counts as older than ring_max_age", title(name))
            age = self._max_age + 1.0
        entry = await self._entry_builder.restored(saved, self._router.clock() - age)
        if entry is not None:
            log.warning(
                "%s: its ring of %.0f s ago is restored from ring_cache_dir, as it cannot be read", title(name), age
            )
        return entry

    def close(self) -> None:
        """Ends what is under way."""
        if self._all is not None:
            self._all.cancel()
        self._cache.close()
