"""Keep on disk what was read, and make entries of it while the management API cannot be read."""

import asyncio
import logging

from proxy.topology.changes import title
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.entry_builder import EntryBuilder
from proxy.topology.ring_cache import RingCache, Saved
from proxy.topology.table import Entry, Name, Router

log = logging.getLogger(__name__)


class KeptRings:
    """The entries that are kept in the files of `RingCache`; none if the setting `ring_cache_dir` is not set.

    They are restored only after a reading has failed, or while the management API has not answered yet, with the age of
    the reading that they come from.
    """

    def __init__(
        self,
        cache: RingCache | None,
        entry_builder: EntryBuilder,
        router: Router,
        identity: ClusterIdentity,
        max_age: float,
    ) -> None:
        """Load nothing yet. `max_age` is the setting `ring_max_age`, in seconds."""
        self._cache, self._entry_builder, self._router = cache, entry_builder, router
        self._identity, self._max_age = identity, max_age
        self._restored_of = identity.names
        """The names and nodes of the cluster that the restored entries belong to."""
        self._all: asyncio.Task[dict[Name, Saved]] | None = None
        """The task that loads every file, for a start without the API; None before it and after the API has
        answered."""

    def keep(self, name: Name, entry: Entry) -> None:
        """Keep an entry that was just read."""
        if self._cache is not None:
            self._cache.keep(name, entry, self._identity.names, self._router.clock() - entry.read_at)

    def forget(self, name: Name) -> None:
        """Remove an exchange from disk."""
        if self._cache is not None:
            self._cache.forget(name)

    def of_another_cluster(self) -> list[Name]:
        """Return the restored exchanges if the management API, as it has answered, belongs to another cluster."""
        restored = [name for name, entry in self._router.entries.items() if entry.restored]
        if not self._identity.asked or not restored or self._identity.is_of(*self._restored_of):
            return []
        log.warning(
            "%d restored rings belong to another cluster than the management API, and are dropped", len(restored)
        )
        return restored

    async def names(self) -> list[Name]:
        """Return the exchanges that are kept on disk, the newest first.

        Until the management API has answered, the cluster of the newest file counts as the API's.
        """
        if self._cache is None:
            return []
        if self._all is None:
            self._all = asyncio.create_task(self._load_all(self._cache))
        return list(await asyncio.shield(self._all))

    async def _load_all(self, cache: RingCache) -> dict[Name, Saved]:
        """Return all that is kept on disk, and take the newest file's cluster for the API's if the API has not
        answered.
        """
        try:
            found = await asyncio.to_thread(cache.load_all)
        except Exception:
            log.exception("unexpected error while rings were restored from ring_cache_dir; none is restored")
            found = []
        if found and not self._identity.asked:
            newest = found[0]
            self._identity.assume(newest.cluster, newest.cluster_names, newest.cluster_nodes)
        return {saved.name: saved for saved in found}

    async def entry(self, name: Name) -> Entry | None:
        """Return an entry of an exchange as it is kept on disk; None if nothing is kept, or if it is of another
        cluster, or if the management API has answered meanwhile.
        """
        if self._cache is None:
            return None
        asked = self._identity.asked
        if asked:
            self._all = None  # Only a start without the API needs it, and it may be large.
            saved = await asyncio.to_thread(self._cache.load, name)
        else:
            await self.names()
            saved = self._all.result().get(name) if self._all is not None else None
        if saved is None:
            return None
        if self._is_foreign(saved):
            return None
        age = self._cache.age(saved)
        if age is None:
            # The clock was set back by an unknown time, so the entry counts as stale.
            log.warning(
                "%s: its ring in ring_cache_dir has a time in the future, and counts as older than ring_max_age",
                title(name),
            )
            age = self._max_age + 1.0
        entry = await self._entry_builder.restored(saved, self._router.clock() - age)
        # The cluster may have become known, or another one, while the ring was built.
        if entry is None or self._identity.asked is not asked or self._is_foreign(saved):
            return None
        log.warning(
            "%s: its bindings cannot be read, so its ring of %.0f s ago is restored from ring_cache_dir",
            title(name),
            age,
        )
        self._restored_of = self._identity.names
        return entry

    def _is_foreign(self, saved: Saved) -> bool:
        """Return whether what is kept belongs to another cluster than the management API, and log it."""
        if self._identity.is_of(saved.cluster, saved.cluster_names, saved.cluster_nodes):
            return False
        log.warning(
            "%s: its ring in ring_cache_dir belongs to cluster %r, and is not used", title(saved.name), saved.cluster
        )
        return True

    def close(self) -> None:
        """Stop loading, and end the thread of the cache."""
        if self._all is not None:
            self._all.cancel()
        if self._cache is not None:
            self._cache.close()
