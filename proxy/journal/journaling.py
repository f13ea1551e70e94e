"""The journal of a sidecar, put together from its settings: buffers, the thread that writes, and its store."""

import contextlib
from collections.abc import AsyncIterator
from queue import SimpleQueue
from time import monotonic

from proxy.journal import lines
from proxy.journal.buffer import Filled, Journal
from proxy.journal.files import FileStore
from proxy.journal.lines import KeyForm, LineFormatter
from proxy.journal.store import Store
from proxy.journal.writer import Writer, proxy_id, writing
from proxy.settings.config import Settings
from proxy.settings.credentials import secret
from proxy.settings.files import Files
from proxy.settings.parse import ConfigError
from ring.hashing import SLOTS

_PATIENCE = 30.0
"""Seconds for which one message to the stream queue is tried; meanwhile the buffers fill."""


class Journaling:
    """The journal of this process and the writer of its records; neither where no setting asks for a journal."""

    def __init__(self, settings: Settings, files: Files) -> None:
        """Make the journal that the settings ask for. Raises ConfigError, which names the setting at fault."""
        self.journal: Journal | None = None
        self.writer: Writer | None = None
        proxy = proxy_id()
        store = _store(settings, files, proxy)
        if store is None:
            return
        filled: SimpleQueue[Filled | None] = SimpleQueue()
        slots = max(1, round(settings.journal_sample * SLOTS))
        self.journal = Journal(slots, filled.put, monotonic)
        self.writer = Writer(self.journal, filled, store, LineFormatter(proxy, slots / SLOTS, key_form(settings)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the writer for as long as the context lasts; do nothing where there is no journal."""
        if self.journal is None or self.writer is None:
            yield
            return
        async with writing(self.journal, self.writer):
            yield


def _store(settings: Settings, files: Files, proxy: str) -> Store | None:
    """Return the store that the settings name: files or a stream queue; None without a journal. Raises ConfigError."""
    if settings.journal_dir is not None:
        return FileStore(
            settings.journal_dir,
            proxy,
            most_seconds=settings.journal_file_seconds,
            most_bytes=settings.journal_file_bytes,
            most_in_all=settings.journal_max_bytes,
        )
    if settings.journal_stream is not None:
        # Imported only where it is needed: aio-pika takes 10 MiB of memory.
        from proxy.journal.stream import StreamStore, connector

        connect = connector(settings, files, settings.default_vhost, "ringproxy journal")
        return StreamStore(connect, settings.journal_stream, proxy, patience=_PATIENCE)
    return None


def key_form(settings: Settings) -> KeyForm:
    """Return how keys are journalled. Raises ConfigError for a secret that cannot be read, or is too long."""
    if settings.journal_key == "hash":
        assert settings.journal_key_file is not None
        key = secret("journal_key_file", settings.journal_key_file).encode()
        if len(key) > lines.MOST_SECRET:
            raise ConfigError(
                f"journal_key_file: the secret has {len(key)} bytes; at most {lines.MOST_SECRET} are allowed"
            )
        return lines.hashed(key)
    return lines.plain if settings.journal_key == "plain" else lines.none
