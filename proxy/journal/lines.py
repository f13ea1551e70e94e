"""The journal's records and rings as the JSON that docs/reference/journal.md describes."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted

from proxy.journal.buffer import Record
from proxy.outcome import Outcome
from proxy.topology.table import KnownRing, Name
from ring.destination import Destination
from ring.hashing import RING_FORMAT

VERSION = 1
"""The version of the schema, which each line and each ring names."""

MOST_SECRET = hashlib.blake2b.MAX_KEY_SIZE
"""Bytes of the secret for hashed keys, at most."""

_MOST_NAMES = 10_000
"""Routes and destinations whose JSON is kept, at most; a limit is needed since clients choose the names."""

KeyForm = Callable[[bytes], str]
"""A function that returns the JSON for a key."""


def plain(key: bytes) -> str:
    """Return a key as it is, in base64, as it need not be text."""
    return f'"{b64encode(key).decode()}"'


def hashed(secret: bytes) -> KeyForm:
    """Return the form that hashes a key to 16 bytes of BLAKE2b under a secret: equal keys stay equal, and unknown."""
    keyed = hashlib.blake2b(key=secret, digest_size=16)

    def form(key: bytes) -> str:
        one = keyed.copy()
        one.update(key)
        return plain(one.digest())

    return form


def none(_: bytes) -> str:
    """Return null whatever the key is."""
    return "null"


class LineFormatter:
    """The maker of one process's lines; it keeps the parts of them that are often the same."""

    def __init__(self, proxy: str, sample: float, key: KeyForm) -> None:
        """Take the process's id, the share of the slots that is journalled, and the form of keys."""
        self._start = f'{{"v":{VERSION},"event":"{proxy}-'
        self._proxy = f',"proxy":"{proxy}","seq":'
        self._sample = f',"sample":{sample!r},"ingress":"'
        self._key = key
        self._routes: dict[tuple[Name, str], str] = {}
        self._destinations: dict[Destination, str] = {}

    def line(self, record: Record, seq: int, epoch: float) -> str:
        """Return a record's line with its newline; `epoch` is the wall clock's time, in seconds, at monotonic 0."""
        key, message_id, destination = record.key, record.message_id, record.destination
        latency = "null" if record.outcome is Outcome.SENT else str(int((record.told_at - record.published_at) * 1e6))
        if message_id is not None and self._key is not plain and record.message_id_is_key:
            message_id = None  # it is a key, which may not be shown
        shown_id = quoted(message_id.decode(errors="replace")) if message_id is not None else "null"
        # Cached by the fingerprint: a ring as the key would stay in memory, with 2 MiB for each change of bindings.
        name, ring = record.name, record.ring.journalled
        route = self._routes.get((name, ring)) or self._route(name, ring)
        where = _NOWHERE if destination is None else self._destinations.get(destination) or self._where(destination)
        return (
            f'{self._start}{seq}","time":{int((record.told_at + epoch) * 1e6)}{self._proxy}{seq}{self._sample}'
            f'{record.ingress}"{route},"key":{self._key(key) if key is not None else "null"},"slot":{record.slot}'
            f'{where},"outcome":"{record.outcome}","latency":{latency},"bytes":{record.size},"message_id":{shown_id}}}\n'
        )

    def _route(self, name: Name, ring: str) -> str:
        """Return the part of a line that tells exchange and ring, and keep it for the next record."""
        if len(self._routes) >= _MOST_NAMES:
            self._routes.clear()
        vhost, exchange = name
        text = f',"vhost":{quoted(vhost)},"exchange":{quoted(exchange)},"ring":"{ring}"'
        self._routes[name, ring] = text
        return text

    def _where(self, destination: Destination) -> str:
        if len(self._destinations) >= _MOST_NAMES:
            self._destinations.clear()
        text = f',"kind":"{destination.kind}","destination":{quoted(destination.name)}'
        self._destinations[destination] = text
        return text


_NOWHERE = ',"kind":null,"destination":null'


def ring_json(known: KnownRing) -> bytes:
    """Return a ring as JSON, with the fingerprint by which records name it."""
    fields = {
        "v": VERSION,
        "fingerprint": known.journalled,
        "ring_format": RING_FORMAT,
        "exchange_type": known.exchange_type,
        "hashed": str(known.hashed),
        "destinations": [[d.kind, d.name, weight] for d, weight in known.ring.as_weights().items()],
        **({"queues": queues} if (queues := known.queues) else {}),
    }
    return json.dumps(fields).encode() + b"\n"
