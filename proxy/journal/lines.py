"""Records and rings as the JSON of docs/journal.md."""

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
"""Of the schema."""

MOST_SECRET = hashlib.blake2b.MAX_KEY_SIZE

_MOST_NAMES = 10_000
"""Routes and destinations whose JSON is kept; clients choose the names."""

KeyForm = Callable[[bytes], str]
"""From a key to its JSON."""


def plain(key: bytes) -> str:
    """A key as it is."""
    return f'"{b64encode(key).decode()}"'


def hashed(secret: bytes) -> KeyForm:
    """A key as 16 bytes that only those who have the secret can tell from another's."""
    keyed = hashlib.blake2b(key=secret, digest_size=16)

    def form(key: bytes) -> str:
        one = keyed.copy()
        one.update(key)
        return plain(one.digest())

    return form


def none(_: bytes) -> str:
    """No key."""
    return "null"


class LineFormatter:
    """Makes the lines of one sidecar."""

    def __init__(self, proxy: str, sample: float, key: KeyForm) -> None:
        """`proxy` is this process's id."""
        self._start = f'{{"v":{VERSION},"event":"{proxy}-'
        self._proxy = f',"proxy":"{proxy}","seq":'
        self._sample = f',"sample":{sample!r},"ingress":"'
        self._key = key
        self._routes: dict[tuple[Name, str], str] = {}
        self._destinations: dict[Destination, str] = {}

    def line(self, record: Record, seq: int, epoch: float) -> str:
        """One record, with its newline; `epoch` is the wall clock's time, in seconds, at monotonic 0."""
        key, message_id, destination = record.key, record.message_id, record.destination
        latency = "null" if record.outcome is Outcome.SENT else str(int((record.told_at - record.published_at) * 1e6))
        if message_id is not None and self._key is not plain and record.message_id_is_key:
            message_id = None  # it is the key
        shown_id = quoted(message_id.decode(errors="replace")) if message_id is not None else "null"
        # Not by the ring itself: it takes 2 MiB, and every change makes a new one.
        name, ring = record.name, record.ring.fingerprint
        route = self._routes.get((name, ring)) or self._route(name, ring)
        where = _NOWHERE if destination is None else self._destinations.get(destination) or self._where(destination)
        return (
            f'{self._start}{seq}","time":{int((record.told_at + epoch) * 1e6)}{self._proxy}{seq}{self._sample}'
            f'{record.ingress}"{route},"key":{self._key(key) if key is not None else "null"},"slot":{record.slot}'
            f'{where},"outcome":"{record.outcome}","latency":{latency},"bytes":{record.size},"message_id":{shown_id}}}\n'
        )

    def _route(self, name: Name, ring: str) -> str:
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
    """A ring, under its fingerprint."""
    fields = {
        "v": VERSION,
        "fingerprint": known.fingerprint,
        "ring_format": RING_FORMAT,
        "exchange_type": known.exchange_type,
        "hashed": str(known.hashed),
        "destinations": [[d.kind, d.name, weight] for d, weight in known.ring.as_weights().items()],
    }
    return json.dumps(fields).encode() + b"\n"
