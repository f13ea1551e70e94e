"""Keep the last good rings on disk, one file for each exchange, for a start while the management API does not answer.

Every value in a file is checked before it is used, since other users may be able to write to the folder. For the same
reason a file counts only if this process's user, or root, owns it, and no other is removed. The folder itself must be
theirs, too, and so must be a symbolic link in its place: whoever could lead the sidecar elsewhere would decide which
rings it restores, and where it removes files.
"""

import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from proxy.settings.parse import ConfigError
from proxy.settings.patterns import Mode
from proxy.topology.bindings import MAX_GENERATION, MOST_GROUPS, RING_TYPES
from proxy.topology.generations import OtherGeneration, OtherShard
from proxy.topology.table import Entry, Name, PassReason
from ring.destination import MAX_DESTINATIONS, MAX_WEIGHT, Destination
from ring.hashed import HashedValue
from ring.hashing import RING_FORMAT
from ring.ring import fingerprint

log = logging.getLogger(__name__)

VERSION = 2
"""The version of the files' format; files of another version are ignored."""

REWRITE_AFTER = 10.0
"""Seconds after which an unchanged exchange's file is written again, so that its age stays nearly true."""

MOST_FILES = 1000
"""The most exchanges that are kept: those whose files were written last."""

MOST_BYTES = 8 * 1024 * 1024
"""The most bytes of one file. 10,000 queues with names of 200 characters take about 5 MB."""

MOST_BYTES_READ = 64 * 1024 * 1024
"""The most bytes that a start reads from all files together, the newest first."""

KEPT_FOR = 7 * 86_400.0
"""Seconds after which a start removes a file that was not written again."""

_ASIDE = frozenset({PassReason.INTERNAL_DESTINATION, PassReason.NOT_A_LANE})
"""The reasons to pass that an exchange among the destinations gives."""

_ENDING = ".ring.json"
"""The end of each file's name."""

_OURS = re.compile(r"[0-9a-f]{32}\.ring\.json|\.ring-\w+\.tmp", re.ASCII)
"""The names of files that are kept here, and of those that are being written."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

Cluster = tuple[str | None, frozenset[str], frozenset[str]]
"""A cluster's name, all names that its brokers report, and its nodes, as `ClusterIdentity.names` returns them."""


@dataclass(frozen=True)
class Saved:
    """One exchange as its file keeps it: all that decides where its publishes go."""

    name: Name
    """The virtual host and name of the exchange."""
    cluster: str | None
    """The name of the cluster whose management API was read; None if the API reports no name."""
    cluster_names: frozenset[str]
    """All names that brokers of the cluster named in `cluster` may report for it."""
    cluster_nodes: frozenset[str]
    """The nodes of the cluster named in `cluster`; empty if the API lists none."""
    exchange_type: str
    internal: bool
    """Whether only other exchanges may publish to the exchange."""
    hashed: HashedValue = HashedValue()
    """The part of a message that the exchange hashes."""
    weights: Mapping[Destination, int] = field(default_factory=dict)
    """The weights of the ring; empty if the exchange has no ring."""
    queues: Mapping[str, str | None] = field(default_factory=dict)
    """The cause for which each bound queue dead-letters under its own name, as in `Entry.queues`."""
    lanes: Mapping[Destination, str] = field(default_factory=dict)
    """The lanes of the queues that have one, as in `Entry.lanes`."""
    bound_aside: PassReason | None = None
    """The reason to pass that an exchange among the destinations gives; None if none does."""
    at: float = 0.0
    """When the exchange was read, in seconds since 1970."""
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By lane, the queue of each group of the shard behind it; without the lanes of which nothing is promised."""
    generation: int = 1
    """The number of the ring's generation."""
    made_with: int = 0
    """The number of shards that the ring's generation was made with; 0 for generation 1."""
    others: tuple[OtherGeneration, ...] = ()
    """The other generations that are bound."""

    @classmethod
    def of(cls, name: Name, entry: Entry, cluster: Cluster, at: float) -> "Saved | None":
        """Return what is to be kept of an entry; None for upstream exchanges, and for ring exchanges in mode pass."""
        if entry.upstream is not None or (entry.mode is Mode.PASS and entry.exchange_type in RING_TYPES):
            return None
        known = entry.known
        return cls(
            name,
            *cluster,
            entry.exchange_type,
            entry.internal,
            known.hashed if known is not None else HashedValue(),
            known.ring.as_weights() if known is not None else {},
            dict(entry.queues) if known is not None else {},
            entry.lanes if known is not None else {},
            entry.passed if entry.passed in _ASIDE else None,
            at,
            _groups(entry) if known is not None else {},
            entry.generation if known is not None else 1,
            entry.made_with if known is not None else 0,
            tuple(each._replace(misfits=()) for each in entry.others) if known is not None else (),
        )


def _groups(entry: Entry) -> dict[str, Mapping[str, str]]:
    """Return by lane what is promised of it."""
    promises = {lane: entry.behind[lane].promise for lane in entry.lanes.values() if lane in entry.behind}
    return {lane: dict(promise.groups) for lane, promise in promises.items() if promise is not None}


Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Names = Annotated[list[Text], msgspec.Meta(max_length=1000)]
Cause = Annotated[str, msgspec.Meta(max_length=1024)]


Groups = Annotated[dict[Text, Text], msgspec.Meta(max_length=MOST_GROUPS)]
Shards = Annotated[int, msgspec.Meta(ge=0, le=MAX_DESTINATIONS)]


class _OtherShard(msgspec.Struct, array_like=True):
    """A shard of a generation that is not the ring."""

    kind: Literal["queue", "exchange"]
    bound: Text
    """The queue or lane that the exchange is bound to."""
    name: Annotated[str, msgspec.Meta(max_length=255)]
    groups: Groups


class _OtherGeneration(msgspec.Struct, array_like=True):
    """A generation that is bound and is not the ring."""

    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_GENERATION)]
    of: Shards
    shards: Annotated[list[_OtherShard], msgspec.Meta(max_length=MAX_DESTINATIONS)]


class _File(msgspec.Struct):
    """The JSON of a file, with the limits that hold for each value."""

    cluster: Text | None
    cluster_names: Names
    cluster_nodes: Names
    vhost: Text
    exchange: Text
    type: Text
    internal: bool
    hashed: Annotated[str, msgspec.Meta(min_length=1, max_length=2 * 255)]
    weights: Annotated[
        list[tuple[Literal["queue", "exchange"], Text, Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)]]],
        msgspec.Meta(max_length=MAX_DESTINATIONS),
    ]
    queues: dict[Text, Cause | None]
    lanes: dict[Text, Text]
    """The lane of each queue that has one."""
    bound_aside: PassReason | None
    at: Annotated[float, msgspec.Meta(gt=0, le=1e12)]
    fingerprint: str
    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    ring_format: Annotated[int, msgspec.Meta(ge=RING_FORMAT, le=RING_FORMAT)]
    groups: dict[Text, Groups] = {}
    """By lane, the queue of each group; a file of a release without groups has none."""
    generation: Annotated[int, msgspec.Meta(ge=1, le=MAX_GENERATION)] = 1
    """The number of the ring's generation; a file of a release without generations has none."""
    made_with: Shards = 0
    others: Annotated[list[_OtherGeneration], msgspec.Meta(max_length=MAX_DESTINATIONS)] = []


_FILE = msgspec.json.Decoder(_File)


def encode_saved(saved: Saved) -> bytes:
    """Return the content of a file, as JSON."""
    return msgspec.json.encode(
        _File(
            cluster=saved.cluster,
            cluster_names=sorted(saved.cluster_names),
            cluster_nodes=sorted(saved.cluster_nodes),
            vhost=saved.name[0],
            exchange=saved.name[1],
            type=saved.exchange_type,
            internal=saved.internal,
            hashed=str(saved.hashed),
            weights=[(d.kind, d.name, weight) for d, weight in saved.weights.items()],
            queues=dict(saved.queues),
            lanes={queue.name: lane for queue, lane in saved.lanes.items()},
            groups={lane: dict(groups) for lane, groups in saved.groups.items()},
            generation=saved.generation,
            made_with=saved.made_with,
            others=[
                _OtherGeneration(
                    each.number,
                    each.of,
                    [_OtherShard(*bound, shard.name, dict(shard.groups)) for bound, shard in each.shards.items()],
                )
                for each in saved.others
            ],
            bound_aside=saved.bound_aside,
            at=saved.at,
            fingerprint=fingerprint(saved.weights, saved.exchange_type, str(saved.hashed)),
            version=VERSION,
            ring_format=RING_FORMAT,
        )
    )


def decode_saved(content: bytes) -> Saved:
    """Return what a file keeps. Raises ValueError, which says what is wrong with the file."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    try:
        file = _FILE.decode(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if (file.generation > 1) is not (file.made_with > 0):
        raise ValueError("generation, made_with: a later generation has a number of shards, and the first has none")
    saved = _saved(file)
    if file.fingerprint != fingerprint(saved.weights, file.type, str(saved.hashed)):
        raise ValueError("fingerprint: not that of its weights")
    return saved


def _saved(file: _File) -> Saved:
    """Return what the JSON of a file keeps. Raises ValueError where its parts contradict each other."""
    weights = {Destination(kind, name): weight for kind, name, weight in file.weights}
    lanes = {Destination("queue", name): lane for name, lane in file.lanes.items()}
    if len(weights) < len(file.weights) or (weights and file.type not in RING_TYPES):
        raise ValueError("weights: a destination is there twice, or an exchange of that type has none")
    if not {Destination("queue", name) for name in file.queues} | lanes.keys() <= weights.keys():
        raise ValueError("queues, lanes: not those of the weights")
    if not file.groups.keys() <= set(lanes.values()):
        raise ValueError("groups: not of the lanes")
    if file.bound_aside is not None and file.bound_aside not in _ASIDE:
        raise ValueError("bound_aside: not a reason that an exchange behind a ring gives")
    # A name of AMQP has up to 255 bytes, and the file's limits count characters.
    others = tuple(map(_other, file.others))
    shards = [(bound.name, shard) for each in others for bound, shard in each.shards.items()]
    further = [name for bound, shard in shards for name in (bound, *(queue for _, queue in shard.groups))]
    for name in (file.vhost, file.exchange, *(d.name for d in weights), *lanes.values(), *further):
        if len(name.encode()) > 255:
            raise ValueError(
                f"vhost, exchange, weights, lanes, others: a name of more than 255 bytes: {name[:20]!r}..."
            )
    return Saved(
        (file.vhost, file.exchange),
        file.cluster,
        frozenset(file.cluster_names),
        frozenset(file.cluster_nodes),
        file.type,
        file.internal,
        HashedValue.parse(file.hashed),
        weights,
        file.queues,
        lanes,
        file.bound_aside,
        file.at,
        file.groups,
        file.generation,
        file.made_with,
        others,
    )


def _other(found: _OtherGeneration) -> OtherGeneration:
    shards = {
        Destination(each.kind, each.bound): OtherShard(each.name, tuple(sorted(each.groups.items())))
        for each in found.shards
    }
    return OtherGeneration(found.number, found.of, shards)


def file_name(name: Name) -> str:
    """Return the name of an exchange's file: a hash, since names of virtual hosts and exchanges may have any
    characters.
    """
    vhost, exchange = (part.encode() for part in name)
    return hashlib.blake2b(b"%d:%b%b" % (len(vhost), vhost, exchange), digest_size=16).hexdigest() + _ENDING


class RingCache:
    """The files of one folder. A thread of its own writes them; `keep` and `forget` never wait for it."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Make the folder, readable by its owner only, if it is absent.

        Raises ConfigError if it cannot be written to, or is another user's. `clock` returns seconds since 1970.
        """
        self._folder, self._clock = folder, clock
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            _check_owner(folder)
            if (mode := folder.stat().st_mode) & _OTHERS_WRITE:
                log.warning(
                    "ring_cache_dir: others than its owner may write to %r (mode %04o), so they can remove rings; "
                    "run chmod go-w on it, or name a folder inside it, which is made for this user only",
                    str(folder),
                    stat.S_IMODE(mode),
                )
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise unwritable(folder, error) from None
        self._thread = ThreadPoolExecutor(1, "ring-cache")
        self._kept: dict[Name, Saved] = {}
        """The last content given to the thread to write for each exchange, the oldest first."""
        self._lock = threading.Lock()
        self._todo: dict[Name, Saved | None] = {}
        """The files that the thread has yet to write; None for a file that it is to remove."""
        self._logged: set[str] = set()
        """The warnings that were logged, so that each is logged once."""
        self._thread.submit(self._sweep)

    def close(self) -> None:
        """End the thread once it has written what it was given."""
        self._thread.shutdown(wait=False)

    def keep(self, name: Name, entry: Entry, cluster: Cluster, age: float) -> None:
        """Have the thread write an entry that was read `age` seconds ago, unless a recent file says the same."""
        saved = Saved.of(name, entry, cluster, self._clock() - age)
        before = self._kept.get(name)
        if saved is None:
            self.forget(name)
            return
        if before is not None and abs(saved.at - before.at) < REWRITE_AFTER and _alike(before, saved):
            return
        self._kept.pop(name, None)
        self._kept[name] = saved
        self._do(name, saved)
        for oldest in list(self._kept)[:-MOST_FILES]:
            self.forget(oldest)

    def forget(self, name: Name) -> None:
        """Have the thread remove an exchange's file."""
        self._kept.pop(name, None)
        self._do(name, None)

    def _do(self, name: Name, saved: Saved | None) -> None:
        """Give the thread a file to write, or to remove if `saved` is None."""
        with self._lock:
            idle = not self._todo
            self._todo[name] = saved
        if idle:
            self._thread.submit(self._work)

    def _work(self) -> None:
        """Write and remove the files that are due. Runs in the thread."""
        with self._lock:
            todo, self._todo = self._todo, {}
        for name, saved in todo.items():
            path = self._folder / file_name(name)
            try:
                if saved is None:
                    path.unlink(missing_ok=True)
                else:
                    self._write(path, encode_saved(saved))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._log_once(f"ring_cache_dir: {str(self._folder)!r}: a ring is not kept: {why}")

    def _write(self, path: Path, content: bytes) -> None:
        """Replace a file as a whole, so that no reader sees half of it. Raises ValueError if it would be too long."""
        if len(content) > MOST_BYTES:
            path.unlink(missing_ok=True)
            raise ValueError(f"{path.name} would be longer than {MOST_BYTES} bytes")
        # mkstemp makes the file for its owner only, under a name that no other process uses.
        unfinished, name = tempfile.mkstemp(".tmp", ".ring-", self._folder)
        try:
            with open(unfinished, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def load(self, name: Name) -> Saved | None:
        """Return what is kept of an exchange; None if there is no valid file. Reads a file, so it must be called in a
        thread.
        """
        saved = self._load(self._folder / file_name(name))
        return saved if saved is not None and saved.name == name else None

    def load_all(self) -> list[Saved]:
        """Return all that is kept, the newest first, up to `MOST_BYTES_READ`. Reads files, so it must be called in a
        thread.
        """
        found: list[Saved] = []
        left = MOST_BYTES_READ
        for status, path in [each for each in self._files() if each[1].suffix != ".tmp"][:MOST_FILES]:
            left -= status.st_size
            saved = self._load(path) if left >= 0 else None
            if saved is not None:
                found.append(saved)
        return sorted(found, key=lambda saved: -saved.at)

    def _sweep(self) -> None:
        """Remove files beyond `MOST_FILES` or older than `KEPT_FOR`, and unfinished files of processes that were
        killed; no other file, and none of another user.
        """
        now, kept = self._clock(), 0
        for status, path in self._files():
            if not stat.S_ISREG(status.st_mode) or not _is_own(status):
                continue
            unfinished = path.suffix == ".tmp"
            kept += not unfinished
            if kept > MOST_FILES or now - status.st_mtime > (REWRITE_AFTER if unfinished else KEPT_FOR):
                with suppress(OSError):
                    path.unlink()

    def _files(self) -> list[tuple[os.stat_result, Path]]:
        """Return the status, of a link itself, and the path of each file by its name, the newest first."""
        files = []
        with suppress(OSError), os.scandir(self._folder) as listed:
            for item in listed:
                if _OURS.fullmatch(item.name):
                    with suppress(OSError):
                        files.append((item.stat(follow_symlinks=False), Path(item.path)))
        return sorted(files, key=lambda file: (-file[0].st_mtime, file[1]))

    def _load(self, path: Path) -> Saved | None:
        """Return what a file keeps; None, and a line in the log, if it is not valid."""
        try:
            # O_NONBLOCK: a named pipe does not block the open. O_NOFOLLOW: a link does not lead out of the folder.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError("no regular file")
                if not _is_own(status):
                    raise ValueError(f"it belongs to another user (uid {status.st_uid})")
                saved = decode_saved(file.read(MOST_BYTES + 1))
            if path.name != file_name(saved.name):
                raise ValueError("not the file of the exchange that it names")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._log_once(f"ring_cache_dir: {str(path)!r} is ignored: {why}")
            return None
        return saved

    def age(self, saved: Saved) -> float | None:
        """Return the seconds since the exchange was read; None if that lies in the future, because the clock was set
        back.
        """
        age = self._clock() - saved.at
        return age if age >= 0 else None

    def _log_once(self, line: str) -> None:
        """Log a warning, unless it was logged before."""
        if line not in self._logged and len(self._logged) < MOST_FILES:
            self._logged.add(line)
            log.warning("%s", line)


def _alike(one: Saved, other: Saved) -> bool:
    """Return whether two files would keep the same, but for the time of the reading."""
    return {**vars(one), "at": 0} == {**vars(other), "at": 0}


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """Return the configuration error of a folder that cannot be written to."""
    return ConfigError(f"ring_cache_dir: {str(folder)!r} cannot be written to: {error.strerror or error}")


def _is_own(status: os.stat_result) -> bool:
    """Return whether a file, folder or link belongs to this process's user, or to root, who may do everything."""
    return status.st_uid in (0, os.geteuid())


def _check_owner(folder: Path) -> None:
    """Raise ConfigError if another user made the folder, or a symbolic link in its place; OSError if it is absent."""
    link, status = folder.lstat(), folder.stat()
    for what, found in (("a symbolic link" if stat.S_ISLNK(link.st_mode) else "a folder", link), ("a folder", status)):
        if not _is_own(found):
            raise ConfigError(
                f"ring_cache_dir: {str(folder)!r} is {what} of another user (uid {found.st_uid}), so the rings behind "
                "it may be theirs; name a folder of the user that runs this, or one that does not exist yet"
            )


def check_folder(folder: Path) -> None:
    """Check whether this process could keep rings in this folder, without making it. Raises ConfigError."""
    try:
        if folder.exists():
            _check_owner(folder)
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise unwritable(folder, error) from None
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        raise unwritable(folder, OSError(0, f"{str(nearest)!r} is not a folder that this user may write to"))
